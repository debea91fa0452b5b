//! The other launchers in this one's view: their statuses, and which of them are gone.
//!
//! The agents' verdict decides whether a launcher is gone. What has become of a rank on a living node its launcher
//! states. An agent's report counts if the launcher states nothing for a while: the report may arrive before the
//! launcher's status, lacks the job's abort, and in the start may be about a program that a rank has run before
//! MPI's.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::node_status::NodeStatus;

/// How long a launcher has to state that a rank has ended before the agents' report counts.
pub(crate) const SETTLED: Duration = Duration::from_millis(250);

/// The launchers, by node.
#[derive(Debug)]
pub(crate) struct View {
    own: usize,
    statuses: Vec<Option<NodeStatus>>,
    gone: BTreeSet<usize>,
    /// Ranks that the agents report as failed, and when the report came.
    failed: BTreeMap<u32, Duration>,
    is_declared_outcast: bool,
}

impl View {
    pub(crate) fn new(own: usize, nodes: usize) -> Self {
        Self {
            own,
            statuses: vec![None; nodes],
            gone: BTreeSet::new(),
            failed: BTreeMap::new(),
            is_declared_outcast: false,
        }
    }

    /// Launchers that are gone.
    pub(crate) fn gone(&self) -> &BTreeSet<usize> {
        &self.gone
    }

    /// Notes that a launcher is gone. Its last status stays.
    pub(crate) fn lose(&mut self, node: usize) {
        if node != self.own && node < self.statuses.len() {
            self.gone.insert(node);
        }
    }

    /// Takes the status of a launcher that is not gone.
    pub(crate) fn take(&mut self, node: usize, status: NodeStatus) {
        if !self.gone.contains(&node)
            && let Some(place) = self.statuses.get_mut(node)
        {
            *place = Some(status);
        }
    }

    /// Notes that the agents report a rank as failed.
    pub(crate) fn note_failed(&mut self, rank: u32, now: Duration) {
        self.failed.entry(rank).or_insert(now);
    }

    /// Ranks that have failed as the agents report, if their launchers have had the time to state it: a
    /// launcher may be killed itself, or wait while a core is written.
    pub(crate) fn failed(&self, now: Duration) -> impl Iterator<Item = u32> {
        let is_settled = move |at: Duration| now.saturating_sub(at) >= SETTLED;
        let settled = self.failed.iter().filter(move |(_, at)| is_settled(**at));
        settled.map(|(rank, _)| *rank)
    }

    /// Whether more of them will follow soon.
    pub(crate) fn is_settling(&self, now: Duration) -> bool {
        let is_new = |at: &Duration| now.saturating_sub(*at) < SETTLED;
        self.failed.values().any(is_new)
    }

    /// Forgets reports from the start: they show nothing of the ranks' MPI.
    pub(crate) fn forget_failed(&mut self) {
        self.failed.clear();
    }

    /// Notes that the others have declared this node failed, as its agent reports.
    pub(crate) fn declare_outcast(&mut self) {
        self.is_declared_outcast = true;
    }

    /// Whether this node was declared failed by the others.
    pub(crate) fn is_outcast(&self) -> bool {
        // An agent that was started in place of a killed one may never learn it; the other launchers state
        // it, too. Those that are gone in this node's view do not count: of two sides of a split one goes
        // on.
        let own = self.own as u32;
        let mut left = self.others().filter(|(node, _)| !self.gone.contains(node));
        self.is_declared_outcast || left.any(|(_, status)| status.gone.contains(own))
    }

    pub(crate) fn status(&self, node: usize) -> Option<&NodeStatus> {
        self.statuses.get(node)?.as_ref()
    }

    /// The last status of every launcher, with its node. The own one is included once it is published.
    pub(crate) fn statuses(&self) -> impl Iterator<Item = (usize, &NodeStatus)> {
        let statuses = self.statuses.iter().enumerate();
        statuses.filter_map(|(node, status)| Some((node, status.as_ref()?)))
    }

    /// Whether some launcher's status satisfies `wanted`.
    pub(crate) fn any(&self, mut wanted: impl FnMut(&NodeStatus) -> bool) -> bool {
        self.statuses().any(|(_, node_status)| wanted(node_status))
    }

    /// The last status of every other launcher, with its node.
    pub(crate) fn others(&self) -> impl Iterator<Item = (usize, &NodeStatus)> {
        self.statuses().filter(|(node, _)| *node != self.own)
    }

    /// Nodes whose launcher is left and has no status, or one that does not satisfy `wanted`.
    pub(crate) fn without(&self, wanted: impl Fn(&NodeStatus) -> bool) -> Vec<usize> {
        let lacks = |node: &usize| {
            *node != self.own
                && !self.gone.contains(node)
                && !self.status(*node).is_some_and(&wanted)
        };
        (0..self.statuses.len()).filter(lacks).collect()
    }
}
