//! `IdleTime` decides when the service for ranks is over: after a time without clients.

use muster_config::{AgentConfig, Stay};
use muster_sys::clock::monotonic_ns;
use muster_sys::poll::readable;
use muster_sys::process::open_pidfd;
use muster_sys::procfs;
use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

/// Maximum wait for the first client. It started this agent and is about to attach.
const FIRST_CLIENT_DEADLINE: Duration = Duration::from_secs(30);
/// An agent without clients whose launcher still runs waits this many linger times for new ones.
const LAUNCHER_LINGERS: u32 = 10;
/// An agent whose parent has closed the pipe stays this long, so that other nodes learn of the last client's end.
const LEAVE_AFTER: Duration = Duration::from_millis(200);
/// Maximum number of launchers that are watched.
const LAUNCHERS_MAX: usize = 8;

/// The time without clients, and what it is compared with.
pub(super) struct IdleTime {
    stay: Stay,
    linger: Duration,
    /// There is no launcher to wait for.
    without_launcher: bool,
    launchers: BTreeMap<u32, OwnedFd>,
    /// Launchers beyond [`LAUNCHERS_MAX`], or gone when they were opened: the agent does not wait for their end.
    pub(super) launchers_not_followed: u64,
    /// A client has attached, to this worker or to an earlier one.
    pub(super) had_clients: bool,
    since_ns: u64,
}

impl IdleTime {
    pub(super) fn new(config: &AgentConfig, without_launcher: bool, had_clients: bool) -> Self {
        Self {
            stay: config.stay,
            linger: config.linger,
            without_launcher,
            launchers: BTreeMap::new(),
            launchers_not_followed: 0,
            had_clients,
            since_ns: monotonic_ns(),
        }
    }

    /// Begins again: the last client has ended, or a client's end was reported.
    pub(super) fn restart(&mut self) {
        self.since_ns = monotonic_ns();
    }

    /// Notes a client.
    pub(super) fn note_client(&mut self, pid: u32) {
        self.had_clients = true;
        self.watch_launcher(pid);
    }

    /// Whether no client is expected any more. `input_has_ended`: the parent has closed its pipe.
    pub(super) fn is_over(&self, input_has_ended: bool) -> bool {
        let idle = Duration::from_nanos(monotonic_ns().saturating_sub(self.since_ns));
        match self.stay {
            Stay::UntilAsked => false,
            // Other nodes must learn of the last client's end before this agent leaves.
            Stay::WithInput => idle > self.linger.min(LEAVE_AFTER) && input_has_ended,
            _ if !self.had_clients => idle > FIRST_CLIENT_DEADLINE,
            _ if self.without_launcher || self.launchers.values().all(has_ended) => {
                idle > self.linger
            }
            _ => idle > self.linger * LAUNCHER_LINGERS,
        }
    }

    /// Watches a rank's parent: it is the launcher, and may start more ranks while it runs.
    fn watch_launcher(&mut self, pid: u32) {
        // An orphan's parent is init, which is not a launcher and never ends.
        let Some(launcher) = procfs::parent(pid).filter(|parent| *parent > 1) else {
            return;
        };
        if self.launchers.contains_key(&launcher) {
            return;
        }
        match open_pidfd(launcher) {
            Ok(pidfd) if self.launchers.len() < LAUNCHERS_MAX => {
                self.launchers.insert(launcher, pidfd);
            }
            _ => self.launchers_not_followed += 1,
        }
    }
}

fn has_ended(pidfd: &OwnedFd) -> bool {
    readable(&[pidfd.as_fd()], Some(Duration::ZERO)).is_ok_and(|ready| ready[0])
}
