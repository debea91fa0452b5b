//! The boundary between C and Rust. No panic unwinds through it.
//!
//! Every function of the C API runs its body here. A failure becomes a code and a text for
//! `muster_last_error_message`; a panic becomes `MUSTER_ERR_INTERNAL`. A thread that is cancelled
//! (`pthread_cancel`) during a call ends after the call has returned: cancellation would unwind its stack in the
//! middle of Rust code.

use std::ffi::{c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::error::{Code, Failure, remember};
use muster_sys::cancel::Shield;

/// Runs the body of a call.
#[inline]
pub(crate) fn enter(body: impl FnOnce() -> Result<c_int, Failure>) -> c_int {
    let _shield = Shield::raise();
    enter_quick(body)
}

/// Runs the body of a call that only reads memory. It makes no system call, so it has no cancellation point.
#[inline]
pub(crate) fn enter_quick(body: impl FnOnce() -> Result<c_int, Failure>) -> c_int {
    // After a panic the caller must not use the context again, so no caller sees an inconsistent state.
    let failure = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(value)) => return value,
        Ok(Err(failure)) => failure,
        Err(payload) => {
            let text = payload
                .downcast_ref::<&str>()
                .copied()
                .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
                .unwrap_or("no message");
            Failure::new(Code::Internal, format!("internal error: {text}"))
        }
    };
    remember(&failure.message);
    failure.code as c_int
}

/// A count or index as C returns it.
pub(crate) fn count(value: impl TryInto<c_int>) -> c_int {
    value.try_into().unwrap_or(c_int::MAX)
}

/// Refuses a NULL buffer whose size is not 0.
pub(crate) fn check_room(name: &str, room: *const c_void, size: usize) -> Result<(), Failure> {
    if room.is_null() && size > 0 {
        let message = format!("{name} is NULL but size is {size}");
        return Err(Failure::new(Code::Argument, message));
    }
    Ok(())
}

/// Writes a text as snprintf does: truncated to fit and NUL-terminated. Returns the length of the whole text.
pub(crate) fn write_text(text: &str, buffer: *mut c_char, size: usize) -> Result<c_int, Failure> {
    check_room("buffer", buffer.cast(), size)?;
    if size == 0 {
        return Ok(count(text.len()));
    }
    let length = text.len().min(size - 1);
    // SAFETY: the caller gives `size` writable bytes, of which `length + 1` are written.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr().cast(), buffer, length);
        *buffer.add(length) = 0;
    }
    Ok(count(text.len()))
}

/// Writes as many of these numbers as there is room for. Returns how many there are.
///
/// # Safety
/// `room` has room for `size` numbers, or is NULL if `size` is 0.
pub(crate) unsafe fn write_numbers(
    numbers: impl Iterator<Item = u32>,
    room: *mut u32,
    size: usize,
) -> c_int {
    let mut found = 0;
    for number in numbers {
        if found < size {
            // SAFETY: the caller's array has room for `size`, and the place is below that.
            unsafe { room.add(found).write(number) };
        }
        found += 1;
    }
    count(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_a_code() {
        let code = enter(|| panic!("{} is broken", "it"));
        assert_eq!(code, Code::Internal as c_int);
        // SAFETY: the message of this thread always ends with a NUL.
        let text = unsafe { std::ffi::CStr::from_ptr(crate::muster_last_error_message()) };
        assert_eq!(text.to_str(), Ok("internal error: it is broken"));
    }

    #[test]
    fn texts_are_cut_and_terminated() {
        let mut buffer = [c_char::MAX; 4];
        assert_eq!(write_text("nodeb", buffer.as_mut_ptr(), 4).ok(), Some(5));
        assert_eq!(buffer.map(|byte| byte as u8), *b"nod\0");
        assert_eq!(write_text("nodeb", std::ptr::null_mut(), 0).ok(), Some(5));
        assert!(write_text("nodeb", std::ptr::null_mut(), 4).is_err());
    }

    #[test]
    fn numbers_beyond_the_room_are_counted_and_not_written() {
        let mut room = [9; 3];
        // SAFETY: two of the three places are given.
        let found = unsafe { write_numbers([5, 6, 7].into_iter(), room.as_mut_ptr(), 2) };
        assert_eq!((found, room), (3, [5, 6, 9]));
        // SAFETY: there is no room, as the size says.
        let found = unsafe { write_numbers([5].into_iter(), std::ptr::null_mut(), 0) };
        assert_eq!(found, 1);
    }
}
