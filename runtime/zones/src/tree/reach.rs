//! `Reach` is how many nodes of each base zone the local node has seen alive, now and in the recent past.
//!
//! After a split a side is as strong as the part of the nodes from before that it still has. Nodes that join it
//! meanwhile, from the other side of an earlier split for instance, do not make it stronger.

use muster_protocol::Instant;

use crate::runs::Runs;

/// Most changes that are remembered.
const CHANGES_MAX: usize = 64;
/// A part stays for long if it does for so many times the time for which a fall has to last.
const LONG_HOLDS: u64 = 5;
/// The sides find each other within so many times that time.
const MEET_HOLDS: u64 = 2;
/// When sides meet, views lack nodes for a moment: a fall lasts for at least this part of that time.
const MERGE_PART: u64 = 40;

/// The numbers of nodes.
#[derive(Clone, Debug, Default)]
pub(super) struct Reach {
    /// The nodes of each base zone that are alive now, by the zone's number.
    nodes: Runs<u32>,
    /// Oldest first.
    changes: Vec<Change>,
    /// The deepest fall before the local node started, as others have told, and when they told it.
    told: Option<(Instant, u32, u32)>,
}

#[derive(Clone, Debug)]
struct Change {
    at: Instant,
    /// The nodes of all zones from then on.
    total: u32,
    /// It is no moment in which supervisors are replaced: a fall counts however short it is.
    is_sure: bool,
    /// By how many nodes base zones have changed, by the zone's number. Empty for the oldest change.
    zones: Runs<i64>,
}

/// The part of the nodes of a time before that is alive.
struct Remainder {
    at: Instant,
    is_sure: bool,
    least: u32,
    most: u32,
}

impl Reach {
    /// Takes the nodes of each base zone that are alive from `now` on. If that `is_sure`, a fall to so many counts even
    /// if it does not last.
    pub(super) fn set(&mut self, now: Instant, nodes: Runs<u32>, is_sure: bool) {
        let count = |nodes: Option<u32>| i64::from(nodes.unwrap_or_default());
        let mut zones = nodes.merge(&self.nodes, |new, old| {
            let by = count(new) - count(old);
            (by != 0).then_some(by)
        });
        if zones.is_empty() {
            if let Some(last) = self.changes.last_mut() {
                last.is_sure |= is_sure;
            }
            return;
        }
        if self.changes.len() == CHANGES_MAX {
            self.changes.remove(0);
            self.changes[0].zones = Runs::default();
        }
        if self.changes.is_empty() {
            zones = Runs::default();
        }
        let total = nodes.total();
        zones.shrink_to_fit();
        self.nodes = nodes;
        self.changes.push(Change {
            at: now,
            is_sure,
            total,
            zones,
        });
    }

    /// The nodes that were alive at a time.
    pub(super) fn total_at(&self, at: Instant) -> u32 {
        let until = self.changes.partition_point(|change| change.at <= at);
        let last = self.changes[..until].last().or(self.changes.first());
        last.map_or(0, |change| change.total)
    }

    /// Whether no node of a zone was alive for at least `hold_us`, and some were before and are since, after a time.
    pub(super) fn was_gone(&self, zone: u32, since: Instant, hold_us: u64) -> bool {
        let mut nodes = self.nodes.get(zone).map_or(0, i64::from);
        let mut back_at = None;
        for change in self.changes.iter().rev() {
            if let Some(by) = change.zones.get(zone) {
                let before = nodes - by;
                if nodes == 0 && back_at.is_some_and(|at| change.at.after(hold_us) <= at) {
                    return true;
                }
                back_at = (before == 0 && change.at >= since).then_some(change.at);
                nodes = before;
            }
        }
        false
    }

    /// The local node was stopped for so long: what it saw before is as recent as if it had not been.
    pub(super) fn overslept(&mut self, gap_us: u64) {
        for change in &mut self.changes {
            change.at = change.at.after(gap_us);
        }
    }

    /// Takes a fall that others have seen before the local node started.
    pub(super) fn note_fall(&mut self, now: Instant, (least, most): (u32, u32)) {
        let held = self.told.map_or((0, 0), |(_, least, most)| (least, most));
        if is_deeper((least, most), held) {
            self.told = Some((now, least, most));
        }
    }

    /// The deepest fall since a time that lasted for `hold_us`, as far as it is remembered: to how many nodes, and from
    /// how many. Growth, as when a job starts, is none. Of a shorter fall, only the part that lasted counts: while a
    /// supervisor is replaced, its zone is absent for a moment.
    ///
    /// A shorter fall counts where it is sure, began before the sides met, and lasted until then: until a time of
    /// `met`, or shortly before. If the side found nodes again while it was still cut off, it had not lost them. Views
    /// that merge may lack nodes for a moment.
    ///
    /// A part that stays for long is the whole that a later fall is a part of, too.
    ///
    /// A fall that began after the first time of `lasting` counts only if it lasted until the second one.
    pub(super) fn fall(
        &self,
        since: Instant,
        now: Instant,
        hold_us: u64,
        met: &[Instant],
        lasting: (Instant, Instant),
    ) -> (u32, u32) {
        let told = self.told.filter(|(at, ..)| *at >= since);
        let told = told.map_or((0, 0), |(_, least, most)| (least, most));
        let first = self.changes.partition_point(|change| change.at <= since);
        let changes = &self.changes[first.saturating_sub(1)..];
        let lasts = |place: &usize| {
            let until = changes.get(place + 1).map_or(now, |next| next.at);
            *place == 0 || until >= changes[*place].at.after(LONG_HOLDS * hold_us)
        };
        let starts = (0..changes.len()).filter(lasts);
        let is_sure = |begin: Instant, end: Instant| {
            let ends_with = |met: &Instant| {
                let until = Instant(met.0.saturating_sub(MEET_HOLDS * hold_us));
                begin <= *met && end >= until
            };
            end >= begin.after(hold_us / MERGE_PART) && met.iter().any(ends_with)
        };
        let counts = |begin: Instant, end: Instant| begin <= lasting.0 || end >= lasting.1;
        let falls = starts.map(|start| fall_of(&changes[start..], now, hold_us, counts, is_sure));
        falls.fold(told, |deepest, fall| match is_deeper(deepest, fall) {
            true => deepest,
            false => fall,
        })
    }
}

/// The deepest fall in some changes that counts by its begin and end, and lasted, or was sure and began and ended when
/// a short one may.
fn fall_of(
    changes: &[Change],
    now: Instant,
    hold_us: u64,
    counts: impl Fn(Instant, Instant) -> bool,
    may_be_short: impl Fn(Instant, Instant) -> bool,
) -> (u32, u32) {
    let remainders = remainders(changes);
    let mut deepest = (0, 0);
    for (place, remainder) in remainders.iter().enumerate() {
        let mut later = remainders[place..].iter();
        let risen = later.find(|one| one.least > remainder.least || one.most != remainder.most);
        // Until the sides meet it may still rise again.
        let risen_at = risen.map_or(now, |one| one.at);
        if !counts(remainder.at, risen_at) {
            continue;
        }
        // Nodes that are found again while others are still lost had not been lost.
        let is_found = risen.is_some_and(|risen| {
            let until = changes.partition_point(|change| change.at <= risen.at);
            risen.least < risen.most && is_as_before(&changes[..until], place, hold_us)
        });
        let is_sure = remainder.is_sure && !is_found && may_be_short(remainder.at, risen_at);
        let end = match is_sure {
            true => remainder.at,
            false => remainder.at.after(hold_us),
        };
        if end > now {
            continue;
        }
        let within = remainders[place..].iter().take_while(|one| one.at < end);
        let first = (remainder.least, remainder.most);
        let held = within.fold(first, |held, one| {
            match is_deeper(held, (one.least, one.most)) {
                true => (one.least, one.most),
                false => held,
            }
        });
        if !is_deeper(deepest, held) {
            deepest = held;
        }
    }
    deepest
}

/// Whether the same nodes are alive after these changes as for `hold_us` before the one at `place`, or an earlier one.
fn is_as_before(changes: &[Change], place: usize, hold_us: u64) -> bool {
    let mut by_zone = Runs::default();
    for (at, pair) in changes.windows(2).enumerate().rev() {
        by_zone = sum(&by_zone, &pair[1].zones);
        let has_lasted = at < place && pair[1].at >= pair[0].at.after(hold_us);
        if has_lasted && by_zone.is_empty() {
            return true;
        }
    }
    false
}

/// What was left after each change. The nodes that it is a part of are those of the first, until more are alive, with
/// most of those before among them.
fn remainders(changes: &[Change]) -> Vec<Remainder> {
    let mut most = changes.first().map_or(0, |first| first.total);
    // Nodes of each zone since then, where they have changed.
    let mut by_zone = Runs::default();
    let mut lost: i64 = 0;
    let remainder = |(place, change): (usize, &Change)| {
        if place > 0 {
            by_zone = sum(&by_zone, &change.zones);
            let runs = by_zone.runs();
            lost = runs
                .map(|run| i64::from(run.count) * (-run.value).max(0))
                .sum();
        }
        let left = u32::try_from(i64::from(most) - lost).unwrap_or_default();
        let is_larger = change.total > most && 2 * left > most;
        if is_larger {
            by_zone = Runs::default();
            (lost, most) = (0, change.total);
        }
        Remainder {
            at: change.at,
            is_sure: change.is_sure,
            least: if is_larger { most } else { left },
            most,
        }
    };
    changes.iter().enumerate().map(remainder).collect()
}

/// By how many nodes zones have changed after both changes.
fn sum(one: &Runs<i64>, other: &Runs<i64>) -> Runs<i64> {
    one.merge(other, |one, other| {
        let by = one.unwrap_or_default() + other.unwrap_or_default();
        (by != 0).then_some(by)
    })
}

/// Whether the first of two falls, to how many nodes and from how many, is to a smaller part. From 0 nodes: no fall.
pub(super) fn is_deeper(one: (u32, u32), other: (u32, u32)) -> bool {
    let part = |(least, most): (u32, u32)| match most {
        0 => (1, 1),
        _ => (u64::from(least), u64::from(most)),
    };
    let ((least, most), (other_least, other_most)) = (part(one), part(other));
    least * other_most < other_least * most
}

/// The deepest of several falls; (0, 0) if there are none.
pub(super) fn deepest(falls: impl Iterator<Item = (u32, u32)>) -> (u32, u32) {
    let deeper = |one, other| if is_deeper(other, one) { other } else { one };
    falls.reduce(deeper).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The nodes of the zones from number 0 on.
    fn of(nodes: &[u32]) -> Runs<u32> {
        (0..).zip(nodes.iter().copied()).collect()
    }

    /// The fall since a time, as the sides meet at these times.
    fn fall_since(reach: &Reach, since: u64, now: u64, hold_us: u64, met: &[u64]) -> (u32, u32) {
        let met: Vec<Instant> = met.iter().copied().map(Instant).collect();
        let now = Instant(now);
        reach.fall(Instant(since), now, hold_us, &met, (now, now))
    }

    /// ZM-12: the strength of a side.
    #[test]
    fn the_deepest_fall_since_a_time() {
        let mut reach = Reach::default();
        assert_eq!(fall_since(&reach, 0, 90, 0, &[90]), (0, 0));
        let changes = [
            (5, 8),
            (10, 100),
            (20, 70),
            (30, 40),
            (40, 110),
            (50, 109),
            (60, 111),
        ];
        for (at, nodes) in changes {
            reach.set(Instant(at), of(&[nodes]), false);
        }
        let fall =
            [0, 9, 15, 25, 35, 45, 59, 60, 90].map(|at| fall_since(&reach, at, 90, 0, &[90]));
        let (cut, end) = ((40, 100), (111, 111));
        assert_eq!(
            fall,
            [
                cut,
                cut,
                cut,
                (40, 70),
                (109, 110),
                (109, 110),
                (111, 111),
                end,
                end
            ]
        );
    }

    /// ZM-12: the strength of a side.
    #[test]
    fn a_fall_counts_if_it_lasts() {
        let mut reach = Reach::default();
        for (at, nodes) in [(10, 100), (50, 20), (53, 60), (58, 30), (70, 100)] {
            reach.set(Instant(at), of(&[nodes]), false);
        }
        let fall = |now, hold_us| fall_since(&reach, 0, now, hold_us, &[now]);
        assert_eq!(fall(90, 3), (20, 100));
        assert_eq!(fall(90, 4), (30, 100));
        assert_eq!(fall(90, 12), (30, 100));
        assert_eq!(fall(90, 15), (60, 100));
        // It is not known yet whether it lasts.
        assert_eq!(fall(60, 12), (100, 100));
    }

    /// ZM-12: a zone was lost at 10, and others to another split from 50 to 60.
    #[test]
    fn a_fall_that_began_later_counts_if_it_lasts() {
        let mut reach = Reach::default();
        for (at, nodes) in [(0, 100), (10, 90), (50, 20), (60, 90)] {
            reach.set(Instant(at), of(&[nodes]), false);
        }
        let fall = |verdict_at, until| {
            let lasting = (Instant(verdict_at), Instant(until));
            reach.fall(Instant(0), Instant(90), 5, &[Instant(90)], lasting)
        };
        assert_eq!(fall(20, 61), (90, 100));
        assert_eq!(fall(20, 60), (20, 100), "it lasted until then");
        assert_eq!(fall(50, 61), (20, 100), "it had begun");
    }

    /// ZM-12: the strength of a side whose members in a zone above have lost most of the others.
    #[test]
    fn a_short_fall_counts_if_it_is_sure_and_lasts_until_the_sides_meet() {
        let fall = |is_sure, met| {
            let mut reach = Reach::default();
            for (at, nodes) in [(10, 100), (50, 20), (53, 100)] {
                reach.set(Instant(at), of(&[nodes]), is_sure && at == 50);
            }
            fall_since(&reach, 0, 90, 12, &[met])
        };
        let cases = [(true, 60), (false, 60), (true, 80), (true, 49)];
        let falls = cases.map(|(sure, met)| fall(sure, met));
        assert_eq!(falls, [(20, 100), (100, 100), (100, 100), (100, 100)]);
    }

    /// ZM-12: when sides meet, views that merge lack nodes for a moment, which are of the own side.
    #[test]
    fn a_short_fall_of_nodes_that_are_found_again_while_others_are_lost_does_not_count() {
        let fall = |after: [u32; 3], met: &[u64]| {
            let mut reach = Reach::default();
            for (at, nodes) in [
                (10, [6, 6, 6]),
                (20, [6, 6, 0]),
                (50, [6, 0, 0]),
                (53, after),
            ] {
                reach.set(Instant(at), of(&nodes), true);
            }
            fall_since(&reach, 0, 90, 12, met)
        };
        assert_eq!(fall([6, 6, 0], &[60]), (12, 18));
        assert_eq!(fall([6, 0, 6], &[60]), (6, 18), "others are found");
        assert_eq!(fall([6, 6, 6], &[60]), (6, 18), "all are found");
        // Of two splits, the sides of the first have met before.
        assert_eq!(fall([6, 6, 6], &[40]), (12, 18));
        assert_eq!(fall([6, 6, 6], &[40, 60]), (6, 18));
    }

    /// ZM-12: so they do all at once.
    #[test]
    fn a_fall_of_a_moment_does_not_count() {
        let fall = |until| {
            let mut reach = Reach::default();
            for (at, nodes) in [(0, 100), (5_000, 20), (until, 100)] {
                reach.set(Instant(at), of(&[nodes]), true);
            }
            fall_since(&reach, 0, 9_000, 4_000, &[6_000])
        };
        assert_eq!([fall(5_100), fall(5_099)], [(20, 100), (100, 100)]);
    }

    /// ZM-12: of the zones A to E, A, B and C lose the others to a split. Then A loses B and C, and joins D and E.
    #[test]
    fn nodes_of_the_other_side_do_not_make_a_side_stronger() {
        let mut reach = Reach::default();
        let states = [
            (10, [6, 6, 6, 6, 6]),
            (20, [6, 6, 6, 0, 0]),
            (50, [6, 0, 0, 0, 0]),
            (51, [6, 0, 0, 6, 6]),
        ];
        for (at, nodes) in states {
            reach.set(Instant(at), of(&nodes), false);
        }
        let fall = |reach: &Reach, since| fall_since(reach, since, 90, 5, &[90]);
        let falls = [0, 20, 51].map(|since| fall(&reach, since));
        assert_eq!(falls, [(6, 18), (6, 18), (18, 18)]);
        reach.set(Instant(60), of(&[6; 5]), false);
        assert_eq!(fall(&reach, 60), (30, 30));
    }

    #[test]
    fn a_zone_was_gone_if_it_was_there_before_and_is_there_again() {
        let mut reach = Reach::default();
        let states = [
            (10, [6, 0]),
            (20, [6, 5]),
            (30, [0, 5]),
            (40, [6, 5]),
            (50, [6, 0]),
        ];
        for (at, nodes) in states {
            reach.set(Instant(at), of(&nodes), false);
        }
        let was_gone = |zone, since, hold_us| reach.was_gone(zone, Instant(since), hold_us);
        assert!(was_gone(0, 0, 10) && was_gone(0, 40, 10));
        assert!(!was_gone(0, 41, 10), "before that time");
        assert!(!was_gone(0, 0, 11), "not for so long");
        assert!(!was_gone(1, 0, 0), "it has started, and is gone now");
        assert!(!was_gone(2, 0, 0));
    }

    #[test]
    fn the_oldest_changes_are_forgotten() {
        let mut reach = Reach::default();
        for at in (0..100).rev() {
            reach.set(Instant(100 - at), of(&[at as u32]), false);
        }
        assert_eq!(reach.changes.len(), CHANGES_MAX);
        assert_eq!(fall_since(&reach, 0, 200, 1, &[200]), (0, 63));
    }
}
