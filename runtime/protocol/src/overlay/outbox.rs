//! The outbox: a bounded queue of intents, each of which becomes a frame.
//!
//! An intent names a receiver and a kind. The frame is written from the table when it is sent, so its
//! content is never out of date. Not in the outbox: beats and regular news (a flag and a list on each
//! link), and whole views (`views`).

use std::collections::VecDeque;

use crate::frame::{FrameName, Receiver};
use crate::identity::{MemberId, Version};
use crate::interface::{Route, Target};
use crate::sorted::SortedMap;
use crate::subjects::Subject;

/// Most intents in the queue.
pub(super) const OUTBOX_MAX: usize = 8192;
/// Slots for addresses of senders that cannot be reached under their id.
const ADDRESS_SLOTS: usize = 8;
/// Most waiting `Verify` answers. Thousands may be due when a zone boots; a sender without an answer
/// repeats its request.
const VERIFIES_MAX: usize = 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Intent {
    Link {
        to: MemberId,
        /// In a reply: the roles that were requested.
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
    /// The receiver is held failed.
    FailureClaim {
        to: MemberId,
        /// The frame of the receiver that this answers.
        answers: FrameName,
    },
    /// The receiver's parameters differ.
    Refuse {
        slot: usize,
    },
    /// Another member uses the local name: sent to this incarnation of it.
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
    /// For senders that cannot be reached under their id (another member holds the name).
    address_slots: [AddressSlot; ADDRESS_SLOTS],
    verifies: SortedMap<MemberId, Verify>,
    /// The receiver of the last `Verify`.
    verified: AddressSlot,
}

/// The answer to a request for anyone.
#[derive(Clone, Debug)]
pub(super) struct Verify {
    pub(super) address: Vec<u8>,
    pub(super) boot: bool,
    /// The request, and with it the incarnation of its sender.
    pub(super) request: FrameName,
}

/// An address that belongs to no known member, for one frame.
#[derive(Clone, Debug, Default)]
struct AddressSlot {
    address: Vec<u8>,
    to: Option<Receiver>,
    /// The frame is not written yet.
    waits: bool,
}

impl Outbox {
    /// Adds an intent at the end; returns false if the queue is full. An intent equal to the last one is
    /// not added again.
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

    /// Adds an intent for an address that belongs to no member; returns false if no slot is free.
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

    /// The address in a slot.
    pub(super) fn slot_address(&self, slot: usize) -> Option<&[u8]> {
        Some(&*self.slot(slot)?.address)
    }

    /// The receiver of a frame to the address in a slot.
    pub(super) fn slot_receiver(&self, slot: usize) -> Option<Receiver> {
        self.slot(slot)?.to
    }

    /// The slot after all others is that of `Verify`.
    fn slot(&self, slot: usize) -> Option<&AddressSlot> {
        match slot {
            ADDRESS_SLOTS => Some(&self.verified),
            _ => self.address_slots.get(slot),
        }
    }

    /// Adds an answer to a request for anyone, one for each sender; returns false if there are too many.
    pub(super) fn verify(&mut self, to: MemberId, verify: Verify) -> bool {
        if self.verifies.len() >= VERIFIES_MAX && !self.verifies.contains_key(&to) {
            return false;
        }
        self.verifies.insert(to, verify);
        true
    }

    /// The next of these answers, and the slot of its address.
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
