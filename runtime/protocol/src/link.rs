//! A link: what two members who talk regularly know about each other's knowledge.
//!
//! Intuition: a shopping list for each friend. What changes is put on the list of every friend
//! (dirty); when a letter can go out, the list is copied into it, with the facts as they are at
//! that moment, and the letter is kept in mind until it is acknowledged (in flight). A letter
//! that is not acknowledged in time puts its items back on the list. Nothing is ever given up
//! while the friend lives, and nothing is queued: a fact that changes twice before a letter goes
//! is written once.
//!
//! Beside the list there is one of *hints*: what the friend most likely knows by the time we would
//! write, and is only asked about (see `overlay::push`, which also says what an eager link is).
//!
//! A link has up to four roles, two in each direction: one observes the other (the other beats
//! to it), one chose the other as a random neighbour. A link without a role is dropped.

use std::collections::VecDeque;

use crate::ack_rtt::AckRtt;
use crate::arrivals::Arrivals;
use crate::identity::{MemberId, Version};
use crate::planted::{self, Fault};
use crate::subjects::Subjects;
use crate::table::Reporters;
use crate::time::Instant;
use crate::wire::{ROLE_NEIGHBOUR, ROLE_OBSERVE};

/// News frames under way on one link.
pub(crate) const FLIGHTS_MAX: usize = 16;
/// The wait for an acknowledgement doubles up to this many times.
const BACKOFF_MAX: u32 = 5;
/// So many letters in a row that bring nothing new take their link out of the tree.
const USELESS_MAX: u32 = 2;

/// Something a fact can be about. Nodes sort before ranks and maps, so they are told first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Subject {
    Node(MemberId),
    Rank(MemberId, u32),
    /// One report, in paper mode: it outlives what it is about.
    Suspicion {
        suspect: MemberId,
        reporter: MemberId,
        version: Version,
    },
    /// The version of a member's attributes.
    Map(MemberId),
}

impl Subject {
    /// Whom it is about.
    pub(crate) fn member(self) -> MemberId {
        match self {
            Self::Node(id)
            | Self::Rank(id, _)
            | Self::Map(id)
            | Self::Suspicion { suspect: id, .. } => id,
        }
    }
}

/// How long a letter waits for its acknowledgement.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AckWait {
    /// At least, the first time, in microseconds.
    pub(crate) least_us: u64,
    /// What all links together know.
    pub(crate) others: AckRtt,
}

#[derive(Clone, Debug)]
struct Flight {
    sequence: u64,
    sent_at: Instant,
    subjects: Vec<Subject>,
}

#[derive(Clone, Debug)]
pub(crate) struct Link {
    /// We observe the peer: it beats to us.
    pub(crate) observes: bool,
    /// The peer observes us: we beat to it.
    pub(crate) observed: bool,
    /// We chose the peer as a random neighbour.
    pub(crate) chose: bool,
    /// How many were in the view when we chose it.
    pub(crate) chose_among: usize,
    /// The peer chose us.
    pub(crate) chosen: bool,
    /// When we began to observe.
    pub(crate) since: Instant,
    /// How its beats arrive, while we observe it.
    pub(crate) arrivals: Arrivals,
    /// The roles the peer confirmed.
    pub(crate) confirmed: Option<u8>,
    /// When to ask again for them.
    pub(crate) request_at: Instant,
    pub(crate) requests: u32,
    /// The peer has not been compared with yet: a differing digest calls for a base view.
    pub(crate) fresh: bool,
    /// A beat to the peer is due.
    pub(crate) beat_due: bool,
    /// When the application last sent something there, and whether the last beat was left out for it.
    pub(crate) said_at: Instant,
    pub(crate) left_out: bool,
    /// The peer misses our beats: none is left out before this.
    pub(crate) all_beats_until: Instant,
    /// A message of the application has stood for the peer's beat since the last one came.
    pub(crate) stood_in: bool,
    /// Rounds of probing in the present silence, and when the next is due.
    pub(crate) rounds: u32,
    pub(crate) round_at: Instant,
    /// Helpers who found the peer silent in the present silence, and when the first of them did.
    pub(crate) silent: Reporters,
    silent_at: Instant,
    /// The version we reported in the present silence.
    pub(crate) reported: Option<Version>,
    /// Beats in a row with another digest while nothing was on the way.
    pub(crate) mismatches: u32,
    /// No repair before this.
    pub(crate) repair_at: Instant,
    /// Ask the peer for its base view with the next request.
    pub(crate) want_view: bool,
    /// No news goes out before this.
    open_at: Instant,
    /// Nor before this, even if all is acknowledged.
    rested_at: Instant,
    /// Part of the tree: news goes at once, not as a hint after a while.
    pub(crate) eager: bool,
    /// Letters of the peer in a row that brought nothing new.
    useless: u32,
    dirty: Subjects,
    /// What the peer is to get a hint of, and what it holds more about that we want.
    hints: Subjects,
    wants: Subjects,
    hint_at: Instant,
    flights: VecDeque<Flight>,
    backoff: u32,
    /// How long its acknowledgements take.
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
            beat_due: false,
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

    /// What we want from the peer, as the request says it.
    pub(crate) fn roles(&self) -> u8 {
        (if self.observes { ROLE_OBSERVE } else { 0 })
            | (if self.chose { ROLE_NEIGHBOUR } else { 0 })
    }

    /// What the peer may count on, as the reply says it.
    pub(crate) fn accepted_roles(&self) -> u8 {
        (if self.observed { ROLE_OBSERVE } else { 0 })
            | (if self.chosen { ROLE_NEIGHBOUR } else { 0 })
    }

    /// Whether the next beat to the peer may be left out: not after one that was, nor while it misses some.
    pub(crate) fn may_spare_beat(&self, now: Instant) -> bool {
        !self.left_out && now >= self.all_beats_until
    }

    pub(crate) fn has_role(&self) -> bool {
        self.observes || self.observed || self.chose || self.chosen
    }

    pub(crate) fn is_neighbour(&self) -> bool {
        self.chose || self.chosen
    }

    /// A request must still be sent (again).
    pub(crate) fn wants_request(&self) -> bool {
        self.want_view || (self.roles() != 0 && self.confirmed != Some(self.roles()))
    }

    /// The peer showed life: its silence is over.
    pub(crate) fn heard(&mut self) {
        self.rounds = 0;
        self.silent = Reporters::default();
        self.reported = None;
    }

    /// Neither was the peer's silence reported yet, nor has a helper found it.
    pub(crate) fn is_unattested(&self) -> bool {
        self.reported.is_none() && self.silent.is_empty()
    }

    /// A helper found the peer silent.
    pub(crate) fn found_silent(&mut self, prober: MemberId, now: Instant) {
        if self.silent.is_empty() {
            self.silent_at = now;
        }
        self.silent.add(prober);
    }

    /// What helpers found longer ago than this is to be found anew.
    pub(crate) fn forget_silent(&mut self, now: Instant, after_us: u64) {
        if now.since(self.silent_at) > after_us {
            self.silent = Reporters::default();
        }
    }

    pub(crate) fn mark(&mut self, subject: Subject) {
        self.unhint(subject);
        self.dirty.insert(subject);
    }

    /// The peer gets a hint of it, with the others, not before `at`; unless a letter about it is
    /// being written anyway.
    pub(crate) fn mark_lazily(&mut self, subject: Subject, at: Instant) {
        if !self.dirty.contains(&subject) {
            self.hint_at = self.hint_at_or(at);
            self.wants.remove(&subject);
            self.hints.insert(subject);
        }
    }

    /// As `mark_lazily`, for all nodes in their order, but for those that we want.
    pub(crate) fn mark_nodes_lazily(&mut self, ids: impl Iterator<Item = MemberId>, at: Instant) {
        self.hint_at = self.hint_at_or(at);
        let Self { dirty, wants, .. } = &*self;
        let is_listed = |id: &MemberId| {
            let node = Subject::Node(*id);
            dirty.contains(&node) || wants.contains(&node)
        };
        let ids: Vec<MemberId> = ids.filter(|id| !is_listed(id)).collect();
        self.hints.insert_nodes(ids.into_iter());
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

    /// The peer holds more about it: it is asked at `at`, unless we hear of it before.
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

    /// At most so many of the hints, which are then no longer due.
    pub(crate) fn take_hints(&mut self, most: usize) -> Vec<(Subject, bool)> {
        let Self { wants, hints, .. } = self;
        let wanted = core::iter::from_fn(|| wants.pop_first()).map(|subject| (subject, true));
        let told = core::iter::from_fn(|| hints.pop_first()).map(|subject| (subject, false));
        wanted.chain(told).take(most).collect()
    }

    /// A letter of the peer brought something new, or nothing. Says whether the link is eager.
    pub(crate) fn update_eager(&mut self, brought_news: bool) -> bool {
        self.useless = if brought_news { 0 } else { self.useless + 1 };
        self.eager = brought_news || (self.eager && self.useless < USELESS_MAX);
        self.eager
    }

    /// As `mark`, for all nodes in their order.
    pub(crate) fn mark_nodes(&mut self, ids: impl Iterator<Item = MemberId>) {
        self.dirty.insert_nodes(ids);
    }

    /// The peer holds just what we hold: nothing to tell it.
    pub(crate) fn unmark(&mut self, subject: Subject) {
        self.dirty.remove(&subject);
        self.unhint(subject);
    }

    /// The peer holds what we hold about all of whom this is true: nothing to tell it of them.
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

    /// When the next letter may go out; never if there is nothing to say, or too much under way.
    pub(crate) fn send_at(&self) -> Instant {
        if self.dirty.is_empty() || self.flights.len() >= FLIGHTS_MAX {
            Instant::NEVER
        } else {
            self.open_at
        }
    }

    /// A letter that is begun now waits until `at`; one that is begun already does not wait longer.
    pub(crate) fn wait_until(&mut self, at: Instant) {
        if self.dirty.is_empty() {
            self.open_at = self.open_at.max(at);
            self.rested_at = self.rested_at.max(at);
        }
    }

    /// The next letter waits for nothing.
    pub(crate) fn open(&mut self, now: Instant) {
        self.open_at = now;
    }

    /// Letters that wait for their acknowledgement.
    pub(crate) fn flights(&self) -> usize {
        self.flights.len()
    }

    /// Whether the last letter was lost: then the next goes over every rail.
    pub(crate) fn is_retrying(&self) -> bool {
        self.backoff > 0
    }

    /// How much waits to be told or hinted at.
    pub(crate) fn waiting(&self) -> usize {
        self.dirty.len() + self.hints.len() + self.wants.len()
    }

    pub(crate) fn dirty(&self) -> impl Iterator<Item = Subject> {
        self.dirty.iter()
    }

    /// These subjects went out (or are gone) with frame `sequence`; when that was all, the next
    /// letter waits for `pause_us`, and for the acknowledgements as long as they usually take. A peer
    /// that cannot follow so gets fewer letters with more in each; a lost one holds nothing up.
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

    /// We overslept: an acknowledgement that came meanwhile did not take so long.
    pub(crate) fn forgive(&mut self, now: Instant, late_us: u64) {
        for flight in &mut self.flights {
            flight.sent_at = flight.sent_at.after(late_us).min(now);
        }
    }

    /// The peer has a letter, and holds this link eager or not.
    /// Says how long that took, in microseconds.
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

    /// How long an acknowledgement is waited for; the bound is that after losses.
    fn ack_wait_us(&self, wait: AckWait) -> u64 {
        let rto_us = self.ack_rtt.rto_or(wait.others);
        (wait.least_us.max(rto_us) << self.backoff).min(wait.least_us << BACKOFF_MAX)
    }

    /// When the oldest frame under way is to be given up for lost.
    pub(crate) fn resend_at(&self, wait: AckWait) -> Instant {
        let wait_us = self.ack_wait_us(wait);
        self.flights
            .front()
            .map_or(Instant::NEVER, |flight| flight.sent_at.after(wait_us))
    }

    /// Puts overdue subjects back on the list; says how many frames were lost.
    pub(crate) fn resend(&mut self, now: Instant, wait: AckWait) -> u64 {
        let mut lost = 0;
        let wait_us = self.ack_wait_us(wait);
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

    /// ZM-08: what is not acknowledged is told again; what is acknowledged is not.
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

    /// Letters that wait in a full socket are not lost: where acknowledgements take longer, they are
    /// waited for longer, up to the same bound as after losses.
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

    /// What the peer turned out to know is not told again, even if the letter with it was lost.
    #[test]
    fn what_the_peer_knows_is_not_repeated() {
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

    /// ZM-08: a link leaves the tree after two useless letters in a row, and news brings it back.
    #[test]
    fn useless_letters_make_a_link_lazy() {
        let mut link = Link::new(Instant(0));
        assert!(link.update_eager(false) && link.update_eager(true));
        assert!(link.update_eager(false) && !link.update_eager(false));
        assert!(!link.update_eager(false) && link.update_eager(true));
        link.mark(A);
        link.sent(Instant(0), 1, vec![A], 0, WAIT);
        link.acked(Instant(500), 1, false);
        assert!(!link.eager, "the peer's word counts");
    }

    /// ZM-08: a hint waits, goes with those that follow, and is void when a letter says more.
    #[test]
    fn hints_wait_for_what_the_peer_shows() {
        let mut link = Link::new(Instant(0));
        link.mark_lazily(A, Instant(500));
        link.mark_lazily(B, Instant(900));
        assert_eq!(link.hint_at(), Instant(500));
        assert!(!link.can_send(Instant(900)), "a hint is no letter");
        link.unmark(A);
        link.mark(B);
        assert_eq!(link.hint_at(), Instant::NEVER);
        link.want(A, Instant(700));
        assert_eq!(link.take_hints(9), [(A, true)]);
        assert_eq!(link.take_hints(9), []);
    }

    /// ZM-08: the first change after quiet leaves at once, those that follow within the pause wait
    /// for its end, together.
    #[test]
    fn what_follows_the_first_change_waits_for_the_end_of_the_pause() {
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
        assert!(link.can_send(Instant(250)), "the rest of the same letter");
        link.sent(Instant(250), 3, vec![B], 200, WAIT);
        link.mark(A);
        let rto_us = link.ack_rtt.rto_us();
        assert!(rto_us < 200, "a lost letter holds nothing up");
        assert_eq!(link.send_at(), Instant(450));
    }
}
