//! A child process that does not outlive the thread that started it.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use super::check;

/// Makes the command's process end (SIGKILL) when the calling thread ends, and ignore SIGPIPE, as ranks require of
/// their launcher. Call it from a thread that lives as long as the child may.
pub fn bind_to_this_thread(command: &mut Command) {
    let parent = std::process::id();
    // SAFETY: between fork and exec the closure makes only async-signal-safe system calls and does not allocate: the
    // error is a plain number.
    unsafe {
        command.pre_exec(move || {
            let kill = libc::SIGKILL as libc::c_ulong;
            check(
                "prctl",
                i64::from(libc::prctl(libc::PR_SET_PDEATHSIG, kill)),
            )?;
            // The parent may have ended before the prctl.
            if libc::getppid() as u32 != parent {
                return Err(io::Error::from_raw_os_error(libc::ESRCH));
            }
            libc::signal(libc::SIGPIPE, libc::SIG_IGN);
            Ok(())
        });
    }
}

/// Restricts the command's process to these processors.
pub fn bind_to_processors(command: &mut Command, processors: &[usize]) {
    // SAFETY: a set of no processors is all zeros.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    let size = libc::CPU_SETSIZE as usize;
    for processor in processors.iter().filter(|number| **number < size) {
        // SAFETY: the set is initialised and has a bit for this number.
        unsafe { libc::CPU_SET(*processor, &mut set) };
    }
    // SAFETY: one system call between fork and exec; the set was allocated before.
    unsafe {
        command.pre_exec(move || {
            let answer = libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set);
            check("sched_setaffinity", i64::from(answer)).map(|_| ())
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::poll::readable;
    use crate::process::open_pidfd;
    use std::os::fd::AsFd;
    use std::time::Duration;

    #[test]
    fn a_child_ends_with_the_thread_that_started_it() {
        let started = std::thread::spawn(|| {
            let mut command = Command::new("sleep");
            command.arg("1000");
            bind_to_this_thread(&mut command);
            let child = command.spawn().unwrap();
            let pidfd = open_pidfd(child.id()).unwrap();
            (child, pidfd)
        });
        let (mut child, pidfd) = started.join().unwrap();
        let ended = readable(&[pidfd.as_fd()], Some(Duration::from_secs(30))).unwrap();
        assert!(ended[0]);
        assert!(!child.wait().unwrap().success());
    }

    #[test]
    fn sigpipe_is_ignored() {
        let mut command = Command::new("grep");
        command.args(["SigIgn", "/proc/self/status"]);
        bind_to_this_thread(&mut command);
        let output = command.output().unwrap();
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        let mask = u64::from_str_radix(printed.split_whitespace().nth(1).unwrap(), 16).unwrap();
        assert_ne!(mask & 1 << (libc::SIGPIPE - 1), 0);
    }
}
