//! Reasons to reject an input.
//!
//! A rejected input changes nothing but a counter; the exceptions are named. None of them is an error of
//! the program: they occur on any open network.

use thiserror::Error;

/// Why `handle` rejected an input. Counted by reason in `Counters`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Error)]
#[repr(u8)]
pub enum Reject {
    /// The key is not known yet: frames are neither taken nor sent.
    #[error("the job key has not arrived yet")]
    NoKey,
    /// Shorter than a frame.
    #[error("shorter than a frame")]
    Truncated,
    /// Longer than a frame.
    #[error("longer than a frame")]
    Oversized,
    /// Does not begin like a frame.
    #[error("not a frame of this protocol")]
    Foreign,
    /// A frame of another wire version.
    #[error("another wire version")]
    WireVersion,
    /// The tag is wrong: the frame is damaged, or not from this job.
    #[error("the tag does not match")]
    Forged,
    /// The tag is right and the content is not: a bug on either side.
    #[error("authentic but malformed")]
    Malformed,
    /// An authentic copy of an earlier frame: of another rail, or a duplicate.
    #[error("seen before")]
    Duplicate,
    /// Older than the replay window.
    #[error("older than the replay window")]
    Stale,
    /// From an earlier incarnation of its sender.
    #[error("from an earlier incarnation")]
    OldIncarnation,
    /// The sender is not known, and the message does not introduce it.
    #[error("sender not known yet")]
    UnknownSender,
    /// From a member that is held failed. It gets a failure claim, at most twice a heartbeat.
    #[error("sender is held failed")]
    Outcast,
    /// From a member that has left.
    #[error("sender has left")]
    Departed,
    /// A frame of the local member came back.
    #[error("own frame")]
    Own,
    /// A table with a bound is full.
    #[error("no room")]
    Full,
    /// The engine has stopped (left, outcast with policy `Stop`, or its name is taken).
    #[error("the engine has stopped")]
    Stopped,
    /// From a member whose parameters differ. Reported in an event, once for each of its incarnations.
    #[error("parameters differ")]
    Parameters,
    /// Another member in the view, at another address, holds the sender's name.
    #[error("its name is in use at another address")]
    NameHeld,
    /// The input names a member or a value that does not exist.
    #[error("no such member or value")]
    Unknown,
    /// The key is empty or too long; nothing was written.
    #[error("a key has 1 to 255 bytes; shorten it")]
    KeyLength,
    /// The value is too long; nothing was written.
    #[error("a value has at most 65536 bytes; publish less, or its location")]
    ValueLength,
    /// The local attributes would be too large; nothing was written.
    #[error("the attributes of a node have at most 1 MiB, 64 bytes a key included; withdraw some")]
    MapFull,
    /// Age gossip has no attributes; nothing was written.
    #[error("age gossip carries no attributes; use the overlay for them")]
    NoAttributes,
    /// A request for anyone, which may be a recording. It was answered, and is taken when it is repeated
    /// for the present incarnation.
    #[error("for anyone at this address, so not authenticated; it was answered")]
    Unproven,
    /// For another member or an earlier incarnation; not authenticated. Either a recording, or from a
    /// member that does not know of the restart yet.
    #[error("for another member or another incarnation")]
    Misdirected,
    /// An authentic copy of a frame that came long before: a repetition, not the copy of another rail.
    #[error("seen long before")]
    Repeated,
    /// A frame of another zone.
    #[error("a frame of another zone")]
    OtherZone,
}

impl Reject {
    /// Number of reasons.
    pub const COUNT: usize = Self::OtherZone as usize + 1;
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
        Self::OtherZone,
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
            Self::OtherZone => "other_zone",
        }
    }
}
