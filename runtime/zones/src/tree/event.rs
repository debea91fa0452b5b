//! Events of a tree: what a host is told beside the events of its own zone.

use muster_protocol::{Event, NodeState};

use crate::directory::NodeIndex;
use crate::map::ZoneId;

/// An event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TreeEvent {
    /// An event of the base zone.
    Base(Event),
    /// A node of another base zone changed its state.
    Node {
        /// The node.
        node: NodeIndex,
        /// Its state now.
        state: NodeState,
    },
    /// A node of another base zone that is alive has become degraded, or is no longer.
    Degraded {
        /// The node.
        node: NodeIndex,
        /// Whether it is degraded now.
        is_degraded: bool,
    },
    /// All nodes of a zone changed their state at once.
    Zone {
        /// The zone.
        zone: ZoneId,
        /// `Failed`, or `Alive` if it is seen for the first time or is back: then the states of its nodes are those
        /// that `Tree::node_state` has.
        state: NodeState,
    },
    /// A rank of another base zone changed its state.
    Rank {
        /// Its number in the job.
        rank: u32,
    },
    /// The rest of the job has declared the local zone, or one above it, failed.
    Outcast {
        /// The zone.
        zone: ZoneId,
    },
    /// Half of the job's nodes or fewer are alive as far as the local node knows.
    Minority {
        /// Number of these nodes.
        reached: u32,
        /// Nodes of the job.
        of: u32,
    },
    /// More than half are again.
    Majority {
        /// Number of these nodes.
        reached: u32,
        /// Nodes of the job.
        of: u32,
    },
    /// The local node became a member of a zone above, as a supervisor of the zone below it.
    Promoted {
        /// The zone above.
        zone: ZoneId,
    },
    /// The local node is no longer a member of a zone above.
    Demoted {
        /// The zone above.
        zone: ZoneId,
    },
}
