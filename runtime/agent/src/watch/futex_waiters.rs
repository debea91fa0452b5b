//! The threads that wait for the futex words in the state table.
//!
//! A wake-up only means that something may have changed: each pass checks all words of the group before it sleeps, so
//! no change is lost between two waits. The wait expects the value just read; if a word has changed meanwhile, the
//! kernel does not let the thread sleep.
//!
//! Each pass inspects each process whose word was released, once. A process that cannot be told from a live one yet
//! (an exec, or a kill that has just begun) is inspected again in the next passes. So unclear processes do not delay
//! the report of a failed one, whatever their number.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};

use super::{GROUP_SIZE, Phase, Shared, classify};
use muster_sys::clock::monotonic_ns;
use muster_sys::futex;

/// Slots with their generations, and the time when their word was first seen released.
type Released = BTreeMap<(u32, u32), u64>;

impl Shared {
    /// Waits for all words of one group at once, until the watch stops.
    pub(super) fn wait_grouped(&self, group: usize) {
        let control = &self.controls[group];
        let mut unclear = Released::new();
        while !self.stopping.load(Ordering::Acquire) {
            // Read before the words, so that a later change of the set ends the wait.
            let seen = control.load(Ordering::Acquire);
            let now_ns = monotonic_ns();
            let armed = self.armed(group);
            let mut released = Released::new();
            let mut words: Vec<(&AtomicU32, u32)> = vec![(control, seen)];
            for &key in &armed {
                let word = self.table.futex(key.0);
                let value = word.load(Ordering::Acquire);
                if value & futex::OWNER == 0 {
                    released.insert(key, unclear.get(&key).copied().unwrap_or(now_ns));
                } else {
                    words.push((word, value));
                }
            }
            if released.is_empty() {
                self.sleep(|| futex::wait_any(&words));
            }
            released.retain(|key, since_ns| !self.released(key.0, key.1, now_ns - *since_ns));
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

    /// Sleeps. A wait that the kernel refuses is counted and replaced by a pause, so that it does not cause a busy
    /// loop.
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
    use crate::watch::{Finding, Watch};
    use muster_shm::{Claim, Hold, TableLimits, TableWriter};
    use muster_sys::procfs;
    use std::process::{Child, Command};

    /// A process whose word has no owner, as after an exec. No thread waits for the word.
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

    /// Each process is inspected once per pass. One that may be alive is passed over until it was inspected for long
    /// enough.
    #[test]
    fn a_live_process_does_not_delay_the_report_of_a_failed_one() {
        let limits = TableLimits {
            nodes: 1,
            ranks: 1,
            slots: 4,
            events: 16,
        };
        let mut table = TableWriter::create(limits).unwrap();
        let watch = Watch::start(&table.view()).unwrap();
        let (mut live, live_slot, generation) = released(&mut table, &watch);
        let mut notices = Vec::new();
        assert!(!watch.shared.released(live_slot, generation, 0));
        watch.take(&mut notices);
        assert_eq!(notices, []);
        let (mut killed, killed_slot, generation_of_killed) = released(&mut table, &watch);
        killed.kill().unwrap();
        killed.wait().unwrap();
        assert!(watch.shared.released(killed_slot, generation_of_killed, 0));
        watch.take(&mut notices);
        let reported: Vec<_> = notices.drain(..).map(|notice| notice.slot).collect();
        assert_eq!(reported, [killed_slot]);
        let wait_ns = classify::CLASSIFY_WAIT_NS;
        assert!(watch.shared.released(live_slot, generation, wait_ns));
        watch.take(&mut notices);
        let reported: Vec<_> = notices.iter().map(|one| (one.slot, one.finding)).collect();
        assert_eq!(reported, [(live_slot, Finding::Detached)]);
        live.kill().unwrap();
        live.wait().unwrap();
    }
}
