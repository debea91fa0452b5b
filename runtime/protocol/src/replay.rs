//! Is this frame new? A window of 1024 frames for each sender's current life.
//!
//! Intuition: a strip of paper with the last 1024 numbers on it, ticked off as they come. A
//! number to the right of the strip moves it; one on it is new if it is not ticked; one to the
//! left of it is too old to tell and is refused. A higher incarnation starts a new strip. (The
//! strip moves by 64 numbers at a time, so between 960 and 1024 of them are remembered.)
//!
//! Strips are kept for a bounded number of senders. When there is no room the one least recently
//! used goes: its owner's frames could then be replayed once, which the rules of the table
//! (versions, sequences of ranks) make harmless.

use std::collections::BTreeMap;

use crate::identity::MemberId;
use crate::planted::{self, Fault};
use crate::reject::Reject;

const WORDS: usize = 16;
/// Frames a window remembers at most.
pub(crate) const WINDOW: u64 = 64 * WORDS as u64;

#[derive(Clone, Debug)]
struct Window {
    incarnation: u64,
    highest: u64,
    bits: [u64; WORDS],
    used_at: u64,
    /// The last frame was later than all before it.
    advanced: bool,
}

impl Window {
    fn new(incarnation: u64, sequence: u64, used_at: u64) -> Self {
        let mut window = Self {
            incarnation,
            highest: sequence,
            bits: [0; WORDS],
            used_at,
            advanced: false,
        };
        window.tick(sequence);
        window
    }

    fn slot(sequence: u64) -> (usize, u64) {
        ((sequence / 64) as usize % WORDS, 1 << (sequence % 64))
    }

    fn tick(&mut self, sequence: u64) {
        let (word, bit) = Self::slot(sequence);
        self.bits[word] |= bit;
    }

    fn accept(&mut self, sequence: u64) -> Result<(), Reject> {
        self.advanced = sequence > self.highest;
        if self.advanced {
            self.slide(sequence);
        } else if self.highest - sequence >= WINDOW - 64 {
            // The word that is being filled is shared with the oldest numbers: they go early.
            return Err(Reject::Stale);
        }
        let (word, bit) = Self::slot(sequence);
        if self.bits[word] & bit != 0 {
            return Err(Reject::Duplicate);
        }
        self.bits[word] |= bit;
        Ok(())
    }

    fn slide(&mut self, sequence: u64) {
        let words = (sequence / 64).saturating_sub(self.highest / 64);
        if words >= WORDS as u64 {
            self.bits = [0; WORDS];
        } else {
            for step in 1..=words {
                self.bits[(self.highest / 64 + step) as usize % WORDS] = 0;
            }
        }
        self.highest = sequence;
    }
}

/// The windows of all senders.
#[derive(Clone, Debug)]
pub(crate) struct ReplayGuard {
    windows: BTreeMap<MemberId, Window>,
    senders_max: usize,
    uses: u64,
}

impl ReplayGuard {
    pub(crate) fn new(senders_max: usize) -> Self {
        Self {
            windows: BTreeMap::new(),
            senders_max,
            uses: 0,
        }
    }

    /// Senders whose window is kept.
    pub(crate) fn len(&self) -> usize {
        self.windows.len()
    }

    /// Whether this frame, ticked off last, was later than all others of the sender's present life, of which there
    /// were some: the first that is seen may be an old one that somebody repeats.
    pub(crate) fn is_latest(&self, sender: MemberId, sequence: u64) -> bool {
        let window = self.windows.get(&sender);
        window.is_some_and(|window| window.advanced && window.highest == sequence)
    }

    /// Ticks the frame off, or says why it is not new. An authentic frame only.
    pub(crate) fn accept(
        &mut self,
        sender: MemberId,
        incarnation: u64,
        sequence: u64,
    ) -> Result<(), Reject> {
        self.uses += 1;
        if planted::on(Fault::NoReplayWindow) {
            return Ok(());
        }
        if let Some(window) = self.windows.get_mut(&sender) {
            window.used_at = self.uses;
            if incarnation < window.incarnation {
                return Err(Reject::OldIncarnation);
            }
            if incarnation > window.incarnation {
                *window = Window::new(incarnation, sequence, self.uses);
                return Ok(());
            }
            return window.accept(sequence);
        }
        if self.windows.len() >= self.senders_max {
            let oldest = self.windows.iter().min_by_key(|(_, window)| window.used_at);
            if let Some(id) = oldest.map(|(id, _)| *id) {
                self.windows.remove(&id);
            }
        }
        self.windows
            .insert(sender, Window::new(incarnation, sequence, self.uses));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    const SENDER: MemberId = MemberId(1);

    proptest! {
        /// Whatever the order, no number is accepted twice, and none that is recent is refused.
        #[test]
        fn every_number_is_accepted_at_most_once(
            start in 0..1u64 << 40, steps in proptest::collection::vec(0..2000u64, 1..400),
        ) {
            let mut guard = ReplayGuard::new(4);
            let mut seen = BTreeSet::new();
            let mut highest = 0;
            for step in steps {
                let sequence = start + step;
                match guard.accept(SENDER, 1, sequence) {
                    Ok(()) => prop_assert!(seen.insert(sequence)),
                    Err(Reject::Duplicate) => prop_assert!(seen.contains(&sequence)),
                    Err(reject) => {
                        prop_assert_eq!(reject, Reject::Stale);
                        prop_assert!(highest - sequence >= WINDOW - 64);
                    }
                }
                highest = highest.max(sequence);
            }
        }
    }

    #[test]
    fn a_new_life_starts_a_new_window_and_the_old_life_is_over() {
        let mut guard = ReplayGuard::new(4);
        assert_eq!(guard.accept(SENDER, 1, 5000), Ok(()));
        assert_eq!(guard.accept(SENDER, 2, 1), Ok(()));
        assert_eq!(guard.accept(SENDER, 2, 1), Err(Reject::Duplicate));
        assert_eq!(guard.accept(SENDER, 1, 5001), Err(Reject::OldIncarnation));
    }

    #[test]
    fn strangers_do_not_grow_the_table() {
        let mut guard = ReplayGuard::new(4);
        for id in 0..100 {
            assert_eq!(guard.accept(MemberId(id), 1, 1), Ok(()));
        }
        assert_eq!(guard.windows.len(), 4);
    }
}
