//! Tools: processes that are no ranks, and look for a server to ask or to steer. There is nothing for them here.
//!
//! libpmix ends the whole process when its host turns a tool away (4.2.2 and 5.0.11 do), or when it has nobody to
//! ask and the tool wants a name (5.0.11). So each gets one, and what it then asks for is refused.

use std::ffi::{CString, c_void};
use std::sync::atomic::{AtomicU32, Ordering};

use pmix_sys as sys;

use super::super::ffi::{process, text};
use super::upcall::{Upcall, queue, slice};

/// What tools without a name of their own are numbered in.
const NAMESPACE: &std::ffi::CStr = c"muster.tools";
static NUMBER: AtomicU32 = AtomicU32::new(0);

pub(super) extern "C" fn connected(
    infos: *mut sys::pmix_info_t,
    count: usize,
    answer: sys::pmix_tool_connection_cbfunc_t,
    data: *mut c_void,
) {
    // SAFETY: libpmix passes so many infos, valid for the call.
    let mut tool = own_name(unsafe { slice(infos, count) })
        .unwrap_or_else(|| process(NAMESPACE, NUMBER.fetch_add(1, Ordering::Relaxed)));
    queue(Upcall::Tool);
    if let Some(answer) = answer {
        // SAFETY: the callback of this very upcall with its own data, called once; it copies the process.
        unsafe { answer(sys::PMIX_SUCCESS as i32, &raw mut tool, data) };
    }
}

/// The name that a tool has brought.
fn own_name(infos: &[sys::pmix_info_t]) -> Option<sys::pmix_proc_t> {
    let mut namespace: Option<CString> = None;
    let mut rank = None;
    for info in infos {
        let (key, kind) = (text(&info.key), u32::from(info.value.type_));
        if key.as_c_str() == sys::PMIX_NSPACE && kind == sys::PMIX_STRING {
            // SAFETY: the type tag says which member of the union was written: a terminated text or NULL.
            unsafe {
                let log_message = info.value.data.string;
                namespace = (!log_message.is_null())
                    .then(|| std::ffi::CStr::from_ptr(log_message).to_owned());
            }
        }
        if key.as_c_str() == sys::PMIX_RANK && kind == sys::PMIX_PROC_RANK {
            // SAFETY: as above.
            rank = Some(unsafe { info.value.data.rank });
        }
    }
    Some(process(&namespace?, rank?))
}
