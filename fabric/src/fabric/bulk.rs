//! The bulk lane at work: one connection-oriented endpoint a rail, for messages over the datagram limit.
//!
//! Nothing of it exists before [`Fabric::open_bulk`]: its buffers and those of its providers are by far
//! the largest that a fabric has. Whoever wants to receive opens it too. It listens at the port of the
//! rail's NID, which is free for it, since the providers speak TCP where datagrams are UDP.

use super::Fabric;
use crate::bulk::{Due, Fragment, Frame, HELD_BYTES_MAX, Kind, Receiver, Sender, Taken};
use crate::config::FabricConfig;
use crate::error::{CallError, OpenError};
use crate::health::{HealthChange, HealthConfig, Outcome};
use crate::nid::{Address, Nid};
use crate::peer::{Path, PeerHandle};
use crate::provider::{Done, Lane, SendTag};
use crate::rail::{self, Rail};
use crate::select::{Choice, Tried};
use crate::stats::DropReason;
use crate::transport::{Arrival, FabricEvent};

/// Completions of one bulk lane that one poll handles at most.
const POLL_BUDGET: usize = 32;

/// How soon a provider that said "not now" is asked again; twice as late each time, up to a limit.
const PAUSE_MIN_US: u64 = 1_000;
const PAUSE_MAX_US: u64 = 50_000;

/// Paths that do not work are asked after so long since the last message to the peer or from it.
const ASKING_US: u64 = 60_000_000;

/// What is kept for a peer that bulk messages go to or come from.
#[derive(Debug, Default)]
pub(crate) struct PeerBulk {
    pub(super) sender: Sender,
    pub(super) receiver: Receiver,
    /// The path of the message under way, and those that were in vain for it.
    pub(super) choice: Option<Choice>,
    pub(super) tried: Tried,
    /// The member that carries it instead, and those that did so in vain.
    pub(super) through: Option<PeerHandle>,
    pub(super) through_tried: Vec<PeerHandle>,
    /// Paths that the message under way has taken, by their numbers: what was tried for it.
    pub(super) taken: Vec<u32>,
    /// All paths were tried in vain, and the clock says: from the beginning.
    pub(super) anew: bool,
    /// Acknowledgements that are owed, at most one a path and carrier.
    pub(super) owed: Vec<Owed>,
    pause_us: u64,
    pub(super) next_us: u64,
    /// When there was traffic last.
    pub(super) used_us: u64,
    /// It is among those that need a look.
    noted: bool,
}

/// An acknowledgement that the path back did not take so far.
#[derive(Debug)]
pub(super) struct Owed {
    pub(super) back: Back,
    pub(super) frame: Frame,
    pub(super) next_us: u64,
    pub(super) pause_us: u64,
}

/// The way that an acknowledgement goes: the one that its fragment came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Back {
    /// By a path, by its number.
    Path(u32),
    /// Through another member.
    Through(PeerHandle),
}

/// What has come of a frame.
#[derive(Debug, Default)]
pub(super) struct FrameTaken {
    due: Option<Due>,
    change: Option<HealthChange>,
    /// Something is owed now.
    owes: bool,
    refused: bool,
    whole: Option<Vec<u8>>,
}

impl PeerBulk {
    /// Not now: later, and ever later.
    pub(super) fn put_off(&mut self, now_us: u64) {
        self.pause_us = (2 * self.pause_us).clamp(PAUSE_MIN_US, PAUSE_MAX_US);
        self.next_us = now_us + self.pause_us;
    }

    pub(super) fn went_on(&mut self) {
        self.pause_us = 0;
        self.next_us = 0;
    }

    /// The paths are others: the message under way goes on by any of them, now.
    pub(crate) fn choose_anew(&mut self, now_us: u64) {
        self.choice = None;
        self.tried = Tried::default();
        self.through = None;
        self.through_tried.clear();
        if self.sender.timeout().is_some() {
            self.sender.resend();
            self.pause_us = 0;
            self.next_us = now_us.max(1);
        }
    }

    /// Notes what is to be acknowledged that way; it says more than what was owed there before.
    fn owe(&mut self, back: Back, frame: Frame) {
        self.owed.retain(|owed| owed.back != back);
        self.owed.push(Owed {
            back,
            frame,
            next_us: 0,
            pause_us: PAUSE_MIN_US,
        });
    }

    /// When it needs a look; none if nothing is under way.
    fn timeout(&self, paths: &[Path], config: &FabricConfig) -> Option<u64> {
        let retry_us = self.sender.timeout();
        let put_off = (self.next_us > 0).then_some(self.next_us);
        let owed = self.owed.iter().map(|owed| owed.next_us).min();
        let assembly = self
            .receiver
            .is_busy()
            .then_some(self.used_us + config.timeouts.reply_us);
        let probes = paths
            .iter()
            .filter_map(|path| path.question_at(&config.health));
        let until_us = self.used_us + ASKING_US;
        let probe = probes.min().filter(|probe_us| *probe_us < until_us);
        [retry_us, put_off, owed, assembly, probe]
            .into_iter()
            .flatten()
            .min()
    }
}

impl Path {
    /// When the peer is to be asked whether this path works again.
    pub(super) fn question_at(&self, health: &HealthConfig) -> Option<u64> {
        let at_us = self.bulk_health.probe_at(health);
        at_us.filter(|_| self.bulk_address.is_some())
    }
}

impl Fabric {
    /// Opens the bulk lane of every rail that has none yet. The descriptors to wait for are others
    /// from then on.
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

    /// Takes a message of up to [`BULK_MESSAGE_MAX`](crate::BULK_MESSAGE_MAX) bytes to a peer; returns
    /// its number, which the event of its end will carry: [`FabricEvent::BulkDone`] when the peer has
    /// all of it, or [`FabricEvent::BulkFailed`].
    ///
    /// # Errors
    /// Why it was not taken; nothing of it was kept.
    pub fn send_bulk(
        &mut self,
        now_us: u64,
        handle: PeerHandle,
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
        let bulk = peer.bulk.get_or_insert_with(Default::default);
        let id = self.last_message + 1;
        let times = &self.config.timeouts;
        bulk.sender.push(now_us, id, bytes, times)?;
        self.last_message = id;
        bulk.used_us = now_us;
        self.note_bulk(handle);
        self.pump_bulk(now_us);
        self.judge_bulk();
        Ok(id)
    }

    /// Bulk messages that came in part, and never as a whole.
    #[must_use]
    pub fn bulk_unfinished(&self) -> u64 {
        self.bulk_unfinished
    }

    pub(super) fn note_bulk(&mut self, handle: PeerHandle) {
        let peer = self.peers.get_mut(handle);
        if let Some(bulk) = peer.and_then(|peer| peer.bulk.as_mut())
            && !std::mem::replace(&mut bulk.noted, true)
        {
            self.bulk_peers.push(handle);
        }
    }

    /// Looks no more after peers with whom nothing is under way.
    pub(super) fn leave_idle(&mut self) {
        let mut handles = std::mem::take(&mut self.bulk_peers);
        handles.retain(|handle| {
            let is_busy = self.peer_bulk_timeout(*handle).is_some();
            let peer = self.peers.get_mut(*handle);
            if let Some(bulk) = peer.and_then(|peer| peer.bulk.as_mut()) {
                bulk.noted = is_busy;
                self.bulk_unfinished += std::mem::take(&mut bulk.receiver.dropped);
            }
            is_busy
        });
        self.bulk_peers = handles;
    }

    /// Whether bulk messages are under way.
    pub(super) fn has_bulk(&self) -> bool {
        !self.bulk_peers.is_empty() || self.late_timeout().is_some()
    }

    /// When bulk messages need another look.
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

    /// Handles what the bulk lanes have, a bounded amount; says whether there may be more.
    pub(super) fn poll_bulk(&mut self, now_us: u64, deliver: &mut dyn FnMut(Arrival<'_>)) -> bool {
        let mut more = false;
        for rail in 0..self.rails.len() {
            more |= self.poll_bulk_lane(now_us, rail, deliver);
        }
        self.pump_late(now_us);
        if !self.bulk_peers.is_empty() {
            self.pump_bulk(now_us);
        }
        self.judge_bulk();
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
            // The rail's other lanes say the same of the device; of this lane it is told here.
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
                        Some(envelope) => self.bulk_envelope_came(now_us, index, envelope),
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
                // Sent means copied: only an acknowledgement counts.
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

    fn count_bulk(&mut self, rail: usize, reason: DropReason) {
        if let Some(rail) = &mut self.rails[rail] {
            rail.counters.count_drop(reason);
        }
    }

    /// One frame that came in; the message, if it is whole now.
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
        let bulk = peer.bulk.get_or_insert_with(Default::default);
        let back = Back::Path(path.id);
        let taken = take_frame(&self.config, now_us, bulk, Some(path), back, frame, bytes);
        self.frame_taken(index, handle, taken)
    }

    /// Does what follows from a frame; the message, if it is whole now.
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
            if let Some(bytes) = &taken.whole {
                rail.counters.count_receive(bytes.len());
            }
        }
        self.bulk_ended(handle, taken.due);
        self.note_bulk_change(taken.change);
        if taken.owes {
            self.note_bulk(handle);
        }
        taken.whole
    }

    /// Whether there is memory for the message that a frame begins, if it begins one.
    pub(super) fn has_room_for(&self, handle: PeerHandle, frame: &Frame) -> bool {
        let receiver = |handle: &PeerHandle| {
            let peer = self.peers.get(*handle)?;
            Some(&peer.bulk.as_ref()?.receiver)
        };
        let begins = |receiver: &Receiver| receiver.begins(frame.stream, frame.fragment);
        if frame.kind != Kind::Fragment || !receiver(&handle).is_none_or(begins) {
            return true;
        }
        let others = self.bulk_peers.iter().filter(|other| **other != handle);
        let held: usize = others.filter_map(receiver).map(Receiver::held).sum();
        held + frame.fragment.length as usize <= HELD_BYTES_MAX
    }

    /// A send is no longer under way.
    fn bulk_sent(&mut self, tag: SendTag) {
        let handle = PeerHandle {
            index: tag.peer,
            generation: tag.generation,
        };
        if let Some(path) = self.peers.path_by_id(handle, tag.path) {
            path.bulk_sends = path.bulk_sends.saturating_sub(1);
        }
    }

    pub(super) fn bulk_ended(&mut self, peer: PeerHandle, due: Option<Due>) {
        let Some(due) = due.filter(|due| !matches!(due, Due::Again(_))) else {
            return;
        };
        let bulk = self.peers.get_mut(peer).and_then(|peer| peer.bulk.as_mut());
        let taken = bulk.map_or_else(Vec::new, |bulk| {
            bulk.choice = None;
            bulk.tried = Tried::default();
            bulk.through = None;
            bulk.through_tried.clear();
            std::mem::take(&mut bulk.taken)
        });
        let event = match due {
            Due::Done(message) | Due::Again(message) => FabricEvent::BulkDone { peer, message },
            Due::GivenUp(message) => FabricEvent::BulkFailed {
                peer,
                message,
                tried: self.pairs_of(peer, &taken),
            },
        };
        self.push_event(event);
    }

    /// The pairs of these paths, as far as they are there still.
    fn pairs_of(&self, peer: PeerHandle, paths: &[u32]) -> Vec<(Nid, Nid)> {
        let known = self.peers.get(peer).map_or(&[][..], |peer| &peer.paths);
        let by_id = |id: &u32| known.iter().find(|path| path.id == *id);
        let found = paths.iter().filter_map(by_id);
        found.filter_map(|path| self.pair_of(path)).collect()
    }

    /// A send that was taken has failed after all.
    fn bulk_failed(&mut self, now_us: u64, tag: SendTag, error: &CallError) {
        let handle = PeerHandle {
            index: tag.peer,
            generation: tag.generation,
        };
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

    /// What several paths say together may say something about a rail.
    pub(super) fn note_bulk_change(&mut self, change: Option<HealthChange>) {
        self.rails_in_doubt |= change.is_some();
    }

    /// Says it, once for all that has changed.
    fn judge_bulk(&mut self) {
        if std::mem::take(&mut self.rails_in_doubt) {
            self.find_deaf_rails();
        }
    }
}

/// Takes a frame of a peer, which came by a path or through another member.
pub(super) fn take_frame(
    config: &FabricConfig,
    now_us: u64,
    bulk: &mut PeerBulk,
    path: Option<&mut Path>,
    back: Back,
    frame: Frame,
    bytes: &[u8],
) -> FrameTaken {
    let mut taken = FrameTaken::default();
    bulk.used_us = now_us;
    let bits = match frame.kind {
        Kind::Acked(bits) => {
            // Whatever it is about, this path works both ways.
            let health = &config.health;
            taken.change =
                path.and_then(|path| path.bulk_health.tell(now_us, Outcome::Success, health));
            // An acknowledgement of an earlier life of ours says nothing else.
            if frame.stream == config.incarnation {
                let message = frame.fragment.message;
                taken.due = bulk.sender.acked(now_us, message, bits, &config.timeouts);
                bulk.went_on();
            }
            return taken;
        }
        Kind::Question => 0,
        Kind::Fragment => match bulk
            .receiver
            .take(now_us, frame.stream, frame.fragment, bytes)
        {
            Taken::Acked { bits, whole } => {
                taken.whole = whole;
                bits
            }
            Taken::Stale | Taken::Malformed => {
                taken.refused = true;
                return taken;
            }
        },
    };
    let kind = Kind::Acked(bits);
    bulk.owe(back, Frame { kind, ..frame });
    taken.owes = true;
    taken
}

/// What a frame without a fragment says about one.
pub(super) const NO_FRAGMENT: Fragment = Fragment {
    message: 0,
    length: 0,
    index: 0,
};
