//! The envelopes that were received from a peer: of its latest incarnation, each number is taken once.

use super::INCARNATION_OVER_US;
use crate::window::Window;

/// The received envelopes of one peer.
#[derive(Debug, Default)]
pub(crate) struct ReplayFilter {
    incarnation: u64,
    numbers: Window,
    at_us: u64,
}

impl ReplayFilter {
    /// Takes an authenticated envelope. Returns false if it was received before, or is of an earlier
    /// incarnation.
    ///
    /// A lower incarnation follows a higher one only after a pause without envelopes: the clock of the peer's
    /// host may have been set back. So after such a pause, a recorded envelope is carried once more; the host
    /// authenticates the message in it.
    pub(crate) fn take(&mut self, now_us: u64, incarnation: u64, number: u64) -> bool {
        let is_over = now_us >= self.at_us.saturating_add(INCARNATION_OVER_US);
        if incarnation > self.incarnation || incarnation < self.incarnation && is_over {
            self.incarnation = incarnation;
            self.numbers = Window::default();
        }
        let is_new = incarnation == self.incarnation && self.numbers.take(number);
        if is_new {
            self.at_us = now_us;
        }
        is_new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_envelope_of_the_latest_incarnation_is_taken_once() {
        let mut filter = ReplayFilter::default();
        assert!(filter.take(1, 7, 3) && filter.take(1, 7, 2));
        assert!(!filter.take(2, 7, 3) && !filter.take(2, 6, 9));
        assert!(filter.take(3, 8, 3) && !filter.take(3, 7, 4));
    }

    /// Repeated envelopes do not extend the time of an incarnation.
    #[test]
    fn a_lower_incarnation_is_taken_after_a_pause() {
        let mut filter = ReplayFilter::default();
        assert!(filter.take(1, 7, 1));
        assert!(!filter.take(INCARNATION_OVER_US, 7, 1) && !filter.take(INCARNATION_OVER_US, 6, 1));
        assert!(
            filter.take(1 + INCARNATION_OVER_US, 6, 1)
                && !filter.take(1 + INCARNATION_OVER_US, 6, 1)
        );
    }
}
