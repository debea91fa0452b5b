//! Signals, which must not reach the library's own threads.
//!
//! An application's handler must never run on the library's stack, and a signal for the application must not be
//! consumed there: every thread of the library blocks all signals from its first instruction on.

/// Runs `body` (which starts a thread) with every signal blocked, then restores the mask. The new
/// thread inherits the blocked mask, so there is no moment at which it could get a signal.
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

/// Runs `work` and restores every signal handler. Libraries that libfabric loads (psm) install handlers that end the
/// process on SIGTERM from within the handler. Signals are blocked meanwhile: one could run such a handler and block
/// in it.
pub fn keeping_handlers<T>(work: impl FnOnce() -> T) -> T {
    with_all_blocked(|| {
        let before = handlers();
        let answer = work();
        for (signal, action) in before {
            // SAFETY: it was in force before; SIGKILL and SIGSTOP return an error, which is harmless.
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
            // SAFETY: it only reads the action; `action` is writable.
            let answer = unsafe { libc::sigaction(signal, std::ptr::null(), &raw mut action) };
            (answer == 0).then_some((signal, action))
        })
        .collect()
}
