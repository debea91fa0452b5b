//! `Slice` is the time that one round of the loop has for its own node: connections, messages and requests of its
//! ranks, findings of the kernel about them, requests of operators, and events for all of these.
//!
//! The loop must send its heartbeats whatever the amount of this work. Each kind of work is done in small units, ends
//! when the slice is over, and continues in the next round. A kind of work that finds the slice over still does one
//! unit, so that none starves. After a slice that is used up the loop sleeps, because a real-time thread that never
//! sleeps loses its priority. Rounds without a sleep between them share one slice. Otherwise work that arrives as
//! fast as it is done would never use up a slice.

use std::time::Duration;

use muster_sys::clock::monotonic_ns;

/// A slice is this fraction of the deadline. A slice, one more unit of each kind of work, and work that cannot be
/// divided must fit into a quarter of the deadline. The fraction is small because agents that share a core wait for
/// each other.
const DEADLINE_FRACTION: u64 = 32;
/// Maximum length of a slice.
const SLICE_MAX: Duration = Duration::from_millis(2);
/// Maximum number of slices whose time is carried over to the next rounds.
const SLICES_OWED_MAX: u64 = 2;

/// The time of one round.
#[derive(Debug, Clone, Copy)]
pub(super) struct Slice {
    until_ns: u64,
    length: Duration,
}

impl Slice {
    /// A slice that begins now, less the time that previous rounds used.
    fn begin(deadline_us: u64, spent_ns: u64) -> Self {
        let length = Duration::from_micros(deadline_us / DEADLINE_FRACTION).min(SLICE_MAX);
        Self {
            until_ns: monotonic_ns() + (length.as_nanos() as u64).saturating_sub(spent_ns),
            length,
        }
    }

    /// The first half of its remaining time.
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

    /// The length of the loop's pause after it is used up.
    fn pause(&self, is_sustained: bool) -> Duration {
        match is_sustained {
            false => self.length,
            true => self.length * SUSTAINED_PAUSES,
        }
    }
}

/// A burst of work, as at the start of a job, may use half of a core. For work beyond this burst, each slice is
/// followed by a pause of this many slices. The agent then uses a sixteenth of a core, and agents that share a core
/// do not block each other.
const BURST_NS_MAX: u64 = 100_000_000;
const SUSTAINED_PAUSES: u32 = 15;

/// The amount of this work.
#[derive(Debug, Default)]
pub(super) struct LocalWork {
    /// The end of the loop's pause in this work, if it pauses.
    pub(super) resume_ns: Option<u64>,
    /// Time used since the loop last slept long enough.
    spent_ns: u64,
    /// Time used of the burst.
    burst_ns: u64,
    /// Slices that were used up, or ended with work left.
    pub(super) cut: u64,
    /// The longest time of one round, in microseconds.
    pub(super) longest_us: u64,
}

impl LocalWork {
    /// The slice of the round that begins now.
    pub(super) fn slice(&self, deadline_us: u64) -> Slice {
        Slice::begin(deadline_us, self.spent_ns)
    }

    /// Ends a round that began at this time. If work is left, or the slice is over, the loop pauses this work.
    pub(super) fn note(&mut self, begun_ns: u64, slice: &Slice, has_more: bool) {
        let now_ns = monotonic_ns();
        let took_ns = now_ns.saturating_sub(begun_ns);
        self.longest_us = self.longest_us.max(took_ns / 1000);
        // A round may have been long because the machine was busy.
        let most_ns = slice.length.as_nanos() as u64 * SLICES_OWED_MAX;
        self.spent_ns = (self.spent_ns + took_ns).min(most_ns);
        self.burst_ns = (self.burst_ns + took_ns).min(BURST_NS_MAX);
        if self.is_paused() {
            return;
        }
        let pauses = has_more || slice.is_over();
        self.cut += u64::from(pauses);
        let pause = slice.pause(self.burst_ns == BURST_NS_MAX);
        self.resume_ns = pauses.then(|| now_ns + pause.as_nanos() as u64);
    }

    /// Notes a sleep. A full pause makes up for a slice, a shorter sleep for a part of it.
    pub(super) fn slept(&mut self, slept_ns: u64) {
        self.spent_ns = self.spent_ns.saturating_sub(slept_ns);
        let recovered_ns = slept_ns / u64::from(SUSTAINED_PAUSES);
        self.burst_ns = self.burst_ns.saturating_sub(recovered_ns);
    }

    /// Whether the pause after a slice is not over yet.
    pub(super) fn is_paused(&self) -> bool {
        self.resume_ns
            .is_some_and(|resume_ns| monotonic_ns() < resume_ns)
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
    fn a_round_that_left_work_is_followed_by_a_pause() {
        let mut work = LocalWork::default();
        // A slice of one day cannot end before the assertion.
        let slice = Slice {
            until_ns: u64::MAX,
            length: Duration::from_secs(86_400),
        };
        work.note(monotonic_ns(), &slice, false);
        assert!(!work.is_paused() && work.cut == 0);
        work.note(monotonic_ns(), &slice, true);
        assert!(work.is_paused() && work.cut == 1);
    }

    /// Work that is done as fast as it arrives leaves nothing over in any round.
    #[test]
    fn rounds_without_a_sleep_between_them_share_one_slice() {
        const DEADLINE_US: u64 = 60_000;
        let mut work = LocalWork::default();
        let took_ns = work.slice(DEADLINE_US).length.as_nanos() as u64;
        for _ in 0..2 {
            work.note(monotonic_ns() - took_ns, &work.slice(DEADLINE_US), false);
            assert!(work.slice(DEADLINE_US).is_over());
        }
        assert!(work.cut >= 1, "the second round finds the slice used up");
        work.slept(SLICES_OWED_MAX * took_ns);
        assert!(!work.slice(DEADLINE_US).is_over());
    }

    #[test]
    fn sustained_work_is_followed_by_longer_pauses_than_a_burst() {
        const DEADLINE_US: u64 = 60_000;
        let mut work = LocalWork::default();
        let pause = |work: &mut LocalWork| {
            let slice = work.slice(DEADLINE_US);
            let took_ns = slice.length.as_nanos() as u64;
            let begun_ns = monotonic_ns();
            work.note(begun_ns - took_ns, &slice, true);
            let pause_ns = work.resume_ns.take().unwrap() - begun_ns;
            work.slept(pause_ns);
            (pause_ns, took_ns)
        };
        let (first_ns, slice_ns) = pause(&mut work);
        let rounds = BURST_NS_MAX / slice_ns * 2;
        let last_ns = (0..rounds).map(|_| pause(&mut work).0).last().unwrap();
        assert!(first_ns >= slice_ns);
        assert!(
            last_ns >= u64::from(SUSTAINED_PAUSES) * slice_ns,
            "{last_ns}"
        );
    }
}
