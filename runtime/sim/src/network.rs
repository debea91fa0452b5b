//! The network: what happens to a datagram under way.
//!
//! Each datagram is lost, duplicated, damaged or delayed independently, with the given probabilities. A long
//! delay lets later ones overtake it, and a copy may be kept and sent again much later. Cuts are one-way: two
//! of them make a broken link.

use std::collections::BTreeSet;

use crate::chance::Chance;

/// The probabilities, and the cuts.
#[derive(Clone, Debug)]
pub struct Network {
    /// Lost datagrams, in thousandths.
    pub loss_permille: u32,
    /// Duplicated datagrams, in thousandths.
    pub duplicate_permille: u32,
    /// Datagrams with one flipped bit, in thousandths.
    pub corrupt_permille: u32,
    /// Datagrams delayed by up to `reorder_us` more, in thousandths.
    pub reorder_permille: u32,
    /// Shortest delay, in microseconds.
    pub delay_min_us: u64,
    /// Longest usual delay, in microseconds.
    pub delay_max_us: u64,
    /// Longest extra delay of reordered datagrams, in microseconds.
    pub reorder_us: u64,
    /// Datagrams that arrive a second time much later, in thousandths.
    pub replay_permille: u32,
    /// Longest time until then, in microseconds.
    pub replay_us: u64,
    pub(crate) cuts: BTreeSet<(usize, usize)>,
}

impl Default for Network {
    /// A healthy machine room: 30 to 200 microseconds, nothing lost.
    fn default() -> Self {
        Self {
            loss_permille: 0,
            duplicate_permille: 0,
            corrupt_permille: 0,
            reorder_permille: 0,
            delay_min_us: 30,
            delay_max_us: 200,
            reorder_us: 0,
            replay_permille: 0,
            replay_us: 0,
            cuts: BTreeSet::new(),
        }
    }
}

impl Network {
    /// A network with this round trip and a tenth of jitter, in microseconds, that loses nothing.
    #[must_use]
    pub fn with_round_trip(round_trip_us: u64) -> Self {
        let one_way_us = round_trip_us / 2;
        Self {
            delay_min_us: one_way_us - one_way_us / 10,
            delay_max_us: one_way_us + one_way_us / 10,
            ..Self::default()
        }
    }

    /// Nothing sent by `from` arrives at `to` from now on.
    pub fn cut(&mut self, from: usize, to: usize) {
        self.cuts.insert((from, to));
    }

    /// Ends the cut from `from` to `to`.
    pub fn mend(&mut self, from: usize, to: usize) {
        self.cuts.remove(&(from, to));
    }

    /// Whether anything is cut.
    #[must_use]
    pub fn has_cuts(&self) -> bool {
        !self.cuts.is_empty()
    }

    /// Ends all cuts.
    pub fn heal(&mut self) {
        self.cuts.clear();
    }

    /// Whether the direction from `from` to `to` is cut.
    #[must_use]
    pub fn is_cut(&self, from: usize, to: usize) -> bool {
        self.cuts.contains(&(from, to))
    }

    /// Returns every copy that arrives, with its delay in microseconds.
    pub(crate) fn carry(
        &self,
        chance: &mut Chance,
        from: usize,
        to: usize,
        bytes: &[u8],
    ) -> Vec<(u64, Vec<u8>)> {
        if self.is_cut(from, to) {
            return Vec::new();
        }
        let copies = 1 + usize::from(chance.permille(self.duplicate_permille));
        let mut arrivals = Vec::new();
        for _ in 0..copies {
            if chance.permille(self.loss_permille) {
                continue;
            }
            let mut delay_us = chance.between(self.delay_min_us, self.delay_max_us);
            if chance.permille(self.reorder_permille) {
                delay_us += chance.between(0, self.reorder_us);
            }
            let mut bytes = bytes.to_vec();
            if chance.permille(self.corrupt_permille) {
                let bit = chance.between(0, bytes.len() as u64 * 8 - 1) as usize;
                bytes[bit / 8] ^= 1 << (bit % 8);
            }
            arrivals.push((delay_us, bytes));
        }
        if self.replay_permille > 0 && chance.permille(self.replay_permille) {
            arrivals.push((chance.between(0, self.replay_us), bytes.to_vec()));
        }
        arrivals
    }
}
