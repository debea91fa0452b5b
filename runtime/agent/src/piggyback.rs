//! The ranks' own messages, handed to the protocol just before it judges and beats: step 0 (BG-03).
//!
//! They stand for beats where ranks say that they had them, and carry beats where ranks take these along. A beat
//! that is to be carried is laid out for the last quarter of a heartbeat, and only where ranks look for some; if
//! none has taken it by then, it goes by the rails as ever.
//!
//! The pings of age gossip are carried likewise, one in a cycle, for the member that is pinged next. A message
//! stands for none of them: one that was taken late would make a dead member young.

use super::event_loop::{EventLoop, instant};
use super::rank_service::RankService;
use muster_fabric::Transport;
use muster_protocol::{BEAT_AHEAD_MAX, GOSSIP_AHEAD_MAX, Input, Instant, MemberId};
use muster_shm::{PIGGYBACK_MAX, TrafficStamp};
use muster_sys::clock::monotonic_ns;

/// Bytes of the longest beat or ping that is carried.
const AHEAD_MAX: usize = if BEAT_AHEAD_MAX > GOSSIP_AHEAD_MAX {
    BEAT_AHEAD_MAX
} else {
    GOSSIP_AHEAD_MAX
};
const _: () = assert!(AHEAD_MAX <= PIGGYBACK_MAX);
/// Ranks look for something to carry to a node for so many heartbeats, or cycles, after the last time.
const WANTED_BEATS: u64 = 16;

/// The beats and pings that are laid out for ranks to carry.
#[derive(Debug, Default)]
pub(super) struct Piggybacks {
    /// For whom.
    offered: Vec<MemberId>,
    /// When to lay out the next.
    due: Option<Instant>,
    /// So many were taken along.
    pub(super) taken: u64,
}

impl Piggybacks {
    pub(super) fn due_us(&self) -> Option<u64> {
        self.due.map(|due| due.0)
    }
}

impl EventLoop {
    /// What ranks have noted within the last heartbeat about those whom we observe, and who observe us.
    pub(super) fn take_traffic(&mut self) {
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
        self.take_carried(now_ns);
        if self.spares_beats() && self.engine.overlay().is_some() {
            self.tell_traffic(now_ns);
        }
        if self.engine.next_beat() <= now {
            self.end_offers(now_ns);
        }
    }

    /// Beats are left out only where they do not watch rails, too: of several rails, or where some are
    /// preferred to others, each is known to work by what comes over it.
    fn spares_beats(&self) -> bool {
        self.fabric.rails().len() == 1 && !self.rails.favours()
    }

    fn tell_traffic(&mut self, now_ns: u64) {
        let Some(job) = &self.job else { return };
        let limit_ns = self.heartbeat_us * 1000;
        let age_of = |job: &RankService, id: MemberId, way: TrafficStamp| {
            let at_ns = job.traffic_ns(id, way).filter(|at_ns| *at_ns != 0)?;
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
            // One who has just gone, or a link that ends, is no matter.
            let _ = self.engine.handle(instant(now_ns), input);
        }
    }

    /// What messages have brought.
    fn take_carried(&mut self, now_ns: u64) {
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
            // What is no beat and no gossip of a member is refused and counted inside.
            let _ = self.engine.handle(instant(now_ns), carried);
        }
    }

    /// Lays out the next beats, or the next ping, for those to whom ranks look for something to carry.
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

    /// Just before something is sent: what was taken along meanwhile needs no ping.
    pub(super) fn settle_piggybacks(&mut self) {
        let now_ns = monotonic_ns();
        let is_due = self.engine.next_beat() <= instant(now_ns);
        if self.engine.age().is_some() && is_due && !self.piggybacks.offered.is_empty() {
            self.end_offers(now_ns);
        }
    }

    /// The beats, or the ping, go now: what was not taken along is taken back, what was needs no other.
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
