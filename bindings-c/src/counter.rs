//! Counters of this process: what its part of Muster did, and what failed.

use std::ffi::{CStr, c_char, c_int};

use crate::boundary::enter;
use crate::context::{self, muster_ctx_t};
use crate::error::{Code, Failure};

/// The value of a counter of this process.
///
/// # Safety
/// `name` is NULL or NUL-terminated; `value` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn muster_counter(
    context: *mut muster_ctx_t,
    name: *const c_char,
    value: *mut u64,
) -> c_int {
    enter(|| {
        let argument = |what: &str| Failure::new(Code::Argument, what.to_owned());
        if name.is_null() || value.is_null() {
            return Err(argument("name or value is NULL"));
        }
        // SAFETY: not NULL, and the caller gives a NUL-terminated text.
        let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
        context::with_client(context, |client| {
            let all = client.counters();
            let found = all.iter().find(|(known, _)| *known == name);
            let count = match found {
                Some((_, count)) => *count,
                // Not started by PMIx: nothing was counted.
                None if muster_client::PMIX_COUNTERS.contains(&name.as_ref()) => 0,
                None => return Err(argument(&unknown(&name, &all))),
            };
            // SAFETY: not NULL, and the caller gives a writable number.
            unsafe { value.write(count) };
            Ok(0)
        })
    })
}

fn unknown(name: &str, all: &[(&'static str, u64)]) -> String {
    let mut names: Vec<&str> = all.iter().map(|(name, _)| *name).collect();
    names.extend(muster_client::PMIX_COUNTERS);
    names.sort_unstable();
    names.dedup();
    format!(
        "no counter is named {name:?}; there are {}",
        names.join(", ")
    )
}
