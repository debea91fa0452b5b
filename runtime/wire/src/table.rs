//! The table: the records of all known members, those in the view and those removed from it.
//!
//! One map holds both, ordered by id, so that a walk over it follows the ring, and a member is either in
//! the view or in the history. The history identifies late news about removed members as late. It is
//! bounded; the oldest removal is dropped first.
//!
//! The digest is a sum over the members in the view: equal views have equal digests, in whatever order they
//! were filled. The history is not part of it, because members drop entries at different times.
//!
//! The table decides nothing. `verdict` decides which news wins.

use muster_sorted::{SortedMap, SortedSet};

use crate::cause::CauseKind;
use crate::evidence::Evidence;
use crate::identity::{MemberId, Version};
use crate::member_info::MemberInfo;
use crate::mix::mix;
use crate::planted::{self, Fault};
use crate::ranks::Ranks;
use crate::reporters::Reported;
use crate::state::{NodeState, RankFact};
use crate::time::Instant;
use crate::work::visited;

/// Most rank facts of one node.
pub const RANKS_MAX: usize = 4096;

/// One member's record.
#[derive(Clone, Debug)]
pub struct Member {
    /// Its place on the ring.
    pub id: MemberId,
    /// Its name, group and address.
    pub info: MemberInfo,
    /// Its version.
    pub version: Version,
    /// `Alive`, `Suspect`, `Failed` or `Left`; `degraded` is separate because it is not sent.
    pub state: NodeState,
    /// Whether one of its rails is silent while another works.
    pub degraded: bool,
    /// Its exit code if it left; 0 otherwise.
    pub exit_code: i32,
    /// The evidence that decided its state.
    pub cause: CauseKind,
    /// How long it had been silent then, in microseconds.
    pub silent_us: u32,
    /// When it entered the view, with this incarnation or version.
    pub joined_at: Instant,
    /// When it was removed from the view.
    pub removed_at: Instant,
    /// The reporters of this version; a new version starts without any.
    pub reporters: Reported,
    /// Its ranks.
    pub ranks: Ranks,
    /// The last observations about it.
    pub evidence: Evidence,
    /// Time of the last authentic frame of this incarnation.
    pub last_heard: Instant,
    /// Time of the last indirect sign of life (a prober's reply, its own refutation).
    pub vouched_at: Instant,
    /// The lateness that it advertises, in milliseconds.
    pub late_ms: u16,
    /// Sequence of its last link request: a reordered older one is ignored.
    pub asked_sequence: u64,
    /// When a sender with its id was last answered with its record; zero if never.
    pub answered_at: Instant,
    /// Newest known version of its attributes.
    pub attributes: u64,
    digest: u64,
}

impl Member {
    /// The record of a member that has entered the view now.
    pub fn new(id: MemberId, info: MemberInfo, version: Version) -> Self {
        Self {
            id,
            info,
            version,
            state: NodeState::Alive,
            degraded: false,
            exit_code: 0,
            cause: CauseKind::Joined,
            silent_us: 0,
            joined_at: Instant::default(),
            removed_at: Instant::default(),
            reporters: Reported::default(),
            ranks: Ranks::default(),
            evidence: Evidence::default(),
            last_heard: Instant::default(),
            vouched_at: Instant::default(),
            late_ms: 0,
            asked_sequence: 0,
            answered_at: Instant::default(),
            attributes: 0,
            digest: 0,
        }
    }

    /// Whether it is in the view.
    pub fn in_view(&self) -> bool {
        self.state.in_view()
    }

    /// Its name.
    pub fn name(&self) -> &str {
        self.info.name()
    }

    /// The name of its group, whose members may fail together; empty if it has none.
    pub fn group(&self) -> &str {
        self.info.group()
    }

    /// Its address.
    pub fn address(&self) -> &[u8] {
        self.info.address()
    }

    /// Whether it has more facts than its record: ranks or attributes.
    fn has_more(&self) -> bool {
        self.in_view() && (self.attributes > 0 || !self.ranks.is_empty())
    }

    /// Takes another version. A new incarnation drops the state of the old one, except for the ends of its
    /// ranks: a rank belongs to the job, and stays ended until a later incarnation states otherwise.
    pub fn enter(&mut self, version: Version) {
        if version.incarnation != self.version.incarnation {
            if !self.ranks.is_empty() {
                let is_kept =
                    |fact: &RankFact| fact.state.is_end() && !planted::on(Fault::EndsForgotten);
                self.ranks.retain(|_, fact| is_kept(fact));
                self.ranks.values_mut().for_each(|fact| fact.sequence = 0);
            }
            self.last_heard = Instant::default();
            self.late_ms = 0;
            self.asked_sequence = 0;
            self.degraded = false;
        }
        self.version = version;
    }

    /// Its part of the table's digest.
    pub fn digest(&self) -> u64 {
        self.digest
    }

    /// The lateness that it advertises, in microseconds.
    pub fn late_us(&self) -> u64 {
        u64::from(self.late_ms) * 1000
    }

    /// Time of the last sign of life, direct or indirect.
    pub fn alive_at(&self) -> Instant {
        self.last_heard.max(self.vouched_at)
    }

    fn compute_digest(&self) -> u64 {
        if !self.in_view() {
            return 0;
        }
        let mut digest = mix(self.id.0 ^ mix(self.version.incarnation));
        digest = mix(digest ^ u64::from(self.version.minor) ^ (u64::from(self.state as u8) << 40));
        if self.attributes > 0 {
            digest = mix(digest ^ mix(self.attributes));
        }
        let ranks = self.ranks.values().map(|fact| {
            let known = mix(digest ^ (u64::from(fact.rank) << 32) ^ u64::from(fact.sequence));
            if fact.sequence > 0 {
                return known;
            }
            // Several different ends are possible only of previous incarnations.
            let detail = u16::from_be_bytes([fact.detail.code, fact.detail.argument]);
            mix(known ^ (u64::from(fact.state as u8) << 16) ^ u64::from(detail))
        });
        ranks.fold(digest, u64::wrapping_add)
    }
}

/// All records, and counts over them.
#[derive(Clone, Debug, Default)]
pub struct Table {
    members: SortedMap<MemberId, Box<Member>>,
    /// Members in the view that have ranks or attributes.
    with_more: SortedSet<MemberId>,
    /// The removed members, by the time of their removal.
    removed: SortedSet<(Instant, MemberId)>,
    /// How many members of each group are in the view.
    groups: SortedMap<Box<str>, usize>,
    live: usize,
    suspects: usize,
    digest: u64,
    changes: u64,
}

impl Table {
    /// The record of a member.
    pub fn get(&self, id: MemberId) -> Option<&Member> {
        self.members.get(&id).map(|member| &**member)
    }

    /// The same, if the member is in the view.
    pub fn in_view(&self, id: MemberId) -> Option<&Member> {
        self.get(id).filter(|member| member.in_view())
    }

    /// All records, in the order of ids.
    pub fn iter(&self) -> impl Iterator<Item = &Member> {
        self.members.values().map(|member| looked_at(member))
    }

    /// All ids, in order.
    pub fn ids(&self) -> impl Iterator<Item = MemberId> {
        self.members.keys().copied()
    }

    /// Members in the view that have ranks or attributes.
    pub fn iter_with_more(&self) -> impl Iterator<Item = &Member> {
        self.with_more.iter().filter_map(|id| self.get(*id))
    }

    /// The rest of a walk once around the ring that began at `start`, from `id` on: for walks that stop and
    /// continue.
    pub fn iter_ring(&self, start: MemberId, id: MemberId) -> impl Iterator<Item = &Member> {
        let is_around = id < start;
        let to_the_end = self.members.range(id..).take_while(move |_| !is_around);
        let begin = if is_around { id } else { MemberId(0) };
        to_the_end
            .chain(self.members.range(begin..start))
            .map(|(_, member)| looked_at(member))
    }

    /// The members in the view, in the order of ids.
    pub fn iter_live(&self) -> impl Iterator<Item = &Member> {
        self.iter().filter(|member| member.in_view())
    }

    /// The removed members, in order of their ids.
    pub fn iter_removed(&self) -> impl Iterator<Item = &Member> {
        let mut ids: Vec<MemberId> = self.removed.iter().map(|(_, id)| *id).collect();
        ids.sort_unstable();
        ids.into_iter().filter_map(|id| self.get(id)).map(looked_at)
    }

    /// The members in the view after `id` on the ring, once around, without `id` itself.
    pub fn successors(&self, id: MemberId) -> impl Iterator<Item = &Member> {
        let after = (core::ops::Bound::Excluded(id), core::ops::Bound::Unbounded);
        self.members
            .range(after)
            .chain(self.members.range(..id))
            .map(|(_, member)| looked_at(member))
            .filter(|member| member.in_view())
    }

    /// The members in the view before `id` on the ring, nearest first.
    pub fn predecessors(&self, id: MemberId) -> impl Iterator<Item = &Member> {
        let after = (core::ops::Bound::Excluded(id), core::ops::Bound::Unbounded);
        self.members
            .range(..id)
            .rev()
            .chain(self.members.range(after).rev())
            .map(|(_, member)| looked_at(member))
            .filter(|member| member.in_view())
    }

    /// Number of members of this group in the view.
    pub fn live_in(&self, group: &str) -> usize {
        self.groups.get(group).copied().unwrap_or_default()
    }

    /// Number of members in the view.
    pub fn live(&self) -> usize {
        self.live
    }

    /// Makes all suspects alive, and returns them.
    pub fn drop_suspicions(&mut self) -> Vec<MemberId> {
        let suspects = self.iter_live().filter(|m| m.state == NodeState::Suspect);
        let suspects: Vec<MemberId> = suspects.map(|member| member.id).collect();
        for id in &suspects {
            self.change(*id, |member| {
                member.state = NodeState::Alive;
                member.reporters = Reported::default();
            });
        }
        suspects
    }

    /// Number of suspects.
    pub fn suspects(&self) -> usize {
        self.suspects
    }

    /// Number of removed members.
    pub fn removed(&self) -> usize {
        self.removed.len()
    }

    /// A number that every change of a record raises.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// The digest of the view.
    pub fn digest(&self) -> u64 {
        self.digest
    }

    /// Adds a record, in the place of an earlier one of that member.
    pub fn insert(&mut self, member: Member) {
        let id = member.id;
        self.remove(id);
        self.members.insert(id, Box::new(member));
        self.count(id, true);
    }

    /// Drops a record.
    pub fn remove(&mut self, id: MemberId) {
        if self.members.contains_key(&id) {
            self.count(id, false);
            self.members.remove(&id);
            self.with_more.remove(&id);
        }
    }

    /// Changes a record, with the digest and the counts. All changes of what these cover go through here.
    pub fn change(&mut self, id: MemberId, change: impl FnOnce(&mut Member)) {
        if self.members.contains_key(&id) {
            self.count(id, false);
            if let Some(member) = self.members.get_mut(&id) {
                change(member);
            }
            self.count(id, true);
        }
    }

    /// Changes fields that no count covers: times but that of the removal, evidence, the degraded mark.
    pub fn note(&mut self, id: MemberId, note: impl FnOnce(&mut Member)) {
        if let Some(member) = self.members.get_mut(&id) {
            note(member);
        }
    }

    /// The same for every member.
    pub fn note_all(&mut self, mut note: impl FnMut(&mut Member)) {
        self.members.values_mut().for_each(|member| {
            visited();
            note(member);
        });
    }

    /// Drops the member that was removed longest ago.
    pub fn forget_oldest_removed(&mut self) {
        if let Some((_, id)) = self.removed.first().copied() {
            self.remove(id);
        }
    }

    fn count(&mut self, id: MemberId, add: bool) {
        let Some(member) = self.members.get_mut(&id) else {
            return;
        };
        self.changes += 1;
        if add {
            member.digest = member.compute_digest();
            self.digest = self.digest.wrapping_add(member.digest);
            self.live += usize::from(member.in_view());
            self.suspects += usize::from(member.state == NodeState::Suspect);
            if member.has_more() {
                self.with_more.insert(id);
            } else {
                self.with_more.remove(&id);
            }
            if !member.in_view() {
                self.removed.insert((member.removed_at, id));
            } else if !member.group().is_empty() {
                match self.groups.get_mut(member.group()) {
                    Some(live) => *live += 1,
                    None => _ = self.groups.insert(member.group().into(), 1),
                }
            }
        } else {
            self.digest = self.digest.wrapping_sub(member.digest);
            self.live -= usize::from(member.in_view());
            self.suspects -= usize::from(member.state == NodeState::Suspect);
            if !member.in_view() {
                self.removed.remove(&(member.removed_at, id));
            } else if let Some(live) = self.groups.get_mut(member.group()) {
                *live -= 1;
                if *live == 0 {
                    self.groups.remove(member.group());
                }
            }
        }
    }
}

/// A member that a walk looks at.
fn looked_at(member: &Member) -> &Member {
    visited();
    member
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(id: u64) -> Member {
        Member::new(
            MemberId(id),
            MemberInfo::new("n", "", b"a"),
            Version::first(1),
        )
    }

    /// ZM-02: equal views have equal digests, whatever the order; the history does not count.
    #[test]
    fn the_digest_knows_the_view_and_not_its_order() {
        let (mut left, mut right) = (Table::default(), Table::default());
        for id in 0..20 {
            left.insert(member(id));
            right.insert(member(19 - id));
        }
        assert_eq!(left.digest(), right.digest());
        left.change(MemberId(3), |member| member.state = NodeState::Suspect);
        assert_ne!(left.digest(), right.digest());
        left.change(MemberId(3), |member| member.state = NodeState::Failed);
        right.remove(MemberId(3));
        assert_eq!(left.digest(), right.digest());
        assert_eq!((left.live(), left.removed(), left.suspects()), (19, 1, 0));
    }

    /// The members of a group in the view are counted whatever changes, and the history is in order of time.
    #[test]
    fn groups_and_removals_are_counted() {
        let mut table = Table::default();
        let of_group = |id, group| {
            let info = MemberInfo::new("n", group, b"a");
            Member::new(MemberId(id), info, Version::first(1))
        };
        for id in 0..6 {
            table.insert(of_group(id, if id < 4 { "left" } else { "" }));
        }
        table.insert(member(3));
        let counts = |table: &Table| ["left", "right", ""].map(|group| table.live_in(group));
        assert_eq!(counts(&table), [3, 0, 0]);
        let info = of_group(2, "right").info;
        table.change(MemberId(2), |member| member.info = info);
        for (id, at) in [(0, 30), (4, 20), (1, 20)] {
            table.change(MemberId(id), |member| {
                member.state = NodeState::Failed;
                member.removed_at = Instant(at);
            });
        }
        assert_eq!((counts(&table), table.removed()), ([0, 1, 0], 3));
        table.change(MemberId(1), |member| member.state = NodeState::Alive);
        table.forget_oldest_removed();
        let gone: Vec<u64> = table.iter_removed().map(|member| member.id.0).collect();
        assert_eq!((counts(&table), gone), ([1, 1, 0], vec![0]));
        table.remove(MemberId(1));
        table.remove(MemberId(0));
        assert_eq!((counts(&table), table.removed()), ([0, 1, 0], 0));
    }

    /// ZM-05: each member stores one of these for every other member: check its size before it grows.
    #[test]
    fn a_record_is_small() {
        assert_eq!(size_of::<Member>(), 184);
    }

    /// ZM-05: a walk over the ring visits each member once and skips removed ones.
    #[test]
    fn the_ring_goes_around_once() {
        let mut table = Table::default();
        for id in [1, 4, 6, 9] {
            table.insert(member(id));
        }
        table.change(MemberId(9), |member| member.state = NodeState::Left);
        let after: Vec<u64> = table
            .successors(MemberId(4))
            .map(|member| member.id.0)
            .collect();
        assert_eq!(after, [6, 1]);
        let before: Vec<u64> = table
            .predecessors(MemberId(4))
            .map(|member| member.id.0)
            .collect();
        assert_eq!(before, [1, 6]);
        let left = |id| {
            let left = table.iter_ring(MemberId(5), MemberId(id));
            left.map(|member| member.id.0).collect::<Vec<_>>()
        };
        assert_eq!(left(5), [6, 9, 1, 4]);
        assert_eq!(left(9), [9, 1, 4]);
        assert_eq!(left(4), [4]);
    }
}
