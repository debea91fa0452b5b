//! The excuses: when a running member may be declared failed, each with its reason.
//!
//! The guarantee is that no running member is declared failed while stops, losses and cuts stay within
//! bounds. Each excuse is a bound that a fault has broken. It ends four deadlines after the fault: in that
//! time the last report is decided, or refuted.
//!
//! - *The node was stopped for a third of a deadline or longer*: excuses that node. With a beat on either
//!   side of the stop and one lost, that is a whole deadline of silence.
//! - *The node is late by up to a third of a deadline or more*: excuses that node. The same, again and again.
//! - *The path between the node and its reporters, or Theta of them, was cut for a third of a deadline or
//!   longer*: the node was silent to those. One cut of two proves nothing. But an observer that was itself
//!   cut from the node and reported it received nothing that could take back the other's report.
//! - *A one-way cut beside other cuts, or among fewer than five members*: excuses the pair. One such link
//!   among five is within bounds: others probe the node, unless they are on the far side of a split.
//! - *A storm*: excuses all members. More is lost than the guarantees allow, and no deadline is long enough.
//! - *A member was excused for declaring the node failed*: excuses the node in that version. The verdict
//!   spreads, and is reported late by members that receive it late.
//! - *The observer was declared failed by one side of a cut, and did not report the member itself*: excuses
//!   the member in that version. Such an observer takes over the view of the larger side, and with it the
//!   failure of members on its own former side and of incarnations that began there. The larger side learns
//!   of those incarnations, and of their end, from it.
//! - *The node started while there were sides, and its verdicts are those of the other side*: excuses the node. No
//!   member declared it failed, but one of the two views must be given up as a whole.
//! - *The node holds the observer failed, and that was excused*: excuses the node. Each holds the other failed,
//!   and one of the two views must be given up as a whole.
//! - *A test declares it*: excuses that node in this incarnation. The test knows the reason.
//!
//! Not excused: a shorter stop, lateness or cut; members on the near side of a cut that are silent to the far
//! side; a new worker; a lost rail that another one covers; a clock that runs wrong; the losses, duplicates,
//! delays and damages that a scenario's network always has. A detector that was stopped itself is not excused
//! for anything: it must declare no member failed.

use std::collections::{BTreeMap, BTreeSet};

use muster_protocol::{CauseKind, Event, Instant, MemberId, NodeState, Version};

use super::{NodeIndex, World};

/// How long an excuse lasts after its fault, in deadlines.
const SETTLE_DEADLINES: u64 = 4;
/// How long after a cut its sides may still be apart, in deadlines.
const MEET_DEADLINES: u64 = 50;

/// A cut between two nodes.
#[derive(Clone, Copy, Debug)]
struct Cut {
    since: Instant,
    mended_at: Option<Instant>,
    /// The cut is one-way and the only one: that is within bounds while five or more members run.
    is_alone: bool,
}

/// The broken bounds, and until when each counts.
#[derive(Debug, Default)]
pub(super) struct Excuses {
    /// Until when a node's own fault excuses verdicts about it.
    nodes: BTreeMap<NodeIndex, Instant>,
    /// Until when a node's lateness excuses verdicts about it.
    late: BTreeMap<NodeIndex, Instant>,
    cuts: BTreeMap<(NodeIndex, NodeIndex), Cut>,
    storm_until: Instant,
    condemned: BTreeSet<(MemberId, Version)>,
    /// When a node last learned that it was declared failed.
    cast_out: BTreeMap<NodeIndex, Instant>,
}

fn pair(one: NodeIndex, other: NodeIndex) -> (NodeIndex, NodeIndex) {
    (one.min(other), one.max(other))
}

impl World {
    pub(super) fn deadline_us(&self, node: NodeIndex) -> u64 {
        self.nodes[node].config.deadline_us
    }

    /// The bound of stops, lateness and cuts.
    fn is_long(&self, node: NodeIndex, duration_us: u64) -> bool {
        duration_us >= self.deadline_us(node) / 3
    }

    /// From now on, until the node restarts, a verdict that it failed is no violation.
    pub fn excuse(&mut self, node: NodeIndex) {
        self.excuses.nodes.insert(node, Instant::NEVER);
    }

    /// A new incarnation has no excuse of its own.
    pub(super) fn forget_excuse(&mut self, node: NodeIndex) {
        self.excuses.nodes.remove(&node);
        self.excuses.late.remove(&node);
    }

    /// The node stops for this time, from now on.
    pub(super) fn note_stop(&mut self, node: NodeIndex, duration_us: u64) {
        if self.is_long(node, duration_us) {
            let settle_us = SETTLE_DEADLINES * self.deadline_us(node);
            let until = self.now.after(duration_us + settle_us);
            let known = self.excuses.nodes.entry(node).or_default();
            *known = until.max(*known);
        }
    }

    /// The node is late by up to `slow_us` from now on; 0 ends the lateness.
    pub(super) fn note_lateness(&mut self, node: NodeIndex, slow_us: u64) {
        if self.is_long(node, slow_us) {
            self.excuses.late.insert(node, Instant::NEVER);
        } else if self.is_long(node, self.nodes[node].slow_us) {
            let settle_us = SETTLE_DEADLINES * self.deadline_us(node);
            self.excuses.late.insert(node, self.now.after(settle_us));
        }
    }

    /// The path between two nodes is cut from now on. `is_alone`: one-way, and no other cut exists.
    pub(super) fn note_cut(&mut self, one: NodeIndex, other: NodeIndex, is_alone: bool) {
        let fresh = Cut {
            since: self.now,
            mended_at: None,
            is_alone,
        };
        let settle_us = SETTLE_DEADLINES * self.deadline_us(one);
        let cut = self.excuses.cuts.entry(pair(one, other)).or_insert(fresh);
        if let Some(mended_at) = cut.mended_at.take()
            && self.now.since(mended_at) > settle_us
        {
            *cut = fresh;
        }
        cut.is_alone &= is_alone;
    }

    /// Determines which cuts were mended. No time passes meanwhile.
    pub(super) fn note_mends(&mut self) {
        let (now, network) = (self.now, &self.network);
        for ((one, other), cut) in &mut self.excuses.cuts {
            let is_cut = network.is_cut(*one, *other) || network.is_cut(*other, *one);
            if !is_cut && cut.mended_at.is_none() {
                cut.mended_at = Some(now);
            }
        }
    }

    /// More is lost than the guarantees allow, until a call with `is_over`.
    pub(super) fn note_storm(&mut self, is_over: bool) {
        let deadlines = self.nodes.iter().map(|node| node.config.deadline_us);
        let settle_us = SETTLE_DEADLINES * deadlines.max().unwrap_or(0);
        self.excuses.storm_until = match (is_over, self.excuses.storm_until) {
            (false, _) => Instant::NEVER,
            (true, Instant::NEVER) => self.now.after(settle_us),
            (true, known) => known,
        };
    }

    /// Ends all excuses.
    pub fn end_excuses(&mut self) {
        self.excuses = Excuses::default();
    }

    /// The node learns that it was declared failed.
    pub(super) fn note_cast_out(&mut self, node: NodeIndex) {
        self.excuses.cast_out.insert(node, self.now);
    }

    /// Whether a fault excuses the observer for reporting that this member failed. An incarnation whose end
    /// was excused once stays excused.
    pub(super) fn is_excused(&mut self, observer: NodeIndex, event: &Event) -> bool {
        let life = (event.member, event.version);
        let reported = event.cause.reporters.contains(self.id(observer));
        if self.takes_over(observer) && !reported && self.has_sides() {
            self.excuses.condemned.insert(life);
        }
        if self.excuses.condemned.contains(&life) {
            return true;
        }
        let Some(node) = (0..self.len()).find(|node| self.id(*node) == event.member) else {
            return false;
        };
        let until = self.excused_until(node);
        let reporters: Vec<NodeIndex> = (0..self.len())
            .filter(|node| event.cause.reporters.contains(self.id(*node)))
            .collect();
        // Of two members that hold each other failed, either one may be the one that started on a side.
        let is_new = self.started_on_a_side(node) || (reported && self.started_on_a_side(observer));
        let joined_a_side = is_new || self.is_held_failed_by_excuse(observer, node);
        let excused = (event.cause.kind == CauseKind::Claimed && joined_a_side)
            || self.now <= until.max(self.excuses.storm_until)
            || self.was_cut_from_enough(&reporters, node)
            || (reported && self.was_cut(observer, node));
        if excused {
            self.excuses.condemned.insert(life);
        }
        excused
    }

    /// Until when a stop or lateness of the node itself excuses reports about it.
    pub(super) fn excused_until(&self, node: NodeIndex) -> Instant {
        let of = |map: &BTreeMap<NodeIndex, Instant>| map.get(&node).copied().unwrap_or_default();
        of(&self.excuses.nodes).max(of(&self.excuses.late))
    }

    /// Whether the node may know less than others: it was stopped, or cut off from another node.
    pub(super) fn is_behind(&self, node: NodeIndex) -> bool {
        let until = self.excused_until(node);
        let mut others = (0..self.len()).filter(|other| *other != node);
        self.now <= until.max(self.excuses.storm_until)
            || others.any(|other| self.was_cut(node, other))
    }

    /// Whether the node was declared failed a moment ago.
    fn takes_over(&self, node: NodeIndex) -> bool {
        let settle_us = SETTLE_DEADLINES * self.deadline_us(node);
        let at = self.excuses.cast_out.get(&node);
        at.is_some_and(|at| self.now.since(*at) <= settle_us)
    }

    /// Whether there are two sides, or were until recently, which find each other by rare contact requests.
    /// Without sides, no member can have lived on another one. A short cut makes no sides.
    fn has_sides(&self) -> bool {
        let apart = |((one, _), cut): (&(NodeIndex, NodeIndex), &Cut)| {
            let until = cut.mended_at.unwrap_or(self.now);
            let meet_us = MEET_DEADLINES * self.deadline_us(*one);
            self.is_long(*one, until.since(cut.since)) && self.now.since(until) <= meet_us
        };
        self.now <= self.excuses.storm_until || self.excuses.cuts.iter().any(apart)
    }

    /// Whether a node started while there were sides, or before they had met again.
    fn started_on_a_side(&self, node: NodeIndex) -> bool {
        let started_at = self.nodes[node].started_at;
        let covers = |((one, _), cut): (&(NodeIndex, NodeIndex), &Cut)| {
            let until = cut.mended_at.unwrap_or(self.now);
            let meet_us = MEET_DEADLINES * self.deadline_us(*one);
            let is_long = self.is_long(*one, until.since(cut.since));
            is_long && cut.since <= started_at && started_at <= until.after(meet_us)
        };
        self.has_sides() && self.excuses.cuts.iter().any(covers)
    }

    /// Whether `by` holds the present version of the node failed, and a fault excused that.
    fn is_held_failed_by_excuse(&self, node: NodeIndex, by: NodeIndex) -> bool {
        let id = self.id(node);
        let held = self.nodes[by]
            .engine
            .as_ref()
            .and_then(|engine| engine.member(id));
        let held = held.filter(|held| held.state() == NodeState::Failed);
        held.is_some_and(|held| self.excuses.condemned.contains(&(id, held.version())))
    }

    /// How long ago the path between two nodes was cut, in microseconds; 0 if it never was.
    pub(super) fn cut_for_us(&self, one: NodeIndex, other: NodeIndex) -> u64 {
        let cut = self.excuses.cuts.get(&pair(one, other));
        cut.map_or(0, |cut| self.now.since(cut.since))
    }

    /// Whether the reporters that the node was cut from were enough without the others.
    fn was_cut_from_enough(&self, reporters: &[NodeIndex], node: NodeIndex) -> bool {
        let is_cut = |reporter: &&NodeIndex| self.was_cut(**reporter, node);
        let cut = reporters.iter().filter(is_cut).count();
        cut > 0 && cut >= self.nodes[node].config.theta.min(reporters.len())
    }

    /// Whether the path between two nodes is cut, or was until a moment ago, for long enough.
    fn was_cut(&self, one: NodeIndex, other: NodeIndex) -> bool {
        let Some(cut) = self.excuses.cuts.get(&pair(one, other)) else {
            return false;
        };
        if cut.is_alone && self.in_touch(one, other) >= 5 {
            return false;
        }
        let until = cut.mended_at.unwrap_or(self.now);
        let settle_us = SETTLE_DEADLINES * self.deadline_us(other);
        self.is_long(other, until.since(cut.since)) && self.now.since(until) <= settle_us
    }

    /// Number of running members, including the two, that are cut from neither of the two by more than one
    /// direction. Members on the far side of a split cannot probe.
    fn in_touch(&self, one: NodeIndex, other: NodeIndex) -> usize {
        let is_apart = |of: NodeIndex, node: NodeIndex| {
            let cut = self.excuses.cuts.get(&pair(of, node));
            cut.is_some_and(|cut| cut.mended_at.is_none() && !cut.is_alone)
        };
        let mut running = self.running();
        running.retain(|node| !is_apart(one, *node) && !is_apart(other, *node));
        running.len()
    }
}
