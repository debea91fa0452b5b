//! Signals kept away from the library's own threads.
//!
//! An application's handler must never run on our stack, and a signal meant for it must not be
//! swallowed there: every thread of the library blocks everything from its first instruction on.

/// Runs `body` (which starts a thread) with every signal blocked, then restores the mask. The new
/// thread inherits the blocked mask, with no moment between in which it could be chosen.
pub fn with_all_blocked<T>(body: impl FnOnce() -> T) -> T {
    // SAFETY: both sets are valid; the mask of this thread is restored below.
    let before = unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        let mut before: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        before
    };
    let answer = body();
    // SAFETY: `before` came from the kernel.
    unsafe {
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut());
    }
    answer
}
