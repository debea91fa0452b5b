//! A launcher that this process has started, and whose end wakes it.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command};

use crate::sys::child::bind_to_this_thread;
use crate::sys::poll::Epoll;
use crate::sys::process::{open_pidfd, send_signal};

/// Not reaped by anybody else, so that its pid stays its own until [`Followed::status`] has answered.
pub(super) struct Followed {
    pub(super) child: Child,
    /// In the epoll until it is closed.
    _end: OwnedFd,
}

impl Followed {
    /// Starts it; it ends with this thread. `epoll` wakes when it has ended.
    ///
    /// # Errors
    /// The system's; nothing runs then.
    pub(super) fn start(command: &mut Command, epoll: &Epoll) -> io::Result<Self> {
        bind_to_this_thread(command);
        let mut child = command.spawn()?;
        let end = open_pidfd(child.id())
            .and_then(|end| epoll.add(end.as_fd(), 0).map(|()| end))
            .inspect_err(|_| {
                let _ = child.kill();
                let _ = child.wait();
            })?;
        Ok(Self { child, _end: end })
    }

    pub(super) fn signal(&self, signal: i32) {
        let _ = send_signal(self.child.id(), signal);
    }

    /// None while it runs; its exit code, or none if it was killed, when it has ended.
    pub(super) fn status(&mut self) -> Option<Option<u8>> {
        match self.child.try_wait() {
            Ok(None) => None,
            Ok(Some(status)) => Some(status.code().map(|code| code as u8)),
            Err(_) => Some(None),
        }
    }
}

impl Drop for Followed {
    /// Nothing is left behind, whatever has gone wrong.
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
