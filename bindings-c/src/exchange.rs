//! Cards: what processes without PMIx bring to each other by whatever means they have.

use std::ffi::{c_int, c_void};
use std::time::Duration;

use muster::client::CARD_SIZE;

use crate::boundary::{count, enter};
use crate::context::{self, muster_ctx_t};
use crate::error::{Code, Failure};

/// Writes this process's card.
///
/// # Safety
/// `card` is NULL or has room for `MUSTER_CARD_SIZE` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn muster_card(
    context: *mut muster_ctx_t,
    card: *mut c_void,
    timeout_ms: u32,
) -> c_int {
    enter(|| {
        context::check(context)?;
        if card.is_null() {
            return Err(Failure::new(Code::Argument, "card is NULL"));
        }
        let written = context::client(context)?.card(Duration::from_millis(timeout_ms.into()))?;
        // SAFETY: not NULL, and the caller's to write to, of that size.
        unsafe { std::ptr::copy_nonoverlapping(written.as_ptr(), card.cast(), CARD_SIZE) };
        Ok(0)
    })
}

/// Takes the cards of all processes.
///
/// # Safety
/// `cards` has `processes` times `MUSTER_CARD_SIZE` readable bytes, or is NULL if `processes` is 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn muster_take_cards(
    context: *mut muster_ctx_t,
    cards: *const c_void,
    processes: usize,
) -> c_int {
    enter(|| {
        context::check(context)?;
        let size = processes
            .checked_mul(CARD_SIZE)
            .filter(|size| isize::try_from(*size).is_ok());
        let Some(size) = size.filter(|size| *size == 0 || !cards.is_null()) else {
            let message = format!("cards is NULL or processes too many: {processes}");
            return Err(Failure::new(Code::Argument, message));
        };
        let cards: &[u8] = match size {
            0 => &[],
            // SAFETY: not NULL, and the caller gives so many readable bytes.
            _ => unsafe { std::slice::from_raw_parts(cards.cast(), size) },
        };
        Ok(count(context::client(context)?.take_cards(cards)?))
    })
}
