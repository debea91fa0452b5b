//! What a fabric is opened with: rails and limits.

use crate::health::HealthConfig;
use crate::liveness_connection::LivenessConnection;
use crate::nid::Nid;
use crate::policy::Policy;
use crate::provider::Libfabric;
use crate::timeouts::Timeouts;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// Rails and limits of one [`Fabric`](crate::Fabric). [`FabricConfig::new`] gives the defaults.
#[derive(Debug, Clone)]
pub struct FabricConfig {
    /// The loaded library.
    pub library: Libfabric,
    /// The local rails, in order of preference.
    pub rails: Vec<Nid>,
    /// Receive buffers that are kept posted on each lane of a rail, at least 1. 64 hold what a busy
    /// neighbourhood sends within one scheduling hiccup; each costs one message of memory.
    pub receive_buffers: usize,
    /// Sends on each lane of a rail that may be under way at once, at least 1. Beats and news have a
    /// lane each, so neither can use up what the other needs.
    pub send_slots: usize,
    /// Sends to one peer over one lane that may be under way at once, at least 1: a stuck peer
    /// cannot take all slots of a lane.
    pub peer_sends_max: usize,
    /// Peers that may be known at once.
    pub peers_max: usize,
    /// Hand small messages to the provider by copy, so that they are done at once and take no slot.
    /// Off only to exercise the slots.
    pub inject: bool,
    /// Which life of this node it is: grows with each start, and by more than the peers that were known since the
    /// last one, so that bulk messages and envelopes of an earlier one are told apart. By default nanoseconds
    /// since 1970.
    pub incarnation: u64,
    /// What all who may send bulk messages to each other know, and nobody else: their frames carry a
    /// proof of it, and so do the envelopes of what others carry. None: no bulk lane can be opened and nothing
    /// goes through others, before [`Fabric::set_key`](crate::Fabric::set_key).
    pub key: Option<[u8; 32]>,
    /// How errors and successes move the health of rails and paths.
    pub health: HealthConfig,
    /// How long things may take.
    pub timeouts: Timeouts,
    /// Which rails, NIDs and pairs are preferred.
    pub policy: Policy,
    /// Rails up to this distance from the messages' memory are as good as the nearest, in the unit of
    /// hwloc's NUMA distances (10 is local). Large enough, it switches distance off.
    pub numa_range: u32,
    /// Reach peers through others where no direct pair works, and carry for others likewise.
    pub relay: bool,
    /// What peers hold on to, to learn at once of this process's end; none: they have to wait for its
    /// silence. Two fabrics need two.
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
