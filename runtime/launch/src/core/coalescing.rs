//! Error coalescing: when several launchers fail for the same reason, one of them reports it for all.
//!
//! A launcher that fails writes the error into its node status before it prints anything. Then it waits a moment
//! for others with the same error; the launcher of the lowest node prints it and names all nodes.

use std::collections::BTreeSet;

use super::Core;
use super::node_status::{Abort, NodeStatus};

/// An error that names its node: the text before and after the name.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ErrorText<'a> {
    pub(crate) before: &'a str,
    pub(crate) after: &'a str,
}

impl ErrorText<'_> {
    /// Returns the node that `text` names, if `text` is this error of another node.
    fn node_in<'t>(&self, text: &'t str) -> Option<&'t str> {
        text.strip_prefix(self.before)?.strip_suffix(self.after)
    }
}

impl Core {
    /// Whether the launchers of earlier nodes, or of all, have yet to state how they are.
    pub(crate) fn are_others_silent(&self, of_all: bool) -> bool {
        let are_all_there = self.all_there.is_some();
        let has_stated = |node_status: &NodeStatus| {
            let goes_on = node_status.connected || !node_status.ended.is_empty();
            node_status.abort.is_some()
                || if are_all_there {
                    goes_on
                } else {
                    node_status.ready
                }
        };
        let counts = |node: &usize| {
            // A launcher that was not started never states anything.
            (of_all || *node < self.config.own) && !self.not_started.contains(node)
        };
        self.view.without(has_stated).iter().any(counts)
    }

    /// Whether the launcher of an earlier node has ended the job itself. A launcher that only repeats another's
    /// abort does not report.
    pub(crate) fn has_an_earlier_node_aborted(&self) -> bool {
        self.aborts().any(|abort| abort.by < self.config.own)
    }

    /// Other nodes that have failed with this error. Launchers that only repeat the abort of one of them name
    /// the same node.
    pub(crate) fn failing_alike(&self, error: ErrorText<'_>) -> BTreeSet<usize> {
        let named = |abort: &Abort| {
            let node = error.node_in(&abort.why)?;
            self.config.layout.node_named(node)
        };
        let nodes = self.aborts().filter_map(named);
        nodes.filter(|node| *node != self.config.own).collect()
    }

    fn aborts(&self) -> impl Iterator<Item = &Abort> {
        let statuses = self.view.statuses();
        statuses.filter_map(|(_, node_status)| node_status.abort.as_ref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_error_of_another_node_is_recognized() {
        let error = ErrorText {
            before: "./a cannot be started on ",
            after: ": it is a directory",
        };
        let text = "./a cannot be started on n3: it is a directory";
        assert_eq!(error.node_in(text), Some("n3"));
        let other = "./b cannot be started on n3: it is a directory";
        assert_eq!(error.node_in(other), None);
        let other = "./a cannot be started on n3: it may not be executed";
        assert_eq!(error.node_in(other), None);
        assert_eq!(error.node_in("ended by signal 2"), None);
    }
}
