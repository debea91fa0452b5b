//! What must hold: no node that runs is declared failed, and in the end every node knows the truth about all.

use std::collections::BTreeMap;

use muster_protocol::{EventKind, Instant, NodeState, Phase, Policy};
use muster_zones::{NodeIndex, Tree, TreeEvent, ZoneId};

use super::{ZonedNode, ZonedWorld};

/// After the end of a fault its consequences excuse verdicts for this long, in microseconds.
const EXCUSE_US: u64 = 8_000_000;

/// Deaths so long before a split count for the strength of its sides, in microseconds.
const PAST_US: u64 = 12_000_000;

/// The longest time from the failure of a zone until the last node reports it, in microseconds.
const LATE_US: u64 = 2_000_000;

/// The nodes on one side of a cut, or one that was stopped, and when.
#[derive(Clone, Debug)]
pub(super) struct Excuse {
    pub(super) inside: Vec<bool>,
    pub(super) is_cut: bool,
    pub(super) since: Instant,
    pub(super) until: Instant,
}

/// A node has reported a zone failed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Verdict {
    observer: usize,
    zone: ZoneId,
    at: Instant,
}

impl Excuse {
    /// Whether it excuses that one of these nodes declares the other failed: they were apart, or both were on the
    /// smaller side, which takes over the verdicts of the other.
    fn covers(&self, one: usize, other: usize, now: Instant) -> bool {
        let is_smaller = |node| self.is_on_smaller_side(node);
        let is_apart = self.inside[one] != self.inside[other];
        self.holds(now) && (is_apart || (is_smaller(one) && is_smaller(other)))
    }

    /// Whether a node is on the side with fewer nodes, or both sides are equal.
    fn is_on_smaller_side(&self, node: usize) -> bool {
        let inside = self.inside.iter().filter(|is_inside| **is_inside).count();
        match self.inside[node] {
            true => 2 * inside <= self.inside.len(),
            false => 2 * inside >= self.inside.len(),
        }
    }

    fn holds(&self, now: Instant) -> bool {
        now >= self.since && now <= self.until.after(EXCUSE_US)
    }
}

impl ZonedWorld {
    /// Checks an event of a node.
    pub(super) fn check(&mut self, observer: usize, event: TreeEvent) {
        if let TreeEvent::Outcast { zone } = event {
            self.check_outcast(observer, zone);
        }
        if matches!(event, TreeEvent::Minority { .. }) && self.faults.is_empty() {
            let at = self.at();
            self.violations.push(format!(
                "{at} node {observer} is in a minority while the job starts"
            ));
        }
        self.check_return(observer, event);
        let failed: Vec<usize> = match event {
            TreeEvent::Node {
                node,
                state: NodeState::Failed,
            } => vec![node.0 as usize],
            TreeEvent::Zone {
                zone,
                state: NodeState::Failed,
            } => {
                let nodes = (0..self.len()).filter(|node| {
                    let node = NodeIndex(*node as u32);
                    self.map().zones_of(node).any(|of| of == zone)
                });
                nodes.collect()
            }
            TreeEvent::Base(event) if event.kind == EventKind::NodeFailed => {
                let tree = self.tree(observer);
                let name = tree.and_then(|tree| tree.base().name_of(event.member));
                let node = name.and_then(|name| self.map().directory().find(name));
                node.iter().map(|node| node.0 as usize).collect()
            }
            _ => return,
        };
        if let TreeEvent::Zone { zone, .. } = event {
            let at = self.now();
            self.verdicts.push(Verdict { observer, zone, at });
        }
        let now = self.now();
        let told = failed.iter().map(|node| (*node, now));
        self.node_mut(observer).told_failed.extend(told);
        let wrong = failed
            .into_iter()
            .find(|node| self.is_wrong(observer, *node));
        if let Some(node) = wrong {
            let at = self.at();
            self.violations.push(format!(
                "{at} node {observer} reported that node {node} failed ({event:?}): it runs, or has not started yet"
            ));
        }
    }

    /// A node is told that its zone is outcast only if it was on a weaker side, and once for each split.
    fn check_outcast(&mut self, observer: usize, zone: ZoneId) {
        let (at, now) = (self.at(), self.now());
        if !self.may_be_outcast(observer) {
            self.violations.push(format!(
                "{at} node {observer} was told that {zone:?} is outcast: it was in the largest part of the job"
            ));
        }
        let before = self.node_mut(observer).zone_outcast_at.replace(now);
        let ended_before = |before| self.excuses.iter().all(|excuse| excuse.until < before);
        if let Some(before) = before.filter(|before| ended_before(*before)) {
            self.violations.push(format!(
                "{at} node {observer} was told that {zone:?} is outcast, as at {before:?}: there was no split since"
            ));
        }
    }

    /// Where nodes stop that are outcast, none is told to be alive again after it was told to have failed.
    fn check_return(&mut self, observer: usize, event: TreeEvent) {
        let nodes = match event {
            TreeEvent::Node { node, .. } => vec![node],
            TreeEvent::Zone { zone, .. } => self.map().nodes_of(zone),
            _ => return,
        };
        let held = |node: &NodeIndex| self.tree(observer)?.node_state(*node);
        let back = nodes.into_iter();
        let back = back.filter(|node| held(node) == Some(NodeState::Alive));
        let is_same = |node: &usize| {
            let told = self.node(observer).told_failed.get(node);
            told.is_some_and(|told| self.is_back(observer, *node, *told))
        };
        let wrong = back.map(|node| node.0 as usize).find(is_same);
        if let Some(node) = wrong.filter(|_| self.policy == Policy::Stop) {
            let at = self.at();
            self.violations.push(format!(
                "{at} node {observer} was told that node {node} is alive again: it had not started anew"
            ));
        }
    }

    /// Whether a node that was told to have failed at this time, ran then. One that fails and starts again may be
    /// reported late, the more so to one that starts meanwhile.
    fn is_back(&self, observer: usize, node: usize, at: Instant) -> bool {
        let (observer, node) = (self.node(observer), self.node(node));
        node.ended_at
            .is_none_or(|ended| node.started_at.after(LATE_US) < at && observer.started_at <= ended)
    }

    fn is_wrong(&self, observer: usize, node: usize) -> bool {
        let now = self.now();
        if !self.node(node).has_started() {
            return true;
        }
        let ZonedNode { tree, ended_at, .. } = self.node(node);
        let runs = tree
            .as_ref()
            .is_some_and(|tree| tree.phase() == Phase::Running);
        let was_down = ended_at.is_some_and(|at| now <= at.after(EXCUSE_US));
        let is_excused = self
            .excuses
            .iter()
            .any(|excuse| excuse.covers(observer, node, now));
        // The nodes of weaker parts take over the verdicts of others, and are told that they are outcast.
        let are_weak = || self.may_be_outcast(observer) && self.may_be_outcast(node);
        runs && !was_down
            && !is_excused
            && !are_weak()
            && !self.was_in_smaller_part(node)
            && !self.joined_during_split(observer)
    }

    /// Whether a node has been stopped, on the smaller side of a cut, or in a part that was not the largest.
    fn may_be_outcast(&self, node: usize) -> bool {
        let now = self.now();
        let cuts = self
            .excuses
            .iter()
            .filter(|cut| cut.is_cut && self.may_have_met(cut));
        let cuts: Vec<&Excuse> = cuts.collect();
        let mut alone = cuts.iter().map(core::slice::from_ref);
        let is_smaller = cuts.iter().any(|cut| cut.is_on_smaller_side(node));
        let mut pauses = self.excuses.iter().filter(|excuse| !excuse.is_cut);
        let was_paused = pauses.any(|pause| pause.inside[node] && pause.holds(now));
        is_smaller
            || was_paused
            || self.joined_during_split(node)
            || alone.any(|cut| self.has_no_majority(cut, node))
            || self.has_no_majority(&cuts, node)
    }

    /// Whether the sides of a cut may have met just now. Where nodes stop that are outcast it happens once, and may be
    /// late.
    fn may_have_met(&self, cut: &Excuse) -> bool {
        let now = self.now();
        cut.holds(now) || (self.policy == Policy::Stop && now >= cut.since)
    }

    /// Whether the part of the job that these cuts left a node in has no majority of the nodes that ran shortly before.
    fn has_no_majority(&self, cuts: &[&Excuse], node: usize) -> bool {
        let Some(since) = cuts.iter().map(|cut| cut.since).min() else {
            return false;
        };
        let past = Instant(since.0.saturating_sub(PAST_US));
        let is_beside = |other: usize| cuts.iter().all(|cut| cut.inside[other] == cut.inside[node]);
        // A node that stopped for a while looked as if it had died.
        let pauses = self.excuses.iter();
        let pauses: Vec<&Excuse> = pauses
            .filter(|pause| !pause.is_cut && pause.until >= past)
            .collect();
        let was_paused = |node: usize| pauses.iter().any(|pause| pause.inside[node]);
        let (mut part, mut all) = (0, 0);
        for other in 0..self.len() {
            let ZonedNode { tree, ended_at, .. } = self.node(other);
            let has_ended = ended_at.is_some_and(|at| at >= past);
            let runs = tree
                .as_ref()
                .is_some_and(|tree| tree.phase() == Phase::Running);
            all += usize::from(runs || has_ended);
            part += usize::from(runs && !has_ended && !was_paused(other) && is_beside(other));
        }
        2 * part <= all
    }

    /// Whether a node started before the sides of a cut had met: it may have joined either side.
    fn joined_during_split(&self, node: usize) -> bool {
        let (now, started_at) = (self.now(), self.node(node).started_at);
        let mut cuts = self.excuses.iter().filter(|excuse| excuse.is_cut);
        cuts.any(|cut| started_at > cut.since && cut.holds(now))
    }

    /// Whether several cuts at once left the node in a part of the job that was not the largest: its nodes take over
    /// the verdicts of another part on each other.
    fn was_in_smaller_part(&self, node: usize) -> bool {
        let now = self.now();
        let is_cut = |excuse: &&Excuse| excuse.is_cut && excuse.holds(now);
        let cuts: Vec<&Excuse> = self.excuses.iter().filter(is_cut).collect();
        let part = |node: usize| -> Vec<bool> { cuts.iter().map(|cut| cut.inside[node]).collect() };
        let mut sizes: BTreeMap<Vec<bool>, usize> = BTreeMap::new();
        for node in 0..self.len() {
            *sizes.entry(part(node)).or_default() += 1;
        }
        let own = sizes[&part(node)];
        cuts.len() > 1 && sizes.values().filter(|size| **size >= own).count() > 1
    }

    /// The first differences between what nodes hold and what is true, at most `count`.
    pub(crate) fn differences(&self, count: usize) -> Vec<String> {
        let truth: Vec<NodeState> = (0..self.len()).map(|node| self.truth(node)).collect();
        let observers = (0..self.len()).filter(|node| truth[*node] == NodeState::Alive);
        let states = observers.flat_map(|observer| {
            let tree = self.tree(observer);
            tree.into_iter()
                .flat_map(move |tree| self.states_of(observer, tree))
        });
        // Of a node that left in its last moment the others may know no more than that it is gone.
        let is_true = |observer: usize, node: usize, held: NodeState| match held {
            NodeState::Failed => matches!(truth[node], NodeState::Failed | NodeState::Left),
            NodeState::Unknown => self.is_forgotten(observer, node),
            _ => held == truth[node],
        };
        states
            .filter(|(observer, node, held)| !is_true(*observer, *node, *held))
            .map(|(observer, node, held)| {
                let is = truth[node];
                format!(
                    "in the end node {observer} holds that node {node} is {held:?}: it is {is:?}"
                )
            })
            .take(count)
            .collect()
    }

    /// Whether all nodes that run in the smallest zone above base zones with these two nodes in it, have started after
    /// the second had ended, or was outcast and about to stop: nobody there remembers it.
    fn is_forgotten(&self, observer: usize, node: usize) -> bool {
        let zones = |node: usize| self.map().zones_of(NodeIndex(node as u32));
        let mut common = zones(observer).filter(|zone| zone.level > 0);
        let Some(zone) = common.find(|zone| zones(node).any(|other| other == *zone)) else {
            return false;
        };
        let node = self.node(node);
        let ended_at = match self.policy {
            Policy::Stop => node.outcast_at.or(node.ended_at),
            _ => node.ended_at,
        };
        let others = self.map().nodes_of(zone).into_iter();
        let mut others = others.map(|other| other.0 as usize);
        others.all(|other| {
            self.truth(other) != NodeState::Alive || ended_at < Some(self.node(other).started_at)
        })
    }

    /// Zones that both sides of a split keep: a node has reported that one of them failed, and neither that
    /// node nor the nodes of the zone were told in this split that they are outcast, though all of them run. At most
    /// `count`.
    pub(crate) fn kept(&self, count: usize) -> Vec<String> {
        let ran_since = |node: usize, at: Instant| {
            let node = self.node(node);
            let tree = node.tree.as_ref();
            node.started_at < at && tree.is_some_and(|tree| tree.phase() == Phase::Running)
        };
        let was_told =
            |node: usize, at: Instant| self.node(node).outcast_at.is_some_and(|told| told >= at);
        // A node, and a zone, may be told that it is outcast before the last of the verdicts of that split is known.
        let episode = |verdict: &Verdict| Instant(verdict.at.0.saturating_sub(EXCUSE_US));
        let open = self.verdicts.iter().filter(|verdict| {
            ran_since(verdict.observer, verdict.at) && !was_told(verdict.observer, episode(verdict))
        });
        let kept = open.filter_map(|verdict| {
            let nodes = self.map().nodes_of(verdict.zone).into_iter();
            let mut nodes = nodes.map(|node| node.0 as usize);
            let since = episode(verdict);
            // A zone that fails and starts again may be reported late.
            let before = Instant(verdict.at.0.saturating_sub(LATE_US));
            let node = nodes.find(|node| ran_since(*node, before) && !was_told(*node, since))?;
            let Verdict { observer, zone, at } = verdict;
            Some(format!(
                "node {observer} reported at {at:?} that {zone:?} failed: node {node} of it was not told"
            ))
        });
        kept.take(count).collect()
    }

    /// Nodes that go on though one that goes on too was told that they have failed: its ranks have told their MPI so.
    /// At most `count`.
    pub(crate) fn taken_back(&self, count: usize) -> Vec<String> {
        let runs = |node: &usize| self.truth(*node) == NodeState::Alive;
        let told = (0..self.len()).filter(runs).flat_map(|observer| {
            let told = self.node(observer).told_failed.iter();
            told.map(move |(node, at)| (observer, *node, *at))
        });
        let back =
            told.filter(|(observer, node, at)| runs(node) && self.is_back(*observer, *node, *at));
        let back = back.map(|(observer, node, at)| {
            format!("node {observer} was told at {at:?} that node {node} failed: both go on")
        });
        back.take(count).collect()
    }

    fn states_of(
        &self,
        observer: usize,
        tree: &Tree,
    ) -> impl Iterator<Item = (usize, usize, NodeState)> {
        let states = (0..self.len()).map(|node| {
            let held = tree.node_state(NodeIndex(node as u32));
            (observer, node, held.unwrap_or(NodeState::Unknown))
        });
        states.collect::<Vec<_>>().into_iter()
    }

    fn truth(&self, node: usize) -> NodeState {
        let node = self.node(node);
        match &node.tree {
            Some(tree) if tree.phase() == Phase::Running => NodeState::Alive,
            _ if node.has_left => NodeState::Left,
            _ => NodeState::Failed,
        }
    }
}
