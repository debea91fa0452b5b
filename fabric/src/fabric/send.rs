//! What goes out: paths chosen, messages posted, and what becomes of them.

use super::Fabric;
use crate::error::CallError;
use crate::health::{Blame, HealthChange, HealthConfig, Outcome};
use crate::nid::{NIDS_MAX, Nid};
use crate::peer::{Path, Peer, PeerHandle};
use crate::provider::{Posted, Refused, SendTag};
use crate::rail::Rail;
use crate::relay::{ENVELOPE_BYTES, is_envelope};
use crate::select::{
    self, Choice, PathInput, RailInput, Request, Selection, Standing, TRIES_MAX, Tried,
};
use crate::stats::DropReason;
use crate::transport::{Class, FabricEvent, Route};
use crate::view::serves;
use libc::ETIMEDOUT;

impl Fabric {
    pub(super) fn select_paths(
        &mut self,
        now_us: u64,
        handle: PeerHandle,
        route: Route,
        tried: &Tried,
    ) -> Selection {
        let mut selection = Selection::default();
        let mut inputs = std::mem::take(&mut self.inputs);
        inputs.clear();
        if let Some(peer) = self.peers.get_mut(handle) {
            let paths = (0u8..).zip(&peer.paths);
            if route == Route::All {
                let home = paths.filter(|(_, path)| !path.spare);
                home.for_each(|(index, path)| selection.add(choice(index, path)));
            } else {
                let rails = rail_inputs(&self.rails, self.memory_node);
                let health = &self.config.health;
                let request = request(route, self.config.numa_range, *tried);
                // Home paths are first. Where one works and no rule says otherwise, no spare path
                // would be chosen, so none is looked at.
                let plain = self.config.policy.rules().is_empty() && request.is_first();
                for (_, path) in paths {
                    let decided = plain && path.spare && inputs.iter().any(PathInput::is_usable);
                    if decided {
                        break;
                    }
                    inputs.push(input(&self.rails, peer, path, health));
                }
                if let Some(choice) = select::choose(&request, &rails, &inputs) {
                    selection.add(choice);
                    peer.take(usize::from(choice.path));
                }
                probes(now_us, &self.rails, peer, &inputs, health, &mut selection);
            }
        } else {
            self.unknown_peer_drops += 1;
        }
        self.inputs = inputs;
        selection
    }

    pub(super) fn post_on(
        &mut self,
        now_us: u64,
        handle: PeerHandle,
        index: usize,
        class: Class,
        bytes: &[u8],
        tried: Tried,
    ) -> Result<(), DropReason> {
        self.open_spare(handle, index);
        let path = self
            .peers
            .get_mut(handle)
            .and_then(|peer| peer.paths.get_mut(index));
        let Some(path) = path else {
            self.unknown_peer_drops += 1;
            return Err(DropReason::UnknownPeer);
        };
        let rail_index = path.rail;
        let Some(rail) = &mut self.rails[rail_index] else {
            return Err(DropReason::NoPath);
        };
        let under_way = path.sends[class as usize];
        let envelope = if is_envelope(bytes) {
            ENVELOPE_BYTES
        } else {
            0
        };
        let result = if bytes.len() > self.mtu + envelope {
            Err((DropReason::Oversize, None))
        } else if under_way >= self.config.peer_sends_max {
            Err((DropReason::PeerBusy, None))
        } else if let Some(addresses) = path.addresses {
            let tag = SendTag {
                peer: handle.index,
                generation: handle.generation,
                path: path.id,
                bytes: bytes.len() as u32,
                tried,
            };
            let lane = rail.lanes.of(class);
            lane.send(addresses[class as usize], tag, bytes)
                .map_err(Refused::reason)
        } else {
            Err((DropReason::NoPath, None))
        };
        match result {
            Ok(posted) => {
                path.counters.count_send(bytes.len());
                rail.counters.count_send(bytes.len());
                path.heat.count(now_us);
                rail.heat.count(now_us);
                match posted {
                    Posted::UnderWay => {
                        path.sends[class as usize] += 1;
                        path.sends_most = path.sends_most.max(path.sends.iter().sum());
                        path.queued_bytes += bytes.len() as u64;
                        rail.begin_send(bytes.len());
                    }
                    Posted::Done => {
                        let health = &self.config.health;
                        path.health.tell(now_us, Outcome::Success, health);
                        let change = rail.taken(now_us, health);
                        self.tell_rail(rail_index, change, "");
                    }
                }
                Ok(())
            }
            Err((reason, error)) => {
                path.counters.count_drop(reason);
                rail.counters.count_drop(reason);
                if let Some(error) = error {
                    let id = path.id;
                    self.path_refused(now_us, rail_index, handle, id, &error);
                }
                Err(reason)
            }
        }
    }

    /// Makes the address of a path known that was not needed, or not to be had, so far.
    fn open_spare(&mut self, handle: PeerHandle, index: usize) {
        let path = self
            .peers
            .get(handle)
            .and_then(|peer| peer.paths.get(index));
        let Some((rail, nid)) = path
            .filter(|path| path.addresses.is_none())
            .map(|path| (path.rail, path.nid.clone()))
        else {
            return;
        };
        let opened = self.open_address(rail, &nid);
        let (now_us, health) = (self.now_us, self.config.health);
        if let Some(peer) = self.peers.get_mut(handle) {
            let path = &mut peer.paths[index];
            match opened {
                Ok(addresses) => path.addresses = addresses,
                Err(_) => _ = path.health.tell(now_us, Outcome::ConnectError, &health),
            }
        }
    }

    /// A send that was under way has come to its end, well or badly.
    pub(super) fn send_ended(
        &mut self,
        now_us: u64,
        rail_index: usize,
        class: Class,
        tag: SendTag,
        error: Option<&CallError>,
    ) {
        let handle = PeerHandle {
            index: tag.peer,
            generation: tag.generation,
        };
        let health = self.config.health;
        let timed_out = error.is_some_and(|error| error.code == ETIMEDOUT);
        if let Some(path) = self.peers.path_by_id(handle, tag.path) {
            path.sends[class as usize] -= 1;
            path.queued_bytes -= u64::from(tag.bytes);
            if error.is_some() {
                path.counters.count_drop(DropReason::ProviderError);
            } else {
                path.health.tell(now_us, Outcome::Success, &health);
            }
            if timed_out {
                path.counters.count_timeout();
            }
            if let Some(rail) = &mut self.rails[rail_index] {
                rail.queued_bytes = rail.queued_bytes.saturating_sub(u64::from(tag.bytes));
            }
        }
        let Some(rail) = &mut self.rails[rail_index] else {
            return;
        };
        match error {
            None => {
                let change = rail.taken(now_us, &health);
                self.tell_rail(rail_index, change, "");
            }
            Some(error) => {
                rail.counters.count_drop(DropReason::ProviderError);
                if timed_out {
                    rail.counters.count_timeout();
                }
                self.path_refused(now_us, rail_index, handle, tag.path, error);
            }
        }
    }

    /// A send that was under way has failed. News goes by another way, as often as one message may be
    /// tried; a beat has gone stale meanwhile.
    pub(super) fn send_failed(
        &mut self,
        now_us: u64,
        rail: usize,
        class: Class,
        tag: SendTag,
        error: &CallError,
        bytes: &[u8],
    ) {
        self.send_ended(now_us, rail, class, tag, Some(error));
        let handle = PeerHandle {
            index: tag.peer,
            generation: tag.generation,
        };
        let paths = self.peers.get(handle).map_or(&[][..], |peer| &peer.paths);
        let mut numbered = (0u8..).zip(paths);
        let failed = numbered.find(|(_, path)| path.id == tag.path);
        let (Class::News, Some((index, path))) = (class, failed) else {
            return;
        };
        let mut tried = tag.tried;
        tried.note(choice(index, path), requeue_reason(error));
        while (tried.count() as usize) < TRIES_MAX {
            let selection = self.select_paths(now_us, handle, Route::Next, &tried);
            let Some(&choice) = selection.choices().first() else {
                return;
            };
            let index = usize::from(choice.path);
            match self.post_on(now_us, handle, index, class, bytes, tried) {
                Ok(()) => return self.note_moved(handle, tag.path, index),
                Err(reason) => tried.note(choice, reason),
            }
        }
    }

    /// dbg-115: says which pair a message left, and which it takes in its place.
    pub(super) fn note_moved(&mut self, peer: PeerHandle, from: u32, to: usize) {
        let Some(known) = self.peers.get(peer) else {
            return;
        };
        let from = known.paths.iter().find(|path| path.id == from);
        let pairs = from
            .zip(known.paths.get(to))
            .and_then(|(from, to)| Some((self.pair_of(from)?, self.pair_of(to)?)));
        if let Some((from, to)) = pairs {
            self.push_event(FabricEvent::Moved { peer, from, to });
        }
    }

    /// A path's local and remote NID.
    pub(super) fn pair_of(&self, path: &Path) -> Option<(Nid, Nid)> {
        let rail = self.rails[path.rail].as_ref()?;
        Some((rail.nid.clone(), path.nid.clone()))
    }

    fn path_refused(
        &mut self,
        now_us: u64,
        rail: usize,
        peer: PeerHandle,
        path: u32,
        error: &CallError,
    ) {
        let outcome = Outcome::of_code(error.code);
        let health = self.config.health;
        // What speaks against the rail alone leaves the path's own health as it is.
        if outcome.blame() == Blame::Remote
            && let Some(path) = self.peers.path_by_id(peer, path)
        {
            path.health.tell(now_us, outcome, &health);
        }
        self.rail_refused(now_us, rail, Some(peer), error);
    }

    pub(super) fn rail_refused(
        &mut self,
        now_us: u64,
        index: usize,
        peer: Option<PeerHandle>,
        error: &CallError,
    ) {
        let peers = self.peers.len();
        let outcome = Outcome::of_code(error.code);
        let health = self.config.health;
        if let Some(rail) = &mut self.rails[index] {
            let change = rail.refused(now_us, outcome, peer, peers, &health);
            if change.is_some() {
                self.tell_rail(index, change, &error.to_string());
            }
        }
    }

    /// Tells the host of a rail that has failed, or works again.
    pub(super) fn tell_rail(&mut self, rail: usize, change: Option<HealthChange>, reason: &str) {
        match change {
            None => {}
            Some(HealthChange::Failed) => {
                self.leave_rail(rail);
                self.push_event(FabricEvent::RailFailing {
                    rail,
                    reason: reason.to_owned(),
                });
            }
            Some(HealthChange::Recovered) => self.push_event(FabricEvent::RailRecovered { rail }),
        }
    }
}

/// What failed on our side is tried by another rail to the same NID first, all else at another NID.
fn requeue_reason(error: &CallError) -> DropReason {
    match Outcome::of_code(error.code).blame() {
        Blame::Local => DropReason::RailBusy,
        Blame::Remote => DropReason::ProviderError,
    }
}

fn choice(index: u8, path: &Path) -> Choice {
    Choice {
        path: index,
        rail: path.rail as u8,
        remote: path.remote,
    }
}

/// What a message by this route asks for.
pub(super) fn request(route: Route, numa_range: u32, tried: Tried) -> Request {
    let back = match route {
        Route::Back(rail) => Some((rail as u8, None)),
        Route::Next | Route::All => None,
    };
    Request {
        back,
        numa_range,
        tried,
    }
}

/// What is known about the rails, by index.
pub(super) fn rail_inputs(
    rails: &[Option<Rail>],
    memory_node: Option<u32>,
) -> [RailInput; NIDS_MAX] {
    let mut inputs = [RailInput::default(); NIDS_MAX];
    for (input, rail) in inputs.iter_mut().zip(rails) {
        if let Some(rail) = rail {
            *input = RailInput {
                foreign: !serves(&rail.partitions, memory_node),
                distance: rail.distance,
                credits: rail.lanes.credits(),
                queued_bytes: rail.queued_bytes,
            };
        }
    }
    inputs
}

/// What is known about one path.
pub(super) fn input(
    rails: &[Option<Rail>],
    peer: &Peer,
    path: &Path,
    health: &HealthConfig,
) -> PathInput {
    let rail = rails[path.rail].as_ref();
    let failed = rail.is_none_or(|rail| rail.deaf || rail.health.is_failed());
    let standing = if path.health.is_blocked() {
        Standing::Blocked
    } else if failed
        || path.health.is_failed()
        || peer.hearing.is_silent(path.rail)
        || peer.told_failing.contains(&path.nid)
    {
        Standing::Avoided
    } else {
        Standing::Usable
    };
    let of_rail = rail.map_or(0, |rail| rail.health.shunned_by(health));
    PathInput {
        rail: path.rail as u8,
        remote: path.remote,
        standing,
        shunned_by: path.health.shunned_by(health).max(of_rail),
        spare: path.spare,
        ranks: path.ranks,
        in_run: peer.in_run(path),
        credits: u32::MAX - path.sends.iter().sum::<usize>() as u32,
        queued_bytes: path.queued_bytes,
        turn: path.turn,
    }
}

/// Adds the paths that are avoided and due to be tried again. Spare ones only if they were used.
fn probes(
    now_us: u64,
    rails: &[Option<Rail>],
    peer: &mut Peer,
    inputs: &[PathInput],
    health: &HealthConfig,
    selection: &mut Selection,
) {
    let well = |input: &PathInput| input.is_usable() && input.shunned_by == 0;
    if inputs.iter().all(well) {
        return;
    }
    let chosen = selection.choices().first().map(|choice| choice.path);
    for ((index, path), input) in (0u8..).zip(&peer.paths).zip(inputs) {
        if well(input) || input.standing == Standing::Blocked || Some(index) == chosen {
            continue;
        }
        let Some(rail) = &rails[path.rail] else {
            continue;
        };
        let by_health =
            path.health.probe_due(now_us, health) || rail.health.probe_due(now_us, health);
        let due = if path.spare {
            path.addresses.is_some() && path.health.probe_due(now_us, health)
        } else {
            peer.hearing.probe_due(now_us, path.rail) || by_health
        };
        if due {
            selection.add_probe(choice(index, path));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Arrival, Fabric, FabricConfig, Transport};

    fn open(rails: &str) -> Fabric {
        let library = crate::load().expect("libfabric is installed where tests run");
        let rails = rails.split(',').map(|nid| nid.parse().unwrap()).collect();
        Fabric::open(&FabricConfig::new(library, rails)).unwrap()
    }

    /// What has come, when nothing more does: on loopback it is there when it was sent.
    fn received(fabric: &mut Fabric) -> Vec<(usize, Vec<u8>)> {
        let mut received = Vec::new();
        let mut keep = |arrival: Arrival<'_>| received.push((arrival.rail, arrival.bytes.to_vec()));
        while fabric.poll(0, &mut keep) {}
        received
    }

    /// RS-06, snd-085, dbg-115: a send that fails after all goes by another rail, a bounded number of times.
    #[test]
    fn news_that_failed_under_way_goes_by_another_rail_and_beats_do_not() {
        let mut a = open("127.41.40.1:0@udp,127.41.40.2:0@udp");
        let mut b = open("127.41.41.1:0@udp,127.41.41.2:0@udp");
        let to_b = a.peer(&b.local_nids()).unwrap();
        let error = a
            .config
            .library
            .error("fi_cq_readerr", libc::ENETDOWN.into());
        let fail = |a: &mut Fabric, class: Class, tried: Tried| {
            // As if it had been taken before, by the first path.
            let path = &mut a.peers.get_mut(to_b).unwrap().paths[0];
            path.sends[class as usize] += 1;
            let tag = SendTag {
                tried,
                peer: to_b.index,
                generation: to_b.generation,
                path: path.id,
                bytes: 0,
            };
            a.send_failed(1, 0, class, tag, &error, b"late");
        };
        fail(&mut a, Class::Beat, Tried::default());
        fail(&mut a, Class::News, Tried::default());
        assert_eq!(received(&mut b), [(1, b"late".to_vec())]);
        let (own, theirs) = (a.local_nids(), b.local_nids());
        let pair = |index: usize| {
            (
                own.as_slice()[index].clone(),
                theirs.as_slice()[index].clone(),
            )
        };
        let moved = FabricEvent::Moved {
            peer: to_b,
            from: pair(0),
            to: pair(1),
        };
        assert!(std::iter::from_fn(|| a.poll_event()).any(|event| event == moved));
        // All were tried: given up, and counted before.
        let mut tried = Tried::default();
        for index in 0..4 {
            let path = &a.peers.get(to_b).unwrap().paths[index];
            tried.note(choice(index as u8, path), DropReason::ProviderError);
        }
        fail(&mut a, Class::News, tried);
        assert_eq!(received(&mut b), []);
        let drops = a.paths(to_b)[0].counters.dropped(DropReason::ProviderError);
        assert_eq!(drops, 3);
    }
}
