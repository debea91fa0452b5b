//! Events: changes that an engine reports to its host, each with its cause.
//!
//! For one member and one observer, up and down alternate: `NodeUp`, then `NodeFailed` or `NodeLeft`, then
//! `NodeUp` again. Suspicion and degradation are in between.

use crate::cause::Cause;
use crate::identity::{MemberId, Version};
use crate::parameter::Difference;
use crate::state::RankFact;
use crate::time::Instant;

/// The key of an `AttributeChanged` event, as long as the engine keeps it (`Overlay::changed_key`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyHandle(pub u64);

/// The kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// The member entered the view.
    NodeUp,
    /// A rail to it is silent while another works.
    NodeDegraded,
    /// All its rails work again, or it refuted the reports against it.
    NodeRecovered,
    /// There are reports against it, too few for a verdict.
    NodeSuspect,
    /// It was removed: reported by enough distinct members, or told by a launcher or an administrator.
    NodeFailed,
    /// It left.
    NodeLeft {
        /// Its exit code.
        exit_code: i32,
    },
    /// A rank of that member changed its state.
    RankChanged {
        /// The new state and the evidence for it.
        fact: RankFact,
    },
    /// An attribute of that member was written or deleted. `Overlay::attribute` has its present value; a
    /// change that was overtaken by a newer one is not reported.
    AttributeChanged {
        /// The key, by `Overlay::changed_key`.
        key: KeyHandle,
        /// Version of the write; increases within an incarnation of the member.
        version: u64,
    },
    /// Members of one group failed within one window. Reported once, after the `NodeFailed` events of the
    /// members in its list.
    GroupFailed {
        /// Number for `Overlay::group_failure`, which has the group and the list.
        number: u32,
        /// How many members of the group failed.
        failed: u32,
        /// Size of the group.
        of: u32,
    },
    /// The local member is on the smaller side of a split, or more than half of all members have failed.
    Minority {
        /// Members left, the local member included.
        reached: u32,
        /// Size of the whole.
        of: u32,
        /// Whether unreachable members stay suspects, by policy.
        held: bool,
    },
    /// The minority is over.
    Majority {
        /// Members reached, the local member included.
        reached: u32,
        /// Size of the whole.
        of: u32,
    },
    /// The local member learned that it was declared failed.
    Outcast,
    /// A member of this job has another value of a parameter; both refuse each other.
    Refused(Difference),
    /// An earlier member of this job holds the local name; the engine leaves and stops.
    NameTaken,
    /// A later member of this job uses the local name; it was told to stop.
    NameClaimed,
}

/// An event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Time of the decision.
    pub at: Instant,
    /// The kind.
    pub kind: EventKind,
    /// The member.
    pub member: MemberId,
    /// Its version.
    pub version: Version,
    /// The cause.
    pub cause: Cause,
}
