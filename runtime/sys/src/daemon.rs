//! Daemonizing, and forking a worker: only in the agent, never in a rank.

use std::io;

use super::check;

/// The process in which a [`fork`] returned.
#[derive(Debug)]
pub enum Fork {
    /// The new process.
    Child,
    /// The original process.
    Parent {
        /// The child's pid.
        child: u32,
    },
}

/// Forks. Requires a single-threaded caller, so the child may call anything.
///
/// # Errors
/// The system's error; there is no child then.
pub fn fork() -> io::Result<Fork> {
    // SAFETY: the callers are single-threaded (the supervisor and its launcher), so no lock is held by
    // a thread that does not exist in the child.
    let pid = check("fork", i64::from(unsafe { libc::fork() }))?;
    Ok(match pid as u32 {
        0 => Fork::Child,
        child => Fork::Parent { child },
    })
}

/// Drops what this process may have inherited from a launcher: descriptors, standard streams,
/// working directory, blocked signals, CPU affinity. A process that waits for the end of an inherited stream would
/// otherwise wait for the end of the daemon.
///
/// # Errors
/// `/dev/null` cannot be opened or the descriptors cannot be closed.
pub fn drop_inheritance() -> io::Result<()> {
    close_above_standard()?;
    // SAFETY: the path is a NUL-terminated literal.
    let null = unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) };
    check("open(/dev/null)", i64::from(null))?;
    for stream in 0..3 {
        // SAFETY: no pointers.
        let answer = unsafe { libc::dup2(null, stream) };
        check("dup2", i64::from(answer))?;
    }
    // A file system cannot be unmounted while it contains a working directory.
    let _ = std::env::set_current_dir("/");
    reset_signals();
    reset_affinity();
    Ok(())
}

fn close_above_standard() -> io::Result<()> {
    // SAFETY: this process has just started and uses nothing above the standard streams yet.
    let answer = unsafe { libc::syscall(libc::SYS_close_range, 3u32, u32::MAX, 0u32) };
    match check("close_range", answer) {
        // Before Linux 5.9, or in a sandbox: close them one by one.
        Err(cause) if matches!(cause.raw_os_error(), Some(libc::ENOSYS | libc::EPERM)) => {
            let entries = std::fs::read_dir("/proc/self/fd")?.flatten();
            let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
            let inherited: Vec<i32> = numbers.filter(|fd| *fd > 2).collect();
            for fd in inherited {
                // SAFETY: as above. The descriptor that read the directory is closed already: EBADF.
                unsafe { libc::close(fd) };
            }
            Ok(())
        }
        answer => answer.map(|_| ()),
    }
}

fn reset_signals() {
    // SAFETY: an all-zero set is writable storage for sigemptyset. Nothing here can fail for
    // valid arguments; an unknown signal number returns an error, which is ignored.
    unsafe {
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
        for signal in [
            libc::SIGHUP,
            libc::SIGINT,
            libc::SIGTERM,
            libc::SIGCHLD,
            libc::SIGALRM,
        ] {
            libc::signal(signal, libc::SIG_DFL);
        }
    }
}

/// Allows all CPUs of the cpuset; otherwise the daemon would inherit the binding of the rank that started it.
fn reset_affinity() {
    // SAFETY: the set is plain memory of the size that is passed with it.
    unsafe {
        let mut all: libc::cpu_set_t = std::mem::zeroed();
        for cpu in 0..libc::CPU_SETSIZE as usize {
            libc::CPU_SET(cpu, &mut all);
        }
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const all);
    }
}
