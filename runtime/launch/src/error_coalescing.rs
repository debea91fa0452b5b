//! Error coalescing: when several launchers fail for the same reason, one of them reports it for all.
//!
//! A launcher that fails writes the error into its node status before it prints anything. Then it waits a moment
//! for others with the same error; the launcher of the lowest node prints it and names all nodes.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::node::{Launcher, TICK};
use super::node_status::NodeStatus;
use super::{Error, stdin_control};
use muster_sys::poll::readable;

/// How long a launcher waits for others with the same error: as long as launchers on a busy machine may take to
/// start after each other.
const COALESCE_WAIT: Duration = Duration::from_secs(10);

impl Launcher {
    /// Returns the error to print here, or only the exit status if another launcher prints it. The error must
    /// be in the node status already.
    pub(super) fn coalesce_error(&mut self, error: Error) -> Result<Option<u8>, Error> {
        let status = error.status();
        let Error::Program { program, why, .. } = &error else {
            let reported =
                self.wait_for_reports(|launcher| launcher.any_before_has_aborted(), false);
            return if reported {
                Ok(Some(status))
            } else {
                Err(error)
            };
        };
        let (program, why) = (program.clone(), why.clone());
        let is_before = |launcher: &Self| {
            let failing = launcher.failing_alike(&program, &why);
            failing.first().is_some_and(|first| *first < launcher.own)
        };
        if self.wait_for_reports(is_before, true) {
            return Ok(Some(status));
        }
        let mut failing = self.failing_alike(&program, &why);
        failing.insert(self.own);
        let names = failing.iter().map(|node| self.plan.layout.name(*node));
        let node = muster_hostlist::fold(names);
        Err(Error::Program { program, node, why })
    }

    /// Waits until `is_reported`, or until the launchers of earlier nodes (or of all) have stated how they are.
    /// Returns `is_reported`.
    fn wait_for_reports(&mut self, is_reported: impl Fn(&Self) -> bool, of_all: bool) -> bool {
        let until = Instant::now() + COALESCE_WAIT;
        let (own, has_met) = (self.own, self.has_met);
        let has_stated = |node_status: &NodeStatus| {
            let goes_on = node_status.connected || !node_status.ended.is_empty();
            node_status.abort.is_some() || if has_met { goes_on } else { node_status.ready }
        };
        loop {
            let unknown = self.peers.without(has_stated);
            // A launcher that was not started never states anything.
            let lost = stdin_control::lost();
            let awaited = unknown
                .iter()
                .any(|node| (of_all || *node < own) && !lost.contains(node));
            if is_reported(self) || !awaited || Instant::now() >= until {
                return is_reported(self);
            }
            self.ranks.poll();
            self.reap();
            // Wait for events only: signals are handled later.
            let descriptor = self.client.descriptor();
            let is_woken = descriptor.is_ok_and(|one| readable(&[one], Some(TICK)).is_ok());
            if !is_woken || self.peers.take_events().is_err() {
                return false;
            }
        }
    }

    /// Whether the launcher of an earlier node has ended the job itself. A launcher that only repeats another's
    /// abort does not report.
    fn any_before_has_aborted(&self) -> bool {
        let mut aborts = self
            .peers
            .node_statuses()
            .filter_map(|(_, node_status)| node_status.abort.as_ref());
        aborts.any(|abort| abort.by < self.own)
    }

    /// Other nodes on which this program cannot be started for the same reason. Launchers that only repeat the
    /// abort of one of them name the same node.
    fn failing_alike(&self, program: &str, why: &str) -> BTreeSet<usize> {
        let aborts = self
            .peers
            .node_statuses()
            .filter_map(|(_, node_status)| node_status.abort.as_ref());
        let names = aborts.filter_map(|abort| node_of(&abort.why, program, why));
        let nodes = names.filter_map(|name| self.plan.layout.node_named(name));
        nodes.filter(|node| *node != self.own).collect()
    }
}

/// Returns the node that `text` names, if `text` is the error that the program cannot be started there for this
/// reason.
fn node_of<'a>(text: &'a str, program: &str, why: &str) -> Option<&'a str> {
    const NODE: char = '\0';
    let error = Error::Program {
        program: program.to_owned(),
        node: NODE.into(),
        why: why.to_owned(),
    };
    let all = error.to_string();
    let (before, after) = all.split_once(NODE)?;
    text.strip_prefix(before)?.strip_suffix(after)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_error_of_another_node_is_recognized() {
        let error = |node: &str, why: &str| Error::Program {
            program: "./a".into(),
            node: node.into(),
            why: why.into(),
        };
        let text = error("n3", "it is a directory").to_string();
        assert_eq!(node_of(&text, "./a", "it is a directory"), Some("n3"));
        assert_eq!(node_of(&text, "./b", "it is a directory"), None);
        assert_eq!(node_of(&text, "./a", "it may not be executed"), None);
        assert_eq!(node_of("ended by signal 2", "./a", "no"), None);
    }
}
