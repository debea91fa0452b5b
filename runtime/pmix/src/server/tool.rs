//! PMIx tools: processes that are not ranks and connect to a server for queries or control. Not supported.
//!
//! libpmix ends the whole process when its host refuses a tool (4.2.2 and 5.0.11 do), or when the host has no
//! function for it and the tool requests a name (5.0.11). Each tool therefore gets a name, and its later requests are
//! refused.

use std::ffi::{CString, c_void};
use std::sync::atomic::{AtomicU32, Ordering};

use pmix_sys as sys;

use super::super::ffi::{process, text};
use super::arguments::slice;
use super::queue::queue;
use super::upcall::Upcall;

/// The namespace of tools without a name of their own; each gets a number in it.
const NAMESPACE: &std::ffi::CStr = c"muster.tools";
static NUMBER: AtomicU32 = AtomicU32::new(0);

pub(super) extern "C" fn connected(
    infos: *mut sys::pmix_info_t,
    count: usize,
    answer: sys::pmix_tool_connection_cbfunc_t,
    data: *mut c_void,
) {
    // SAFETY: libpmix passes this number of infos, valid for the call.
    let mut tool = own_name(unsafe { slice(infos, count) })
        .unwrap_or_else(|| process(NAMESPACE, NUMBER.fetch_add(1, Ordering::Relaxed)));
    queue(Upcall::Tool);
    if let Some(answer) = answer {
        // SAFETY: the callback of this upcall with its own data, called once; it copies the process.
        unsafe { answer(sys::PMIX_SUCCESS as i32, &raw mut tool, data) };
    }
}

/// The name that a tool has given itself.
fn own_name(infos: &[sys::pmix_info_t]) -> Option<sys::pmix_proc_t> {
    let mut namespace: Option<CString> = None;
    let mut rank = None;
    for info in infos {
        let (key, kind) = (text(&info.key), u32::from(info.value.type_));
        if key.as_c_str() == sys::PMIX_NSPACE && kind == sys::PMIX_STRING {
            // SAFETY: the type tag states which member of the union was written: a terminated string or NULL.
            unsafe {
                let string = info.value.data.string;
                namespace =
                    (!string.is_null()).then(|| std::ffi::CStr::from_ptr(string).to_owned());
            }
        }
        if key.as_c_str() == sys::PMIX_RANK && kind == sys::PMIX_PROC_RANK {
            // SAFETY: as above.
            rank = Some(unsafe { info.value.data.rank });
        }
    }
    Some(process(&namespace?, rank?))
}
