//! Direct modex: what one rank has put for others, asked for without a fence.
//!
//! A rank that wants to know something of a rank elsewhere asks its own server, which asks its host ([`Want`]). On
//! the node of the other rank the host asks the server there, which answers as soon as that rank has put something
//! ([`Found`]).

use std::ffi::{CStr, c_char, c_void};

use pmix_sys as sys;

use super::super::ffi::text;
use super::collective::{give, timeout};
use super::upcall::{Upcall, queue, slice};

/// A rank of another node whose data is wanted.
#[derive(Debug)]
pub struct Want {
    /// Whose job.
    pub namespace: String,
    /// Whose data.
    pub rank: u32,
    /// What must be in it, if that was said.
    pub key: Option<String>,
    /// How long the asker wants to wait; none leaves it to the host.
    pub timeout_s: Option<u32>,
    function: sys::pmix_modex_cbfunc_t,
    data: *mut c_void,
}

// SAFETY: libpmix lets its callbacks be called on any thread; the pointer is its own and only handed back.
unsafe impl Send for Want {}

/// What the server has of a rank of this node.
#[derive(Debug)]
pub struct Found {
    /// Whose.
    pub rank: u32,
    /// As libpmix packs it; empty if there is nothing.
    pub data: Vec<u8>,
}

impl Want {
    /// Here it is.
    pub fn give(self, data: &[u8]) {
        give(self.function, self.data, sys::PMIX_SUCCESS as i32, data);
    }

    /// Nobody has it, and nobody will.
    pub fn refuse(self) {
        give(self.function, self.data, sys::PMIX_ERR_NOT_FOUND, &[]);
    }

    /// There is no room for it.
    pub fn turn_away(self) {
        give(self.function, self.data, sys::PMIX_ERR_OUT_OF_RESOURCE, &[]);
    }

    /// It took too long.
    pub fn time_out(self) {
        give(self.function, self.data, sys::PMIX_ERR_TIMEOUT, &[]);
    }

    /// Whether what is wanted is in this. libpmix writes keys as they are; what looks like one and is none costs
    /// the asker an answer without it.
    pub fn is_in(&self, data: &[u8]) -> bool {
        let within =
            |key: &String| key.is_empty() || data.windows(key.len()).any(|at| at == key.as_bytes());
        !data.is_empty() && self.key.as_ref().is_none_or(within)
    }
}

pub(super) extern "C" fn direct_modex(
    process: *const sys::pmix_proc_t,
    infos: *const sys::pmix_info_t,
    count: usize,
    function: sys::pmix_modex_cbfunc_t,
    data: *mut c_void,
) -> sys::pmix_status_t {
    // SAFETY: libpmix passes a process and so many infos, or NULL for either, valid for the call.
    let (process, infos) = unsafe { (process.as_ref(), slice(infos, count)) };
    let Some(process) = process else {
        return sys::PMIX_ERR_NOT_FOUND;
    };
    queue(Upcall::Want(Want {
        namespace: text(&process.nspace).to_string_lossy().into_owned(),
        rank: process.rank,
        key: infos.iter().find_map(required_key),
        timeout_s: timeout(infos),
        function,
        data,
    }))
}

fn required_key(info: &sys::pmix_info_t) -> Option<String> {
    let is_text = u32::from(info.value.type_) == sys::PMIX_STRING;
    if !is_text || text(&info.key).as_c_str() != sys::PMIX_REQUIRED_KEY {
        return None;
    }
    // SAFETY: the type tag says which member of the union was written: a terminated text or NULL.
    let log_message = unsafe {
        let log_message = info.value.data.string;
        (!log_message.is_null()).then(|| CStr::from_ptr(log_message))
    };
    log_message.map(|log_message| log_message.to_string_lossy().into_owned())
}

/// What a server answers of a rank of its own; `rank` is what the question was asked with.
pub(super) extern "C" fn found(
    status: sys::pmix_status_t,
    data: *mut c_char,
    size: usize,
    rank: *mut c_void,
) {
    // SAFETY: libpmix passes so many bytes, or NULL for none, valid for the call.
    let bytes = unsafe { slice(data.cast::<u8>(), size) };
    let is_there = status == sys::PMIX_SUCCESS as i32;
    // Nobody waits for a status here; one that is lost is counted.
    queue(Upcall::Found(Found {
        rank: rank as usize as u32,
        data: if is_there { bytes.to_vec() } else { Vec::new() },
    }));
}
