//! What an engine tells its host: changes of the view, each with its cause.
//!
//! For one member and one observer, up and down alternate: `NodeUp`, then `NodeFailed` or
//! `NodeLeft`, then `NodeUp` again. Suspicion and degradation lie between.

use crate::attributes::KeyHandle;
use crate::identity::{MemberId, Version};
use crate::parameters::Parameter;
use crate::state::RankFact;
use crate::table::Reporters;
use crate::time::Instant;

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// The member entered the view.
    NodeUp,
    /// A rail to it is silent, another answers.
    NodeDegraded,
    /// It is whole again, or it refuted the reports against it.
    NodeRecovered,
    /// There are reports against it, not enough yet.
    NodeSuspect,
    /// It left the view: found silent by enough distinct members, or told.
    NodeFailed,
    /// It left the view with a goodbye.
    NodeLeft {
        /// The exit code it gave.
        exit_code: i32,
    },
    /// A rank of that member changed its state.
    RankChanged {
        /// The new state and how it is known.
        fact: RankFact,
    },
    /// A key of that member's attributes was written or deleted. What it is now says
    /// `Overlay::attribute`; a change that was overtaken by a newer one is told once.
    AttributeChanged {
        /// Which key; `Overlay::changed_key` has it.
        key: KeyHandle,
        /// The version of the write; growing for each member and life.
        version: u64,
    },
    /// Members of one group failed within one window. Told once, after the last `NodeFailed` of
    /// those it lists.
    GroupFailed {
        /// `Overlay::group_failure` has the group and the list under this number.
        number: u32,
        /// How many failed.
        failed: u32,
        /// Of how many.
        of: u32,
    },
    /// We are on the smaller side of a split, or more than half have died.
    Minority {
        /// How many are left, ourselves included.
        reached: u32,
        /// Of how many.
        of: u32,
        /// Whether those we do not reach stay suspects, by policy.
        held: bool,
    },
    /// That is over.
    Majority {
        /// How many are here, ourselves included.
        reached: u32,
        /// Of how many.
        of: u32,
    },
    /// This member learnt that it was declared failed.
    Outcast,
    /// A member of this job has other parameters than we have; neither listens to the other.
    Refused {
        /// Which one differs.
        parameter: Parameter,
    },
    /// An earlier member of this job has our name and lives; the engine says goodbye and stops.
    NameTaken,
    /// A later member of this job has our name and lives; it was told to stop, we go on.
    NameClaimed,
}

/// In one word, why.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum CauseKind {
    /// It introduced itself, or others know it.
    Joined = 1,
    /// Not heard for longer than the deadline.
    Silence = 2,
    /// The fabric said that it cannot be reached, and no probe found otherwise.
    Unreachable = 3,
    /// A ring successor that never answered our request.
    Unanswered = 4,
    /// A launcher or an administrator said so.
    Told = 5,
    /// It said so itself.
    Announced = 6,
    /// It raised its version against the reports, or they were too old to count.
    Refuted = 7,
    /// A newer life of the same member is here.
    Superseded = 8,
    /// The fabric's rails changed.
    Rails = 9,
    /// The members of another view hold us failed.
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

/// Why an event happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cause {
    /// The kind of evidence that decided.
    pub kind: CauseKind,
    /// Who reported, at most four.
    pub reporters: Reporters,
    /// How long the member had been silent when that was decided, in microseconds; 0 if it
    /// does not apply.
    pub silent_us: u32,
}

/// One change, as told to the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// When the engine decided it.
    pub at: Instant,
    /// What happened.
    pub kind: EventKind,
    /// To whom.
    pub member: MemberId,
    /// In which version.
    pub version: Version,
    /// Why.
    pub cause: Cause,
}
