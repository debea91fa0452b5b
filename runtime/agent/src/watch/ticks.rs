//! Ticks: a process that promised to tick every so often, and does not, is hung.
//!
//! A tick is a number on the board that the process counts up, and the promise stands beside it, so
//! nobody here is told anything: the following thread looks four times in the shortest period that
//! was promised. What a process promises concerns nobody but itself. A thread that looks too late
//! itself holds nothing against anybody.

use std::sync::atomic::Ordering;

use super::{Followed, Phase, Shared};
use muster_sys::procfs;

/// The shortest time between two looks, and the longest: somebody may promise shorter ticks meanwhile.
const LOOK_LEAST_NS: u64 = 5_000_000;
const LOOK_MOST_NS: u64 = 500_000_000;
const NS_PER_MS: u64 = 1_000_000;

/// When the ticks are looked at.
#[derive(Debug)]
pub(super) struct Pace {
    /// The last look.
    looked_ns: u64,
    /// The time between two looks; none while nobody has promised anything.
    pause_ns: Option<u64>,
}

impl Pace {
    pub(super) fn new(now_ns: u64) -> Self {
        Self {
            looked_ns: now_ns,
            pause_ns: None,
        }
    }

    fn next_ns(&self) -> u64 {
        self.pause_ns
            .map_or(u64::MAX, |pause_ns| self.looked_ns + pause_ns)
    }
}

impl Shared {
    /// Looks at the ticks of all who promised some, if it is time to, or nobody had at the last look.
    /// Says when to look again.
    pub(super) fn look_at_ticks(&self, pace: &mut Pace, now_ns: u64) -> u64 {
        if pace.pause_ns.is_some() && now_ns < pace.next_ns() {
            return pace.next_ns();
        }
        let late = pace
            .pause_ns
            .is_some_and(|pause_ns| now_ns - pace.looked_ns > 2 * pause_ns);
        let (mut shortest_ns, mut missing) = (None, Vec::new());
        for (slot, entry) in (0..).zip(self.lock().iter_mut()) {
            let Some(period_ns) = self.promised_ns(slot, entry) else {
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
                    self.say_if_hung(slot, entry);
                }
            }
        }
        for slot in missing {
            self.miss(slot, now_ns);
        }
        pace.looked_ns = now_ns;
        pace.pause_ns = shortest_ns.map(|ns| (ns / 4).clamp(LOOK_LEAST_NS, LOOK_MOST_NS));
        pace.next_ns()
    }

    /// How long the process in a slot may go without a tick. A promise ends with the thread that holds
    /// the word: nobody is left who could take it back.
    fn promised_ns(&self, slot: u32, entry: &mut Followed) -> Option<u64> {
        let promised = match entry.phase {
            Phase::Claimed | Phase::Armed => self.table.slot(slot)?.tick_period_ms(),
            Phase::Detached => None,
            Phase::Idle | Phase::Over => return None,
        };
        if promised.is_none() && entry.ticked.take().is_some() {
            // Taken back.
            entry.tickless = false;
            self.say_if_hung(slot, entry);
        }
        Some(u64::from(promised?) * NS_PER_MS)
    }

    /// A tick is missing: the kernel may know why.
    fn miss(&self, slot: u32, now_ns: u64) {
        self.sample_one(slot, now_ns);
        if self.was_frozen(slot) {
            return self.forgive_ticks(slot, now_ns);
        }
        let mut slots = self.lock();
        let entry = &mut slots[slot as usize];
        // Being traced is forgiven there, an end is no hang, and it may just have ticked.
        let missing = entry.ticked.is_some_and(|(last, since_ns)| {
            since_ns < now_ns && self.table.tick(slot).load(Ordering::Acquire) == last
        });
        if missing && entry.phase.is_followed() {
            entry.tickless = true;
            self.say_if_hung(slot, entry);
        }
    }

    /// Whether the process in a slot is frozen by its control group, or was when this was asked last: then it has had
    /// less than a period since.
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
        // Another process may be there by now.
        entry.pid == pid && (std::mem::replace(&mut entry.frozen, is_frozen) || is_frozen)
    }

    /// It could not tick until now.
    pub(super) fn forgive_ticks(&self, slot: u32, now_ns: u64) {
        self.lock()[slot as usize].forgive_ticks(now_ns);
    }
}

impl Followed {
    pub(super) fn forgive_ticks(&mut self, now_ns: u64) {
        self.tickless = false;
        self.ticked = self.ticked.map(|(tick, _)| (tick, now_ns));
    }
}
