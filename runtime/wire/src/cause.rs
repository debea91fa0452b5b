//! Causes: the evidence that decided a state or an event.

use crate::reporters::Reporters;

/// The kind of a cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum CauseKind {
    /// It introduced itself, or other members know it.
    Joined = 1,
    /// It was silent for longer than the deadline.
    Silence = 2,
    /// The fabric cannot reach it, and no probe did.
    Unreachable = 3,
    /// It is a ring successor that never answered a request.
    Unanswered = 4,
    /// A launcher or an administrator said so.
    Told = 5,
    /// It said so itself.
    Announced = 6,
    /// It raised its version against the reports, or they were too old to count.
    Refuted = 7,
    /// A later incarnation of the member has joined.
    Superseded = 8,
    /// The fabric's rails changed.
    Rails = 9,
    /// Another member says so: that the local member is held failed, or that its name is in use.
    Claimed = 10,
}

impl CauseKind {
    /// The cause with this number, if there is one.
    #[must_use]
    pub const fn from_number(number: u8) -> Option<Self> {
        Some(match number {
            1 => Self::Joined,
            2 => Self::Silence,
            3 => Self::Unreachable,
            4 => Self::Unanswered,
            5 => Self::Told,
            6 => Self::Announced,
            7 => Self::Refuted,
            8 => Self::Superseded,
            9 => Self::Rails,
            10 => Self::Claimed,
            _ => return None,
        })
    }
}

/// The cause of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cause {
    /// The kind of evidence.
    pub kind: CauseKind,
    /// The reporters, at most four.
    pub reporters: Reporters,
    /// How long the member had been silent, in microseconds; 0 if it does not apply.
    pub silent_us: u32,
}
