//! Real-time scheduling for the one thread that sends and evaluates heartbeats.
//!
//! With busy loops on every core, a detector at normal priority falsely declares its peers failed; at
//! SCHED_FIFO 1 it does not. A bug there could occupy a whole core, so a limit on
//! uninterrupted real-time is set with it: the kernel sends SIGXCPU, whose handler demotes the thread.

use std::io;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use super::check;

/// The result of a request for real-time scheduling.
#[derive(Debug)]
pub enum Granted {
    /// The calling thread runs at SCHED_FIFO 1, guarded.
    RealTime,
    /// The kernel refused; the scheduling of the thread is unchanged.
    Refused(io::Error),
}

/// How often the guard has demoted a thread.
static DEMOTIONS: AtomicU64 = AtomicU64::new(0);
/// The thread that has real-time priority. It is stored, since any thread of the process may take the signal.
static GUARDED: AtomicI32 = AtomicI32::new(0);

/// Requests SCHED_FIFO 1 for the calling thread (its forked children and new threads do not inherit
/// it; one thread per process), with a guard: more than `spin_us_max` of real-time without sleeping
/// demotes it to normal priority.
pub fn ask_real_time(spin_us_max: u64) -> Granted {
    if let Err(cause) = guard(spin_us_max) {
        return Granted::Refused(cause);
    }
    let parameters = libc::sched_param { sched_priority: 1 };
    let policy = libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK;
    // SAFETY: takes nothing, cannot fail.
    GUARDED.store(unsafe { libc::gettid() }, Ordering::Release);
    // SAFETY: valid parameters for the calling thread.
    let answer = unsafe { libc::sched_setscheduler(0, policy, &raw const parameters) };
    match check("sched_setscheduler", i64::from(answer)) {
        Ok(_) => Granted::RealTime,
        Err(cause) => Granted::Refused(cause),
    }
}

/// Whether the calling thread runs at a real-time policy now.
pub fn is_real_time() -> bool {
    // SAFETY: no pointers.
    let policy = unsafe { libc::sched_getscheduler(0) } & !libc::SCHED_RESET_ON_FORK;
    policy == libc::SCHED_FIFO || policy == libc::SCHED_RR
}

/// How often the guard has demoted a thread of this process.
pub fn demotions() -> u64 {
    DEMOTIONS.load(Ordering::Relaxed)
}

fn guard(spin_us_max: u64) -> io::Result<()> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `limit` is valid for both calls, `action` is fully initialised, and the handler only
    // makes a system call and counts.
    unsafe {
        let answer = libc::getrlimit(libc::RLIMIT_RTTIME, &raw mut limit);
        check("getrlimit", i64::from(answer))?;
        limit.rlim_cur = spin_us_max.min(limit.rlim_max);
        let answer = libc::setrlimit(libc::RLIMIT_RTTIME, &raw const limit);
        check("setrlimit(RLIMIT_RTTIME)", i64::from(answer))?;
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = demote as *const () as usize;
        action.sa_flags = libc::SA_RESTART;
        let answer = libc::sigaction(libc::SIGXCPU, &raw const action, std::ptr::null_mut());
        check("sigaction(SIGXCPU)", i64::from(answer))?;
    }
    Ok(())
}

extern "C" fn demote(_signal: i32) {
    let parameters = libc::sched_param { sched_priority: 0 };
    DEMOTIONS.fetch_add(1, Ordering::Relaxed);
    // SAFETY: a plain system call, which is safe in a signal handler.
    unsafe {
        let thread = GUARDED.load(Ordering::Acquire);
        // The flag was set, and only root may clear it.
        let policy = libc::SCHED_OTHER | libc::SCHED_RESET_ON_FORK;
        libc::sched_setscheduler(thread, policy, &raw const parameters);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Without the privilege, the test checks only that the request is refused.
    #[test]
    fn a_real_time_thread_that_spins_is_demoted() {
        let spinning = std::thread::spawn(|| match ask_real_time(20_000) {
            Granted::Refused(_) => assert!(!is_real_time()),
            Granted::RealTime => {
                assert!(is_real_time());
                // From here on this thread has the uid of an ordinary user, as an agent does.
                const NOBODY: libc::uid_t = 65_534;
                // SAFETY: a system call without pointers; libc's own function would change all threads.
                unsafe { libc::syscall(libc::SYS_setresuid, NOBODY, NOBODY, NOBODY) };
                while is_real_time() {
                    std::hint::spin_loop();
                }
                assert!(demotions() > 0);
            }
        });
        spinning.join().unwrap();
    }
}
