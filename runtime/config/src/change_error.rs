//! Why a change of the rails' configuration is refused: value, reason, remedy.

use super::{PEERS_AT_ONCE_MAX, SEEDS_MAX};
use muster_fabric::{NIDS_MAX, NidError, PolicyError};
use muster_hostlist::RangeError;
use thiserror::Error;

/// The reason why a change is refused. Nothing was changed.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ChangeError {
    /// An invalid line.
    #[error("{line:?} is not a change: {reason}")]
    Line {
        /// The line.
        line: String,
        /// What is wrong with it.
        reason: String,
    },
    /// No rail has this NID.
    #[error("{nid} is not a rail of this node; its rails are {known}")]
    NoSuchRail {
        /// The NID.
        nid: String,
        /// The rails of this node.
        known: String,
    },
    /// The rail exists already.
    #[error("{nid} is a rail of this node already; name each interface once")]
    RailTwice {
        /// The NID.
        nid: String,
    },
    /// The only rail cannot be removed.
    #[error("{nid} is the last rail of this node; add another before it is removed")]
    LastRail {
        /// The NID.
        nid: String,
    },
    /// The maximum number of rails exists already.
    #[error("this node has {NIDS_MAX} rails, the maximum; remove one first")]
    ManyRails,
    /// A document without rails.
    #[error(
        "the document names no rail, but an agent requires one; write the rails under nets, \
         as muster export does"
    )]
    NoRail,
    /// A peer with the NID of a local interface.
    #[error("the peer's NID {nid} names an interface of this node; a peer's NID needs an address")]
    Interface {
        /// The NID.
        nid: String,
    },
    /// A NID that belongs to another peer.
    #[error(
        "the NID {nid} belongs to the peer {other}; a NID has one owner, so remove it there first"
    )]
    NidTaken {
        /// The NID.
        nid: String,
        /// That peer.
        other: String,
    },
    /// A peer that no rail can reach.
    #[error(
        "the peer {peer} is on none of the nets of this node's rails, which are {nets}; give both a \
         rail on one net"
    )]
    NoCommonNet {
        /// The peer.
        peer: String,
        /// The nets of the rails.
        nets: String,
    },
    /// A NID that no configured peer has.
    #[error("the NID {nid} is not of a configured peer; muster export shows the configured ones")]
    NoSuchPeer {
        /// The NID.
        nid: String,
    },
    /// Lists of one text that differ in length.
    #[error(
        "{text:?}: {first:?} stands for {first_count} NIDs and {other:?} for {other_count}; each list \
         has one NID of each peer, so all must have the same length"
    )]
    Uneven {
        /// The text.
        text: String,
        /// Its first list.
        first: String,
        /// Its length.
        first_count: usize,
        /// The list with another length.
        other: String,
        /// Its length.
        other_count: usize,
    },
    /// More peers in one change than an agent supports.
    #[error("the list has more than {PEERS_AT_ONCE_MAX} peers; add fewer at a time")]
    ManyAtOnce,
    /// More peers than an agent supports.
    #[error(
        "{count} peers would be configured; an agent supports at most {SEEDS_MAX}, and finds others by itself"
    )]
    ManyPeers {
        /// How many there would be.
        count: usize,
    },
    /// No such rule.
    #[error("{rule} is not in the policy; it has {count} rules, see muster policy show")]
    NoSuchRule {
        /// The rule.
        rule: String,
        /// How many there are.
        count: usize,
    },
    /// An invalid limit.
    #[error("{0}")]
    Limit(String),
    /// A document that could not be read back. The agent stores it for its next worker.
    #[error("{0}")]
    Unreadable(String),
    /// An invalid NID.
    #[error(transparent)]
    Nid(#[from] NidError),
    /// An invalid range, or one with too many names.
    #[error(transparent)]
    Range(#[from] RangeError),
    /// Rules that contradict each other.
    #[error("{0}; see muster policy show")]
    Policy(#[from] PolicyError),
}
