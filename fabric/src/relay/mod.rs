//! Relay: a letter to somebody whose street is closed goes by a neighbour who has a door to both.
//!
//! Where two members share no net that works, a third that shares one with each side carries messages
//! between them, in an [`Envelope`]: who it is from, by whom, to whom. The carrier reads the envelope and
//! never the letter, which the members authenticate from end to end. What keeps that harmless:
//!
//! - **no loops**: an envelope is carried once, and the carrier sends it straight to whom it is for;
//! - **no amplifier**: at most one copy goes out for one that comes in, and none without its envelope's
//!   length having come in;
//! - **no open door**: only from members that are known to members that are known, and only what proves
//!   the job's key, outside and inside;
//! - **no repetition**: carrier and receiver take each envelope of a sender's life once ([`Came`]);
//! - **no flood**: each sender has an [`Allowance`], and all together have one;
//! - whatever is dropped is counted, with the reason.
//!
//! Relaying adds copies and takes none away: whoever does not hear a peer goes on to send to it directly,
//! so that it is direct again as soon as it can be, and what comes twice is the host's to recognise, as
//! with any copy. An envelope says whether its sender hears the other side directly (*unheard*): who is
//! not heard sends through others too, for a while, though it hears the other side well.

mod allowance;
mod came;
mod envelope;
mod way;

pub(crate) use allowance::Allowance;
pub(crate) use came::Came;
pub use envelope::ENVELOPE_BYTES;
pub(crate) use envelope::{Envelope, Place, Verdict, is_envelope, is_proven, judge, mark_carried};
pub(crate) use way::{Carried, Need, PeerRelay, Way};

/// Who was heard through others, or asks for that, is sent to through others for so long.
pub(crate) const ASKED_US: u64 = 1_000_000;

/// Whoever was heard through a member is reached through it, it is thought, for so long.
pub(crate) const PROVED_US: u64 = 1_000_000;

/// Members that are held ready for one peer, at most.
pub(crate) const WAYS_MAX: usize = 4;

/// How often it is looked who they are.
pub(crate) const SEEK_US: u64 = 50_000;

/// A life of a peer of which no envelope came for so long may be followed by an earlier one.
pub(crate) const LIFE_OVER_US: u64 = 10_000_000;

/// Pairs of members whose traffic through us is counted each by itself, at most.
pub(crate) const PAIRS_MAX: usize = 4096;

/// Bulk frames that wait for a busy lane here, at most, and for how long.
pub(crate) const LATE_MAX: usize = 64;
pub(crate) const LATE_US: u64 = 100_000;

/// After so many pieces of news in so long a time without a word back, a peer is not heard.
pub(crate) const UNANSWERED_MAX: u32 = 4;
pub(crate) const UNANSWERED_US: u64 = 100_000;

/// And that is held against it for so long after the last piece.
pub(crate) const UNANSWERED_FOR_US: u64 = 1_000_000;

/// Messages and bytes, without envelopes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// How many messages; of bulk messages, their frames.
    pub messages: u64,
    /// How many bytes.
    pub bytes: u64,
}

impl Tally {
    pub(crate) fn count(&mut self, bytes: usize) {
        self.messages += 1;
        self.bytes += bytes as u64;
    }

    pub(crate) fn add(&mut self, other: Tally) {
        self.messages += other.messages;
        self.bytes += other.bytes;
    }
}
