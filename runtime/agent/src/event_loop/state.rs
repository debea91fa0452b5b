//! The parts of the event loop's state: rails as peers report them, timing, lifetime, and descriptors.
//!
//! Each part has one owner, the event loop, and one subject. The steps of the loop use only the parts that they name.

use crate::descriptors::Descriptors;
use crate::drops::Drops;
use crate::ending::Ending;
use crate::priority::Priority;
use crate::service::Watchdog;
use crate::signals::Signals;
use crate::slice::LocalWork;
use crate::spin_detector::SpinDetector;
use crate::status::Status;
use muster_fabric::{Nid, PeerHandle, Relayed};
use muster_protocol::{Instant, MemberId, Version};
use muster_sys::poll::Epoll;
use std::collections::{BTreeMap, BTreeSet};

/// What is known of rails, by member: own observations and the members' own reports.
#[derive(Default)]
pub(super) struct RailMonitor {
    /// Peers whose beats the fabric watches, by handle.
    pub(super) watched: BTreeMap<PeerHandle, MemberId>,
    /// Silent rails of each member.
    pub(super) silent_rails: BTreeMap<MemberId, BTreeSet<usize>>,
    /// Members that are heard through relays only.
    pub(super) indirect: BTreeSet<MemberId>,
    /// Failing rails, as reported by the members themselves.
    pub(super) reported_failing: BTreeMap<MemberId, Vec<Nid>>,
    /// The failing rails of this node, and what was published of them.
    pub(super) status: Status,
    /// Messages that no rail could send.
    pub(super) drops: Drops,
    /// The generation of the peer directory that the handles in `watched` belong to.
    pub(super) directory_generation: u64,
    /// Rails were opened or closed since the loop last checked whether it may sleep.
    pub(super) rails_are_new: bool,
}

/// The intervals of the profile, and how the loop keeps them.
pub(super) struct Timing {
    pub(super) heartbeat_us: u64,
    pub(super) deadline_us: u64,
    /// The time since which step 1 has not read everything.
    pub(super) behind_since: Option<Instant>,
    /// The number of times in a row that step 3 was deferred.
    pub(super) deferrals: u32,
    /// Whether this round did anything.
    pub(super) worked: bool,
    /// Detects rounds without work and without sleep.
    pub(super) spin_detector: SpinDetector,
    /// Work for this node's ranks and operators, and its share of the time.
    pub(super) local: LocalWork,
    pub(super) priority: Priority,
}

/// When and why the loop ends, and what it leaves to the next worker.
pub(super) struct Lifetime {
    pub(super) signals: Signals,
    /// Set if the agent runs as a service.
    pub(super) watchdog: Option<Watchdog>,
    pub(super) ending: Option<Ending>,
    /// A signal requested the end.
    pub(super) end_requested: bool,
    /// Another worker is to take over as soon as that is possible.
    pub(super) wants_renewal: bool,
    /// The other members declared this node failed at least once.
    pub(super) is_outcast: bool,
    pub(super) snapshot_due_us: Option<u64>,
    /// The version in the last snapshot. The next worker must not start below a version that peers know.
    pub(super) saved_version: Version,
}

/// The descriptors that the loop waits for, and its buffers.
pub(super) struct Poller {
    pub(super) epoll: Epoll,
    /// The limit of open files.
    pub(super) descriptors: Descriptors,
    /// One datagram.
    pub(super) buffer: Vec<u8>,
    /// Senders, and the rails of their frames, in this round of step 1.
    pub(super) heard: Vec<(MemberId, usize, Option<Relayed>)>,
}
