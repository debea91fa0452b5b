//! Relayed bulk messages: fragments and acknowledgements in envelopes on the bulk lanes.
//!
//! The carrier keeps no state of a message. Sender and receiver work as on a direct path: a fragment without an
//! acknowledgement is sent again, by another path. Only an envelope that the next lane does not take at once waits
//! here for a short time, since an unused connection takes that long to be made.

use super::Fabric;
use super::bulk_driver::{fragment_or_probe, own_address, post_message};
use super::relay::Outcome;
use crate::bulk::{Back, Frame, PeerBulk, STREAMS};
use crate::message::Relayed;
use crate::peer_handle::PeerHandle;
use crate::relay::{ENVELOPE_BYTES, Envelope, LATE_MAX, LATE_US, Late, mark_carried};
use crate::select::Tried;
use crate::stats::DropReason;

/// The pause before a busy lane is tried again.
const PAUSE_US: u64 = 1_000;

impl Fabric {
    /// A member that can carry bulk messages to a peer, except those that were tried.
    pub(super) fn bulk_carrier(
        &mut self,
        now_us: u64,
        handle: PeerHandle,
        mut tried: Vec<PeerHandle>,
    ) -> Option<PeerHandle> {
        if !self.config.relay {
            return None;
        }
        self.find_carriers(now_us, handle);
        // Each turn excludes one carrier, and there are few.
        while let Some(by) = self.carriers(now_us, handle, &tried)[0] {
            let path = self.choose_bulk(by, Tried::default(), None);
            if path.is_some_and(|(_, works)| works) {
                return Some(by);
            }
            tried.push(by);
        }
        None
    }

    /// Sends the next fragment through another member. Returns false if there is nothing more to do now.
    pub(super) fn send_through(
        &mut self,
        now_us: u64,
        handle: PeerHandle,
        urgent: bool,
        by: PeerHandle,
    ) -> bool {
        let Some(bulk) = self.bulk_of(handle) else {
            return false;
        };
        let (session, stream) = bulk.parts(urgent);
        let Some((fragment, operation, bytes)) = stream.sender.next() else {
            return false;
        };
        let is_probe = session.theirs() == 0;
        let stamp = session.stamp(session.theirs());
        let (frame, bytes) = fragment_or_probe(stamp, fragment, operation, urgent, bytes);
        let bytes = bytes.to_vec();
        let posted = self.post_through(handle, by, frame, &bytes);
        let times = self.config.timeouts;
        let Some(stream) = self.stream_of(handle, urgent) else {
            return false;
        };
        match posted {
            // The answer to the probe lets the message continue.
            Ok(()) if is_probe => {
                stream.put_off(now_us);
                return false;
            }
            Ok(()) => {
                let due = stream.sender.sent(now_us, fragment, None, &times);
                stream.note_progress();
                self.bulk_ended(handle, urgent, due);
            }
            Err(DropReason::RailBusy) => {
                stream.put_off(now_us);
                return false;
            }
            Err(_) => {
                stream.through_tried.extend(stream.through.take());
                stream.sender.resend();
            }
        }
        true
    }

    /// Hands a frame for a peer to the member that carries it. Fills in the frame's sender.
    pub(super) fn post_through(
        &mut self,
        to: PeerHandle,
        by: PeerHandle,
        frame: Frame,
        bytes: &[u8],
    ) -> Result<(), DropReason> {
        let path = self.choose_bulk(by, Tried::default(), None);
        let (choice, _) = path.ok_or(DropReason::NoPath)?;
        let path = usize::from(choice.path);
        // The receiver sees that the frame was relayed. Whether this node hears the peer directly is reported with
        // datagrams only.
        let envelope = self.envelope(to, by, path, false);
        let envelope = envelope.ok_or(DropReason::NoPath)?;
        let rail = self.rails[usize::from(choice.rail)].as_ref();
        let sender = own_address(rail.ok_or(DropReason::NoPath)?);
        let at = envelope.to.socket_address();
        let (key, at) = self.config.key.as_ref().zip(at).ok_or(DropReason::NoPath)?;
        let proven = Frame { sender, ..frame }.seal(key, at, bytes);
        let sealed = envelope.seal(key, &[&proven]);
        let sealed = sealed.ok_or(DropReason::NoPath)?;
        self.post_bulk(by, path, &sealed)?;
        self.count_way(to, by, bytes.len());
        Ok(())
    }

    /// Hands a sealed message to the bulk lane of a path. A refusal is counted, except "try again".
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
        let posted = post_message(self.now_us, rail, handle, path, message);
        match &posted {
            Ok(()) => {
                path.counters.count_send(message.len());
                rail.counters.count_send(message.len());
            }
            Err((DropReason::RailBusy, _)) => {}
            Err((reason, _)) => {
                path.counters.count_drop(*reason);
                rail.counters.count_drop(*reason);
            }
        }
        posted.map_err(|(reason, _)| reason)
    }

    /// Handles an envelope that has arrived on a bulk lane. Returns the message if it was for this node and is
    /// complete now.
    pub(super) fn handle_bulk_envelope(
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
                let last_session = &mut self.last_session;
                let new = || Box::new(PeerBulk::new(last_session));
                let bulk = peer.bulk.get_or_insert_with(new);
                let back = Back::Through(by);
                let timeouts = &self.config.timeouts;
                let done = bulk.take_frame(now_us, timeouts, None, back, frame, rest);
                if done.is_new {
                    // As far as is known, the carrier works in both directions.
                    peer.relay.heard_through(now_us, by, false);
                }
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
                    if self.relay_state.late.len() < LATE_MAX {
                        self.relay_state.late.push_back(late);
                    } else {
                        self.count_relay_drop(rail, DropReason::RelayNoPath);
                    }
                }
                (None, None)
            }
        }
    }

    /// The frame in an envelope for this node, if its tag is valid, its sender is that of the envelope, and there is
    /// memory for the message that it begins.
    fn open_carried<'a>(&self, from: PeerHandle, bytes: &'a [u8]) -> Option<(Frame, &'a [u8])> {
        let (envelope, message) = Envelope::read(bytes)?;
        let own = envelope.to.socket_address();
        let key = self.config.key.as_ref()?;
        let (frame, rest) = Frame::open(key, |to| own == Some(to), message)?;
        let is_from = envelope.from.socket_address() == Some(frame.sender);
        (is_from && self.has_room_for(from, &frame)).then_some((frame, rest))
    }

    /// Forwards an envelope. Returns it if the lane does not take it now.
    fn carry_bulk(&mut self, now_us: u64, late: Late) -> Option<Late> {
        let path = self.choose_bulk(late.to, Tried::default(), None);
        let path = path.filter(|(_, works)| *works);
        let posted = match path {
            Some((choice, _)) => self.post_bulk(late.to, usize::from(choice.path), &late.bytes),
            None => Err(DropReason::RelayNoPath),
        };
        match posted {
            Ok(()) => {
                let length = late.bytes.len() - ENVELOPE_BYTES;
                let ends = [Some(late.from), None, Some(late.to)];
                self.relay_state.carried.count(ends, length);
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

    /// Tries again to forward waiting envelopes.
    pub(super) fn forward_late(&mut self, now_us: u64) {
        for _ in 0..self.relay_state.late.len() {
            let Some(late) = self.relay_state.late.pop_front() else {
                return;
            };
            let left = match late.next_us <= now_us {
                true => self.carry_bulk(now_us, late),
                false => Some(late),
            };
            self.relay_state.late.extend(left);
        }
    }

    /// Relaying was switched off: own messages continue by pairs. Relayed acknowledgements and waiting envelopes are
    /// dropped and counted.
    pub(super) fn stop_relaying(&mut self) {
        for late in std::mem::take(&mut self.relay_state.late) {
            self.count_relay_drop(late.rail, DropReason::RelayOff);
        }
        let now_us = self.now_us;
        let first = self.open_rails().next().map_or(0, |(rail, _)| rail);
        for handle in self.bulk_peers.clone() {
            let Some(bulk) = self.bulk_of(handle) else {
                continue;
            };
            let acks = bulk.acks.len();
            bulk.acks.retain(|ack| matches!(ack.back, Back::Path(_)));
            let dropped = acks - bulk.acks.len();
            for urgent in STREAMS {
                bulk.stream(urgent).leave_carrier(now_us);
            }
            (0..dropped).for_each(|_| self.count_relay_drop(first, DropReason::RelayOff));
        }
    }

    /// When the next envelope is tried again.
    pub(super) fn late_timeout(&self) -> Option<u64> {
        self.relay_state.late.iter().map(|late| late.next_us).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bulk::{Kind, NO_FRAGMENT, NO_SENDER, Operation, PendingAck, Stamp};
    use crate::{FabricConfig, Transport};

    /// Switching relaying off applies to bulk messages too: messages under way, acknowledgements, and envelopes.
    #[test]
    fn bulk_messages_are_not_relayed_once_relaying_is_off() {
        let library = crate::load().expect("libfabric is installed where tests run");
        let rails = vec!["127.48.20.1:0@udp".parse().unwrap()];
        let mut a = Fabric::open(&FabricConfig {
            key: Some([9; 32]),
            ..FabricConfig::new(library, rails)
        })
        .unwrap();
        a.open_bulk().unwrap();
        let [by, to] = ["127.48.21.1:7741@udp", "127.48.21.2:7741@udp"]
            .map(|nid| a.peer(&nid.parse().unwrap()).unwrap());
        a.send_bulk(1, to, b"x").unwrap();
        let bulk = a.bulk_of(to).unwrap();
        let stream = bulk.stream(false);
        (stream.choice, stream.through) = (None, Some(by));
        let frame = Frame {
            sender: NO_SENDER,
            stamp: Stamp::default(),
            fragment: NO_FRAGMENT,
            kind: Kind::Acked(0),
            operation: Operation::Put,
            urgent: false,
        };
        for back in [Back::Through(by), Back::Path(0)] {
            bulk.acks.push(PendingAck {
                back,
                frame,
                introduces: false,
                next_us: 0,
                pause_us: 1,
            });
        }
        a.relay_state.late.push_back(Late {
            rail: 0,
            from: by,
            to,
            bytes: Vec::new(),
            next_us: 1,
            until_us: 2,
        });
        a.set_relay(false);
        let off = a.rails()[0].counters.dropped(DropReason::RelayOff);
        assert_eq!((off, a.relay_state.late.len()), (2, 0));
        let bulk = a.bulk_of(to).unwrap();
        assert_eq!(
            bulk.acks.len(),
            1,
            "the direct acknowledgement stays queued"
        );
        let stream = bulk.stream(false);
        assert_eq!(stream.through, None);
        assert!(
            stream.sender.waits() && stream.next_us > 0,
            "it continues by a pair"
        );
    }
}
