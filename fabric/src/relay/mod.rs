//! Relay: a third member carries messages between two members that share no working net.
//!
//! The carrier shares a working net with each of them. A relayed message is in an [`Envelope`] with the NIDs of
//! its sender, carrier and receiver. The carrier reads the envelope and never the message, which the members
//! authenticate end to end. Relaying is safe because of these rules:
//!
//! - **no loops**: an envelope is carried once, and the carrier sends it directly to its receiver;
//! - **no amplification**: a carrier sends at most one copy of an envelope that it has received, of the same
//!   length;
//! - **no open relay**: only between known members, and only envelopes with a valid tag under the job's key;
//!   the message inside is authenticated separately;
//! - **no replay**: carrier and receiver take each envelope of a sender's incarnation once ([`ReplayFilter`]);
//! - **no flood**: each sender has an [`Allowance`], and there is one for all senders together;
//! - dropped envelopes are counted, with the reason.
//!
//! Relaying adds copies and removes none: a member that does not hear a peer continues to send to it directly,
//! so that direct messages resume as soon as possible. The host must recognise duplicates, as with any copy. An
//! envelope states whether its sender has lost direct contact with the receiver. The receiver then also sends
//! through carriers for a while, even if it hears the sender directly.

mod allowance;
mod envelope;
mod late;
mod replay_filter;
mod way;

pub(crate) use allowance::Allowance;
pub use envelope::ENVELOPE_BYTES;
pub(crate) use envelope::{
    Envelope, NID_BYTES, Owner, Verdict, is_envelope, is_proven, judge, mark_carried, read_nid,
    write_nid,
};
pub(crate) use late::Late;
pub(crate) use replay_filter::ReplayFilter;
pub(crate) use way::{Carried, Need, PeerRelay, Way};

/// Time for which a peer is sent to through carriers after it has stated that it has lost direct contact.
pub(crate) const NO_CONTACT_US: u64 = 1_000_000;

/// Time for which a carrier counts as reaching a peer after the peer was heard through it.
pub(crate) const PROVED_US: u64 = 1_000_000;

/// Carriers that are kept for one peer, at most.
pub(crate) const WAYS_MAX: usize = 4;

/// Interval at which these carriers are selected again.
pub(crate) const SEEK_US: u64 = 50_000;

/// Time without an envelope after which a peer's incarnation counts as ended, so that a lower one may follow.
pub(crate) const INCARNATION_OVER_US: u64 = 10_000_000;

/// Pairs of members whose relayed traffic is counted separately, at most.
pub(crate) const PAIRS_MAX: usize = 4096;

/// Relayed bulk frames that wait for a busy lane, at most, and how long they wait.
pub(crate) const LATE_MAX: usize = 64;
pub(crate) const LATE_US: u64 = 100_000;

/// A peer counts as unreachable directly after this many news messages over this time without an answer.
pub(crate) const UNANSWERED_MAX: u32 = 4;
pub(crate) const UNANSWERED_US: u64 = 100_000;

/// Time for which it counts so after the last of these messages.
pub(crate) const UNANSWERED_FOR_US: u64 = 1_000_000;

/// A count of messages and their bytes, without envelopes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// The number of messages; of bulk messages, the number of frames.
    pub messages: u64,
    /// The number of bytes.
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
