//! States of nodes and of ranks.
//!
//! The numbers are on the wire and in the state table, and are never reused. "Unknown" is a state of its
//! own, not a great age.

/// State of a node, as held by one member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum NodeState {
    /// Not known.
    Unknown = 0,
    /// In the view.
    Alive = 1,
    /// In the view; a rail to it is silent while another works. Local knowledge.
    Degraded = 2,
    /// In the view, with too few reports against it for a verdict.
    Suspect = 3,
    /// Removed: reported by enough distinct members, or by a launcher or an administrator.
    Failed = 4,
    /// Removed: it left.
    Left = 5,
}

impl NodeState {
    /// The state with this number, if there is one.
    #[must_use]
    pub const fn from_number(number: u8) -> Option<Self> {
        Some(match number {
            0 => Self::Unknown,
            1 => Self::Alive,
            2 => Self::Degraded,
            3 => Self::Suspect,
            4 => Self::Failed,
            5 => Self::Left,
            _ => return None,
        })
    }

    /// Whether a node in this state belongs to the view.
    #[must_use]
    pub const fn in_view(self) -> bool {
        matches!(self, Self::Alive | Self::Degraded | Self::Suspect)
    }
}

/// State of a rank, as stated by its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum RankState {
    /// Not known.
    Unknown = 0,
    /// Attached and running.
    Alive = 1,
    /// Its process lives and makes no progress.
    Hung = 2,
    /// Ended without leaving.
    Failed = 3,
    /// Ended after leaving.
    Left = 4,
}

impl RankState {
    /// The state with this number, if there is one.
    #[must_use]
    pub const fn from_number(number: u8) -> Option<Self> {
        Some(match number {
            0 => Self::Unknown,
            1 => Self::Alive,
            2 => Self::Hung,
            3 => Self::Failed,
            4 => Self::Left,
            _ => return None,
        })
    }

    /// Whether it is the end of a rank.
    #[must_use]
    pub const fn is_end(self) -> bool {
        matches!(self, Self::Failed | Self::Left)
    }
}

/// The evidence for a rank's state: a code and one byte. The protocol carries both and interprets neither.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RankDetail {
    /// The mechanism, as the host numbers them.
    pub code: u8,
    /// Its argument: a signal number or an exit code.
    pub argument: u8,
}

/// A fact about a rank. Only its node writes it; the highest sequence wins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RankFact {
    /// The rank's number in the job.
    pub rank: u32,
    /// Its state.
    pub state: RankState,
    /// The evidence for it.
    pub detail: RankDetail,
    /// Number of the fact in this incarnation of the node, from 1. 0 if a previous incarnation stated the
    /// end of the rank, and the present one has stated nothing about it.
    pub sequence: u32,
}

impl RankFact {
    /// The order of facts about one rank in one incarnation. Ends from previous incarnations have no order
    /// in time: all members take the same one.
    pub fn order(&self) -> (u32, RankState, RankDetail) {
        (self.sequence, self.state, self.detail)
    }
}
