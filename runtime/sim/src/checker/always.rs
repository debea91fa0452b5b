//! The checkers that watch every event.

use std::collections::{BTreeMap, BTreeSet};

use muster_protocol::{CauseKind, EventKind, MemberId, RankDetail, RankState, Version};

use super::{Check, Seen};

type Pair = (usize, MemberId);

fn is_down(kind: EventKind) -> bool {
    matches!(kind, EventKind::NodeFailed | EventKind::NodeLeft { .. })
}

/// Up and down alternate, doubts lie between.
#[derive(Debug, Default)]
pub(super) struct Alternation {
    up: BTreeSet<Pair>,
}

impl Check for Alternation {
    fn name(&self) -> &'static str {
        "alternation"
    }

    fn see(&mut self, seen: &Seen<'_>) -> Option<String> {
        let pair = (seen.observer, seen.event.member);
        match seen.event.kind {
            EventKind::NodeUp => (!self.up.insert(pair)).then(|| "up twice".to_owned()),
            // A member tells its own goodbye without ever having told that it is up.
            EventKind::NodeLeft { .. } => {
                self.up.remove(&pair);
                None
            }
            EventKind::NodeFailed => {
                (!self.up.remove(&pair)).then(|| "down without having been up".to_owned())
            }
            EventKind::NodeSuspect | EventKind::NodeRecovered | EventKind::NodeDegraded => {
                (!self.up.contains(&pair)).then(|| "in doubt without being up".to_owned())
            }
            EventKind::Outcast
            | EventKind::RankChanged { .. }
            | EventKind::AttributeChanged { .. }
            | EventKind::Refused { .. }
            | EventKind::NameTaken
            | EventKind::NameClaimed => None,
        }
    }

    fn forget(&mut self, observer: usize) {
        self.up.retain(|(by, _)| *by != observer);
    }
}

/// Who was gone in a version does not come back with it.
#[derive(Debug, Default)]
pub(super) struct Resurrection {
    gone: BTreeMap<Pair, Version>,
}

impl Check for Resurrection {
    fn name(&self) -> &'static str {
        "resurrection"
    }

    fn see(&mut self, seen: &Seen<'_>) -> Option<String> {
        let pair = (seen.observer, seen.event.member);
        if is_down(seen.event.kind) {
            self.gone.insert(pair, seen.event.version);
        }
        let stale = seen.event.kind == EventKind::NodeUp
            && self
                .gone
                .get(&pair)
                .is_some_and(|gone| seen.event.version <= *gone);
        stale.then(|| "back from the dead with an old version".to_owned())
    }

    fn forget(&mut self, observer: usize) {
        self.gone.retain(|(by, _), _| *by != observer);
    }

    fn start_over(&mut self, observer: usize) {
        self.forget(observer);
    }
}

/// Nobody is declared failed who runs, unless a fault excuses it.
#[derive(Debug, Default)]
pub(super) struct Accuracy;

impl Check for Accuracy {
    fn name(&self) -> &'static str {
        "accuracy"
    }

    fn see(&mut self, seen: &Seen<'_>) -> Option<String> {
        let wrong = seen.event.kind == EventKind::NodeFailed
            && seen.blameless
            && seen.event.cause.kind != CauseKind::Superseded;
        wrong.then(|| "declared failed and alive".to_owned())
    }

    fn forget(&mut self, _observer: usize) {}
}

/// What an observer tells of a member's version only grows.
#[derive(Debug, Default)]
pub(super) struct Incarnations {
    told: BTreeMap<Pair, Version>,
}

impl Check for Incarnations {
    fn name(&self) -> &'static str {
        "incarnations"
    }

    fn see(&mut self, seen: &Seen<'_>) -> Option<String> {
        let version = seen.event.version;
        let before = self
            .told
            .insert((seen.observer, seen.event.member), version)?;
        (version < before).then(|| format!("version went back from {before:?}"))
    }

    fn forget(&mut self, observer: usize) {
        self.told.retain(|(by, _), _| *by != observer);
    }

    fn start_over(&mut self, observer: usize) {
        self.forget(observer);
    }
}

/// What an observer tells of a rank only gets newer.
#[derive(Debug, Default)]
pub(super) struct RankOrder {
    told: BTreeMap<(usize, MemberId, u32), (u64, u32, Option<(RankState, RankDetail)>)>,
}

impl Check for RankOrder {
    fn name(&self) -> &'static str {
        "rank-order"
    }

    fn see(&mut self, seen: &Seen<'_>) -> Option<String> {
        let EventKind::RankChanged { fact } = seen.event.kind else {
            return None;
        };
        let key = (seen.observer, seen.event.member, fact.rank);
        // Ends handed on from former lives have no order in time but one that all agree on.
        let handed_on = (fact.sequence == 0).then_some((fact.state, fact.detail));
        let newer = (seen.event.version.incarnation, fact.sequence, handed_on);
        let before = self.told.insert(key, newer)?;
        (newer <= before).then(|| format!("rank {} went back from {before:?}", fact.rank))
    }

    fn forget(&mut self, observer: usize) {
        self.told.retain(|(by, _, _), _| *by != observer);
    }

    fn start_over(&mut self, observer: usize) {
        self.forget(observer);
    }
}
