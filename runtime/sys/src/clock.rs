//! The clocks of the runtime, in nanoseconds.
//!
//! CLOCK_MONOTONIC is the same for every process of a node, so a time that the agent writes to the state table can be
//! compared with one that a rank reads. It is not a date, and has no meaning on another node. The CPU time of a thread
//! is for measurements.

/// Nanoseconds since an arbitrary point in this node's past.
pub fn monotonic_ns() -> u64 {
    read_ns(libc::CLOCK_MONOTONIC)
}

/// Nanoseconds for which the calling thread had a CPU.
pub fn thread_cpu_ns() -> u64 {
    read_ns(libc::CLOCK_THREAD_CPUTIME_ID)
}

fn read_ns(clock: libc::clockid_t) -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `now` is a valid timespec for the kernel to fill.
    unsafe { libc::clock_gettime(clock, &raw mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
