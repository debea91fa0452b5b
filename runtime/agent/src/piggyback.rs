//! Step 0: traffic stamps and piggybacks of the ranks' own messages, passed to the engine before it checks silences
//! and beats (BG-03).
//!
//! A message between two ranks replaces a beat between their nodes, if a rank recorded it (a traffic stamp). A rank
//! may also carry a beat in its message (a piggyback). The agent offers a beat for that in the last quarter of a
//! heartbeat, and only where ranks look for one. If no rank has taken it by then, it is sent on the rails as usual.
//!
//! Pings of age gossip are carried in the same way, one per cycle, for the member that is pinged next. A traffic
//! stamp does not replace a ping: a stamp that is read late would make a failed member appear young.

use super::rank_service::RankService;
use muster_protocol::{BEAT_AHEAD_MAX, Engine, GOSSIP_AHEAD_MAX, Input, Instant, MemberId};
use muster_shm::{PIGGYBACK_MAX, TrafficStamp};
use muster_sys::clock::monotonic_ns;
use muster_zones::Tree;

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

    /// Passes on what ranks recorded within the last heartbeat about members that this node observes, or that observe
    /// it. `spares_beats` returns whether traffic may replace beats.
    pub(super) fn read_traffic(
        &mut self,
        tree: &mut Tree,
        job: &mut RankService,
        spares_beats: &dyn Fn() -> bool,
    ) {
        let now_ns = monotonic_ns();
        let now = instant(now_ns);
        if self.due.is_some_and(|due| due <= now) {
            self.due = None;
            self.offer_beats(tree, job, now_ns);
        }
        if tree.poll_timeout() > now {
            return;
        }
        receive_piggybacks(tree, job, now_ns);
        if tree.base().overlay().is_some() && spares_beats() {
            report_traffic(tree, job, now_ns);
        }
        if tree.base().next_beat() <= now {
            self.end_offers(tree, job, spares_beats, now_ns);
        }
    }

    /// Offers the next beats, or the next ping, for members to which ranks look for something to carry.
    fn offer_beats(&mut self, tree: &mut Tree, job: &mut RankService, now_ns: u64) {
        let (now, mut piggyback) = (instant(now_ns), [0; AHEAD_MAX]);
        for id in tree.base_mut().ahead_for(now) {
            if is_wanted(tree.base(), job, id, now_ns)
                && let Some(size) = tree.base_mut().write_ahead(now, id, &mut piggyback)
                && let Some((table, node)) = job.entry(id)
                && table.offer_piggyback(node, &piggyback[..size])
            {
                self.offered.push(id);
            }
        }
    }

    /// Ends the offers just before the engine sends: a ping that a rank has taken is not sent again.
    pub(super) fn settle(
        &mut self,
        tree: &mut Tree,
        job: &mut RankService,
        spares_beats: &dyn Fn() -> bool,
    ) {
        let now_ns = monotonic_ns();
        let is_due = tree.base().next_beat() <= instant(now_ns);
        if tree.base().age().is_some() && is_due && !self.offered.is_empty() {
            self.end_offers(tree, job, spares_beats, now_ns);
        }
    }

    /// Ends the offers, because beats or the ping are due. Withdraws those that were not taken, and reports those
    /// that were.
    fn end_offers(
        &mut self,
        tree: &mut Tree,
        job: &mut RankService,
        spares_beats: &dyn Fn() -> bool,
        now_ns: u64,
    ) {
        let now = instant(now_ns);
        for member in std::mem::take(&mut self.offered) {
            if let Some((table, node)) = job.entry(member)
                && table.withdraw_piggyback(node)
            {
                self.taken += 1;
                let age_us = 0;
                let _ = tree.handle(now, Input::TrafficTo { member, age_us });
            }
        }
        let mut all = tree.base().carried_to();
        let wanted = spares_beats() && all.any(|id| is_wanted(tree.base(), job, id, now_ns));
        self.due = wanted.then(|| tree.base().following_ahead(now));
    }
}

fn report_traffic(tree: &mut Tree, job: &mut RankService, now_ns: u64) {
    let limit_ns = tree.base().beat_us() * 1000;
    let mut age_us = |id: MemberId, direction: TrafficStamp| {
        let (table, node) = job.entry(id)?;
        let at_ns = table.view().traffic_ns(node, direction);
        let age_ns = now_ns.saturating_sub(at_ns);
        (at_ns != 0 && age_ns < limit_ns).then_some(age_ns / 1000)
    };
    let mut inputs: Vec<Input<'static>> = Vec::new();
    for member in tree.base().observing() {
        if let Some(age_us) = age_us(member, TrafficStamp::From) {
            inputs.push(Input::TrafficFrom { member, age_us });
        }
    }
    for member in tree.base().observers() {
        if let Some(age_us) = age_us(member, TrafficStamp::To) {
            inputs.push(Input::TrafficTo { member, age_us });
        }
    }
    for input in inputs {
        // The member may have left, or the link may have ended.
        let _ = tree.handle(instant(now_ns), input);
    }
}

/// Passes on the piggybacks that ranks received.
fn receive_piggybacks(tree: &mut Tree, job: &mut RankService, now_ns: u64) {
    let mut received = Vec::new();
    for id in tree.base().carried_from() {
        let mut piggyback = [0; PIGGYBACK_MAX];
        if let Some((table, node)) = job.entry(id)
            && let Some((size, at_ns)) = table.collect_piggyback(node, &mut piggyback)
        {
            received.push((piggyback, size, at_ns));
        }
    }
    for (piggyback, size, at_ns) in received {
        let carried = Input::Carried {
            bytes: &piggyback[..size],
            age_us: now_ns.saturating_sub(at_ns) / 1000,
        };
        // The engine counts and drops a piggyback that is not a beat or ping of a member.
        let _ = tree.handle(instant(now_ns), carried);
    }
}

fn is_wanted(engine: &Engine, job: &mut RankService, id: MemberId, now_ns: u64) -> bool {
    let limit_ns = WANTED_BEATS * engine.beat_us() * 1000;
    let at_ns = job
        .entry(id)
        .map_or(0, |(table, node)| table.view().piggyback_wanted_ns(node));
    at_ns != 0 && now_ns.saturating_sub(at_ns) < limit_ns
}

fn instant(ns: u64) -> Instant {
    Instant(ns / 1000)
}
