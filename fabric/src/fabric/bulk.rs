//! The state of bulk messages, and the handling of frames that arrive: one connection-oriented endpoint per rail, for
//! messages over the datagram limit.
//!
//! Nothing of it exists before [`Fabric::open_bulk`], since its buffers and those of its providers are by far the
//! largest of a fabric. A receiver must call it too. The endpoint listens at the port of the rail's NID on udp nets:
//! the providers use TCP there, and datagrams UDP.

use super::Fabric;
use super::request::Gets;
use crate::bulk::{
    Due, Fragment, Frame, HELD_BYTES_MAX, Kind, Operation, Receiver, Sender, Session, Standing,
    Taken,
};
use crate::config::FabricConfig;
use crate::error::{CallError, OpenError};
use crate::health::{HealthChange, Outcome};
use crate::nid::{Address, Nid};
use crate::peer::{Path, PeerHandle};
use crate::provider::{Done, Lane, SendTag};
use crate::rail::{self, Rail};
use crate::select::{Choice, Tried};
use crate::stats::DropReason;
use crate::timeouts::Timeouts;
use crate::transport::{Arrival, FabricEvent};

/// The maximum of completions of one bulk lane that one poll handles.
const POLL_BUDGET: usize = 32;

/// The pause before a send is repeated that the provider refused with "try again". It doubles each time, up to the
/// limit.
const PAUSE_MIN_US: u64 = 1_000;
const PAUSE_MAX_US: u64 = 50_000;

/// Failed paths are probed for this long after the last message to or from the peer.
const PROBING_US: u64 = 60_000_000;

/// The two streams of messages to and from a peer, by whether they are urgent. Urgent messages overtake regular ones.
/// Messages of one stream stay in order.
pub(super) const STREAMS: [bool; 2] = [true, false];

/// The bulk state of a peer.
#[derive(Debug)]
pub(crate) struct PeerBulk {
    pub(super) session: Session,
    streams: [Stream; 2],
    pub(super) gets: Gets,
    /// Acknowledgements to be sent: at most one for each stream, path and carrier, and one more for a session of the
    /// peer that does not know ours.
    pub(super) acks: Vec<PendingAck>,
    /// The time of the last traffic.
    pub(super) used_us: u64,
    /// Whether the peer is in `bulk_peers`.
    noted: bool,
}

/// The messages of one urgency.
#[derive(Debug, Default)]
pub(crate) struct Stream {
    pub(super) sender: Sender,
    pub(super) receiver: Receiver,
    /// The path of the next fragment, from its choice until it has taken a fragment.
    pub(super) choice: Option<Choice>,
    /// `choice` is the path of the previous message, which is sent without acknowledgement and may be under way. By
    /// another path the next message could overtake it.
    pub(super) kept: bool,
    /// The same for the message under way, until a fragment of it is acknowledged.
    pub(super) follows: bool,
    /// Paths that failed for the message under way.
    pub(super) tried: Tried,
    /// The ids of failed paths whose replacement was not reported yet.
    pub(super) left: Vec<u32>,
    /// The member that carries the message instead, and those that failed to.
    pub(super) through: Option<PeerHandle>,
    pub(super) through_tried: Vec<PeerHandle>,
    /// The ids of the paths that the message under way has taken.
    pub(super) taken: Vec<u32>,
    /// The members that have carried it.
    pub(super) carriers: Vec<PeerHandle>,
    /// All paths were tried and the timer has expired: start again with all paths.
    pub(super) retry_all: bool,
    pause_us: u64,
    pub(super) next_us: u64,
}

/// An acknowledgement that the path back has not taken yet.
#[derive(Debug)]
pub(super) struct PendingAck {
    pub(super) back: Back,
    /// Its stamp is that of the frame that it answers.
    pub(super) frame: Frame,
    /// It only announces this node's session.
    pub(super) introduces: bool,
    pub(super) next_us: u64,
    pub(super) pause_us: u64,
}

/// The path of an acknowledgement: that of its fragment, in reverse.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Back {
    /// By a path, by its id.
    Path(u32),
    /// Through another member.
    Through(PeerHandle),
}

/// The result of a frame.
#[derive(Debug, Default)]
pub(super) struct FrameTaken {
    urgent: bool,
    due: Option<Due>,
    change: Option<HealthChange>,
    /// An acknowledgement is queued now.
    queues_ack: bool,
    /// The frame is new and for this session.
    pub(super) is_new: bool,
    refused: bool,
    /// A message that is complete now, with its last frame and the path of that; no path if another member carried
    /// it.
    whole: Option<(Frame, Option<u32>, Vec<u8>)>,
}

impl Stream {
    /// Waits before the next try; the pause doubles each time.
    pub(super) fn put_off(&mut self, now_us: u64) {
        self.pause_us = (2 * self.pause_us).clamp(PAUSE_MIN_US, PAUSE_MAX_US);
        self.next_us = now_us + self.pause_us;
    }

    pub(super) fn note_progress(&mut self) {
        self.pause_us = 0;
        self.next_us = 0;
    }

    /// Whether all fragments of the message under way have to take one path, as far as is known.
    pub(super) fn is_bound(&self, operation: Operation) -> bool {
        operation == Operation::PutUnacked || self.follows && !self.sender.has_acked()
    }

    pub(super) fn forget_choice(&mut self) {
        self.choice = None;
        self.kept = false;
        self.follows = false;
    }

    /// Notes the path of the message under way.
    pub(super) fn note_taken(&mut self, path: Option<u32>) {
        self.taken
            .extend(path.filter(|id| !self.taken.contains(id)));
    }

    /// Takes the message under way off its carrier. It continues by a path, if there is one.
    pub(super) fn leave_carrier(&mut self, now_us: u64) {
        if self.through.take().is_some() {
            self.through_tried.clear();
            self.sender.resend();
            self.pause_us = 0;
            self.next_us = now_us.max(1);
        }
    }

    /// The paths have changed: the message under way continues by any of them, now.
    fn reroute(&mut self, now_us: u64) {
        self.forget_choice();
        self.left.clear();
        self.tried = Tried::default();
        self.through = None;
        self.through_tried.clear();
        if self.sender.timeout().is_some() {
            self.sender.resend();
            self.pause_us = 0;
            self.next_us = now_us.max(1);
        }
    }

    /// Ends the message under way. Returns the paths that it took and the members that carried it.
    fn end(&mut self, due: Due) -> (Vec<u32>, Vec<PeerHandle>) {
        self.tried = Tried::default();
        self.through = None;
        self.through_tried.clear();
        self.follows = false;
        self.left.clear();
        self.kept = matches!(due, Due::Sent(_)) && self.choice.is_some();
        if !self.kept {
            self.choice = None;
        }
        let (paths, carriers) = (&mut self.taken, &mut self.carriers);
        (std::mem::take(paths), std::mem::take(carriers))
    }

    /// When it has something to do; none if nothing is under way.
    fn timeout(&self, used_us: u64, config: &FabricConfig) -> Option<u64> {
        let put_off = (self.next_us > 0).then_some(self.next_us);
        let is_busy = self.receiver.is_busy();
        let assembly = is_busy.then_some(used_us.saturating_add(config.timeouts.reply_us));
        let all = [self.sender.timeout(), put_off, assembly];
        all.into_iter().flatten().min()
    }
}

impl PeerBulk {
    /// With a new session, whose number follows the last one.
    pub(super) fn new(last_session: &mut u64) -> PeerBulk {
        *last_session = last_session.saturating_add(1);
        PeerBulk {
            session: Session::new(*last_session),
            streams: Default::default(),
            gets: Gets::default(),
            acks: Vec::new(),
            used_us: 0,
            noted: false,
        }
    }

    /// The session, and one of the streams.
    pub(super) fn parts(&mut self, urgent: bool) -> (&mut Session, &mut Stream) {
        (&mut self.session, &mut self.streams[usize::from(!urgent)])
    }

    /// The peer has begun a session that has no state of earlier ones.
    fn restart(&mut self, now_us: u64, timeouts: &Timeouts) {
        for stream in &mut self.streams {
            stream.sender.restart(now_us, timeouts);
            stream.note_progress();
        }
    }

    pub(super) fn stream(&mut self, urgent: bool) -> &mut Stream {
        &mut self.streams[usize::from(!urgent)]
    }

    /// Both streams.
    pub(super) fn streams(&self) -> impl Iterator<Item = &Stream> {
        self.streams.iter()
    }

    /// The paths have changed: messages under way continue by any of them, now.
    pub(crate) fn reroute(&mut self, now_us: u64) {
        for stream in &mut self.streams {
            stream.reroute(now_us);
        }
    }

    /// Whether an urgent message waits for its lane.
    pub(super) fn urgent_waits(&self, now_us: u64) -> bool {
        let [urgent, _] = &self.streams;
        urgent.next_us > now_us && urgent.sender.next().is_some()
    }

    /// Makes regular messages wait for urgent ones that take the same lane. Returns whether they wait.
    pub(super) fn hold_regular(&mut self, now_us: u64, timeouts: &Timeouts) -> bool {
        let waits = self.urgent_waits(now_us);
        let [urgent, regular] = &mut self.streams;
        let rails = urgent.choice.zip(regular.choice);
        // A carrier may use one lane for both.
        let waits = waits && rails.is_none_or(|(one, other)| one.rail == other.rail);
        if waits && regular.sender.next().is_some() {
            regular.next_us = regular.next_us.max(urgent.next_us);
            regular.sender.hold(now_us, timeouts);
        }
        waits
    }

    /// Queues an acknowledgement. It replaces the one that was queued there, since it covers more.
    fn queue_ack(&mut self, back: Back, frame: Frame, introduces: bool) {
        let of = |ack: &PendingAck| (ack.back, ack.frame.urgent, ack.introduces);
        let is_same = |ack: &PendingAck| of(ack) == (back, frame.urgent, introduces);
        self.acks.retain(|ack| !is_same(ack));
        self.acks.push(PendingAck {
            back,
            frame,
            introduces,
            next_us: 0,
            pause_us: PAUSE_MIN_US,
        });
    }

    /// When it has something to do; none if nothing is under way.
    fn timeout(&self, paths: &[Path], config: &FabricConfig) -> Option<u64> {
        let of_stream = |stream: &Stream| stream.timeout(self.used_us, config);
        let streams = self.streams().filter_map(of_stream).min();
        let acks = self.acks.iter().map(|ack| ack.next_us).min();
        let probes = paths
            .iter()
            .filter_map(|path| path.bulk_health.probe_at(&config.health));
        let until_us = self.used_us + PROBING_US;
        let probe = probes.min().filter(|probe_us| *probe_us < until_us);
        [streams, acks, self.gets.timeout(), probe]
            .into_iter()
            .flatten()
            .min()
    }
}

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
                for stream in &mut bulk.streams {
                    self.bulk_unfinished += std::mem::take(&mut stream.receiver.dropped);
                }
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
        bulk.timeout(&peer.paths, &self.config)
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
            let Some(done) = lane.next() else {
                return false;
            };
            match done {
                Done::Received { slot, length } => {
                    let envelope = lane.envelope(slot, length);
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
            let from = Nid {
                address: Address::Ip(*frame.sender.ip()),
                port: frame.sender.port(),
                net: rail.nid.net,
            };
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
        let taken = take_frame(&self.config, now_us, bulk, Some(path), back, frame, bytes);
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
        let own = bulk_of(&handle).map(|bulk| &bulk.streams[usize::from(!frame.urgent)].receiver);
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

/// Takes a frame of a peer, which arrived by a path or through another member.
pub(super) fn take_frame(
    config: &FabricConfig,
    now_us: u64,
    bulk: &mut PeerBulk,
    path: Option<&mut Path>,
    back: Back,
    frame: Frame,
    bytes: &[u8],
) -> FrameTaken {
    let mut taken = FrameTaken {
        urgent: frame.urgent,
        ..FrameTaken::default()
    };
    match bulk.session.take(frame.stamp) {
        Standing::New => {}
        Standing::Began => bulk.restart(now_us, &config.timeouts),
        // Unless the frame is a recording, its sender needs the number of this session.
        Standing::Elsewhere if !matches!(frame.kind, Kind::Acked(_)) => {
            let kind = Kind::Acked(0);
            let fragment = NO_FRAGMENT;
            let answer = Frame {
                kind,
                fragment,
                ..frame
            };
            bulk.queue_ack(back, answer, true);
            (taken.queues_ack, taken.refused) = (true, frame.kind == Kind::Fragment);
            return taken;
        }
        Standing::Elsewhere | Standing::Repeated => {
            taken.refused = true;
            return taken;
        }
    }
    taken.is_new = true;
    let stream = bulk.stream(frame.urgent);
    let bits = match frame.kind {
        Kind::Acked(bits) => {
            // Whatever the acknowledgement is for, this path works in both directions.
            let health = &config.health;
            taken.change =
                path.and_then(|path| path.bulk_health.tell(now_us, Outcome::Success, health));
            let message = frame.fragment.message;
            taken.due = stream.sender.acked(now_us, message, bits, &config.timeouts);
            stream.note_progress();
            bulk.used_us = now_us;
            return taken;
        }
        Kind::Probe => 0,
        Kind::Fragment => {
            match stream
                .receiver
                .take(now_us, frame.stamp.session, frame.fragment, bytes)
            {
                Taken::Acked { bits, whole } => {
                    let path = match back {
                        Back::Path(id) => Some(id),
                        Back::Through(_) => None,
                    };
                    taken.whole = whole.map(|bytes| (frame, path, bytes));
                    bits
                }
                // A later message has overtaken it. It never arrived completely, and is not delivered any more.
                Taken::Past { .. } if frame.operation == Operation::PutUnacked => {
                    taken.refused = true;
                    return taken;
                }
                // It has arrived before, and its acknowledgement was lost.
                Taken::Past { bits } => bits,
                Taken::Stale | Taken::Malformed => {
                    taken.refused = true;
                    return taken;
                }
            }
        }
    };
    bulk.used_us = now_us;
    if frame.operation != Operation::PutUnacked {
        let kind = Kind::Acked(bits);
        bulk.queue_ack(back, Frame { kind, ..frame }, false);
    }
    taken.queues_ack = true;
    taken
}

/// The fragment field of a frame that carries none.
pub(super) const NO_FRAGMENT: Fragment = Fragment {
    message: 0,
    length: 0,
    index: 0,
};
