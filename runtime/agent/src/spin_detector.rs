//! `SpinDetector` detects that the loop runs without sleep and without work.
//!
//! A deadline that stays in the past keeps the loop awake permanently, at real-time priority. The only visible sign
//! is a busy core. So rounds that neither slept nor did any work are counted.

/// This many in a row are ignored: a deadline that passes during a round is handled in the next one.
const IGNORED_ROUNDS: u64 = 16;
/// After this many in a row the loop logs an error, once.
const LOGGED_ROUNDS: u64 = 4096;

/// Counter of rounds without sleep and work.
#[derive(Debug, Default)]
pub(super) struct SpinDetector {
    in_a_row: u64,
    /// All of them, except the first few of each row.
    pub(super) idle_rounds: u64,
    is_logged: bool,
}

impl SpinDetector {
    /// Notes a round; `was_useful` if it slept or did work. Returns true if it is time to log.
    pub(super) fn round(&mut self, was_useful: bool) -> bool {
        if was_useful {
            self.in_a_row = 0;
            return false;
        }
        self.in_a_row += 1;
        self.idle_rounds += u64::from(self.in_a_row > IGNORED_ROUNDS);
        self.in_a_row >= LOGGED_ROUNDS && !std::mem::replace(&mut self.is_logged, true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spinning_loop_is_counted_and_logged_once_and_a_sleeping_one_never() {
        let mut spin_detector = SpinDetector::default();
        for round in 0..100_000 {
            assert!(!spin_detector.round(round % (IGNORED_ROUNDS + 1) == 0));
        }
        assert_eq!(spin_detector.idle_rounds, 0);
        let logged = (0..100_000).filter(|_| spin_detector.round(false)).count();
        assert_eq!(logged, 1);
        assert!(spin_detector.idle_rounds > 99_000);
        spin_detector.round(true);
        let before = spin_detector.idle_rounds;
        spin_detector.round(false);
        assert_eq!(spin_detector.idle_rounds, before, "a new row");
    }
}
