//! The interface between an engine and its host: inputs, frames to send, and views of members.

use crate::cause::CauseKind;
use crate::identity::{MemberId, Version};
use crate::ledger::LedgerEntry;
use crate::reporters::Reporters;
use crate::settings::Policy;
use crate::state::{NodeState, RankDetail, RankFact, RankState};
use crate::table::Member;
use crate::time::Instant;

/// An input of an engine.
#[derive(Clone, Copy, Debug)]
pub enum Input<'a> {
    /// The time of `poll_timeout` has come.
    Wake,
    /// A datagram arrived.
    Datagram {
        /// The whole datagram.
        bytes: &'a [u8],
    },
    /// The fabric cannot reach this member: a reason to probe it, not a verdict.
    Unreachable(MemberId),
    /// The kernel of this member's node says that its process has ended.
    Ended(MemberId),
    /// The fabric misses this member on one of its rails: probe it over all of them.
    Ask(MemberId),
    /// A rail of this member became silent while another works, or that has ended. Local knowledge.
    Degraded {
        /// The member.
        member: MemberId,
        /// Whether it is degraded now.
        degraded: bool,
    },
    /// A local rank has received a message from a rank of this member.
    TrafficFrom {
        /// The member of the sender.
        member: MemberId,
        /// How long ago it was received, in microseconds.
        age_us: u64,
    },
    /// A local rank has sent a message to a rank of this member.
    TrafficTo {
        /// The member of the receiver.
        member: MemberId,
        /// How long ago, in microseconds.
        age_us: u64,
    },
    /// A message of the application to a local rank carried bytes that `write_ahead` wrote on the sender's
    /// node.
    Carried {
        /// All of these bytes.
        bytes: &'a [u8],
        /// How long ago the message was received, in microseconds.
        age_us: u64,
    },
    /// A fact from outside the protocol.
    Told(Told<'a>),
    /// Adds an address to send join requests to.
    Seed {
        /// Opaque, 1 to 255 bytes.
        address: &'a [u8],
    },
    /// Removes such an address; no effect if it is not there.
    Unseed {
        /// As it was given.
        address: &'a [u8],
    },
    /// A member of this zone that is not in the view is known to run at this address: sends it one join request now.
    Contact {
        /// Opaque, 1 to 255 bytes.
        address: &'a [u8],
    },
    /// The rails of this node have changed, and with them its address.
    Address(&'a [u8]),
    /// The job's key.
    Key([u8; 32]),
    /// The policy when declared failed, from now on.
    Policy(Policy),
    /// Writes an attribute of this node.
    Publish {
        /// 1 to 255 bytes.
        key: &'a [u8],
        /// At most 65536 bytes.
        value: &'a [u8],
    },
    /// Deletes an attribute of this node.
    Withdraw {
        /// 1 to 255 bytes; `Reject::Unknown` if there is none.
        key: &'a [u8],
    },
    /// Writes an entry of the ledger; no effect if it is not newer than the one held.
    Record(LedgerEntry),
    /// The rest of the job holds the local member failed in this version, and no member of its zone remembers why. No
    /// effect if the member has a later version.
    Outcast(Version),
    /// Leaves the job.
    Leave {
        /// Sent to all members.
        exit_code: i32,
    },
}

/// A fact from outside the protocol.
#[derive(Clone, Copy, Debug)]
pub enum Told<'a> {
    /// The state of a local rank, from the kernel.
    Rank {
        /// The rank's number in the job.
        rank: u32,
        /// The rank's state now.
        state: RankState,
        /// The evidence for it.
        detail: RankDetail,
    },
    /// A launcher or an administrator says that a node has failed. Accepted at once by all members.
    NodeFailed {
        /// The node's name.
        name: &'a str,
    },
}

/// The phase of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// A member, or on the way to be one.
    Running,
    /// Leaving; ends when all links have acknowledged it, or after two deadlines.
    Leaving,
    /// Stopped for good: left, outcast with policy `Stop`, or its name is held by another member.
    Stopped,
}

/// A frame in the caller's buffer that is to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Transmit {
    /// The receiver; `Overlay::address_of` has its address.
    pub target: Target,
    /// Size of the frame in the buffer, in bytes.
    pub size: usize,
    /// The lane.
    pub class: Class,
    /// The rails.
    pub route: Route,
}

/// The receiver of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Target {
    /// A known member.
    Member(MemberId),
    /// The seed with this index, in the order of the configuration and `Input::Seed`.
    Seed(usize),
    /// A slot with the address of a sender that cannot be reached under its id (another member holds its
    /// name). Get the address at once: the slot is reused.
    Address(usize),
}

/// The lane of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// The receiver may drain it at its own next tick.
    Beat,
    /// Wakes the receiver; never waits behind beats.
    News,
}

/// The rails of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Route {
    /// The next healthy rail in turn.
    Next,
    /// A copy on every rail of the peer.
    All,
}

/// A member as this engine holds it now.
#[derive(Clone, Copy, Debug)]
pub struct MemberView<'a> {
    member: &'a Member,
}

impl<'a> MemberView<'a> {
    /// The view of a member's record.
    pub fn new(member: &'a Member) -> Self {
        Self { member }
    }

    /// Its place on the ring.
    #[must_use]
    pub fn id(&self) -> MemberId {
        self.member.id
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &'a str {
        self.member.name()
    }

    /// The name of its group, whose members may fail together; empty if it has none.
    #[must_use]
    pub fn group(&self) -> &'a str {
        self.member.group()
    }

    /// Its address; opaque.
    #[must_use]
    pub fn address(&self) -> &'a [u8] {
        self.member.address()
    }

    /// Its version.
    #[must_use]
    pub fn version(&self) -> Version {
        self.member.version
    }

    /// Its state; `Degraded` by what the fabric said of its rails.
    #[must_use]
    pub fn state(&self) -> NodeState {
        match self.member.state {
            NodeState::Alive if self.member.degraded => NodeState::Degraded,
            state => state,
        }
    }

    /// Its exit code if it left; 0 otherwise.
    #[must_use]
    pub fn exit_code(&self) -> i32 {
        self.member.exit_code
    }

    /// The evidence that decided its state.
    #[must_use]
    pub fn cause(&self) -> CauseKind {
        self.member.cause
    }

    /// The reporters of its present version.
    #[must_use]
    pub fn reporters(&self) -> Reporters {
        *self.member.reporters
    }

    /// When a frame of it was last received; zero if never.
    #[must_use]
    pub fn last_heard(&self) -> Instant {
        self.member.last_heard
    }

    /// The lateness that it advertises, in microseconds.
    #[must_use]
    pub fn lateness_us(&self) -> u64 {
        self.member.late_us()
    }

    /// Its ranks, by rank number.
    pub fn ranks(&self) -> impl Iterator<Item = &'a RankFact> + use<'a> {
        self.member.ranks.values()
    }
}
