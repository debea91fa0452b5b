//! The time that one turn of the loop has for its own node: connections, messages and questions of its ranks,
//! findings of the kernel about them, questions of operators, events for all of these.
//!
//! However much of that comes, the loop must beat: each kind of work is done in small units, ends when the slice is
//! over, and goes on in the next turn. Of a kind that finds the slice used up one unit is done all the same, so
//! that none starves. When a slice is used up the loop sleeps for a moment: a real-time thread that never sleeps
//! loses its priority. Turns between which the loop did not sleep share one slice: work that comes as fast as it
//! is done would otherwise never use one up.

use std::time::Duration;

use muster_sys::clock::monotonic_ns;

/// A slice is this part of the deadline. What a turn does of each kind beyond it, and what cannot be cut, is to fit
/// into a quarter of the deadline together with it. A small part, as agents that share a core wait for each other.
const PART_OF_DEADLINE: u64 = 32;
/// A slice is never longer.
const SLICE_MAX: Duration = Duration::from_millis(2);
/// More slices than that are not made up for.
const SLICES_OWED_MAX: u64 = 2;

/// The time of one turn.
#[derive(Debug, Clone, Copy)]
pub(super) struct Slice {
    until_ns: u64,
    length: Duration,
}

impl Slice {
    /// One that begins now, and of which this much was used up in the turns before.
    fn begin(deadline_us: u64, spent_ns: u64) -> Self {
        let length = Duration::from_micros(deadline_us / PART_OF_DEADLINE).min(SLICE_MAX);
        Self {
            until_ns: monotonic_ns() + (length.as_nanos() as u64).saturating_sub(spent_ns),
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

    /// How long the loop rests when it is used up.
    fn pause(&self, lasts: bool) -> Duration {
        match lasts {
            false => self.length,
            true => self.length * PAUSES_OF_LASTING,
        }
    }
}

/// A burst of work, as at the start of a job, is served at half of a core. Of what lasts longer than this burst, a
/// slice is followed by a pause of so many slices: then it takes a sixteenth of a core from the application, and agents
/// that share a core leave time to each other.
const BURST_NS_MAX: u64 = 100_000_000;
const PAUSES_OF_LASTING: u32 = 15;

/// How much of this work there was.
#[derive(Debug, Default)]
pub(super) struct LocalWork {
    /// The loop rests from it: it is looked at again at this time.
    pub(super) again_ns: Option<u64>,
    /// Time that it took since the loop last rested for long enough.
    spent_ns: u64,
    /// The same of the burst.
    burst_ns: u64,
    /// Slices that were used up, or ended with work left over.
    pub(super) cut: u64,
    /// The longest time that one turn spent on it, in microseconds.
    pub(super) longest_us: u64,
}

impl LocalWork {
    /// The time that the turn which begins now has.
    pub(super) fn slice(&self, deadline_us: u64) -> Slice {
        Slice::begin(deadline_us, self.spent_ns)
    }

    /// A turn ends that began its work at this time. If work is left, or the slice is over, the loop rests.
    pub(super) fn note(&mut self, begun_ns: u64, slice: &Slice, is_left: bool) {
        let now_ns = monotonic_ns();
        let took_ns = now_ns.saturating_sub(begun_ns);
        self.longest_us = self.longest_us.max(took_ns / 1000);
        // A turn may have been long because the machine was.
        let most_ns = slice.length.as_nanos() as u64 * SLICES_OWED_MAX;
        self.spent_ns = (self.spent_ns + took_ns).min(most_ns);
        self.burst_ns = (self.burst_ns + took_ns).min(BURST_NS_MAX);
        if self.is_resting() {
            return;
        }
        let rests = is_left || slice.is_over();
        self.cut += u64::from(rests);
        let pause = slice.pause(self.burst_ns == BURST_NS_MAX);
        self.again_ns = rests.then(|| now_ns + pause.as_nanos() as u64);
    }

    /// The loop slept for this long: a pause makes up for a slice, and a shorter sleep for less.
    pub(super) fn slept(&mut self, slept_ns: u64) {
        self.spent_ns = self.spent_ns.saturating_sub(slept_ns);
        let made_up_ns = slept_ns / u64::from(PAUSES_OF_LASTING);
        self.burst_ns = self.burst_ns.saturating_sub(made_up_ns);
    }

    /// Whether the pause behind a slice is not over.
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
            let slice = LocalWork::default().slice(deadline_us);
            assert!(slice.length.as_micros() as u64 <= deadline_us / 8);
            assert!(!slice.pause(false).is_zero());
            assert!(slice.half().until_ns <= slice.until_ns);
        }
    }

    #[test]
    fn a_turn_that_left_work_over_is_followed_by_a_pause() {
        let mut work = LocalWork::default();
        // Of a day: it is not over before the assertion.
        let slice = Slice {
            until_ns: u64::MAX,
            length: Duration::from_secs(86_400),
        };
        work.note(monotonic_ns(), &slice, false);
        assert!(!work.is_resting() && work.cut == 0);
        work.note(monotonic_ns(), &slice, true);
        assert!(work.is_resting() && work.cut == 1);
    }

    /// A flood that is served as fast as it comes leaves nothing over in any turn.
    #[test]
    fn turns_without_a_sleep_between_them_share_one_slice() {
        const DEADLINE_US: u64 = 60_000;
        let mut work = LocalWork::default();
        let took_ns = work.slice(DEADLINE_US).length.as_nanos() as u64;
        for _ in 0..2 {
            work.note(monotonic_ns() - took_ns, &work.slice(DEADLINE_US), false);
            assert!(work.slice(DEADLINE_US).is_over());
        }
        assert!(work.cut >= 1, "the second turn finds the slice used up");
        work.slept(SLICES_OWED_MAX * took_ns);
        assert!(!work.slice(DEADLINE_US).is_over());
    }

    #[test]
    fn what_lasts_is_followed_by_longer_pauses_than_a_burst() {
        const DEADLINE_US: u64 = 60_000;
        let mut work = LocalWork::default();
        let pause = |work: &mut LocalWork| {
            let slice = work.slice(DEADLINE_US);
            let took_ns = slice.length.as_nanos() as u64;
            let begun_ns = monotonic_ns();
            work.note(begun_ns - took_ns, &slice, true);
            let pause_ns = work.again_ns.take().unwrap() - begun_ns;
            work.slept(pause_ns);
            (pause_ns, took_ns)
        };
        let (first_ns, slice_ns) = pause(&mut work);
        let turns = BURST_NS_MAX / slice_ns * 2;
        let last_ns = (0..turns).map(|_| pause(&mut work).0).last().unwrap();
        assert!(first_ns >= slice_ns);
        assert!(
            last_ns >= u64::from(PAUSES_OF_LASTING) * slice_ns,
            "{last_ns}"
        );
    }
}
