//! Name conflict: two living members use one name. The member that held the name first keeps it; both
//! applications are told.
//!
//! A member that is in the view keeps its name. A frame from another address with the same id and a higher
//! incarnation is rejected, and its sender is given the record of the holder. The two members then exchange
//! `NameConflict` messages, each with how long its sender has held the name. The member that has held it
//! for a shorter time stops. If the holder does not answer, its observers soon find it failed, and the name
//! is free.
//!
//! So a node that restarts at the same address is a new incarnation at once. At another address it waits
//! until its previous incarnation is found failed: at most one deadline.
//!
//! Durations are compared, not dates: incarnations are launch times, and the clock of a badly configured
//! node may be wrong. Two members that started within one deadline of each other both stop. Two members
//! with the same name and the same incarnation cannot be told apart.

use crate::cause::CauseKind;
use crate::event::EventKind;
use crate::frame::{Header, Receiver};
use crate::interface::Phase;
use crate::overlay::Overlay;
use crate::overlay::outbox::Intent;
use crate::reject::Reject;
use crate::reporters::Reporters;
use crate::time::Instant;
use crate::wire::{Message, NodeFact};

/// State of the local name.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct NameState {
    /// When the local member took the name.
    pub(super) since: Option<Instant>,
    /// When the last `NameConflict` was sent.
    sent_at: Option<Instant>,
    /// The incarnation of the other member that the application was told of.
    reported: Option<u64>,
}

impl Overlay {
    /// Rejects a frame of a later incarnation of a member in the view that comes from another address.
    pub(super) fn reject_held_name(
        &mut self,
        header: Header,
        own: Option<&NodeFact<'_>>,
    ) -> Result<(), Reject> {
        let Some(held) = self.table.in_view(header.sender) else {
            return Ok(());
        };
        if header.incarnation <= held.version.incarnation {
            return Ok(());
        }
        let Some(own) = own else {
            return Err(Reject::UnknownSender);
        };
        if held.address() == own.address {
            return Ok(());
        }
        self.correct(own);
        Err(Reject::NameHeld)
    }

    /// Takes a frame with the local id: an echo, or a frame of another member with this name.
    pub(super) fn receive_own(&mut self, header: Header, message: &Message<'_>) -> Reject {
        match message {
            Message::NameConflict {
                own,
                age_us,
                receiver_incarnation,
            } => {
                self.take_name_conflict(own, *age_us, *receiver_incarnation);
            }
            Message::Join { own, .. } | Message::Link { own, .. }
                if own.version.incarnation == header.incarnation =>
            {
                self.send_name_conflict(own);
            }
            _ => {}
        }
        Reject::Own
    }

    /// Sends a `NameConflict` to the sender of a record with the local id and another address, at most once
    /// a heartbeat.
    pub(super) fn send_name_conflict(&mut self, fact: &NodeFact<'_>) {
        let sent_at = self.join.name_state.sent_at;
        let due = sent_at.is_none_or(|at| self.now.since(at) >= self.config.heartbeat_us);
        if !self.is_elsewhere(fact) || !due || self.phase != Phase::Running {
            return;
        }
        self.join.name_state.sent_at = Some(self.now);
        let receiver_incarnation = fact.version.incarnation;
        let to = Receiver::Member(fact.id, receiver_incarnation);
        self.enqueue_to_address(to, fact.address, |slot| Intent::NameConflict {
            slot,
            receiver_incarnation,
        });
    }

    /// Takes a `NameConflict`: the other member lives, and has held the name for `age_us`.
    fn take_name_conflict(&mut self, own: &NodeFact<'_>, age_us: u64, receiver_incarnation: u64) {
        self.send_name_conflict(own);
        let to_us = receiver_incarnation == self.own_version().incarnation;
        if !to_us || !self.is_elsewhere(own) || self.phase != Phase::Running {
            // For an earlier incarnation of the local member. The next one will be for the present
            // incarnation.
            return;
        }
        let nobody = Reporters::default();
        if self.name_age_us() < age_us.saturating_add(self.config.deadline_us) {
            let kind = EventKind::NameTaken;
            self.emit(self.own, kind, CauseKind::Claimed, nobody, 0);
            return self.part(0);
        }
        if self.join.name_state.reported != Some(own.version.incarnation) {
            self.join.name_state.reported = Some(own.version.incarnation);
            let kind = EventKind::NameClaimed;
            self.emit(self.own, kind, CauseKind::Claimed, nobody, 0);
        }
    }

    /// How long the local member has held its name.
    pub(super) fn name_age_us(&self) -> u64 {
        self.now.since(self.named_since())
    }

    /// When the local member took its name; a worker inherits it from its predecessor.
    pub(super) fn named_since(&self) -> Instant {
        self.join.name_state.since.unwrap_or(self.now)
    }

    /// Whether a record of the local id has an address other than the local one.
    pub(super) fn is_elsewhere(&self, fact: &NodeFact<'_>) -> bool {
        let own = self.table.get(self.own);
        own.is_some_and(|own| own.address() != fact.address)
    }
}
