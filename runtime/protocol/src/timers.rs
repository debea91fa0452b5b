//! Timers of members: the next one, and those that have run out, without a walk over the others.
//!
//! An engine asks for its next timer after every input, and has one timer for each link and each request. So
//! they are in order of time, and an input costs the change of a few, however many there are.

use core::ops::Bound;

use crate::identity::MemberId;
use crate::sorted::SortedSet;
use crate::time::Instant;

/// One timer for each member, or none.
#[derive(Clone, Debug, Default)]
pub(crate) struct Timers {
    times: SortedSet<(Instant, MemberId)>,
    /// Members whose timer had run out at `now`.
    due: SortedSet<MemberId>,
    now: Instant,
}

impl Timers {
    /// Moves the timer of a member from `old` to `new`; `NEVER` is none.
    pub(crate) fn set(&mut self, id: MemberId, old: Instant, new: Instant) {
        if old == new {
            return;
        }
        if old != Instant::NEVER {
            self.times.remove(&(old, id));
            self.due.remove(&id);
        }
        if new != Instant::NEVER {
            self.times.insert((new, id));
            if new <= self.now {
                self.due.insert(id);
            }
        }
    }

    /// Moves time on, never back.
    pub(crate) fn pass(&mut self, now: Instant) {
        if now > self.now && self.next() <= now {
            let passed = (
                Bound::Excluded((self.now, MemberId(u64::MAX))),
                Bound::Included((now, MemberId(u64::MAX))),
            );
            self.due.extend(self.times.range(passed).map(|(_, id)| *id));
        }
        self.now = self.now.max(now);
    }

    /// The earliest timer, also if it has run out; never if there is none.
    pub(crate) fn next(&self) -> Instant {
        self.times.first().map_or(Instant::NEVER, |(at, _)| *at)
    }

    /// The members whose timer had run out when time was last moved on, in their order.
    pub(crate) fn due(&self) -> impl Iterator<Item = MemberId> {
        self.due.iter().copied()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// The answers are those of a plain map that is walked each time.
        #[test]
        fn timers_are_those_of_a_plain_map(
            steps in proptest::collection::vec((0..8_u64, 0..40_u64, any::<bool>()), 1..200),
        ) {
            let (mut timers, mut plain) = (Timers::default(), BTreeMap::new());
            let mut now = Instant(0);
            for (id, number, is_time) in steps {
                if is_time {
                    now = now.after(number / 8);
                } else {
                    let at = if number == 39 { Instant::NEVER } else { Instant(number) };
                    let old = plain.insert(MemberId(id), at).unwrap_or(Instant::NEVER);
                    timers.set(MemberId(id), old, at);
                }
                timers.pass(now);
                let next = plain.values().min().copied().unwrap_or(Instant::NEVER);
                prop_assert_eq!(timers.next(), next);
                let due = plain.iter().filter(|(_, at)| **at <= now).map(|(id, _)| *id);
                prop_assert!(timers.due().eq(due));
            }
        }
    }
}
