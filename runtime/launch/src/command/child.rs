//! `WatchedChild` is a launcher that this process has started. An epoll reports its end.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Child, Command};

use crate::node::GIVEN_UP;
use muster_sys::child::bind_to_this_thread;
use muster_sys::poll::Epoll;
use muster_sys::process::{open_pidfd, send_signal};
use muster_terminal::CliError;

/// Runs a launcher. If it panics, it returns the status of a lost launcher, so that the job is not over.
pub(super) fn contain_panic(launch: impl FnOnce() -> Result<u8, CliError>) -> Result<u8, CliError> {
    // The state that a panic left behind is not used again.
    let outcome = catch_unwind(AssertUnwindSafe(launch));
    outcome.unwrap_or_else(|_| Err(CliError::silent(GIVEN_UP)))
}

/// A child process that no other code reaps, so that its pid is not reused until [`WatchedChild::status`] has returned
/// it.
pub(super) struct WatchedChild {
    pub(super) child: Child,
    /// The pidfd. It is in the epoll until it is closed.
    _end: OwnedFd,
}

impl WatchedChild {
    /// Starts the child. It ends with this thread. `epoll` wakes when it has ended.
    ///
    /// # Errors
    /// Returns the error of the system; no child runs then.
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

    /// None while the child runs. After its end, its exit code, or none if it was killed.
    pub(super) fn status(&mut self) -> Option<Option<u8>> {
        match self.child.try_wait() {
            Ok(None) => None,
            Ok(Some(status)) => Some(status.code().map(|code| code as u8)),
            Err(_) => Some(None),
        }
    }
}

impl Drop for WatchedChild {
    /// Kills and reaps the child, so that no process is left after an error.
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_launcher_that_panics_counts_as_lost() {
        let lost = contain_panic(|| panic!("a panic of the launcher")).unwrap_err();
        assert_eq!(lost.code, GIVEN_UP);
        assert_eq!(contain_panic(|| Ok(3)).unwrap_or(0), 3);
    }
}
