//! Upcalls: the requests of libpmix to its host, made on libpmix's own thread. They are queued, never decided here.

use std::ffi::{CStr, CString, c_char, c_void};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use pmix_sys as sys;

use super::super::ffi::text;
use super::super::lock;
use super::ServerError;
use super::collective::{Contribution, Done};
use super::control::Signalling;
use super::log_message::LogMessage;
use super::modex::{Found, Want};
use super::name_service::{Lookup, Publishing, Query};
use muster_sys::descriptor::EventFd;

/// Most upcalls that may wait: each local rank has a few at most.
const WAITING_MAX: usize = 65_536;

/// An action or a request of a rank of this node.
#[derive(Debug)]
pub enum Upcall {
    /// It called `PMIx_Init`.
    Connected(u32),
    /// It called `PMIx_Finalize`.
    Finalized(u32),
    /// It called `PMIx_Abort`.
    Aborted {
        /// The rank.
        rank: u32,
        /// The exit code that it requests.
        status: i32,
        /// Its message.
        message: String,
        /// The answer, which the rank waits for: the job ends.
        answer: Done,
    },
    /// All local ranks of a collective have arrived.
    Collective(Contribution),
    /// It publishes values.
    Publish(Publishing),
    /// It looks up published values.
    Lookup(Lookup),
    /// It deletes its published values.
    Unpublish {
        /// The rank.
        rank: u32,
        /// The keys; empty for all.
        keys: Vec<String>,
        /// The answer, when it is done.
        answer: Done,
    },
    /// It queries data about the job.
    Query(Query),
    /// It requests the data that a rank of another node has put.
    Want(Want),
    /// The data that a rank of this node has put, in answer to a request.
    Found(Found),
    /// It requests a signal to other ranks.
    Signal(Signalling),
    /// It requests that a message is written to its output.
    LogMessage(LogMessage),
    /// It requested an operation that is not supported, and was refused.
    Refused {
        /// The rank.
        rank: u32,
        /// The operation.
        what: &'static str,
    },
    /// A tool has connected; all of its requests are refused.
    Tool,
}

/// The queue of upcalls.
struct Queue {
    sender: SyncSender<Upcall>,
    wake: EventFd,
    /// The job's namespace: a process of another namespace is not a rank.
    namespace: CString,
}

static QUEUE: Mutex<Option<Queue>> = Mutex::new(None);
/// Upcalls that found the queue full.
static LOST: AtomicU64 = AtomicU64::new(0);

/// Opens the queue of this process's one server.
pub(super) fn open(wake: EventFd, namespace: CString) -> Result<Receiver<Upcall>, ServerError> {
    open_for(wake, namespace, WAITING_MAX)
}

fn open_for(
    wake: EventFd,
    namespace: CString,
    waiting_max: usize,
) -> Result<Receiver<Upcall>, ServerError> {
    let mut queue = lock(&QUEUE);
    if queue.is_some() {
        return Err(ServerError::System(
            "this process has a PMIx server already; only one is supported".into(),
        ));
    }
    let (sender, receiver) = sync_channel(waiting_max);
    *queue = Some(Queue {
        sender,
        wake,
        namespace,
    });
    Ok(receiver)
}

/// Closes the queue: later upcalls are refused.
pub(super) fn close() {
    *lock(&QUEUE) = None;
}

/// Number of upcalls that found the queue full; libpmix got a status that says so.
pub(super) fn lost() -> u64 {
    LOST.load(Ordering::Relaxed)
}

/// Counts one more lost upcall.
pub(super) fn note_lost() {
    LOST.fetch_add(1, Ordering::Relaxed);
}

/// Puts an upcall into the queue. Returns the status for libpmix: the answer comes later, there is no room, or the
/// server is stopping.
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

/// As [`queue`], for an upcall without an answer.
fn note(upcall: Upcall) -> sys::pmix_status_t {
    match queue(upcall) {
        status @ sys::PMIX_ERR_OUT_OF_RESOURCE => status,
        _ => DONE,
    }
}

/// Whether a process is a rank of the job.
pub(super) fn is_rank(process: &sys::pmix_proc_t) -> bool {
    let queue = lock(&QUEUE);
    queue
        .as_ref()
        .is_some_and(|queue| queue.namespace == text(&process.nspace))
}

/// The rank of an upcall, if it is one of the job.
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

/// The status for an upcall that is done at once.
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
    // SAFETY: libpmix passes a process and a terminated string, or NULL for either, valid for the call.
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

/// A request for more processes than the job was started with: not supported.
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
/// `start` is NULL, or points to `count` values that stay valid while the slice lives.
pub(super) unsafe fn slice<'a, T>(start: *const T, count: usize) -> &'a [T] {
    if start.is_null() {
        return &[];
    }
    // SAFETY: as the caller promises.
    unsafe { std::slice::from_raw_parts(start, count) }
}

#[cfg(test)]
mod tests {
    use super::super::super::ffi::process;
    use super::*;

    /// An upcall that finds the queue full gets a status of its own (neither done nor not supported) and is counted.
    #[test]
    fn an_upcall_without_room_is_refused_and_counted() {
        let wake = EventFd::new().unwrap();
        let namespace = c"muster-upcalls";
        let upcalls = open_for(wake, namespace.into(), 1).unwrap();
        let one = process(namespace, 3);
        let none = std::ptr::null_mut();
        let connect = || connected(&raw const one, none, none.cast(), 0, None, none);
        let finalize = || finalized(&raw const one, none, None, none);
        let abort = || {
            let message = c"enough".as_ptr();
            aborted(&raw const one, none, 1, message, none.cast(), 0, None, none)
        };
        let before = lost();
        assert_eq!(connect(), DONE);
        for refused in [finalize(), abort(), queue(Upcall::Tool)] {
            assert_eq!(refused, sys::PMIX_ERR_OUT_OF_RESOURCE);
        }
        assert_eq!(lost() - before, 3);
        assert!(matches!(upcalls.try_recv(), Ok(Upcall::Connected(3))));
        // Answered when the job ends.
        assert_eq!(abort(), sys::PMIX_SUCCESS as i32);
        close();
        assert_eq!(queue(Upcall::Tool), sys::PMIX_ERR_NOT_SUPPORTED);
        assert_eq!(lost() - before, 3);
    }
}
