//! How news travels: pushed along a tree at once, offered on all other links a moment later.
//!
//! Intuition: a rumour needs no more tellings than there are people. Everybody passes news on to
//! a few friends; to the others it only says "have you heard of X?" a while later, and most have.
//! Which friends? Those from whom news came first the last time: everybody's first teller makes a
//! tree that reaches all. This is Plumtree (Leitao, Pereira, Rodrigues 2007) on the links of the
//! overlay, with two rules:
//!
//! - A link is *eager* or *lazy*. A letter that brought something new makes its link eager; the
//!   second in a row that brought nothing makes it lazy. The receiver decides, and its
//!   acknowledgement says so: both sides agree, and no other message is needed.
//! - What changes goes at once over the eager links. On a lazy link it is put on the list of
//!   *hints*, 22 bytes each instead of a record, which go half a millisecond later (on one side a
//!   whole one) unless the other side has shown meanwhile that it knows. Who lacks what a hint
//!   names asks for it, and the letter that answers makes the link eager: the tree grows around
//!   the gap. Hints are not acknowledged; what all of them lose the digests in the beats find.
//!
//! Complications. The tree grew from where earlier news began, and the way along it from
//! elsewhere can be twice as long as the shortest. But near its origin news that is passed on
//! over *all* links hardly ever meets itself: so the origin does that, and in a large view those
//! do it who hear it from the origin. In a small view the origin tells every single member of
//! deaths, itself, and nobody needs to pass them on at once.
//!
//! What this is not: the paper's way (`paper`), which tells all neighbours after tau.

use crate::codec::Writer;
use crate::frame::Kind;
use crate::identity::MemberId;
use crate::link::Subject;
use crate::overlay::Overlay;
use crate::overlay::interface::{Class, Route, Target};
use crate::overlay::outbox::Intent;
use crate::overlay::send::Written;
use crate::planted::{self, Fault};
use crate::state::{NodeState, RankState};
use crate::table::mix;
use crate::wire::{HINT_SIZE, Hint};

/// In views up to this size the origin of a death tells everybody directly.
const DIRECT_MAX: usize = 32;
/// In views from this size on, those who hear news from its origin pass it on over all links.
const WIDE_MIN: usize = 128;
/// How long hints wait, in microseconds, on the side with the lower id; twice that on the other,
/// so that one side's are enough.
const HINT_PAUSE_US: u64 = 500;

/// Most facts asked for within a heartbeat; of more, the digests will tell.
const ASKED_MAX: usize = 8192;
/// How long who was asked for what it hinted at has time, before another is asked.
const ASKED_PAUSE_US: u64 = 2_000;

impl Overlay {
    /// What has changed goes to all but the one it came from.
    pub(super) fn spread(&mut self, subject: Subject, except: Option<MemberId>) {
        if planted::on(Fault::LostDirtyMark) {
            return;
        }
        if self.is_paper() {
            return self.aggregate(subject);
        }
        let origin = except.is_none_or(|from| self.is_origin(from, subject));
        let large = self.table.live() >= WIDE_MIN;
        let widely = except.is_none() || (origin && large);
        let told_all = except.is_some() && origin && self.is_told_to_all(subject);
        let (now, own) = (self.now, self.own);
        for (id, link) in &mut self.links {
            if Some(*id) == except {
                link.unmark(subject);
            } else if widely || (link.eager && !told_all) {
                link.mark(subject);
            } else {
                let pause_us = HINT_PAUSE_US << u32::from(own > *id);
                link.mark_lazily(subject, now.after(pause_us));
            }
        }
    }

    /// Whether the news began with this member: it is about it, or reported by it.
    fn is_origin(&self, member: MemberId, subject: Subject) -> bool {
        match subject {
            Subject::Node(id) => {
                let held = self.table.get(id);
                id == member || held.is_some_and(|held| held.reporters.contains(member))
            }
            Subject::Rank(id, _) | Subject::Map(id) => id == member,
            Subject::Suspicion { .. } => false,
        }
    }

    /// Whether the origin of this news tells everybody itself.
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
            Subject::Map(_) | Subject::Suspicion { .. } => false,
        };
        about && self.table.live() <= DIRECT_MAX
    }

    /// The origin of a death tells everybody in a small view, the monitors in a large one, beside
    /// the links, at once.
    pub(super) fn push_directly(&mut self, subject: Subject) {
        if self.is_paper() || self.table.live() > DIRECT_MAX {
            return self.tell_monitors(subject);
        }
        let others: Vec<MemberId> = self.table.iter_live().map(|member| member.id).collect();
        for to in others {
            if to != self.own && to != subject.member() && !self.links.contains_key(&to) {
                self.say(Intent::Direct {
                    to,
                    subject,
                    route: Route::Next,
                });
            }
        }
    }

    /// A letter came over a link: whether it stays in the tree (or comes into it).
    pub(super) fn update_eager(&mut self, from: MemberId, brought_news: bool) -> bool {
        let is_paper = self.is_paper();
        let keeps = is_paper || planted::on(Fault::TreeNeverPruned);
        let link = self.links.get_mut(&from).filter(|_| !keeps);
        link.is_none_or(|link| link.update_eager(brought_news))
    }

    /// The peer names what it holds, or asks for what we hold.
    pub(super) fn take_hints(&mut self, from: MemberId, hints: &[Hint]) {
        let now = self.now;
        for hint in hints {
            if self.asked.len() >= ASKED_MAX {
                self.counters.facts_refused += 1;
                return;
            }
            let held = self.stamp(hint.subject);
            let until = self.asked.get(&hint.subject).filter(|until| now < **until);
            let Some(link) = self.links.get_mut(&from) else {
                return;
            };
            if held == hint.stamp {
                link.unmark(hint.subject);
            } else if hint.wanted || hint.stamp == 0 {
                link.eager = true;
                link.mark(hint.subject);
            } else if let Some(until) = until {
                // Somebody else was asked just now; if it does not answer, this one is.
                link.want(hint.subject, *until);
            } else {
                self.counters.hints_followed += 1;
                link.eager = true;
                link.want(hint.subject, now);
                self.asked.insert(hint.subject, now.after(ASKED_PAUSE_US));
            }
        }
    }

    /// What we hold about a subject, in 64 bits: the same for those who have nothing to tell each
    /// other about it. 0 if there is nothing.
    fn stamp(&self, subject: Subject) -> u64 {
        let stamp = match subject {
            Subject::Node(id) => self.table.get(id).map(|held| {
                let state = u64::from(held.version.minor) << 8 | held.state as u64;
                let stamp = mix(held.version.incarnation ^ mix(state));
                let reporters = held.reporters.iter().map(|id| mix(stamp ^ id.0));
                let open = held.state == NodeState::Suspect;
                reporters.filter(|_| open).fold(stamp, u64::wrapping_add)
            }),
            Subject::Rank(id, rank) => self.table.in_view(id).and_then(|held| {
                let fact = held.ranks.get(&rank)?;
                Some(mix(held.version.incarnation ^ mix(fact.sequence.into())))
            }),
            Subject::Map(id) => Some(self.attributes.version(id)),
            Subject::Suspicion { .. } => None,
        };
        stamp.unwrap_or_default()
    }

    /// Hints for the next link that has some.
    pub(super) fn write_hints(&mut self, body: &mut [u8]) -> Option<Written> {
        let now = self.now;
        let (to, link) = self
            .links
            .iter_mut()
            .find(|(_, link)| now >= link.hint_at())?;
        let hints = link.take_hints((body.len() - 2) / HINT_SIZE);
        let to = *to;
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
