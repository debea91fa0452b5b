//! Arrivals of a neighbour's beats, and the deadline that follows from them.
//!
//! Beats that always come in time are missed sooner than beats that come irregularly. The statistics are
//! the mean gap between two beats and its mean deviation, smoothed (by an eighth and a quarter of each new
//! gap, as for round-trip times), in whole microseconds; and the longest gap, which decays to half in 355
//! beats. The deadline is the mean plus six deviations, or seven quarters of the longest gap if that is
//! more. It is never below the configured deadline and never above the configured cap.
//!
//! A gap that is explained otherwise does not count in full: it is shortened by the lateness that the
//! neighbour advertises, and is not counted if the local member overslept. A silent neighbour changes
//! nothing, since only arrivals count.

use crate::time::Instant;

/// Gaps before the statistics are used. Until then the neighbour counts as irregular as the most irregular
/// of the others.
const SAMPLES_MIN: u32 = 8;

/// The statistics of one neighbour's beats, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arrivals {
    last: Option<Instant>,
    samples: u32,
    mean_us: u64,
    deviation_us: u64,
    longest_us: u64,
}

impl Arrivals {
    /// A beat arrived; its sender advertises `late_us`.
    pub(crate) fn beat(&mut self, now: Instant, late_us: u64, heartbeat_us: u64) {
        let Some(last) = self.last.replace(now) else {
            return;
        };
        let gap_us = now.since(last);
        let gap_us = gap_us.saturating_sub(late_us).max(gap_us.min(heartbeat_us));
        if self.samples == 0 {
            self.mean_us = heartbeat_us;
        }
        self.samples = self.samples.saturating_add(1);
        let error_us = gap_us.abs_diff(self.mean_us);
        self.mean_us = self.mean_us - self.mean_us / 8 + gap_us / 8;
        self.deviation_us = self.deviation_us - self.deviation_us / 4 + error_us / 4;
        self.longest_us = gap_us.max(self.longest_us - self.longest_us / 512);
    }

    /// The local member overslept: the gap to the next beat does not count.
    pub(crate) fn forget_last(&mut self) {
        self.last = None;
    }

    /// Whether there were enough gaps.
    pub(crate) fn is_known(&self) -> bool {
        self.samples >= SAMPLES_MIN
    }

    /// The deadline that follows from the gaps, between the two bounds.
    pub(crate) fn deadline_us(&self, least_us: u64, most_us: u64) -> u64 {
        let spread_us = self.mean_us + 6 * self.deviation_us;
        let longest_us = self.longest_us + self.longest_us / 4 * 3;
        spread_us.max(longest_us).clamp(least_us, most_us)
    }

    /// Smoothed gap between two beats, in microseconds; 0 before the first.
    #[must_use]
    pub fn mean_us(&self) -> u64 {
        self.mean_us
    }

    /// Longest recent gap, in microseconds.
    #[must_use]
    pub fn longest_us(&self) -> u64 {
        self.longest_us
    }

    /// Smoothed deviation of the gap, in microseconds.
    #[must_use]
    pub fn deviation_us(&self) -> u64 {
        self.deviation_us
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(gaps_us: impl IntoIterator<Item = u64>) -> Arrivals {
        let (mut arrivals, mut now) = (Arrivals::default(), Instant(1_000_000));
        arrivals.beat(now, 0, 20_000);
        for gap_us in gaps_us {
            now = now.after(gap_us);
            arrivals.beat(now, 0, 20_000);
        }
        arrivals
    }

    #[test]
    fn a_steady_neighbour_keeps_the_configured_deadline() {
        let steady = after([20_000, 19_900, 20_100].repeat(30));
        assert_eq!(steady.deadline_us(60_000, 240_000), 60_000);
        // One lost beat changes little.
        let with_a_loss = after([[20_000; 50].as_slice(), &[40_000]].concat());
        assert!(with_a_loss.deadline_us(60_000, 240_000) <= 70_000);
    }

    #[test]
    fn a_jittery_one_is_given_more_within_the_cap_and_less_again_when_it_is_steady() {
        let jittery = after([1_000, 75_000, 5_000, 3_000, 60_000].repeat(20));
        let deadline_us = jittery.deadline_us(60_000, 240_000);
        assert!((100_000..=240_000).contains(&deadline_us), "{deadline_us}");
        assert_eq!(jittery.deadline_us(60_000, 90_000), 90_000);
        let calm = after([[1_000, 75_000].repeat(20), vec![20_000; 500]].concat());
        assert_eq!(calm.deadline_us(60_000, 240_000), 60_000);
    }

    #[test]
    fn excused_and_overslept_gaps_do_not_count() {
        let (mut arrivals, mut now) = (after([20_000; 30]), Instant(1_600_000));
        let before = arrivals;
        now = now.after(500_000);
        arrivals.beat(now, 490_000, 20_000);
        assert_eq!(arrivals.mean_us(), before.mean_us());
        arrivals.forget_last();
        arrivals.beat(now.after(60_000_000), 0, 20_000);
        assert_eq!(arrivals.mean_us(), before.mean_us());
    }
}
