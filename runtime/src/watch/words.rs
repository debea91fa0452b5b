//! The threads that wait for the words on the board.
//!
//! A wake says only "look again": every pass looks at all words of the group before it sleeps, so
//! nothing is lost between two waits. A word is expected to keep the value just read; if it
//! changed meanwhile the kernel does not put us to sleep.

use std::sync::atomic::{AtomicU32, Ordering};

use super::{GROUP_SIZE, Phase, Shared};
use crate::sys::futex;

impl Shared {
    /// Waits for all words of one group at once, until the watch stops.
    pub(super) fn wait_grouped(&self, group: usize) {
        let control = &self.controls[group];
        while !self.stopping.load(Ordering::Acquire) {
            // Read before the words, so that a change of the set after this ends the wait.
            let seen = control.load(Ordering::Acquire);
            let armed = self.armed(group);
            let mut released = Vec::new();
            let mut words: Vec<(&AtomicU32, u32)> = vec![(control, seen)];
            for &(slot, generation) in &armed {
                let word = self.board.word(slot);
                let value = word.load(Ordering::Acquire);
                if value & futex::OWNER == 0 {
                    released.push((slot, generation));
                } else {
                    words.push((word, value));
                }
            }
            if released.is_empty() {
                self.sleep(|| futex::wait_any(&words));
            }
            for (slot, generation) in released {
                self.released(slot, generation);
            }
        }
    }

    /// Waits for one slot's word until its process has ended, left or detached.
    pub(super) fn wait_parked(&self, slot: u32) {
        let generation = self.lock()[slot as usize].generation;
        let word = self.board.word(slot);
        while !self.stopping.load(Ordering::Acquire) && self.is_armed(slot, generation) {
            let value = word.load(Ordering::Acquire);
            if value & futex::OWNER == 0 {
                self.released(slot, generation);
            } else {
                self.sleep(|| futex::wait(word, value));
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
