//! The states of nodes and ranks, as the bytes that lie on the board.
//!
//! The numbers are the protocol's and the C API's and never change. "Never heard of" is a state of
//! its own; a byte that means nothing reads as that.

/// What is known of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(u8)]
pub enum NodeState {
    /// Never heard of.
    #[default]
    Unknown = 0,
    /// Heard lately.
    Alive = 1,
    /// Heard, but not over all of its rails.
    Degraded = 2,
    /// Not heard on any rail; not yet confirmed.
    Suspect = 3,
    /// Confirmed dead.
    Failed = 4,
    /// Went in order.
    Left = 5,
}

impl From<u8> for NodeState {
    #[inline]
    fn from(byte: u8) -> Self {
        match byte {
            1 => Self::Alive,
            2 => Self::Degraded,
            3 => Self::Suspect,
            4 => Self::Failed,
            5 => Self::Left,
            _ => Self::Unknown,
        }
    }
}

/// What is known of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(u8)]
pub enum RankState {
    /// Never heard of, or lost sight of.
    #[default]
    Unknown = 0,
    /// Its process runs.
    Alive = 1,
    /// Its process exists and makes no progress.
    Hung = 2,
    /// Its process died without saying that it leaves.
    Failed = 3,
    /// It said that it leaves.
    Left = 4,
}

impl From<u8> for RankState {
    #[inline]
    fn from(byte: u8) -> Self {
        match byte {
            1 => Self::Alive,
            2 => Self::Hung,
            3 => Self::Failed,
            4 => Self::Left,
            _ => Self::Unknown,
        }
    }
}
