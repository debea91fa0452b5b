//! Ranks that wait in MPI_Init for others of their node. libpmix hands a fence to the launcher when all ranks of the
//! node have come to it, and says nothing of the first of them. It does say when a rank has put what others are to know
//! of it, which MPI_Init does before its first fence. This is asked where there is a single node; of several nodes the
//! fences say who is late.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// Ranks that have put something.
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

    /// Those of these that have not come though others wait for them, and for how long, if it is as long as this.
    pub(super) fn late(
        &self,
        ranks: impl Iterator<Item = u32>,
        patience: Duration,
    ) -> Option<(Vec<u32>, u64)> {
        let waited = self.first?.elapsed();
        let late: Vec<u32> = ranks.filter(|rank| !self.ranks.contains(rank)).collect();
        (waited > patience && !late.is_empty()).then_some((late, waited.as_secs()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_is_late_before_somebody_has_come() {
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
