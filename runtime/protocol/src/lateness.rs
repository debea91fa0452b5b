//! Lateness: how late the local member runs. It is never held against others.
//!
//! Every engine asks its host for a wake-up at a given time. If the host comes much later, the engine was
//! not running (stopped, starved, suspended), and silence in that time says nothing about others. So their
//! silences are shortened by that time. A figure of the lateness is also kept. It decays, widens the local
//! deadlines, and is advertised in beats, so that peers widen their deadlines for this member.
//!
//! A member that is called in time may be late too: while its host has more to read than it can, received
//! frames wait, and so do replies. The host reports how long (`strain`). That shortens no silence, but
//! counts in the figure.
//!
//! The first lateness comes before any was measured. A host that cannot prevent it says so at its start
//! (`expect`), and that much is advertised from then on.
//!
//! An engine that is *always* late would forgive for ever, and find no failure. So only the first lateness
//! in a second is forgiven completely; of later ones at most half a second in a second. A lateness of a
//! whole second is always a stop, and is forgiven completely.

use crate::planted::{self, Fault};
use crate::time::Instant;

/// Most that lateness widens a deadline by, in microseconds.
pub const LATE_MAX_US: u64 = 1_000_000;

/// Latenesses closer than this, in microseconds, share one allowance.
const SPELL_US: u64 = 1_000_000;
/// The allowance, in microseconds.
const ALLOWANCE_US: u64 = 500_000;

#[derive(Clone, Debug)]
pub(crate) struct Lateness {
    tolerance_us: u64,
    /// The lateness to expect at any time, measured or not.
    least_us: u64,
    figure_us: u64,
    asked: Instant,
    /// Start of the present spell, and what is left to forgive in it.
    spell_at: Option<Instant>,
    allowance_us: u64,
}

impl Lateness {
    pub(crate) fn new(heartbeat_us: u64) -> Self {
        Self {
            tolerance_us: heartbeat_us / 2,
            least_us: 0,
            figure_us: 0,
            asked: Instant::NEVER,
            spell_at: None,
            allowance_us: 0,
        }
    }

    /// Sets a lateness to expect before any is measured.
    pub(crate) fn expect(&mut self, least_us: u64) {
        self.least_us = least_us.min(LATE_MAX_US);
    }

    /// Notes the time at which the host is to come back.
    pub(crate) fn ask(&mut self, at: Instant) {
        self.asked = at;
    }

    /// The host came at `now`. If it overslept, returns how far to move the silences of others.
    pub(crate) fn woke(&mut self, now: Instant) -> Option<u64> {
        let late_us = now.since(self.asked);
        // One lateness is measured once, however many inputs follow.
        self.asked = Instant::NEVER;
        if late_us <= self.tolerance_us || planted::on(Fault::NoLatenessShift) {
            return None;
        }
        self.figure_us = self.figure_us.max(late_us).min(LATE_MAX_US);
        let asked = Instant(now.0 - late_us);
        if self
            .spell_at
            .is_none_or(|since| asked.since(since) >= SPELL_US)
            || late_us >= LATE_MAX_US
        {
            self.spell_at = Some(now);
            self.allowance_us = ALLOWANCE_US;
            return Some(late_us);
        }
        let forgiven_us = late_us.min(self.allowance_us);
        self.allowance_us -= forgiven_us;
        Some(forgiven_us)
    }

    /// The host was so busy that received frames may have waited for `busy_us`, though it came in time.
    pub(crate) fn strain(&mut self, busy_us: u64) {
        if busy_us > self.tolerance_us && !planted::on(Fault::NoLatenessShift) {
            self.figure_us = self.figure_us.max(busy_us).min(LATE_MAX_US);
        }
    }

    /// Called once a heartbeat: an old lateness loses weight (half after 44 heartbeats).
    pub(crate) fn decay(&mut self) {
        self.figure_us -= self.figure_us.div_ceil(64);
    }

    /// The figure, in microseconds.
    pub(crate) fn figure_us(&self) -> u64 {
        self.figure_us.max(self.least_us)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oversleeping_is_measured_once_and_fades() {
        let mut lateness = Lateness::new(20_000);
        assert_eq!(lateness.woke(Instant(5)), None);
        lateness.ask(Instant(100_000));
        assert_eq!(lateness.woke(Instant(110_000)), None);
        lateness.ask(Instant(120_000));
        assert_eq!(lateness.woke(Instant(60_120_000)), Some(60_000_000));
        assert_eq!(lateness.woke(Instant(60_120_001)), None);
        assert_eq!(lateness.figure_us(), LATE_MAX_US);
        for _ in 0..2000 {
            lateness.decay();
        }
        assert_eq!(lateness.figure_us(), 0);
        lateness.expect(60_000);
        assert_eq!(lateness.figure_us(), 60_000);
        lateness.strain(9_000);
        assert_eq!(lateness.figure_us(), 60_000);
        lateness.strain(90_000);
        assert_eq!(lateness.figure_us(), 90_000);
    }

    #[test]
    fn a_stop_after_a_hiccup_is_forgiven_completely() {
        let mut lateness = Lateness::new(20_000);
        lateness.ask(Instant(100_000));
        assert_eq!(lateness.woke(Instant(112_000)), Some(12_000));
        lateness.ask(Instant(132_000));
        assert_eq!(lateness.woke(Instant(5_132_000)), Some(5_000_000));
    }

    #[test]
    fn constant_lateness_is_not_always_forgiven() {
        let mut lateness = Lateness::new(20_000);
        let mut forgiven_us = 0;
        for wake in 0..100 {
            lateness.ask(Instant(wake * 100_000 + 10_000));
            forgiven_us += lateness.woke(Instant((wake + 1) * 100_000)).unwrap();
        }
        assert!(forgiven_us < 100 * 90_000 * 2 / 3, "{forgiven_us}");
    }
}
