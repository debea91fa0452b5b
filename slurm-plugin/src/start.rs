//! Starts a node's agent, as root for a user: with real-time priority if possible, then with the user's identity,
//! as `musterd`, detached from slurmstepd. The agent's lifetime is bound to its standard input: the agent ends when
//! the input is closed and its clients have gone, because the step ends or because slurmstepd is killed. The input
//! also carries the ends of tasks to the agent.

#![allow(unsafe_code)]

use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read};
use std::net::Shutdown;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// The longest time until an agent is ready (libfabric may take a third of a second to load).
const READY_DEADLINE: Duration = Duration::from_secs(15);
/// The longest wait for the end of an agent.
const END_DEADLINE: Duration = Duration::from_secs(3);
/// How many bytes of its output are kept.
const OUTPUT_MAX: usize = 2048;

/// Descriptors that are closed one by one if the kernel cannot close all at once.
const DESCRIPTORS_MAX: i32 = 4096;

/// The prefix of an agent's line about something that it lacks.
const WARNING_PREFIX: &str = "musterd: ";

/// What to start.
pub(crate) struct StartOptions {
    pub(crate) program: String,
    pub(crate) variables: Vec<String>,
    pub(crate) key: String,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// All groups of the user.
    pub(crate) groups: Vec<u32>,
    pub(crate) realtime: bool,
}

/// A running agent.
pub(crate) struct Agent {
    input: UnixStream,
    output: File,
}

impl Agent {
    /// Starts an agent and waits until it accepts ranks. Also returns its warning, if it lacks something.
    pub(crate) fn start(options: &StartOptions) -> Result<(Self, Option<String>), String> {
        let program = text(&options.program)?;
        let arguments = ["musterd", "--serve", "--while-input", "--key-file", "-"];
        let arguments = arguments.map(|argument| CString::new(argument).unwrap_or_default());
        let variables: Result<Vec<_>, _> =
            options.variables.iter().map(|line| text(line)).collect();
        let (variables, failed) = (variables?, |cause: io::Error| cause.to_string());
        // A write to a socket can be non-blocking, and without SIGPIPE if there is no reader.
        let (input, write) = UnixStream::pair().map_err(failed)?;
        let input = OwnedFd::from(input);
        let room: libc::c_int = 1 << 20;
        // SAFETY: the number outlives the call. If the kernel refuses this size, the default must suffice.
        unsafe {
            let (fd, size) = (
                write.as_raw_fd(),
                size_of::<libc::c_int>() as libc::socklen_t,
            );
            libc::setsockopt(
                fd,
                libc::SOL_SOCKET,
                libc::SO_SNDBUF,
                (&raw const room).cast(),
                size,
            );
        }
        let (read, output) = pipe().map_err(failed)?;
        let pointers = |texts: &[CString]| {
            let all = texts.iter().map(|text| text.as_ptr());
            all.chain([std::ptr::null()]).collect::<Vec<_>>()
        };
        let (argv, envp) = (pointers(&arguments), pointers(&variables));
        // SAFETY: the child makes only system calls, on data that was prepared before.
        match unsafe { libc::fork() } {
            -1 => return Err(io::Error::last_os_error().to_string()),
            // SAFETY: in the child; all pointers outlive the call.
            0 => unsafe { leave(options, &program, &argv, &envp, &input, &output) },
            child => {
                // SAFETY: a plain system call; the child ends at once.
                unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
            }
        }
        drop((input, output));
        let mut agent = Self {
            input: write,
            output: File::from(read),
        };
        // If it has ended already, its output is read below.
        agent.send_line(&options.key);
        let printed = agent.await_ready(&options.program)?;
        let warnings = printed
            .lines()
            .filter_map(|line| line.strip_prefix(WARNING_PREFIX));
        let warnings = warnings.collect::<Vec<_>>().join("; ");
        Ok((
            agent,
            Some(warnings).filter(|warnings| !warnings.is_empty()),
        ))
    }

    /// Waits until the agent is ready, and returns its output until then.
    fn await_ready(&mut self, program: &str) -> Result<String, String> {
        let until = Instant::now() + READY_DEADLINE;
        let mut printed = Vec::new();
        loop {
            let text = String::from_utf8_lossy(&printed).into_owned();
            if text.lines().any(|line| line.starts_with("READY ")) {
                return Ok(text);
            }
            let mut bytes = [0; 256];
            match self.is_readable(until) {
                false => {
                    return Err(format!(
                        "{program} is not ready after {READY_DEADLINE:?}; its output is {text:?}"
                    ));
                }
                true => match self.output.read(&mut bytes) {
                    Ok(count @ 1..) if printed.len() < OUTPUT_MAX => {
                        printed.extend(&bytes[..count]);
                    }
                    _ => return Err(format!("{program} does not run here: {}", text.trim())),
                },
            }
        }
    }

    /// Sends the agent a line. It is lost if the agent does not read, or was killed.
    pub(crate) fn send_line(&self, line: &str) {
        let line = format!("{line}\n");
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: the text outlives the call.
        unsafe {
            let fd = self.input.as_raw_fd();
            libc::send(fd, line.as_ptr().cast(), line.len(), flags);
        }
    }

    /// Ends the agent and waits for its end; false if it continues for other clients.
    pub(crate) fn end(mut self) -> bool {
        // The agent still reads what was sent before.
        let _ = self.input.shutdown(Shutdown::Both);
        let until = Instant::now() + END_DEADLINE;
        let mut bytes = [0; 256];
        // Supervisor and worker have the other end of the pipe.
        while self.is_readable(until) {
            match self.output.read(&mut bytes) {
                Ok(1..) => {}
                _ => return true,
            }
        }
        false
    }

    fn is_readable(&self, until: Instant) -> bool {
        loop {
            let left = until.saturating_duration_since(Instant::now()).as_millis() as i32;
            let mut poll = libc::pollfd {
                fd: self.output.as_raw_fd(),
                events: libc::POLLIN,
                revents: 0,
            };
            // SAFETY: one entry, valid for the call.
            match unsafe { libc::poll(&raw mut poll, 1, left) } {
                0 => return false,
                1 => return true,
                _ if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => {}
                _ => return false,
            }
        }
    }
}

/// The line that reports the end of a task, from its status of `wait`.
pub(crate) fn ended(task: u32, pid: u32, status: i32) -> String {
    let (how, number) = match libc::WIFSIGNALED(status) {
        true => ("signal", libc::WTERMSIG(status)),
        false => ("exit", libc::WEXITSTATUS(status)),
    };
    format!("ended {task} {pid} {how} {number}")
}

/// In the child: detaches from slurmstepd and becomes the agent.
///
/// # Safety
/// Call it after a fork, with pointers to terminated lists of terminated texts.
unsafe fn leave(
    options: &StartOptions,
    program: &CString,
    argv: &[*const libc::c_char],
    envp: &[*const libc::c_char],
    input: &OwnedFd,
    output: &OwnedFd,
) -> ! {
    // SAFETY: system calls with valid arguments, in the child process.
    unsafe {
        libc::setsid();
        if libc::fork() != 0 {
            libc::_exit(0);
        }
        libc::dup2(input.as_raw_fd(), 0);
        libc::dup2(output.as_raw_fd(), 1);
        libc::dup2(output.as_raw_fd(), 2);
        if libc::syscall(libc::SYS_close_range, 3u32, u32::MAX, 0u32) != 0 {
            // Linux before 5.9 has no close_range.
            for descriptor in 3..DESCRIPTORS_MAX {
                libc::close(descriptor);
            }
        }
        if options.realtime {
            // The agent sets real-time priority itself, for its loop's thread only, and again after its guard has
            // removed it.
            let limit = libc::rlimit {
                rlim_cur: 1,
                rlim_max: 1,
            };
            if libc::setrlimit(libc::RLIMIT_RTPRIO, &raw const limit) != 0 {
                // If root cannot raise the limit, the agent gets the priority here, or runs without it and logs that.
                let parameters = libc::sched_param { sched_priority: 1 };
                libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const parameters);
            }
        }
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
        let dropped = libc::setgroups(options.groups.len(), options.groups.as_ptr()) == 0
            && libc::setgid(options.gid) == 0
            && libc::setuid(options.uid) == 0
            && libc::chdir(c"/".as_ptr()) == 0;
        if dropped {
            libc::execve(program.as_ptr(), argv.as_ptr(), envp.as_ptr());
        }
        let why = libc::strerror(*libc::__errno_location());
        libc::write(2, why.cast(), libc::strlen(why));
        libc::_exit(127)
    }
}

fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut ends = [0; 2];
    // SAFETY: the kernel writes two descriptors, which have no other owner.
    unsafe {
        match libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) {
            0 => Ok((OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1]))),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

fn text(text: &str) -> Result<CString, String> {
    CString::new(text).map_err(|_| format!("{text:?} contains a NUL byte"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_reported_by_the_status_of_wait() {
        assert_eq!(ended(3, 4711, 9), "ended 3 4711 signal 9");
        // With a core dump.
        assert_eq!(ended(3, 4711, 0x80 | 11), "ended 3 4711 signal 11");
        assert_eq!(ended(0, 12, 7 << 8), "ended 0 12 exit 7");
        assert_eq!(ended(0, 12, 0), "ended 0 12 exit 0");
    }
}
