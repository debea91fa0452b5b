//! What libpmix asks its host, on its own thread: queued, never decided here.

use std::ffi::{CStr, CString, c_char, c_void};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use pmix_sys as sys;

use super::super::ffi::text;
use super::super::lock;
use super::Error;
use super::collective::{Contribution, Done};
use super::control::Signalling;
use super::log_message::LogMessage;
use super::modex::{Found, Want};
use super::name_service::{Lookup, Publishing, Query};
use muster_sys::descriptor::EventFd;

/// Upcalls that may wait: each local rank has a few at most.
const WAITING_MAX: usize = 65_536;

/// Something that a rank of this node did or wants.
#[derive(Debug)]
pub enum Upcall {
    /// It called `PMIx_Init`.
    Connected(u32),
    /// It called `PMIx_Finalize`.
    Finalized(u32),
    /// It called `PMIx_Abort`.
    Aborted {
        /// Which rank.
        rank: u32,
        /// The exit code that it wants.
        status: i32,
        /// Its words.
        message: String,
        /// To be told that the job ends; it waits for that.
        answer: Done,
    },
    /// All local ranks among these have come to a fence, or to something that is like one.
    Collective(Contribution),
    /// It leaves something for others to find.
    Publish(Publishing),
    /// It looks for what others have left.
    Lookup(Lookup),
    /// It takes back what it left.
    Unpublish {
        /// Which rank.
        rank: u32,
        /// The keys; none for all.
        keys: Vec<String>,
        /// To be told when it is done.
        answer: Done,
    },
    /// It asks what there is.
    Query(Query),
    /// It wants what a rank of another node has put.
    Want(Want),
    /// What a rank of this node has put, as the server was asked.
    Found(Found),
    /// It wants a signal sent.
    Signal(Signalling),
    /// It wants something said where its own words go.
    LogMessage(LogMessage),
    /// It wants something that there is not, and has been refused.
    Refused {
        /// Which rank.
        rank: u32,
        /// What.
        what: &'static str,
    },
    /// A tool has connected, all of whose questions are refused.
    Tool,
}

/// Where upcalls go.
struct Queue {
    sender: SyncSender<Upcall>,
    wake: EventFd,
    /// The job's: whoever is of another is no rank.
    namespace: CString,
}

static QUEUE: Mutex<Option<Queue>> = Mutex::new(None);
/// Upcalls that found the queue full.
static LOST: AtomicU64 = AtomicU64::new(0);

/// Opens the queue of this process's one server.
pub(super) fn open(wake: EventFd, namespace: CString) -> Result<Receiver<Upcall>, Error> {
    open_for(wake, namespace, WAITING_MAX)
}

fn open_for(wake: EventFd, namespace: CString, most: usize) -> Result<Receiver<Upcall>, Error> {
    let mut queue = lock(&QUEUE);
    if queue.is_some() {
        return Err(Error::System(
            "this process has a PMIx server already".into(),
        ));
    }
    let (sender, receiver) = sync_channel(most);
    *queue = Some(Queue {
        sender,
        wake,
        namespace,
    });
    Ok(receiver)
}

/// Nothing is queued any more.
pub(super) fn close() {
    *lock(&QUEUE) = None;
}

/// How many upcalls found the queue full; who made them was told so.
pub(super) fn lost() -> u64 {
    LOST.load(Ordering::Relaxed)
}

/// One more.
pub(super) fn note_lost() {
    LOST.fetch_add(1, Ordering::Relaxed);
}

/// Puts it into the queue. What to tell libpmix: that the answer comes later, that there is no room, or that nobody
/// will look at it.
pub(super) fn queue(upcall: Upcall) -> sys::pmix_status_t {
    let queue = lock(&QUEUE);
    let Some(queue) = &*queue else {
        return sys::PMIX_ERR_NOT_SUPPORTED;
    };
    let queued = queue.sender.try_send(upcall);
    queue.wake.raise();
    match queued {
        Ok(()) => sys::PMIX_SUCCESS as i32,
        Err(_) => {
            note_lost();
            sys::PMIX_ERR_OUT_OF_RESOURCE
        }
    }
}

/// The same of what is done with that.
fn note(upcall: Upcall) -> sys::pmix_status_t {
    match queue(upcall) {
        status @ sys::PMIX_ERR_OUT_OF_RESOURCE => status,
        _ => DONE,
    }
}

/// Whether a process is one of the job's.
pub(super) fn is_rank(process: &sys::pmix_proc_t) -> bool {
    let queue = lock(&QUEUE);
    queue
        .as_ref()
        .is_some_and(|queue| queue.namespace == text(&process.nspace))
}

/// The rank that an upcall is about, if it is of the job.
///
/// # Safety
/// NULL, or a process that is valid for the call.
pub(super) unsafe fn rank(process: *const sys::pmix_proc_t) -> Option<u32> {
    // SAFETY: as the caller promises.
    let process = unsafe { process.as_ref() };
    process
        .filter(|process| is_rank(process))
        .map(|process| process.rank)
}

/// What the server answers to an upcall that is dealt with at once.
const DONE: i32 = sys::PMIX_OPERATION_SUCCEEDED;

pub(super) extern "C" fn connected(
    process: *const sys::pmix_proc_t,
    _object: *mut c_void,
    _infos: *mut sys::pmix_info_t,
    _count: usize,
    _answer: sys::pmix_op_cbfunc_t,
    _data: *mut c_void,
) -> sys::pmix_status_t {
    // SAFETY: libpmix passes a process that is valid for the call, or NULL.
    let rank = unsafe { rank(process) };
    rank.map_or(DONE, |rank| note(Upcall::Connected(rank)))
}

pub(super) extern "C" fn finalized(
    process: *const sys::pmix_proc_t,
    _object: *mut c_void,
    _answer: sys::pmix_op_cbfunc_t,
    _data: *mut c_void,
) -> sys::pmix_status_t {
    // SAFETY: as in `connected`.
    let rank = unsafe { rank(process) };
    rank.map_or(DONE, |rank| note(Upcall::Finalized(rank)))
}

pub(super) extern "C" fn aborted(
    process: *const sys::pmix_proc_t,
    _object: *mut c_void,
    status: i32,
    message: *const c_char,
    _processes: *mut sys::pmix_proc_t,
    _count: usize,
    function: sys::pmix_op_cbfunc_t,
    data: *mut c_void,
) -> sys::pmix_status_t {
    // SAFETY: libpmix passes a process and a terminated text, or NULL for either, valid for the call.
    let (rank, message) = unsafe {
        let message = (!message.is_null()).then(|| CStr::from_ptr(message));
        (rank(process), message)
    };
    let Some(rank) = rank else {
        return sys::PMIX_ERR_NOT_SUPPORTED;
    };
    let message = message.map_or_else(String::new, |text| text.to_string_lossy().into_owned());
    queue(Upcall::Aborted {
        rank,
        status,
        message,
        answer: Done { function, data },
    })
}

/// More processes than the job was started with: there is no place for them.
pub(super) extern "C" fn spawn(
    process: *const sys::pmix_proc_t,
    _infos: *const sys::pmix_info_t,
    _infos_count: usize,
    _apps: *const sys::pmix_app_t,
    _apps_count: usize,
    _answer: sys::pmix_spawn_cbfunc_t,
    _data: *mut c_void,
) -> sys::pmix_status_t {
    // SAFETY: as in `connected`.
    if let Some(rank) = unsafe { rank(process) } {
        queue(Upcall::Refused {
            rank,
            what: "MPI_Comm_spawn",
        });
    }
    sys::PMIX_ERR_NOT_SUPPORTED
}

/// # Safety
/// `place` is NULL, or there are so many values that stay valid while the slice lives.
pub(super) unsafe fn slice<'a, T>(place: *const T, count: usize) -> &'a [T] {
    if place.is_null() {
        return &[];
    }
    // SAFETY: as the caller promises.
    unsafe { std::slice::from_raw_parts(place, count) }
}

#[cfg(test)]
mod tests {
    use super::super::super::ffi::process;
    use super::*;

    /// What finds no room is neither done nor impossible, and it is counted.
    #[test]
    fn an_upcall_without_room_is_refused_and_counted() {
        let wake = EventFd::new().unwrap();
        let namespace = c"muster-upcalls";
        let upcalls = open_for(wake, namespace.into(), 1).unwrap();
        let one = process(namespace, 3);
        let none = std::ptr::null_mut();
        let come = || connected(&raw const one, none, none.cast(), 0, None, none);
        let go = || finalized(&raw const one, none, None, none);
        let end = || {
            let log_message = c"enough".as_ptr();
            aborted(
                &raw const one,
                none,
                1,
                log_message,
                none.cast(),
                0,
                None,
                none,
            )
        };
        let before = lost();
        assert_eq!(come(), DONE);
        for refused in [go(), end(), queue(Upcall::Tool)] {
            assert_eq!(refused, sys::PMIX_ERR_OUT_OF_RESOURCE);
        }
        assert_eq!(lost() - before, 3);
        assert!(matches!(upcalls.try_recv(), Ok(Upcall::Connected(3))));
        // Told when the job ends.
        assert_eq!(end(), sys::PMIX_SUCCESS as i32);
        close();
        assert_eq!(queue(Upcall::Tool), sys::PMIX_ERR_NOT_SUPPORTED);
        assert_eq!(lost() - before, 3);
    }
}
