//! How long acknowledgements take of late, and for how long one is worth waiting for.
//!
//! Intuition: who has always answered letters by return of post is written to again after a week;
//! who takes a month is not, because the second letter would only lie beside the first. When
//! thousands of members start at once, letters wait in full sockets and their acknowledgements do
//! too; a fixed wait would then send everything twice, and make it worse.
//!
//! The mean and the mean deviation, smoothed as round-trip times are. A letter that is sent again
//! has another number, so that no acknowledgement is taken for that of another letter.

/// The smoothed times of one link, or of all, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Patience {
    mean_us: u64,
    deviation_us: u64,
}

impl Patience {
    /// No acknowledgement ever came.
    pub(crate) const NONE: Self = Self {
        mean_us: 0,
        deviation_us: 0,
    };

    /// An acknowledgement came after so long.
    pub(crate) fn learn(&mut self, took_us: u64) {
        let error_us = took_us.abs_diff(self.mean_us);
        self.mean_us = self.mean_us - self.mean_us / 8 + took_us / 8;
        self.deviation_us = self.deviation_us - self.deviation_us / 4 + error_us / 4;
    }

    /// Once a heartbeat: what was seen long ago counts less and less (half after 11 beats).
    pub(crate) fn fade(&mut self) {
        self.mean_us -= self.mean_us / 16;
        self.deviation_us -= self.deviation_us / 16;
    }

    /// After so long nearly all have come; 0 if none ever came.
    pub(crate) fn usual_us(self) -> u64 {
        self.mean_us + 4 * self.deviation_us
    }

    /// The same, as `others` know it if none ever came.
    pub(crate) fn usual_or(self, others: Self) -> u64 {
        if self == Self::NONE {
            others.usual_us()
        } else {
            self.usual_us()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_usual_follows_what_happens() {
        let (mut own, mut others) = (Patience::default(), Patience::default());
        (0..40).for_each(|_| others.learn(1_000));
        assert!((1_000..1_500).contains(&own.usual_or(others)));
        own.learn(25_000);
        assert!(own.usual_or(others) >= 25_000);
        (0..40).for_each(|_| own.learn(1_000));
        assert!(own.usual_us() < 2_000, "{own:?}");
    }
}
