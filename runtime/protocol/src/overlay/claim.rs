//! "You are held failed": saying so, and hearing it.
//!
//! A claim goes to whoever we hold failed and who speaks to us after all, and with a knock at its
//! door. Of two who hold each other failed the one of the weaker side yields (`verdict::yields`).
//!
//! Intuition: a letter says that you are dead. If it is answered by return of post it is about you as
//! you are; if it has lain in some post office since your last illness, and its writer has died since,
//! it is about nobody. So who would yield asks back, with a claim of its own, and yields to the answer:
//! a claim that names one of our latest frames as the one that it answers. Whatever was recorded or
//! held up on its way names an old frame, or none.
//!
//! What is absent: clocks. Frames are numbered, and we remember which number was the last one when.

use crate::frame::{FrameName, Header};
use crate::identity::MemberId;
use crate::overlay::Overlay;
use crate::overlay::outbox::Intent;
use crate::state::NodeState;
use crate::time::Instant;
use crate::verdict;
use crate::wire::{Claim, Message, NodeFact, Strength};

/// Up to which of our frames an answer comes too late to be one: those that were sent between one and
/// two deadlines ago, or earlier.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stale {
    up_to: u64,
    next: u64,
    /// When `next` comes into force.
    at: Instant,
}

impl Stale {
    /// Before anything was sent.
    pub(super) fn new(sequence: u64) -> Self {
        Self {
            up_to: sequence,
            next: sequence,
            at: Instant::default(),
        }
    }
}

impl Overlay {
    /// Once a heartbeat.
    pub(super) fn grow_stale(&mut self) {
        if self.now >= self.stale.at {
            self.stale = Stale {
                up_to: self.stale.next,
                next: self.sequence,
                at: self.now.after(self.widened_deadline_us(0)),
            };
        }
    }

    /// Whether this names a frame that this life of ours sent of late.
    pub(super) fn is_fresh(&self, answers: FrameName) -> bool {
        answers.incarnation == self.own_version().incarnation
            && answers.sequence > self.stale.up_to
            && answers.sequence <= self.sequence
    }

    /// A claim by somebody whom we hold failed: each of two holds the other failed, in whatever
    /// versions. One of their views must go as a whole, with all its verdicts. So a life that began on
    /// the other side is not let in by its version: it says whom it holds failed, and would bring that
    /// with it. False if it is no such claim.
    pub(super) fn take_mutual_claim(&mut self, header: Header, message: &Message<'_>) -> bool {
        let (claim, answers) = match message {
            Message::Claim { claim, answers } => (claim, *answers),
            Message::Discover {
                claim: Some(claim), ..
            } => (claim, FrameName::NONE),
            _ => return false,
        };
        let from = header.sender;
        let held = self.table.get(from).map(|member| member.state);
        let accused = claim.about.id == self.own && claim.about.state == NodeState::Failed;
        if !accused || held != Some(NodeState::Failed) || self.is_paper() {
            return false;
        }
        self.heard(from);
        let yields = |ours: Strength| verdict::yields(ours, claim.strength);
        if !yields(self.claim_strength()) {
            self.claim(header);
        } else if !yields(self.strength()) {
            // Only because we are drowsy. What they missed may be more than what we slept through:
            // when we are awake we ask again.
            self.counters.claims_questioned += 1;
        } else if self.is_fresh(answers) {
            self.outcast(Some(from), &claim.about);
        } else {
            self.counters.claims_questioned += 1;
            self.claim(header);
        }
        true
    }

    /// Somebody whom we do not hold failed says that we are.
    pub(super) fn claimed(&mut self, from: MemberId, claim: &Claim<'_>) {
        let about = &claim.about;
        let own = self.own_version();
        let late = about.version.incarnation < own.incarnation;
        if about.id != self.own || late || about.state != NodeState::Failed {
            return;
        }
        let unrefuted = about.version.minor >= own.minor;
        let by_others = about.reporters.iter().any(|by| !self.may_report(by));
        if unrefuted && by_others && verdict::yields(self.claim_strength(), claim.strength) {
            // Found silent by people whom we hold failed ourselves: theirs is the larger side.
            self.outcast(Some(from), about);
        } else {
            self.merge_own(Some(from), about);
        }
    }

    /// Tells the sender of this frame that it is held failed; at most twice a heartbeat.
    pub(super) fn claim(&mut self, header: Header) {
        let to = header.sender;
        let failed = self.table.get(to).map(|member| member.state) == Some(NodeState::Failed);
        if failed && self.answer_due(to) {
            self.say(Intent::Claim {
                to,
                answers: header.name(),
            });
        }
    }

    /// What we hold of one who is to be told that it failed.
    pub(super) fn claim_about(&self, id: MemberId) -> Option<Claim<'_>> {
        let member = self
            .table
            .get(id)
            .filter(|member| member.state == NodeState::Failed)?;
        let about = NodeFact::of(member);
        Some(Claim {
            strength: self.claim_strength(),
            about,
        })
    }

    /// How much our view weighs when two sides of a split meet. Who slept for a deadline has missed
    /// what a view is made of, perhaps its own end: for two more deadlines its view weighs nothing.
    pub(super) fn claim_strength(&self) -> Strength {
        let strength = self.strength();
        if self.is_drowsy() {
            return Strength {
                live: 0,
                ..strength
            };
        }
        strength
    }

    /// How many we are.
    pub(super) fn strength(&self) -> Strength {
        let root = self
            .table
            .iter_live()
            .next()
            .map_or(self.own, |member| member.id);
        Strength {
            live: u32::try_from(self.table.live()).unwrap_or(u32::MAX),
            root,
        }
    }
}
