//! The fabric: rails, peers, and the messages between them.
//!
//! This folder connects the other modules: `rail` opens, `peer` pairs, `policy` ranks, `select` chooses,
//! `muster-rail-health` scores, and lanes carry. This file has the fabric and its rails, `paths` the peers and the
//! paths to them, `send` outgoing messages, `late_sends` those that take too long, `receive` incoming ones, `relay`
//! messages through other members, `bulk` and its neighbours bulk messages, and `show` the views. The crate page has
//! the order of calls.

mod bulk;
mod bulk_driver;
mod bulk_route;
#[cfg(test)]
mod bulk_tests;
mod closer;
mod lane_names;
mod late_sends;
mod opener;
mod paths;
mod receive;
mod relay;
mod relay_bulk;
mod request;
mod send;
mod show;
mod stale;

pub use opener::{OpenedRail, RailOpener};
use relay::RelayState;
pub use request::QUESTION_MAX;

use self::closer::Closer;
use crate::config::FabricConfig;
use crate::error::{OpenError, PeerError, RemoveError};
use crate::lane::Lane;
use crate::liveness_connection::{
    LivenessConnection, LivenessObserver, QUEUE_CHECK_US, WITHDRAWAL_US,
};
use crate::message::{Arrival, Class, Relayed, Route};
use crate::peer::PeerTable;
use crate::peer_handle::PeerHandle;
use crate::policy::Policy;
use crate::rail::{self, Rail};
use crate::relay::ENVELOPE_BYTES;
use crate::select::{Choice, PathInput, Selection, Tried};
use crate::stale_probes::StaleProbes;
use crate::stats::DropReason;
use crate::timeouts::Timeouts;
use crate::transport::{FabricEvent, Transport};
use crate::view::{PathView, RailView, Why};
use muster_provider::locality::Machine;
use muster_provider::{Links, NIDS_MAX, Nid, NidList, SPEEDS_DIRECTORY, Speeds};
use muster_rail_health::{HealthConfig, Pace};
use rustix::io::Errno;
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddrV4;
use std::os::fd::BorrowedFd;

/// The maximum of events that wait for the host. Further ones are dropped and counted.
const EVENTS_MAX: usize = 4096;

/// The maximum of polls in a row that end with more to read before rails are judged all the same. By then, messages
/// that were unread when a silence began have been read.
const UNJUDGED_MAX: u32 = 16;

/// The longest time between two polls of rails whose providers have no descriptors.
const UNSIGNALLED_US: u64 = 10_000;

/// Open rails, and the peers that they lead to.
#[derive(Debug)]
pub struct Fabric {
    config: FabricConfig,
    /// By index. The index of a removed rail is reused.
    rails: Vec<Option<Rail>>,
    mtu: usize,
    peers: PeerTable,
    /// The peer that each NID belongs to.
    owners: BTreeMap<Nid, PeerHandle>,
    /// The number of the next path.
    next_path: u32,
    events: VecDeque<FabricEvent>,
    /// A link has changed since the speeds of the rails were requested. They are requested again.
    speeds_due: bool,
    speeds_at_us: u64,
    /// When connections of tcp rails are to be marked next.
    mark_at_us: u64,
    events_dropped: u64,
    /// Watched peers that were heard since their rails were judged.
    to_judge: Vec<PeerHandle>,
    /// Watched peers with a late rail.
    late: Vec<PeerHandle>,
    /// Whether the last `poll` left something unread, and how many polls in a row did so without a judgement.
    more: bool,
    unjudged: u32,
    unknown_peer_drops: u64,
    no_path_drops: u64,
    under_way_drops: u64,
    /// When news under way is checked next.
    late_check_us: u64,
    /// The time of the last call.
    now_us: u64,
    /// Buffer for the inputs of a choice, reused.
    inputs: Vec<PathInput>,
    /// Peers with bulk messages under way, each once.
    bulk_peers: Vec<PeerHandle>,
    /// The number of the last bulk message to any peer. The count is common to all peers, since a peer that is
    /// forgotten and added again must not see a number twice.
    last_message: u64,
    /// The number of the last session with any peer.
    last_session: u64,
    bulk_unfinished: u64,
    /// Whether the health of a path has changed, so that rails must be compared again.
    rails_in_doubt: bool,
    /// Receives link changes; an error where this process may not.
    links: Result<Links, Errno>,
    /// Reads the speeds of interfaces; none where the system gives no thread.
    speeds: Option<Speeds>,
    /// The liveness connections to watched peers; none where the system gives no descriptor.
    observer: Option<LivenessObserver>,
    /// Probes for connections that broke while the links stayed up.
    stale_probes: StaleProbes,
    closer: Closer,
    /// Announcements of addresses for beats so far.
    announcements: u64,
    /// State of relaying.
    relay_state: RelayState,
    /// When the queues of this node's own liveness connection are checked next.
    queue_check_us: u64,
    /// Addresses of removed rails at which connections are refused from a time on.
    withdrawals: Vec<(u64, SocketAddrV4)>,
    /// Where the messages' memory is, if known.
    memory_node: Option<u32>,
}

impl Fabric {
    /// Opens all rails, or none.
    ///
    /// # Errors
    /// See [`OpenError`]; what had been opened is closed again.
    pub fn open(config: &FabricConfig) -> Result<Fabric, OpenError> {
        if config.rails.is_empty() {
            return Err(OpenError::NoRail {
                known: config.library.known_interfaces(),
            });
        }
        if config.rails.len() > NIDS_MAX {
            return Err(OpenError::ManyRails {
                given: config.rails.len(),
            });
        }
        if let Some(reason) = config.health.fault() {
            return Err(OpenError::Health { reason });
        }
        if let Some(reason) = config.timeouts.fault() {
            return Err(OpenError::Timeouts { reason });
        }
        rail::check_distinct(&config.library, &config.rails)?;
        let open = |nid| Rail::open(config, nid).map(Some);
        let opened: Result<Vec<Option<Rail>>, OpenError> = config.rails.iter().map(open).collect();
        let mut fabric = Fabric {
            config: FabricConfig {
                peer_sends_max: config.peer_sends_max.max(1),
                ..config.clone()
            },
            rails: opened?,
            mtu: 0,
            peers: PeerTable::default(),
            owners: BTreeMap::new(),
            next_path: 0,
            events: VecDeque::new(),
            speeds_due: false,
            speeds_at_us: 0,
            mark_at_us: 0,
            events_dropped: 0,
            to_judge: Vec::new(),
            late: Vec::new(),
            more: false,
            unjudged: 0,
            unknown_peer_drops: 0,
            no_path_drops: 0,
            under_way_drops: 0,
            late_check_us: 0,
            now_us: 0,
            inputs: Vec::new(),
            bulk_peers: Vec::new(),
            last_message: 0,
            last_session: config.incarnation,
            bulk_unfinished: 0,
            rails_in_doubt: false,
            links: Links::open(),
            speeds: Speeds::start(SPEEDS_DIRECTORY.into()).ok(),
            observer: LivenessObserver::new().ok(),
            relay_state: RelayState::default(),
            closer: Closer::default(),
            announcements: 0,
            queue_check_us: 0,
            withdrawals: Vec::new(),
            stale_probes: StaleProbes::default(),
            memory_node: None,
        };
        fabric.measure();
        (0..fabric.rails.len()).for_each(|rail| fabric.offer_liveness(rail));
        Ok(fabric)
    }

    /// Closes a rail. News that is under way on it is sent by another rail, and may arrive twice. Beats are dropped
    /// and counted. Peers without another rail stay known and cannot be sent to directly. The set of descriptors
    /// to wait on changes.
    ///
    /// # Errors
    /// See [`RemoveError`]; nothing has changed then.
    pub fn remove_rail(&mut self, nid: &Nid) -> Result<(), RemoveError> {
        let found = self.open_rails().find(|(_, rail)| rail.nid == *nid);
        let Some((index, _)) = found else {
            return Err(RemoveError::NoSuchRail {
                nid: nid.to_string(),
                known: self.local_nids().to_string(),
            });
        };
        if self.open_rails().count() == 1 {
            return Err(RemoveError::LastRail {
                nid: nid.to_string(),
            });
        }
        if let Some((_, at)) = self.liveness_of(index) {
            // Observers that do not know the other rails yet would take a refusal for the end of the process.
            let at_us = self.now_us + WITHDRAWAL_US;
            self.withdrawals.push((at_us, at));
        }
        let under_way = self.take_under_way(index);
        if let Some(rail) = self.rails[index].take() {
            self.closer.close(rail);
        }
        // Events about the removed rail are not about the rail that reuses its index.
        self.events.retain(|event| {
            !matches!(event, FabricEvent::RailFailing { rail, .. } | FabricEvent::RailRecovered { rail, .. }
                | FabricEvent::RailSpeed { rail, .. } | FabricEvent::RailHealth { rail, .. }
                | FabricEvent::RailStale { rail, .. } if *rail == index)
        });
        self.measure();
        self.pair_all();
        for (tag, bytes) in under_way {
            self.resend(tag, Tried::default(), &bytes, "the rail was closed");
        }
        Ok(())
    }

    /// Replaces the policy for all messages from now on.
    pub fn set_policy(&mut self, policy: Policy) {
        self.config.policy = policy;
        self.pair_all();
    }

    /// The policy that is in force.
    #[must_use]
    pub fn policy(&self) -> &Policy {
        &self.config.policy
    }

    /// Changes how errors and successes change the health. Returns false if the numbers are invalid; then nothing has
    /// changed.
    pub fn set_health(&mut self, health: HealthConfig) -> bool {
        let sound = health.fault().is_none();
        if sound {
            self.config.health = health;
        }
        sound
    }

    /// Changes the time-outs. Returns false if they are out of order; then nothing has changed.
    pub fn set_timeouts(&mut self, timeouts: Timeouts) -> bool {
        let sound = timeouts.fault().is_none();
        if sound {
            self.config.timeouts = timeouts;
        }
        sound
    }

    /// Sets or changes the key of bulk messages, see [`FabricConfig::key`].
    pub fn set_key(&mut self, key: [u8; 32]) {
        self.config.key = Some(key);
    }

    /// Changes the NUMA range, see [`FabricConfig::numa_range`].
    pub fn set_numa_range(&mut self, numa_range: u32) {
        self.config.numa_range = numa_range;
    }

    /// Sets the location of a rail: its NUMA node, the distance of the messages' memory, and the CPU partitions that
    /// it serves; an empty list means all. Returns false if there is no such rail.
    pub fn place_rail(
        &mut self,
        rail: usize,
        numa_node: Option<u32>,
        distance: u32,
        partitions: Vec<u32>,
    ) -> bool {
        let Some(rail) = self.rails.get_mut(rail).and_then(Option::as_mut) else {
            return false;
        };
        rail.numa_node = numa_node;
        rail.distance = distance;
        rail.partitions = partitions;
        true
    }

    /// Sets the location of all rails on this machine, for messages in memory of NUMA node `memory_node`, which is
    /// the CPU partition of the same number.
    pub fn locate(&mut self, machine: &Machine, memory_node: Option<u32>) {
        self.memory_node = memory_node;
        for rail in self.rails.iter_mut().flatten() {
            let device = rail.interface().unwrap_or_default();
            let node = machine.node_of_device(device);
            rail.distance = machine.distance_to_device(memory_node, device);
            rail.numa_node = node;
        }
    }

    /// Events that were dropped because the host did not fetch them.
    #[must_use]
    pub fn events_dropped(&self) -> u64 {
        self.events_dropped
    }

    /// Messages to unknown peers.
    #[must_use]
    pub fn unknown_peer_drops(&self) -> u64 {
        self.unknown_peer_drops
    }

    /// Messages to known peers without a direct pair. Some of them were sent through other members.
    #[must_use]
    pub fn no_path_drops(&self) -> u64 {
        self.no_path_drops
    }

    /// Messages that the provider had taken and failed, and that no other path took. Beats are not sent again.
    #[must_use]
    pub fn under_way_drops(&self) -> u64 {
        self.under_way_drops
    }

    fn open_rails(&self) -> impl Iterator<Item = (usize, &Rail)> {
        let rails = self.rails.iter().enumerate();
        rails.filter_map(|(index, rail)| Some((index, rail.as_ref()?)))
    }

    /// The liveness connection that is offered on a rail, and its address.
    fn liveness_of(&self, index: usize) -> Option<(&LivenessConnection, SocketAddrV4)> {
        let at = self.rails[index].as_ref()?.nid.liveness_address()?;
        Some((self.config.liveness_connection.as_deref()?, at))
    }

    fn offer_liveness(&mut self, index: usize) {
        if let Some((liveness_connection, at)) = self.liveness_of(index) {
            liveness_connection.offer(at);
            self.withdrawals.retain(|(_, withdrawn)| *withdrawn != at);
        }
    }

    /// Checks the queues of this node's liveness connection, and withdraws it where rails were removed.
    fn check_own_liveness(&mut self, now_us: u64) {
        self.queue_check_us = now_us + QUEUE_CHECK_US;
        let Some(own) = self.config.liveness_connection.as_deref() else {
            return;
        };
        own.check_queues();
        let due = self
            .withdrawals
            .extract_if(.., |(at_us, _)| *at_us <= now_us);
        due.for_each(|(_, at)| own.withdraw(at));
    }

    fn measure(&mut self) {
        let sizes = self.open_rails().map(|(_, rail)| rail.message_max());
        // Any message may have to be sent in an envelope.
        self.mtu = sizes.min().unwrap_or(0).saturating_sub(ENVELOPE_BYTES);
    }

    fn push_event(&mut self, event: FabricEvent) {
        if self.events.len() < EVENTS_MAX {
            self.events.push_back(event);
        } else {
            self.events_dropped += 1;
        }
    }
}

impl Transport for Fabric {
    fn local_nids(&self) -> NidList {
        let nids = self
            .open_rails()
            .map(|(_, rail)| rail.nid.clone())
            .collect();
        NidList::new(nids).expect("a fabric has 1 to NIDS_MAX distinct rails")
    }

    fn mtu(&self) -> usize {
        self.mtu
    }

    fn rails(&self) -> Vec<RailView> {
        let view = |(index, rail): (usize, &Rail)| rail.view(index, self.now_us);
        self.open_rails().map(view).collect()
    }

    fn rail_count(&self) -> usize {
        self.open_rails().count()
    }

    fn paths(&self, peer: PeerHandle) -> Vec<PathView> {
        self.path_views(peer)
    }

    fn peer(&mut self, nids: &NidList) -> Result<PeerHandle, PeerError> {
        self.add_peer(nids)
    }

    fn renew(&mut self, peer: PeerHandle, nids: &NidList) -> Result<(), PeerError> {
        self.replace_nids(peer, nids)
    }

    fn nids(&self, peer: PeerHandle) -> Option<NidList> {
        self.peers.get(peer).map(|peer| peer.nids.clone())
    }

    fn forget(&mut self, peer: PeerHandle) {
        self.remove_peer(peer);
    }

    fn select(&mut self, now_us: u64, peer: PeerHandle, route: Route, tried: &Tried) -> Selection {
        self.select_paths(now_us, peer, route, tried)
    }

    fn rail_of(&self, peer: PeerHandle, path: usize) -> Option<usize> {
        let path = self.peers.get(peer)?.paths.get(path)?;
        Some(path.rail)
    }

    fn why(&self, peer: PeerHandle) -> Why {
        self.explain_choice(peer)
    }

    fn post(
        &mut self,
        now_us: u64,
        peer: PeerHandle,
        path: usize,
        class: Class,
        bytes: &[u8],
    ) -> Result<(), DropReason> {
        self.post_on(now_us, peer, path, class, bytes, Tried::default())
    }

    fn relay(&mut self, now_us: u64, peer: PeerHandle, class: Class, bytes: &[u8]) -> u8 {
        self.relay_copies(now_us, peer, class, bytes)
    }

    fn moved(&mut self, peer: PeerHandle, from: Choice, to: Choice) {
        let path = self
            .peers
            .get(peer)
            .and_then(|one| one.paths.get(usize::from(from.path)));
        if let Some(id) = path.map(|path| path.id) {
            self.note_moved(
                peer,
                id,
                usize::from(to.path),
                "the provider has not accepted it",
            );
        }
    }

    fn poll(&mut self, now_us: u64, deliver: &mut dyn FnMut(Arrival<'_>)) -> bool {
        self.now_us = now_us;
        self.poll_rails(now_us, deliver)
    }

    fn poll_beats(&mut self, now_us: u64, deliver: &mut dyn FnMut(Arrival<'_>)) -> bool {
        self.now_us = now_us;
        self.poll_beat_lanes(now_us, deliver)
    }

    fn wait_fds(&self) -> Vec<BorrowedFd<'_>> {
        let rails = || self.rails.iter().flatten();
        let news = rails().flat_map(|rail| rail.lanes.news.wait_fds());
        let bulk = rails().filter_map(|rail| rail.bulk.as_ref());
        let bulk = bulk.flat_map(Lane::wait_fds);
        let links = self.links.iter().map(Links::wait_fd);
        let observer = self.observer.iter().map(LivenessObserver::wait_fd);
        news.chain(bulk).chain(links).chain(observer).collect()
    }

    fn may_sleep(&mut self) -> bool {
        !self.more
            && self.events.is_empty()
            && self.to_judge.is_empty()
            && self.rails.iter_mut().flatten().all(|rail| {
                rail.lanes.news.may_sleep() && rail.bulk.as_mut().is_none_or(Lane::may_sleep)
            })
    }

    fn next_timeout(&self) -> Option<u64> {
        let held = self.observer.as_ref().and_then(LivenessObserver::timeout);
        let peers = self.late.iter().filter_map(|peer| self.peers.get(*peer));
        let late = peers
            .filter_map(|peer| peer.rail_liveness.next_request_at())
            .min();
        let wakes = self.open_rails().all(|(_, rail)| rail.lanes.news.wakes());
        let unsignalled = (!wakes).then_some(self.now_us + UNSIGNALLED_US);
        let stale = self.stale_probes.due_us();
        [self.bulk_timeout(), held, late, stale, unsignalled]
            .into_iter()
            .flatten()
            .min()
    }

    fn heard(&mut self, now_us: u64, peer: PeerHandle, rail: usize) {
        self.note_heard(now_us, peer, rail);
    }

    fn heard_through(&mut self, now_us: u64, peer: PeerHandle, relayed: Relayed) {
        self.note_heard_through(now_us, peer, relayed);
    }

    fn limit_bulk(&mut self, bytes_per_s: u64) {
        for rail in self.rails.iter_mut().flatten() {
            rail.bulk_limit.bytes_per_s = bytes_per_s;
        }
    }

    fn watch(&mut self, now_us: u64, handle: PeerHandle, pace: Pace) {
        if let Some(peer) = self.peers.get_mut(handle) {
            peer.rail_liveness.watch(now_us, pace);
            self.update_observer(handle);
        }
    }

    fn unwatch(&mut self, handle: PeerHandle) {
        if let Some(peer) = self.peers.get_mut(handle) {
            peer.rail_liveness.unwatch();
            self.update_observer(handle);
        }
        self.find_receive_failing_rails();
    }

    fn poll_event(&mut self) -> Option<FabricEvent> {
        if self.events.is_empty() && (!self.more || self.unjudged >= UNJUDGED_MAX) {
            self.unjudged = 0;
            self.judge();
        }
        self.events.pop_front()
    }
}
