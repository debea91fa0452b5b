//! Rails: several paths between any two nodes, and how a host's fabric uses them.
//!
//! A datagram takes the next rail in turn, or a copy goes over each rail. A rail that a node has lost carries
//! nothing from it or to it. The node is not notified. A member that observes it receives nothing on that
//! rail for five beats of every rail; from then on the observer does not use it and notifies its engine:
//! degraded. When no rail is left between two nodes, that is silence, which the engines detect.

use std::collections::{BTreeMap, BTreeSet};

use muster_protocol::{Input, Instant, MemberId, Route};

use super::{NodeIndex, World};

/// Beats missing on a rail, while others arrive, before it counts as silent; as in `musterd`.
const BEATS_MISSED: u64 = 5;
/// Interval of the check for silent rails.
const LOOK_US: u64 = 10_000;

/// The rails of all nodes.
#[derive(Debug)]
pub(super) struct Rails {
    count: usize,
    turns: BTreeMap<(NodeIndex, NodeIndex), usize>,
    lost: BTreeMap<(NodeIndex, usize), Instant>,
    /// Which observer was notified that a rail to which member is silent.
    notified: BTreeSet<(NodeIndex, MemberId)>,
    look_at: Instant,
}

impl Default for Rails {
    fn default() -> Self {
        Self {
            count: 1,
            turns: BTreeMap::new(),
            lost: BTreeMap::new(),
            notified: BTreeSet::new(),
            look_at: Instant::default(),
        }
    }
}

impl Rails {
    /// A new engine has not been notified of anything.
    pub(super) fn forget(&mut self, node: NodeIndex) {
        self.notified.retain(|(by, _)| *by != node);
    }

    fn carries(&self, one: NodeIndex, other: NodeIndex, rail: usize) -> bool {
        !self.lost.contains_key(&(one, rail)) && !self.lost.contains_key(&(other, rail))
    }
}

impl World {
    /// From now on every node has this many rails.
    pub fn set_rails(&mut self, count: usize) {
        self.rails.count = count.max(1);
    }

    /// This rail of a node carries nothing any more.
    pub fn lose_rail(&mut self, node: NodeIndex, rail: usize) {
        if rail < self.rails.count {
            self.rails.lost.entry((node, rail)).or_insert(self.now);
        }
    }

    /// The rail works again.
    pub fn mend_rail(&mut self, node: NodeIndex, rail: usize) {
        self.rails.lost.remove(&(node, rail));
    }

    /// All rails work again.
    pub fn mend_rails(&mut self) {
        self.rails.lost.clear();
    }

    /// Returns every copy of a datagram that arrives, over any rail, with its delay in microseconds.
    pub(super) fn carry(
        &mut self,
        from: NodeIndex,
        to: NodeIndex,
        route: Route,
        bytes: &[u8],
    ) -> Vec<(u64, Vec<u8>)> {
        if self.rails.count == 1 {
            return self.network.carry(&mut self.chance, from, to, bytes);
        }
        let mut copies = Vec::new();
        for rail in self.route(from, to, route) {
            if self.rails.carries(from, to, rail) {
                copies.extend(self.network.carry(&mut self.chance, from, to, bytes));
            }
        }
        copies
    }

    /// The rails that a datagram takes, without those known to be silent.
    fn route(&mut self, from: NodeIndex, to: NodeIndex, route: Route) -> Vec<usize> {
        let knows = self.rails.notified.contains(&(from, self.id(to)));
        let rails = &mut self.rails;
        let usable = |rail: &usize| !knows || rails.carries(from, to, *rail);
        let usable: Vec<usize> = (0..rails.count).filter(usable).collect();
        if route == Route::All || usable.is_empty() {
            return usable;
        }
        let turn = rails.turns.entry((from, to)).or_default();
        *turn += 1;
        vec![usable[*turn % usable.len()]]
    }

    /// Notifies engines of rails that became silent or work again.
    pub(super) fn check_rails(&mut self) {
        let idle = self.rails.lost.is_empty() && self.rails.notified.is_empty();
        if self.rails.count == 1 || idle || self.now < self.rails.look_at {
            return;
        }
        self.rails.look_at = self.now.after(LOOK_US);
        for observer in self.running() {
            let observing: Vec<MemberId> = self.engine(observer).observing().collect();
            let mut degraded: BTreeSet<MemberId> = BTreeSet::new();
            for member in observing {
                if self.is_degraded(observer, member) {
                    degraded.insert(member);
                }
            }
            let range = (observer, MemberId(0))..(observer + 1, MemberId(0));
            let notified = self.rails.notified.range(range);
            let notified: BTreeSet<MemberId> = notified.map(|(_, member)| *member).collect();
            for member in notified.symmetric_difference(&degraded) {
                let (member, degraded) = (*member, degraded.contains(member));
                if degraded {
                    self.rails.notified.insert((observer, member));
                } else {
                    self.rails.notified.remove(&(observer, member));
                }
                // It may have left the view meanwhile.
                let _ = self.input(observer, Input::Degraded { member, degraded });
            }
        }
    }

    /// Whether a rail between them has been silent for long enough while another one works.
    fn is_degraded(&self, observer: NodeIndex, member: MemberId) -> bool {
        let rails = &self.rails;
        let Some(node) = (0..self.len()).find(|node| self.id(*node) == member) else {
            return false;
        };
        let beats = BEATS_MISSED * rails.count as u64;
        let wait_us = beats * self.nodes[observer].config.heartbeat_us;
        let silent = |rail: usize| {
            let lost = [(observer, rail), (node, rail)].map(|end| rails.lost.get(&end));
            let since = lost.into_iter().flatten().min();
            since.is_some_and(|since| self.now.since(*since) >= wait_us)
        };
        (0..rails.count).any(silent) && (0..rails.count).any(|r| rails.carries(observer, node, r))
    }
}
