//! Applies a plan to received messages.
//!
//! Every message is copied and held until it is due, even if it is due at once. So messages leave in one order:
//! by due time, then by the order in which they were held.

use super::plan::{Direction, FaultCounters, FaultPlan};
use crate::bucket::Bucket;
use crate::message::{Arrival, Relayed};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

/// Messages that may be held at once; further ones are dropped and counted.
const HELD_MAX: usize = 4096;

/// The unit of all shares is one in a million.
const MILLION: u32 = 1_000_000;

/// A plan, its random numbers, and the held messages.
#[derive(Debug)]
pub(super) struct Faults {
    pub(super) plan: FaultPlan,
    random: ChaCha8Rng,
    held: Vec<Held>,
    /// Orders messages that are due at the same time.
    order: u64,
    buckets: Vec<Bucket>,
    pub(super) counters: FaultCounters,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Held {
    due_us: u64,
    order: u64,
    pub(super) rail: usize,
    pub(super) relayed: Option<Relayed>,
    /// Held until another message of the rail has passed.
    for_next: bool,
    pub(super) bytes: Vec<u8>,
}

impl Faults {
    pub(super) fn new(plan: FaultPlan) -> Faults {
        let random = ChaCha8Rng::seed_from_u64(plan.seed);
        Faults {
            plan,
            random,
            held: Vec::new(),
            order: 0,
            buckets: Vec::new(),
            counters: FaultCounters::default(),
        }
    }

    /// Whether a rail accepts this many bytes now, by its token bucket.
    pub(super) fn takes(&mut self, now_us: u64, rail: usize, bytes: usize) -> bool {
        let rate = self.plan.rail_bytes_per_s;
        if rate == 0 {
            return true;
        }
        if self.buckets.len() <= rail {
            self.buckets.resize(rail + 1, Bucket::default());
        }
        let bucket = &mut self.buckets[rail];
        bucket.bytes_per_s = rate;
        let taken = bucket.takes(now_us, bytes);
        self.counters.refused += u64::from(!taken);
        taken
    }

    /// Applies the plan to a received message and holds it. Each message uses the same number of random
    /// numbers, whatever the outcome, so that one more fault in a plan does not change all others.
    pub(super) fn admit(&mut self, now_us: u64, arrival: Arrival<'_>) {
        let drop = self.roll(self.plan.drop_ppm);
        let duplicate = self.roll(self.plan.duplicate_ppm);
        let corrupt = self.roll(self.plan.corrupt_ppm);
        let reorder = self.roll(self.plan.reorder_ppm);
        let delay = self.roll(self.plan.delay_ppm);
        let delay_us = self.below(u64::from(self.plan.delay_max_us) + 1);
        let bit = self.below((arrival.bytes.len() as u64 * 8).max(1)) as usize;
        if self.plan.is_cut(now_us, arrival.rail, Direction::In) {
            self.counters.cut += 1;
            return;
        }
        if drop {
            self.counters.dropped += 1;
            return;
        }
        let mut bytes = arrival.bytes.to_vec();
        if corrupt && !bytes.is_empty() {
            bytes[bit / 8] ^= 1 << (bit % 8);
            self.counters.corrupted += 1;
        }
        let mut due_us = now_us;
        if reorder {
            due_us += u64::from(self.plan.delay_max_us);
            self.counters.reordered += 1;
        } else if delay {
            due_us += delay_us;
            self.counters.delayed += 1;
        }
        if duplicate {
            self.hold(Held {
                due_us,
                ..self.new_held(&arrival, &bytes)
            });
            self.counters.duplicated += 1;
        }
        let held = self.new_held(&arrival, &bytes);
        self.hold(Held {
            due_us,
            for_next: reorder,
            ..held
        });
    }

    fn new_held(&self, arrival: &Arrival<'_>, bytes: &[u8]) -> Held {
        Held {
            due_us: 0,
            order: 0,
            rail: arrival.rail,
            relayed: arrival.relayed,
            for_next: false,
            bytes: bytes.to_vec(),
        }
    }

    fn hold(&mut self, mut held: Held) {
        if self.held.len() >= HELD_MAX {
            self.counters.overflowed += 1;
            return;
        }
        held.order = self.next_order();
        if !held.for_next {
            self.let_pass(held.due_us, held.rail);
        }
        self.held.push(held);
    }

    /// A message of this rail passes: messages that were held for it may follow.
    fn let_pass(&mut self, due_us: u64, rail: usize) {
        for index in 0..self.held.len() {
            if self.held[index].for_next && self.held[index].rail == rail {
                // After the passing message, whose order number was the previous one.
                let order = self.next_order();
                let held = &mut self.held[index];
                held.for_next = false;
                held.due_us = held.due_us.min(due_us);
                held.order = order;
            }
        }
    }

    fn next_order(&mut self) -> u64 {
        self.order += 1;
        self.order
    }

    /// Removes and returns the next message that is due.
    pub(super) fn release(&mut self, now_us: u64) -> Option<Held> {
        let due = |held: &Held| (held.due_us, held.order);
        let next = (0..self.held.len()).min_by_key(|&index| due(&self.held[index]))?;
        (self.held[next].due_us <= now_us).then(|| self.held.swap_remove(next))
    }

    /// The time when the next message is due.
    pub(super) fn next_timeout(&self) -> Option<u64> {
        self.held.iter().map(|held| held.due_us).min()
    }

    fn roll(&mut self, ppm: u32) -> bool {
        self.random.next_u32() % MILLION < ppm
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.random.next_u64() % limit
    }
}

#[cfg(test)]
mod tests {
    use super::super::Cut;
    use super::*;

    const RAIL: usize = 1;

    /// Passes the messages 0..count through the plan, one each millisecond, and returns the deliveries with
    /// their times.
    fn run(plan: FaultPlan, count: u32) -> (Vec<(u64, Vec<u8>)>, FaultCounters) {
        let mut faults = Faults::new(plan);
        let mut out = Vec::new();
        for number in 0..count {
            let now_us = u64::from(number) * 1_000;
            faults.admit(
                now_us,
                Arrival {
                    rail: RAIL,
                    relayed: None,
                    bytes: &number.to_be_bytes(),
                },
            );
            while let Some(held) = faults.release(now_us) {
                out.push((now_us, held.bytes));
            }
        }
        while let Some(held) = faults.release(u64::MAX) {
            out.push((held.due_us, held.bytes));
        }
        (out, faults.counters)
    }

    fn all_faults(seed: u64) -> FaultPlan {
        FaultPlan {
            seed,
            drop_ppm: 100_000,
            duplicate_ppm: 100_000,
            corrupt_ppm: 100_000,
            reorder_ppm: 100_000,
            delay_ppm: 100_000,
            delay_max_us: 5_000,
            cuts: vec![Cut {
                rail: RAIL,
                direction: Direction::In,
                from_us: 50_000,
                until_us: 60_000,
            }],
            rail_bytes_per_s: 0,
        }
    }

    fn numbers(out: &[(u64, Vec<u8>)]) -> Vec<u32> {
        out.iter()
            .map(|(_, bytes)| u32::from_be_bytes(bytes[..].try_into().unwrap()))
            .collect()
    }

    #[test]
    fn the_seed_determines_the_deliveries() {
        let first = run(all_faults(7), 500);
        assert_eq!(first, run(all_faults(7), 500));
        assert_ne!(first, run(all_faults(8), 500));
        let counters = first.1;
        assert_eq!(counters.cut, 10);
        let each = [
            counters.dropped,
            counters.duplicated,
            counters.corrupted,
            counters.reordered,
            counters.delayed,
        ];
        assert!(each.iter().all(|&count| count > 0), "{counters:?}");
    }

    #[test]
    fn without_faults_messages_pass_at_once_and_in_order() {
        let (out, counters) = run(FaultPlan::default(), 100);
        assert_eq!(numbers(&out), (0..100).collect::<Vec<u32>>());
        assert_eq!(counters, FaultCounters::default());
    }

    #[test]
    fn a_reordered_message_follows_the_next_one() {
        let mut faults = Faults::new(FaultPlan::default());
        let order = [true, false, false].map(|reorder| {
            faults.plan.reorder_ppm = if reorder { MILLION } else { 0 };
            faults.plan.delay_max_us = 1_000_000;
            let mark = [u8::from(reorder)];
            faults.admit(
                5,
                Arrival {
                    rail: RAIL,
                    relayed: None,
                    bytes: &mark,
                },
            );
            let released = || faults.release(5).map(|held| held.bytes[0]);
            std::iter::from_fn(released).collect::<Vec<u8>>()
        });
        assert_eq!(order, [vec![], vec![0, 1], vec![0]]);
    }

    #[test]
    fn a_reordered_message_waits_at_most_the_longest_delay() {
        let plan = FaultPlan {
            reorder_ppm: MILLION,
            delay_max_us: 700,
            ..FaultPlan::default()
        };
        let mut faults = Faults::new(plan);
        faults.admit(
            5,
            Arrival {
                rail: RAIL,
                relayed: None,
                bytes: b"x",
            },
        );
        assert!(faults.release(704).is_none() && faults.release(705).is_some());
    }

    #[test]
    fn a_cut_applies_to_its_rail_and_time_only() {
        let plan = all_faults(0);
        let cut = |now_us, rail| plan.is_cut(now_us, rail, Direction::In);
        assert!(cut(50_000, RAIL) && cut(59_999, RAIL));
        assert!(!cut(49_999, RAIL) && !cut(60_000, RAIL) && !cut(55_000, RAIL + 1));
        assert!(!plan.is_cut(55_000, RAIL, Direction::Out));
    }

    #[test]
    fn a_rail_accepts_bytes_up_to_its_limit() {
        let plan = FaultPlan {
            rail_bytes_per_s: 1_000_000,
            ..FaultPlan::default()
        };
        let mut faults = Faults::new(plan);
        // One byte per microsecond, at most a thousand at once, separately for each rail.
        let taken = |faults: &mut Faults, now_us, rail| {
            (0..100)
                .take_while(|_| faults.takes(now_us, rail, 100))
                .count()
        };
        assert_eq!(taken(&mut faults, 5_000, RAIL), 10);
        assert_eq!(taken(&mut faults, 5_000, RAIL + 1), 10);
        assert_eq!(taken(&mut faults, 5_250, RAIL), 2);
        assert_eq!(taken(&mut faults, 9_000, RAIL), 10);
        assert_eq!(faults.counters.refused, 4);
    }

    #[test]
    fn the_number_of_held_messages_is_bounded() {
        let plan = FaultPlan {
            delay_ppm: MILLION,
            delay_max_us: u32::MAX,
            ..FaultPlan::default()
        };
        let mut faults = Faults::new(plan);
        for _ in 0..HELD_MAX + 3 {
            faults.admit(
                0,
                Arrival {
                    rail: RAIL,
                    relayed: None,
                    bytes: b"x",
                },
            );
        }
        assert_eq!(
            (faults.held.len(), faults.counters.overflowed),
            (HELD_MAX, 3)
        );
    }
}
