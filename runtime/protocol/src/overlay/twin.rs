//! Two living members of one name: who had it first keeps it, and both are told.
//!
//! Intuition: somebody at the door gives the name of a guest who is in the house. The doorkeeper
//! lets nobody in by that name, but says which room the guest has: settle it with him. If the guest
//! answers, whoever has been called so for longer stays, and the other goes. If nobody answers in
//! that room, the guest is soon missed by his neighbours, and then the name is free.
//!
//! So a node that comes back at the address it had is another life of it at once; at another
//! address it waits until its former life has been missed, a deadline at most. What is absent:
//! clocks. Incarnations are launch times, and the clock of the one whose configuration is wrong may
//! be wrong too, so durations are compared, not dates. Two who started within a deadline of each
//! other both go: neither is the one that was there. Two of one name and one incarnation cannot be
//! told apart.

use crate::event::{CauseKind, EventKind};
use crate::frame::{Header, Receiver};
use crate::overlay::Overlay;
use crate::overlay::interface::Phase;
use crate::overlay::outbox::Intent;
use crate::reject::Reject;
use crate::table::Reporters;
use crate::time::Instant;
use crate::wire::{Message, NodeFact};

/// What we know of our own name.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Naming {
    /// Since when we have it.
    pub(super) since: Option<Instant>,
    /// When we last said so to another.
    said_at: Option<Instant>,
    /// The life of another that our application was told of.
    told: Option<u64>,
}

impl Overlay {
    /// Keeps out who uses the name of a member in the view, at another address, in a later life.
    pub(super) fn keep_door(
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
            return Err(Reject::Stranger);
        };
        if held.address() == own.address {
            return Ok(());
        }
        self.correct(own);
        Err(Reject::NameHeld)
    }

    /// A frame with our own id: an echo, or somebody else of our name.
    pub(super) fn receive_own(&mut self, header: Header, message: &Message<'_>) -> Reject {
        match message {
            Message::Twin { own, age_us, yours } => {
                self.met_twin(own, *age_us, *yours);
            }
            Message::Discover { own, .. } | Message::Link { own, .. }
                if own.version.incarnation == header.incarnation =>
            {
                self.address_twin(own);
            }
            _ => {}
        }
        Reject::Own
    }

    /// Somebody uses our name elsewhere, or did: it is told that we live; at most once a heartbeat.
    pub(super) fn address_twin(&mut self, fact: &NodeFact<'_>) {
        let said_at = self.naming.said_at;
        let due = said_at.is_none_or(|at| self.now.since(at) >= self.config.heartbeat_us);
        if !self.is_elsewhere(fact) || !due || self.phase != Phase::Running {
            return;
        }
        self.naming.said_at = Some(self.now);
        let yours = fact.version.incarnation;
        let to = Receiver::Life(fact.id, yours);
        self.say_to_stray(to, fact.address, |slot| Intent::Twin { slot, yours });
    }

    /// It lives, and says how long it has had the name.
    fn met_twin(&mut self, own: &NodeFact<'_>, age_us: u64, yours: u64) {
        self.address_twin(own);
        let to_us = yours == self.own_version().incarnation;
        if !to_us || !self.is_elsewhere(own) || self.phase != Phase::Running {
            // To a former life of ours: its next word will be to this one.
            return;
        }
        let nobody = Reporters::default();
        if self.name_age_us() < age_us.saturating_add(self.config.deadline_us) {
            let kind = EventKind::NameTaken;
            self.tell(self.own, kind, CauseKind::Claimed, nobody, 0);
            return self.part(0);
        }
        if self.naming.told != Some(own.version.incarnation) {
            self.naming.told = Some(own.version.incarnation);
            let kind = EventKind::NameClaimed;
            self.tell(self.own, kind, CauseKind::Claimed, nobody, 0);
        }
    }

    /// How long we have had our name.
    pub(super) fn name_age_us(&self) -> u64 {
        self.now.since(self.named_since())
    }

    /// Since when we have our name; a worker has it from its predecessor.
    pub(super) fn named_since(&self) -> Instant {
        self.naming.since.unwrap_or(self.now)
    }

    /// Whether a record of our id has another address than we have.
    pub(super) fn is_elsewhere(&self, fact: &NodeFact<'_>) -> bool {
        let own = self.table.get(self.own);
        own.is_some_and(|own| own.address() != fact.address)
    }
}
