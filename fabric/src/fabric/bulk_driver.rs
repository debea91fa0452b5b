//! Sending on the bulk lanes: acknowledgements, probes of failed paths, and messages.
//!
//! Each fragment takes the path that is selected (see `bulk_route`), and waits for it if it does not take the
//! fragment now. A fragment whose path has failed (no acknowledgement in time, an error, a failed rail) is sent by a
//! path that was not tried for its message; fragments on other paths stay under way. When all paths were tried, the
//! message waits for its timer and starts again with all paths.

use super::Fabric;
use super::bulk_route::{BulkRoute, bulk_input};
use super::send::choice as choice_of;
use crate::bulk::{
    Back, Fragment, Frame, Key, Kind, NO_FRAGMENT, NO_SENDER, Operation, STREAMS, Stamp, Stream,
    WINDOW,
};
use crate::lane::{SendTag, drop_reason};
use crate::peer::{Path, Peer};
use crate::peer_handle::PeerHandle;
use crate::rail::Rail;
use crate::select::{Choice, Standing, Tried};
use crate::stats::DropReason;
use muster_provider::{CallError, Posted};
use muster_rail_health::Outcome;
use std::net::SocketAddrV4;

/// An acknowledgement that is not taken for this long is dropped and counted: by then the sender has repeated its
/// fragment.
const ACK_PAUSE_MAX_US: u64 = 64_000;

impl Fabric {
    /// Sends whatever may be sent: to each peer first acknowledgements, then as many fragments as the window has room
    /// for.
    pub(super) fn drive_bulk(&mut self, now_us: u64) {
        self.count_unacked();
        // The list does not change in this loop, and `leave_rail` needs all of it.
        for index in 0..self.bulk_peers.len() {
            let handle = self.bulk_peers[index];
            self.tick_gets(now_us, handle);
            for urgent in STREAMS {
                self.tick_bulk(now_us, handle, urgent);
            }
            self.send_acknowledgements(now_us, handle);
            self.probe_paths(now_us, handle);
            self.drive_stream(now_us, handle, true);
            if !self.holds_regular(now_us, handle) {
                self.drive_stream(now_us, handle, false);
            }
        }
        self.forget_idle();
    }

    /// Whether regular messages wait for urgent ones that their lane does not take now.
    fn holds_regular(&mut self, now_us: u64, handle: PeerHandle) -> bool {
        let bulk = self.bulk_of(handle);
        if !bulk.is_some_and(|bulk| bulk.urgent_waits(now_us)) {
            return false;
        }
        // By another lane they do not overtake urgent messages.
        self.bulk_route(now_us, handle, false);
        let times = self.config.timeouts;
        let bulk = self.bulk_of(handle);
        bulk.is_some_and(|bulk| bulk.hold_regular(now_us, &times))
    }

    /// Checks the timer of the message under way.
    fn tick_bulk(&mut self, now_us: u64, handle: PeerHandle, urgent: bool) {
        let (health, times) = (self.config.health, self.config.timeouts);
        let due_us = self
            .stream_of(handle, urgent)
            .and_then(|stream| stream.sender.timeout());
        let untried = match due_us.is_some_and(|due_us| due_us <= now_us) {
            true => self.untried(now_us, handle, urgent),
            false => 0,
        };
        let Some(peer) = self.peers.get_mut(handle) else {
            return;
        };
        let Peer { paths, bulk, .. } = peer;
        let Some(bulk) = bulk else {
            return;
        };
        let stream = bulk.stream(urgent);
        stream
            .receiver
            .drop_older(now_us.saturating_sub(times.reply_us));
        let silent: Vec<u32> = stream.sender.outstanding().map(|(path, _)| path).collect();
        let Some(due) = stream.sender.tick(now_us, untried, &times) else {
            return;
        };
        // No acknowledgement on these paths. A fragment that was taken counts against the peer's interface, one that
        // waited for room against the local rail.
        let waited = stream.choice.take();
        let mut change = None;
        for (index, path) in (0u8..).zip(paths.iter_mut()) {
            let choice = choice_of(index, path);
            let is_silent = silent.contains(&path.id);
            if !is_silent && waited != Some(choice) {
                continue;
            }
            stream.left.push(path.id);
            let rail = self.rails[path.rail].as_mut();
            let lane = rail.as_ref().and_then(|rail| rail.bulk.as_ref());
            let is_full = lane.is_some_and(|lane| lane.credits() == 0);
            if !is_silent && is_full {
                stream.tried.note(choice, DropReason::RailBusy);
            } else {
                stream.tried.note(choice, DropReason::ProviderError);
                path.counters.count_timeout();
                let told = path.bulk_health.tell(now_us, Outcome::SendTimeout, &health);
                change = told.or(change);
            }
            if let Some(rail) = rail {
                rail.counters.count_timeout();
            }
        }
        stream.through_tried.extend(stream.through.take());
        stream.retry_all = true;
        stream.note_progress();
        self.bulk_ended(handle, urgent, Some(due));
        self.note_bulk_change(change);
    }

    /// The number of paths that the message under way has not taken so far. All carriers count as one.
    fn untried(&mut self, now_us: u64, handle: PeerHandle, urgent: bool) -> u32 {
        let Some(stream) = self.stream_of(handle, urgent) else {
            return 0;
        };
        let (taken, carriers) = (stream.taken.clone(), stream.carriers.clone());
        let further = self.bulk_carrier(now_us, handle, carriers);
        let Some(peer) = self.peers.get(handle) else {
            return 0;
        };
        let health = &self.config.health;
        let may_work =
            |path: &Path| bulk_input(&self.rails, peer, path, health).standing != Standing::Blocked;
        let paths = peer.paths.iter().filter(|path| !taken.contains(&path.id));
        paths.filter(|path| may_work(path)).count() as u32 + u32::from(further.is_some())
    }

    /// Moves messages off these paths, to continue by others at once, if there are any.
    pub(super) fn leave_path(
        &mut self,
        handle: PeerHandle,
        meant: impl Fn(&Choice, &Path) -> bool,
        reason: DropReason,
    ) {
        let now_us = self.now_us;
        let Some(Peer {
            paths,
            bulk: Some(bulk),
            ..
        }) = self.peers.get_mut(handle)
        else {
            return;
        };
        let numbered = (0u8..).zip(paths.iter());
        let of_path = |(index, path): (u8, &Path)| (path.id, choice_of(index, path));
        let is_meant = |(index, path): &(u8, &Path)| meant(&choice_of(*index, path), path);
        let meant: Vec<(u32, Choice)> = numbered.filter(is_meant).map(of_path).collect();
        for urgent in STREAMS {
            let stream = bulk.stream(urgent);
            let by = stream
                .sender
                .resend_by(|id| meant.iter().any(|(one, _)| *one == id));
            let on_it = |(_, choice): &(u32, Choice)| stream.choice == Some(*choice);
            let waited = meant.iter().find(|one| on_it(one)).map(|(id, _)| *id);
            if waited.is_some() {
                stream.forget_choice();
            }
            if stream.sender.timeout().is_none() || by.is_empty() && waited.is_none() {
                continue;
            }
            for (id, choice) in &meant {
                if by.contains(id) || waited == Some(*id) {
                    stream.tried.note(*choice, reason);
                    stream.left.push(*id);
                }
            }
            stream.note_progress();
            // Due now, so that a host that waits for `next_timeout` polls at once.
            stream.next_us = now_us.max(1);
        }
    }

    /// Moves all messages off a rail that has failed.
    pub(super) fn leave_rail(&mut self, rail: usize) {
        for handle in self.bulk_peers.clone() {
            let on_it = |choice: &Choice, _: &Path| usize::from(choice.rail) == rail;
            self.leave_path(handle, on_it, DropReason::RailBusy);
        }
    }

    fn drive_stream(&mut self, now_us: u64, handle: PeerHandle, urgent: bool) {
        let stream = self.stream_of(handle, urgent);
        if stream.is_none_or(|stream| stream.next_us > now_us) {
            return;
        }
        self.spread_stream(handle, urgent);
        loop {
            let continues = match self.bulk_route(now_us, handle, urgent) {
                None => break,
                Some(BulkRoute::Path(choice)) => self.send_by_path(now_us, handle, urgent, choice),
                Some(BulkRoute::Through(by)) => self.send_through(now_us, handle, urgent, by),
            };
            if !continues {
                return;
            }
        }
        // Nothing to send, or no path: the message's timer is next.
        if let Some(stream) = self.stream_of(handle, urgent) {
            stream.next_us = 0;
        }
    }

    pub(super) fn stream_of(&mut self, handle: PeerHandle, urgent: bool) -> Option<&mut Stream> {
        Some(self.bulk_of(handle)?.stream(urgent))
    }

    /// Sends the next fragment by a path. Returns false if there is nothing more to do now.
    fn send_by_path(
        &mut self,
        now_us: u64,
        handle: PeerHandle,
        urgent: bool,
        choice: Choice,
    ) -> bool {
        self.ask_bulk_name(now_us, handle, usize::from(choice.path));
        let Some(peer) = self.peers.get_mut(handle) else {
            return false;
        };
        let Peer { paths, bulk, .. } = peer;
        let (Some(bulk), Some(path)) = (bulk, paths.get_mut(usize::from(choice.path))) else {
            return false;
        };
        let (session, stream) = bulk.parts(urgent);
        let Some((fragment, operation, bytes)) = stream.sender.next() else {
            return false;
        };
        let Some(rail) = &mut self.rails[path.rail] else {
            return false;
        };
        let is_probe = session.theirs() == 0;
        let stamp = session.stamp(session.theirs());
        let (frame, bytes) = fragment_or_probe(stamp, fragment, operation, urgent, bytes);
        let frame = Frame {
            sender: own_address(rail),
            ..frame
        };
        let key = self.config.key.as_ref();
        match post(now_us, key, rail, handle, path, &frame, bytes) {
            // The answer to the probe lets the message continue.
            Ok(()) if is_probe => {
                stream.put_off(now_us);
                return false;
            }
            Ok(()) => {
                path.counters.count_send(bytes.len());
                rail.counters.count_send(bytes.len());
                if operation != Operation::PutUnacked {
                    path.bulk_bytes += bytes.len() as u64;
                    rail.bulk_bytes += bytes.len() as u64;
                }
                // The next fragment may take another path.
                if !stream.is_bound(operation) {
                    stream.choice = None;
                }
                let times = &self.config.timeouts;
                let due = stream.sender.sent(now_us, fragment, Some(path.id), times);
                stream.note_progress();
                self.bulk_ended(handle, urgent, due);
            }
            // "Try again" is not a drop.
            Err((DropReason::RailBusy, _)) => {
                stream.put_off(now_us);
                return false;
            }
            Err((reason, error)) => {
                path.counters.count_drop(reason);
                rail.counters.count_drop(reason);
                let outcome = error.map_or(Outcome::Unreachable, |e| Outcome::of_code(e.code));
                let health = &self.config.health;
                let change = path.bulk_health.tell(now_us, outcome, health);
                let left = choice.path;
                self.leave_path(handle, |other, _| other.path == left, reason);
                self.note_bulk_change(change);
            }
        }
        true
    }

    /// Sends the queued acknowledgements, each by the path of its fragment.
    fn send_acknowledgements(&mut self, now_us: u64, handle: PeerHandle) {
        let bulk = self
            .peers
            .get_mut(handle)
            .and_then(|peer| peer.bulk.as_mut());
        let acks = bulk.map(|bulk| std::mem::take(&mut bulk.acks));
        let acks = acks.unwrap_or_default();
        let mut left = Vec::new();
        for mut one in acks {
            if one.next_us > now_us {
                left.push(one);
                continue;
            }
            let to = one.frame.stamp.session;
            let stamp = self.bulk_of(handle).map(|bulk| bulk.session.stamp(to));
            let frame = Frame {
                stamp: stamp.unwrap_or_default(),
                ..one.frame
            };
            let posted = match one.back {
                Back::Path(id) => self.send_ack_by_path(handle, id, frame),
                Back::Through(by) => self.post_through(handle, by, frame, &[]),
            };
            let busy = matches!(posted, Err(DropReason::RailBusy));
            one.next_us = now_us + one.pause_us;
            one.pause_us *= 2;
            if busy && one.pause_us <= ACK_PAUSE_MAX_US {
                left.push(one);
            } else if let Err(reason) = posted {
                match one.back {
                    Back::Path(id) => self.count_path_drop(handle, id, reason),
                    Back::Through(by) => self.count_carrier_drop(by, reason),
                }
            }
        }
        let bulk = self
            .peers
            .get_mut(handle)
            .and_then(|peer| peer.bulk.as_mut());
        if let Some(bulk) = bulk {
            bulk.acks = left;
        }
    }

    fn send_ack_by_path(
        &mut self,
        handle: PeerHandle,
        id: u32,
        frame: Frame,
    ) -> Result<(), DropReason> {
        let path = self.peers.path_by_id(handle, id);
        let path = path.ok_or(DropReason::NoPath)?;
        let rail = self.rails[path.rail].as_mut().ok_or(DropReason::NoPath)?;
        let answer = Frame {
            sender: own_address(rail),
            ..frame
        };
        let key = self.config.key.as_ref();
        let posted = post(self.now_us, key, rail, handle, path, &answer, &[]);
        posted.map_err(|(reason, _)| reason)
    }

    fn count_path_drop(&mut self, handle: PeerHandle, id: u32, reason: DropReason) {
        if let Some(path) = self.peers.path_by_id(handle, id) {
            path.counters.count_drop(reason);
            let rail = self.rails[path.rail].as_mut();
            rail.into_iter()
                .for_each(|rail| rail.counters.count_drop(reason));
        }
    }

    /// Counts an acknowledgement that could not be handed to its carrier.
    fn count_carrier_drop(&mut self, by: PeerHandle, reason: DropReason) {
        let choice = self.choose_bulk(by, Tried::default(), None);
        let path = choice.map(|(choice, _)| usize::from(choice.path));
        let id = path.and_then(|path| Some(self.peers.get(by)?.paths.get(path)?.id));
        match (id, reason) {
            (Some(id), DropReason::RailBusy) => self.count_path_drop(by, id, reason),
            // The lane has counted what it refused.
            (Some(_), _) => {}
            (None, _) => {
                let first = self.rails.iter().position(Option::is_some);
                first
                    .into_iter()
                    .for_each(|rail| self.count_bulk(rail, reason));
            }
        }
    }

    /// RS-07: probes each failed path to the peer.
    fn probe_paths(&mut self, now_us: u64, handle: PeerHandle) {
        let health = self.config.health;
        let key = self.config.key.as_ref();
        let Some(peer) = self.peers.get_mut(handle) else {
            return;
        };
        let Peer { paths, bulk, .. } = peer;
        let Some(bulk) = bulk else {
            return;
        };
        for path in paths {
            if !path.bulk_health.probe_due(now_us, &health) {
                continue;
            }
            path.bulk_health.probed(now_us, &health);
            let Some(rail) = &mut self.rails[path.rail] else {
                continue;
            };
            let frame = Frame {
                sender: own_address(rail),
                stamp: bulk.session.stamp(bulk.session.theirs()),
                fragment: NO_FRAGMENT,
                kind: Kind::Probe,
                operation: Operation::Put,
                urgent: true,
            };
            // A probe that is not taken now is repeated after the pause.
            if let Err((reason, _)) = post(now_us, key, rail, handle, path, &frame, &[]) {
                path.counters.count_drop(reason);
                rail.counters.count_drop(reason);
            }
        }
    }
}

pub(super) fn own_address(rail: &Rail) -> SocketAddrV4 {
    let address = rail.nid.socket_address();
    address.expect("an open rail has an address")
}

/// The frame of a fragment; or a probe, as long as the peer's session is not known. The caller fills in the sender.
pub(super) fn fragment_or_probe(
    stamp: Stamp,
    fragment: Fragment,
    operation: Operation,
    urgent: bool,
    bytes: &[u8],
) -> (Frame, &[u8]) {
    let frame = Frame {
        sender: NO_SENDER,
        stamp,
        fragment,
        kind: Kind::Fragment,
        operation,
        urgent,
    };
    if stamp.to > 0 {
        return (frame, bytes);
    }
    let probe = Frame {
        fragment: NO_FRAGMENT,
        kind: Kind::Probe,
        operation: Operation::Put,
        ..frame
    };
    (probe, &[])
}

/// Hands one frame to a rail's bulk lane.
fn post(
    now_us: u64,
    key: Option<&Key>,
    rail: &mut Rail,
    peer: PeerHandle,
    path: &mut Path,
    frame: &Frame,
    bytes: &[u8],
) -> Result<(), (DropReason, Option<CallError>)> {
    // Checked first, since the tag takes time for each byte.
    if path.bulk_sends >= WINDOW {
        return Err((DropReason::RailBusy, None));
    }
    let to = path.nid.socket_address();
    let (key, to) = key.zip(to).ok_or((DropReason::NoPath, None))?;
    let message = frame.seal(key, to, bytes);
    post_message(now_us, rail, peer, path, &message)
}

/// Hands a sealed message to a rail's bulk lane.
pub(super) fn post_message(
    now_us: u64,
    rail: &mut Rail,
    peer: PeerHandle,
    path: &mut Path,
    message: &[u8],
) -> Result<(), (DropReason, Option<CallError>)> {
    let lane = rail.bulk.as_mut().ok_or((DropReason::NoPath, None))?;
    // A peer that takes nothing must not use up the lane.
    if path.bulk_sends >= WINDOW {
        return Err((DropReason::RailBusy, None));
    }
    let address = match path.bulk_address {
        Some(address) => address,
        None => {
            let inserted = if lane.has_name() {
                let name = path.told.as_ref().and_then(|told| told.bulk.as_ref());
                // An address that the peer has not told yet is "try again".
                lane.insert_name(name.ok_or((DropReason::RailBusy, None))?)
            } else {
                lane.insert(path.nid.bulk_address().ok_or((DropReason::NoPath, None))?)
            };
            let inserted = inserted.map_err(|e| (DropReason::ProviderError, Some(e)))?;
            *path.bulk_address.insert(inserted)
        }
    };
    if !rail.bulk_limit.takes(now_us, message.len()) {
        return Err((DropReason::RailBusy, None));
    }
    let tag = SendTag {
        peer: peer.index,
        generation: peer.generation,
        path: path.id,
        bytes: message.len() as u32,
        ..SendTag::default()
    };
    match lane.send(address, tag, message).map_err(drop_reason) {
        Ok(Posted::Done) => Ok(()),
        Ok(Posted::UnderWay) => {
            path.bulk_sends += 1;
            Ok(())
        }
        Err(refused) => Err(refused),
    }
}
