//! Rest: whether the loop finds any.
//!
//! A deadline that stays in the past keeps the loop awake for ever, at real-time priority, and nothing of
//! it shows from outside but a busy core. So turns are counted that neither slept nor did anything.

/// So many in a row are nothing: a deadline that passes while a turn lasts is seen in the next one.
const FREE_TURNS: u64 = 16;
/// After so many in a row it is said, once.
const TOLD_TURNS: u64 = 4096;

/// Turns without rest.
#[derive(Debug, Default)]
pub(super) struct SpinDetector {
    in_a_row: u64,
    /// All of them, but for the first few of each row.
    pub(super) restless: u64,
    told: bool,
}

impl SpinDetector {
    /// Notes a turn that slept, or did something, or neither; true if it is time to tell.
    pub(super) fn turn(&mut self, was_good: bool) -> bool {
        if was_good {
            self.in_a_row = 0;
            return false;
        }
        self.in_a_row += 1;
        self.restless += u64::from(self.in_a_row > FREE_TURNS);
        self.in_a_row >= TOLD_TURNS && !std::mem::replace(&mut self.told, true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loop_that_spins_is_counted_and_told_once_and_one_that_rests_never() {
        let mut spin_detector = SpinDetector::default();
        for turn in 0..100_000 {
            assert!(!spin_detector.turn(turn % (FREE_TURNS + 1) == 0));
        }
        assert_eq!(spin_detector.restless, 0);
        let told = (0..100_000).filter(|_| spin_detector.turn(false)).count();
        assert_eq!(told, 1);
        assert!(spin_detector.restless > 99_000);
        spin_detector.turn(true);
        let before = spin_detector.restless;
        spin_detector.turn(false);
        assert_eq!(spin_detector.restless, before, "a new row");
    }
}
