//! Window: which numbers of one sender have arrived.
//!
//! A bit map of the last numbers, which moves on with the highest. A number in the window is new if its bit is not
//! set. A number behind the window is too old to tell, and counts as one that has arrived. The window moves by 64
//! numbers at a time, so it remembers between 960 and 1024 of them.

const WORDS: usize = 16;

/// The numbers of one sender, counted from 1.
#[derive(Debug, Clone, Default)]
pub(crate) struct Window {
    highest: u64,
    bits: [u64; WORDS],
}

impl Window {
    /// Takes a number. Returns false if it has arrived already, or may have.
    pub(crate) fn take(&mut self, number: u64) -> bool {
        let (word, latest) = (number / 64, self.highest / 64);
        if number > self.highest {
            for step in 1..=(word - latest).min(WORDS as u64) {
                self.bits[(latest + step) as usize % WORDS] = 0;
            }
            self.highest = number;
        } else if latest - word >= WORDS as u64 {
            return false;
        }
        let (bits, bit) = (&mut self.bits[word as usize % WORDS], 1 << (number % 64));
        let is_new = number > 0 && *bits & bit == 0;
        *bits |= bit;
        is_new
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        /// In any order, no number is taken twice, and no recent number is refused.
        #[test]
        fn each_number_is_taken_once(
            start in 0..1u64 << 40, steps in proptest::collection::vec(0..2000u64, 1..400),
        ) {
            let (mut window, mut seen, mut highest) = (Window::default(), BTreeSet::new(), 0);
            for number in steps.iter().map(|step| start + step) {
                let is_new = window.take(number);
                prop_assert!(!is_new || seen.insert(number));
                prop_assert!(is_new || number == 0 || seen.contains(&number) || highest - number >= 960);
                highest = highest.max(number);
            }
        }
    }
}
