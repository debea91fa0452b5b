//! Step 0: traffic stamps and piggybacks of the ranks' own messages, passed to the engine before it checks silences
//! and beats (BG-03).
//!
//! A message between two ranks replaces a beat between their nodes, if a rank recorded it (a traffic stamp). A rank
//! may also carry a beat in its message (a piggyback). The agent offers a beat for that in the last quarter of a
//! heartbeat, and only where ranks look for one. If no rank has taken it by then, it is sent on the rails as usual.
//!
//! Pings of age gossip are carried in the same way, one per cycle, for the member that is pinged next. A traffic
//! stamp does not replace a ping: a stamp that is read late would make a failed member appear young.

use super::event_loop::{EventLoop, instant};
use super::rank_service::RankService;
use muster_fabric::Transport;
use muster_protocol::{BEAT_AHEAD_MAX, GOSSIP_AHEAD_MAX, Input, Instant, MemberId};
use muster_shm::{PIGGYBACK_MAX, TrafficStamp};
use muster_sys::clock::monotonic_ns;

/// Size of the longest beat or ping that is carried.
const AHEAD_MAX: usize = if BEAT_AHEAD_MAX > GOSSIP_AHEAD_MAX {
    BEAT_AHEAD_MAX
} else {
    GOSSIP_AHEAD_MAX
};
const _: () = assert!(AHEAD_MAX <= PIGGYBACK_MAX);
/// A node counts as wanted for this number of heartbeats, or cycles, after a rank last looked for something to carry
/// to it.
const WANTED_BEATS: u64 = 16;

/// The beats and pings that are offered to ranks.
#[derive(Debug, Default)]
pub(super) struct Piggybacks {
    /// The receivers of the offers.
    offered: Vec<MemberId>,
    /// Time of the next offers.
    due: Option<Instant>,
    /// Number of offers that ranks took.
    pub(super) taken: u64,
}

impl Piggybacks {
    pub(super) fn due_us(&self) -> Option<u64> {
        self.due.map(|due| due.0)
    }
}

impl EventLoop {
    /// Passes on what ranks recorded within the last heartbeat about members that this node observes, or that observe
    /// it.
    pub(super) fn read_traffic(&mut self) {
        if self.job.is_none() {
            return;
        }
        let now_ns = monotonic_ns();
        let now = instant(now_ns);
        if self.piggybacks.due.is_some_and(|due| due <= now) {
            self.piggybacks.due = None;
            self.offer_beats(now_ns);
        }
        if self.engine.poll_timeout() > now {
            return;
        }
        self.receive_piggybacks(now_ns);
        if self.spares_beats() && self.engine.overlay().is_some() {
            self.report_traffic(now_ns);
        }
        if self.engine.next_beat() <= now {
            self.end_offers(now_ns);
        }
    }

    /// Whether traffic may replace beats. It may not where beats also monitor rails: with several rails, or with
    /// preferences among them, only frames on a rail show that it works.
    fn spares_beats(&self) -> bool {
        self.fabric.rails().len() == 1 && !self.rails.has_preferences()
    }

    fn report_traffic(&mut self, now_ns: u64) {
        let Some(job) = &self.job else { return };
        let limit_ns = self.timing.heartbeat_us * 1000;
        let age_of = |job: &RankService, id: MemberId, direction: TrafficStamp| {
            let at_ns = job.traffic_ns(id, direction).filter(|at_ns| *at_ns != 0)?;
            Some(now_ns.saturating_sub(at_ns)).filter(|age_ns| *age_ns < limit_ns)
        };
        let mut inputs: Vec<Input<'static>> = Vec::new();
        for member in self.engine.observing() {
            if let Some(age_ns) = age_of(job, member, TrafficStamp::From) {
                let age_us = age_ns / 1000;
                inputs.push(Input::TrafficFrom { member, age_us });
            }
        }
        for member in self.engine.observers() {
            if let Some(age_ns) = age_of(job, member, TrafficStamp::To) {
                let age_us = age_ns / 1000;
                inputs.push(Input::TrafficTo { member, age_us });
            }
        }
        for input in inputs {
            // The member may have left, or the link may have ended.
            let _ = self.engine.handle(instant(now_ns), input);
        }
    }

    /// Passes on the piggybacks that ranks received.
    fn receive_piggybacks(&mut self, now_ns: u64) {
        let mut piggyback = [0; PIGGYBACK_MAX];
        for id in self.engine.carried_from() {
            let job = self.job.as_mut();
            let Some((size, at_ns)) = job.and_then(|job| job.collect_piggyback(id, &mut piggyback))
            else {
                continue;
            };
            let carried = Input::Carried {
                bytes: &piggyback[..size],
                age_us: now_ns.saturating_sub(at_ns) / 1000,
            };
            // The engine counts and drops a piggyback that is not a beat or ping of a member.
            let _ = self.engine.handle(instant(now_ns), carried);
        }
    }

    /// Offers the next beats, or the next ping, for members to which ranks look for something to carry.
    fn offer_beats(&mut self, now_ns: u64) {
        let mut piggyback = [0; AHEAD_MAX];
        for id in self.engine.ahead_for(instant(now_ns)) {
            if !self.is_wanted(id, now_ns) {
                continue;
            }
            let size = self
                .engine
                .write_ahead(instant(now_ns), id, &mut piggyback)
                .unwrap_or(0);
            let job = self.job.as_mut().filter(|_| size > 0);
            if job.is_some_and(|job| job.offer_piggyback(id, &piggyback[..size])) {
                self.piggybacks.offered.push(id);
            }
        }
    }

    /// Ends the offers just before the engine sends: a ping that a rank has taken is not sent again.
    pub(super) fn settle_piggybacks(&mut self) {
        let now_ns = monotonic_ns();
        let is_due = self.engine.next_beat() <= instant(now_ns);
        if self.engine.age().is_some() && is_due && !self.piggybacks.offered.is_empty() {
            self.end_offers(now_ns);
        }
    }

    /// Ends the offers, because beats or the ping are due. Withdraws those that were not taken, and reports those
    /// that were.
    fn end_offers(&mut self, now_ns: u64) {
        let now = instant(now_ns);
        for member in std::mem::take(&mut self.piggybacks.offered) {
            let job = self.job.as_mut();
            if job.is_some_and(|job| job.withdraw_piggyback(member)) {
                self.piggybacks.taken += 1;
                let age_us = 0;
                let _ = self.engine.handle(now, Input::TrafficTo { member, age_us });
            }
        }
        let all = || self.engine.carried_to().into_iter();
        let wanted = self.spares_beats() && all().any(|id| self.is_wanted(id, now_ns));
        let due = self.engine.following_ahead(now);
        self.piggybacks.due = wanted.then_some(due);
    }

    fn is_wanted(&self, id: MemberId, now_ns: u64) -> bool {
        let limit_ns = WANTED_BEATS * self.engine.beat_us() * 1000;
        let at_ns = self
            .job
            .as_ref()
            .map_or(0, |job| job.piggyback_wanted_ns(id));
        at_ns != 0 && now_ns.saturating_sub(at_ns) < limit_ns
    }
}
