//! The bulk lane at work: one connection-oriented endpoint a rail, for messages over the datagram limit.
//!
//! Nothing of it exists before [`Fabric::open_bulk`]: its buffers and those of its providers are by far
//! the largest that a fabric has. Whoever wants to receive opens it too. It listens at the port of the
//! rail's NID, which is free for it, since the providers speak TCP where datagrams are UDP.

use super::Fabric;
use crate::bulk::{Due, Frame, HEADER_BYTES, Receiver, Sender, Taken};
use crate::error::OpenError;
use crate::nid::{Address, Nid};
use crate::peer::{Peer, PeerHandle};
use crate::provider::{Done, Lane, Posted, Refused, SendTag};
use crate::rail::{self, Rail};
use crate::select::{Choice, Tried};
use crate::stats::DropReason;
use crate::transport::{Arrival, FabricEvent, Route};
use std::net::SocketAddrV4;

/// Completions of one bulk lane that one poll handles at most.
const POLL_BUDGET: usize = 32;

/// How soon a provider that said "not now" is asked again; twice as late each time, up to a limit.
const PAUSE_MIN_US: u64 = 1_000;
const PAUSE_MAX_US: u64 = 50_000;

/// A message that was begun and does not grow is dropped after this.
const ASSEMBLY_US: u64 = 10_000_000;

/// What is kept for a peer that bulk messages go to or come from.
#[derive(Debug, Default)]
pub(crate) struct PeerBulk {
    sender: Sender,
    receiver: Receiver,
    /// The path of the message under way, and those that were in vain for it.
    choice: Option<Choice>,
    tried: Tried,
    /// An acknowledgement that is owed: by which path (its number), of what.
    owed: Option<(u32, Frame)>,
    pause_us: u64,
    next_us: u64,
}

impl PeerBulk {
    fn is_idle(&self) -> bool {
        self.owed.is_none() && self.sender.timeout().is_none() && !self.receiver.is_busy()
    }

    /// Not now: later, and ever later.
    fn put_off(&mut self, now_us: u64) {
        self.pause_us = (2 * self.pause_us).clamp(PAUSE_MIN_US, PAUSE_MAX_US);
        self.next_us = now_us + self.pause_us;
    }

    fn went_on(&mut self) {
        self.pause_us = 0;
        self.next_us = 0;
    }
}

impl Fabric {
    /// Opens the bulk lane of every rail that has none yet. The descriptors to wait for are others
    /// from then on.
    ///
    /// # Errors
    /// See [`OpenError`]; lanes that were opened before the failing one stay open.
    pub fn open_bulk(&mut self) -> Result<(), OpenError> {
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
        let has_lane = |path: &&crate::peer::Path| {
            self.rails[path.rail]
                .as_ref()
                .is_some_and(|rail| rail.bulk.is_some())
        };
        if !peer.paths.iter().any(|path| has_lane(&path)) {
            return Err(DropReason::NoPath);
        }
        let bulk = peer.bulk.get_or_insert_with(Default::default);
        let id = bulk.sender.push(now_us, bytes)?;
        self.note_bulk(handle);
        self.pump_bulk(now_us);
        Ok(id)
    }

    fn note_bulk(&mut self, handle: PeerHandle) {
        if !self.bulk_peers.contains(&handle) {
            self.bulk_peers.push(handle);
        }
    }

    /// Whether bulk messages are under way.
    pub(super) fn has_bulk(&self) -> bool {
        !self.bulk_peers.is_empty()
    }

    /// When bulk messages need another look.
    pub(super) fn bulk_timeout(&self) -> Option<u64> {
        let of_peer = |handle: &PeerHandle| {
            let bulk = self.peers.get(*handle)?.bulk.as_ref()?;
            let retry_us = bulk.sender.timeout();
            let put_off = (bulk.next_us > 0).then_some(bulk.next_us);
            let assembly = bulk.receiver.is_busy().then_some(self.now_us + ASSEMBLY_US);
            [retry_us, put_off, assembly].into_iter().flatten().min()
        };
        self.bulk_peers.iter().filter_map(of_peer).min()
    }

    /// Handles what the bulk lanes have, a bounded amount; says whether there may be more.
    pub(super) fn poll_bulk(&mut self, now_us: u64, deliver: &mut dyn FnMut(Arrival<'_>)) -> bool {
        let mut more = false;
        for rail in 0..self.rails.len() {
            more |= self.poll_bulk_lane(now_us, rail, deliver);
        }
        if !self.bulk_peers.is_empty() {
            self.pump_bulk(now_us);
        }
        more
    }

    fn poll_bulk_lane(
        &mut self,
        now_us: u64,
        index: usize,
        deliver: &mut dyn FnMut(Arrival<'_>),
    ) -> bool {
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
                    let whole = self.bulk_received(now_us, index, slot, length);
                    if let Some(lane) = self.bulk_lane(index) {
                        lane.repost(slot);
                    }
                    if let Some(bytes) = whole {
                        deliver(Arrival {
                            rail: index,
                            bytes: &bytes,
                        });
                    }
                }
                // Sent means copied; what failed is not acknowledged, and sent again.
                Done::Sent(_) => {}
                Done::SendFailed(..) => self.count_bulk(index, DropReason::ProviderError),
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
        let rail = self.rails[index].as_mut()?;
        let Rail {
            bulk,
            counters,
            nid,
            ..
        } = rail;
        let lane = bulk.as_mut()?;
        if length > lane.message_max() {
            counters.count_drop(DropReason::ReceivedOversize);
            return None;
        }
        let Some((frame, bytes)) = Frame::read(lane.message(slot, length)) else {
            counters.count_drop(DropReason::BulkRefused);
            return None;
        };
        let from = Nid {
            address: Address::Ip(*frame.sender.ip()),
            port: frame.sender.port(),
            net: nid.net,
        };
        let owner = self.owners.get(&from).copied();
        let known = owner.and_then(|handle| Some((handle, self.peers.get_mut(handle)?)));
        let Some((handle, peer)) = known else {
            counters.count_drop(DropReason::BulkRefused);
            return None;
        };
        let path = peer
            .paths
            .iter()
            .find(|path| path.rail == index && path.nid == from)?
            .id;
        let peer_bulk = peer.bulk.get_or_insert_with(Default::default);
        if let Some(bits) = frame.acked {
            // An acknowledgement of an earlier life of ours says nothing.
            if frame.stream == self.config.incarnation {
                let due = peer_bulk.sender.acked(now_us, frame.fragment.message, bits);
                peer_bulk.went_on();
                self.bulk_ended(handle, due);
            }
            return None;
        }
        let taken = peer_bulk
            .receiver
            .take(now_us, frame.stream, frame.fragment, bytes);
        let Taken::Acked { bits, whole } = taken else {
            counters.count_drop(DropReason::BulkRefused);
            return None;
        };
        let acked = Frame {
            acked: Some(bits),
            ..frame
        };
        peer_bulk.owed = Some((path, acked));
        if let Some(bytes) = &whole {
            counters.count_receive(bytes.len());
        }
        self.note_bulk(handle);
        whole
    }

    fn bulk_ended(&mut self, peer: PeerHandle, due: Option<Due>) {
        let event = match due {
            Some(Due::Done(message)) => FabricEvent::BulkDone { peer, message },
            Some(Due::GivenUp(message)) => FabricEvent::BulkFailed { peer, message },
            Some(Due::Again(_)) | None => return,
        };
        if let Some(bulk) = self.peers.get_mut(peer).and_then(|peer| peer.bulk.as_mut()) {
            bulk.choice = None;
            bulk.tried = Tried::default();
        }
        self.push_event(event);
    }

    /// Sends what may be sent: to each peer what is owed to it, then what the window has room for.
    fn pump_bulk(&mut self, now_us: u64) {
        for handle in std::mem::take(&mut self.bulk_peers) {
            let Some(bulk) = self
                .peers
                .get_mut(handle)
                .and_then(|peer| peer.bulk.as_mut())
            else {
                continue;
            };
            bulk.receiver.drop_older(now_us.saturating_sub(ASSEMBLY_US));
            let due = bulk.sender.tick(now_us);
            if matches!(due, Some(Due::Again(_))) {
                // No word by this path: the next one, if there is another.
                let reason = DropReason::ProviderError;
                let choice = bulk.choice.take();
                choice
                    .into_iter()
                    .for_each(|choice| bulk.tried.note(choice, reason));
                bulk.went_on();
            }
            self.bulk_ended(handle, due);
            self.pump_peer(now_us, handle);
            let peer = self.peers.get(handle).and_then(|peer| peer.bulk.as_ref());
            if peer.is_some_and(|bulk| !bulk.is_idle()) {
                self.note_bulk(handle);
            }
        }
    }

    fn pump_peer(&mut self, now_us: u64, handle: PeerHandle) {
        let waits = |peer: &Peer| peer.bulk.as_ref().is_none_or(|bulk| bulk.next_us > now_us);
        if self.peers.get(handle).is_none_or(waits) {
            return;
        }
        if self.pay_owed(now_us, handle).is_err() {
            return;
        }
        while let Some(choice) = self.bulk_choice(now_us, handle) {
            let Some(peer) = self.peers.get_mut(handle) else {
                return;
            };
            let Peer { paths, bulk, .. } = peer;
            let (Some(bulk), Some(path)) = (bulk, paths.get_mut(usize::from(choice.path))) else {
                return;
            };
            let Some((fragment, bytes)) = bulk.sender.next() else {
                return;
            };
            let Some(rail) = &mut self.rails[path.rail] else {
                return;
            };
            let frame = Frame {
                sender: rail
                    .nid
                    .socket_address()
                    .expect("an open rail has an address"),
                stream: self.config.incarnation,
                fragment,
                acked: None,
            };
            match post(rail, &mut path.bulk_address, &path.nid, &frame, bytes) {
                Ok(()) => {
                    path.counters.count_send(bytes.len());
                    rail.counters.count_send(bytes.len());
                    bulk.sender.sent(fragment);
                    bulk.went_on();
                }
                Err(reason) => {
                    // "Not now" is no drop: nothing is lost but time.
                    if reason != DropReason::RailBusy {
                        path.counters.count_drop(reason);
                        rail.counters.count_drop(reason);
                    }
                    bulk.put_off(now_us);
                    return;
                }
            }
        }
    }

    /// Sends an acknowledgement that is owed. An error: not now.
    fn pay_owed(&mut self, now_us: u64, handle: PeerHandle) -> Result<(), ()> {
        let Some(Peer {
            paths,
            bulk: Some(bulk),
            ..
        }) = self.peers.get_mut(handle)
        else {
            return Ok(());
        };
        let Some((path, frame)) = bulk.owed.take() else {
            return Ok(());
        };
        let Some(path) = paths.iter_mut().find(|one| one.id == path) else {
            return Ok(());
        };
        let Some(rail) = &mut self.rails[path.rail] else {
            return Ok(());
        };
        let own = rail
            .nid
            .socket_address()
            .expect("an open rail has an address");
        let answer = Frame {
            sender: own,
            ..frame
        };
        let posted = post(rail, &mut path.bulk_address, &path.nid, &answer, &[]);
        if posted == Err(DropReason::RailBusy) {
            bulk.owed = Some((path.id, frame));
            bulk.put_off(now_us);
            return Err(());
        }
        Ok(())
    }

    /// The path of the message under way: the same for all of it, until it is to be sent again.
    fn bulk_choice(&mut self, now_us: u64, handle: PeerHandle) -> Option<Choice> {
        let bulk = self.peers.get(handle)?.bulk.as_ref()?;
        bulk.sender.next()?;
        if bulk.choice.is_some() {
            return bulk.choice;
        }
        let tried = bulk.tried;
        let first = |selection: crate::select::Selection| selection.choices().first().copied();
        let mut choice = first(self.select_paths(now_us, handle, Route::Next, &tried));
        let anew = choice.is_none();
        if anew {
            // All were tried: from the beginning.
            choice = first(self.select_paths(now_us, handle, Route::Next, &Tried::default()));
        }
        let bulk = self.peers.get_mut(handle)?.bulk.as_mut()?;
        if anew {
            bulk.tried = Tried::default();
        }
        bulk.choice = choice;
        choice
    }
}

/// Hands one frame to a rail's bulk lane.
fn post(
    rail: &mut Rail,
    address: &mut Option<u64>,
    to: &Nid,
    frame: &Frame,
    bytes: &[u8],
) -> Result<(), DropReason> {
    let lane = rail.bulk.as_mut().ok_or(DropReason::NoPath)?;
    let address = match *address {
        Some(address) => address,
        None => {
            let to: Option<SocketAddrV4> = to.socket_address();
            let inserted = lane.insert(to.ok_or(DropReason::NoPath)?);
            *address.insert(inserted.map_err(|_| DropReason::ProviderError)?)
        }
    };
    let mut message = vec![0; HEADER_BYTES + bytes.len()];
    let (header, rest) = message.split_first_chunk_mut().expect("room for a header");
    frame.write(header);
    rest.copy_from_slice(bytes);
    let sent = lane.send(address, SendTag::default(), &message);
    match sent.map_err(Refused::reason) {
        Ok(Posted::Done | Posted::UnderWay) => Ok(()),
        Err((reason, _)) => Err(reason),
    }
}
