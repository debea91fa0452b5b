//! `Allowance` limits the bytes that may be relayed now, for one sender or for all senders.
//!
//! It is a token bucket: it fills at a steady rate up to its capacity, and relayed bytes are taken out of it.

/// A token bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Allowance {
    rate_per_s: u64,
    capacity: u64,
    level: u64,
    at_us: u64,
}

impl Allowance {
    /// For one sender: eight times the total that a busy member sends, or two bulk messages of maximum length
    /// at once.
    pub(crate) const ONE: Allowance = Allowance::new(16 << 20, 2 << 20);

    /// For all senders together: less than the bandwidth of one rail of 10 Gbit/s.
    pub(crate) const ALL: Allowance = Allowance::new(64 << 20, 8 << 20);

    const fn new(rate_per_s: u64, capacity: u64) -> Allowance {
        Allowance {
            rate_per_s,
            capacity,
            level: capacity,
            at_us: 0,
        }
    }

    /// Takes this many bytes out. Returns false, and takes nothing, if there are fewer.
    pub(crate) fn take(&mut self, now_us: u64, bytes: usize) -> bool {
        let passed_us = now_us.saturating_sub(self.at_us);
        let filled = u128::from(self.rate_per_s) * u128::from(passed_us) / 1_000_000;
        // If less than a byte has been added, the time is kept for the next call.
        if filled > 0 {
            self.at_us = now_us;
            let level = u128::from(self.level) + filled;
            self.level = level.min(u128::from(self.capacity)) as u64;
        }
        let wanted = bytes as u64;
        let has = self.level >= wanted;
        if has {
            self.level -= wanted;
        }
        has
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_capacity_passes_at_once_and_then_the_rate() {
        let mut all = Allowance::new(1000, 100);
        assert!(all.take(5, 100) && !all.take(5, 1));
        assert!(all.take(1_005, 1) && !all.take(1_005, 1));
        assert!(!all.take(9_000_000, 101) && all.take(9_000_000, 100));
    }

    proptest! {
        /// At any time, no more has passed than the capacity and what was added since the start.
        #[test]
        fn no_more_than_the_rate_passes(
            requests in proptest::collection::vec((0..50_000u64, 0..3000usize), 1..100),
        ) {
            let mut bucket = Allowance::new(10_000, 2_000);
            let (mut now_us, mut passed) = (0, 0);
            for (later_us, bytes) in requests {
                now_us += later_us;
                if bucket.take(now_us, bytes) {
                    passed += bytes as u64;
                }
                prop_assert!(passed <= 2_000 + now_us * 10_000 / 1_000_000);
            }
        }
    }
}
