//! Acknowledgement round-trip times: smoothed, and the retransmission timeout (RTO) that follows.
//!
//! A fixed timeout is wrong when thousands of members start at once: frames and acknowledgements wait in
//! full sockets, and a retransmission would only add to the load. So the timeout follows the measured
//! times, as TCP's does: mean and mean deviation, exponentially smoothed (Jacobson 1988).
//!
//! A retransmission has a sequence number of its own, so no acknowledgement is attributed to the wrong
//! frame.

/// Smoothed times of one link, or of all links, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct AckRtt {
    mean_us: u64,
    deviation_us: u64,
}

impl AckRtt {
    /// No acknowledgement came yet.
    pub(crate) const NONE: Self = Self {
        mean_us: 0,
        deviation_us: 0,
    };

    /// Adds a measured round-trip time.
    pub(crate) fn sample(&mut self, took_us: u64) {
        let error_us = took_us.abs_diff(self.mean_us);
        self.mean_us = self.mean_us - self.mean_us / 8 + took_us / 8;
        self.deviation_us = self.deviation_us - self.deviation_us / 4 + error_us / 4;
    }

    /// Called once a heartbeat: old measurements lose weight (half after 11 heartbeats).
    pub(crate) fn decay(&mut self) {
        self.mean_us -= self.mean_us / 16;
        self.deviation_us -= self.deviation_us / 16;
    }

    /// The retransmission timeout: mean + 4 deviations, in microseconds. 0 without measurements.
    pub(crate) fn rto_us(self) -> u64 {
        self.mean_us + 4 * self.deviation_us
    }

    /// The timeout, or that of `others` without measurements.
    pub(crate) fn rto_or(self, others: Self) -> u64 {
        if self == Self::NONE {
            others.rto_us()
        } else {
            self.rto_us()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_timeout_follows_the_measured_times() {
        let (mut own, mut others) = (AckRtt::default(), AckRtt::default());
        (0..40).for_each(|_| others.sample(1_000));
        assert!((1_000..1_500).contains(&own.rto_or(others)));
        own.sample(25_000);
        assert!(own.rto_or(others) >= 25_000);
        (0..40).for_each(|_| own.sample(1_000));
        assert!(own.rto_us() < 2_000, "{own:?}");
    }
}
