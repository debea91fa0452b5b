//! Bulk messages, and the handling of frames that arrive: one connection-oriented endpoint per rail, for messages over
//! the datagram limit.
//!
//! Nothing of it exists before [`Fabric::open_bulk`], since its buffers and those of its providers are by far the
//! largest of a fabric. A receiver must call it too. The endpoint listens at the port of the rail's NID on udp nets:
//! the providers use TCP there, and datagrams UDP.

use super::Fabric;
use crate::bulk::{
    Back, Due, Frame, FrameTaken, HELD_BYTES_MAX, Kind, Operation, PeerBulk, Receiver,
};
use crate::config::FabricConfig;
use crate::error::OpenError;
use crate::lane::{Lane, SendTag, own};
use crate::message::Arrival;
use crate::peer_handle::PeerHandle;
use crate::rail::{self, Rail};
use crate::relay::is_envelope;
use crate::stats::DropReason;
use crate::transport::FabricEvent;
use muster_provider::{CallError, Done, Nid};
use muster_rail_health::{HealthChange, Outcome};

/// The maximum of completions of one bulk lane that one poll handles.
const POLL_BUDGET: usize = 32;

impl Fabric {
    /// Opens the bulk lane of every rail that has none yet. The set of descriptors to wait on changes.
    ///
    /// # Errors
    /// See [`OpenError`]; lanes that were opened before the failing one stay open.
    pub fn open_bulk(&mut self) -> Result<(), OpenError> {
        if self.config.key.is_none() {
            return Err(OpenError::NoKey);
        }
        for rail in self.rails.iter_mut().flatten() {
            if rail.bulk.is_none() {
                rail.bulk = Some(rail::open_bulk(&self.config, &rail.nid)?);
            }
        }
        // Peers that have to be told the addresses of lanes do not know these yet.
        let paths = self.peers.iter_mut().flat_map(|peer| &mut peer.paths);
        paths.for_each(|path| path.announced = false);
        Ok(())
    }

    /// Sends a message of up to [`BULK_MESSAGE_MAX`](crate::BULK_MESSAGE_MAX) bytes to a peer. Returns its number,
    /// which the event of its end carries: [`FabricEvent::BulkDone`] when the peer has all of it, or
    /// [`FabricEvent::BulkFailed`]. The bytes are copied.
    ///
    /// # Errors
    /// Why it was not taken; nothing of it was kept.
    pub fn send_bulk(
        &mut self,
        now_us: u64,
        handle: PeerHandle,
        bytes: &[u8],
    ) -> Result<u64, DropReason> {
        self.send_operation(now_us, handle, false, Operation::Put, None, bytes)
    }

    /// Sends a message of any operation in either stream, by the path `back` if that is given and works.
    pub(super) fn send_operation(
        &mut self,
        now_us: u64,
        handle: PeerHandle,
        urgent: bool,
        operation: Operation,
        back: Option<u32>,
        bytes: &[u8],
    ) -> Result<u64, DropReason> {
        self.now_us = now_us;
        let Some(peer) = self.peers.get_mut(handle) else {
            self.unknown_peer_drops += 1;
            return Err(DropReason::UnknownPeer);
        };
        let has_lane = |rail: &Option<Rail>| rail.as_ref().is_some_and(|rail| rail.bulk.is_some());
        let mut paths = peer.paths.iter();
        let through = self.config.relay && self.rails.iter().any(has_lane);
        if !through && !paths.any(|path| has_lane(&self.rails[path.rail])) {
            return Err(DropReason::NoPath);
        }
        let last_session = &mut self.last_session;
        let new = || Box::new(PeerBulk::new(last_session));
        let bulk = peer.bulk.get_or_insert_with(new);
        let id = self.last_message + 1;
        let times = &self.config.timeouts;
        let sender = &mut bulk.stream(urgent).sender;
        sender.push(now_us, id, operation, back, bytes, times)?;
        self.last_message = id;
        if operation == Operation::Get {
            bulk.gets.begin(id);
        }
        bulk.used_us = now_us;
        self.note_bulk(handle);
        self.drive_bulk(now_us);
        self.check_bulk_rails();
        Ok(id)
    }

    /// Bulk messages that arrived in part and were never completed.
    #[must_use]
    pub fn bulk_unfinished(&self) -> u64 {
        self.bulk_unfinished
    }

    pub(super) fn bulk_of(&mut self, handle: PeerHandle) -> Option<&mut PeerBulk> {
        self.peers.get_mut(handle)?.bulk.as_deref_mut()
    }

    pub(super) fn note_bulk(&mut self, handle: PeerHandle) {
        if let Some(bulk) = self.bulk_of(handle)
            && !std::mem::replace(&mut bulk.noted, true)
        {
            self.bulk_peers.push(handle);
        }
    }

    /// Removes peers without anything under way from `bulk_peers`.
    pub(super) fn forget_idle(&mut self) {
        let mut handles = std::mem::take(&mut self.bulk_peers);
        handles.retain(|handle| {
            let is_busy = self.peer_bulk_timeout(*handle).is_some();
            let Some(peer) = self.peers.get_mut(*handle) else {
                return is_busy;
            };
            if !is_busy {
                peer.paths.iter_mut().for_each(|path| path.bulk_bytes = 0);
            }
            if let Some(bulk) = peer.bulk.as_mut() {
                bulk.noted = is_busy;
                self.bulk_unfinished += bulk.take_dropped();
            }
            is_busy
        });
        self.bulk_peers = handles;
    }

    /// Whether bulk messages are under way.
    pub(super) fn has_bulk(&self) -> bool {
        !self.bulk_peers.is_empty() || self.late_timeout().is_some()
    }

    /// When bulk messages have something to do.
    pub(super) fn bulk_timeout(&self) -> Option<u64> {
        let of_peer = |handle: &PeerHandle| self.peer_bulk_timeout(*handle);
        let of_peers = self.bulk_peers.iter().filter_map(of_peer);
        of_peers.chain(self.late_timeout()).min()
    }

    pub(super) fn peer_bulk_timeout(&self, handle: PeerHandle) -> Option<u64> {
        let peer = self.peers.get(handle)?;
        let bulk = peer.bulk.as_ref()?;
        let health = &self.config.health;
        let probes = peer
            .paths
            .iter()
            .filter_map(|path| path.bulk_health.probe_at(health));
        bulk.timeout(probes.min(), self.config.timeouts.reply_us)
    }

    /// Handles a bounded number of completions of the bulk lanes. Returns true if there may be more.
    pub(super) fn poll_bulk(&mut self, now_us: u64, deliver: &mut dyn FnMut(Arrival<'_>)) -> bool {
        let mut more = false;
        for rail in 0..self.rails.len() {
            more |= self.poll_bulk_lane(now_us, rail, deliver);
        }
        self.forward_late(now_us);
        if !self.bulk_peers.is_empty() {
            self.drive_bulk(now_us);
        }
        self.check_bulk_rails();
        more
    }

    fn poll_bulk_lane(
        &mut self,
        now_us: u64,
        index: usize,
        deliver: &mut dyn FnMut(Arrival<'_>),
    ) -> bool {
        let failed = self.bulk_lane(index).and_then(Lane::device_error);
        if failed.is_some() {
            // The rail's datagram lanes report the same device error; here it is only counted.
            self.count_bulk(index, DropReason::ProviderError);
        }
        for _ in 0..POLL_BUDGET {
            let Some(lane) = self.bulk_lane(index) else {
                return false;
            };
            lane.repost_late();
            let Some(done) = lane.next_done() else {
                return false;
            };
            match done {
                Done::Received { slot, length } => {
                    let envelope = own(lane, slot, length, is_envelope);
                    let (whole, relayed) = match envelope {
                        None => (self.bulk_received(now_us, index, slot, length), None),
                        Some(envelope) => self.handle_bulk_envelope(now_us, index, envelope),
                    };
                    if let Some(lane) = self.bulk_lane(index) {
                        lane.repost(slot);
                    }
                    if let Some(bytes) = whole {
                        deliver(Arrival {
                            rail: index,
                            bytes: &bytes,
                            relayed,
                        });
                    }
                }
                // Sent only means that the provider copied it: only an acknowledgement proves arrival.
                Done::Sent(tag) => self.bulk_sent(tag),
                Done::SendFailed(slot, tag, error) => {
                    lane.free_send(slot);
                    self.bulk_sent(tag);
                    self.count_bulk(index, DropReason::ProviderError);
                    self.bulk_failed(now_us, tag, &error);
                }
                Done::ReceiveFailed => self.count_bulk(index, DropReason::ReceiveError),
                Done::QueueFailed(_) => {
                    self.count_bulk(index, DropReason::ProviderError);
                    return false;
                }
            }
        }
        true
    }

    fn bulk_lane(&mut self, rail: usize) -> Option<&mut Lane> {
        self.rails.get_mut(rail)?.as_mut()?.bulk.as_mut()
    }

    pub(super) fn count_bulk(&mut self, rail: usize, reason: DropReason) {
        if let Some(rail) = &mut self.rails[rail] {
            rail.counters.count_drop(reason);
        }
    }

    /// Handles one frame that has arrived. Returns the message if it is complete now.
    fn bulk_received(
        &mut self,
        now_us: u64,
        index: usize,
        slot: usize,
        length: usize,
    ) -> Option<Vec<u8>> {
        let rail = self.rails[index].as_ref()?;
        let lane = rail.bulk.as_ref()?;
        if length > lane.message_max() {
            self.count_bulk(index, DropReason::ReceivedOversize);
            return None;
        }
        let own = rail.nid.socket_address();
        let key = self.config.key.as_ref()?;
        let is_own = |to| own == Some(to);
        let opened = Frame::open(key, is_own, lane.message(slot, length));
        let proven = opened.and_then(|(frame, bytes)| {
            let from = Nid::of(frame.sender, rail.nid.net);
            let handle = *self.owners.get(&from)?;
            let has_room = self.has_room_for(handle, &frame);
            has_room.then_some((handle, from, frame, bytes))
        });
        let Some((handle, from, frame, bytes)) = proven else {
            self.count_bulk(index, DropReason::BulkRefused);
            return None;
        };
        let peer = self.peers.get_mut(handle)?;
        let path = peer
            .paths
            .iter_mut()
            .find(|path| path.rail == index && path.nid == from)?;
        let last_session = &mut self.last_session;
        let new = || Box::new(PeerBulk::new(last_session));
        let bulk = peer.bulk.get_or_insert_with(new);
        let back = Back::Path(path.id);
        let FabricConfig {
            timeouts, health, ..
        } = &self.config;
        let health = Some((&mut path.bulk_health, health));
        let taken = bulk.take_frame(now_us, timeouts, health, back, frame, bytes);
        self.frame_taken(index, handle, taken)
    }

    /// Applies the result of a frame. Returns the message if it is complete now.
    pub(super) fn frame_taken(
        &mut self,
        rail: usize,
        handle: PeerHandle,
        taken: FrameTaken,
    ) -> Option<Vec<u8>> {
        if let Some(rail) = self.rails[rail].as_mut() {
            if taken.refused {
                rail.counters.count_drop(DropReason::BulkRefused);
            }
            if let Some((_, _, bytes)) = &taken.whole {
                rail.counters.count_receive(bytes.len());
            }
        }
        self.bulk_ended(handle, taken.urgent, taken.due);
        self.note_bulk_change(taken.change);
        if taken.queues_ack {
            self.note_bulk(handle);
        }
        let (frame, path, bytes) = taken.whole?;
        self.open_request(rail, handle, &frame, path, bytes)
    }

    /// Whether there is memory for the message that a frame begins, if it begins one.
    pub(super) fn has_room_for(&self, handle: PeerHandle, frame: &Frame) -> bool {
        let bulk_of = |handle: &PeerHandle| self.peers.get(*handle)?.bulk.as_deref();
        let own = bulk_of(&handle).map(|bulk| bulk.receiver(frame.urgent));
        let begins = |receiver: &Receiver| receiver.begins(frame.stamp.session, frame.fragment);
        if frame.kind != Kind::Fragment || !own.is_none_or(begins) {
            return true;
        }
        let streams = self.bulk_peers.iter().filter_map(bulk_of);
        let streams = streams.flat_map(PeerBulk::streams);
        let held: usize = streams.map(|stream| stream.receiver.held()).sum();
        // The memory of the message that it replaces is freed.
        held - own.map_or(0, Receiver::held) + frame.fragment.length as usize <= HELD_BYTES_MAX
    }

    /// Notes that a send is not under way any more.
    fn bulk_sent(&mut self, tag: SendTag) {
        let handle = tag.peer();
        if let Some(path) = self.peers.path_by_id(handle, tag.path) {
            path.bulk_sends = path.bulk_sends.saturating_sub(1);
        }
    }

    pub(super) fn bulk_ended(&mut self, peer: PeerHandle, urgent: bool, due: Option<Due>) {
        let Some(due) = due.filter(|due| !matches!(due, Due::Again(_))) else {
            return;
        };
        let reply_us = self.now_us.saturating_add(self.config.timeouts.reply_us);
        let mut ended = (Vec::new(), Vec::new());
        if let Some(bulk) = self.bulk_of(peer) {
            ended = bulk.stream(urgent).end(due);
            match due {
                Due::GivenUp(message) => bulk.gets.end(message),
                Due::Done(message) | Due::Sent(message) | Due::Again(message) => {
                    bulk.gets.sent(message, reply_us);
                }
            }
        }
        let event = match due {
            Due::Done(message) | Due::Again(message) => FabricEvent::BulkDone { peer, message },
            Due::Sent(message) => FabricEvent::BulkSent { peer, message },
            Due::GivenUp(message) => FabricEvent::BulkFailed {
                peer,
                message,
                tried: self.pairs_of(peer, &ended.0),
                through: self.first_nids(&ended.1),
            },
        };
        self.push_event(event);
    }

    /// The pairs of these paths, as far as they still exist.
    fn pairs_of(&self, peer: PeerHandle, paths: &[u32]) -> Vec<(Nid, Nid)> {
        let known = self.peers.get(peer).map_or(&[][..], |peer| &peer.paths);
        let by_id = |id: &u32| known.iter().find(|path| path.id == *id);
        let found = paths.iter().filter_map(by_id);
        found.filter_map(|path| self.pair_of(path)).collect()
    }

    /// The first NIDs of these peers, as far as they are still known.
    fn first_nids(&self, peers: &[PeerHandle]) -> Vec<Nid> {
        let known = peers.iter().filter_map(|peer| self.peers.get(*peer));
        known.map(|peer| peer.nids.as_slice()[0].clone()).collect()
    }

    /// Handles a send that the provider took and failed later.
    fn bulk_failed(&mut self, now_us: u64, tag: SendTag, error: &CallError) {
        let handle = tag.peer();
        let health = self.config.health;
        let Some(path) = self.peers.path_by_id(handle, tag.path) else {
            return;
        };
        path.counters.count_drop(DropReason::ProviderError);
        let outcome = Outcome::of_code(error.code);
        let change = path.bulk_health.tell(now_us, outcome, &health);
        let reason = DropReason::ProviderError;
        self.leave_path(handle, |_, path| path.id == tag.path, reason);
        self.note_bulk_change(change);
    }

    /// Notes a change of a path's health. Several paths together may show a fault of a rail.
    pub(super) fn note_bulk_change(&mut self, change: Option<HealthChange>) {
        self.rails_in_doubt |= change.is_some();
    }

    /// Compares the rails, once for all changes.
    fn check_bulk_rails(&mut self) {
        if std::mem::take(&mut self.rails_in_doubt) {
            self.find_bulk_receive_failing_rails();
        }
    }
}
