//! The operating system: a thin safe wrapper for each mechanism.
//!
//! All code of this crate that requires `unsafe` is here (except the PMIx functions that are looked up at run time):
//! shared memory, futexes, robust lists, sockets that carry descriptors, timers, processes,
//! scheduling. Each file wraps one mechanism and states what the kernel guarantees for it.
//! This module makes no decisions, and does not know what a rank or a node is.

pub mod cancel;
pub mod child;
pub mod clock;
pub mod daemon;
pub mod date;
pub mod descriptor;
pub mod file;
pub mod fork;
pub mod futex;
pub mod heap;
pub mod limits;
pub mod lock;
pub mod memory;
pub mod open_files;
pub mod poll;
pub mod priority_mutex;
pub mod priority_queue;
pub mod process;
pub mod procfs;
pub mod random;
pub mod robust;
pub mod schedule;
pub mod signal;
pub mod socket;
pub mod spawn;
pub mod stream;

use std::io;

/// Checks the result of a system call that returns -1 and sets errno.
fn check(api: &'static str, answer: i64) -> io::Result<i64> {
    if answer >= 0 {
        return Ok(answer);
    }
    let cause = io::Error::last_os_error();
    match cause.kind() {
        // Callers match on these kinds, which an error with another text would hide.
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Err(cause),
        _ if cause.raw_os_error().is_some() => Err(cause),
        _ => Err(io::Error::other(format!("{api}: {cause}"))),
    }
}

/// Checks the result of a pthread function: 0 or an error code.
fn zero_or_code(code: i32) -> io::Result<()> {
    match code {
        0 => Ok(()),
        code => Err(io::Error::from_raw_os_error(code)),
    }
}
