//! Ticks: a process that announced a tick period, and does not tick in time, is hung.
//!
//! A tick is a counter in the state table that the process increments. The announced period is stored next to it, so
//! no message is necessary. The following thread checks all ticks four times in the shortest announced period. A
//! process announces a period only for itself. A check that runs late reports no process.

use std::sync::atomic::Ordering;

use super::{Followed, Phase, Shared};
use muster_sys::procfs;

/// Minimum and maximum time between two checks. The maximum is needed because a process may announce a shorter period
/// between two checks.
const CHECK_PAUSE_MIN_NS: u64 = 5_000_000;
const CHECK_PAUSE_MAX_NS: u64 = 500_000_000;
const NS_PER_MS: u64 = 1_000_000;

/// The schedule of the checks.
#[derive(Debug)]
pub(super) struct Pace {
    /// The last check.
    checked_ns: u64,
    /// The time between two checks; none while no process has announced a period.
    pause_ns: Option<u64>,
}

impl Pace {
    pub(super) fn new(now_ns: u64) -> Self {
        Self {
            checked_ns: now_ns,
            pause_ns: None,
        }
    }

    fn next_ns(&self) -> u64 {
        self.pause_ns
            .map_or(u64::MAX, |pause_ns| self.checked_ns + pause_ns)
    }
}

impl Shared {
    /// Checks the ticks of all processes that announced a period, if it is time, or if none had at the last check.
    /// Returns the time of the next check.
    pub(super) fn check_ticks(&self, pace: &mut Pace, now_ns: u64) -> u64 {
        if pace.pause_ns.is_some() && now_ns < pace.next_ns() {
            return pace.next_ns();
        }
        let late = pace
            .pause_ns
            .is_some_and(|pause_ns| now_ns - pace.checked_ns > 2 * pause_ns);
        let (mut shortest_ns, mut missing) = (None, Vec::new());
        for (slot, entry) in (0..).zip(self.lock().iter_mut()) {
            let Some(period_ns) = self.period_ns(slot, entry) else {
                continue;
            };
            shortest_ns = Some(shortest_ns.map_or(period_ns, |least: u64| least.min(period_ns)));
            let tick = self.table.tick(slot).load(Ordering::Acquire);
            match &mut entry.ticked {
                Some((last, since_ns)) if *last == tick => {
                    if late {
                        *since_ns = now_ns;
                    } else if now_ns - *since_ns > period_ns && !entry.tickless {
                        missing.push(slot);
                    }
                }
                ticked => {
                    *ticked = Some((tick, now_ns));
                    entry.tickless = false;
                    self.report_if_hung(slot, entry);
                }
            }
        }
        for slot in missing {
            self.handle_missing_tick(slot, now_ns);
        }
        pace.checked_ns = now_ns;
        pace.pause_ns =
            shortest_ns.map(|ns| (ns / 4).clamp(CHECK_PAUSE_MIN_NS, CHECK_PAUSE_MAX_NS));
        pace.next_ns()
    }

    /// The announced tick period of the process in a slot. It ends with the thread that holds the futex word, because
    /// no other thread could withdraw it.
    fn period_ns(&self, slot: u32, entry: &mut Followed) -> Option<u64> {
        let period = match entry.phase {
            Phase::Claimed | Phase::Armed => self.table.slot(slot)?.tick_period_ms(),
            Phase::Detached => None,
            Phase::Idle | Phase::Over => return None,
        };
        if period.is_none() && entry.ticked.take().is_some() {
            // The process has withdrawn it.
            entry.tickless = false;
            self.report_if_hung(slot, entry);
        }
        Some(u64::from(period?) * NS_PER_MS)
    }

    /// Handles a missing tick: the kernel may show the reason.
    fn handle_missing_tick(&self, slot: u32, now_ns: u64) {
        self.sample_one(slot, now_ns);
        if self.was_frozen(slot) {
            return self.reset_ticks(slot, now_ns);
        }
        let mut slots = self.lock();
        let entry = &mut slots[slot as usize];
        // A traced process was reset above, an ended one is not hung, and the process may just have ticked.
        let missing = entry.ticked.is_some_and(|(last, since_ns)| {
            since_ns < now_ns && self.table.tick(slot).load(Ordering::Acquire) == last
        });
        if missing && entry.phase.is_followed() {
            entry.tickless = true;
            self.report_if_hung(slot, entry);
        }
    }

    /// Whether the process in a slot is frozen by its control group, or was at the last call: then less than a period
    /// has passed since it was thawed.
    fn was_frozen(&self, slot: u32) -> bool {
        let (pid, stat) = {
            let slots = self.lock();
            let entry = &slots[slot as usize];
            (entry.pid, entry.stat.clone())
        };
        let flags = stat.and_then(|stat| Some(stat.read().ok()?.flags));
        let is_frozen = procfs::is_frozen(pid, flags.unwrap_or(0));
        let mut slots = self.lock();
        let entry = &mut slots[slot as usize];
        // The slot may have another process by now.
        entry.pid == pid && (std::mem::replace(&mut entry.frozen, is_frozen) || is_frozen)
    }

    /// Starts the tick period again, because the process could not tick until now.
    pub(super) fn reset_ticks(&self, slot: u32, now_ns: u64) {
        self.lock()[slot as usize].reset_ticks(now_ns);
    }
}

impl Followed {
    pub(super) fn reset_ticks(&mut self, now_ns: u64) {
        self.tickless = false;
        self.ticked = self.ticked.map(|(tick, _)| (tick, now_ns));
    }
}
