//! The states of nodes and ranks, as they are stored in the state table, one byte each.
//!
//! The numbers are those of the protocol and the C API and never change. `Unknown` is a state of its own; an
//! undefined byte reads as `Unknown`.

/// What is known of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(u8)]
pub enum NodeState {
    /// No sign of life so far.
    #[default]
    Unknown = 0,
    /// A recent sign of life.
    Alive = 1,
    /// Alive, but not received on all of its rails.
    Degraded = 2,
    /// Silent on all rails; not yet confirmed.
    Suspect = 3,
    /// Confirmed as failed.
    Failed = 4,
    /// Left in an orderly way.
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
    /// No report of it so far, or no longer observed.
    #[default]
    Unknown = 0,
    /// Its process runs.
    Alive = 1,
    /// Its process exists and makes no progress.
    Hung = 2,
    /// Its process ended without a detach.
    Failed = 3,
    /// It detached.
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
