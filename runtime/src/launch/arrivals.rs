//! Who has come to MPI_Init, where there is a single node: libpmix answers fences of its own ranks itself and tells
//! nobody. It does say when a rank has put what others are to know of it, which MPI_Init does before its first fence.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::ends::INIT_QUIET;

/// Ranks that have put something.
#[derive(Debug, Default)]
pub(super) struct Arrivals {
    ranks: BTreeSet<u32>,
    /// The first and the last of them.
    times: Option<(Instant, Instant)>,
}

impl Arrivals {
    pub(super) fn note(&mut self, rank: u32) {
        if self.ranks.insert(rank) {
            let now = Instant::now();
            let first = self.times.map_or(now, |(first, _)| first);
            self.times = Some((first, now));
        }
    }

    /// Whether all of these have come, and by now long enough ago for the fences that follow.
    pub(super) fn are_over(&self, now: Instant, mut ranks: impl Iterator<Item = u32>) -> bool {
        self.times
            .is_some_and(|(_, last)| now.saturating_duration_since(last) > INIT_QUIET)
            && ranks.all(|rank| self.ranks.contains(&rank))
    }

    /// Those of these that have not come though others wait for them, and for how long, if it is as long as this.
    pub(super) fn late(
        &self,
        ranks: impl Iterator<Item = u32>,
        patience: Duration,
    ) -> Option<(Vec<u32>, u64)> {
        let (first, _) = self.times?;
        let waited = first.elapsed();
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
        let (_, last) = arrivals.times.unwrap();
        assert!(!arrivals.are_over(last + INIT_QUIET, 0..3), "just now");
        let later = last + INIT_QUIET + Duration::from_millis(1);
        assert!(arrivals.are_over(later, 0..3));
        assert!(!arrivals.are_over(later, 0..4), "one has not come");
    }
}
