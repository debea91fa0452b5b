//! The thread that follows processes by their pidfds and by looking at them twice a second.
//!
//! It covers what the words cannot tell: a process that never held its word, one whose holding
//! thread ended, one that is stopped, stuck, or writes a core dump (which comes *before* the
//! kernel releases the word, by seconds for a large process). It sleeps for good while there is
//! nobody to follow.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::classify::{self, Fate};
use super::{FailedBy, Finding, Followed, HungBy, Phase, Shared, ticks};
use muster_sys::clock::monotonic_ns;
use muster_sys::procfs::{self, Stat};

/// The token of the wake-up descriptor; no slot and generation make it.
pub(super) const POKED: u64 = u64::MAX;
/// Time between two looks at a process.
const SAMPLE_NS: u64 = 500_000_000;
/// How long uninterruptible sleep must last to be called stuck.
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
            let anybody = self.lock().iter().any(|entry| entry.phase.is_followed());
            if now >= next_sample_ns {
                self.open_missing();
                next_sample_ns = now + SAMPLE_NS;
                self.sample(now);
            }
            let next_ns = next_sample_ns.min(self.look_at_ticks(&mut ticks, now));
            let pause = Duration::from_nanos(next_ns.saturating_sub(now));
            if self
                .epoll
                .wait(&mut ready, anybody.then_some(pause))
                .is_err()
            {
                self.failures.fetch_add(1, Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(10));
            }
            for ready in &ready {
                if ready.token == POKED {
                    self.poked.drain();
                } else {
                    self.ended(ready.token as u32, (ready.token >> 32) as u32);
                }
            }
        }
    }

    /// The kernel says that the process has ended.
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

    /// Looks at the process of a slot, if there is one to follow.
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
            Some(Ok(stat)) => self.judge(slot, generation, pid, detached, &stat, now_ns),
            // Reaped.
            Some(Err(cause)) if procfs::is_gone(&cause) => {
                self.conclude_dead(slot, generation, FailedBy::Gone, 0, 0);
            }
            // No telling; the next look may.
            Some(Err(_)) | None => {}
        }
    }

    fn judge(&self, slot: u32, generation: u32, pid: u32, detached: bool, stat: &Stat, now: u64) {
        if stat.hints_at_core_dump() && procfs::is_dumping_core(pid) == Some(true) {
            self.conclude_dead(slot, generation, FailedBy::CoreDump, stat.signal(), 0);
            return;
        }
        // A detached process has no word that could tell faster; a zombie without a pidfd neither.
        if (detached || stat.state == b'Z')
            && let Fate::Dying { signal, exit_code } = classify::glance(pid, stat.start_ticks)
        {
            self.conclude_dead(slot, generation, FailedBy::Gone, signal, exit_code);
            return;
        }
        let stuck = self.is_stuck(slot, generation, stat, now);
        let hung = match stat.state {
            b'T' => Some(HungBy::Stopped),
            b'D' if stuck && !procfs::is_frozen(pid, stat.flags) => Some(HungBy::Stuck),
            // Traced ('t'): somebody looks at it with a debugger. It keeps what it was.
            b't' => return self.forgive_ticks(slot, now),
            _ => None,
        };
        self.note_asleep(slot, generation, hung, now);
    }

    /// Whether it has been in uninterruptible sleep, without using the processor, for long.
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

    /// Notes what the kernel shows: stopped, stuck, or neither.
    fn note_asleep(&self, slot: u32, generation: u32, asleep: Option<HungBy>, now: u64) {
        let mut slots = self.lock();
        let entry = &mut slots[slot as usize];
        if entry.generation != generation || !entry.phase.is_followed() || entry.asleep == asleep {
            return;
        }
        entry.asleep = asleep;
        if asleep.is_none() {
            // It begins anew; who was stopped could not tick.
            entry.forgive_ticks(now);
        }
        self.say_if_hung(slot, entry);
    }

    /// Says it if the process has become hung, or is not any more.
    pub(super) fn say_if_hung(&self, slot: u32, entry: &mut Followed) {
        let hung = entry.asleep.or(entry.tickless.then_some(HungBy::NoTick));
        if entry.hung != hung {
            entry.hung = hung;
            let finding = hung.map_or(Finding::Resumed, Finding::Hung);
            self.say(slot, entry, finding);
        }
    }
}

impl Phase {
    pub(super) fn is_followed(self) -> bool {
        matches!(self, Self::Claimed | Self::Armed | Self::Detached)
    }
}
