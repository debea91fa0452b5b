//! The rules of age gossip: a Lamport clock and a vector of ages.
//!
//! No frames, keys or times: inputs are cycles and messages of clocks and ages. The engine adds the wire. A
//! study of 65536 members uses the rules as they are, on a sample of the columns, since no column of the
//! vectors depends on another one.

use super::vector;

/// The age of a member that is not known, or was not heard of for very long.
pub const NEVER: u8 = u8::MAX;

/// Parameters of the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// A message whose clock is further behind than this is obsolete.
    pub obsolete_after: u64,
    /// A reply has the ages that are younger here by at least this, and never by less than 2.
    pub laziness: u8,
    /// What a hop adds to an age: 1, since the message may have taken a cycle; 0 counts from the time when
    /// its member was alive, as heartbeat times do.
    pub hop: u8,
}

/// Whether a message counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freshness {
    /// It counts, and the clock was set by it.
    Current,
    /// It is obsolete; nothing was changed.
    Obsolete,
}

/// The state of a participant.
#[derive(Clone, Debug)]
pub struct Gossip {
    rules: Rules,
    clock: u64,
    ages: Vec<u8>,
    /// Own place, if the vector has one.
    own: Option<usize>,
}

impl Gossip {
    /// A participant that knows no other: the clock is 0, and every age but its own is the greatest. An age
    /// of 0 would tell all others that failed members live.
    #[must_use]
    pub fn new(participants: usize, own: Option<usize>, rules: Rules) -> Self {
        let mut gossip = Self {
            rules,
            clock: 0,
            ages: vec![NEVER; participants],
            own,
        };
        gossip.be_alive();
        gossip
    }

    /// AG-06, AG-07: begins cycles, of which all but the last were overslept.
    pub fn tick(&mut self, cycles: u64) {
        self.clock = self.clock.saturating_add(cycles);
        let cycles = u8::try_from(cycles).unwrap_or(u8::MAX);
        vector::grow_older(&mut self.ages, cycles);
        self.be_alive();
    }

    /// AG-06, AG-09: takes the clock of a message. A clock far ahead is accepted: a restarted participant
    /// is that far behind.
    #[must_use]
    pub fn hear_clock(&mut self, clock: u64) -> Freshness {
        if self.clock.saturating_sub(clock) > self.rules.obsolete_after {
            return Freshness::Obsolete;
        }
        if clock >= self.clock {
            self.clock = clock.saturating_add(1);
        }
        Freshness::Current
    }

    /// AG-07: takes the ages of a ping, which are those of all participants.
    pub fn merge(&mut self, ages: &[u8]) {
        vector::merge(&mut self.ages, ages, self.rules.hop);
        self.be_alive();
    }

    /// AG-08: takes one age of a reply.
    pub fn merge_one(&mut self, index: usize, age: u8) {
        if let Some(own) = self.ages.get_mut(index) {
            *own = (*own).min(age.saturating_add(self.rules.hop));
        }
        self.be_alive();
    }

    /// AG-08: the indices of ages for a reply to a participant with these ages.
    pub fn younger<'a>(&'a self, theirs: &'a [u8]) -> impl Iterator<Item = usize> + 'a {
        let least = self.rules.laziness.max(2);
        let pairs = self.ages.iter().zip(theirs).enumerate();
        pairs.filter_map(move |(index, (own, theirs))| {
            (theirs.saturating_sub(*own) >= least).then_some(index)
        })
    }

    /// The Lamport clock.
    #[must_use]
    pub fn clock(&self) -> u64 {
        self.clock
    }

    /// All ages, in the order of the participants.
    #[must_use]
    pub fn ages(&self) -> &[u8] {
        &self.ages
    }

    /// A member is known to be gone: its age becomes the greatest.
    pub fn bury(&mut self, index: usize) {
        if let Some(age) = self.ages.get_mut(index) {
            *age = NEVER;
        }
        self.be_alive();
    }

    /// A member is known to have this age, or less.
    pub fn expect(&mut self, index: usize, age: u8) {
        if let Some(own) = self.ages.get_mut(index) {
            *own = (*own).min(age);
        }
        self.be_alive();
    }

    fn be_alive(&mut self) {
        if let Some(own) = self.own {
            self.ages[own] = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::carried::told;
    use super::*;

    const RULES: Rules = Rules {
        obsolete_after: 8,
        laziness: 2,
        hop: 1,
    };

    /// The example of the documents: a participant with [7, 8, 0, 2] pings one with [1, 0, 3, 4] (AG-08).
    #[test]
    fn the_reply_holds_what_is_younger_by_two() {
        let mut first = Gossip::new(4, Some(1), RULES);
        first.merge(&[0, 0, 2, 3]);
        let ping = [7, 8, 0, 2];
        assert_eq!(first.ages(), [1, 0, 3, 4]);
        assert_eq!(first.hear_clock(0), Freshness::Current);
        first.merge(&ping);
        assert_eq!(first.ages(), [1, 0, 1, 3]);
        assert_eq!(first.younger(&ping).collect::<Vec<_>>(), [0, 1]);
    }

    /// AG-06: the clock starts at 0; a message sets it to one more; a clock far ahead is accepted.
    #[test]
    fn the_clock_follows_the_one_ahead() {
        let mut gossip = Gossip::new(2, Some(0), RULES);
        assert_eq!(gossip.clock(), 0);
        gossip.tick(1);
        assert_eq!(gossip.clock(), 1);
        assert_eq!(gossip.hear_clock(1), Freshness::Current);
        assert_eq!(gossip.clock(), 2);
        assert_eq!(gossip.hear_clock(1), Freshness::Current);
        assert_eq!(gossip.clock(), 2);
        assert_eq!(gossip.hear_clock(1 << 40), Freshness::Current);
        assert_eq!(gossip.clock(), (1 << 40) + 1);
        // AG-09: just in time, and too late.
        assert_eq!(gossip.hear_clock((1 << 40) - 7), Freshness::Current);
        assert_eq!(gossip.hear_clock((1 << 40) - 8), Freshness::Obsolete);
        assert_eq!(gossip.hear_clock(u64::MAX), Freshness::Current);
        assert_eq!(gossip.clock(), u64::MAX);
    }

    /// The messages: all ages, those that a message of the application can carry, or those of a reply.
    #[derive(Clone, Debug)]
    enum Came {
        Whole(Vec<u8>),
        Entries(Vec<(usize, u8)>),
    }

    fn message() -> impl Strategy<Value = (u64, Came)> {
        // Many ages are small enough to be carried.
        let age = prop_oneof![0_u8..20, any::<u8>()];
        // No clock is so far ahead that it makes another message obsolete.
        (
            100_u64..107,
            proptest::collection::vec(age, 20),
            0..3,
            any::<u32>(),
        )
            .prop_map(|(clock, ages, kind, which)| {
                let came = match kind {
                    0 => Came::Whole(ages),
                    1 => Came::Whole(told(&ages)),
                    _ => {
                        let entries = ages.into_iter().enumerate();
                        let is_there = |(index, _): &(usize, u8)| which >> index & 1 == 1;
                        Came::Entries(entries.filter(is_there).collect())
                    }
                };
                (clock, came)
            })
    }

    proptest! {
        /// BG-03: a carried vector has the same effect as the complete one, except for ages too old to be
        /// sent.
        #[test]
        fn what_was_carried_is_merged_like_the_whole(
            own in proptest::collection::vec(any::<u8>(), 20),
            theirs in proptest::collection::vec(prop_oneof![0_u8..20, any::<u8>()], 20),
        ) {
            let start = |ages: &[u8]| {
                let mut gossip = Gossip::new(20, None, RULES);
                gossip.merge(&ages.iter().map(|age| age.saturating_sub(1)).collect::<Vec<u8>>());
                gossip
            };
            let (mut whole, mut carried) = (start(&own), start(&own));
            let before = carried.ages().to_vec();
            whole.merge(&theirs);
            carried.merge(&told(&theirs));
            for index in 0..20 {
                let expected = match theirs[index] < 15 {
                    true => whole.ages()[index],
                    false => before[index],
                };
                prop_assert_eq!(carried.ages()[index], expected);
                prop_assert!(carried.ages()[index] >= whole.ages()[index]);
            }
        }

        /// AG-07, BG-03: within a cycle neither order nor repetition of messages matters, in either form.
        #[test]
        fn order_and_repetition_change_nothing(
            start in 99_u64..104,
            messages in proptest::collection::vec(message(), 1..8),
            again in proptest::collection::vec(any::<prop::sample::Index>(), 0..8),
            key in any::<u64>(),
        ) {
            let mut first = Gossip::new(20, Some(3), RULES);
            first.tick(start);
            let mut second = first.clone();
            let mut shuffled = messages.clone();
            shuffled.extend(again.iter().map(|index| index.get(&messages).clone()));
            let mut random = key;
            shuffled.sort_by_cached_key(|_| {
                random = muster_wire::mix::mix(random);
                random
            });
            for (gossip, messages) in [(&mut first, &messages), (&mut second, &shuffled)] {
                for (clock, came) in messages {
                    prop_assert_eq!(gossip.hear_clock(*clock), Freshness::Current);
                    match came {
                        Came::Whole(ages) => gossip.merge(ages),
                        Came::Entries(entries) => {
                            entries.iter().for_each(|(index, age)| gossip.merge_one(*index, *age));
                        }
                    }
                }
            }
            prop_assert_eq!(first.clock(), second.clock());
            prop_assert_eq!(first.ages(), second.ages());
            prop_assert_eq!(first.ages()[3], 0);
        }
    }
}
