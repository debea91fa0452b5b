//! Who may be declared failed and run all the same: every excuse, in one place, with its reason.
//!
//! The promise is that nobody who runs is declared failed while stops, losses and cuts stay within
//! bounds. Each excuse is a bound that a fault has broken, and ends four deadlines after it: in that
//! time the last report is judged, or refuted.
//!
//! - *It stood still for a third of a deadline or longer*: that node. With a beat on either side of
//!   the stop and one lost, that is a whole deadline of silence.
//! - *It is late by up to a third of a deadline or more*: that node. The same, again and again.
//! - *The way between it and its reporters, or Theta of them, was cut for a third of a deadline or
//!   longer*: to those it was silent. One of two proves nothing; but to an observer that was itself
//!   cut from it, and reported it, nothing came that would have taken back the word of the other.
//! - *A one-way cut beside other cuts, or among fewer than five*: the pair. One such link among five
//!   is within bounds: others look, unless they are on the far side of a split.
//! - *A storm*: everybody. More is lost than the promises allow for, and no deadline is long enough.
//! - *Somebody was excused for declaring it failed*: it, in that version. The verdict travels, and is
//!   told late by who hears it late.
//! - *The observer was cast out of one side of a cut, and did not report the member itself*: it, in that
//!   version. Who is cast out takes over the view of the larger side, and with it the end of those who were on its own
//!   side, and of lives that began there; the larger side hears of those lives, and their end, from it.
//! - *A story says so*: that node, in this life. The story knows why.
//!
//! Not excused: a stop, a lateness or a cut that is shorter; whom the far side of a cut is silent to,
//! on the near side; a new worker; a lost rail that another one covers; a clock that runs wrong; the
//! losses, doublings, delays and damages that a scenario's network has all the time; and nothing is
//! excused for a detector that stood still itself: it accuses nobody.

use std::collections::{BTreeMap, BTreeSet};

use muster_protocol::{Event, Instant, MemberId, Version};

use super::{NodeIndex, World};

/// How long an excuse outlives its fault, in deadlines.
const SETTLE_DEADLINES: u64 = 4;
/// How long after a cut its sides may still not have met, in deadlines.
const MEET_DEADLINES: u64 = 50;

/// A cut between two nodes.
#[derive(Clone, Copy, Debug)]
struct Cut {
    since: Instant,
    mended_at: Option<Instant>,
    /// One way, and the only one: that is within bounds while five or more run.
    is_alone: bool,
}

/// What broke a bound, and until when that counts.
#[derive(Debug, Default)]
pub(super) struct Excuses {
    /// Until when a node's own fault excuses others.
    nodes: BTreeMap<NodeIndex, Instant>,
    /// Until when its being slow does.
    late: BTreeMap<NodeIndex, Instant>,
    cuts: BTreeMap<(NodeIndex, NodeIndex), Cut>,
    storm_until: Instant,
    condemned: BTreeSet<(MemberId, Version)>,
    /// When a node last learnt that it was declared failed.
    cast_out: BTreeMap<NodeIndex, Instant>,
}

fn pair(one: NodeIndex, other: NodeIndex) -> (NodeIndex, NodeIndex) {
    (one.min(other), one.max(other))
}

impl World {
    fn deadline_us(&self, node: NodeIndex) -> u64 {
        self.nodes[node].config.deadline_us
    }

    /// The bound of stops, lateness and cuts.
    fn is_long(&self, node: NodeIndex, duration_us: u64) -> bool {
        duration_us >= self.deadline_us(node) / 3
    }

    /// Nobody is blamed for calling this node failed from now on (until it restarts).
    pub fn excuse(&mut self, node: NodeIndex) {
        self.excuses.nodes.insert(node, Instant::NEVER);
    }

    /// A new life has no excuse of its own.
    pub(super) fn forget_excuse(&mut self, node: NodeIndex) {
        self.excuses.nodes.remove(&node);
        self.excuses.late.remove(&node);
    }

    /// The node stands still for so long, from now on.
    pub(super) fn note_stop(&mut self, node: NodeIndex, duration_us: u64) {
        if self.is_long(node, duration_us) {
            let settle_us = SETTLE_DEADLINES * self.deadline_us(node);
            let until = self.now.after(duration_us + settle_us);
            let known = self.excuses.nodes.entry(node).or_default();
            *known = until.max(*known);
        }
    }

    /// The node is late by up to so much from now on; 0 when that is over.
    pub(super) fn note_lateness(&mut self, node: NodeIndex, slow_us: u64) {
        if self.is_long(node, slow_us) {
            self.excuses.late.insert(node, Instant::NEVER);
        } else if self.is_long(node, self.nodes[node].slow_us) {
            let settle_us = SETTLE_DEADLINES * self.deadline_us(node);
            self.excuses.late.insert(node, self.now.after(settle_us));
        }
    }

    /// The way between two nodes is cut from now on; `is_alone`: one way, and no other is.
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

    /// Cuts are mended while no time goes by: finds out which.
    pub(super) fn note_mends(&mut self) {
        let (now, network) = (self.now, &self.network);
        for ((one, other), cut) in &mut self.excuses.cuts {
            let is_cut = network.is_cut(*one, *other) || network.is_cut(*other, *one);
            if !is_cut && cut.mended_at.is_none() {
                cut.mended_at = Some(now);
            }
        }
    }

    /// More is lost than the promises allow for, until it is said to be over.
    pub(super) fn note_storm(&mut self, is_over: bool) {
        let deadlines = self.nodes.iter().map(|node| node.config.deadline_us);
        let settle_us = SETTLE_DEADLINES * deadlines.max().unwrap_or(0);
        self.excuses.storm_until = match (is_over, self.excuses.storm_until) {
            (false, _) => Instant::NEVER,
            (true, Instant::NEVER) => self.now.after(settle_us),
            (true, known) => known,
        };
    }

    /// From now on nobody is excused for what was.
    pub fn excuse_nobody(&mut self) {
        self.excuses = Excuses::default();
    }

    /// The node learns that it was declared failed.
    pub(super) fn note_cast_out(&mut self, node: NodeIndex) {
        self.excuses.cast_out.insert(node, self.now);
    }

    /// Whether some fault excuses the observer for telling that this member failed. A life whose
    /// end was excused once stays excused.
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
        let excused = self.now <= until.max(self.excuses.storm_until)
            || self.was_cut_from_enough(&reporters, node)
            || (reported && self.was_cut(observer, node));
        if excused {
            self.excuses.condemned.insert(life);
        }
        excused
    }

    /// Until when a stop or lateness of its own excuses what is said of the node.
    pub(super) fn excused_until(&self, node: NodeIndex) -> Instant {
        let of = |map: &BTreeMap<NodeIndex, Instant>| map.get(&node).copied().unwrap_or_default();
        of(&self.excuses.nodes).max(of(&self.excuses.late))
    }

    /// Whether the node may know less than others: it stood still, or was cut off from somebody.
    pub(super) fn is_behind(&self, node: NodeIndex) -> bool {
        let until = self.excused_until(node);
        let mut others = (0..self.len()).filter(|other| *other != node);
        self.now <= until.max(self.excuses.storm_until)
            || others.any(|other| self.was_cut(node, other))
    }

    /// Whether the node was cast out a moment ago.
    fn takes_over(&self, node: NodeIndex) -> bool {
        let settle_us = SETTLE_DEADLINES * self.deadline_us(node);
        let at = self.excuses.cast_out.get(&node);
        at.is_some_and(|at| self.now.since(*at) <= settle_us)
    }

    /// Whether there are two sides, or were until a while ago, which find each other by rare knocks:
    /// without them nobody can have lived on another one. A flap makes none.
    fn has_sides(&self) -> bool {
        let apart = |((one, _), cut): (&(NodeIndex, NodeIndex), &Cut)| {
            let until = cut.mended_at.unwrap_or(self.now);
            let meet_us = MEET_DEADLINES * self.deadline_us(*one);
            self.is_long(*one, until.since(cut.since)) && self.now.since(until) <= meet_us
        };
        self.now <= self.excuses.storm_until || self.excuses.cuts.iter().any(apart)
    }

    /// Whether the reporters from whom the node was cut would have been enough without the others.
    fn was_cut_from_enough(&self, reporters: &[NodeIndex], node: NodeIndex) -> bool {
        let is_cut = |reporter: &&NodeIndex| self.was_cut(**reporter, node);
        let cut = reporters.iter().filter(is_cut).count();
        cut > 0 && cut >= self.nodes[node].config.theta.min(reporters.len())
    }

    /// Whether the way between two nodes is cut, or was until a moment ago, for long enough.
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

    /// How many run, the two among them, whom neither of the two is cut from by more than one way: those
    /// on the far side of a split cannot look.
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
