//! A node's own clock. It starts with the world's clock and may run too fast or too slow.
//!
//! Engines receive only their own node's time, as on a real machine. The world schedules by its own time.

use muster_protocol::Instant;

const MILLION: i128 = 1_000_000;

/// A clock with a rate that can change.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    rate_ppm: i64,
    /// When the rate was set: in the world's time and in the node's own time.
    world: Instant,
    own: Instant,
}

impl Clock {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            rate_ppm: 0,
            world: now,
            own: now,
        }
    }

    /// From `now` on the clock gains `rate_ppm` microseconds per second. It never jumps.
    pub(crate) fn set_rate(&mut self, now: Instant, rate_ppm: i64) {
        *self = Self {
            rate_ppm,
            world: now,
            own: self.own(now),
        };
    }

    /// The node's own time when the world's time is `world`.
    pub(crate) fn own(&self, world: Instant) -> Instant {
        if self.rate_ppm == 0 {
            return Instant(self.own.0 + world.since(self.world));
        }
        let gone = i128::from(world.since(self.world)) * (MILLION + i128::from(self.rate_ppm));
        Instant(self.own.0 + (gone / MILLION) as u64)
    }

    /// The world's time at which the clock shows at least `own`.
    pub(crate) fn world(&self, own: Instant) -> Instant {
        if own == Instant::NEVER || self.rate_ppm == 0 {
            return self.world.after(own.since(self.own));
        }
        let gone = i128::from(own.since(self.own)) * MILLION;
        let rate = MILLION + i128::from(self.rate_ppm);
        self.world.after(((gone + rate - 1) / rate) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fast_clock_gains_and_the_inverse_is_not_early() {
        for rate_ppm in [-200_000, -50, 0, 37, 100_000] {
            let mut clock = Clock::new(Instant(1000));
            clock.set_rate(Instant(5000), rate_ppm);
            for own in [5001, 77_777, 10_000_000] {
                let world = clock.world(Instant(own));
                assert!(clock.own(world) >= Instant(own), "{rate_ppm} {own}");
                assert!(
                    clock.own(Instant(world.0 - 1)) <= Instant(own),
                    "{rate_ppm}"
                );
            }
        }
        let mut clock = Clock::new(Instant(0));
        clock.set_rate(Instant(0), 100_000);
        assert_eq!(clock.own(Instant(1_000_000)), Instant(1_100_000));
    }
}
