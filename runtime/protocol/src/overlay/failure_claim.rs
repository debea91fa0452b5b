//! Failure claim: tells a member that it is held failed, and takes such a message.
//!
//! A failure claim goes to a failed member that sends frames after all, and in the join request to a failed
//! member. When two members hold each other failed, the member of the weaker side yields
//! (`verdict::yields`).
//!
//! A failure claim may be a recording, or may have been delayed until its sender has died. So a member that
//! would yield first answers with a failure claim of its own, and yields only to the reply: a failure claim
//! that names one of its recent frames as the frame that it answers.
//!
//! Frames are identified by sequence number. Each engine remembers its own sequence number at two points in
//! time instead of comparing clocks.

use crate::config::Policy;
use crate::frame::{FrameName, Header};
use crate::identity::MemberId;
use crate::overlay::Overlay;
use crate::overlay::outbox::Intent;
use crate::reporters::NO_MARK;
use crate::state::NodeState;
use crate::time::Instant;
use crate::verdict;
use crate::wire::{FailureClaim, Message, NodeFact, Strength};

/// Own frames that are too old to be answered: those sent between one and two deadlines ago, or earlier.
#[derive(Clone, Copy, Debug)]
pub(super) struct StaleFrames {
    up_to: u64,
    next: u64,
    /// When `next` comes into force.
    at: Instant,
}

impl StaleFrames {
    /// State before the first frame.
    pub(super) fn new(sequence: u64) -> Self {
        Self {
            up_to: sequence,
            next: sequence,
            at: Instant::default(),
        }
    }
}

impl Overlay {
    /// Moves the limit forward, at most once in a deadline. Called once a heartbeat.
    pub(super) fn advance_stale_frames(&mut self) {
        if self.now >= self.news.stale.at {
            self.news.stale = StaleFrames {
                up_to: self.news.stale.next,
                next: self.news.sequence,
                at: self.now.after(self.widened_deadline_us(0)),
            };
        }
    }

    /// Whether `answers` names a recent frame of the present incarnation of the local member.
    pub(super) fn is_fresh(&self, answers: FrameName) -> bool {
        answers.incarnation == self.own_version().incarnation
            && answers.sequence > self.news.stale.up_to
            && answers.sequence <= self.news.sequence
    }

    /// Takes a failure claim of a sender that is held failed: each holds the other failed, in any versions.
    /// One of the two views must be given up as a whole, with all its verdicts. A new incarnation from the
    /// other side is therefore not admitted by its version: it would bring that side's verdicts with it.
    /// Returns false if it is no such claim.
    pub(super) fn take_mutual_failure_claim(
        &mut self,
        header: Header,
        message: &Message<'_>,
    ) -> bool {
        let (failure_claim, answers) = match message {
            Message::FailureClaim {
                failure_claim,
                answers,
            } => (failure_claim, *answers),
            Message::Join {
                failure_claim: Some(failure_claim),
                ..
            } => (failure_claim, FrameName::NONE),
            _ => return false,
        };
        let from = header.sender;
        let held = self.table.get(from).map(|member| member.state);
        let accused =
            failure_claim.about.id == self.own && failure_claim.about.state == NodeState::Failed;
        if !accused || held != Some(NodeState::Failed) || !self.rules.claims_failures {
            return false;
        }
        self.heard(from);
        if self.config.policy == Policy::Merge {
            return self.return_to(header, failure_claim, answers);
        }
        let yields = |ours: Strength| verdict::yields(ours, failure_claim.strength);
        if !yields(self.asserted_strength()) {
            self.send_failure_claim(header);
        } else if !yields(self.strength()) {
            // Yields only because it overslept: the sender may have missed more. It asks again when that
            // time is over.
            self.counters.failure_claims_requeried += 1;
        } else if self.is_fresh(answers) {
            self.outcast(Some(from), &failure_claim.about);
        } else {
            self.counters.failure_claims_requeried += 1;
            self.send_failure_claim(header);
        }
        true
    }

    /// Takes such a claim if views are merged: a new incarnation refutes it. Each of the two members returns to the
    /// other's view when the other has claimed its failure. Returns false if the local member has a new incarnation
    /// already, of which the sender does not know yet.
    fn return_to(&mut self, header: Header, claim: &FailureClaim<'_>, answers: FrameName) -> bool {
        let is_late = claim.about.version.incarnation < self.own_version().incarnation;
        if is_late {
            self.introduce_to(header.sender);
            return false;
        }
        if self.is_fresh(answers) {
            self.outcast(Some(header.sender), &claim.about);
        } else {
            self.counters.failure_claims_requeried += 1;
        }
        self.send_failure_claim(header);
        true
    }

    /// Takes a failure claim of a sender that is not held failed.
    pub(super) fn take_failure_claim(&mut self, from: MemberId, failure_claim: &FailureClaim<'_>) {
        let about = &failure_claim.about;
        let own = self.own_version();
        let late = about.version.incarnation < own.incarnation;
        if about.id != self.own || late || about.state != NodeState::Failed {
            return;
        }
        let unrefuted = about.version.minor >= own.minor;
        let by_others = about.reporters.iter().any(|by| !self.may_report(by));
        // The side of a reporter that is back in another incarnation has yielded.
        let by_yielded = about
            .reporters
            .iter_marked()
            .any(|(by, mark)| self.may_report(by) && mark != NO_MARK && mark != self.mark_of(by));
        if unrefuted
            && by_others
            && !by_yielded
            && verdict::yields(self.asserted_strength(), failure_claim.strength)
        {
            // Only failed members reported it, and theirs is the larger side.
            self.outcast(Some(from), about);
        } else {
            self.merge_own(Some(from), about);
        }
    }

    /// Answers a frame of a failed member with a failure claim, at most twice a heartbeat.
    pub(super) fn send_failure_claim(&mut self, header: Header) {
        let to = header.sender;
        let failed = self.table.get(to).map(|member| member.state) == Some(NodeState::Failed);
        if failed && self.answer_due(to) {
            self.enqueue(Intent::FailureClaim {
                to,
                answers: header.name(),
            });
        }
    }

    /// The failure claim for a member; `None` unless it is held failed.
    pub(super) fn failure_claim_about(&self, id: MemberId) -> Option<FailureClaim<'_>> {
        let member = self
            .table
            .get(id)
            .filter(|member| member.state == NodeState::Failed)?;
        let about = NodeFact::of(member);
        Some(FailureClaim {
            strength: self.asserted_strength(),
            about,
        })
    }

    /// The strength that is sent with failure claims. An engine that overslept a deadline has missed
    /// changes of the view, perhaps its own removal: for two more deadlines it counts as the weakest.
    pub(super) fn asserted_strength(&self) -> Strength {
        let strength = self.strength();
        if self.has_overslept() {
            return Strength {
                live: 0,
                ..strength
            };
        }
        strength
    }

    /// The strength of the local view.
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
