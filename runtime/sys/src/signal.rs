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

/// Runs `work` and puts every signal handler back to what it was before. Libraries that
/// libfabric loads (psm) install handlers that end the process on SIGTERM, from within the
/// handler; a signal that comes meanwhile waits, or it would find theirs and could hang there.
pub fn keeping_handlers<T>(work: impl FnOnce() -> T) -> T {
    with_all_blocked(|| {
        let before = handlers();
        let answer = work();
        for (signal, action) in before {
            // SAFETY: it was in force before; SIGKILL and SIGSTOP are refused, harmlessly.
            unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) };
        }
        answer
    })
}

fn handlers() -> Vec<(i32, libc::sigaction)> {
    const LAST: i32 = 31;
    (1..=LAST)
        .filter_map(|signal| {
            // SAFETY: all-zero is a valid sigaction for the call to fill.
            let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
            // SAFETY: asks only; `action` is writable.
            let answer = unsafe { libc::sigaction(signal, std::ptr::null(), &raw mut action) };
            (answer == 0).then_some((signal, action))
        })
        .collect()
}
