//! The threads that wait for the words on the board.
//!
//! A wake says only "look again": every pass looks at all words of the group before it sleeps, so
//! nothing is lost between two waits. A word is expected to keep the value just read; if it
//! changed meanwhile the kernel does not put us to sleep.
//!
//! Each pass takes one look at everybody whose word was released. Who cannot be told from a living one
//! yet (an exec, or a kill that has just begun) is looked at again in the next passes, so nobody's death
//! waits for another's riddle, however many there are.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};

use super::{GROUP_SIZE, Phase, Shared, classify};
use crate::sys::clock::monotonic_ns;
use crate::sys::futex;

/// Slots with their generations, and since when they are known to be released.
type Released = BTreeMap<(u32, u32), u64>;

impl Shared {
    /// Waits for all words of one group at once, until the watch stops.
    pub(super) fn wait_grouped(&self, group: usize) {
        let control = &self.controls[group];
        let mut unclear = Released::new();
        while !self.stopping.load(Ordering::Acquire) {
            // Read before the words, so that a change of the set after this ends the wait.
            let seen = control.load(Ordering::Acquire);
            let now_ns = monotonic_ns();
            let armed = self.armed(group);
            let mut released = Released::new();
            let mut futex_waiters: Vec<(&AtomicU32, u32)> = vec![(control, seen)];
            for &who in &armed {
                let word = self.table.futex(who.0);
                let value = word.load(Ordering::Acquire);
                if value & futex::OWNER == 0 {
                    released.insert(who, unclear.get(&who).copied().unwrap_or(now_ns));
                } else {
                    futex_waiters.push((word, value));
                }
            }
            if released.is_empty() {
                self.sleep(|| futex::wait_any(&futex_waiters));
            }
            released.retain(|who, since_ns| !self.released(who.0, who.1, now_ns - *since_ns));
            unclear = released;
            if !unclear.is_empty() {
                std::thread::sleep(classify::PAUSE);
            }
        }
    }

    /// Waits for one slot's word until its process has ended, left or detached.
    pub(super) fn wait_parked(&self, slot: u32) {
        let generation = self.lock()[slot as usize].generation;
        let word = self.table.futex(slot);
        let mut released_ns = None;
        while !self.stopping.load(Ordering::Acquire) && self.is_armed(slot, generation) {
            let value = word.load(Ordering::Acquire);
            if value & futex::OWNER != 0 {
                self.sleep(|| futex::wait(word, value));
                continue;
            }
            let now_ns = monotonic_ns();
            let since_ns = *released_ns.get_or_insert(now_ns);
            if !self.released(slot, generation, now_ns - since_ns) {
                std::thread::sleep(classify::PAUSE);
            }
        }
    }

    /// A refused wait must not become a busy loop: it is counted, and made up for by a pause.
    fn sleep(&self, wait: impl FnOnce() -> std::io::Result<()>) {
        if wait().is_err() {
            self.failures.fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }

    fn armed(&self, group: usize) -> Vec<(u32, u32)> {
        let slots = self.lock();
        let first = group * GROUP_SIZE;
        let range = slots.iter().enumerate().skip(first).take(GROUP_SIZE);
        let armed = range.filter(|(_, entry)| entry.phase == Phase::Armed);
        armed
            .map(|(slot, entry)| (slot as u32, entry.generation))
            .collect()
    }

    pub(super) fn is_armed(&self, slot: u32, generation: u32) -> bool {
        let slots = self.lock();
        let entry = &slots[slot as usize];
        entry.phase == Phase::Armed && entry.generation == generation
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shm::{Claim, Hold, TableLimits, TableWriter};
    use crate::watch::{Finding, Watch, procfs};
    use std::process::{Child, Command};

    /// A process whose word is nobody's, as after an exec; no thread waits for it.
    fn released(table: &mut TableWriter, watch: &Watch) -> (Child, u32, u32) {
        let child = Command::new("sleep").arg("600").spawn().unwrap();
        let claim = Claim {
            pid: child.id(),
            start_ticks: procfs::start_ticks(child.id()).unwrap(),
            rank: None,
            hold: Hold::Thread,
        };
        let (slot, generation) = table.claim_slot(&claim, &procfs::is_alive).unwrap();
        watch.follow(slot);
        watch.shared.lock()[slot as usize].phase = Phase::Armed;
        (child, slot, generation)
    }

    /// One look at each: who may live on is passed over until it has been looked at for long enough.
    #[test]
    fn one_that_lives_keeps_no_death_waiting() {
        let limits = TableLimits {
            nodes: 1,
            ranks: 1,
            slots: 4,
            events: 16,
        };
        let mut table = TableWriter::create(limits).unwrap();
        let watch = Watch::start(&table.view()).unwrap();
        let (mut lives, living, generation) = released(&mut table, &watch);
        let mut notices = Vec::new();
        assert!(!watch.shared.released(living, generation, 0));
        watch.take(&mut notices);
        assert_eq!(notices, []);
        let (mut dies, dying, generation_of_dying) = released(&mut table, &watch);
        dies.kill().unwrap();
        dies.wait().unwrap();
        assert!(watch.shared.released(dying, generation_of_dying, 0));
        watch.take(&mut notices);
        let told: Vec<_> = notices.drain(..).map(|notice| notice.slot).collect();
        assert_eq!(told, [dying]);
        let patience_ns = classify::CLASSIFY_WAIT_NS;
        assert!(watch.shared.released(living, generation, patience_ns));
        watch.take(&mut notices);
        let told: Vec<_> = notices.iter().map(|one| (one.slot, one.finding)).collect();
        assert_eq!(told, [(living, Finding::Detached)]);
        lives.kill().unwrap();
        lives.wait().unwrap();
    }
}
