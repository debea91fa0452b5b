//! What one run of the machine is set to, and how it ended.

use super::CLUSTER;

/// Which of the paper's protocols.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Gossiping {
    /// To a random listed member.
    Basic,
    /// So large a part to the own cluster.
    Hierarchical(f64),
    /// On messages of the application, from this part of an interval on; those that go alone are
    /// hierarchical with this local factor, or basic with none.
    Piggyback {
        /// The paper's P.
        factor: f64,
        /// The paper's L.
        local: Option<f64>,
    },
    /// BG-15: to everybody in the own cluster, and to one node outside of it.
    Broadcast,
    /// BG-15: to the other one of a pair of neighbours, and hierarchical with this local factor.
    Buddies(f64),
}

/// What begins a run.
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
    /// How probable it is that one wire damages a message.
    pub wire_fault: f64,
    /// How probable it is that the processor of its sender, or of its receiver, damages a message.
    pub processor_fault: f64,
    /// How probable it is that a node stops for good as one of its cycles begins, from the start on.
    pub processor_death: f64,
    /// At most so many do. The one that the run is about does not.
    pub processor_deaths_max: usize,
    /// How many local ports are broken from the beginning, and as many global ones of other nodes.
    pub broken_ports: usize,
    /// A node holds a port for down at which no good message came for so long, in microseconds, until
    /// one comes; none: it never does.
    pub watchdog_us: Option<u64>,
    /// How many clusters are cut off from the global network.
    pub partitions: usize,
    /// Bytes of a gossip: so many, and so many for each member. Not given: assumed, an address and a
    /// time of two bytes each.
    pub gossip_bytes: (u64, u64),
    /// Wires from each cluster's global switch up, 1 or 2. Not given: assumed.
    pub uplinks: usize,
    /// Bytes a second of background traffic from each node.
    pub traffic_bytes: u64,
    /// Whether all nodes gossip at the same moments. Not given: assumed, as a model does whose
    /// nodes all begin at time 0; else each has moments of its own.
    pub in_step: bool,
    /// Whether a node waits with a gossip until its last one has left, and writes it then. Not given:
    /// assumed; else gossips line up at their sender's port, and tell what was so when they did.
    pub waits: bool,
    /// For how long the machine has gossiped when a run begins, in microseconds; none: 20 to 30 cycles.
    pub warm_us: Option<u64>,
    /// What begins a run.
    pub start: Start,
    /// After so long a run has failed, in microseconds.
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

    /// Thousandths of messages of the application that stay in the cluster.
    pub(super) fn local_permille(&self) -> u32 {
        if self.nodes > CLUSTER { 700 } else { 1000 }
    }
}

/// How one run ended.
#[derive(Clone, Copy, Debug, Default)]
pub struct Agreement {
    /// When all agreed, in milliseconds from the start; nothing if they did not in time.
    pub agreed_ms: Option<f64>,
    /// Gossips received undamaged until then.
    pub received: u64,
    /// Gossips sent until then.
    pub sent: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Living members that were taken off somebody's list.
    pub false_detections: u64,
    /// Nodes that stopped for good on the way.
    pub stopped: u64,
    /// Messages of all kinds on the wires at the end.
    pub under_way: usize,
}
