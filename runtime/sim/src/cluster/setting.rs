//! The parameters of one run of the machine, and its result.

use super::CLUSTER;

/// Which of the paper's protocols runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Gossiping {
    /// To a random listed member.
    Basic,
    /// This part of the gossips goes to the own cluster.
    Hierarchical(f64),
    /// Gossips ride on messages of the application, from this part of an interval on. Those that are sent
    /// alone are hierarchical with this local factor, or basic with none.
    Piggyback {
        /// The paper's P.
        factor: f64,
        /// The paper's L.
        local: Option<f64>,
    },
    /// BG-15: to all nodes of the own cluster, and to one node outside of it.
    Broadcast,
    /// BG-15: to the other node of a pair of neighbours, and hierarchical with this local factor.
    Buddies(f64),
}

/// How a run begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// The dead node is repaired.
    Repair,
    /// A node dies.
    Death,
}

/// One setting of the machine.
#[derive(Clone, Debug)]
pub struct ClusterSetting {
    /// Nodes, in clusters of 16.
    pub nodes: usize,
    /// Which protocol.
    pub gossiping: Gossiping,
    /// The paper's Tgossip, in microseconds.
    pub interval_us: u64,
    /// The paper's Tcleanup, in microseconds.
    pub cleanup_us: u64,
    /// Probability that one wire damages a message.
    pub wire_fault: f64,
    /// Probability that the processor of the sender, or of the receiver, damages a message.
    pub processor_fault: f64,
    /// Probability that a node stops for good as one of its cycles begins, from the start on.
    pub processor_death: f64,
    /// At most this many nodes stop. The node that the run is about does not.
    pub processor_deaths_max: usize,
    /// Number of local ports that are broken from the beginning, and of global ones of other nodes.
    pub broken_ports: usize,
    /// A node considers a port down if no undamaged message arrived for this time, in microseconds, until one
    /// arrives. `None`: never.
    pub watchdog_us: Option<u64>,
    /// Number of clusters that are cut off from the global network.
    pub partitions: usize,
    /// Bytes of a gossip: a fixed part, and a part for each member. The paper does not give it; assumed: an
    /// address and a time of two bytes each.
    pub gossip_bytes: (u64, u64),
    /// Wires from each cluster's global switch up, 1 or 2. The paper does not give it; assumed.
    pub uplinks: usize,
    /// Bytes per second of background traffic from each node.
    pub traffic_bytes: u64,
    /// Whether all nodes gossip at the same times. The paper does not give it; assumed, since in a simple
    /// model all nodes begin at time 0. Otherwise each node has times of its own.
    pub in_step: bool,
    /// Whether a node delays a gossip until its previous one has left, and writes it then. The paper does not
    /// give it; assumed. Otherwise gossips queue at their sender's port with the state of the time at which
    /// they were queued.
    pub waits: bool,
    /// How long the machine has gossiped when a run begins, in microseconds; `None`: 20 to 30 cycles.
    pub warm_us: Option<u64>,
    /// How a run begins.
    pub start: Start,
    /// A run fails after this time, in microseconds.
    pub limit_us: u64,
}

impl ClusterSetting {
    /// The paper's standard setting.
    #[must_use]
    pub fn new(nodes: usize, gossiping: Gossiping) -> Self {
        Self {
            nodes,
            gossiping,
            interval_us: 100,
            cleanup_us: 10_000,
            wire_fault: 0.0,
            processor_fault: 0.0,
            processor_death: 0.0,
            processor_deaths_max: 0,
            broken_ports: 0,
            watchdog_us: Some(1000),
            partitions: 0,
            gossip_bytes: (16, 4),
            uplinks: 2,
            traffic_bytes: 20_000_000,
            in_step: true,
            waits: true,
            warm_us: None,
            start: Start::Repair,
            limit_us: 20_000,
        }
    }

    pub(super) fn gossip_size(&self) -> u64 {
        self.gossip_bytes.0 + self.gossip_bytes.1 * self.nodes as u64
    }

    /// Thousandths of the application's messages that stay in the cluster.
    pub(super) fn local_permille(&self) -> u32 {
        if self.nodes > CLUSTER { 700 } else { 1000 }
    }
}

/// The result of one run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Agreement {
    /// When all agreed, in milliseconds from the start; `None` if they did not in time.
    pub agreed_ms: Option<f64>,
    /// Undamaged gossips received until then.
    pub received: u64,
    /// Gossips sent until then.
    pub sent: u64,
    /// Bytes of those gossips.
    pub bytes: u64,
    /// Running members that were taken off a list.
    pub false_detections: u64,
    /// Nodes that stopped for good during the run.
    pub stopped: u64,
    /// Messages of all kinds on the wires at the end.
    pub under_way: usize,
}
