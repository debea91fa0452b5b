//! What libpmix passes to a callback, as Rust values.

use std::ffi::{CStr, c_char};

use pmix_sys as sys;

use super::super::ffi::text;

/// # Safety
/// `start` is NULL, or points to `count` values that stay valid while the slice lives.
pub(super) unsafe fn slice<'a, T>(start: *const T, count: usize) -> &'a [T] {
    if start.is_null() {
        return &[];
    }
    // SAFETY: as the caller promises.
    unsafe { std::slice::from_raw_parts(start, count) }
}

/// # Safety
/// NULL, or a list of terminated strings with NULL at its end.
pub(super) unsafe fn texts(list: *mut *mut c_char) -> Vec<String> {
    let mut all = Vec::new();
    if list.is_null() {
        return all;
    }
    // SAFETY: as the caller promises.
    unsafe {
        let mut at = list;
        while !(*at).is_null() {
            all.push(CStr::from_ptr(*at).to_string_lossy().into_owned());
            at = at.add(1);
        }
    }
    all
}

/// How long a rank waits.
pub(super) fn timeout(infos: &[sys::pmix_info_t]) -> Option<u32> {
    let info = infos
        .iter()
        .find(|info| text(&info.key).as_c_str() == sys::PMIX_TIMEOUT)?;
    if u32::from(info.value.type_) != sys::PMIX_INT {
        return None;
    }
    // SAFETY: the type tag states which member of the union was written.
    let seconds = unsafe { info.value.data.integer };
    u32::try_from(seconds).ok().filter(|seconds| *seconds > 0)
}
