//! The checkers that examine every event.

use std::collections::{BTreeMap, BTreeSet};

use muster_protocol::{CauseKind, EventKind, KeyHandle, MemberId, RankDetail, RankState, Version};

use super::{Check, Seen};

type Pair = (usize, MemberId);

fn is_down(kind: EventKind) -> bool {
    matches!(kind, EventKind::NodeFailed | EventKind::NodeLeft { .. })
}

/// Reports of up and down alternate for each observer and member; suspicions occur only while a member is up.
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
            // A member reports that it leaves without having reported before that it is up.
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
            | EventKind::Refused(_)
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

/// A member that was gone in a version does not come back with that version or an older one.
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
        stale.then(|| "up again with an old version".to_owned())
    }

    fn forget(&mut self, observer: usize) {
        self.gone.retain(|(by, _), _| *by != observer);
    }

    fn start_over(&mut self, observer: usize) {
        self.forget(observer);
    }
}

/// A running member is not declared failed unless a fault excuses it. A running member is not reported as
/// left. A member that crashed long ago is not reported as up.
#[derive(Debug, Default)]
pub(super) struct Accuracy;

impl Check for Accuracy {
    fn name(&self) -> &'static str {
        "accuracy"
    }

    fn see(&mut self, seen: &Seen<'_>) -> Option<String> {
        let left = matches!(seen.event.kind, EventKind::NodeLeft { .. });
        let what = match () {
            () if seen.blameless => "declared failed although it runs",
            () if left && seen.runs => "reported as left although it runs",
            () if seen.long_gone => "reported as up although it crashed long ago",
            () => return None,
        };
        Some(what.to_owned())
    }

    fn forget(&mut self, _observer: usize) {}
}

/// A failed group is reported with a list of members that the observer has reported as failed.
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
                return (!down || !enough)
                    .then(|| "a failed group with a wrong list of members".to_owned());
            }
            _ => {}
        }
        None
    }

    fn forget(&mut self, observer: usize) {
        self.down.retain(|(by, _)| *by != observer);
    }
}

/// With the policy `hold`, the smaller side of a split declares no member of the larger side failed. The
/// sides are those of the observer's view. Of two equal sides, the one that contains the first member is
/// larger.
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
                    .then(|| "declared failed by the smaller side although it runs".to_owned());
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
    /// Whether the member is on the opposite side and that side is the larger one.
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

/// The versions that an observer reports of a member only grow.
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

/// The attribute changes that an observer reports of a node only get newer: the node's writes are reported in
/// the order of writing, and a deleted key does not come back. Keys that were deleted at an unknown time are
/// reported with the version of the map that lacks them, each once.
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
            // An observer that had dropped the member is sent all its attributes again.
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
        // The next worker inherits only the attributes of its own node; those of other nodes arrive again.
        self.forget(observer);
    }

    fn start_over(&mut self, observer: usize) {
        self.forget(observer);
    }
}

/// How new a fact of a rank is: incarnation, sequence number in it, and the order of ends from earlier
/// incarnations.
type RankNews = (u64, u32, Option<(RankState, RankDetail)>);

/// The facts that an observer reports of a rank only get newer.
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
        // Ends inherited from earlier incarnations have no order in time, but an order that all members agree
        // on.
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

    /// The sweep's worlds hardly ever produce these two violations, so the test feeds them in.
    #[test]
    fn accuracy_finds_running_members_reported_as_left_and_crashed_ones_reported_as_up() {
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
