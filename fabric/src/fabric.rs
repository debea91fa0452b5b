//! The fabric: rails, peers, and the messages between them.
//!
//! This file only connects: `rail` opens, `peer` pairs, `select` chooses, `health` judges, and the
//! lanes of `provider` carry. See the crate's own page for the order of calls.

use crate::config::FabricConfig;
use crate::error::{CallError, OpenError, PeerError};
use crate::health::{Hearing, HearingChange, SendHealth};
use crate::nid::{NIDS_MAX, Nid, NidList};
use crate::peer::{self, Path, PathState, PathView, Peer, PeerHandle, PeerTable};
use crate::provider::{Done, Posted, Refused, SendTag};
use crate::rail::{self, READING_ORDER, Rail, RailView};
use crate::select::{self, Candidate, Selection};
use crate::stats::{Counters, DropReason};
use crate::transport::{Arrival, Class, FabricEvent, Route, Transport};
use std::collections::VecDeque;
use std::net::SocketAddrV4;
use std::os::fd::BorrowedFd;

/// Completions of one lane that one call of `poll` handles at most, so that a flooded lane does not
/// keep the others waiting.
const POLL_BUDGET: usize = 64;

/// Events that wait for the host at most; further ones are dropped and counted.
const EVENTS_MAX: usize = 4096;

/// Rails that are open, and the peers that they lead to.
#[derive(Debug)]
pub struct Fabric {
    rails: Vec<Rail>,
    mtu: usize,
    peers: PeerTable,
    peers_max: usize,
    peer_sends_max: usize,
    events: VecDeque<FabricEvent>,
    events_dropped: u64,
    /// Watched peers that were heard since they were judged.
    to_judge: Vec<PeerHandle>,
    /// The last `poll` left something unread.
    more: bool,
    unknown_peer_drops: u64,
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
        rail::check_distinct(&config.library, &config.rails)?;
        let opened: Result<Vec<Rail>, OpenError> = config
            .rails
            .iter()
            .map(|nid| Rail::open(config, nid))
            .collect();
        let rails = opened?;
        let mtu = rails.iter().map(Rail::message_max).min().unwrap_or(0);
        Ok(Fabric {
            rails,
            mtu,
            peers: PeerTable::default(),
            peers_max: config.peers_max,
            peer_sends_max: config.peer_sends_max.max(1),
            events: VecDeque::new(),
            events_dropped: 0,
            to_judge: Vec::new(),
            more: false,
            unknown_peer_drops: 0,
        })
    }

    /// Events that were dropped because the host did not fetch them.
    #[must_use]
    pub fn events_dropped(&self) -> u64 {
        self.events_dropped
    }

    /// Messages to peers that were unknown.
    #[must_use]
    pub fn unknown_peer_drops(&self) -> u64 {
        self.unknown_peer_drops
    }

    fn push_event(&mut self, event: FabricEvent) {
        if self.events.len() < EVENTS_MAX {
            self.events.push_back(event);
        } else {
            self.events_dropped += 1;
        }
    }

    /// Handles what one lane of one rail has, a bounded amount; says whether there may be more.
    fn poll_lane(
        &mut self,
        now_us: u64,
        rail: usize,
        class: Class,
        deliver: &mut dyn FnMut(Arrival<'_>),
    ) -> bool {
        self.rails[rail].lanes.of(class).repost_late();
        for _ in 0..POLL_BUDGET {
            let Some(done) = self.rails[rail].lanes.of(class).next() else {
                return false;
            };
            let queue_failed = matches!(done, Done::QueueFailed(_));
            self.complete(now_us, rail, class, done, deliver);
            // A queue that fails would do so again at once: not before the next poll.
            if queue_failed {
                return false;
            }
        }
        true
    }

    /// One completion of one lane.
    fn complete(
        &mut self,
        now_us: u64,
        rail: usize,
        class: Class,
        done: Done,
        deliver: &mut dyn FnMut(Arrival<'_>),
    ) {
        match done {
            Done::Received { slot, length } => self.receive(rail, class, slot, length, deliver),
            Done::ReceiveFailed => {
                self.rails[rail]
                    .counters
                    .count_drop(DropReason::ReceiveError);
            }
            Done::Sent(tag) => self.send_ended(now_us, rail, class, tag, None),
            Done::SendFailed(tag, error) => {
                self.rails[rail]
                    .counters
                    .count_drop(DropReason::ProviderError);
                self.send_ended(now_us, rail, class, tag, Some(&error));
            }
            Done::QueueFailed(error) => self.rail_refused(now_us, rail, None, &error),
        }
    }

    fn receive(
        &mut self,
        rail: usize,
        class: Class,
        slot: usize,
        length: usize,
        deliver: &mut dyn FnMut(Arrival<'_>),
    ) {
        let Rail {
            lanes, counters, ..
        } = &mut self.rails[rail];
        let lane = lanes.of(class);
        if length > lane.message_max() {
            counters.count_drop(DropReason::ReceivedOversize);
        } else {
            counters.count_receive(length);
            deliver(Arrival {
                rail,
                bytes: lane.message(slot, length),
            });
        }
        lane.repost(slot);
    }

    /// A send that was under way has come to its end, well or badly.
    fn send_ended(
        &mut self,
        now_us: u64,
        rail: usize,
        class: Class,
        tag: SendTag,
        error: Option<&CallError>,
    ) {
        let handle = PeerHandle {
            index: tag.peer,
            generation: tag.generation,
        };
        if let Some(path) = self.peers.path_mut(handle, tag.path as usize) {
            path.sends[class as usize] -= 1;
            if error.is_some() {
                path.counters.count_drop(DropReason::ProviderError);
            }
        }
        match error {
            None => self.path_taken(rail, handle, tag.path as usize),
            Some(error) => self.path_refused(now_us, rail, handle, tag.path as usize, error),
        }
    }

    fn path_taken(&mut self, rail: usize, peer: PeerHandle, path: usize) {
        if let Some(path) = self.peers.path_mut(peer, path) {
            path.health.succeeded();
        }
        if self.rails[rail].taken() {
            self.push_event(FabricEvent::RailRecovered { rail });
        }
    }

    fn path_refused(
        &mut self,
        now_us: u64,
        rail: usize,
        peer: PeerHandle,
        path: usize,
        error: &CallError,
    ) {
        if let Some(path) = self.peers.path_mut(peer, path) {
            path.health.failed(now_us);
        }
        self.rail_refused(now_us, rail, Some(peer), error);
    }

    fn rail_refused(
        &mut self,
        now_us: u64,
        rail: usize,
        peer: Option<PeerHandle>,
        error: &CallError,
    ) {
        if self.rails[rail].refused(now_us, peer, self.peers.len()) {
            let reason = error.to_string();
            self.push_event(FabricEvent::RailFailing { rail, reason });
        }
    }

    /// Makes the peer's addresses known to the rails; all of them, or none.
    fn open_paths(&mut self, nids: &NidList) -> Result<Vec<Path>, PeerError> {
        let own: Vec<Nid> = self.rails.iter().map(|rail| rail.nid.clone()).collect();
        let pairs = peer::pair(&own, nids);
        if pairs.is_empty() {
            return Err(PeerError::NoCommonNet {
                peer: nids.to_string(),
                peer_nets: nets(nids.iter()),
                own_nets: nets(own.iter()),
            });
        }
        let mut paths = Vec::with_capacity(pairs.len());
        for (rail, remote) in pairs {
            let nid = &nids.as_slice()[remote];
            match self.open_path(rail, nid) {
                Ok(path) => paths.push(path),
                Err(error) => {
                    self.close_paths(&paths);
                    return Err(error);
                }
            }
        }
        Ok(paths)
    }

    fn open_path(&mut self, rail: usize, nid: &Nid) -> Result<Path, PeerError> {
        let lacking = |lacks| PeerError::NoDestination {
            nid: nid.to_string(),
            lacks,
        };
        let news = nid.socket_address().ok_or_else(|| lacking("address"))?;
        if news.port() == 0 {
            return Err(lacking("port"));
        }
        let beat_port = nid.beat_port();
        let beat_port = beat_port.ok_or_else(|| lacking("port for beats (the next one)"))?;
        let beats = SocketAddrV4::new(*news.ip(), beat_port);
        let refused = |reason| PeerError::Provider {
            nid: nid.to_string(),
            reason,
        };
        let lanes = &mut self.rails[rail].lanes;
        let addresses = lanes.insert(rail::by_class(news, beats)).map_err(refused)?;
        Ok(Path {
            rail,
            nid: nid.clone(),
            addresses,
            sends: [0; 2],
            health: SendHealth::default(),
            counters: Counters::default(),
        })
    }

    fn close_paths(&mut self, paths: &[Path]) {
        for path in paths {
            self.rails[path.rail].lanes.remove(path.addresses);
        }
    }

    fn path_state(&self, peer: &Peer, path: &Path) -> PathState {
        if self.rails[path.rail].health().is_failing() || path.health.is_failing() {
            PathState::Failing
        } else if peer.hearing.is_silent(path.rail) {
            PathState::Silent
        } else {
            PathState::Up
        }
    }

    /// Compares, for each peer that was heard, its rails with each other.
    fn judge(&mut self) {
        for handle in std::mem::take(&mut self.to_judge) {
            let Some(peer) = self.peers.get_mut(handle) else {
                continue;
            };
            let mut changes = Vec::new();
            peer.hearing.judge(|change| changes.push(change));
            for change in changes {
                self.push_event(match change {
                    HearingChange::Silent { rail, silent_us } => FabricEvent::RailSilent {
                        peer: handle,
                        rail,
                        silent_us,
                    },
                    HearingChange::Back { rail } => FabricEvent::RailBack { peer: handle, rail },
                });
            }
        }
    }
}

impl Transport for Fabric {
    fn local_nids(&self) -> NidList {
        let nids = self.rails.iter().map(|rail| rail.nid.clone()).collect();
        NidList::new(nids).expect("rails are few, at least one, and distinct")
    }

    fn mtu(&self) -> usize {
        self.mtu
    }

    fn rails(&self) -> Vec<RailView> {
        self.rails.iter().map(Rail::view).collect()
    }

    fn paths(&self, peer: PeerHandle) -> Vec<PathView> {
        let Some(peer) = self.peers.get(peer) else {
            return Vec::new();
        };
        let view = |path: &Path| PathView {
            rail: path.rail,
            nid: path.nid.clone(),
            state: self.path_state(peer, path),
            counters: path.counters.clone(),
        };
        peer.paths.iter().map(view).collect()
    }

    fn peer(&mut self, nids: &NidList) -> Result<PeerHandle, PeerError> {
        if self.peers.len() >= self.peers_max {
            return Err(PeerError::ManyPeers {
                limit: self.peers_max,
            });
        }
        let paths = self.open_paths(nids)?;
        let used: Vec<bool> = (0..self.rails.len())
            .map(|rail| paths.iter().any(|path| path.rail == rail))
            .collect();
        Ok(self.peers.insert(Peer {
            paths,
            hearing: Hearing::new(&used),
            cursor: 0,
        }))
    }

    fn forget(&mut self, peer: PeerHandle) {
        if let Some(peer) = self.peers.remove(peer) {
            self.close_paths(&peer.paths);
        }
    }

    fn select(&mut self, now_us: u64, peer: PeerHandle, route: Route) -> Selection {
        let Some(peer) = self.peers.get_mut(peer) else {
            self.unknown_peer_drops += 1;
            return Selection::default();
        };
        let mut candidates = [Candidate::default(); select::PATHS_MAX];
        for (candidate, path) in candidates.iter_mut().zip(&peer.paths) {
            let rail = self.rails[path.rail].health();
            let failing = rail.is_failing() || path.health.is_failing();
            candidate.healthy = !failing && !peer.hearing.is_silent(path.rail);
            candidate.probe_due = route == Route::Next
                && (rail.probe_due(now_us)
                    || path.health.probe_due(now_us)
                    || peer.hearing.probe_due(now_us, path.rail));
        }
        select::choose(&candidates[..peer.paths.len()], &mut peer.cursor, route)
    }

    fn post(
        &mut self,
        now_us: u64,
        peer: PeerHandle,
        path: usize,
        class: Class,
        bytes: &[u8],
    ) -> Result<(), DropReason> {
        let Some(to) = self.peers.path_mut(peer, path) else {
            self.unknown_peer_drops += 1;
            return Err(DropReason::UnknownPeer);
        };
        let rail_index = to.rail;
        let rail = &mut self.rails[rail_index];
        let tag = SendTag {
            peer: peer.index,
            generation: peer.generation,
            path: path as u32,
        };
        let sends = &mut to.sends[class as usize];
        let result = if bytes.len() > self.mtu {
            Err((DropReason::Oversize, None))
        } else if *sends >= self.peer_sends_max {
            Err((DropReason::PeerBusy, None))
        } else {
            let lane = rail.lanes.of(class);
            lane.send(to.addresses[class as usize], tag, bytes)
                .map_err(Refused::reason)
        };
        match result {
            Ok(posted) => {
                to.counters.count_send(bytes.len());
                rail.counters.count_send(bytes.len());
                match posted {
                    Posted::UnderWay => *sends += 1,
                    Posted::Done => self.path_taken(rail_index, peer, path),
                }
                Ok(())
            }
            Err((reason, error)) => {
                to.counters.count_drop(reason);
                rail.counters.count_drop(reason);
                if let Some(error) = error {
                    self.path_refused(now_us, rail_index, peer, path, &error);
                }
                Err(reason)
            }
        }
    }

    fn poll(&mut self, now_us: u64, deliver: &mut dyn FnMut(Arrival<'_>)) -> bool {
        self.more = false;
        for rail in 0..self.rails.len() {
            for class in READING_ORDER {
                self.more |= self.poll_lane(now_us, rail, class, deliver);
            }
        }
        self.more
    }

    fn poll_beats(&mut self, now_us: u64, deliver: &mut dyn FnMut(Arrival<'_>)) -> bool {
        self.more = false;
        for rail in 0..self.rails.len() {
            self.more |= self.poll_lane(now_us, rail, Class::Beat, deliver);
        }
        self.more
    }

    fn wait_fds(&self) -> Vec<BorrowedFd<'_>> {
        self.rails
            .iter()
            .filter_map(|rail| rail.lanes.news.wait_fd())
            .collect()
    }

    fn may_sleep(&mut self) -> bool {
        !self.more
            && self.events.is_empty()
            && self.to_judge.is_empty()
            && self
                .rails
                .iter_mut()
                .all(|rail| rail.lanes.news.may_sleep())
    }

    fn next_timeout(&self) -> Option<u64> {
        None
    }

    fn heard(&mut self, now_us: u64, peer: PeerHandle, rail: usize) {
        let Some(known) = self.peers.get_mut(peer) else {
            return;
        };
        if let Some(path) = known.paths.iter_mut().find(|path| path.rail == rail) {
            path.counters.receives += 1;
        }
        if known.hearing.heard(now_us, rail) && !self.to_judge.contains(&peer) {
            self.to_judge.push(peer);
        }
    }

    fn watch(&mut self, now_us: u64, peer: PeerHandle, interval_us: u64) {
        if let Some(peer) = self.peers.get_mut(peer) {
            peer.hearing.watch(now_us, interval_us);
        }
    }

    fn unwatch(&mut self, peer: PeerHandle) {
        if let Some(peer) = self.peers.get_mut(peer) {
            peer.hearing.unwatch();
        }
    }

    fn poll_event(&mut self) -> Option<FabricEvent> {
        if self.events.is_empty() && !self.more {
            self.judge();
        }
        self.events.pop_front()
    }
}

/// The nets of these NIDs, each once, as a text for messages.
fn nets<'a>(nids: impl Iterator<Item = &'a Nid>) -> String {
    let mut words: Vec<String> = nids.map(|nid| nid.net.to_string()).collect();
    words.sort();
    words.dedup();
    words.join(", ")
}
