//! Which envelopes of a peer have come: of its latest life, each number once.

use super::LIFE_OVER_US;
use crate::window::Window;

/// What has come of one peer.
#[derive(Debug, Default)]
pub(crate) struct Came {
    life: u64,
    numbers: Window,
    at_us: u64,
}

impl Came {
    /// Takes an envelope that is proven. False if it has come already, or is of an earlier life.
    ///
    /// An earlier life follows a later one if nothing of that comes any more: the clock of its host may have been set
    /// back. So a recording is carried again after such a pause, once; the message in it is the host's to prove.
    pub(crate) fn take(&mut self, now_us: u64, life: u64, number: u64) -> bool {
        let is_over = now_us >= self.at_us.saturating_add(LIFE_OVER_US);
        if life > self.life || life < self.life && is_over {
            self.life = life;
            self.numbers = Window::default();
        }
        let is_new = life == self.life && self.numbers.take(number);
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
    fn each_envelope_of_the_latest_life_is_taken_once() {
        let mut came = Came::default();
        assert!(came.take(1, 7, 3) && came.take(1, 7, 2));
        assert!(!came.take(2, 7, 3) && !came.take(2, 6, 9));
        assert!(came.take(3, 8, 3) && !came.take(3, 7, 4));
    }

    /// Repetitions do not keep a life from being over.
    #[test]
    fn a_life_that_is_silent_gives_way_to_one_whose_clock_was_set_back() {
        let mut came = Came::default();
        assert!(came.take(1, 7, 1));
        assert!(!came.take(LIFE_OVER_US, 7, 1) && !came.take(LIFE_OVER_US, 6, 1));
        assert!(came.take(1 + LIFE_OVER_US, 6, 1) && !came.take(1 + LIFE_OVER_US, 6, 1));
    }
}
