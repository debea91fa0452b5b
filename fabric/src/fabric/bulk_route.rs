//! The route of bulk messages: a path for each fragment, or a member that carries the message.
//!
//! The selection is that of datagrams with other loads: the bytes on each rail and each path that are not
//! acknowledged, since "sent" only means that a provider has copied them. So the fragments of one message are spread
//! over equal rails, and rails of different speeds carry shares by their speed. Messages stay in order: the next one
//! of a stream begins when the last is acknowledged as a whole. Messages without acknowledgement give no such proof.
//! Such a message takes one path, and the messages after it take the same path, as long as it works and the peer's
//! paths do not change, until a fragment that took it is acknowledged.

use super::Fabric;
use super::send::{input, load, rail_inputs};
use crate::peer::{Path, Peer};
use crate::peer_handle::PeerHandle;
use crate::rail::Rail;
use crate::select::{self, Choice, PathInput, RailInput, Request, Standing, Tried};
use muster_provider::NIDS_MAX;
use muster_rail_health::HealthConfig;

/// The route of a fragment.
pub(super) enum BulkRoute {
    /// Directly.
    Path(Choice),
    /// Carried by another member.
    Through(PeerHandle),
}

/// Why a bulk message leaves a path: a part of it was not acknowledged in time, or could not be sent.
const UNACKNOWLEDGED: &str = "a part of the bulk message was not acknowledged";

impl Fabric {
    /// Counts the bytes without acknowledgement on each path and each rail, before more is sent.
    pub(super) fn count_unacked(&mut self) {
        let rails = &mut self.rails;
        rails
            .iter_mut()
            .flatten()
            .for_each(|rail| rail.bulk_bytes = 0);
        for handle in &self.bulk_peers {
            let Some(peer) = self.peers.get_mut(*handle) else {
                continue;
            };
            let Peer { paths, bulk, .. } = peer;
            paths.iter_mut().for_each(|path| path.bulk_bytes = 0);
            let streams = bulk.iter().flat_map(|bulk| bulk.streams());
            for (id, bytes) in streams.flat_map(|stream| stream.sender.outstanding()) {
                let Some(path) = paths.iter_mut().find(|path| path.id == id) else {
                    continue;
                };
                path.bulk_bytes += bytes as u64;
                if let Some(rail) = &mut rails[path.rail] {
                    rail.bulk_bytes += bytes as u64;
                }
            }
        }
    }

    /// Gives a stream the window of all rails that its fragments may be spread over.
    pub(super) fn spread_stream(&mut self, handle: PeerHandle, urgent: bool) {
        let stream = self.stream_of(handle, urgent);
        if stream.is_none_or(|stream| stream.sender.timeout().is_none()) {
            return;
        }
        let Some(peer) = self.peers.get(handle) else {
            return;
        };
        let health = &self.config.health;
        let mut leads = [false; NIDS_MAX];
        for path in peer.paths.iter().filter(|path| !path.spare) {
            leads[path.rail] |= bulk_input(&self.rails, peer, path, health).is_usable();
        }
        let rails = leads.iter().filter(|leads| **leads).count();
        if let Some(stream) = self.stream_of(handle, urgent) {
            stream.sender.spread(rails as u32);
        }
    }

    /// The route of the next fragment: a working path, else a member that carries it, else a path that was not tried.
    /// The choice stays until it has taken the fragment or has failed.
    pub(super) fn bulk_route(
        &mut self,
        now_us: u64,
        handle: PeerHandle,
        urgent: bool,
    ) -> Option<BulkRoute> {
        self.stream_of(handle, urgent)?.sender.next()?;
        self.keep_route(handle, urgent);
        let stream = self.stream_of(handle, urgent)?;
        if let Some(choice) = stream.choice {
            return Some(BulkRoute::Path(choice));
        }
        if let Some(by) = stream.through {
            return Some(BulkRoute::Through(by));
        }
        let retry_all = stream.retry_all;
        let route = match self.new_bulk_route(now_us, handle, urgent) {
            None if retry_all => {
                let stream = self.stream_of(handle, urgent)?;
                stream.tried = Tried::default();
                stream.through_tried.clear();
                self.new_bulk_route(now_us, handle, urgent)
            }
            route => route,
        };
        let peer = self.peers.get_mut(handle)?;
        let mut id = None;
        if let Some(BulkRoute::Path(choice)) = route {
            let path = usize::from(choice.path);
            peer.take(path);
            id = Some(peer.paths[path].id);
        }
        let stream = peer.bulk.as_mut()?.stream(urgent);
        stream.retry_all = false;
        match route {
            Some(BulkRoute::Path(choice)) => {
                stream.choice = Some(choice);
                stream.note_taken(id);
                for left in std::mem::take(&mut stream.left) {
                    if Some(left) != id {
                        self.note_moved(handle, left, usize::from(choice.path), UNACKNOWLEDGED);
                    }
                }
            }
            Some(BulkRoute::Through(by)) => {
                stream.through = Some(by);
                stream.carriers.retain(|one| *one != by);
                stream.carriers.push(by);
            }
            None => {}
        }
        route
    }

    /// A new message takes the path of the one before, if that is to be kept and works.
    fn keep_route(&mut self, handle: PeerHandle, urgent: bool) {
        let Some(stream) = self.stream_of(handle, urgent) else {
            return;
        };
        let kept = stream.choice.filter(|_| std::mem::take(&mut stream.kept));
        let Some(at) = kept.map(|choice| usize::from(choice.path)) else {
            return;
        };
        let Some(peer) = self.peers.get_mut(handle) else {
            return;
        };
        let known = bulk_input(&self.rails, peer, &peer.paths[at], &self.config.health);
        let id = peer.paths[at].id;
        if known.is_usable() {
            peer.take(at);
        }
        let Some(bulk) = &mut peer.bulk else {
            return;
        };
        let stream = bulk.stream(urgent);
        stream.follows = known.is_usable();
        match stream.follows {
            true => stream.note_taken(Some(id)),
            false => stream.choice = None,
        }
    }

    fn new_bulk_route(
        &mut self,
        now_us: u64,
        handle: PeerHandle,
        urgent: bool,
    ) -> Option<BulkRoute> {
        let stream = self.stream_of(handle, urgent)?;
        let (tried, through_tried) = (stream.tried, stream.through_tried.clone());
        let back = stream.sender.back();
        let back = back.and_then(|id| self.peers.path_by_id(handle, id));
        let back = back.map(|path| (path.rail as u8, path.remote));
        let path = self.choose_bulk(handle, tried, back);
        match path {
            Some((choice, true)) => Some(BulkRoute::Path(choice)),
            _ => match self.bulk_carrier(now_us, handle, through_tried) {
                Some(by) => Some(BulkRoute::Through(by)),
                None => path.map(|(choice, _)| BulkRoute::Path(choice)),
            },
        }
    }

    /// The best path for bulk messages, and whether it is known to work.
    pub(super) fn choose_bulk(
        &mut self,
        handle: PeerHandle,
        tried: Tried,
        back: Option<(u8, u8)>,
    ) -> Option<(Choice, bool)> {
        let peer = self.peers.get(handle)?;
        let health = &self.config.health;
        let mut inputs = std::mem::take(&mut self.inputs);
        inputs.clear();
        let of_path = |path: &Path| bulk_input(&self.rails, peer, path, health);
        inputs.extend(peer.paths.iter().map(of_path));
        let request = Request {
            numa_range: self.config.numa_range,
            tried,
            back,
        };
        let rails = bulk_rail_inputs(&self.rails, self.memory_node);
        let choice = select::choose(&request, &rails, &inputs);
        let choice = choice.map(|choice| (choice, inputs[usize::from(choice.path)].is_usable()));
        self.inputs = inputs;
        choice
    }
}

/// The rails as inputs for bulk messages: their locations, and the loads of their bulk lanes.
fn bulk_rail_inputs(rails: &[Option<Rail>], memory_node: Option<u32>) -> [RailInput; NIDS_MAX] {
    let mut inputs = rail_inputs(rails, memory_node);
    for (input, rail) in inputs.iter_mut().zip(rails) {
        let Some((rail, lane)) = rail
            .as_ref()
            .and_then(|rail| Some((rail, rail.bulk.as_ref()?)))
        else {
            continue;
        };
        (input.credits, _) = load(lane.credits() as u32, lane.credits_most() as u32, 0);
        input.queued_bytes = rail.bulk_bytes;
    }
    inputs
}

/// A path as input for bulk messages: the worse of its state for datagrams and that of its bulk lane.
pub(super) fn bulk_input(
    rails: &[Option<Rail>],
    peer: &Peer,
    path: &Path,
    health: &HealthConfig,
) -> PathInput {
    let known = input(rails, peer, path, health);
    let rail = rails[path.rail].as_ref();
    let lacks_lane = rail.is_none_or(|rail| rail.bulk.is_none());
    let is_failing = rail.is_some_and(|rail| rail.bulk_receive_failing);
    let own = if lacks_lane || path.bulk_health.is_blocked() {
        Standing::Blocked
    } else if is_failing || path.bulk_health.is_failed() {
        Standing::Avoided
    } else {
        Standing::Usable
    };
    PathInput {
        standing: known.standing.max(own),
        shunned_by: known.shunned_by.max(path.bulk_health.shunned_by(health)),
        credits: u32::MAX - path.bulk_sends,
        queued_bytes: path.bulk_bytes,
        ..known
    }
}
