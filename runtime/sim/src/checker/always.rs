//! The checkers that watch every event.

use std::collections::{BTreeMap, BTreeSet};

use muster_protocol::{CauseKind, EventKind, KeyHandle, MemberId, RankDetail, RankState, Version};

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
            | EventKind::GroupFailed { .. }
            | EventKind::Minority { .. }
            | EventKind::Majority { .. }
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

/// Nobody is declared failed who runs, unless a fault excuses it; nobody is said to have left who runs,
/// or to be there who crashed long ago.
#[derive(Debug, Default)]
pub(super) struct Accuracy;

impl Check for Accuracy {
    fn name(&self) -> &'static str {
        "accuracy"
    }

    fn see(&mut self, seen: &Seen<'_>) -> Option<String> {
        let left = matches!(seen.event.kind, EventKind::NodeLeft { .. });
        let what = match () {
            () if seen.blameless => "declared failed and alive",
            () if left && seen.runs => "said to have left, and it runs",
            () if seen.long_gone => "let in, and it crashed long ago",
            () => return None,
        };
        Some(what.to_owned())
    }

    fn forget(&mut self, _observer: usize) {}
}

/// A group that failed is a list of members that this observer told failed.
#[derive(Debug, Default)]
pub(super) struct Groups {
    down: BTreeSet<Pair>,
}

impl Check for Groups {
    fn name(&self) -> &'static str {
        "groups"
    }

    fn see(&mut self, seen: &Seen<'_>) -> Option<String> {
        let pair = (seen.observer, seen.event.member);
        match seen.event.kind {
            EventKind::NodeFailed => _ = self.down.insert(pair),
            EventKind::NodeUp | EventKind::NodeLeft { .. } => _ = self.down.remove(&pair),
            EventKind::GroupFailed { failed, of, .. } => {
                let listed = seen.listed;
                let down = listed
                    .iter()
                    .all(|id| self.down.contains(&(seen.observer, *id)));
                let enough = failed >= 2 && 2 * failed >= of && listed.len() == failed as usize;
                return (!down || !enough).then(|| "a group whose list is wrong".to_owned());
            }
            _ => {}
        }
        None
    }

    fn forget(&mut self, observer: usize) {
        self.down.retain(|(by, _)| *by != observer);
    }
}

/// With the policy "hold", the smaller side of a split condemns nobody of the larger one. The
/// sides are those of the observer's view; of two equal ones that with the first member is larger.
#[derive(Debug, Default)]
pub(super) struct Hold {
    up: BTreeSet<Pair>,
}

impl Check for Hold {
    fn name(&self) -> &'static str {
        "hold"
    }

    fn see(&mut self, seen: &Seen<'_>) -> Option<String> {
        let pair = (seen.observer, seen.event.member);
        match seen.event.kind {
            EventKind::NodeUp => _ = self.up.insert(pair),
            EventKind::NodeLeft { .. } => _ = self.up.remove(&pair),
            EventKind::NodeFailed => {
                let outvoted = seen.side.is_some_and(|side| self.is_outvoted(seen, side));
                self.up.remove(&pair);
                let silent = matches!(
                    seen.event.cause.kind,
                    CauseKind::Silence | CauseKind::Unreachable | CauseKind::Unanswered
                );
                return (outvoted && silent && seen.runs)
                    .then(|| "declared failed by the smaller side, and alive".to_owned());
            }
            _ => {}
        }
        None
    }

    fn forget(&mut self, observer: usize) {
        self.up.retain(|(by, _)| *by != observer);
    }
}

impl Hold {
    /// Whether the member is on the other side, and that one is the larger.
    fn is_outvoted(&self, seen: &Seen<'_>, side: &[MemberId]) -> bool {
        let view = self
            .up
            .range((seen.observer, MemberId(0))..(seen.observer + 1, MemberId(0)));
        let view = view.map(|(_, id)| *id).chain([seen.own]);
        let (ours, theirs): (Vec<_>, Vec<_>) = view.partition(|id| side.contains(id));
        let weight =
            |side: &[MemberId]| (side.len(), std::cmp::Reverse(side.iter().min().copied()));
        theirs.contains(&seen.event.member) && weight(&ours) < weight(&theirs)
    }
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

/// What an observer tells of a node's attributes only gets newer: a node's writes are told in the
/// order of writing, and what was deleted does not come back. Keys that are gone, nobody knows since
/// when, are told with the version of the map that lacks them, each once.
#[derive(Debug, Default)]
pub(super) struct AttributeOrder {
    told: BTreeMap<Pair, ((u64, u64), KeyHandle)>,
}

impl Check for AttributeOrder {
    fn name(&self) -> &'static str {
        "attribute-order"
    }

    fn see(&mut self, seen: &Seen<'_>) -> Option<String> {
        let pair = (seen.observer, seen.event.member);
        if seen.event.kind == EventKind::NodeUp {
            // What it holds is told anew to who had dropped it.
            self.told.remove(&pair);
        }
        let EventKind::AttributeChanged { key, version } = seen.event.kind else {
            return None;
        };
        let newer = (seen.event.version.incarnation, version);
        let (before, last) = self.told.insert(pair, (newer, key))?;
        let is_back = newer < before || (newer == before && key == last);
        is_back.then(|| format!("attributes went back from {before:?}"))
    }

    fn forget(&mut self, observer: usize) {
        self.told.retain(|(by, _), _| *by != observer);
    }

    fn hand_over(&mut self, observer: usize) {
        // A worker leaves its own node's attributes only; those of others come anew.
        self.forget(observer);
    }

    fn start_over(&mut self, observer: usize) {
        self.forget(observer);
    }
}

/// How new a fact of a rank is: life, number in it, and what orders ends of former lives.
type RankNews = (u64, u32, Option<(RankState, RankDetail)>);

/// What an observer tells of a rank only gets newer.
#[derive(Debug, Default)]
pub(super) struct RankOrder {
    told: BTreeMap<(usize, MemberId, u32), RankNews>,
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

#[cfg(test)]
mod tests {
    use super::*;
    use muster_protocol::{Cause, Event, Instant, Reporters};

    /// The sweep's worlds hardly ever show it these two, so they are shown to it here.
    #[test]
    fn accuracy_sees_goodbyes_of_the_living_and_arrivals_of_the_dead() {
        let sees = |kind, runs, long_gone| {
            let cause = Cause {
                kind: CauseKind::Announced,
                reporters: Reporters::default(),
                silent_us: 0,
            };
            let event = Event {
                at: Instant(1),
                kind,
                member: MemberId(1),
                version: Version::first(1),
                cause,
            };
            let seen = Seen {
                observer: 0,
                event: &event,
                blameless: false,
                runs,
                long_gone,
                own: MemberId(2),
                side: None,
                listed: &[],
            };
            Accuracy.see(&seen).is_some()
        };
        let left = EventKind::NodeLeft { exit_code: 0 };
        assert!(sees(left, true, false) && !sees(left, false, false));
        assert!(sees(EventKind::NodeUp, false, true) && !sees(EventKind::NodeUp, true, false));
        assert!(!sees(EventKind::NodeFailed, true, false), "excused");
    }
}
