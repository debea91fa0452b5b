//! Bootstrap records: what processes without PMIx exchange, by their own means, so that their agents find each other.

use std::ffi::{c_int, c_void};
use std::time::Duration;

use muster_client::RECORD_SIZE;

use crate::boundary::{count, enter};
use crate::context::{self, muster_ctx_t};
use crate::error::{Code, Failure};

/// Writes this process's record.
///
/// # Safety
/// `record` is NULL or has room for `MUSTER_BOOTSTRAP_RECORD_SIZE` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn muster_bootstrap_record(
    context: *mut muster_ctx_t,
    record: *mut c_void,
    timeout_ms: u32,
) -> c_int {
    enter(|| {
        context::check(context)?;
        if record.is_null() {
            return Err(Failure::new(Code::Argument, "record is NULL"));
        }
        let written =
            context::client(context)?.bootstrap_record(Duration::from_millis(timeout_ms.into()))?;
        // SAFETY: not NULL, and the caller's to write to, of that size.
        unsafe { std::ptr::copy_nonoverlapping(written.as_ptr(), record.cast(), RECORD_SIZE) };
        Ok(0)
    })
}

/// Takes the records of all processes.
///
/// # Safety
/// `records` has `processes` times `MUSTER_BOOTSTRAP_RECORD_SIZE` readable bytes, or is NULL if `processes` is 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn muster_take_bootstrap_records(
    context: *mut muster_ctx_t,
    records: *const c_void,
    processes: usize,
) -> c_int {
    enter(|| {
        context::check(context)?;
        let size = processes
            .checked_mul(RECORD_SIZE)
            .filter(|size| isize::try_from(*size).is_ok());
        let Some(size) = size.filter(|size| *size == 0 || !records.is_null()) else {
            let message = format!("records is NULL or processes ({processes}) is too large");
            return Err(Failure::new(Code::Argument, message));
        };
        let records: &[u8] = match size {
            0 => &[],
            // SAFETY: not NULL, and the caller gives so many readable bytes.
            _ => unsafe { std::slice::from_raw_parts(records.cast(), size) },
        };
        Ok(count(
            context::client(context)?.take_bootstrap_records(records)?,
        ))
    })
}
