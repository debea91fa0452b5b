//! Ranks that wait in MPI_Init for other ranks of their node. libpmix passes a fence to the launcher when all ranks
//! of the node have entered it, and does not report the first of them. It does report when a rank has put data for
//! others, which MPI_Init does before its first fence. These reports are used only in a job of a single node: with
//! several nodes the fences show which ranks are late.

use std::collections::BTreeSet;
use std::time::Duration;

/// The ranks that have put data.
#[derive(Debug, Default)]
pub(crate) struct Arrivals {
    ranks: BTreeSet<u32>,
    /// When the first of them did.
    first: Option<Duration>,
}

impl Arrivals {
    pub(crate) fn note(&mut self, rank: u32, now: Duration) {
        self.ranks.insert(rank);
        self.first.get_or_insert(now);
    }

    /// Returns those of `ranks` that have not arrived, and for how long the others have waited, if that is
    /// longer than `timeout`.
    pub(crate) fn late(
        &self,
        ranks: impl Iterator<Item = u32>,
        timeout: Duration,
        now: Duration,
    ) -> Option<(Vec<u32>, u64)> {
        let waited = now.saturating_sub(self.first?);
        let late: Vec<u32> = ranks.filter(|rank| !self.ranks.contains(rank)).collect();
        (waited > timeout && !late.is_empty()).then_some((late, waited.as_secs()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_rank_is_late_before_another_has_arrived() {
        let second = Duration::from_secs(1);
        let mut arrivals = Arrivals::default();
        assert_eq!(arrivals.late(0..3, Duration::ZERO, second), None);
        arrivals.note(1, second);
        assert_eq!(arrivals.late(0..3, second, 2 * second), None);
        let (late, waited_s) = arrivals.late(0..3, second, 3 * second).unwrap();
        assert_eq!((&late[..], waited_s), (&[0, 2][..], 2));
        arrivals.note(0, 2 * second);
        arrivals.note(2, 2 * second);
        assert_eq!(arrivals.late(0..3, second, 9 * second), None);
    }
}
