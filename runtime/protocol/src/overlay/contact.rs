//! First contact: a join request for anyone counts only when it is repeated for the present incarnation.
//!
//! A member that knows only the address of another sends its join request there *for anyone*. Such a frame
//! may be a recording: of a member that has died since, or of an earlier run with the same key. So nothing
//! is taken from it. It is answered by a `Verify` for the incarnation that it names. If that incarnation
//! lives, it learns the receiver's from the answer, and repeats the request for that one alone. No
//! recording from before the receiver's start can hold that frame.
//!
//! After a restart, other members still write to the previous incarnation. Such frames cannot be
//! authenticated. If one says where its sender is, and no frame of that sender has come in the present
//! incarnation, a request for anyone is sent there.
//!
//! Not covered: an engine that continues an incarnation (a worker that takes over, or a restart inquiry).
//! It accepts frames for that incarnation, and has no record of those that have already come.

use crate::frame::{FrameName, Header, Receiver};
use crate::identity::{ADDRESS_MAX, MemberId};
use crate::interface::{Phase, Target};
use crate::overlay::Overlay;
use crate::overlay::outbox::{Intent, Verify};
use crate::reject::Reject;
use crate::state::NodeState;
use crate::unverified::unverified_sender;
use crate::wire::Message;

impl Overlay {
    /// Takes a frame for anyone. Returns why nothing of it is taken.
    pub(super) fn receive_unaddressed(&mut self, header: Header, message: &Message<'_>) -> Reject {
        let Message::Join { own, boot, .. } = message else {
            return Reject::Malformed;
        };
        if own.version.incarnation != header.incarnation {
            return Reject::Malformed;
        }
        if self.phase != Phase::Running || self.join.rejoin.is_some() {
            return Reject::UnknownSender;
        }
        let sender = header.sender;
        let held = self.table.get(sender);
        let is_failed = held.is_some_and(|member| {
            let held = (member.version.incarnation, member.state);
            held == (header.incarnation, NodeState::Failed) && member.address() == own.address
        });
        if is_failed && self.rules.claims_failures {
            // The answer to any frame of a failed member.
            self.send_failure_claim(header);
            return Reject::Unproven;
        }
        let is_due = match held {
            Some(_) => self.answer_due(sender),
            None if self.is_full() => return Reject::Full,
            None => true,
        };
        let verify = Verify {
            address: own.address.to_vec(),
            boot: *boot,
            request: header.name(),
        };
        if is_due && !self.outbox.verify(sender, verify) {
            self.counters.outbox_dropped += 1;
        }
        Reject::Unproven
    }

    /// Takes the answer to a request for anyone: the request is repeated for that member. `answers` names
    /// the request.
    pub(super) fn take_verify(&mut self, from: MemberId, boot: bool, answers: FrameName) {
        if self.is_fresh(answers) {
            let target = Target::Member(from);
            self.enqueue(Intent::Join { target, boot });
        }
    }

    /// Sends a join request for anyone to an address at which a member of this zone is known to run.
    pub(super) fn contact(&mut self, address: &[u8]) -> Result<(), Reject> {
        if address.is_empty() || address.len() > ADDRESS_MAX {
            return Err(Reject::Unknown);
        }
        self.enqueue_to_address(Receiver::Anyone, address, |slot| Intent::Join {
            target: Target::Address(slot),
            boot: true,
        });
        Ok(())
    }

    /// Takes a frame for another member, or for an earlier incarnation: sends a join request to its sender,
    /// at most once a heartbeat.
    pub(super) fn contact_unknown(&mut self, bytes: &[u8]) {
        let Some(said) = unverified_sender(bytes) else {
            return;
        };
        let Some((_, address)) = said.introduction else {
            return;
        };
        let is_known = said.sender == self.own || self.news.replay.knows(said.sender);
        if is_known || self.now < self.join.contact_at || self.phase != Phase::Running {
            return;
        }
        self.join.contact_at = self.now.after(self.config.heartbeat_us);
        // A frame whose address is too long is not used.
        let _ = self.contact(address);
    }
}
