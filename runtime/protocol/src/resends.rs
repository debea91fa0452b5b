//! Retransmissions: the links whose oldest news frame may be lost, and when the next one is.
//!
//! A link with measured acknowledgement times has a timeout of its own, and so a timer. The timeout of all other
//! links follows the times of the whole engine, which change with every acknowledgement. These links are in the
//! order in which their oldest frames were sent, for each number of times that the timeout has doubled. The
//! first in this order is the first to be due, whatever the timeout is.

use crate::ack_rtt::AckRtt;
use crate::identity::MemberId;
use crate::link::{AckWait, BACKOFF_MAX, Link};
use crate::sorted::SortedSet;
use crate::time::Instant;
use crate::timers::Timers;

/// When the oldest news frame of a link counts as lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resend {
    /// By the link's own timeout; never if no frame is in flight.
    At(Instant),
    /// By the timeout of links without measurements.
    Unmeasured { backoff: u32, sent_at: Instant },
}

impl Resend {
    pub(crate) const NONE: Self = Self::At(Instant::NEVER);

    /// For a link whose first timeout is at least `least_us`.
    pub(crate) fn of(link: &Link, least_us: u64) -> Self {
        match link.oldest_flight() {
            Some((backoff, sent_at)) if !link.is_measured() => {
                Self::Unmeasured { backoff, sent_at }
            }
            _ => Self::At(link.resend_at(AckWait {
                least_us,
                others: AckRtt::NONE,
            })),
        }
    }

    fn own(self) -> Instant {
        match self {
            Self::At(at) => at,
            Self::Unmeasured { .. } => Instant::NEVER,
        }
    }
}

/// The links with news frames in flight.
#[derive(Clone, Debug, Default)]
pub(crate) struct Resends {
    measured: Timers,
    /// How often the timeout has doubled, when the oldest frame was sent, and the peer.
    unmeasured: SortedSet<(u32, Instant, MemberId)>,
}

impl Resends {
    /// Moves a link from `old` to `new`.
    pub(crate) fn set(&mut self, id: MemberId, old: Resend, new: Resend) {
        if old == new {
            return;
        }
        self.measured.set(id, old.own(), new.own());
        if let Resend::Unmeasured { backoff, sent_at } = old {
            self.unmeasured.remove(&(backoff, sent_at, id));
        }
        if let Resend::Unmeasured { backoff, sent_at } = new {
            self.unmeasured.insert((backoff, sent_at, id));
        }
    }

    /// Moves time on, never back.
    pub(crate) fn pass(&mut self, now: Instant) {
        self.measured.pass(now);
    }

    /// The peers whose oldest news frame counts as lost at `now`, to which time was moved on.
    pub(crate) fn due(&self, now: Instant, wait: AckWait) -> Vec<MemberId> {
        let mut due: Vec<MemberId> = self.measured.due().collect();
        for (backoff, timeout_us) in self.timeouts(wait) {
            let latest = Instant(now.0.saturating_sub(timeout_us));
            let first = (backoff, Instant::default(), MemberId(0));
            let passed = first..=(backoff, latest, MemberId(u64::MAX));
            due.extend(self.unmeasured.range(passed).map(|(_, _, id)| *id));
        }
        due
    }

    /// When the next news frame counts as lost; never if none is in flight.
    pub(crate) fn next(&self, wait: AckWait) -> Instant {
        let mut next = self.measured.next();
        for (backoff, timeout_us) in self.timeouts(wait) {
            let mut from = self
                .unmeasured
                .range((backoff, Instant::default(), MemberId(0))..);
            if let Some((_, sent_at, _)) = from.next().filter(|first| first.0 == backoff) {
                next = next.min(sent_at.after(timeout_us));
            }
        }
        next
    }

    /// The timeouts of links without measurements, if there are such links.
    fn timeouts(&self, wait: AckWait) -> impl Iterator<Item = (u32, u64)> {
        let backoffs = (0..=BACKOFF_MAX).filter(|_| !self.unmeasured.is_empty());
        backoffs.map(move |backoff| (backoff, wait.timeout_us(AckRtt::NONE, backoff)))
    }
}
