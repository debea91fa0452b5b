//! First contact: a request that is for anyone is believed only when it comes again for our present life.
//!
//! A member that knows only an address of another sends its `Discover` there for anyone. Such a frame may be a
//! recording: of a member that has died since, or of an earlier run with the same key. So nothing is taken from it. It
//! is answered by a `Verify`, which is for the life that it names. If that life exists it learns ours from the answer,
//! and repeats the request for our life alone. No recording from before our life can hold that frame.
//!
//! After our restart other members still write to our former life. Such frames cannot be proven. If one says where its
//! sender is, and no frame of that sender has come in this life, a request goes there for anyone.
//!
//! Not covered: an engine that continues a life (a worker that takes over, or an agent that asks what became of the
//! one before it). Frames for that life are for it too, and it has no record of which ones have come already.

use crate::frame::{FrameName, Header, Receiver};
use crate::identity::MemberId;
use crate::overlay::Overlay;
use crate::overlay::interface::{Phase, Target};
use crate::overlay::outbox::{Intent, Verify};
use crate::reject::Reject;
use crate::state::NodeState;
use crate::unverified::unverified_sender;
use crate::wire::Message;

impl Overlay {
    /// A frame for anyone. Returns why nothing of it is taken.
    pub(super) fn receive_unaddressed(&mut self, header: Header, message: &Message<'_>) -> Reject {
        let Message::Join { own, boot, .. } = message else {
            return Reject::Malformed;
        };
        if own.version.incarnation != header.incarnation {
            return Reject::Malformed;
        }
        if self.phase != Phase::Running || self.rejoin.is_some() {
            return Reject::UnknownSender;
        }
        let sender = header.sender;
        let held = self.table.get(sender);
        let is_failed = held.is_some_and(|member| {
            let held = (member.version.incarnation, member.state);
            held == (header.incarnation, NodeState::Failed) && member.address() == own.address
        });
        if is_failed && !self.is_paper() {
            // The answer to any frame of a member that is held failed.
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

    /// The answer to a request of ours for anyone: it is repeated for that member. `answers` is that request.
    pub(super) fn take_verify(&mut self, from: MemberId, boot: bool, answers: FrameName) {
        if self.is_fresh(answers) {
            let target = Target::Member(from);
            self.say(Intent::Join { target, boot });
        }
    }

    /// A frame for another member, or for a former life of ours: asks its sender for contact, at most once a heartbeat.
    pub(super) fn contact_unknown(&mut self, bytes: &[u8]) {
        let Some(said) = unverified_sender(bytes) else {
            return;
        };
        let Some((_, address)) = said.introduction else {
            return;
        };
        let is_known = said.sender == self.own || self.replay.knows(said.sender);
        if is_known || self.now < self.contact_at || self.phase != Phase::Running {
            return;
        }
        self.contact_at = self.now.after(self.config.heartbeat_us);
        self.say_to_address(Receiver::Anyone, address, |slot| Intent::Join {
            target: Target::Address(slot),
            boot: true,
        });
    }
}
