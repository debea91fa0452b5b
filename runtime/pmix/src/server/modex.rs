//! Direct modex: the data that one rank has put, requested by another without a fence.
//!
//! A rank that needs data of a rank on another node sends a request to its own server, which makes an upcall
//! ([`Want`]) to its launcher. On the node of the other rank, the launcher sends the request to the server there,
//! which answers as soon as that rank has put some data ([`Found`]).

use std::ffi::{CStr, c_void};

use pmix_sys as sys;

use super::super::ffi::text;
use super::answer::give;

/// A request for the data of a rank of another node.
#[derive(Debug)]
pub struct Want {
    /// The namespace of the rank.
    pub namespace: String,
    /// The rank.
    pub rank: u32,
    /// A key that the data must contain, if one was given.
    pub key: Option<String>,
    /// How long the requester waits; none leaves it to the launcher.
    pub timeout_s: Option<u32>,
    pub(super) function: sys::pmix_modex_cbfunc_t,
    pub(super) data: *mut c_void,
}

// SAFETY: libpmix lets its callbacks be called on any thread; the pointer is its own and only passed back.
unsafe impl Send for Want {}

/// The data that the server has of a rank of this node.
#[derive(Debug)]
pub struct Found {
    /// The rank.
    pub rank: u32,
    /// The data as libpmix packs it; empty if there is none.
    pub data: Vec<u8>,
}

impl Want {
    /// Answers with the data.
    pub fn give(self, data: &[u8]) {
        give(self.function, self.data, sys::PMIX_SUCCESS as i32, data);
    }

    /// Answers that there is no such data, and never will be.
    pub fn refuse(self) {
        give(self.function, self.data, sys::PMIX_ERR_NOT_FOUND, &[]);
    }

    /// Answers that there is no room for the request.
    pub fn turn_away(self) {
        give(self.function, self.data, sys::PMIX_ERR_OUT_OF_RESOURCE, &[]);
    }

    /// Answers that it took too long.
    pub fn time_out(self) {
        give(self.function, self.data, sys::PMIX_ERR_TIMEOUT, &[]);
    }

    /// Whether the requested key is in this data. libpmix writes keys as they are. If other bytes look like the key,
    /// the requester gets an answer without it.
    pub fn is_in(&self, data: &[u8]) -> bool {
        let within =
            |key: &String| key.is_empty() || data.windows(key.len()).any(|at| at == key.as_bytes());
        !data.is_empty() && self.key.as_ref().is_none_or(within)
    }
}

/// The key that an info requires of the data.
pub(super) fn required_key(info: &sys::pmix_info_t) -> Option<String> {
    let is_text = u32::from(info.value.type_) == sys::PMIX_STRING;
    if !is_text || text(&info.key).as_c_str() != sys::PMIX_REQUIRED_KEY {
        return None;
    }
    // SAFETY: the type tag states which member of the union was written: a terminated string or NULL.
    let string = unsafe {
        let string = info.value.data.string;
        (!string.is_null()).then(|| CStr::from_ptr(string))
    };
    string.map(|string| string.to_string_lossy().into_owned())
}
