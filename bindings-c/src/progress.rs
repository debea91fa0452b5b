//! Progress that this process promises to make.

use std::ffi::c_int;

use crate::boundary::{enter, enter_quick};
use crate::context::{self, muster_ctx_t};

/// Promises a tick at least every so often.
#[unsafe(no_mangle)]
pub extern "C" fn muster_tick_every(context: *mut muster_ctx_t, period_ms: u32) -> c_int {
    enter(|| {
        context::client(context)?.tick_every(period_ms)?;
        Ok(0)
    })
}

/// Says that this process makes progress.
#[unsafe(no_mangle)]
pub extern "C" fn muster_tick(context: *mut muster_ctx_t) -> c_int {
    enter_quick(|| {
        context::with_client(context, |client| {
            client.tick().map(|()| 0).map_err(Into::into)
        })
    })
}
