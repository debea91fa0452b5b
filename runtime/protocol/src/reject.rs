//! Why an input was not taken, one word for each reason.
//!
//! A refused input changed nothing but a counter; the one exception is named. None of them is
//! an error of the program: they are what an open network does.

use thiserror::Error;

/// Why `handle` did not take an input. Counted by reason in `Counters`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Error)]
#[repr(u8)]
pub enum Reject {
    /// No key yet: nothing is believed and nothing is sent.
    #[error("the job key has not arrived yet")]
    NoKey,
    /// Shorter than the smallest frame.
    #[error("shorter than a frame")]
    Truncated,
    /// Longer than the longest frame.
    #[error("longer than a frame")]
    Oversized,
    /// Does not start as our frames do.
    #[error("not a frame of this protocol")]
    Foreign,
    /// A frame of another wire version.
    #[error("another wire version")]
    WireVersion,
    /// The proof is wrong: damaged on the way, or not from this job.
    #[error("the tag does not match")]
    Forged,
    /// The proof is right and the content is not: a bug, here or there.
    #[error("authentic but malformed")]
    Malformed,
    /// An authentic copy of a frame that came before: over another rail, or duplicated.
    #[error("seen before")]
    Duplicate,
    /// Older than the replay window reaches.
    #[error("older than the replay window")]
    Stale,
    /// From an earlier life of its sender.
    #[error("from an earlier incarnation")]
    OldIncarnation,
    /// From somebody who has not introduced himself, and the kind of frame that does not do it.
    #[error("sender not known yet")]
    UnknownSender,
    /// From a member that is held failed. It was told so (a bounded number of times a second).
    #[error("sender is held failed")]
    Outcast,
    /// From a member that has left.
    #[error("sender has left")]
    Departed,
    /// Our own frame came back.
    #[error("own frame")]
    Own,
    /// A table with a bound is full.
    #[error("no room")]
    Full,
    /// The engine has stopped (left, outcast with policy stop, or its name is taken).
    #[error("the engine has stopped")]
    Stopped,
    /// From a member whose parameters differ from ours. Named in an event, once for each life.
    #[error("other parameters than ours")]
    Parameters,
    /// Its name is that of a member in the view at another address: it is to settle that first.
    #[error("its name is in use at another address")]
    NameHeld,
    /// The input names a member or a value that does not exist.
    #[error("no such member or value")]
    Unknown,
    /// A key that is empty or too long; nothing was written.
    #[error("a key has 1 to 255 bytes; shorten it")]
    KeyLength,
    /// A value that is too long; nothing was written.
    #[error("a value has at most 65536 bytes; publish less, or where it is to be found")]
    ValueLength,
    /// The own map would be too large; nothing was written.
    #[error("the attributes of a node have at most 1 MiB, 64 bytes a key included; withdraw some")]
    MapFull,
    /// The age engine carries no attributes; nothing was written.
    #[error("age gossip carries no attributes; use the overlay for them")]
    NoAttributes,
    /// A request for anyone at this address, which may be a recording. It was answered, and is believed when it comes
    /// again in a frame for our present life.
    #[error("for anyone at this address, so no proof of life; it was answered")]
    Unproven,
    /// Written for another member, or for an earlier life of ours; not proven. Either a recording, or from a member
    /// that does not know yet of our restart.
    #[error("written for another member or another life")]
    Misdirected,
    /// An authentic copy of a frame that came long before: not the copy of another rail, but a repetition.
    #[error("seen long before")]
    Repeated,
}

impl Reject {
    /// Number of reasons.
    pub const COUNT: usize = Self::Repeated as usize + 1;
    /// All reasons, in the order of their numbers.
    pub const ALL: [Self; Self::COUNT] = [
        Self::NoKey,
        Self::Truncated,
        Self::Oversized,
        Self::Foreign,
        Self::WireVersion,
        Self::Forged,
        Self::Malformed,
        Self::Duplicate,
        Self::Stale,
        Self::OldIncarnation,
        Self::UnknownSender,
        Self::Outcast,
        Self::Departed,
        Self::Own,
        Self::Full,
        Self::Stopped,
        Self::Parameters,
        Self::NameHeld,
        Self::Unknown,
        Self::KeyLength,
        Self::ValueLength,
        Self::MapFull,
        Self::NoAttributes,
        Self::Unproven,
        Self::Misdirected,
        Self::Repeated,
    ];

    /// A short name for metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::NoKey => "no_key",
            Self::Truncated => "truncated",
            Self::Oversized => "oversized",
            Self::Foreign => "foreign",
            Self::WireVersion => "wire_version",
            Self::Forged => "forged",
            Self::Malformed => "malformed",
            Self::Duplicate => "duplicate",
            Self::Stale => "stale",
            Self::OldIncarnation => "old_incarnation",
            Self::UnknownSender => "unknown_sender",
            Self::Outcast => "outcast",
            Self::Departed => "departed",
            Self::Own => "own",
            Self::Full => "full",
            Self::Stopped => "stopped",
            Self::Parameters => "parameters",
            Self::NameHeld => "name_held",
            Self::Unknown => "unknown",
            Self::KeyLength => "key_length",
            Self::ValueLength => "value_length",
            Self::MapFull => "map_full",
            Self::NoAttributes => "no_attributes",
            Self::Unproven => "unproven",
            Self::Misdirected => "misdirected",
            Self::Repeated => "repeated",
        }
    }
}
