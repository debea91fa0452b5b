//! Requests to the agent: rails, peers, policy and counters.

use std::ffi::{CStr, c_char, c_int};

use crate::boundary::{check_room, enter, write_text};
use crate::context::{self, muster_ctx_t};
use crate::error::{Code, Failure};

/// The explanation of a node's state, as text.
///
/// # Safety
/// `buffer` has room for `size` bytes, or is NULL if `size` is 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn muster_why(
    context: *mut muster_ctx_t,
    node: u32,
    buffer: *mut c_char,
    size: usize,
) -> c_int {
    enter(|| {
        context::check(context)?;
        check_room("buffer", buffer.cast(), size)?;
        let explanation = context::client(context)?.why(node)?;
        write_text(&explanation, buffer, size)
    })
}

/// Sends a request to the agent of this node, to read or to change something.
///
/// # Safety
/// `request` is NULL or a terminated text; `buffer` has room for `size` bytes, or is NULL if `size`
/// is 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn muster_control(
    context: *mut muster_ctx_t,
    request: *const c_char,
    buffer: *mut c_char,
    size: usize,
) -> c_int {
    enter(|| {
        context::check(context)?;
        if request.is_null() {
            return Err(Failure::new(Code::Argument, "request is NULL"));
        }
        // Checked before anything is changed.
        check_room("buffer", buffer.cast(), size)?;
        // SAFETY: not NULL, and the caller gives a terminated text that lives through the call.
        let request = unsafe { CStr::from_ptr(request) };
        let request = request
            .to_str()
            .map_err(|_| Failure::new(Code::Argument, "request is not UTF-8"))?;
        let answer = context::client(context)?.control(request)?;
        write_text(&answer, buffer, size)
    })
}
