//! What is to be said, not yet said: intents of a few words, bounded.
//!
//! An intent names whom and what kind; the frame is written from the table at the moment it goes,
//! so that nothing stale is ever sent. Beats and regular news are not here: a flag and a list on
//! the link are enough for them; nor are whole views (`views`), which are long and can wait.

use std::collections::VecDeque;

use crate::frame::FrameName;
use crate::identity::{MemberId, Version};
use crate::link::Subject;
use crate::overlay::interface::{Route, Target};

/// Most intents waiting.
pub(super) const OUTBOX_MAX: usize = 8192;
/// Addresses kept of senders that cannot be reached under their id.
pub(super) const STRAYS_MAX: usize = 8;

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
    Ask {
        to: MemberId,
        suspect: MemberId,
        version: Version,
    },
    Answer {
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
    Discover {
        target: Target,
        boot: bool,
    },
    /// "You are held failed."
    Claim {
        to: MemberId,
        /// The frame of theirs that made us say so.
        answers: FrameName,
    },
    /// "Your parameters differ from ours."
    Refuse {
        slot: usize,
    },
    /// "We have one name": to that life of somebody.
    Twin {
        slot: usize,
        yours: u64,
    },
    /// The record of our own id's twin, or of an earlier life's successor.
    Correct {
        slot: usize,
        about: MemberId,
    },
}

#[derive(Clone, Debug, Default)]
pub(super) struct Outbox {
    intents: VecDeque<Intent>,
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

    pub(super) fn pop(&mut self) -> Option<Intent> {
        self.intents.pop_front()
    }

    pub(super) fn len(&self) -> usize {
        self.intents.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.intents.is_empty()
    }
}
