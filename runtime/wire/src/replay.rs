//! Replay protection: a window of 1024 frames for each sender's present incarnation.
//!
//! The window is a bit map of the last 1024 sequence numbers. A number above it moves it. A number in it is
//! new if its bit is not set. A number below it is too old to decide, and is rejected. A higher incarnation
//! starts a new window. (It moves by 64 numbers at a time, so between 960 and 1024 of them are remembered.)
//!
//! The window of a sender that was not heard for a while is *aged*: only its highest number is kept, and all
//! numbers up to it count as taken. So what is kept of members that are not neighbours is small, and the windows
//! that idle members use lie close together.
//!
//! A new frame that is not the latest is no sign of life: it was written before one that has come already.
//! A copy of a frame came by another rail as long as frames of about its time still come. A later copy is a
//! repetition, and no sign that a rail works.
//!
//! The number of senders is bounded. When there is no room, the least recently heard one is dropped. Frames
//! of that sender could then be replayed once, which the rules of the table (versions, sequences of ranks)
//! make harmless. Only members that know the local member's present incarnation have a window (`frame`).

use muster_sorted::SortedMap;

use crate::identity::MemberId;
use crate::planted::{self, Fault};
use crate::reject::Reject;
use crate::time::Instant;

const WORDS: usize = 16;
/// Most frames remembered in a window.
pub const WINDOW: u64 = 64 * WORDS as u64;
/// Pauses without a frame after which a window is aged; at most twice as many.
const AGE_PAUSES: u64 = 256;

#[derive(Clone, Debug)]
struct Window {
    incarnation: u64,
    highest: u64,
    bits: [u64; WORDS],
    used_at: u64,
    /// The last frame was later than all before it.
    advanced: bool,
    /// The highest number between one pause and two ago. A copy of it or of an earlier one did not come by
    /// another rail.
    settled: u64,
    settles: u64,
    settles_at: Instant,
}

/// What is kept of an aged window.
#[derive(Clone, Copy, Debug)]
struct Aged {
    incarnation: u64,
    highest: u64,
    used_at: u64,
}

impl Window {
    fn new(incarnation: u64, sequence: u64, used_at: u64, settles_at: Instant) -> Self {
        let mut window = Self {
            incarnation,
            highest: sequence,
            bits: [0; WORDS],
            used_at,
            advanced: false,
            settled: sequence.saturating_sub(1),
            settles: sequence,
            settles_at,
        };
        window.tick(sequence);
        window
    }

    /// The window of a sender that is heard again: all numbers up to the highest are taken.
    fn reopened(aged: Aged, settles_at: Instant) -> Self {
        let mut bits = [u64::MAX; WORDS];
        let (word, _) = Self::slot(aged.highest);
        bits[word] >>= 63 - aged.highest % 64;
        Self {
            incarnation: aged.incarnation,
            highest: aged.highest,
            bits,
            used_at: aged.used_at,
            advanced: false,
            settled: aged.highest,
            settles: aged.highest,
            settles_at,
        }
    }

    fn aged(&self) -> Aged {
        Aged {
            incarnation: self.incarnation,
            highest: self.highest,
            used_at: self.used_at,
        }
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
            // The word being filled is shared with the oldest numbers, which are dropped early.
            return Err(Reject::Stale);
        }
        let (word, bit) = Self::slot(sequence);
        if self.bits[word] & bit != 0 {
            return Err(match sequence > self.settled {
                true => Reject::Duplicate,
                false => Reject::Repeated,
            });
        }
        self.bits[word] |= bit;
        Ok(())
    }

    /// Moves time on.
    fn settle(&mut self, now: Instant, pause_us: u64) {
        if now >= self.settles_at.after(pause_us) {
            // Nothing came for more than two pauses: all that came before is old.
            self.settled = self.highest;
        } else if now >= self.settles_at {
            self.settled = self.settles;
        } else {
            return;
        }
        self.settles = self.highest;
        self.settles_at = now.after(pause_us);
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
pub struct ReplayGuard {
    windows: SortedMap<MemberId, Box<Window>>,
    aged: SortedMap<MemberId, Aged>,
    senders_max: usize,
    pause_us: u64,
    uses: u64,
    /// Windows that were last used before this are aged when time is up.
    ages_below: u64,
    ages_at: Instant,
}

impl ReplayGuard {
    /// A copy that comes a pause after the original, or later, is a repetition.
    pub fn new(senders_max: usize, pause_us: u64) -> Self {
        Self {
            windows: SortedMap::new(),
            aged: SortedMap::new(),
            senders_max,
            pause_us,
            uses: 0,
            ages_below: 0,
            ages_at: Instant::default(),
        }
    }

    /// Number of senders.
    pub fn count(&self) -> usize {
        self.windows.len() + self.aged.len()
    }

    /// Whether the last accepted frame was later than all others of the sender's present incarnation, and
    /// there were others: the first one that is seen may be a repeated old one.
    pub fn is_latest(&self, sender: MemberId, sequence: u64) -> bool {
        let window = self.windows.get(&sender);
        window.is_some_and(|window| window.advanced && window.highest == sequence)
    }

    /// Whether a frame of this sender came, as far as is remembered.
    pub fn knows(&self, sender: MemberId) -> bool {
        self.windows.contains_key(&sender) || self.aged.contains_key(&sender)
    }

    /// The last incarnation of this sender of which a frame came.
    pub fn incarnation_of(&self, sender: MemberId) -> Option<u64> {
        match self.windows.get(&sender) {
            Some(window) => Some(window.incarnation),
            None => self.aged.get(&sender).map(|aged| aged.incarnation),
        }
    }

    /// Whether the last accepted frame is a sign of life: no frame written later has come before it.
    pub fn advances(&self, sender: MemberId, sequence: u64) -> bool {
        let window = self.windows.get(&sender);
        window.is_none_or(|window| window.highest <= sequence)
    }

    /// Accepts a frame, or returns why it is not new. Only for authentic frames for the local member's
    /// present incarnation.
    pub fn accept(
        &mut self,
        now: Instant,
        sender: MemberId,
        incarnation: u64,
        sequence: u64,
    ) -> Result<(), Reject> {
        self.uses += 1;
        let settles_at = now.after(self.pause_us);
        if planted::on(Fault::NoReplayWindow) {
            return Ok(());
        }
        self.age(now);
        if !self.windows.contains_key(&sender)
            && let Some(aged) = self.aged.remove(&sender)
        {
            let window = Window::reopened(aged, settles_at);
            self.windows.insert(sender, Box::new(window));
        }
        if let Some(window) = self.windows.get_mut(&sender) {
            window.used_at = self.uses;
            if incarnation < window.incarnation {
                return Err(Reject::OldIncarnation);
            }
            if incarnation > window.incarnation {
                **window = Window::new(incarnation, sequence, self.uses, settles_at);
                return Ok(());
            }
            window.settle(now, self.pause_us);
            return window.accept(sequence);
        }
        if self.count() >= self.senders_max {
            self.forget_oldest();
        }
        let window = Window::new(incarnation, sequence, self.uses, settles_at);
        self.windows.insert(sender, Box::new(window));
        Ok(())
    }

    /// Ages the windows that were not used since the last time.
    fn age(&mut self, now: Instant) {
        if now < self.ages_at {
            return;
        }
        self.ages_at = now.after(AGE_PAUSES * self.pause_us);
        let below = core::mem::replace(&mut self.ages_below, self.uses);
        let aged = &mut self.aged;
        self.windows.retain(|id, window| {
            let is_used = window.used_at >= below;
            if !is_used {
                aged.insert(*id, window.aged());
            }
            is_used
        });
    }

    /// Drops the sender that was heard longest ago.
    fn forget_oldest(&mut self) {
        let aged = self.aged.iter().map(|(id, aged)| (aged.used_at, *id));
        let windows = self.windows.iter();
        let windows = windows.map(|(id, window)| (window.used_at, *id));
        if let Some((_, id)) = aged.chain(windows).min() {
            self.aged.remove(&id);
            self.windows.remove(&id);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    const SENDER: MemberId = MemberId(1);
    const PAUSE_US: u64 = 20_000;
    const NOW: Instant = Instant(1_000_000);

    proptest! {
        /// In any order, no number is accepted twice, and no recent one is rejected.
        #[test]
        fn every_number_is_accepted_at_most_once(
            start in 0..1u64 << 40, steps in proptest::collection::vec(0..2000u64, 1..400),
        ) {
            let mut guard = ReplayGuard::new(4, PAUSE_US);
            let mut seen = BTreeSet::new();
            let mut highest = 0;
            for step in steps {
                let sequence = start + step;
                match guard.accept(NOW, SENDER, 1, sequence) {
                    Ok(()) => prop_assert!(seen.insert(sequence)),
                    Err(Reject::Duplicate | Reject::Repeated) => {
                        prop_assert!(seen.contains(&sequence));
                    }
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
    fn a_new_incarnation_starts_a_new_window_and_ends_the_old_one() {
        let mut guard = ReplayGuard::new(4, PAUSE_US);
        assert_eq!(guard.accept(NOW, SENDER, 1, 5000), Ok(()));
        assert_eq!(guard.accept(NOW, SENDER, 2, 1), Ok(()));
        assert_eq!(guard.accept(NOW, SENDER, 2, 1), Err(Reject::Duplicate));
        assert_eq!(
            guard.accept(NOW, SENDER, 1, 5001),
            Err(Reject::OldIncarnation)
        );
    }

    /// A copy of a frame of about this pause came by another rail, and one of an earlier frame is a
    /// repetition. A frame written before one that has come is no sign of life.
    #[test]
    fn a_copy_of_long_ago_is_a_repetition() {
        let mut guard = ReplayGuard::new(4, PAUSE_US);
        let mut now = NOW;
        for sequence in [10, 13, 16, 19] {
            assert_eq!(guard.accept(now, SENDER, 1, sequence), Ok(()));
            assert!(guard.advances(SENDER, sequence));
            now = now.after(PAUSE_US / 4);
            let again = guard.accept(now, SENDER, 1, sequence);
            assert_eq!(again, Err(Reject::Duplicate), "{sequence}");
            now = now.after(PAUSE_US * 3 / 4);
        }
        assert_eq!(guard.accept(now, SENDER, 1, 10), Err(Reject::Repeated));
        assert_eq!(guard.accept(now, SENDER, 1, 18), Ok(()));
        assert!(!guard.advances(SENDER, 18));
        // For any number of copies and any time without other frames.
        for _ in 0..100 {
            now = now.after(2 * PAUSE_US);
            for sequence in [10, 13, 16, 18, 19] {
                let again = guard.accept(now, SENDER, 1, sequence);
                assert_eq!(again, Err(Reject::Repeated), "{sequence}");
            }
        }
    }

    #[test]
    fn unknown_senders_do_not_grow_the_table() {
        let mut guard = ReplayGuard::new(4, PAUSE_US);
        for id in 0..100 {
            assert_eq!(guard.accept(NOW, MemberId(id), 1, 1), Ok(()));
        }
        assert_eq!(guard.count(), 4);
        // Aged ones count, and are dropped first.
        let later = NOW.after(3 * AGE_PAUSES * PAUSE_US);
        for id in [98, 99, 200, 201] {
            assert_eq!(guard.accept(later, MemberId(id), 1, 2), Ok(()));
        }
        assert_eq!(guard.count(), 4);
        assert!(guard.knows(MemberId(98)) && !guard.knows(MemberId(97)));
    }

    proptest! {
        /// A sender that is heard again after a long time starts where it was: no number is accepted twice.
        #[test]
        fn an_aged_window_accepts_only_what_is_above_it(
            start in 0..1u64 << 40, steps in proptest::collection::vec((0..200u64, 0..8u64), 1..200),
        ) {
            let mut guard = ReplayGuard::new(4, PAUSE_US);
            let (mut now, mut seen, mut highest) = (NOW, BTreeSet::new(), 0);
            for (step, pause) in steps {
                // Another sender moves time on.
                for _ in 0..2 * u64::from(pause == 0) {
                    now = now.after((AGE_PAUSES + 1) * PAUSE_US);
                    assert_eq!(guard.accept(now, MemberId(2), 1, now.0), Ok(()));
                }
                let is_aged = guard.aged.contains_key(&SENDER);
                assert!(is_aged || pause > 0 || seen.is_empty());
                let sequence = start + step;
                let is_new = guard.accept(now, SENDER, 1, sequence).is_ok();
                assert_eq!(is_new, seen.insert(sequence) && (!is_aged || sequence > highest));
                assert!(!guard.aged.contains_key(&SENDER));
                if is_aged {
                    seen.extend(start..=highest);
                }
                highest = highest.max(sequence);
            }
        }
    }

    #[test]
    fn an_aged_window_is_still_of_its_incarnation() {
        let mut guard = ReplayGuard::new(4, PAUSE_US);
        assert_eq!(guard.accept(NOW, SENDER, 2, 10), Ok(()));
        let mut now = NOW;
        for sequence in [1, 2] {
            now = now.after(AGE_PAUSES * PAUSE_US);
            assert_eq!(guard.accept(now, MemberId(2), 1, sequence), Ok(()));
        }
        assert!(guard.aged.contains_key(&SENDER) && guard.knows(SENDER));
        assert_eq!(guard.incarnation_of(SENDER), Some(2));
        let old = guard.accept(now, SENDER, 1, 11);
        assert_eq!(old, Err(Reject::OldIncarnation));
        let again = guard.accept(now, SENDER, 2, 10);
        assert_eq!(again, Err(Reject::Repeated));
        assert_eq!(guard.accept(now, SENDER, 2, 11), Ok(()));
        assert!(guard.is_latest(SENDER, 11));
    }
}
