//! A launcher that this process has started, and whose end wakes it.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Child, Command};

use crate::node::GIVEN_UP;
use muster_sys::child::bind_to_this_thread;
use muster_sys::poll::Epoll;
use muster_sys::process::{open_pidfd, send_signal};
use muster_terminal::CliError;

/// What a launcher does, as whoever watches it is to see it: one that panics is lost, and its job is not over.
pub(super) fn survey(launch: impl FnOnce() -> Result<u8, CliError>) -> Result<u8, CliError> {
    // Nothing of what it has left in disorder is used again.
    let outcome = catch_unwind(AssertUnwindSafe(launch));
    outcome.unwrap_or_else(|_| Err(CliError::silent(GIVEN_UP)))
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_launcher_that_panics_is_lost_and_its_job_is_not_over() {
        let lost = survey(|| panic!("as it must not")).unwrap_err();
        assert_eq!(lost.code, GIVEN_UP);
        assert_eq!(survey(|| Ok(3)).unwrap_or(0), 3);
    }
}
