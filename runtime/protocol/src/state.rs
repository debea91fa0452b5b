//! What can be said of a node and of a rank: two small sets of words.
//!
//! The numbers are on the wire and on the board, so they are for ever. "Never heard of" is a
//! state of its own, not a great age.

/// State of a node, as one member sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum NodeState {
    /// Never heard of.
    Unknown = 0,
    /// In the view.
    Alive = 1,
    /// In the view; some rail to it is silent while another answers. Local knowledge only.
    Degraded = 2,
    /// In the view, with reports against it that do not suffice yet.
    Suspect = 3,
    /// Removed: enough distinct members found it silent, or somebody who knows said so.
    Failed = 4,
    /// Removed: it said goodbye.
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

/// State of a rank, as stated by the node it runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum RankState {
    /// Never heard of.
    Unknown = 0,
    /// Attached and running.
    Alive = 1,
    /// Its process lives and does not get on.
    Hung = 2,
    /// Ended without a goodbye.
    Failed = 3,
    /// Ended with one.
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

    /// Whether it says how a rank ended.
    #[must_use]
    pub const fn is_end(self) -> bool {
        matches!(self, Self::Failed | Self::Left)
    }
}

/// How the node knows: a code (which mechanism) and one byte with it (a signal, an exit code).
/// The protocol carries both and reads neither.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RankDetail {
    /// Which mechanism told, as the host numbers them.
    pub code: u8,
    /// What goes with it: a signal number or an exit code.
    pub argument: u8,
}

/// What a node states about one of its ranks. Only that node writes it; the highest sequence wins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RankFact {
    /// The rank's number in the job.
    pub rank: u32,
    /// Its state.
    pub state: RankState,
    /// How that is known.
    pub detail: RankDetail,
    /// Counts the facts of this node in this incarnation; starts at 1. 0 if a former incarnation
    /// stated how the rank ended and the present one has said nothing about it.
    pub sequence: u32,
}

impl RankFact {
    /// What makes one fact about a rank win over another of the same incarnation. Ends that were
    /// handed on from former ones have no order in time: everybody takes the same one.
    pub(crate) fn order(&self) -> (u32, RankState, RankDetail) {
        (self.sequence, self.state, self.detail)
    }
}
