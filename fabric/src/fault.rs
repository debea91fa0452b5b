//! Faults on purpose: a wrapper that loses, delays, doubles, reorders, damages and cuts.
//!
//! [`Faulty`] wraps any transport. What arrives passes through the plan before the host sees it;
//! what is sent is untouched but for cuts, so that a message between two wrapped hosts meets the
//! random faults once, at its receiver. One seed decides everything: the same seed, plan and
//! arrivals give the same deliveries. A sender is never told of a fault, as no network would.

use crate::error::PeerError;
use crate::nid::NidList;
use crate::peer::{PathView, PeerHandle};
use crate::rail::RailView;
use crate::select::Selection;
use crate::stats::DropReason;
use crate::transport::{Arrival, Class, FabricEvent, Route, Transport};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use std::os::fd::BorrowedFd;

/// Messages that are held back at once, at most; further ones are lost and counted.
const HELD_MAX: usize = 4096;

/// One in a million, the unit of all shares.
const MILLION: u32 = 1_000_000;

/// Which way a cut works.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Direction {
    /// What arrives is lost.
    In,
    /// What is sent is lost.
    Out,
}

/// A rail that is cut one way for some time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cut {
    /// Index of the local rail.
    pub rail: usize,
    /// Which way.
    pub direction: Direction,
    /// First moment of the cut, microseconds of the host's clock.
    pub from_us: u64,
    /// First moment after the cut; `u64::MAX` for ever.
    pub until_us: u64,
}

/// Which faults, how often. The default has none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FaultPlan {
    /// Decides everything that is left to chance.
    pub seed: u64,
    /// Share of messages that are lost, in millionths.
    pub drop_ppm: u32,
    /// Share of messages that arrive twice, in millionths.
    pub duplicate_ppm: u32,
    /// Share of messages of which one bit is flipped, in millionths.
    pub corrupt_ppm: u32,
    /// Share of messages that are held back until the next one on their rail has passed, or for
    /// `delay_max_us` if none comes, in millionths.
    pub reorder_ppm: u32,
    /// Share of messages that are delayed, in millionths.
    pub delay_ppm: u32,
    /// Longest delay, microseconds; each delay is between 0 and this.
    pub delay_max_us: u32,
    /// Rails that are cut.
    pub cuts: Vec<Cut>,
}

impl FaultPlan {
    fn is_cut(&self, now_us: u64, rail: usize, direction: Direction) -> bool {
        self.cuts.iter().any(|cut| {
            let now = cut.from_us <= now_us && now_us < cut.until_us;
            now && cut.rail == rail && cut.direction == direction
        })
    }
}

/// What the plan has done so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FaultCounters {
    /// Lost by chance.
    pub dropped: u64,
    /// Lost by a cut.
    pub cut: u64,
    /// Delivered twice.
    pub duplicated: u64,
    /// Damaged.
    pub corrupted: u64,
    /// Held back for the next one to pass.
    pub reordered: u64,
    /// Delayed.
    pub delayed: u64,
    /// Lost because too many were held back.
    pub overflowed: u64,
}

/// A transport with faults.
#[derive(Debug)]
pub struct Faulty<T> {
    inner: T,
    faults: Faults,
}

impl<T: Transport> Faulty<T> {
    /// Wraps a transport.
    pub fn new(inner: T, plan: FaultPlan) -> Faulty<T> {
        Faulty {
            inner,
            faults: Faults::new(plan),
        }
    }

    /// The plan, to be changed between two calls. A new seed has no effect.
    pub fn plan_mut(&mut self) -> &mut FaultPlan {
        &mut self.faults.plan
    }

    /// What the plan has done so far.
    #[must_use]
    pub fn fault_counters(&self) -> FaultCounters {
        self.faults.counters
    }

    /// The transport inside.
    pub fn inner(&self) -> &T {
        &self.inner
    }
}

impl<T: Transport> Transport for Faulty<T> {
    fn local_nids(&self) -> NidList {
        self.inner.local_nids()
    }

    fn mtu(&self) -> usize {
        self.inner.mtu()
    }

    fn rails(&self) -> Vec<RailView> {
        self.inner.rails()
    }

    fn paths(&self, peer: PeerHandle) -> Vec<PathView> {
        self.inner.paths(peer)
    }

    fn peer(&mut self, nids: &NidList) -> Result<PeerHandle, PeerError> {
        self.inner.peer(nids)
    }

    fn forget(&mut self, peer: PeerHandle) {
        self.inner.forget(peer);
    }

    fn select(&mut self, now_us: u64, peer: PeerHandle, route: Route) -> Selection {
        self.inner.select(now_us, peer, route)
    }

    fn post(
        &mut self,
        now_us: u64,
        peer: PeerHandle,
        path: usize,
        class: Class,
        bytes: &[u8],
    ) -> Result<(), DropReason> {
        if !self.faults.plan.cuts.is_empty() {
            let rail = self.inner.paths(peer).get(path).map(|path| path.rail);
            let cut = |rail| self.faults.plan.is_cut(now_us, rail, Direction::Out);
            if rail.is_some_and(cut) {
                self.faults.counters.cut += 1;
                return Ok(());
            }
        }
        self.inner.post(now_us, peer, path, class, bytes)
    }

    fn poll(&mut self, now_us: u64, deliver: &mut dyn FnMut(Arrival<'_>)) -> bool {
        let faults = &mut self.faults;
        let more = self
            .inner
            .poll(now_us, &mut |arrival| faults.admit(now_us, arrival));
        while let Some(held) = faults.release(now_us) {
            deliver(Arrival {
                rail: held.rail,
                bytes: &held.bytes,
            });
        }
        more
    }

    fn wait_fds(&self) -> Vec<BorrowedFd<'_>> {
        self.inner.wait_fds()
    }

    fn may_sleep(&mut self) -> bool {
        self.inner.may_sleep()
    }

    fn next_timeout(&self) -> Option<u64> {
        let held = self.faults.held.iter().map(|held| held.due_us).min();
        held.into_iter().chain(self.inner.next_timeout()).min()
    }

    fn heard(&mut self, now_us: u64, peer: PeerHandle, rail: usize) {
        self.inner.heard(now_us, peer, rail);
    }

    fn watch(&mut self, now_us: u64, peer: PeerHandle, interval_us: u64) {
        self.inner.watch(now_us, peer, interval_us);
    }

    fn unwatch(&mut self, peer: PeerHandle) {
        self.inner.unwatch(peer);
    }

    fn poll_event(&mut self) -> Option<FabricEvent> {
        self.inner.poll_event()
    }
}

/// The plan at work: messages go in, and come out later, changed, or not at all.
#[derive(Debug)]
struct Faults {
    plan: FaultPlan,
    random: ChaCha8Rng,
    held: Vec<Held>,
    /// Gives messages that are due at the same time their order.
    order: u64,
    counters: FaultCounters,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Held {
    due_us: u64,
    order: u64,
    rail: usize,
    /// Held back until another message of the rail has passed.
    for_next: bool,
    bytes: Vec<u8>,
}

impl Faults {
    fn new(plan: FaultPlan) -> Faults {
        let random = ChaCha8Rng::seed_from_u64(plan.seed);
        Faults {
            plan,
            random,
            held: Vec::new(),
            order: 0,
            counters: FaultCounters::default(),
        }
    }

    /// Takes an arrival in. The same number of dice is thrown for each, whatever comes of it, so
    /// that one fault more in a plan does not change all the others.
    fn admit(&mut self, now_us: u64, arrival: Arrival<'_>) {
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
                ..self.new_held(arrival.rail, &bytes)
            });
            self.counters.duplicated += 1;
        }
        let held = self.new_held(arrival.rail, &bytes);
        self.hold(Held {
            due_us,
            for_next: reorder,
            ..held
        });
    }

    fn new_held(&self, rail: usize, bytes: &[u8]) -> Held {
        Held {
            due_us: 0,
            order: 0,
            rail,
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

    /// A message of this rail passes: what was held back for it may follow.
    fn let_pass(&mut self, due_us: u64, rail: usize) {
        for index in 0..self.held.len() {
            if self.held[index].for_next && self.held[index].rail == rail {
                // Behind the message that passes, whose order is one less than the next.
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

    /// The next message that is due, in the order of their times.
    fn release(&mut self, now_us: u64) -> Option<Held> {
        let due = |held: &Held| (held.due_us, held.order);
        let next = (0..self.held.len()).min_by_key(|&index| due(&self.held[index]))?;
        (self.held[next].due_us <= now_us).then(|| self.held.swap_remove(next))
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
    use super::*;

    const RAIL: usize = 1;

    /// Sends 0..count through the plan, one a millisecond, and returns what came out and when.
    fn run(plan: FaultPlan, count: u32) -> (Vec<(u64, Vec<u8>)>, FaultCounters) {
        let mut faults = Faults::new(plan);
        let mut out = Vec::new();
        for number in 0..count {
            let now_us = u64::from(number) * 1_000;
            faults.admit(
                now_us,
                Arrival {
                    rail: RAIL,
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
        }
    }

    fn numbers(out: &[(u64, Vec<u8>)]) -> Vec<u32> {
        out.iter()
            .map(|(_, bytes)| u32::from_be_bytes(bytes[..].try_into().unwrap()))
            .collect()
    }

    #[test]
    fn the_same_seed_gives_the_same_deliveries_and_another_seed_others() {
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
    fn without_faults_everything_passes_at_once_and_in_order() {
        let (out, counters) = run(FaultPlan::default(), 100);
        assert_eq!(numbers(&out), (0..100).collect::<Vec<u32>>());
        assert_eq!(counters, FaultCounters::default());
    }

    #[test]
    fn a_message_that_is_reordered_comes_right_behind_the_next_one() {
        let mut faults = Faults::new(FaultPlan::default());
        let order = [true, false, false].map(|reorder| {
            faults.plan.reorder_ppm = if reorder { MILLION } else { 0 };
            faults.plan.delay_max_us = 1_000_000;
            let mark = [u8::from(reorder)];
            faults.admit(
                5,
                Arrival {
                    rail: RAIL,
                    bytes: &mark,
                },
            );
            let released = || faults.release(5).map(|held| held.bytes[0]);
            std::iter::from_fn(released).collect::<Vec<u8>>()
        });
        assert_eq!(order, [vec![], vec![0, 1], vec![0]]);
    }

    #[test]
    fn a_message_that_is_reordered_waits_no_longer_than_the_longest_delay() {
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
                bytes: b"x",
            },
        );
        assert!(faults.release(704).is_none() && faults.release(705).is_some());
    }

    #[test]
    fn a_cut_works_on_its_rail_in_its_time_only() {
        let plan = all_faults(0);
        let cut = |now_us, rail| plan.is_cut(now_us, rail, Direction::In);
        assert!(cut(50_000, RAIL) && cut(59_999, RAIL));
        assert!(!cut(49_999, RAIL) && !cut(60_000, RAIL) && !cut(55_000, RAIL + 1));
        assert!(!plan.is_cut(55_000, RAIL, Direction::Out));
    }

    #[test]
    fn what_is_held_back_is_bounded() {
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
