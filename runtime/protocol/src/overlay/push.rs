//! News dissemination: pushed along a tree at once, offered as hints on all other links a moment later.
//!
//! This is Plumtree (Leitao, Pereira, Rodrigues 2007) on the links of the overlay:
//!
//! - A link is *eager* or *lazy*. A news frame with new facts makes its link eager; the second in a row
//!   without any makes it lazy. The receiver decides, and says so in its acknowledgement: both sides agree
//!   without another message.
//! - A change is sent at once over the eager links. On a lazy link its subject is put on the list of
//!   *hints*: 22 bytes instead of a record, sent half a millisecond later (one millisecond on one of the
//!   two sides), unless the peer has shown meanwhile that it knows. A receiver that lacks what a hint names
//!   asks for it, and the reply makes the link eager: this repairs the tree. Hints are not acknowledged;
//!   digests in the beats find what remains.
//!
//! Two additions shorten the way. The tree fits the origin of earlier news; from another origin the way
//! along it can be twice as long as the shortest. Near the origin, news that is sent over *all* links
//! hardly ever arrives twice. So the origin sends over all links, and in a large view so do the members
//! that receive it from the origin. In a small view the origin of a death tells every member directly, and
//! others do not pass it on at once.
//!
//! The paper's algorithm is another one (`paper`): it tells all neighbours after tau.

use crate::codec::Writer;
use crate::frame::Kind;
use crate::identity::MemberId;
use crate::interface::{Class, Route, Target};
use crate::ledger::LedgerEntry;
use crate::mix::mix;
use crate::overlay::Overlay;
use crate::overlay::outbox::Intent;
use crate::overlay::send::Written;
use crate::planted::{self, Fault};
use crate::state::{NodeState, RankState};
use crate::subjects::Subject;
use crate::wire::{HINT_SIZE, Hint};

/// In views up to this size the origin of a death tells all members directly.
const DIRECT_MAX: usize = 32;
/// In views from this size on, a member that receives news from its origin sends it over all links.
const WIDE_MIN: usize = 128;
/// How long hints wait, in microseconds, on the side with the lower id. The other side waits twice as long,
/// so that the hints of one side are enough.
const HINT_PAUSE_US: u64 = 500;

/// Most facts requested within a heartbeat; digests find the rest.
const ASKED_MAX: usize = 8192;
/// How long a peer has to send a requested fact before another peer is asked.
const ASKED_PAUSE_US: u64 = 2_000;

impl Overlay {
    /// Marks a changed subject on all links but that of `except`, from which it came.
    pub(super) fn spread(&mut self, subject: Subject, except: Option<MemberId>) {
        if planted::on(Fault::LostDirtyMark) {
            return;
        }
        if self.rules.aggregates {
            return self.aggregate(subject);
        }
        let origin = except.is_none_or(|from| self.is_origin(from, subject));
        let large = self.table.live() >= WIDE_MIN;
        let widely = except.is_none() || (origin && large);
        let told_all = except.is_some() && origin && self.is_told_to_all(subject);
        let (now, own) = (self.now, self.own);
        for (id, link) in self.links.iter_mut() {
            if Some(id) == except {
                link.unmark(subject);
            } else if widely || (link.eager && !told_all) {
                link.mark(subject);
            } else {
                let pause_us = HINT_PAUSE_US << u32::from(own > id);
                link.mark_lazily(subject, now.after(pause_us));
            }
        }
    }

    /// Whether `member` is the origin of this news: it is about it, or reported by it.
    fn is_origin(&self, member: MemberId, subject: Subject) -> bool {
        match subject {
            Subject::Node(id) => {
                let held = self.table.get(id);
                id == member || held.is_some_and(|held| held.reporters.contains(member))
            }
            Subject::Rank(id, _) | Subject::Map(id) => id == member,
            // An entry of the ledger does not name its origin.
            Subject::Suspicion { .. } | Subject::Record(_) => false,
        }
    }

    /// Whether the origin of this news tells all members directly.
    fn is_told_to_all(&self, subject: Subject) -> bool {
        let about = match subject {
            Subject::Node(id) => self
                .table
                .get(id)
                .is_some_and(|held| !held.in_view() || held.state == NodeState::Suspect),
            Subject::Rank(id, rank) => {
                let fact = self.table.get(id).and_then(|held| held.ranks.get(&rank));
                fact.is_some_and(|fact| fact.state != RankState::Alive)
            }
            Subject::Map(_) | Subject::Suspicion { .. } | Subject::Record(_) => false,
        };
        about && self.table.live() <= DIRECT_MAX
    }

    /// Tells a death from its origin, beside the links and at once: to all members of a small view, to the
    /// monitors in a large one.
    pub(super) fn push_directly(&mut self, subject: Subject) {
        if !self.rules.pushes_failures || self.table.live() > DIRECT_MAX {
            return self.send_to_monitors(subject);
        }
        let others: Vec<MemberId> = self.table.iter_live().map(|member| member.id).collect();
        for to in others {
            if to != self.own && Some(to) != subject.member() && !self.links.contains_key(&to) {
                self.enqueue(Intent::Direct {
                    to,
                    subject,
                    route: Route::Next,
                });
            }
        }
    }

    /// Updates the mode of a link after a news frame; returns whether it is eager.
    pub(super) fn update_eager(&mut self, from: MemberId, brought_news: bool) -> bool {
        let keeps = !self.rules.prunes_tree || planted::on(Fault::TreeNeverPruned);
        let link = self.links.get_mut(&from).filter(|_| !keeps);
        link.is_none_or(|link| link.update_eager(brought_news))
    }

    /// Takes hints: the peer names what it holds, or asks for what the local member holds.
    pub(super) fn take_hints(&mut self, from: MemberId, hints: &[Hint]) {
        let now = self.now;
        for hint in hints {
            if self.news.asked.len() >= ASKED_MAX {
                self.counters.facts_refused += 1;
                return;
            }
            let held = self.stamp(hint.subject);
            let until = self
                .news
                .asked
                .get(&hint.subject)
                .filter(|until| now < **until);
            let Some(link) = self.links.get_mut(&from) else {
                return;
            };
            if held == hint.stamp {
                link.unmark(hint.subject);
            } else if hint.wanted || hint.stamp == 0 {
                link.eager = true;
                link.mark(hint.subject);
            } else if let Some(until) = until {
                // Another peer was asked just now; ask this one if it does not reply.
                link.want(hint.subject, *until);
            } else {
                self.counters.hints_followed += 1;
                link.eager = true;
                link.want(hint.subject, now);
                self.news
                    .asked
                    .insert(hint.subject, now.after(ASKED_PAUSE_US));
            }
        }
    }

    /// A hash of what is held about a subject: equal if two members have nothing to tell each other about
    /// it. 0 for nothing.
    fn stamp(&self, subject: Subject) -> u64 {
        let stamp = match subject {
            Subject::Node(id) => self.table.get(id).map(|held| {
                let state = u64::from(held.version.minor) << 8 | held.state as u64;
                let stamp = mix(held.version.incarnation ^ mix(state));
                let marked =
                    |(id, mark): (MemberId, u16)| mix(stamp ^ id.0 ^ u64::from(mark) << 48);
                let reporters = held.reporters.iter_marked().map(marked);
                let open = held.state == NodeState::Suspect;
                reporters.filter(|_| open).fold(stamp, u64::wrapping_add)
            }),
            Subject::Rank(id, rank) => self.table.in_view(id).and_then(|held| {
                let fact = held.ranks.get(&rank)?;
                Some(mix(held.version.incarnation ^ mix(fact.sequence.into())))
            }),
            Subject::Map(id) => Some(self.attributes.version(id)),
            Subject::Record(key) => self.ledger.get(key).map(LedgerEntry::stamp),
            Subject::Suspicion { .. } => None,
        };
        stamp.unwrap_or_default()
    }

    /// Writes hints for the next link that has some.
    pub(super) fn write_hints(&mut self, body: &mut [u8]) -> Option<Written> {
        let to = self.links.first_hints()?;
        let hints = self
            .links
            .get_mut(&to)?
            .take_hints((body.len() - 2) / HINT_SIZE);
        let mut writer = Writer::new(body);
        writer.u16(hints.len() as u16).ok()?;
        for (subject, wanted) in hints {
            let stamp = self.stamp(subject);
            let hint = Hint {
                subject,
                wanted,
                stamp,
            };
            hint.write(&mut writer).ok()?;
        }
        self.counters.hints_sent += 1;
        let target = Target::Member(to);
        Some((writer.used(), Kind::Hint, target, Class::News, Route::Next))
    }
}
