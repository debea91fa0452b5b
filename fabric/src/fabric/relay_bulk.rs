//! Bulk messages through others: fragments and their acknowledgements in envelopes on the bulk lanes.
//!
//! The carrier keeps nothing of a message; its sender and its receiver do all that they do on a direct
//! path: what is not acknowledged is sent again, another way. Only what the next lane does not take at
//! once waits here, a moment, since a connection that was never used takes that long to be made.

use super::Fabric;
use super::bulk::{Back, take_frame};
use super::pump::{own_address, post_message};
use super::relay::Outcome;
use crate::bulk::{Frame, Kind};
use crate::peer::PeerHandle;
use crate::relay::{ENVELOPE_BYTES, Envelope, LATE_MAX, LATE_US, mark_carried};
use crate::select::Tried;
use crate::stats::DropReason;
use crate::transport::Relayed;
use std::net::{Ipv4Addr, SocketAddrV4};

/// How soon a busy lane is tried again.
const PAUSE_US: u64 = 1_000;

/// Filled in when the rail is known.
const NO_SENDER: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0);

/// An envelope that waits for the lane on which it is to be carried on.
#[derive(Debug)]
pub(crate) struct Late {
    /// The rail that it came by.
    rail: usize,
    from: PeerHandle,
    to: PeerHandle,
    bytes: Vec<u8>,
    next_us: u64,
    until_us: u64,
}

impl Fabric {
    /// A member that can carry bulk messages to a peer, of those that were not tried in vain.
    pub(super) fn bulk_carrier(&mut self, now_us: u64, handle: PeerHandle) -> Option<PeerHandle> {
        if !self.config.relay {
            return None;
        }
        self.seek_ways(now_us, handle);
        let mut tried = self.peers.get(handle)?.bulk.as_ref()?.through_tried.clone();
        // Each turn leaves one out, and there are few.
        while let Some(by) = self.carriers(now_us, handle, &tried)[0] {
            let path = self.choose_bulk(by, Tried::default());
            if path.is_some_and(|(_, works)| works) {
                return Some(by);
            }
            tried.push(by);
        }
        None
    }

    /// Sends the next fragment through another member. False if there is nothing more to do now.
    pub(super) fn pump_through(&mut self, now_us: u64, handle: PeerHandle, by: PeerHandle) -> bool {
        let peer = self.peers.get(handle);
        let bulk = peer.and_then(|peer| peer.bulk.as_ref());
        let Some((fragment, bytes)) = bulk.and_then(|bulk| bulk.sender.next()) else {
            return false;
        };
        let bytes = bytes.to_vec();
        let frame = Frame {
            sender: NO_SENDER,
            stream: self.config.incarnation,
            fragment,
            kind: Kind::Fragment,
        };
        let posted = self.post_through(handle, by, frame, &bytes);
        let peer = self.peers.get_mut(handle);
        let Some(bulk) = peer.and_then(|peer| peer.bulk.as_mut()) else {
            return false;
        };
        match posted {
            Ok(()) => {
                bulk.sender.sent(fragment);
                bulk.went_on();
            }
            Err(DropReason::RailBusy) => {
                bulk.put_off(now_us);
                return false;
            }
            Err(_) => {
                bulk.through_tried.extend(bulk.through.take());
                bulk.sender.resend();
            }
        }
        true
    }

    /// Hands a frame for a peer to the member that carries it there. Its sender is filled in.
    pub(super) fn post_through(
        &mut self,
        to: PeerHandle,
        by: PeerHandle,
        frame: Frame,
        bytes: &[u8],
    ) -> Result<(), DropReason> {
        let path = self.choose_bulk(by, Tried::default());
        let (choice, _) = path.ok_or(DropReason::NoPath)?;
        let path = usize::from(choice.path);
        // That it came this way is said by itself; whether we hear the peer is for datagrams to say.
        let envelope = self.envelope(to, by, path, false);
        let envelope = envelope.ok_or(DropReason::NoPath)?;
        let rail = self.rails[usize::from(choice.rail)].as_ref();
        let sender = own_address(rail.ok_or(DropReason::NoPath)?);
        let at = envelope.to.socket_address();
        let (key, at) = self.config.key.as_ref().zip(at).ok_or(DropReason::NoPath)?;
        let proven = Frame { sender, ..frame }.seal(key, at, bytes);
        let sealed = envelope.seal(&[&proven]);
        let sealed = sealed.ok_or(DropReason::NoPath)?;
        self.post_bulk(by, path, &sealed)?;
        self.count_way(to, by, bytes.len());
        Ok(())
    }

    /// Hands a whole message to the bulk lane of a path. What is refused is counted, but for "not now".
    fn post_bulk(
        &mut self,
        handle: PeerHandle,
        path: usize,
        message: &[u8],
    ) -> Result<(), DropReason> {
        let peer = self.peers.get_mut(handle);
        let path = peer.and_then(|peer| peer.paths.get_mut(path));
        let path = path.ok_or(DropReason::UnknownPeer)?;
        let rail = self.rails[path.rail].as_mut().ok_or(DropReason::NoPath)?;
        let posted = post_message(rail, handle, path, message);
        posted.map_err(|(reason, _)| {
            if reason != DropReason::RailBusy {
                path.counters.count_drop(reason);
                rail.counters.count_drop(reason);
            }
            reason
        })
    }

    /// An envelope has come by a bulk lane: the message, if it was for us and is whole now.
    pub(super) fn bulk_envelope_came(
        &mut self,
        now_us: u64,
        rail: usize,
        mut bytes: Vec<u8>,
    ) -> (Option<Vec<u8>>, Option<Relayed>) {
        match self.sort(now_us, rail, &bytes) {
            Outcome::Dropped => (None, None),
            Outcome::Take(taken) => {
                let by = taken.relayed.by;
                let proven = self.open_carried(taken.from, &bytes);
                let known = self.peers.get_mut(taken.from);
                let (Some((frame, rest)), Some(peer)) = (proven, known) else {
                    self.count_relay_drop(rail, DropReason::BulkRefused);
                    return (None, None);
                };
                // It works both ways, as far as anybody knows.
                peer.relay.heard_through(now_us, by, false);
                let bulk = peer.bulk.get_or_insert_with(Default::default);
                let back = Back::Through(by);
                let done = take_frame(&self.config, now_us, bulk, None, back, frame, rest);
                let whole = self.frame_taken(rail, taken.from, done);
                (whole, Some(taken.relayed))
            }
            Outcome::Carry { from, to } => {
                mark_carried(&mut bytes);
                let late = Late {
                    rail,
                    from,
                    to,
                    bytes,
                    next_us: now_us,
                    until_us: now_us + LATE_US,
                };
                if let Some(late) = self.carry_bulk(now_us, late) {
                    if self.carrier.late.len() < LATE_MAX {
                        self.carrier.late.push_back(late);
                    } else {
                        self.count_relay_drop(rail, DropReason::RelayNoPath);
                    }
                }
                (None, None)
            }
        }
    }

    /// The frame in an envelope that is for us, if it is proven, from whom the envelope says, and there is
    /// room for what it begins.
    fn open_carried<'a>(&self, from: PeerHandle, bytes: &'a [u8]) -> Option<(Frame, &'a [u8])> {
        let (envelope, message) = Envelope::open(bytes)?;
        let own = envelope.to.socket_address();
        let key = self.config.key.as_ref()?;
        let (frame, rest) = Frame::open(key, |to| own == Some(to), message)?;
        let is_from = envelope.from.socket_address() == Some(frame.sender);
        (is_from && self.has_room_for(from, &frame)).then_some((frame, rest))
    }

    /// Sends an envelope straight on; what the lane does not take now comes back.
    fn carry_bulk(&mut self, now_us: u64, late: Late) -> Option<Late> {
        let path = self.choose_bulk(late.to, Tried::default());
        let path = path.filter(|(_, works)| *works);
        let posted = match path {
            Some((choice, _)) => self.post_bulk(late.to, usize::from(choice.path), &late.bytes),
            None => Err(DropReason::RelayNoPath),
        };
        match posted {
            Ok(()) => {
                let length = late.bytes.len() - ENVELOPE_BYTES;
                let ends = [Some(late.from), None, Some(late.to)];
                self.carrier.carried.count(ends, length);
                None
            }
            Err(DropReason::RailBusy) if now_us < late.until_us => Some(Late {
                next_us: now_us + PAUSE_US,
                ..late
            }),
            Err(_) => {
                self.count_relay_drop(late.rail, DropReason::RelayNoPath);
                None
            }
        }
    }

    /// Tries again what waits to be carried on.
    pub(super) fn pump_late(&mut self, now_us: u64) {
        for _ in 0..self.carrier.late.len() {
            let Some(late) = self.carrier.late.pop_front() else {
                return;
            };
            let left = match late.next_us <= now_us {
                true => self.carry_bulk(now_us, late),
                false => Some(late),
            };
            self.carrier.late.extend(left);
        }
    }

    /// When that is due.
    pub(super) fn late_timeout(&self) -> Option<u64> {
        self.carrier.late.iter().map(|late| late.next_us).min()
    }
}
