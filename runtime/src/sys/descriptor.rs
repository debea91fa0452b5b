//! Eventfd and timerfd: descriptors that become readable because something happened.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use super::check;

/// A counter that a poll can wait for: `raise` makes it readable until `drain`.
#[derive(Debug)]
pub struct EventFd(OwnedFd);

impl EventFd {
    /// A new one, not raised, non-blocking, closed at exec.
    pub fn new() -> io::Result<Self> {
        // SAFETY: no pointers.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        check("eventfd", i64::from(fd))?;
        // SAFETY: the kernel has just given us this descriptor.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// One that another process sent.
    pub fn from_received(fd: OwnedFd) -> Self {
        Self(fd)
    }

    /// Makes it readable. At the counter's limit it is readable already, so nothing is lost.
    pub fn raise(&self) {
        let one = 1u64.to_ne_bytes();
        // SAFETY: eight readable bytes.
        unsafe { libc::write(self.0.as_raw_fd(), one.as_ptr().cast(), 8) };
    }

    /// Makes it unreadable again; says whether it was raised.
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
    /// A new one, not set, non-blocking, closed at exec.
    pub fn new() -> io::Result<Self> {
        let flags = libc::TFD_CLOEXEC | libc::TFD_NONBLOCK;
        // SAFETY: no pointers.
        let fd = unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, flags) };
        check("timerfd_create", i64::from(fd))?;
        // SAFETY: the kernel has just given us this descriptor.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Becomes readable once, at `at_ns` of [`super::clock::monotonic_ns`]; a past time at once.
    pub fn set(&self, at_ns: u64) -> io::Result<()> {
        // Zero would switch the timer off.
        self.program(at_ns.max(1))
    }

    /// Switches it off.
    pub fn clear(&self) -> io::Result<()> {
        self.program(0)
    }

    /// Makes it unreadable again; says whether it had expired.
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
        // SAFETY: a valid setting, no old one wanted.
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
