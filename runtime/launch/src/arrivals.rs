//! Ranks that wait in MPI_Init for other ranks of their node. libpmix passes a fence to the launcher when all ranks
//! of the node have entered it, and does not report the first of them. It does report when a rank has put data for
//! others, which MPI_Init does before its first fence. These reports are used only in a job of a single node: with
//! several nodes the fences show which ranks are late.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// The ranks that have put data.
#[derive(Debug, Default)]
pub(super) struct Arrivals {
    ranks: BTreeSet<u32>,
    /// When the first of them did.
    first: Option<Instant>,
}

impl Arrivals {
    pub(super) fn note(&mut self, rank: u32) {
        self.ranks.insert(rank);
        self.first.get_or_insert_with(Instant::now);
    }

    /// Returns those of `ranks` that have not arrived, and for how long the others have waited, if that is
    /// longer than `timeout`.
    pub(super) fn late(
        &self,
        ranks: impl Iterator<Item = u32>,
        timeout: Duration,
    ) -> Option<(Vec<u32>, u64)> {
        let waited = self.first?.elapsed();
        let late: Vec<u32> = ranks.filter(|rank| !self.ranks.contains(rank)).collect();
        (waited > timeout && !late.is_empty()).then_some((late, waited.as_secs()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_rank_is_late_before_another_has_arrived() {
        let mut arrivals = Arrivals::default();
        assert_eq!(arrivals.late(0..3, Duration::ZERO), None);
        arrivals.note(1);
        let (late, _) = arrivals.late(0..3, Duration::ZERO).unwrap();
        assert_eq!(late, [0, 2]);
        assert_eq!(arrivals.late(0..3, Duration::from_secs(3600)), None);
        arrivals.note(0);
        arrivals.note(2);
        assert_eq!(arrivals.late(0..3, Duration::ZERO), None);
    }
}
