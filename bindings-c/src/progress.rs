//! Ticks: a process promises to make progress, and reports it.

use std::ffi::c_int;

use crate::boundary::{enter, enter_quick};
use crate::context::{self, muster_ctx_t};

/// Promises a tick at least every `period_ms`.
#[unsafe(no_mangle)]
pub extern "C" fn muster_tick_every(context: *mut muster_ctx_t, period_ms: u32) -> c_int {
    enter(|| {
        context::client(context)?.tick_every(period_ms)?;
        Ok(0)
    })
}

/// Reports that this process makes progress.
#[unsafe(no_mangle)]
pub extern "C" fn muster_tick(context: *mut muster_ctx_t) -> c_int {
    enter_quick(|| {
        context::with_client(context, |client| {
            client.tick().map(|()| 0).map_err(Into::into)
        })
    })
}
