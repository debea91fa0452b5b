//! The rules of age gossip without anything around them: a Lamport clock and a vector of ages.
//!
//! No frames, no keys, no time: cycles are told, messages are clocks and ages. The engine puts
//! these rules on a wire; a study of 65536 members uses them as they are, on a sample of the
//! columns, since no column of the vectors depends on another one.

use super::vector;

/// An age of nobody who was ever heard of; also of somebody not heard of for very long.
pub const NEVER: u8 = u8::MAX;

/// The numbers of the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// A message whose clock is further behind than this is obsolete.
    pub obsolete_after: u64,
    /// A reply carries what is younger here by at least this, and never by less than 2.
    pub laziness: u8,
    /// What a hop adds to an age: 1, as the message may have been under way for a cycle; 0 counts
    /// from the moment at which its member said it lives, as heartbeat times do.
    pub hop: u8,
}

/// Whether what a message says counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freshness {
    /// It does, and the clock has been set by it.
    Current,
    /// It is too old; nothing was changed.
    Obsolete,
}

/// The state of one participant.
#[derive(Clone, Debug)]
pub struct Gossip {
    rules: Rules,
    clock: u64,
    ages: Vec<u8>,
    /// Our own place, if the vector has one.
    own: Option<usize>,
}

impl Gossip {
    /// One who has heard of nobody: the clock is 0, and every age but its own as old as can be. An
    /// age of 0 would tell everybody that the dead live.
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

    /// AG-06, AG-07: so many cycles begin, of which all but the last were slept through.
    pub fn tick(&mut self, cycles: u64) {
        self.clock = self.clock.saturating_add(cycles);
        let cycles = u8::try_from(cycles).unwrap_or(u8::MAX);
        vector::grow_older(&mut self.ages, cycles);
        self.be_alive();
    }

    /// AG-06, AG-09: a message with this clock came. Far ahead is no reason to doubt it: whoever
    /// was restarted is that far behind.
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

    /// AG-07: takes the ages of a ping; they are those of all participants.
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

    /// AG-08: whose ages are worth a reply to one who has these, by index.
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

    /// Somebody is known to be gone: as old as can be.
    pub fn bury(&mut self, index: usize) {
        if let Some(age) = self.ages.get_mut(index) {
            *age = NEVER;
        }
        self.be_alive();
    }

    /// Somebody is held to be this old, or younger.
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

    /// The example of the documents: who has [7, 8, 0, 2] pings one who has [1, 0, 3, 4] (AG-08).
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

    /// AG-06: starts at 0; a message sets it to one more; far ahead is believed.
    #[test]
    fn the_clock_follows_whoever_is_ahead() {
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

    /// What came: all ages, those that a message of the application could carry, or those of a reply.
    #[derive(Clone, Debug)]
    enum Came {
        Whole(Vec<u8>),
        Entries(Vec<(usize, u8)>),
    }

    fn message() -> impl Strategy<Value = (u64, Came)> {
        // Many are of the ages that a message of the application can carry.
        let age = prop_oneof![0_u8..20, any::<u8>()];
        // None is so far ahead that another one becomes obsolete by it.
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
        /// BG-03: what a message of the application has carried makes the same of a vector as the whole would, but
        /// for what is too old to be told, of which it says nothing.
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

        /// AG-07, BG-03: within a cycle neither the order of messages nor their repetition matters, however they came.
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
                random = crate::table::mix(random);
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
