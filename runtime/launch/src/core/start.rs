//! The start of the job: no launcher starts a rank before all of them can.

use std::time::Duration;

use signal_hook::consts::SIGHUP;

use super::messages::{Action, StartError};
use super::node_status::NodeStatus;
use super::{Core, Phase};

/// The error of a launcher whose control channel is closed.
pub(crate) const ORPHANED: &str =
    "the connection to the muster run that started this launcher is gone";

impl Core {
    /// Checks whether the launchers of all nodes have started; if so, this node's ranks are started.
    pub(super) fn await_launchers(&mut self, since: Duration) {
        if self.is_cut {
            self.abort(128 + SIGHUP as u8, ORPHANED);
        }
        if let Some(error) = self.conflict() {
            return self.act(Action::FailStart(error));
        }
        self.adopt_abort();
        if let Some(abort) = &self.node_status.abort {
            let status = abort.status;
            self.publish();
            return self.end(Some(status));
        }
        let missing = self.view.without(|node_status| node_status.ready);
        if missing.is_empty() && self.view.gone().is_empty() {
            self.phase = Phase::Running;
            self.all_there = Some(self.now);
            self.last_fence = self.now;
            self.are_processes_left = true;
            return self.act(Action::StartRanks);
        }
        let waited = self.since(since);
        let error = if !self.not_started.is_empty() {
            let missing = self.names(&self.not_started);
            StartError::NotStarted { missing }
        } else if !self.view.gone().is_empty() {
            let lost = self.names(self.view.gone());
            StartError::LostEarly { lost }
        } else if waited > self.config.timeout {
            StartError::Missing {
                missing: self.names(&missing),
                waited_s: waited.as_secs(),
            }
        } else {
            return;
        };
        self.act(Action::FailStart(error));
    }

    /// A launcher with another command line.
    fn conflict(&self) -> Option<StartError> {
        let own = &self.node_status.job;
        let differs = |(_, node_status): &(usize, &NodeStatus)| node_status.job != *own;
        let (node, node_status) = self.view.statuses().find(differs)?;
        Some(StartError::Conflict(format!(
            "{} launches {}, this node {own}; give all launchers the same command line",
            self.config.layout.name(node),
            node_status.job,
        )))
    }
}
