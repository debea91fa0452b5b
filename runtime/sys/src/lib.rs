//! The operating system, one thin safe door per mechanism.
//!
//! Everything of this crate that needs `unsafe` lives here (but for the looked-up PMIx functions):
//! shared memory, futexes, robust lists, sockets that carry descriptors, timers, processes,
//! scheduling. Each file wraps one mechanism and says what the kernel promises about it.
//! What is not here: any decision. Nobody in this room knows what a rank or a node is.

pub mod cancel;
pub mod child;
pub mod clock;
pub mod daemon;
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

/// The answer of a system call that says -1 for "look at errno".
fn check(api: &'static str, answer: i64) -> io::Result<i64> {
    if answer >= 0 {
        return Ok(answer);
    }
    let cause = io::Error::last_os_error();
    match cause.kind() {
        // Callers match on these kinds; a wrapped text must not hide them.
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Err(cause),
        _ if cause.raw_os_error().is_some() => Err(cause),
        _ => Err(io::Error::other(format!("{api}: {cause}"))),
    }
}

/// The answer of a pthread function: 0, or what went wrong.
fn zero_or_code(code: i32) -> io::Result<()> {
    match code {
        0 => Ok(()),
        code => Err(io::Error::from_raw_os_error(code)),
    }
}
