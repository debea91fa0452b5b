//! The PMIx client of this process: the instance that MPI loaded, and no other.
//!
//! MPI initialises PMIx (`PMIx_Init`) and finalizes it (`PMIx_Finalize`). This module looks the library up among
//! those already loaded, calls nothing before `PMIx_Initialized` returns true, and holds one counted reference of its
//! own, so that neither side ends PMIx for the other. It releases the reference on drop or at `exit`.
//!
//! Not done here: no second libpmix (in an MPI process it breaks MPI; a launcher is no MPI process, see [`server`]),
//! no fence (it can match another rank's `MPI_Finalize` and block the job), no call that waits for another node
//! (values of other nodes are requested with [`Session::ask`] and delivered to an [`Inbox`]), and no event that
//! leaves the process (wider ranges hang or kill jobs under several launchers).
#![deny(unsafe_code)]

mod error;
mod event_listener;
#[allow(unsafe_code)]
mod ffi;
#[allow(unsafe_code)]
mod functions;
mod inbox;
mod job;
#[cfg(feature = "server")]
#[allow(unsafe_code)]
pub mod server;
mod status_code;

use std::ffi::{CStr, CString};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

pub use error::{Error, Status};
pub use event_listener::Listener;
pub use inbox::{Answer, Inbox, Ticket};
pub use job::{Job, JobNode};
pub use status_code::StatusCode;

/// The libpmix that is loaded in this process.
#[derive(Clone, Copy)]
pub struct Pmix {
    library: ffi::Library,
}

impl Pmix {
    /// Searches the loaded libraries. `None` if there is no libpmix (yet): not an MPI program, an MPI with a built-in
    /// PMIx, or one that loads it in `MPI_Init`.
    pub fn find() -> Option<Self> {
        ffi::Library::find().map(|library| Self { library })
    }

    /// Whether MPI (or the program itself) has initialised PMIx and not yet finalized it.
    pub fn initialized(&self) -> bool {
        self.library.initialized()
    }

    /// Takes the one reference of this process.
    ///
    /// PMIx cannot report how many references exist. If MPI is finalized between the check that PMIx is initialised
    /// and our `PMIx_Init` (microseconds, on another thread), PMIx is initialised again, for this reference alone; it
    /// ends when the reference is released, at `finalize` or at exit. A process that ends MPI right after its start
    /// can detach before that.
    ///
    /// # Errors
    /// [`Error::NotInitialized`] while MPI is not up (try again later), [`Error::Held`] if a
    /// [`Session`] exists already, [`Error::Refused`] if PMIx refuses. No reference is held then.
    pub fn hold(self) -> Result<Session, Error> {
        let mut holder = lock(&HOLDER);
        if holder.is_some() && HOLDER_PID.load(Ordering::Acquire) == std::process::id() {
            return Err(Error::Held);
        }
        if !self.initialized() {
            return Err(Error::NotInitialized);
        }
        let (namespace, rank) = self.library.init()?;
        *holder = Some(self.library);
        HOLDER_PID.store(std::process::id(), Ordering::Release);
        ffi::release_at_exit();
        Ok(Session {
            library: self.library,
            namespace,
            rank,
        })
    }
}

/// The library whose reference is held; the exit handler has no `Session` and finds it here.
static HOLDER: Mutex<Option<ffi::Library>> = Mutex::new(None);
/// The process that took it, 0 for none: a forked child inherits memory, not the reference.
static HOLDER_PID: AtomicU32 = AtomicU32::new(0);
/// Calls into libpmix that are running.
static CALLS: AtomicU32 = AtomicU32::new(0);
/// How long running calls are waited for before the reference is released. They take microseconds; a call that is
/// stuck in libpmix must not keep the process from ending.
const CALLS_DEADLINE: Duration = Duration::from_secs(1);

/// A call into libpmix: while it runs, the reference is not released.
#[derive(Debug)]
struct Call;

impl Call {
    /// Fails if the reference was released, or is about to be.
    fn begin() -> Result<Self, Error> {
        // This counts first and checks afterwards; `release` marks first and waits for the count afterwards. So at
        // least one of the two sees the other.
        CALLS.fetch_add(1, Ordering::SeqCst);
        let call = Self;
        if HOLDER_PID.load(Ordering::SeqCst) != std::process::id() {
            return Err(Error::Released);
        }
        Ok(call)
    }

    /// Waits until no call is running; `false` if one still is at the deadline.
    fn await_none(deadline: Duration) -> bool {
        let until = Instant::now() + deadline;
        while CALLS.load(Ordering::SeqCst) > 0 {
            if Instant::now() >= until {
                return false;
            }
            std::thread::sleep(Duration::from_micros(100));
        }
        true
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        CALLS.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Releases the reference, once, and only in the process that took it. At exit other threads continue: running calls
/// are waited for, and later ones are refused.
fn release() {
    // Checked before the lock, which a forked child may find locked by a thread that it does not have.
    if HOLDER_PID.load(Ordering::Acquire) != std::process::id() {
        return;
    }
    let mut holder = lock(&HOLDER);
    let held = holder.take();
    HOLDER_PID.store(0, Ordering::SeqCst);
    drop(holder);
    if let Some(library) = held {
        let _ = Call::await_none(CALLS_DEADLINE);
        event_listener::stop();
        library.stop_listening();
        library.finalize();
    }
}

/// A panic in another thread leaves the data of these locks valid: each change is a single assignment.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// The reference to PMIx, released on drop (or at exit, if it still exists then).
pub struct Session {
    library: ffi::Library,
    namespace: CString,
    rank: u32,
}

impl Session {
    /// The namespace of this process: the launcher's name for the job.
    pub fn namespace(&self) -> &CStr {
        &self.namespace
    }

    /// The rank of this process in its namespace.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// The launcher's map of the job, from this process's own copy of the job data.
    ///
    /// # Errors
    /// Those of the look-ups, if the launcher's server knows too little of the job, or [`Error::Released`].
    pub fn job(&self) -> Result<Job, Error> {
        let _call = Call::begin()?;
        Job::read(self)
    }

    /// Puts a string for the ranks of the job under `key`; visible to them after [`Self::commit`].
    ///
    /// # Errors
    /// [`Error::BadText`], [`Error::Refused`] or [`Error::Released`]; nothing was put then.
    pub fn put(&self, key: &CStr, value: &str) -> Result<(), Error> {
        let _call = Call::begin()?;
        let text = CString::new(value).map_err(|_| Error::BadText(value.to_owned()))?;
        self.library.put(key, &text)
    }

    /// Passes the values of [`Self::put`] to the local PMIx server. Does not wait for any other process.
    ///
    /// # Errors
    /// [`Error::Refused`] or [`Error::Released`].
    pub fn commit(&self) -> Result<(), Error> {
        let _call = Call::begin()?;
        self.library.commit()
    }

    /// Requests the string that `rank` put under `key`. The answer is delivered to the inbox as soon as that rank has
    /// committed it; the caller keeps its own deadline and calls [`Inbox::forget`] when it has waited long enough.
    /// With `refresh`, the request is sent even if this process has data of that rank.
    ///
    /// # Errors
    /// [`Error::BadText`], [`Error::Refused`] or [`Error::Released`]; no answer will be delivered then.
    pub fn ask(
        &self,
        rank: u32,
        key: &CStr,
        refresh: bool,
        inbox: &Inbox,
    ) -> Result<Ticket, Error> {
        let _call = Call::begin()?;
        let ticket = inbox.expect();
        self.library
            .get_nonblocking(&self.namespace, rank, key, refresh, ticket)
            .inspect_err(|_| inbox.forget(ticket))?;
        Ok(ticket)
    }

    /// Notifies this process, and only it, of the status of `rank`. Handlers that are registered for this very code
    /// are called; default handlers, which end jobs, are not.
    ///
    /// # Errors
    /// [`Error::NotInitialized`] if PMIx was finalized, [`Error::Busy`], [`Error::Refused`],
    /// [`Error::Released`].
    pub fn notify(&self, status_code: StatusCode, rank: u32) -> Result<(), Error> {
        let _call = Call::begin()?;
        self.library
            .notify(status_code.code(), &self.namespace, rank)
    }

    /// Calls `listener` with each rank of this job of which the launcher reports an abnormal end, until the reference
    /// is released. It is called on libpmix's thread and must not wait for anything. Whether and when a launcher
    /// reports it depends on the launcher; many report nothing.
    ///
    /// # Errors
    /// [`Error::Released`].
    pub fn listen(&self, listener: Listener) -> Result<(), Error> {
        let _call = Call::begin()?;
        event_listener::listen(&self.namespace, listener);
        self.library.listen();
        Ok(())
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// This test program has no libpmix, so there is nothing to find and nothing is loaded.
    #[test]
    fn a_process_without_mpi_has_no_pmix() {
        assert!(Pmix::find().is_none());
        assert!(Pmix::find().is_none(), "the search must not load it");
    }

    /// Released twice, or by a process that never held it: no call into a library, no panic.
    #[test]
    fn releasing_without_a_reference_does_nothing() {
        release();
        release();
        assert_eq!(HOLDER_PID.load(Ordering::Acquire), 0);
    }

    /// Without a reference no call begins, and none stays counted; a running call is waited for.
    #[test]
    fn a_running_call_is_waited_for() {
        assert!(matches!(Call::begin(), Err(Error::Released)));
        assert!(Call::await_none(Duration::ZERO));
        CALLS.fetch_add(1, Ordering::SeqCst);
        let running = Call;
        assert!(!Call::await_none(Duration::from_millis(1)));
        let waiting = std::thread::spawn(|| Call::await_none(Duration::from_secs(60)));
        drop(running);
        assert!(waiting.join().unwrap());
    }
}
