//! Connecting this process, and leaving.

use std::ffi::c_int;
use std::time::Duration;

use muster_client::{Options, bootstrap, shared};

use crate::boundary::enter;
use crate::callback;
use crate::config::{Settings, muster_config_t};
use crate::context::{self, muster_ctx_t};
use crate::error::{Code, Failure};
use crate::event::refuse_in_callback;

/// Connects this process.
///
/// # Safety
/// `config` is NULL or points to a struct whose `struct_size` is right; `context` is NULL or
/// points to a writable pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn muster_init(
    config: *const muster_config_t,
    context: *mut *mut muster_ctx_t,
) -> c_int {
    enter(|| {
        if context.is_null() {
            return Err(Failure::new(Code::Argument, "context is NULL"));
        }
        // SAFETY: not NULL, and the caller's to write to.
        unsafe { context.write(std::ptr::null_mut()) };
        let settings = Settings::read(config)?;
        context::refuse_forked()?;
        refuse_in_callback("muster_init")?;
        context::connect(options(settings))?;
        // SAFETY: as above.
        unsafe { context.write(context::handle()) };
        Ok(0)
    })
}

/// Undoes one init.
#[unsafe(no_mangle)]
pub extern "C" fn muster_finalize(context: *mut muster_ctx_t) -> c_int {
    enter(|| leave(context, 0, "muster_finalize"))
}

/// Undoes one init. The last one announces the exit code of this process.
#[unsafe(no_mangle)]
pub extern "C" fn muster_leave(context: *mut muster_ctx_t, exit_code: c_int) -> c_int {
    enter(|| {
        if !(0..=255).contains(&exit_code) {
            return Err(Failure::new(
                Code::Argument,
                format!("exit_code is {exit_code}; it must be 0 to 255"),
            ));
        }
        leave(context, exit_code, "muster_leave")
    })
}

fn leave(context: *const muster_ctx_t, exit_code: c_int, call: &str) -> Result<c_int, Failure> {
    context::check(context)?;
    refuse_in_callback(call)?;
    let leaving = context::client(context)?;
    // A running callback returns before the connection is closed, so that its calls find the connection. If it does
    // not return in time, its later calls fail. The caller gets the time-out, since it must not free yet what the
    // callback uses.
    let mut stopped = Ok(0);
    let remaining =
        shared::finalize_after(exit_code, |client| stopped = callback::stop(Some(client)))?;
    if remaining == 0 {
        context::forget_client(&leaving);
        return stopped;
    }
    Ok(0)
}

fn options(settings: Settings) -> Options {
    let defaults = Options::default();
    let ulfm = settings.feed_ulfm || defaults.ulfm;
    Options {
        job: settings.job,
        node: settings.node,
        directory: settings.directory.map(Into::into),
        rank: settings.rank,
        job_size: settings.ranks.unwrap_or(0),
        thread: !settings.no_thread,
        ulfm,
        deadline: settings.timeout_ms.map_or(defaults.deadline, |timeout_ms| {
            Duration::from_millis(timeout_ms.into())
        }),
        pmix_integration: bootstrap::pmix_integration(ulfm),
        ..defaults
    }
}
