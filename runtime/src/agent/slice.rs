//! The time that one turn of the loop has for its own node: connections, messages and questions of its ranks,
//! findings of the kernel about them, questions of operators, events for all of these.
//!
//! However much of that comes, the loop must beat: each kind of work is done in small units, ends when the slice is
//! over, and goes on in the next turn. Of a kind that finds the slice used up one unit is done all the same, so
//! that none starves. Between two turns that had more to do than time the loop sleeps for a moment: a
//! real-time thread that never does loses its priority.

use std::time::Duration;

use crate::sys::clock::monotonic_ns;

/// A slice is this part of the deadline. What a turn does of each kind beyond it, and what cannot be cut, has as
/// much again: together a quarter of the deadline.
const PART_OF_DEADLINE: u64 = 8;
/// A slice is never longer.
const SLICE_MAX: Duration = Duration::from_millis(10);
/// The pause is this part of a slice.
const PART_OF_SLICE: u32 = 4;

/// The time of one turn.
#[derive(Debug, Clone, Copy)]
pub(super) struct Slice {
    until_ns: u64,
    length: Duration,
}

impl Slice {
    /// One that begins now.
    pub(super) fn begin(deadline_us: u64) -> Self {
        let length = Duration::from_micros(deadline_us / PART_OF_DEADLINE).min(SLICE_MAX);
        Self {
            until_ns: monotonic_ns() + length.as_nanos() as u64,
            length,
        }
    }

    /// The first half of what is left of it.
    pub(super) fn half(&self) -> Self {
        let left_ns = self.until_ns.saturating_sub(monotonic_ns());
        Self {
            until_ns: self.until_ns - left_ns / 2,
            length: self.length / 2,
        }
    }

    pub(super) fn is_over(&self) -> bool {
        monotonic_ns() >= self.until_ns
    }

    /// How long the loop rests behind a turn that left work over.
    pub(super) fn pause(&self) -> Duration {
        self.length / PART_OF_SLICE
    }
}

/// How much of this work there was.
#[derive(Debug, Default)]
pub(super) struct LocalWork {
    /// Work was left over: it is looked at again at this time.
    pub(super) again_ns: Option<u64>,
    /// Turns that left work over.
    pub(super) cut: u64,
    /// The longest time that one turn spent on it, in microseconds.
    pub(super) longest_us: u64,
}

impl LocalWork {
    /// A turn is over that began its work at this time.
    pub(super) fn note(&mut self, begun_ns: u64, slice: &Slice, is_left: bool) {
        let now_ns = monotonic_ns();
        self.longest_us = self.longest_us.max((now_ns - begun_ns) / 1000);
        self.cut += u64::from(is_left);
        self.again_ns = is_left.then(|| now_ns + slice.pause().as_nanos() as u64);
    }

    /// Whether the pause behind the last turn is not over.
    pub(super) fn is_resting(&self) -> bool {
        self.again_ns
            .is_some_and(|again_ns| monotonic_ns() < again_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_of_all_profiles_leave_a_quarter_of_the_deadline() {
        for deadline_us in [40_000, 60_000, 1_000_000] {
            let slice = Slice::begin(deadline_us);
            assert!(slice.length.as_micros() as u64 <= deadline_us / 8);
            assert!(slice.pause() < slice.length && !slice.pause().is_zero());
            assert!(slice.half().until_ns <= slice.until_ns);
        }
    }

    #[test]
    fn a_turn_that_left_work_over_is_followed_by_a_pause() {
        let (mut work, slice) = (LocalWork::default(), Slice::begin(60_000));
        work.note(monotonic_ns(), &slice, false);
        assert!(!work.is_resting() && work.cut == 0);
        work.note(monotonic_ns(), &slice, true);
        assert_eq!(work.cut, 1);
        assert!(
            work.again_ns
                .is_some_and(|at| at > monotonic_ns() - 1_000_000_000)
        );
    }
}
