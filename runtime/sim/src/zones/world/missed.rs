//! Losses that were not found: nodes that are dead or cut off, and that others hold alive.

use muster_protocol::{Instant, NodeState};
use muster_zones::NodeIndex;

use super::ZonedWorld;

/// The longest time from when a node is out of reach until all others know, in microseconds, if nothing else happens
/// to either.
const LOST_US: u64 = 2_000_000;

impl ZonedWorld {
    /// Nodes that have been out of reach for long, and that another node still holds alive. At most `count`.
    pub(crate) fn missed(&self, count: usize) -> Vec<String> {
        let watchers = (0..self.len()).filter(|node| self.watches(*node));
        let pairs = watchers.flat_map(|watcher| (0..self.len()).map(move |node| (watcher, node)));
        let missed = pairs.filter(|(watcher, node)| {
            let tree = self.tree(*watcher);
            let held = tree.and_then(|tree| tree.node_state(NodeIndex(*node as u32)));
            held == Some(NodeState::Alive) && self.is_out_of_reach(*watcher, *node)
        });
        let missed = missed.map(|(watcher, node)| {
            format!("node {watcher} does not know that node {node} is out of reach")
        });
        missed.take(count).collect()
    }

    /// Whether a node has run for long, and does now.
    fn watches(&self, node: usize) -> bool {
        let entry = self.node(node);
        self.runs(node) && entry.paused_until.is_none() && self.is_long(entry.started_at)
    }

    /// Whether a node has been dead, or cut off from another one, for long, and nothing has happened to that one
    /// since.
    fn is_out_of_reach(&self, watcher: usize, node: usize) -> bool {
        let (watcher, is_dead, node) = (self.node(watcher), !self.runs(node), self.node(node));
        let is_apart = watcher.sides != node.sides;
        let since = match is_dead {
            true => node.ended_at,
            false => is_apart.then_some(node.moved_at.max(node.started_at)),
        };
        since.is_some_and(|since| self.is_long(since.max(watcher.moved_at)))
    }

    fn is_long(&self, since: Instant) -> bool {
        self.now() >= since.after(LOST_US)
    }
}
