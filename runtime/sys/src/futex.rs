//! Waits on a 32-bit futex word that another process, or the kernel itself, changes.
//!
//! The words in the state table are shared, so nothing here uses the private flag. `wait_any` is
//! `futex_waitv` (Linux 5.16): up to 128 words at once. If it is missing or forbidden, one
//! parked thread per word with `wait` does the same. Both may return spuriously: the
//! caller always reads the words again.

use std::io;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use super::check;

/// Set in a word by a waiter; the kernel wakes only if it is set.
pub const WAITERS: u32 = libc::FUTEX_WAITERS;
/// Set in a word by the kernel when the thread that held it ended.
pub const OWNER_DIED: u32 = libc::FUTEX_OWNER_DIED;
/// The bits of a word that hold the owner's thread id.
pub const OWNER: u32 = libc::FUTEX_TID_MASK;
/// The maximum number of words for `wait_any`.
pub const WAIT_MAX: usize = 128;

const SIZE_U32: u32 = 2;

/// One word and its known value, in the kernel's layout.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
struct Waiter {
    value: u64,
    address: u64,
    flags: u32,
    reserved: u32,
}

/// Whether this kernel and sandbox allow `wait_any`: ENOSYS below 5.16, EPERM in some containers.
pub fn wait_any_works() -> bool {
    let word = AtomicU32::new(0);
    // The word is not 1, so a working call returns EAGAIN at once.
    match wait_any(&[(&word, 1)]) {
        Ok(()) => true,
        Err(cause) => !matches!(cause.raw_os_error(), Some(libc::ENOSYS | libc::EPERM)),
    }
}

/// Sleeps until one of the words differs from its value or is woken. `Ok` means only that the caller must read them
/// again.
pub fn wait_any(words: &[(&AtomicU32, u32)]) -> io::Result<()> {
    assert!(
        words.len() <= WAIT_MAX,
        "{} words; the kernel allows at most {WAIT_MAX}",
        words.len()
    );
    let mut waiters = [Waiter::default(); WAIT_MAX];
    for (waiter, (word, value)) in waiters.iter_mut().zip(words) {
        *waiter = Waiter {
            value: u64::from(*value),
            address: std::ptr::from_ref(*word) as u64,
            flags: SIZE_U32,
            reserved: 0,
        };
    }
    // SAFETY: the array outlives the call, and each address is that of a live atomic.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_futex_waitv,
            waiters.as_ptr(),
            words.len() as u32,
            0u32,
            std::ptr::null::<libc::timespec>(),
            libc::CLOCK_MONOTONIC,
        )
    };
    look_again(check("futex_waitv", answer))
}

/// Sleeps until `word` differs from `value` or is woken. `Ok` means only that the caller must read it again.
pub fn wait(word: &AtomicU32, value: u32) -> io::Result<()> {
    // SAFETY: the address is that of a live atomic; no timeout.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_futex,
            std::ptr::from_ref(word),
            libc::FUTEX_WAIT,
            value,
            std::ptr::null::<libc::timespec>(),
        )
    };
    look_again(check("futex(FUTEX_WAIT)", answer))
}

/// As [`wait`], for at most `longest`.
pub fn wait_for(word: &AtomicU32, value: u32, longest: Duration) -> io::Result<()> {
    let longest = libc::timespec {
        tv_sec: libc::time_t::try_from(longest.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: longest.subsec_nanos().into(),
    };
    // SAFETY: the address is that of a live atomic, and the timeout outlives the call.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_futex,
            std::ptr::from_ref(word),
            libc::FUTEX_WAIT,
            value,
            &raw const longest,
        )
    };
    look_again(check("futex(FUTEX_WAIT)", answer))
}

/// Wakes every sleeper on `word`.
pub fn wake(word: &AtomicU32) {
    // SAFETY: the address is that of a live atomic; waking cannot fail on it.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            std::ptr::from_ref(word),
            libc::FUTEX_WAKE,
            i32::MAX,
        );
    }
}

fn look_again(answer: io::Result<i64>) -> io::Result<()> {
    match answer {
        Ok(_) => Ok(()),
        Err(cause)
            if matches!(
                cause.raw_os_error(),
                Some(libc::EAGAIN | libc::EINTR | libc::ETIMEDOUT)
            ) =>
        {
            Ok(())
        }
        Err(cause) => Err(cause),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    #[test]
    fn a_changed_word_returns_at_once_and_a_wake_ends_the_wait() {
        let word = AtomicU32::new(5);
        wait(&word, 4).unwrap();
        wait_for(&word, 5, Duration::from_millis(1)).unwrap();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                while word.load(Ordering::Acquire) == 5 {
                    wait(&word, 5).unwrap();
                }
            });
            word.store(6, Ordering::Release);
            wake(&word);
            waiting.join().unwrap();
        });
        if wait_any_works() {
            wait_any(&[(&word, 1)]).unwrap();
        }
    }
}
