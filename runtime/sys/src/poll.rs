//! Waits for descriptors: epoll for the agent's loops, poll for a few descriptors.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

use super::check;

/// The maximum number of descriptors that one wait reports.
const READY_MAX: usize = 64;

/// A descriptor that is ready.
#[derive(Debug, Clone, Copy)]
pub struct Ready {
    /// The token given when the descriptor was added.
    pub token: u64,
    /// There is something to read, or the peer has closed the connection.
    pub readable: bool,
    /// There is space to write.
    pub writable: bool,
}

/// A set of descriptors and one wait for all of them. Level-triggered unless added otherwise.
#[derive(Debug)]
pub struct Epoll(OwnedFd);

impl Epoll {
    /// An empty set.
    pub fn new() -> io::Result<Self> {
        // SAFETY: no pointers.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        check("epoll_create1", i64::from(fd))?;
        // SAFETY: the kernel has just created this descriptor.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Adds a descriptor, watched for reading.
    pub fn add(&self, fd: BorrowedFd<'_>, token: u64) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd, libc::EPOLLIN as u32, token)
    }

    /// Adds a descriptor, watched for reading, and reported once per change (edge-triggered).
    pub fn add_edge(&self, fd: BorrowedFd<'_>, token: u64) -> io::Result<()> {
        self.control(
            libc::EPOLL_CTL_ADD,
            fd,
            (libc::EPOLLIN | libc::EPOLLET) as u32,
            token,
        )
    }

    /// Removes a descriptor. It is no error if the descriptor is not in the set.
    pub fn remove(&self, fd: BorrowedFd<'_>) {
        let _ = self.control(libc::EPOLL_CTL_DEL, fd, 0, 0);
    }

    /// Waits for at most `timeout` (forever if `None`, not at all if zero), with the resolution
    /// of the kernel's clock if it has `epoll_pwait2` (5.11), else rounded up to milliseconds.
    /// A signal ends the wait early, with nothing ready.
    pub fn wait(&self, ready: &mut Vec<Ready>, timeout: Option<Duration>) -> io::Result<()> {
        self.wait_for(READY_MAX, ready, timeout)
    }

    /// As `wait`, for at most `most` descriptors, up to 64. The next call begins with the ready descriptors that
    /// this one did not return.
    pub fn wait_for(
        &self,
        most: usize,
        ready: &mut Vec<Ready>,
        timeout: Option<Duration>,
    ) -> io::Result<()> {
        // SAFETY: all-zero epoll events are valid.
        let mut events: [libc::epoll_event; READY_MAX] = unsafe { std::mem::zeroed() };
        let events = &mut events[..most.clamp(1, READY_MAX)];
        ready.clear();
        let count = match self.wait_precise(events, timeout) {
            Err(cause) if matches!(cause.raw_os_error(), Some(libc::ENOSYS | libc::EPERM)) => {
                self.wait_coarse(events, timeout)
            }
            answer => answer,
        };
        let count = match count {
            Err(cause) if cause.kind() == io::ErrorKind::Interrupted => 0,
            answer => answer?,
        };
        ready.extend(events[..count].iter().map(|event| {
            let (bits, token) = (event.events as i32, event.u64);
            Ready {
                token,
                readable: bits & (libc::EPOLLIN | libc::EPOLLHUP | libc::EPOLLERR) != 0,
                writable: bits & libc::EPOLLOUT != 0,
            }
        }));
        Ok(())
    }

    fn wait_precise(
        &self,
        events: &mut [libc::epoll_event],
        timeout: Option<Duration>,
    ) -> io::Result<usize> {
        let limit = timeout.map(|timeout| libc::timespec {
            tv_sec: timeout.as_secs().min(i32::MAX as u64) as libc::time_t,
            tv_nsec: libc::c_long::from(timeout.subsec_nanos()),
        });
        let limit = limit.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: the array and the limit outlive the call; no signal mask.
        let answer = unsafe {
            libc::syscall(
                libc::SYS_epoll_pwait2,
                self.0.as_raw_fd(),
                events.as_mut_ptr(),
                events.len() as i32,
                limit,
                std::ptr::null::<libc::sigset_t>(),
                0usize,
            )
        };
        check("epoll_pwait2", answer).map(|count| count as usize)
    }

    fn wait_coarse(
        &self,
        events: &mut [libc::epoll_event],
        timeout: Option<Duration>,
    ) -> io::Result<usize> {
        let (fd, size) = (self.0.as_raw_fd(), events.len() as i32);
        // SAFETY: the array outlives the call.
        let answer =
            unsafe { libc::epoll_wait(fd, events.as_mut_ptr(), size, milliseconds(timeout)) };
        check("epoll_wait", i64::from(answer)).map(|count| count as usize)
    }

    fn control(&self, verb: i32, fd: BorrowedFd<'_>, bits: u32, token: u64) -> io::Result<()> {
        let mut event = libc::epoll_event {
            events: bits,
            u64: token,
        };
        // SAFETY: a valid event and two live descriptors.
        let answer =
            unsafe { libc::epoll_ctl(self.0.as_raw_fd(), verb, fd.as_raw_fd(), &raw mut event) };
        check("epoll_ctl", i64::from(answer)).map(|_| ())
    }
}

impl AsFd for Epoll {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Waits until one of at most eight descriptors is readable or closed; returns which are. After a signal or
/// `timeout`, none is.
pub fn readable(
    descriptors: &[BorrowedFd<'_>],
    timeout: Option<Duration>,
) -> io::Result<[bool; 8]> {
    let mut entries = [libc::pollfd {
        fd: -1,
        events: libc::POLLIN,
        revents: 0,
    }; 8];
    assert!(descriptors.len() <= entries.len(), "use an Epoll for more");
    for (entry, fd) in entries.iter_mut().zip(descriptors) {
        entry.fd = fd.as_raw_fd();
    }
    let count = descriptors.len() as libc::nfds_t;
    // SAFETY: the array outlives the call.
    let answer = unsafe { libc::poll(entries.as_mut_ptr(), count, milliseconds(timeout)) };
    match check("poll", i64::from(answer)) {
        Err(cause) if cause.kind() == io::ErrorKind::Interrupted => Ok([false; 8]),
        Err(cause) => Err(cause),
        Ok(_) => Ok(entries.map(|entry| entry.revents != 0)),
    }
}

/// Milliseconds, rounded up, so that a wait never ends early; -1 is forever.
fn milliseconds(timeout: Option<Duration>) -> i32 {
    timeout.map_or(-1, |timeout| {
        timeout.as_nanos().div_ceil(1_000_000).min(i32::MAX as u128) as i32
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::monotonic_ns;
    use crate::descriptor::{EventFd, TimerFd};

    #[test]
    fn a_raised_event_and_an_expired_timer_are_reported_by_token() {
        let epoll = Epoll::new().unwrap();
        let (event, timer) = (EventFd::new().unwrap(), TimerFd::new().unwrap());
        epoll.add(event.as_fd(), 1).unwrap();
        epoll.add(timer.as_fd(), 2).unwrap();
        let mut ready = Vec::new();
        epoll.wait(&mut ready, Some(Duration::ZERO)).unwrap();
        assert!(ready.is_empty());
        event.raise();
        epoll
            .wait(&mut ready, Some(Duration::from_secs(30)))
            .unwrap();
        assert_eq!(
            ready.iter().map(|ready| ready.token).collect::<Vec<_>>(),
            [1]
        );
        assert!(event.drain() && !event.drain());
        timer.set(monotonic_ns() + 50_000).unwrap();
        epoll
            .wait(&mut ready, Some(Duration::from_secs(30)))
            .unwrap();
        assert_eq!(
            ready.iter().map(|ready| ready.token).collect::<Vec<_>>(),
            [2]
        );
    }
}
