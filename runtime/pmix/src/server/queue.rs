//! The queue of upcalls. They arrive on libpmix's own thread, are queued and raise a descriptor; nothing is decided
//! there.

use std::ffi::CString;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use muster_sys::descriptor::EventFd;
use pmix_sys as sys;

use super::super::ffi::text;
use super::super::lock;
use super::ServerError;
use super::upcall::Upcall;

/// Most upcalls that may wait: each local rank has a few at most.
const WAITING_MAX: usize = 65_536;

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

pub(super) fn open_for(
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
