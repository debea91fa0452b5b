//! Attributes: the keys and values that nodes publish.

use std::ffi::{CStr, c_char, c_int, c_void};

use muster_ipc::{ATTRIBUTE_VALUE_MAX, key_hash};

use crate::boundary::{check_room, count, enter};
use crate::context::{self, muster_ctx_t};
use crate::error::{Code, Failure};

/// The caller's key.
fn key<'a>(key: *const c_char) -> Result<&'a [u8], Failure> {
    if key.is_null() {
        return Err(Failure::new(Code::Argument, "key is NULL"));
    }
    // SAFETY: not NULL, and the caller gives a terminated text that lives through the call.
    Ok(unsafe { CStr::from_ptr(key) }.to_bytes())
}

/// Writes an attribute of this node.
///
/// # Safety
/// `key` is NULL or a terminated text; `value` has `size` readable bytes, or is NULL if `size` is
/// 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn muster_publish(
    context: *mut muster_ctx_t,
    key: *const c_char,
    value: *const c_void,
    size: usize,
) -> c_int {
    enter(|| {
        context::check(context)?;
        let key = self::key(key)?;
        check_room("value", value, size)?;
        let value: &[u8] = match size {
            0 => &[],
            // Checked before the slice is made: a slice of more than isize::MAX bytes is undefined behaviour.
            _ if size > ATTRIBUTE_VALUE_MAX => {
                let message =
                    format!("value has {size} bytes; at most {ATTRIBUTE_VALUE_MAX} are possible");
                return Err(Failure::new(Code::Limit, message));
            }
            // SAFETY: not NULL, and the caller gives `size` readable bytes.
            _ => unsafe { std::slice::from_raw_parts(value.cast(), size) },
        };
        context::client(context)?.publish(key, value)?;
        Ok(0)
    })
}

/// Deletes an attribute of this node.
///
/// # Safety
/// `key` is NULL or a terminated text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn muster_withdraw(context: *mut muster_ctx_t, key: *const c_char) -> c_int {
    enter(|| {
        context::check(context)?;
        let key = self::key(key)?;
        let was_there = context::client(context)?.withdraw(key)?;
        Ok(c_int::from(was_there))
    })
}

/// Reads an attribute of a node.
///
/// # Safety
/// `key` is NULL or a terminated text; `buffer` has room for `size` bytes, or is NULL if `size` is
/// 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn muster_attribute_get(
    context: *mut muster_ctx_t,
    node: u32,
    key: *const c_char,
    buffer: *mut c_void,
    size: usize,
) -> c_int {
    enter(|| {
        context::check(context)?;
        let key = self::key(key)?;
        check_room("buffer", buffer, size)?;
        let value = context::client(context)?
            .attribute_get(node, key)?
            .ok_or_else(|| {
                let key = String::from_utf8_lossy(key);
                Failure::new(
                    Code::NoSuchKey,
                    format!("node {node} has no attribute {key:?}, or it has not arrived here yet"),
                )
            })?;
        let length = value.len().min(size);
        if length > 0 {
            // SAFETY: the caller gives `size` writable bytes, of which no more are written.
            unsafe { std::ptr::copy_nonoverlapping(value.as_ptr(), buffer.cast(), length) };
        }
        Ok(count(value.len()))
    })
}

/// Watches a key: each change of it becomes an event of this process.
///
/// # Safety
/// `key` is NULL or a terminated text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn muster_watch(context: *mut muster_ctx_t, key: *const c_char) -> c_int {
    enter(|| {
        context::check(context)?;
        let key = self::key(key)?;
        context::client(context)?.watch(key)?;
        Ok(0)
    })
}

/// Ends the watch of a key.
///
/// # Safety
/// `key` is NULL or a terminated text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn muster_unwatch(context: *mut muster_ctx_t, key: *const c_char) -> c_int {
    enter(|| {
        context::check(context)?;
        let key = self::key(key)?;
        Ok(c_int::from(context::client(context)?.unwatch(key)?))
    })
}

/// Writes the keys of a node's attributes, each NUL-terminated.
///
/// # Safety
/// `buffer` has room for `size` bytes, or is NULL if `size` is 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn muster_attribute_keys(
    context: *mut muster_ctx_t,
    node: u32,
    buffer: *mut c_char,
    size: usize,
) -> c_int {
    enter(|| {
        context::check(context)?;
        check_room("buffer", buffer.cast(), size)?;
        let keys = context::client(context)?.attribute_keys(node)?;
        let mut end = 0;
        for key in &keys {
            if end + key.len() >= size {
                break;
            }
            // SAFETY: the caller gives `size` writable bytes, and the key with its end is within them.
            unsafe {
                std::ptr::copy_nonoverlapping(key.as_ptr().cast(), buffer.add(end), key.len());
                buffer.add(end + key.len()).write(0);
            }
            end += key.len() + 1;
        }
        Ok(count(keys.iter().map(|key| key.len() + 1).sum::<usize>()))
    })
}

/// The hash by which events name a key; 0 for NULL.
///
/// # Safety
/// `key` is NULL or a terminated text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn muster_key_hash(key: *const c_char) -> u64 {
    self::key(key).map_or(0, key_hash)
}
