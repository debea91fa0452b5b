//! The thread that follows processes by their pidfds and by sampling at 2 Hz.
//!
//! It covers the cases that the futex words do not: a process that never held its word, one whose holding thread
//! ended, one that is stopped or stuck, and one that writes a core dump (which happens *before* the kernel releases
//! the word, by seconds for a large process). It sleeps without time-out while there is no process to follow.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::classify::{self, Liveness};
use super::{FailedBy, Finding, Followed, HungBy, Phase, Shared, ticks};
use muster_sys::clock::monotonic_ns;
use muster_sys::procfs::{self, Stat};

/// The token of the wake-up descriptor. No slot and generation yield it.
pub(super) const WAKE_UP: u64 = u64::MAX;
/// Time between two samples of a process.
const SAMPLE_NS: u64 = 500_000_000;
/// Minimum time in uninterruptible sleep for a process to count as stuck.
const STUCK_NS: u64 = 2_000_000_000;

/// The epoll token of a slot's pidfd.
pub(super) fn token(slot: u32, generation: u32) -> u64 {
    u64::from(slot) | u64::from(generation) << 32
}

impl Shared {
    pub(super) fn follow(&self) {
        let mut ready = Vec::new();
        let mut next_sample_ns = monotonic_ns() + SAMPLE_NS;
        let mut ticks = ticks::Pace::new(monotonic_ns());
        while !self.stopping.load(Ordering::Acquire) {
            let now = monotonic_ns();
            let has_followed = self.lock().iter().any(|entry| entry.phase.is_followed());
            if now >= next_sample_ns {
                self.open_missing();
                next_sample_ns = now + SAMPLE_NS;
                self.sample(now);
            }
            let next_ns = next_sample_ns.min(self.check_ticks(&mut ticks, now));
            let pause = Duration::from_nanos(next_ns.saturating_sub(now));
            if self
                .epoll
                .wait(&mut ready, has_followed.then_some(pause))
                .is_err()
            {
                self.failures.fetch_add(1, Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(10));
            }
            for ready in &ready {
                if ready.token == WAKE_UP {
                    self.wake_up.drain();
                } else {
                    self.ended(ready.token as u32, (ready.token >> 32) as u32);
                }
            }
        }
    }

    /// Handles the kernel's report, by the pidfd, that a process has ended.
    fn ended(&self, slot: u32, generation: u32) {
        let file = self.lock().get(slot as usize).and_then(|entry| {
            (entry.generation == generation).then_some(())?;
            entry.stat.clone()
        });
        let status = file.and_then(|file| file.read().ok());
        let (signal, code) = status.map_or((0, 0), |stat| (stat.signal(), stat.exit_code()));
        self.conclude_dead(slot, generation, FailedBy::Pidfd, signal, code);
    }

    fn sample(&self, now_ns: u64) {
        for slot in 0..self.table.slot_count() {
            self.sample_one(slot, now_ns);
        }
    }

    /// Samples the process of a slot, if there is one to follow.
    pub(super) fn sample_one(&self, slot: u32, now_ns: u64) {
        let (generation, pid, detached, file) = {
            let slots = self.lock();
            let entry = &slots[slot as usize];
            if !entry.phase.is_followed() {
                return;
            }
            let detached = entry.phase == Phase::Detached;
            (entry.generation, entry.pid, detached, entry.stat.clone())
        };
        match file.map(|file| file.read()) {
            Some(Ok(stat)) => self.classify(slot, generation, pid, detached, &stat, now_ns),
            // The process was reaped.
            Some(Err(cause)) if procfs::is_gone(&cause) => {
                self.conclude_dead(slot, generation, FailedBy::Gone, 0, 0);
            }
            // Not known now; the next sample may succeed.
            Some(Err(_)) | None => {}
        }
    }

    fn classify(
        &self,
        slot: u32,
        generation: u32,
        pid: u32,
        detached: bool,
        stat: &Stat,
        now: u64,
    ) {
        if stat.hints_at_core_dump() && procfs::is_dumping_core(pid) == Some(true) {
            self.conclude_dead(slot, generation, FailedBy::CoreDump, stat.signal(), 0);
            return;
        }
        // A detached process has no futex word that would be faster. Neither has a zombie without a pidfd.
        if (detached || stat.state == b'Z')
            && let Liveness::Dying { signal, exit_code } =
                classify::inspect_until_clear(pid, stat.start_ticks)
        {
            self.conclude_dead(slot, generation, FailedBy::Gone, signal, exit_code);
            return;
        }
        let stuck = self.is_stuck(slot, generation, stat, now);
        let hung = match stat.state {
            b'T' => Some(HungBy::Stopped),
            b'D' if stuck && !procfs::is_frozen(pid, stat.flags) => Some(HungBy::Stuck),
            // Traced ('t'): a debugger is attached. The process keeps its last state.
            b't' => return self.reset_ticks(slot, now),
            _ => None,
        };
        self.note_asleep(slot, generation, hung, now);
    }

    /// Whether it has been in uninterruptible sleep, without using the processor, for [`STUCK_NS`].
    fn is_stuck(&self, slot: u32, generation: u32, stat: &Stat, now: u64) -> bool {
        let mut slots = self.lock();
        let entry = &mut slots[slot as usize];
        if entry.generation != generation || stat.state != b'D' {
            entry.stuck_since = None;
            return false;
        }
        match entry.stuck_since {
            Some((since, cpu)) if cpu == stat.cpu_ticks => now - since >= STUCK_NS,
            _ => {
                entry.stuck_since = Some((now, stat.cpu_ticks));
                false
            }
        }
    }

    /// Notes the state that the kernel shows: stopped, stuck, or neither.
    fn note_asleep(&self, slot: u32, generation: u32, asleep: Option<HungBy>, now: u64) {
        let mut slots = self.lock();
        let entry = &mut slots[slot as usize];
        if entry.generation != generation || !entry.phase.is_followed() || entry.asleep == asleep {
            return;
        }
        entry.asleep = asleep;
        if asleep.is_none() {
            // The tick period starts again, because a stopped process could not tick.
            entry.reset_ticks(now);
        }
        self.report_if_hung(slot, entry);
    }

    /// Reports if the process has become hung, or is not any more.
    pub(super) fn report_if_hung(&self, slot: u32, entry: &mut Followed) {
        let hung = entry.asleep.or(entry.tickless.then_some(HungBy::NoTick));
        if entry.hung != hung {
            entry.hung = hung;
            let finding = hung.map_or(Finding::Resumed, Finding::Hung);
            self.report(slot, entry, finding);
        }
    }
}

impl Phase {
    pub(super) fn is_followed(self) -> bool {
        matches!(self, Self::Claimed | Self::Armed | Self::Detached)
    }
}
