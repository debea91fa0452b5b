//! Eventfd and timerfd: descriptors that become readable when an event occurs.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use super::check;

/// Has the programs that this process executes inherit the descriptor.
///
/// # Errors
/// The system's answer.
pub fn keep_on_exec(descriptor: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: no pointers.
    let answer = unsafe { libc::fcntl(descriptor.as_raw_fd(), libc::F_SETFD, 0) };
    check("fcntl(F_SETFD)", i64::from(answer)).map(|_| ())
}

/// A counter that a poll can wait for: `raise` makes it readable until `drain`.
#[derive(Debug)]
pub struct EventFd(OwnedFd);

impl EventFd {
    /// A new eventfd: not raised, non-blocking, closed at exec.
    pub fn new() -> io::Result<Self> {
        // SAFETY: no pointers.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        check("eventfd", i64::from(fd))?;
        // SAFETY: the kernel has just created this descriptor.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// An eventfd of this process that was passed on as a descriptor.
    pub fn from_received(fd: OwnedFd) -> Self {
        Self(fd)
    }

    /// A descriptor from an untrusted process. If it is not an eventfd, the error names its type.
    pub fn from_untrusted(fd: OwnedFd) -> io::Result<Self> {
        let target = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()))?;
        if target.as_os_str() == "anon_inode:[eventfd]" {
            return Ok(Self(fd));
        }
        let text = format!("{} is no eventfd", target.display());
        Err(io::Error::new(io::ErrorKind::InvalidInput, text))
    }

    /// Makes an eventfd readable that another process also has. That process may have filled the counter, or cleared
    /// O_NONBLOCK, so that a write would block: both are checked first.
    pub fn raise_shared(&self) {
        let mut entry = libc::pollfd {
            fd: self.0.as_raw_fd(),
            events: libc::POLLIN | libc::POLLOUT,
            revents: 0,
        };
        // SAFETY: one valid entry, and no wait.
        let answer = unsafe { libc::poll(&raw mut entry, 1, 0) };
        // A readable eventfd is raised already, full or not.
        if answer == 1 && entry.revents == libc::POLLOUT {
            // SAFETY: no pointers; an eventfd has only these two flags.
            unsafe {
                libc::fcntl(
                    self.0.as_raw_fd(),
                    libc::F_SETFL,
                    libc::O_RDWR | libc::O_NONBLOCK,
                )
            };
            self.raise();
        }
    }

    /// Makes it readable. At the counter's limit it is readable already, so nothing is lost.
    pub fn raise(&self) {
        let one = 1u64.to_ne_bytes();
        // SAFETY: eight readable bytes.
        unsafe { libc::write(self.0.as_raw_fd(), one.as_ptr().cast(), 8) };
    }

    /// Makes it unreadable again; returns whether it was raised.
    pub fn drain(&self) -> bool {
        let mut count = [0u8; 8];
        // SAFETY: eight writable bytes.
        unsafe { libc::read(self.0.as_raw_fd(), count.as_mut_ptr().cast(), 8) == 8 }
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A timer on the monotonic clock that a poll can wait for.
#[derive(Debug)]
pub struct TimerFd(OwnedFd);

impl TimerFd {
    /// A new timer: not set, non-blocking, closed at exec.
    pub fn new() -> io::Result<Self> {
        let flags = libc::TFD_CLOEXEC | libc::TFD_NONBLOCK;
        // SAFETY: no pointers.
        let fd = unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, flags) };
        check("timerfd_create", i64::from(fd))?;
        // SAFETY: the kernel has just created this descriptor.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Makes it readable once, at `at_ns` of [`super::clock::monotonic_ns`]; a past time at once.
    pub fn set(&self, at_ns: u64) -> io::Result<()> {
        // Zero would disarm the timer.
        self.program(at_ns.max(1))
    }

    /// Disarms the timer.
    pub fn clear(&self) -> io::Result<()> {
        self.program(0)
    }

    /// Makes it unreadable again; returns whether it had expired.
    pub fn drain(&self) -> bool {
        let mut count = [0u8; 8];
        // SAFETY: eight writable bytes.
        unsafe { libc::read(self.0.as_raw_fd(), count.as_mut_ptr().cast(), 8) == 8 }
    }

    fn program(&self, at_ns: u64) -> io::Result<()> {
        let setting = libc::itimerspec {
            it_interval: libc::timespec {
                tv_sec: 0,
                tv_nsec: 0,
            },
            it_value: libc::timespec {
                tv_sec: (at_ns / 1_000_000_000) as libc::time_t,
                tv_nsec: (at_ns % 1_000_000_000) as libc::c_long,
            },
        };
        // SAFETY: a valid setting; the old one is not requested.
        let answer = unsafe {
            libc::timerfd_settime(
                self.0.as_raw_fd(),
                libc::TFD_TIMER_ABSTIME,
                &raw const setting,
                std::ptr::null_mut(),
            )
        };
        check("timerfd_settime", i64::from(answer)).map(|_| ())
    }
}

impl AsFd for TimerFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::socket::Packets;
    use std::fs::File;

    /// Clears O_NONBLOCK.
    fn make_blocking(event: &EventFd) {
        // SAFETY: no pointers.
        let answer = unsafe { libc::fcntl(event.0.as_raw_fd(), libc::F_SETFL, libc::O_RDWR) };
        assert_eq!(answer, 0);
    }

    fn add(event: &EventFd, count: u64) {
        let bytes = count.to_ne_bytes();
        // SAFETY: eight readable bytes.
        let wrote = unsafe { libc::write(event.0.as_raw_fd(), bytes.as_ptr().cast(), 8) };
        assert_eq!(wrote, 8);
    }

    #[test]
    fn only_an_eventfd_is_accepted() {
        let event = EventFd::new().unwrap();
        let received = EventFd::from_untrusted(event.0.try_clone().unwrap()).unwrap();
        received.raise_shared();
        received.raise_shared();
        assert!(event.drain() && !event.drain());
        let (reader, writer) = io::pipe().unwrap();
        let (one, other) = Packets::pair().unwrap();
        let others: [OwnedFd; 5] = [
            reader.into(),
            writer.into(),
            one.as_fd().try_clone_to_owned().unwrap(),
            TimerFd::new().unwrap().0,
            File::open("/dev/null").unwrap().into(),
        ];
        for other in others {
            let text = EventFd::from_untrusted(other).unwrap_err().to_string();
            assert!(text.ends_with("is no eventfd"), "{text}");
        }
        drop(other);
    }

    #[test]
    fn raising_a_full_counter_of_another_process_does_not_block() {
        let event = EventFd::new().unwrap();
        let received = EventFd::from_untrusted(event.0.try_clone().unwrap()).unwrap();
        add(&event, u64::MAX - 1);
        make_blocking(&event);
        received.raise_shared();
        assert!(event.drain());
        make_blocking(&event);
        received.raise_shared();
        assert!(event.drain() && !event.drain(), "it is raised twice");
    }
}
