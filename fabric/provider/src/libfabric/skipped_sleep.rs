//! `usleep` and `gettimeofday` as libfabric finds them in an agent: while it is loaded, sleeps end at once.
//!
//! Debian's libfabric is linked with the library of TrueScale cards (PSM). As that library is loaded it measures the
//! processor's clock: it sleeps in short steps until 0.1 s have passed, which is a third of the time that an agent
//! takes to start. Only a process that uses such a card needs the result. Elsewhere the sleeps only move the time that
//! the library reads. It finds that the result cannot be right, and takes the number from `/proc/cpuinfo`.
//!
//! See `kernel_symbols` for how libfabric finds the functions.

use std::cell::Cell;
use std::ffi::{c_int, c_uint, c_void};

const US_PER_S: i64 = 1_000_000;

thread_local! {
    /// How long the sleeps of this thread were that it has skipped, in microseconds; `None` if it skips none.
    static SKIPPED_US: Cell<Option<i64>> = const { Cell::new(None) };
}

/// Calls `load` with sleeps that end at once, unless the machine has RDMA devices.
pub(super) fn without_sleeps<T>(has_devices: bool, load: impl FnOnce() -> T) -> T {
    if !has_devices {
        SKIPPED_US.set(Some(0));
    }
    let loaded = load();
    SKIPPED_US.set(None);
    loaded
}

/// `usleep(3)`: a sleep that a signal interrupts returns -1.
#[unsafe(no_mangle)]
extern "C" fn usleep(us: c_uint) -> c_int {
    if let Some(skipped) = SKIPPED_US.get() {
        SKIPPED_US.set(Some(skipped + i64::from(us)));
        return 0;
    }
    let us = i64::from(us);
    let time = libc::timespec {
        tv_sec: us / US_PER_S,
        tv_nsec: us % US_PER_S * 1000,
    };
    // SAFETY: `time` is a valid duration. The remainder is not wanted.
    unsafe { libc::nanosleep(&raw const time, std::ptr::null_mut()) }
}

/// `gettimeofday(2)`, moved by the sleeps that this thread has skipped. A time zone is not supported: the kernel's is
/// obsolete, and glibc reports zeros.
///
/// # Safety
/// `time` is valid for a write, or null, as is `zone` for one of `struct timezone`.
#[unsafe(no_mangle)]
unsafe extern "C" fn gettimeofday(time: *mut libc::timeval, zone: *mut c_void) -> c_int {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `now` is valid for a write.
    unsafe { libc::clock_gettime(libc::CLOCK_REALTIME, &raw mut now) };
    let us = now.tv_nsec / 1000 + SKIPPED_US.get().unwrap_or_default();
    let moved = libc::timeval {
        tv_sec: now.tv_sec + us / US_PER_S,
        tv_usec: us % US_PER_S,
    };
    // SAFETY: valid for writes where they are not null, by the contract of this function. `struct timezone` is two
    // `int`.
    unsafe {
        if !time.is_null() {
            time.write(moved);
        }
        if !zone.is_null() {
            zone.cast::<[c_int; 2]>().write([0, 0]);
        }
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Instant, SystemTime, UNIX_EPOCH};

    fn now_s() -> i64 {
        let mut time = libc::timeval {
            tv_sec: 0,
            tv_usec: 0,
        };
        let mut zone = [1, 1];
        // SAFETY: both are valid for writes.
        let done = unsafe { gettimeofday(&raw mut time, zone.as_mut_ptr().cast()) };
        assert_eq!((done, zone), (0, [0, 0]));
        assert!((0..US_PER_S).contains(&time.tv_usec));
        time.tv_sec
    }

    fn real_s() -> i64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        i64::try_from(since.expect("after 1970").as_secs()).expect("this age")
    }

    #[test]
    fn sleeps_are_skipped_and_move_the_time_while_a_library_is_loaded() {
        const HOUR_S: i64 = 3600;
        let before = real_s();
        let within = without_sleeps(false, || {
            for _ in 0..HOUR_S {
                assert_eq!(usleep(1_000_000), 0);
            }
            now_s()
        });
        assert!(within >= before + HOUR_S, "{within} {before}");
        let after = now_s();
        assert!((before..=real_s()).contains(&after), "{after}");
    }

    #[test]
    fn other_sleeps_last() {
        let slept = || {
            let start = Instant::now();
            assert_eq!(usleep(2000), 0);
            start.elapsed().as_micros()
        };
        assert!(slept() >= 2000);
        assert!(without_sleeps(true, slept) >= 2000);
        without_sleeps(false, || {
            let other = std::thread::scope(|scope| scope.spawn(slept).join());
            assert!(other.expect("it ends") >= 2000, "another thread sleeps");
        });
    }
}
