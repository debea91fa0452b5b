//! A node's agent, started by root for a user: real-time priority if it may be had, then the user's
//! identity, then `musterd`, away from slurmstepd. Its standard input is what holds it: the agent ends
//! when that closes and its clients have gone, be it that the step ends or that slurmstepd is killed. There it is
//! told, too, how tasks have ended.

#![allow(unsafe_code)]

use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read};
use std::net::Shutdown;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// How long an agent may take to be ready (libfabric may load for a third of a second).
const READY_DEADLINE: Duration = Duration::from_secs(15);
/// How long its end is waited for.
const END_DEADLINE: Duration = Duration::from_secs(3);
/// The most of its words that is kept.
const WORDS_MAX: usize = 2048;

/// Descriptors that are closed one by one where the kernel cannot close all at once.
const DESCRIPTORS_MAX: i32 = 4096;

/// How a line begins that says what an agent goes without.
const LACK: &str = "musterd: ";

/// What is to be started.
pub(crate) struct Order {
    pub(crate) program: String,
    pub(crate) variables: Vec<String>,
    pub(crate) key: String,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// All groups of the user.
    pub(crate) groups: Vec<u32>,
    pub(crate) realtime: bool,
}

/// An agent that runs.
pub(crate) struct Agent {
    input: UnixStream,
    output: File,
}

impl Agent {
    /// Starts it and waits until ranks may come. What it goes without, if it says so, comes with it.
    pub(crate) fn start(order: &Order) -> Result<(Self, Option<String>), String> {
        let program = text(&order.program)?;
        let words = ["musterd", "--serve", "--while-input", "--key-file", "-"];
        let words = words.map(|word| CString::new(word).unwrap_or_default());
        let variables: Result<Vec<_>, _> = order.variables.iter().map(|line| text(line)).collect();
        let (variables, failed) = (variables?, |cause: io::Error| cause.to_string());
        // To a socket one can write without waiting, and without a signal when nobody is left to read.
        let (input, write) = UnixStream::pair().map_err(failed)?;
        let input = OwnedFd::from(input);
        let room: libc::c_int = 1 << 20;
        // SAFETY: the number outlives the call. Where so much is refused, what there is has to do.
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
        let (argv, envp) = (pointers(&words), pointers(&variables));
        // SAFETY: the child makes system calls only, on what was prepared before.
        match unsafe { libc::fork() } {
            -1 => return Err(io::Error::last_os_error().to_string()),
            // SAFETY: in the child; all pointers outlive the call.
            0 => unsafe { leave(order, &program, &argv, &envp, &input, &output) },
            child => {
                // SAFETY: a plain call; the child ends at once.
                unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
            }
        }
        drop((input, output));
        let mut agent = Self {
            input: write,
            output: File::from(read),
        };
        // If it has ended already, what it said is found below.
        agent.tell(&order.key);
        let said = agent.await_ready(&order.program)?;
        let lacks = said.lines().filter_map(|line| line.strip_prefix(LACK));
        let lacks = lacks.collect::<Vec<_>>().join("; ");
        Ok((agent, Some(lacks).filter(|lacks| !lacks.is_empty())))
    }

    /// What it has said until it is ready.
    fn await_ready(&mut self, program: &str) -> Result<String, String> {
        let until = Instant::now() + READY_DEADLINE;
        let mut said = Vec::new();
        loop {
            let text = String::from_utf8_lossy(&said).into_owned();
            if text.lines().any(|line| line.starts_with("READY ")) {
                return Ok(text);
            }
            let mut bytes = [0; 256];
            match self.is_readable(until) {
                false => {
                    return Err(format!(
                        "{program} is not ready after {READY_DEADLINE:?}; it said {text:?}"
                    ));
                }
                true => match self.output.read(&mut bytes) {
                    Ok(count @ 1..) if said.len() < WORDS_MAX => said.extend(&bytes[..count]),
                    _ => return Err(format!("{program} does not run here: {}", text.trim())),
                },
            }
        }
    }

    /// Tells it something, in a line. One that does not read, or that was killed, does without.
    pub(crate) fn tell(&self, line: &str) {
        let line = format!("{line}\n");
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: the text outlives the call.
        unsafe {
            let fd = self.input.as_raw_fd();
            libc::send(fd, line.as_ptr().cast(), line.len(), flags);
        }
    }

    /// Has it end, and waits for that; false if it stays for somebody else.
    pub(crate) fn end(mut self) -> bool {
        // What was told before is read all the same.
        let _ = self.input.shutdown(Shutdown::Both);
        let until = Instant::now() + END_DEADLINE;
        let mut bytes = [0; 256];
        // Keeper and worker have the other end.
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
            let rest = until.saturating_duration_since(Instant::now()).as_millis() as i32;
            let mut poll = libc::pollfd {
                fd: self.output.as_raw_fd(),
                events: libc::POLLIN,
                revents: 0,
            };
            // SAFETY: one entry, valid for the call.
            match unsafe { libc::poll(&raw mut poll, 1, rest) } {
                0 => return false,
                1 => return true,
                _ if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => {}
                _ => return false,
            }
        }
    }
}

/// The line that tells of the end of a task, by what `wait` said of it.
pub(crate) fn ended(task: u32, pid: u32, status: i32) -> String {
    let (what, number) = match libc::WIFSIGNALED(status) {
        true => ("signal", libc::WTERMSIG(status)),
        false => ("exit", libc::WEXITSTATUS(status)),
    };
    format!("ended {task} {pid} {what} {number}")
}

/// In the child: leaves slurmstepd behind and becomes the agent.
///
/// # Safety
/// After a fork, with pointers to terminated lists of terminated texts.
unsafe fn leave(
    order: &Order,
    program: &CString,
    argv: &[*const libc::c_char],
    envp: &[*const libc::c_char],
    input: &OwnedFd,
    output: &OwnedFd,
) -> ! {
    // SAFETY: system calls with valid arguments, in a process of our own.
    unsafe {
        libc::setsid();
        if libc::fork() != 0 {
            libc::_exit(0);
        }
        libc::dup2(input.as_raw_fd(), 0);
        libc::dup2(output.as_raw_fd(), 1);
        libc::dup2(output.as_raw_fd(), 2);
        if libc::syscall(libc::SYS_close_range, 3u32, u32::MAX, 0u32) != 0 {
            // Linux before 5.9.
            for descriptor in 3..DESCRIPTORS_MAX {
                libc::close(descriptor);
            }
        }
        if order.realtime {
            // The agent asks by itself, for its loop's thread alone, and again after its guard has taken it away.
            let limit = libc::rlimit {
                rlim_cur: 1,
                rlim_max: 1,
            };
            if libc::setrlimit(libc::RLIMIT_RTPRIO, &raw const limit) != 0 {
                // Where root may raise no limit the agent gets it from here, or does without, and its log says so.
                let parameters = libc::sched_param { sched_priority: 1 };
                libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const parameters);
            }
        }
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
        let dropped = libc::setgroups(order.groups.len(), order.groups.as_ptr()) == 0
            && libc::setgid(order.gid) == 0
            && libc::setuid(order.uid) == 0
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
    // SAFETY: the kernel writes two descriptors, which nobody else owns.
    unsafe {
        match libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) {
            0 => Ok((OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1]))),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

fn text(text: &str) -> Result<CString, String> {
    CString::new(text).map_err(|_| format!("{text:?} holds a NUL byte"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_told_as_wait_tells_them() {
        assert_eq!(ended(3, 4711, 9), "ended 3 4711 signal 9");
        // With a core.
        assert_eq!(ended(3, 4711, 0x80 | 11), "ended 3 4711 signal 11");
        assert_eq!(ended(0, 12, 7 << 8), "ended 0 12 exit 7");
        assert_eq!(ended(0, 12, 0), "ended 0 12 exit 0");
    }
}
