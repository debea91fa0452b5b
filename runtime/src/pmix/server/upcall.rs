//! What libpmix asks its host, on its own thread: queued, never decided here.

use std::ffi::{CStr, c_char, c_void};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use pmix_sys as sys;

use super::super::ffi::text;
use super::super::lock;
use super::Error;
use crate::sys::descriptor::EventFd;

/// Upcalls that may wait: each local rank has a few at most.
const WAITING_MOST: usize = 65_536;

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
    },
    /// All local ranks among these have come to a fence.
    Fence(Contribution),
}

/// This node's part of a fence, to be answered with everybody's.
#[derive(Debug)]
pub struct Contribution {
    /// Who takes part; empty for all ranks of the job.
    pub ranks: Vec<u32>,
    /// What the local ranks have put, as libpmix packs it.
    pub data: Vec<u8>,
    /// How long the ranks want to wait; none for as long as it takes.
    pub timeout_s: Option<u32>,
    answer: Answer,
}

#[derive(Debug)]
struct Answer {
    function: sys::pmix_modex_cbfunc_t,
    data: *mut c_void,
}

// SAFETY: libpmix lets its callbacks be called on any thread; the pointer is its own and only handed back.
unsafe impl Send for Answer {}

impl Contribution {
    /// Lets the ranks go on, with what all nodes have put, one after the other.
    pub fn complete(self, everybodys: &[u8]) {
        self.answer.give(sys::PMIX_SUCCESS as i32, everybodys);
    }

    /// Lets the ranks go on with an error: the fence took too long.
    pub fn time_out(self) {
        self.answer.give(sys::PMIX_ERR_TIMEOUT, &[]);
    }
}

impl Answer {
    fn give(&self, status: i32, bytes: &[u8]) {
        let Some(function) = self.function else {
            return;
        };
        // libpmix reads the bytes later, on its thread, and then calls `release`.
        let copy = Box::new(bytes.to_vec());
        let (place, length) = (copy.as_ptr(), copy.len());
        // SAFETY: the callback of this very upcall with its own data, called once (`self` is given up by the
        // callers); the bytes live until `release` is called with the box they are in.
        unsafe {
            function(
                status,
                place.cast(),
                length,
                self.data,
                Some(release),
                Box::into_raw(copy).cast(),
            );
        }
    }
}

extern "C" fn release(data: *mut c_void) {
    // SAFETY: the box that `give` turned into this pointer; libpmix calls this once.
    drop(unsafe { Box::from_raw(data.cast::<Vec<u8>>()) });
}

static QUEUE: Mutex<Option<(SyncSender<Upcall>, EventFd)>> = Mutex::new(None);

/// Opens the queue of this process's one server.
pub(super) fn open(wake: EventFd) -> Result<Receiver<Upcall>, Error> {
    let mut queue = lock(&QUEUE);
    if queue.is_some() {
        return Err(Error::System(
            "this process has a PMIx server already".into(),
        ));
    }
    let (sender, receiver) = sync_channel(WAITING_MOST);
    *queue = Some((sender, wake));
    Ok(receiver)
}

/// Nothing is queued any more.
pub(super) fn close() {
    *lock(&QUEUE) = None;
}

/// `false` if nobody will look at it.
fn queue(upcall: Upcall) -> bool {
    let queue = lock(&QUEUE);
    let Some((sender, wake)) = &*queue else {
        return false;
    };
    let queued = sender.try_send(upcall).is_ok();
    wake.raise();
    queued
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
    if let Some(process) = unsafe { process.as_ref() } {
        queue(Upcall::Connected(process.rank));
    }
    DONE
}

pub(super) extern "C" fn finalized(
    process: *const sys::pmix_proc_t,
    _object: *mut c_void,
    _answer: sys::pmix_op_cbfunc_t,
    _data: *mut c_void,
) -> sys::pmix_status_t {
    // SAFETY: as in `connected`.
    if let Some(process) = unsafe { process.as_ref() } {
        queue(Upcall::Finalized(process.rank));
    }
    DONE
}

pub(super) extern "C" fn aborted(
    process: *const sys::pmix_proc_t,
    _object: *mut c_void,
    status: i32,
    message: *const c_char,
    _processes: *mut sys::pmix_proc_t,
    _count: usize,
    _answer: sys::pmix_op_cbfunc_t,
    _data: *mut c_void,
) -> sys::pmix_status_t {
    // SAFETY: libpmix passes a process and a terminated text, or NULL for either, valid for the call.
    let (process, message) = unsafe {
        let message = (!message.is_null()).then(|| CStr::from_ptr(message));
        (process.as_ref(), message)
    };
    let message = message.map_or_else(String::new, |text| text.to_string_lossy().into_owned());
    if let Some(process) = process {
        let rank = process.rank;
        queue(Upcall::Aborted {
            rank,
            status,
            message,
        });
    }
    DONE
}

pub(super) extern "C" fn fence(
    processes: *const sys::pmix_proc_t,
    count: usize,
    infos: *const sys::pmix_info_t,
    infos_count: usize,
    data: *mut c_char,
    length: usize,
    answer: sys::pmix_modex_cbfunc_t,
    answer_data: *mut c_void,
) -> sys::pmix_status_t {
    // SAFETY: libpmix passes so many processes and infos and so many bytes, or NULL for none, valid for the
    // call; the bytes were allocated with malloc and are ours to free.
    let (processes, infos, bytes) = unsafe {
        let bytes = slice(data.cast::<u8>(), length).to_vec();
        libc::free(data.cast());
        (slice(processes, count), slice(infos, infos_count), bytes)
    };
    let everybody = processes
        .iter()
        .any(|process| process.rank == sys::PMIX_RANK_WILDCARD);
    let mut ranks: Vec<u32> = processes.iter().map(|process| process.rank).collect();
    ranks.sort_unstable();
    ranks.dedup();
    let queued = queue(Upcall::Fence(Contribution {
        ranks: if everybody { Vec::new() } else { ranks },
        data: bytes,
        timeout_s: timeout(infos),
        answer: Answer {
            function: answer,
            data: answer_data,
        },
    }));
    if queued {
        sys::PMIX_SUCCESS as i32
    } else {
        sys::PMIX_ERR_NOT_SUPPORTED
    }
}

/// Data of a rank that came to no fence: nobody has it.
pub(super) extern "C" fn direct_modex(
    _process: *const sys::pmix_proc_t,
    _infos: *const sys::pmix_info_t,
    _count: usize,
    _answer: sys::pmix_modex_cbfunc_t,
    _data: *mut c_void,
) -> sys::pmix_status_t {
    sys::PMIX_ERR_NOT_FOUND
}

fn timeout(infos: &[sys::pmix_info_t]) -> Option<u32> {
    let info = infos
        .iter()
        .find(|info| text(&info.key).as_c_str() == sys::PMIX_TIMEOUT)?;
    if u32::from(info.value.type_) != sys::PMIX_INT {
        return None;
    }
    // SAFETY: the type tag says which member of the union was written.
    let seconds = unsafe { info.value.data.integer };
    u32::try_from(seconds).ok().filter(|seconds| *seconds > 0)
}

/// # Safety
/// `place` is NULL, or there are so many values that stay valid while the slice lives.
unsafe fn slice<'a, T>(place: *const T, count: usize) -> &'a [T] {
    if place.is_null() {
        return &[];
    }
    // SAFETY: as the caller promises.
    unsafe { std::slice::from_raw_parts(place, count) }
}
