//! What is to be said, not yet said: intents of a few words, bounded.
//!
//! An intent names whom and what kind; the frame is written from the table at the moment it goes,
//! so that nothing stale is ever sent. Beats and regular news are not here: a flag and a list on
//! the link are enough for them; nor are whole views (`views`), which are long and can wait.

use std::collections::{BTreeMap, VecDeque};

use crate::frame::{FrameName, Receiver};
use crate::identity::{MemberId, Version};
use crate::link::Subject;
use crate::overlay::interface::{Route, Target};

/// Most intents waiting.
pub(super) const OUTBOX_MAX: usize = 8192;
/// Addresses kept of senders that cannot be reached under their id.
const ADDRESS_SLOTS: usize = 8;
/// Most senders of first requests that wait for an answer. In a boot of thousands many come at the same time; a sender
/// that gets no answer repeats its request.
const VERIFIES_MAX: usize = 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Intent {
    Link {
        to: MemberId,
        /// A reply to a request for these roles, else a request.
        asked: Option<u8>,
        route: Route,
    },
    Probe {
        to: MemberId,
    },
    ProbeReply {
        to: MemberId,
        route: Route,
    },
    IndirectProbe {
        to: MemberId,
        suspect: MemberId,
        version: Version,
    },
    IndirectProbeReply {
        to: MemberId,
        suspect: MemberId,
        version: Version,
        alive: bool,
    },
    Ack {
        to: MemberId,
    },
    /// One fact, not acknowledged: the links carry it too.
    Direct {
        to: MemberId,
        subject: Subject,
        route: Route,
    },
    Join {
        target: Target,
        boot: bool,
    },
    /// "You are held failed."
    FailureClaim {
        to: MemberId,
        /// The frame of theirs that made us say so.
        answers: FrameName,
    },
    /// "Your parameters differ from ours."
    Refuse {
        slot: usize,
    },
    /// "We have one name": to that life of somebody.
    NameConflict {
        slot: usize,
        receiver_incarnation: u64,
    },
    /// The record held under the id of a sender that has another address or an earlier incarnation.
    Correct {
        slot: usize,
        about: MemberId,
    },
}

#[derive(Clone, Debug, Default)]
pub(super) struct Outbox {
    intents: VecDeque<Intent>,
    /// Addresses of senders that cannot be reached under their id (another member holds the name).
    address_slots: [AddressSlot; ADDRESS_SLOTS],
    verifies: BTreeMap<MemberId, Verify>,
    /// The receiver of the last `Verify`.
    verified: AddressSlot,
}

/// The answer to a request that was for anyone.
#[derive(Clone, Debug)]
pub(super) struct Verify {
    pub(super) address: Vec<u8>,
    pub(super) boot: bool,
    /// The request, and with it the life of its sender.
    pub(super) request: FrameName,
}

/// An address that belongs to no member we know, for one frame.
#[derive(Clone, Debug, Default)]
struct AddressSlot {
    address: Vec<u8>,
    to: Option<Receiver>,
    /// The frame is still to be written.
    waits: bool,
}

impl Outbox {
    /// Adds one at the end; false if it is full. One that is waiting already is not doubled
    /// when it is the last.
    pub(super) fn push(&mut self, intent: Intent) -> bool {
        if self.intents.back() == Some(&intent) {
            return true;
        }
        if self.intents.len() >= OUTBOX_MAX {
            return false;
        }
        self.intents.push_back(intent);
        true
    }

    /// Adds one that goes to an address that belongs to no member; false if too many of those wait.
    pub(super) fn push_to_address(
        &mut self,
        to: Receiver,
        address: &[u8],
        intent: impl Fn(usize) -> Intent,
    ) -> bool {
        let Some(slot) = self.address_slots.iter().position(|slot| !slot.waits) else {
            return false;
        };
        self.address_slots[slot].address = address.to_vec();
        self.address_slots[slot].to = Some(to);
        self.address_slots[slot].waits = self.push(intent(slot));
        self.address_slots[slot].waits
    }

    /// The address kept in this slot.
    pub(super) fn slot_address(&self, slot: usize) -> Option<&[u8]> {
        Some(&*self.slot(slot)?.address)
    }

    /// Whom a frame to the address in this slot is for.
    pub(super) fn slot_receiver(&self, slot: usize) -> Option<Receiver> {
        self.slot(slot)?.to
    }

    /// The slot behind all address_slots is that of `Verify`.
    fn slot(&self, slot: usize) -> Option<&AddressSlot> {
        match slot {
            ADDRESS_SLOTS => Some(&self.verified),
            _ => self.address_slots.get(slot),
        }
    }

    /// Adds an answer to a request that was for anyone, one for each sender; false if too many wait.
    pub(super) fn verify(&mut self, to: MemberId, verify: Verify) -> bool {
        if self.verifies.len() >= VERIFIES_MAX && !self.verifies.contains_key(&to) {
            return false;
        }
        self.verifies.insert(to, verify);
        true
    }

    /// The next of these answers, and the slot with its address.
    pub(super) fn pop_verify(&mut self) -> Option<(Verify, usize)> {
        let (to, mut verify) = self.verifies.pop_first()?;
        self.verified.address = core::mem::take(&mut verify.address);
        self.verified.to = Some(Receiver::Member(to, verify.request.incarnation));
        Some((verify, ADDRESS_SLOTS))
    }

    pub(super) fn pop(&mut self) -> Option<Intent> {
        let intent = self.intents.pop_front()?;
        if let Intent::Refuse { slot }
        | Intent::NameConflict { slot, .. }
        | Intent::Correct { slot, .. }
        | Intent::Join {
            target: Target::Address(slot),
            ..
        } = intent
        {
            self.address_slots[slot].waits = false;
        }
        Some(intent)
    }

    pub(super) fn len(&self) -> usize {
        self.intents.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.intents.is_empty() && self.verifies.is_empty()
    }
}
