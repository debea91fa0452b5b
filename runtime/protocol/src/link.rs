//! A link: what two members that exchange news know about each other's knowledge.
//!
//! Each link has a list of *dirty* subjects: those that have changed since the peer was told. When a news
//! frame can be sent, subjects are taken from the list, and their facts are written as they are then. The
//! frame is *in flight* until it is acknowledged. If that takes too long, its subjects go back on the list.
//! No fact is given up while the link lasts, and none is queued: a fact that changes twice before a frame
//! is written is sent once.
//!
//! A second list has *hints*: subjects that the peer most likely knows by the time they would be sent, and
//! is only asked about (see `overlay::push`, which also defines eager links).
//!
//! A link has up to four roles, two in each direction: one side observes the other (which sends it beats),
//! or has chosen it as a random neighbour. A link without a role is dropped.

use std::collections::VecDeque;

use crate::ack_rtt::AckRtt;
use crate::arrivals::Arrivals;
use crate::identity::{MemberId, Version};
use crate::planted::{self, Fault};
use crate::reporters::{NO_MARK, Reporters};
use crate::subjects::{Subject, Subjects};
use crate::time::Instant;
use crate::wire::{ROLE_NEIGHBOUR, ROLE_OBSERVE};

/// Most news frames in flight on one link.
pub(crate) const FLIGHTS_MAX: usize = 16;
/// Most times that the timeout for an acknowledgement doubles.
pub(crate) const BACKOFF_MAX: u32 = 5;
/// News frames in a row without new facts after which a link becomes lazy.
const USELESS_MAX: u32 = 2;

/// The timeout for acknowledgements.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AckWait {
    /// The least first timeout, in microseconds.
    pub(crate) least_us: u64,
    /// Measured over all links.
    pub(crate) others: AckRtt,
}

impl AckWait {
    /// The timeout of a link with these measurements, after it has doubled `backoff` times; at most the longest
    /// one without measurements.
    pub(crate) fn timeout_us(self, own: AckRtt, backoff: u32) -> u64 {
        let rto_us = own.rto_or(self.others);
        (self.least_us.max(rto_us) << backoff).min(self.least_us << BACKOFF_MAX)
    }
}

#[derive(Clone, Debug)]
struct Flight {
    sequence: u64,
    sent_at: Instant,
    subjects: Vec<Subject>,
}

#[derive(Clone, Debug)]
pub(crate) struct Link {
    /// The local member observes the peer, which sends it beats.
    pub(crate) observes: bool,
    /// The peer observes the local member, which sends it beats.
    pub(crate) observed: bool,
    /// The local member chose the peer as a random neighbour.
    pub(crate) chose: bool,
    /// Size of the view when it was chosen.
    pub(crate) chose_among: usize,
    /// The peer chose the local member.
    pub(crate) chosen: bool,
    /// Start of the observation.
    pub(crate) since: Instant,
    /// Arrivals of the peer's beats while it is observed.
    pub(crate) arrivals: Arrivals,
    /// The roles the peer confirmed.
    pub(crate) confirmed: Option<u8>,
    /// When to repeat the request.
    pub(crate) request_at: Instant,
    pub(crate) requests: u32,
    /// The views were not compared yet: if the digests differ, a base view is needed.
    pub(crate) fresh: bool,
    /// When the application last sent something to the peer, and whether the last beat was left out for it.
    pub(crate) said_at: Instant,
    pub(crate) left_out: bool,
    /// The peer misses beats: none is left out before this.
    pub(crate) all_beats_until: Instant,
    /// A message of the application has replaced a beat of the peer since its last one.
    pub(crate) stood_in: bool,
    /// Rounds of probing in the present silence, and when the next one is due.
    pub(crate) rounds: u32,
    pub(crate) round_at: Instant,
    /// Probers that found the peer silent in the present silence, and when the first of them did.
    pub(crate) silent: Reporters,
    silent_at: Instant,
    /// The version reported in the present silence.
    pub(crate) reported: Option<Version>,
    /// Beats in a row with another digest while nothing was in flight.
    pub(crate) mismatches: u32,
    /// No repair before this.
    pub(crate) repair_at: Instant,
    /// Ask the peer for its base view in the next request.
    pub(crate) want_view: bool,
    /// No news before this.
    open_at: Instant,
    /// Nor before this, even if all is acknowledged.
    rested_at: Instant,
    /// The link is eager: news is sent at once, not as a hint later.
    pub(crate) eager: bool,
    /// News frames of the peer in a row without new facts.
    useless: u32,
    dirty: Subjects,
    /// Subjects to send a hint of, and subjects to request from the peer.
    hints: Subjects,
    wants: Subjects,
    hint_at: Instant,
    flights: VecDeque<Flight>,
    backoff: u32,
    /// Round-trip times of the peer's acknowledgements.
    ack_rtt: AckRtt,
}

impl Link {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            observes: false,
            observed: false,
            chose: false,
            chose_among: 0,
            chosen: false,
            since: now,
            arrivals: Arrivals::default(),
            confirmed: None,
            request_at: now,
            requests: 0,
            fresh: true,
            said_at: Instant::default(),
            left_out: false,
            all_beats_until: now,
            stood_in: false,
            rounds: 0,
            round_at: now,
            silent: Reporters::default(),
            silent_at: now,
            reported: None,
            mismatches: 0,
            repair_at: now,
            want_view: false,
            open_at: now,
            rested_at: now,
            eager: true,
            useless: 0,
            dirty: Subjects::default(),
            hints: Subjects::default(),
            wants: Subjects::default(),
            hint_at: now,
            flights: VecDeque::new(),
            backoff: 0,
            ack_rtt: AckRtt::default(),
        }
    }

    /// The roles that the local member wants, for a request.
    pub(crate) fn roles(&self) -> u8 {
        (if self.observes { ROLE_OBSERVE } else { 0 })
            | (if self.chose { ROLE_NEIGHBOUR } else { 0 })
    }

    /// The roles that the local member accepts, for a reply.
    pub(crate) fn accepted_roles(&self) -> u8 {
        (if self.observed { ROLE_OBSERVE } else { 0 })
            | (if self.chosen { ROLE_NEIGHBOUR } else { 0 })
    }

    /// Whether the next beat may be left out: not two in a row, and none while the peer misses some.
    pub(crate) fn may_spare_beat(&self, now: Instant) -> bool {
        !self.left_out && now >= self.all_beats_until
    }

    pub(crate) fn has_role(&self) -> bool {
        self.observes || self.observed || self.chose || self.chosen
    }

    /// Both sides know of the link.
    fn is_established(&self) -> bool {
        let is_confirmed = self
            .confirmed
            .is_some_and(|roles| roles & self.roles() != 0);
        self.observed || self.chosen || is_confirmed
    }

    /// Whether the local member watches the peer, which sends it beats. If links are `mutual`, the two sides of
    /// each established link watch each other.
    pub(crate) fn watches(&self, mutual: bool) -> bool {
        self.observes || (mutual && self.is_established())
    }

    /// Whether the peer watches the local member, which sends it beats.
    pub(crate) fn is_watched(&self, mutual: bool) -> bool {
        self.observed || (mutual && self.is_established())
    }

    pub(crate) fn is_neighbour(&self) -> bool {
        self.chose || self.chosen
    }

    /// A request must be sent or repeated.
    pub(crate) fn wants_request(&self) -> bool {
        self.want_view || (self.roles() != 0 && self.confirmed != Some(self.roles()))
    }

    /// When to send or repeat the request; never if none is wanted.
    pub(crate) fn wanted_request_at(&self) -> Instant {
        if self.wants_request() {
            self.request_at
        } else {
            Instant::NEVER
        }
    }

    /// The peer was heard: its silence is over.
    pub(crate) fn heard(&mut self) {
        self.rounds = 0;
        self.silent = Reporters::default();
        self.reported = None;
    }

    /// The peer's silence was not reported yet, and no prober has found it.
    pub(crate) fn is_unattested(&self) -> bool {
        self.reported.is_none() && self.silent.is_empty()
    }

    /// A prober found the peer silent.
    pub(crate) fn found_silent(&mut self, prober: MemberId, now: Instant) {
        if self.silent.is_empty() {
            self.silent_at = now;
        }
        self.silent.add(prober, NO_MARK);
    }

    /// Drops what probers found longer ago than `after_us`.
    pub(crate) fn forget_silent(&mut self, now: Instant, after_us: u64) {
        if now.since(self.silent_at) > after_us {
            self.silent = Reporters::default();
        }
    }

    pub(crate) fn mark(&mut self, subject: Subject) {
        self.unhint(subject);
        self.dirty.insert(subject);
    }

    /// Puts a subject on the list of hints, which are not sent before `at`; no effect if it is dirty.
    pub(crate) fn mark_lazily(&mut self, subject: Subject, at: Instant) {
        if !self.dirty.contains(&subject) {
            self.hint_at = self.hint_at_or(at);
            self.wants.remove(&subject);
            self.hints.insert(subject);
        }
    }

    /// As `mark_lazily`, for all nodes in their order, except those wanted from the peer.
    pub(crate) fn mark_nodes_lazily(&mut self, ids: impl Iterator<Item = MemberId>, at: Instant) {
        self.hint_at = self.hint_at_or(at);
        let (dirty, wants) = (&self.dirty, &self.wants);
        let is_listed = |node: &Subject| dirty.contains(node) || wants.contains(node);
        let nodes = ids.map(Subject::Node).filter(|node| !is_listed(node));
        self.hints.extend(nodes);
    }

    fn hint_at_or(&self, at: Instant) -> Instant {
        let hint_at = self.hint_at();
        if hint_at == Instant::NEVER {
            at
        } else {
            hint_at
        }
    }

    fn unhint(&mut self, subject: Subject) {
        self.hints.remove(&subject);
        self.wants.remove(&subject);
    }

    /// The peer holds more about a subject: request it at `at`, unless it becomes known before.
    pub(crate) fn want(&mut self, subject: Subject, at: Instant) {
        if !self.dirty.contains(&subject) {
            self.hint_at = self.hint_at().min(at);
            self.hints.remove(&subject);
            self.wants.insert(subject);
        }
    }

    /// When hints are due; never if there are none.
    pub(crate) fn hint_at(&self) -> Instant {
        if self.hints.is_empty() && self.wants.is_empty() {
            Instant::NEVER
        } else {
            self.hint_at
        }
    }

    /// Takes up to `max` hints.
    pub(crate) fn take_hints(&mut self, max: usize) -> Vec<(Subject, bool)> {
        let Self { wants, hints, .. } = self;
        let wanted = core::iter::from_fn(|| wants.pop_first()).map(|subject| (subject, true));
        let told = core::iter::from_fn(|| hints.pop_first()).map(|subject| (subject, false));
        wanted.chain(told).take(max).collect()
    }

    /// Notes whether a news frame of the peer had new facts. Returns whether the link is eager.
    pub(crate) fn update_eager(&mut self, brought_news: bool) -> bool {
        self.useless = if brought_news { 0 } else { self.useless + 1 };
        self.eager = brought_news || (self.eager && self.useless < USELESS_MAX);
        self.eager
    }

    /// As `mark`, for all nodes in their order.
    pub(crate) fn mark_nodes(&mut self, ids: impl Iterator<Item = MemberId>) {
        self.dirty.extend(ids.map(Subject::Node));
    }

    /// The peer holds the same: nothing to send.
    pub(crate) fn unmark(&mut self, subject: Subject) {
        self.dirty.remove(&subject);
        self.unhint(subject);
    }

    /// The same for all subjects for which `known` returns true.
    pub(crate) fn unmark_all(&mut self, mut known: impl FnMut(Subject) -> bool) {
        self.dirty.retain(|subject| !known(*subject));
        self.hints.retain(|subject| !known(*subject));
        self.wants.retain(|subject| !known(*subject));
        for flight in &mut self.flights {
            flight.subjects.retain(|told| !known(*told));
        }
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.dirty.is_empty()
            && self.hints.is_empty()
            && self.wants.is_empty()
            && self.flights.is_empty()
    }

    pub(crate) fn can_send(&self, now: Instant) -> bool {
        now >= self.send_at()
    }

    /// When the next news frame may be sent; never if nothing is dirty or too much is in flight.
    pub(crate) fn send_at(&self) -> Instant {
        if self.dirty.is_empty() || self.flights.len() >= FLIGHTS_MAX {
            Instant::NEVER
        } else {
            self.open_at
        }
    }

    /// A frame begun now waits until `at`; one begun before does not wait longer.
    pub(crate) fn wait_until(&mut self, at: Instant) {
        if self.dirty.is_empty() {
            self.open_at = self.open_at.max(at);
            self.rested_at = self.rested_at.max(at);
        }
    }

    /// The next frame waits for nothing.
    pub(crate) fn open(&mut self, now: Instant) {
        self.open_at = now;
    }

    /// Number of news frames in flight.
    pub(crate) fn flights(&self) -> usize {
        self.flights.len()
    }

    /// Whether the last frame was lost: the next one is then sent over every rail.
    pub(crate) fn is_retrying(&self) -> bool {
        self.backoff > 0
    }

    /// Number of dirty subjects and hints.
    pub(crate) fn waiting(&self) -> usize {
        self.dirty.len() + self.hints.len() + self.wants.len()
    }

    pub(crate) fn dirty(&self) -> impl Iterator<Item = Subject> {
        self.dirty.iter()
    }

    /// The subjects were sent (or are gone) with frame `sequence`. If none are left, the next frame waits
    /// for `pause_us`, and for acknowledgements as long as they usually take. So updates are batched for
    /// slow receivers; a lost frame delays nothing.
    pub(crate) fn sent(
        &mut self,
        now: Instant,
        sequence: u64,
        taken: Vec<Subject>,
        pause_us: u64,
        wait: AckWait,
    ) {
        for subject in &taken {
            if planted::on(Fault::ListNeverCleared) {
                break;
            }
            self.dirty.remove(subject);
        }
        self.flights.push_back(Flight {
            sequence,
            sent_at: now,
            subjects: taken,
        });
        if self.dirty.is_empty() {
            self.rested_at = now.after(pause_us);
            self.open_at = now.after(pause_us.max(self.hold_us(wait)));
        }
    }

    /// The local member overslept: an acknowledgement that came meanwhile did not take so long.
    pub(crate) fn forgive(&mut self, now: Instant, late_us: u64) {
        for flight in &mut self.flights {
            flight.sent_at = flight.sent_at.after(late_us).min(now);
        }
    }

    /// The peer has acknowledged a frame, and holds the link eager or lazy. Returns the round-trip time, in
    /// microseconds.
    pub(crate) fn acked(&mut self, now: Instant, sequence: u64, eager: bool) -> Option<u64> {
        let mut flights = self.flights.iter();
        let at = flights.position(|flight| flight.sequence == sequence)?;
        let took_us = now.since(self.flights.remove(at)?.sent_at);
        self.ack_rtt.sample(took_us);
        self.backoff = 0;
        self.eager = eager;
        if self.flights.is_empty() {
            self.open_at = self.open_at.min(self.rested_at);
        }
        Some(took_us)
    }

    fn hold_us(&self, wait: AckWait) -> u64 {
        match self.ack_rtt.rto_or(wait.others) {
            0 => wait.least_us,
            rto_us => rto_us.min(wait.least_us),
        }
    }

    /// Whether the timeout is the link's own: an acknowledgement came on it.
    pub(crate) fn is_measured(&self) -> bool {
        self.ack_rtt != AckRtt::NONE
    }

    /// How often the timeout has doubled, and when the oldest frame in flight was sent.
    pub(crate) fn oldest_flight(&self) -> Option<(u32, Instant)> {
        let flight = self.flights.front()?;
        Some((self.backoff, flight.sent_at))
    }

    /// When the oldest frame in flight counts as lost.
    pub(crate) fn resend_at(&self, wait: AckWait) -> Instant {
        let wait_us = wait.timeout_us(self.ack_rtt, self.backoff);
        self.flights
            .front()
            .map_or(Instant::NEVER, |flight| flight.sent_at.after(wait_us))
    }

    /// Puts the subjects of lost frames back on the list; returns how many frames were lost.
    pub(crate) fn resend(&mut self, now: Instant, wait: AckWait) -> u64 {
        let mut lost = 0;
        let wait_us = wait.timeout_us(self.ack_rtt, self.backoff);
        while let Some(flight) = self.flights.front()
            && now >= flight.sent_at.after(wait_us)
        {
            if !planted::on(Fault::NoResend) && !planted::on(Fault::NoRepair) {
                self.dirty.extend(flight.subjects.iter().copied());
            }
            self.flights.pop_front();
            lost += 1;
        }
        if lost > 0 {
            self.backoff = (self.backoff + 1).min(BACKOFF_MAX);
        }
        lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Subject = Subject::Node(MemberId(1));
    const B: Subject = Subject::Rank(MemberId(1), 7);
    const WAIT: AckWait = AckWait {
        least_us: 10_000,
        others: AckRtt::NONE,
    };

    /// ZM-08: unacknowledged facts are sent again, acknowledged ones are not.
    #[test]
    fn lost_news_goes_back_on_the_list() {
        let mut link = Link::new(Instant(0));
        link.mark(A);
        link.mark(B);
        link.sent(Instant(0), 1, vec![A], 0, WAIT);
        link.sent(Instant(0), 2, vec![B], 0, WAIT);
        assert!(!link.can_send(Instant(0)));
        link.acked(Instant(500), 1, true);
        assert_eq!(link.resend(Instant(9_999), WAIT), 0);
        assert_eq!(link.resend(Instant(10_000), WAIT), 1);
        assert_eq!(link.dirty().collect::<Vec<_>>(), [B]);
        assert!(link.is_retrying());
        link.sent(Instant(10_000), 3, vec![B], 0, WAIT);
        assert_eq!(link.resend_at(WAIT), Instant(30_000));
        link.acked(Instant(11_000), 3, true);
        assert!(link.is_idle() && !link.is_retrying());
    }

    /// Frames that wait in a full socket are not lost: the timeout follows the acknowledgements, up to the
    /// bound after losses.
    #[test]
    fn slow_acknowledgements_are_waited_for() {
        let mut link = Link::new(Instant(0));
        for sequence in 1..=8 {
            let now = Instant(sequence * 30_000);
            link.mark(A);
            link.sent(now, sequence, vec![A], 0, WAIT);
            link.acked(now.after(25_000), sequence, true);
        }
        link.sent(Instant(300_000), 9, vec![A], 0, WAIT);
        let given_up = link.resend_at(WAIT);
        assert!(given_up > Instant(325_000), "{given_up:?}");
        link.acked(Instant(9_000_000), 9, true);
        link.sent(Instant(9_000_000), 10, vec![A], 0, WAIT);
        assert_eq!(link.resend_at(WAIT), Instant(9_320_000));
    }

    /// Facts that the peer has shown to know are not sent again, even if the frame with them was lost.
    #[test]
    fn facts_known_to_the_peer_are_not_repeated() {
        let mut link = Link::new(Instant(0));
        link.mark(A);
        link.mark(B);
        link.sent(Instant(0), 1, vec![A, B], 0, WAIT);
        link.unmark_all(|subject| subject == A);
        assert_eq!(link.resend(Instant(10_000), WAIT), 1);
        assert_eq!(link.dirty().collect::<Vec<_>>(), [B]);
        link.unmark(B);
        assert!(link.is_idle());
    }

    /// ZM-08: a link becomes lazy after two news frames in a row without new facts, and eager with new
    /// ones.
    #[test]
    fn useless_news_makes_a_link_lazy() {
        let mut link = Link::new(Instant(0));
        assert!(link.update_eager(false) && link.update_eager(true));
        assert!(link.update_eager(false) && !link.update_eager(false));
        assert!(!link.update_eager(false) && link.update_eager(true));
        link.mark(A);
        link.sent(Instant(0), 1, vec![A], 0, WAIT);
        link.acked(Instant(500), 1, false);
        assert!(!link.eager, "the peer's word counts");
    }

    /// ZM-08: a hint waits, is sent together with later ones, and is void when a news frame has the fact.
    #[test]
    fn hints_wait_for_what_the_peer_shows() {
        let mut link = Link::new(Instant(0));
        link.mark_lazily(A, Instant(500));
        link.mark_lazily(B, Instant(900));
        assert_eq!(link.hint_at(), Instant(500));
        assert!(!link.can_send(Instant(900)), "a hint is no news frame");
        link.unmark(A);
        link.mark(B);
        assert_eq!(link.hint_at(), Instant::NEVER);
        link.want(A, Instant(700));
        assert_eq!(link.take_hints(9), [(A, true)]);
        assert_eq!(link.take_hints(9), []);
    }

    /// ZM-08: the first change after a quiet time is sent at once; those that follow within the pause wait
    /// for its end, and are sent together.
    #[test]
    fn changes_after_the_first_wait_for_the_end_of_the_pause() {
        let mut link = Link::new(Instant(0));
        link.mark(A);
        assert!(link.can_send(Instant(50)));
        link.sent(Instant(50), 1, vec![A], 200, WAIT);
        link.mark(B);
        assert_eq!(
            link.send_at(),
            Instant(10_050),
            "it may not be able to follow"
        );
        link.acked(Instant(120), 1, true);
        assert_eq!(link.send_at(), Instant(250));
        link.mark(A);
        link.sent(Instant(250), 2, vec![A], 200, WAIT);
        assert!(link.can_send(Instant(250)), "the rest of the same news");
        link.sent(Instant(250), 3, vec![B], 200, WAIT);
        link.mark(A);
        let rto_us = link.ack_rtt.rto_us();
        assert!(rto_us < 200, "a lost frame delays nothing");
        assert_eq!(link.send_at(), Instant(450));
    }
}
