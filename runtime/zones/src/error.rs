//! Errors of zone maps: each names the value, the reason and the remedy.

use crate::limits::{DEPTH_MAX, NODES_MAX, ZONE_MEMBERS_MAX};

/// Why there is no zone map.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MapError {
    /// The list of nodes is empty.
    #[error("the list of nodes is empty: name at least one node")]
    Empty,
    /// A node's name that is not valid.
    #[error(
        "{0:?} is no name of a node: it must be 1 to 63 printable ASCII characters without spaces"
    )]
    Name(String),
    /// A node is in the list twice.
    #[error("node {0} is in the list of nodes twice: name it once")]
    Twice(String),
    /// Too many nodes.
    #[error("more than {NODES_MAX} nodes: a zone map holds at most as many")]
    TooManyNodes,
    /// A node is in two zones.
    #[error("node {node} is in zone {one} and in zone {other}: give it one zone")]
    TwoZones {
        /// Its name.
        node: String,
        /// The zone that names it first.
        one: String,
        /// The other zone.
        other: String,
    },
    /// Nodes that are in no zone.
    #[error("{nodes} {verb} in no zone: add {them} to a zone", verb = are(*.count), them = them(*.count))]
    NoZone {
        /// Their names, folded.
        nodes: String,
        /// How many.
        count: usize,
    },
    /// A zone's name that is not valid.
    #[error(
        "{0:?} is no name of a zone: each part of the path must be 1 to 63 of a-z, A-Z, 0-9, '.', '_' or '-', \
         with '/' between the parts"
    )]
    ZoneName(String),
    /// A path that is too deep.
    #[error(
        "zone {zone} is {depth} levels deep: at most {DEPTH_MAX} are supported, so shorten its path"
    )]
    TooDeep {
        /// Its path.
        zone: String,
        /// Parts of its path.
        depth: usize,
    },
    /// Two zones of different depths.
    #[error(
        "zone {one} is {one_depth} deep and zone {other} is {other_depth}: all zones must have the same depth"
    )]
    Depths {
        /// The first zone.
        one: String,
        /// Parts of its path.
        one_depth: usize,
        /// A zone of another depth.
        other: String,
        /// Parts of its path.
        other_depth: usize,
    },
    /// Too many members in a zone.
    #[error(
        "zone {zone} has {members} members: at most {ZONE_MEMBERS_MAX} are supported, so cut it into several"
    )]
    TooLarge {
        /// Its path.
        zone: String,
        /// Its nodes, or the zone supervisors that make a zone of a higher level.
        members: usize,
    },
    /// More zones than the levels can hold.
    #[error(
        "{zones} zones with at most {children_max} below each other need more than {DEPTH_MAX} levels: aim at larger \
         zones"
    )]
    TooManyZones {
        /// How many base zones.
        zones: usize,
        /// Most zones directly below another.
        children_max: usize,
    },
    /// Two sources put nodes into different zones.
    #[error(transparent)]
    Contradiction(Box<Contradiction>),
}

/// Two sources of zones that contradict each other, and two nodes that show it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{one_source} puts {one} and {other} into {one_says}, {other_source} into {other_says}: remove one of the two \
     sources, or make them agree"
)]
pub struct Contradiction {
    /// The source that is asked first.
    pub one_source: String,
    /// The other source.
    pub other_source: String,
    /// A node.
    pub one: String,
    /// Another node.
    pub other: String,
    /// `one zone` or `two zones`: the first source.
    pub one_says: &'static str,
    /// The other source.
    pub other_says: &'static str,
}

fn are(count: usize) -> &'static str {
    if count == 1 { "is" } else { "are" }
}

fn them(count: usize) -> &'static str {
    if count == 1 { "it" } else { "them" }
}
