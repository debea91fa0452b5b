//! The configuration that a fabric is opened with: rails and limits.

use crate::liveness_connection::LivenessConnection;
use crate::policy::Policy;
use crate::timeouts::Timeouts;
use muster_provider::{Libfabric, Nid};
use muster_rail_health::HealthConfig;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// The DSCP of messages that must not wait behind others: expedited forwarding (RFC 3246).
pub const DSCP_DEFAULT: u8 = 46;

/// Rails and limits of one [`Fabric`](crate::Fabric). [`FabricConfig::new`] gives the defaults.
#[derive(Debug, Clone)]
pub struct FabricConfig {
    /// The loaded libfabric.
    pub library: Libfabric,
    /// The local rails, in order of preference.
    pub rails: Vec<Nid>,
    /// Receive buffers that are kept posted on each lane of a rail, at least 1. 64 buffers hold what a busy group of
    /// neighbours sends during one scheduling delay. Each buffer takes the memory of one message.
    pub receive_buffers: usize,
    /// Sends that may be under way at once on each lane of a rail, at least 1. Beats and news have separate lanes, so
    /// neither can use up the slots of the other.
    pub send_slots: usize,
    /// Sends to one peer that may be under way at once over one lane, at least 1. The limit keeps a stuck peer from
    /// taking all slots of a lane.
    pub peer_sends_max: usize,
    /// The maximum number of known peers.
    pub peers_max: usize,
    /// Hand small messages to the provider by copy (inject). They complete at once and take no slot. Switched off
    /// only to test the slots.
    pub inject: bool,
    /// The DSCP of packets on udp and tcp rails, 1 to 63, where the kernel allows it; 0 for none. Bulk messages have
    /// none, nor have connections that were begun by a fabric with bulk lanes. Other providers request libfabric's
    /// low-latency class. Default: [`DSCP_DEFAULT`].
    pub dscp: u8,
    /// The incarnation of this node. It grows with each start, by more than the number of peers that were known since
    /// the last start, so that bulk messages and envelopes of an earlier incarnation are told apart. Default:
    /// nanoseconds since 1970.
    pub incarnation: u64,
    /// The key that all senders of bulk messages share and no other process knows. Bulk frames and envelopes of
    /// relayed messages carry a proof of it. None: until [`Fabric::set_key`](crate::Fabric::set_key) is called, no
    /// bulk lane can be opened and nothing is relayed.
    pub key: Option<[u8; 32]>,
    /// How errors and successes change the health of rails and paths.
    pub health: HealthConfig,
    /// The time-outs of bulk messages.
    pub timeouts: Timeouts,
    /// Which rails, NIDs and pairs are preferred.
    pub policy: Policy,
    /// Rails up to this distance from the messages' memory count as near as the nearest rail. The unit is that of
    /// hwloc's NUMA distances (10 is local). A large value switches distance off.
    pub numa_range: u32,
    /// Whether to reach peers through other members where no direct pair works, and to carry messages for others.
    pub relay: bool,
    /// The sockets that peers connect to in order to learn at once that this process has ended. None: peers only
    /// notice its silence. Two fabrics need two.
    pub liveness_connection: Option<Arc<LivenessConnection>>,
}

impl FabricConfig {
    /// The defaults for these rails.
    #[must_use]
    pub fn new(library: Libfabric, rails: Vec<Nid>) -> FabricConfig {
        FabricConfig {
            library,
            rails,
            receive_buffers: 64,
            send_slots: 64,
            peer_sends_max: 8,
            peers_max: 4096,
            inject: true,
            dscp: DSCP_DEFAULT,
            incarnation: since_1970_ns(),
            key: None,
            health: HealthConfig::default(),
            timeouts: Timeouts::default(),
            policy: Policy::default(),
            numa_range: 0,
            relay: true,
            liveness_connection: None,
        }
    }
}

fn since_1970_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_nanos() as u64)
}
