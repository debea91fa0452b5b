//! Messages of the application, which replace heartbeats or carry them.

use std::ffi::{c_int, c_void};

use muster_client::PIGGYBACK_MAX;

use crate::boundary::{check_room, count, enter, enter_quick};
use crate::context::{self, muster_ctx_t};
use crate::error::{Code, Failure};

/// A message of this rank was received.
#[unsafe(no_mangle)]
pub extern "C" fn muster_heard_from(context: *mut muster_ctx_t, rank: u32) -> c_int {
    enter_quick(|| context::with_client(context, |client| answer(client.heard_from(rank)?, rank)))
}

/// A message to this rank was sent.
#[unsafe(no_mangle)]
pub extern "C" fn muster_sent_to(context: *mut muster_ctx_t, rank: u32) -> c_int {
    enter_quick(|| context::with_client(context, |client| answer(client.sent_to(rank)?, rank)))
}

const _: () = assert!(
    PIGGYBACK_MAX == 112,
    "muster.h and muster.f90 have the same number"
);

/// Writes the piggyback for a message to this rank.
///
/// # Safety
/// `buffer` has room for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn muster_piggyback_fill(
    context: *mut muster_ctx_t,
    rank: u32,
    buffer: *mut c_void,
    size: usize,
) -> c_int {
    enter(|| {
        context::with_client(context, |client| {
            if buffer.is_null() || size < PIGGYBACK_MAX {
                let message = format!(
                    "buffer is NULL or has {size} bytes; it must have at least MUSTER_PIGGYBACK_MAX, \
                     {PIGGYBACK_MAX}"
                );
                return Err(Failure::new(Code::Argument, message));
            }
            let mut bytes = [0; PIGGYBACK_MAX];
            let filled = client.piggyback_fill(rank, &mut bytes)?;
            let filled = filled.ok_or_else(|| unknown(rank))?;
            // SAFETY: the caller gives at least `PIGGYBACK_MAX` writable bytes, and no more are filled.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), buffer.cast(), filled) };
            Ok(count(filled))
        })
    })
}

/// Takes the piggyback of a message from this rank.
///
/// # Safety
/// `buffer` has `length` readable bytes, or is NULL if that is 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn muster_piggyback_deliver(
    context: *mut muster_ctx_t,
    rank: u32,
    buffer: *const c_void,
    length: usize,
) -> c_int {
    enter(|| {
        context::with_client(context, |client| {
            check_room("buffer", buffer, length)?;
            if length > PIGGYBACK_MAX {
                let message = format!(
                    "length is {length}; muster_piggyback_fill writes at most {PIGGYBACK_MAX} bytes"
                );
                return Err(Failure::new(Code::Argument, message));
            }
            let bytes: &[u8] = match length {
                0 => return Ok(0),
                // SAFETY: not NULL, and the caller gives `length` readable bytes.
                _ => unsafe { std::slice::from_raw_parts(buffer.cast(), length) },
            };
            let taken = client.piggyback_deliver(rank, bytes)?;
            taken.map(|_| 0).ok_or_else(|| unknown(rank))
        })
    })
}

fn answer(is_known: bool, rank: u32) -> Result<c_int, Failure> {
    is_known.then_some(0).ok_or_else(|| unknown(rank))
}

fn unknown(rank: u32) -> Failure {
    let message = format!("the node of rank {rank} is not known yet");
    Failure::new(Code::NoSuchRank, message)
}
