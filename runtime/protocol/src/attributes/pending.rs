//! Requests without a reply, by owner, by the member asked, and by deadline.
//!
//! A member that replies is working on all requests to it, and all of them get the same new deadline. So this
//! deadline is stored once for each member asked, and a reply costs the same for any number of requests.

use crate::identity::MemberId;
use crate::sorted::{SortedMap, SortedSet};
use crate::time::Instant;
use crate::timers::Timers;
use crate::work::visited;

/// A request without a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pending {
    /// The wanted version.
    pub(crate) version: u64,
    /// The member asked; `None` if all neighbours were.
    pub(crate) target: Option<MemberId>,
    pub(crate) due: Instant,
    pub(crate) tries: u32,
}

/// The requests to one member.
#[derive(Clone, Debug)]
struct Asked {
    /// Maps that were requested since its last reply: each request has its own deadline.
    later: SortedSet<MemberId>,
    /// Maps that were requested before. In `by_owner` their deadline is `NEVER`.
    earlier: SortedSet<MemberId>,
    /// The deadline of the earlier ones; never if there are none.
    due: Instant,
}

impl Asked {
    const NONE: Self = Self {
        later: SortedSet::new(),
        earlier: SortedSet::new(),
        due: Instant::NEVER,
    };

    fn owners(&self) -> impl Iterator<Item = MemberId> {
        self.later.iter().chain(self.earlier.iter()).copied()
    }
}

/// All requests without a reply, one for each map.
#[derive(Clone, Debug, Default)]
pub(crate) struct PendingRequests {
    by_owner: SortedMap<MemberId, Pending>,
    by_target: SortedMap<MemberId, Asked>,
    /// Deadlines by owner.
    own: Timers,
    /// Deadlines of earlier requests by the member asked.
    shared: Timers,
}

impl PendingRequests {
    pub(crate) fn get(&self, owner: MemberId) -> Option<Pending> {
        let mut pending = *self.by_owner.get(&owner)?;
        if pending.due == Instant::NEVER
            && let Some(asked) = pending.target.and_then(|id| self.by_target.get(&id))
        {
            pending.due = asked.due;
        }
        Some(pending)
    }

    /// Adds a request, or replaces the one for the same map.
    pub(crate) fn set(&mut self, owner: MemberId, pending: Pending) {
        self.remove(owner);
        visited();
        self.by_owner.insert(owner, pending);
        self.own.set(owner, Instant::NEVER, pending.due);
        if let Some(target) = pending.target {
            let asked = self.by_target.get_or_insert_with(target, || Asked::NONE);
            asked.later.insert(owner);
        }
    }

    pub(crate) fn remove(&mut self, owner: MemberId) {
        let Some(before) = self.by_owner.remove(&owner) else {
            return;
        };
        visited();
        self.own.set(owner, before.due, Instant::NEVER);
        let Some(target) = before.target else {
            return;
        };
        if let Some(asked) = self.by_target.get_mut(&target) {
            asked.later.remove(&owner);
            if asked.earlier.remove(&owner) && asked.earlier.is_empty() {
                self.shared.set(target, asked.due, Instant::NEVER);
                asked.due = Instant::NEVER;
            }
            if asked.owners().next().is_none() {
                self.by_target.remove(&target);
            }
        }
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    /// The member has sent something: `due` is the deadline of all requests to it, and none was repeated.
    pub(crate) fn heard(&mut self, target: MemberId, due: Instant) {
        let Some(asked) = self.by_target.get_mut(&target) else {
            return;
        };
        while let Some(owner) = asked.later.pop_first() {
            visited();
            if let Some(pending) = self.by_owner.get_mut(&owner) {
                self.own.set(owner, pending.due, Instant::NEVER);
                (pending.due, pending.tries) = (Instant::NEVER, 0);
            }
            asked.earlier.insert(owner);
        }
        self.shared.set(target, asked.due, due);
        asked.due = due;
    }

    /// The deadline of all requests to the member is `due`, or earlier.
    pub(crate) fn hurry(&mut self, target: MemberId, due: Instant) {
        let Some(asked) = self.by_target.get_mut(&target) else {
            return;
        };
        for owner in asked.later.iter() {
            visited();
            if let Some(pending) = self.by_owner.get_mut(owner) {
                let sooner = pending.due.min(due);
                self.own.set(*owner, pending.due, sooner);
                pending.due = sooner;
            }
        }
        if !asked.earlier.is_empty() {
            let sooner = asked.due.min(due);
            self.shared.set(target, asked.due, sooner);
            asked.due = sooner;
        }
    }

    /// The maps requested from one member.
    pub(crate) fn asked_of(&self, target: MemberId) -> impl Iterator<Item = MemberId> {
        let asked = self.by_target.get(&target);
        asked.into_iter().flat_map(Asked::owners)
    }

    /// The maps whose request is overdue or went to a member that `is_gone`, in order, with whether it is
    /// gone.
    pub(crate) fn late(
        &mut self,
        now: Instant,
        is_gone: impl Fn(MemberId) -> bool,
    ) -> SortedMap<MemberId, bool> {
        self.own.pass(now);
        self.shared.pass(now);
        let mut late: SortedMap<MemberId, bool> =
            self.own.due().map(|owner| (owner, false)).collect();
        for target in self.shared.due() {
            if let Some(asked) = self.by_target.get(&target) {
                late.extend(asked.earlier.iter().map(|owner| (*owner, false)));
            }
        }
        for (target, asked) in self.by_target.iter() {
            visited();
            if is_gone(*target) {
                late.extend(asked.owners().map(|owner| (owner, true)));
            }
        }
        late
    }

    /// When the next request is overdue; never if there is none.
    pub(crate) fn next(&self) -> Instant {
        self.own.next().min(self.shared.next())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use super::*;

    /// The same with one plain map, which is walked each time.
    #[derive(Default)]
    struct Plain(BTreeMap<MemberId, Pending>);

    impl Plain {
        fn change(&mut self, target: MemberId, change: impl Fn(&mut Pending)) {
            let asked = |pending: &&mut Pending| pending.target == Some(target);
            self.0.values_mut().filter(asked).for_each(change);
        }

        fn late(
            &self,
            now: Instant,
            is_gone: impl Fn(MemberId) -> bool,
        ) -> BTreeMap<MemberId, bool> {
            let late = self.0.iter().filter_map(|(owner, pending)| {
                let gone = pending.target.is_some_and(&is_gone);
                (gone || now >= pending.due).then_some((*owner, gone))
            });
            late.collect()
        }
    }

    proptest! {
        #[test]
        fn requests_are_those_of_a_plain_map(
            steps in proptest::collection::vec((0..6_u8, 0..12_u64, 0..4_u64, 0..50_u64), 1..150),
        ) {
            let (mut requests, mut plain) = (PendingRequests::default(), Plain::default());
            let mut now = Instant(0);
            for (step, owner, target, wait_us) in steps {
                let (owner, target, due) = (MemberId(owner), MemberId(target), now.after(wait_us));
                match step {
                    0 | 1 => {
                        let target = Some(target).filter(|target| target.0 > 0);
                        let pending = Pending { version: wait_us, target, due, tries: u32::from(step) };
                        requests.set(owner, pending);
                        plain.0.insert(owner, pending);
                    }
                    2 => {
                        requests.heard(target, due);
                        plain.change(target, |pending| (pending.due, pending.tries) = (due, 0));
                    }
                    3 => {
                        requests.hurry(target, due);
                        plain.change(target, |pending| pending.due = pending.due.min(due));
                    }
                    4 => {
                        requests.remove(owner);
                        plain.0.remove(&owner);
                    }
                    _ => now = now.after(wait_us),
                }
                let next = plain.0.values().map(|pending| pending.due).min();
                prop_assert_eq!(requests.next(), next.unwrap_or(Instant::NEVER));
                for (owner, pending) in &plain.0 {
                    prop_assert_eq!(requests.get(*owner), Some(*pending));
                }
                let asked: BTreeSet<MemberId> = requests.asked_of(target).collect();
                let of_target = |pending: &Pending| pending.target == Some(target);
                let expected = plain.0.iter().filter(|(_, pending)| of_target(pending));
                prop_assert!(asked.iter().eq(expected.map(|(owner, _)| owner)));
                let is_gone = |id: MemberId| id == target && step == 5;
                prop_assert!(requests.late(now, is_gone).into_iter().eq(plain.late(now, is_gone)));
            }
        }
    }
}
