//! What goes out on the bulk lanes: what is owed, questions to paths that did not work, messages.
//!
//! A message stays on one path until that path is known to be in vain: no acknowledgement in time, an
//! error, a rail that failed. Then it goes on by one that was not tried for it; when all were tried,
//! it waits for its clock and begins anew.

use super::Fabric;
use super::bulk::NO_FRAGMENT;
use super::send::{input, rail_inputs};
use crate::bulk::{Frame, Key, Kind, WINDOW};
use crate::error::CallError;
use crate::health::{HealthConfig, Outcome};
use crate::peer::{Path, Peer, PeerHandle};
use crate::provider::{Posted, Refused, SendTag};
use crate::rail::Rail;
use crate::select::{self, Choice, PathInput, Request, Standing, Tried};
use crate::stats::DropReason;
use std::net::SocketAddrV4;

/// An acknowledgement that is not taken for so long is dropped: the sender will have asked again.
const OWED_PAUSE_MAX_US: u64 = 64_000;

impl Fabric {
    /// Sends what may be sent: to each peer what is owed to it, then what the window has room for.
    pub(super) fn pump_bulk(&mut self, now_us: u64) {
        // None is added or taken away meanwhile; and whoever leaves a rail sees them all.
        for index in 0..self.bulk_peers.len() {
            let handle = self.bulk_peers[index];
            self.tick_bulk(now_us, handle);
            self.pay_owed(now_us, handle);
            self.ask_paths(now_us, handle);
            self.pump_peer(now_us, handle);
        }
        self.leave_idle();
    }

    /// Looks at the clock of the message under way.
    fn tick_bulk(&mut self, now_us: u64, handle: PeerHandle) {
        let (health, times) = (self.config.health, self.config.timeouts);
        let Some(peer) = self.peers.get_mut(handle) else {
            return;
        };
        let Peer { paths, bulk, .. } = peer;
        let Some(bulk) = bulk else {
            return;
        };
        bulk.receiver
            .drop_older(now_us.saturating_sub(times.reply_us));
        let waited = bulk.sender.waits();
        let Some(due) = bulk.sender.tick(now_us, &times) else {
            return;
        };
        // No word by this path. What waited here for want of room speaks against our rail, what was
        // taken and is not acknowledged against the peer's interface.
        let mut change = None;
        if let Some(choice) = bulk.choice.take() {
            let rail = self.rails[usize::from(choice.rail)].as_mut();
            let lane = rail.as_ref().and_then(|rail| rail.bulk.as_ref());
            let congested = waited && lane.is_some_and(|lane| lane.credits() == 0);
            if congested {
                bulk.tried.note(choice, DropReason::RailBusy);
            } else {
                bulk.tried.note(choice, DropReason::ProviderError);
                if let Some(path) = paths.get_mut(usize::from(choice.path)) {
                    path.counters.count_timeout();
                    change = path.bulk_health.tell(now_us, Outcome::SendTimeout, &health);
                }
            }
            if let Some(rail) = rail {
                rail.counters.count_timeout();
            }
        }
        bulk.anew = true;
        bulk.went_on();
        self.bulk_ended(handle, Some(due));
        self.note_bulk_change(change);
    }

    /// Takes messages off the paths that are meant, to go on by others at once, if there are any.
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
        let of = |choice: &Choice| {
            let path = paths.get(usize::from(choice.path));
            path.is_some_and(|path| meant(choice, path))
        };
        if let Some(choice) = bulk.choice.filter(of) {
            bulk.choice = None;
            bulk.tried.note(choice, reason);
            bulk.sender.resend();
            bulk.went_on();
            // Due now: whoever waits for our time-outs comes back at once.
            bulk.next_us = now_us.max(1);
        }
    }

    /// The same for all messages on a rail that has failed.
    pub(super) fn leave_rail(&mut self, rail: usize) {
        for handle in self.bulk_peers.clone() {
            let on_it = |choice: &Choice, _: &Path| usize::from(choice.rail) == rail;
            self.leave_path(handle, on_it, DropReason::RailBusy);
        }
    }

    fn pump_peer(&mut self, now_us: u64, handle: PeerHandle) {
        let waits = |peer: &Peer| peer.bulk.as_ref().is_none_or(|bulk| bulk.next_us > now_us);
        if self.peers.get(handle).is_none_or(waits) {
            return;
        }
        while let Some(choice) = self.bulk_choice(handle) {
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
                sender: own_address(rail),
                stream: self.config.incarnation,
                fragment,
                kind: Kind::Fragment,
            };
            match post(self.config.key.as_ref(), rail, handle, path, &frame, bytes) {
                Ok(()) => {
                    path.counters.count_send(bytes.len());
                    rail.counters.count_send(bytes.len());
                    bulk.sender.sent(fragment);
                    bulk.went_on();
                }
                // "Not now" is no drop: nothing is lost but time.
                Err((DropReason::RailBusy, _)) => {
                    bulk.put_off(now_us);
                    return;
                }
                Err((reason, error)) => {
                    path.counters.count_drop(reason);
                    rail.counters.count_drop(reason);
                    let outcome = error.map_or(Outcome::Unreachable, |e| Outcome::of_code(e.code));
                    let health = &self.config.health;
                    let change = path.bulk_health.tell(now_us, outcome, health);
                    self.leave_path(handle, |_, _| true, reason);
                    self.note_bulk_change(change);
                }
            }
        }
        // Nothing to send, or no path to send it by: what comes next comes by the message's clock.
        let bulk = self
            .peers
            .get_mut(handle)
            .and_then(|peer| peer.bulk.as_mut());
        if let Some(bulk) = bulk {
            bulk.next_us = 0;
        }
    }

    /// Sends the acknowledgements that are owed, each by its own path.
    fn pay_owed(&mut self, now_us: u64, handle: PeerHandle) {
        let Some(Peer {
            paths,
            bulk: Some(bulk),
            ..
        }) = self.peers.get_mut(handle)
        else {
            return;
        };
        let rails = &mut self.rails;
        let key = self.config.key.as_ref();
        bulk.owed.retain_mut(|owed| {
            if owed.next_us > now_us {
                return true;
            }
            let Some(path) = paths.iter_mut().find(|one| one.id == owed.path) else {
                return false;
            };
            let Some(rail) = &mut rails[path.rail] else {
                return false;
            };
            let answer = Frame {
                sender: own_address(rail),
                ..owed.frame
            };
            let posted = post(key, rail, handle, path, &answer, &[]);
            owed.next_us = now_us + owed.pause_us;
            owed.pause_us *= 2;
            let Err((reason, _)) = posted else {
                return false;
            };
            let again = reason == DropReason::RailBusy && owed.pause_us <= OWED_PAUSE_MAX_US;
            if !again {
                path.counters.count_drop(reason);
                rail.counters.count_drop(reason);
            }
            again
        });
    }

    /// RS-07: asks the peer, by each path that did not work, whether it works again.
    fn ask_paths(&mut self, now_us: u64, handle: PeerHandle) {
        let health = self.config.health;
        let key = self.config.key.as_ref();
        let Some(peer) = self.peers.get_mut(handle) else {
            return;
        };
        for path in &mut peer.paths {
            let due = path.question_at(&health).is_some_and(|at| at <= now_us);
            let Some(rail) = self.rails[path.rail].as_mut().filter(|_| due) else {
                continue;
            };
            path.bulk_health.probed(now_us, &health);
            let frame = Frame {
                sender: own_address(rail),
                stream: self.config.incarnation,
                fragment: NO_FRAGMENT,
                kind: Kind::Question,
            };
            // What is not taken now is asked again after the pause.
            if let Err((reason, _)) = post(key, rail, handle, path, &frame, &[]) {
                path.counters.count_drop(reason);
                rail.counters.count_drop(reason);
            }
        }
    }

    /// The path of the message under way: the same for all of it, until it is to be sent again.
    fn bulk_choice(&mut self, handle: PeerHandle) -> Option<Choice> {
        let bulk = self.peers.get(handle)?.bulk.as_ref()?;
        bulk.sender.next()?;
        if bulk.choice.is_some() {
            return bulk.choice;
        }
        let (tried, anew) = (bulk.tried, bulk.anew);
        let mut choice = self.choose_bulk(handle, tried);
        let exhausted = choice.is_none();
        if exhausted && anew {
            choice = self.choose_bulk(handle, Tried::default());
        }
        let peer = self.peers.get_mut(handle)?;
        if let Some(choice) = choice {
            peer.take(usize::from(choice.path));
        }
        let id = choice.map(|choice| peer.paths[usize::from(choice.path)].id);
        let bulk = peer.bulk.as_mut()?;
        let before = bulk.taken.last().copied();
        if let Some(id) = id {
            // The last is the present one.
            bulk.taken.retain(|one| *one != id);
            bulk.taken.push(id);
        }
        if exhausted && anew {
            bulk.tried = Tried::default();
        }
        bulk.anew = false;
        bulk.choice = choice;
        if let (Some(before), Some(choice)) = (before.filter(|_| before != id), choice) {
            self.note_moved(handle, before, usize::from(choice.path));
        }
        choice
    }

    fn choose_bulk(&mut self, handle: PeerHandle, tried: Tried) -> Option<Choice> {
        let peer = self.peers.get(handle)?;
        let health = &self.config.health;
        let mut inputs = std::mem::take(&mut self.inputs);
        inputs.clear();
        let of_path = |path: &Path| bulk_input(&self.rails, peer, path, health);
        inputs.extend(peer.paths.iter().map(of_path));
        let request = Request {
            numa_range: self.config.numa_range,
            tried,
            ..Request::default()
        };
        let choice = select::choose(
            &request,
            &rail_inputs(&self.rails, self.memory_node),
            &inputs,
        );
        self.inputs = inputs;
        choice
    }
}

/// What is known about a path for bulk messages: what holds for datagrams, and the bulk lane's own.
fn bulk_input(
    rails: &[Option<Rail>],
    peer: &Peer,
    path: &Path,
    health: &HealthConfig,
) -> PathInput {
    let known = input(rails, peer, path, health);
    let lacks_lane = rails[path.rail]
        .as_ref()
        .is_none_or(|rail| rail.bulk.is_none());
    let own = if lacks_lane || path.bulk_health.is_blocked() {
        Standing::Blocked
    } else if path.bulk_health.is_failed() {
        Standing::Avoided
    } else {
        Standing::Usable
    };
    PathInput {
        standing: known.standing.max(own),
        shunned_by: known.shunned_by.max(path.bulk_health.shunned_by(health)),
        ..known
    }
}

fn own_address(rail: &Rail) -> SocketAddrV4 {
    let address = rail.nid.socket_address();
    address.expect("an open rail has an address")
}

/// Hands one frame to a rail's bulk lane.
fn post(
    key: Option<&Key>,
    rail: &mut Rail,
    peer: PeerHandle,
    path: &mut Path,
    frame: &Frame,
    bytes: &[u8],
) -> Result<(), (DropReason, Option<CallError>)> {
    let lane = rail.bulk.as_mut().ok_or((DropReason::NoPath, None))?;
    // A peer that takes nothing may not have all of the lane.
    if path.bulk_sends >= WINDOW {
        return Err((DropReason::RailBusy, None));
    }
    let address = match path.bulk_address {
        Some(address) => address,
        None => {
            let to = path.nid.bulk_address().ok_or((DropReason::NoPath, None))?;
            let inserted = lane.insert(to);
            let inserted = inserted.map_err(|e| (DropReason::ProviderError, Some(e)))?;
            // Not known yet is "not now".
            let inserted = inserted.ok_or((DropReason::RailBusy, None))?;
            *path.bulk_address.insert(inserted)
        }
    };
    let to = path.nid.socket_address();
    let (key, to) = key.zip(to).ok_or((DropReason::NoPath, None))?;
    let message = frame.seal(key, to, bytes);
    let tag = SendTag {
        peer: peer.index,
        generation: peer.generation,
        path: path.id,
        bytes: bytes.len() as u32,
        tried: Tried::default(),
    };
    match lane.send(address, tag, &message).map_err(Refused::reason) {
        Ok(Posted::Done) => Ok(()),
        Ok(Posted::UnderWay) => {
            path.bulk_sends += 1;
            Ok(())
        }
        Err(refused) => Err(refused),
    }
}
