//! Outgoing messages: the choice of paths, the posting of messages, and the results.

use super::Fabric;
use super::receive::RECEIVE_FAILING;
use crate::lane::{SendTag, drop_reason};
use crate::lane_names::is_announcement;
use crate::message::{Class, Route};
use crate::peer::{Path, Peer};
use crate::peer_handle::PeerHandle;
use crate::rail::Rail;
use crate::relay::{ENVELOPE_BYTES, is_envelope};
use crate::select::{
    self, Choice, PathInput, RailInput, Request, Selection, Standing, TRIES_MAX, Tried,
};
use crate::stats::DropReason;
use crate::transport::FabricEvent;
use crate::view::serves;
use muster_provider::{CallError, NIDS_MAX, Nid, Posted};
use muster_rail_health::{Blame, HealthChange, HealthConfig, Outcome};
use rustix::io::Errno;

impl Fabric {
    /// The paths of a message, and avoided paths that are probed with a copy of it.
    pub(super) fn select_paths(
        &mut self,
        now_us: u64,
        handle: PeerHandle,
        route: Route,
        tried: &Tried,
    ) -> Selection {
        let mut selection = Selection::default();
        let mut inputs = std::mem::take(&mut self.inputs);
        match route {
            Route::All => self.add_all(handle, &mut inputs, &mut selection),
            Route::Next => {
                if let Some(choice) = self.next_path_of(handle, tried, &mut inputs) {
                    selection.add(choice);
                }
                if let Some(peer) = self.peers.get_mut(handle) {
                    let health = &self.config.health;
                    probes(now_us, &self.rails, peer, &inputs, health, &mut selection);
                }
            }
        }
        if self.peers.get(handle).is_none() {
            self.unknown_peer_drops += 1;
        } else if selection.choices().is_empty() && tried.count() == 0 {
            self.no_path_drops += 1;
        }
        self.inputs = inputs;
        selection
    }

    /// The path of one message, without probes of other paths.
    pub(super) fn select_path(&mut self, handle: PeerHandle, tried: &Tried) -> Option<Choice> {
        let mut inputs = std::mem::take(&mut self.inputs);
        let choice = self.next_path_of(handle, tried, &mut inputs);
        self.inputs = inputs;
        choice
    }

    /// Chooses the next message's path. `inputs` receives those of the paths that were considered.
    fn next_path_of(
        &mut self,
        handle: PeerHandle,
        tried: &Tried,
        inputs: &mut Vec<PathInput>,
    ) -> Option<Choice> {
        inputs.clear();
        let peer = self.peers.get_mut(handle)?;
        let rails = rail_inputs(&self.rails, self.memory_node);
        let health = &self.config.health;
        let request = Request {
            numa_range: self.config.numa_range,
            tried: *tried,
            back: None,
        };
        // Home paths come first. If one works and there are no rules, no spare path would be chosen, so none is
        // considered.
        let plain = self.config.policy.rules().is_empty() && request.is_first();
        for path in &peer.paths {
            let decided = plain && path.spare && inputs.iter().any(PathInput::is_usable);
            if decided {
                break;
            }
            inputs.push(input(&self.rails, peer, path, health));
        }
        let choice = select::choose(&request, &rails, inputs)?;
        peer.take(usize::from(choice.path));
        Some(choice)
    }

    /// Adds all home paths, and if none of them works, the working spare ones.
    fn add_all(&self, handle: PeerHandle, inputs: &mut Vec<PathInput>, selection: &mut Selection) {
        inputs.clear();
        let Some(peer) = self.peers.get(handle) else {
            return;
        };
        let health = &self.config.health;
        let input = |path: &Path| input(&self.rails, peer, path, health);
        inputs.extend(peer.paths.iter().map(input));
        let known = || (0u8..).zip(&peer.paths).zip(inputs.iter());
        let works = |spare| known().any(|((_, path), one)| path.spare == spare && one.is_usable());
        let spare_too = !works(false) && works(true);
        for ((index, path), input) in known() {
            if !path.spare || spare_too && input.is_usable() {
                selection.add(choice(index, path));
            }
        }
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
        self.announce(now_us, handle, index);
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
        let Some((class, address)) = rail.lanes.choose(class, path) else {
            path.counters.count_drop(DropReason::NoPath);
            rail.counters.count_drop(DropReason::NoPath);
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
        } else {
            let tag = SendTag {
                peer: handle.index,
                generation: handle.generation,
                path: path.id,
                bytes: bytes.len() as u32,
                tried,
                again_us: self.config.timeouts.again_us(now_us, tried.count()),
            };
            let lane = rail.lanes.of(class);
            lane.send(address, tag, bytes).map_err(drop_reason)
        };
        match result {
            Ok(posted) => {
                path.counters.count_send(bytes.len());
                rail.counters.count_send(bytes.len());
                path.usage.count(now_us);
                rail.usage.count(now_us);
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
                        self.report_rail_change(rail_index, change, "");
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

    /// Makes the address of a path known that was not needed, or could not be resolved, before.
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
                Ok(addresses) => path.addresses = Some(addresses),
                Err(_) => _ = path.health.tell(now_us, Outcome::ConnectError, &health),
            }
        }
    }

    /// Handles the end of a send that was under way; `error` if it failed.
    pub(super) fn send_ended(
        &mut self,
        now_us: u64,
        rail_index: usize,
        class: Class,
        tag: SendTag,
        error: Option<&CallError>,
    ) {
        let handle = tag.peer();
        let health = self.config.health;
        let timed_out = error.is_some_and(|error| error.code == Errno::TIMEDOUT.raw_os_error());
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
                self.report_rail_change(rail_index, change, "");
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

    /// Handles a send that was under way and has failed. News is sent by another path, at most as often as one
    /// message may be tried. A beat is stale by now and is dropped.
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
        if class == Class::Beat {
            self.under_way_drops += 1;
        } else if !tag.is_sent_again() {
            let tried = self.tried_with(&tag, requeue_reason(error));
            self.resend(tag, tried, bytes, &error.to_string());
        }
    }

    /// The paths that were tried for a message, with that of this send, which failed for this reason.
    pub(super) fn tried_with(&self, tag: &SendTag, reason: DropReason) -> Tried {
        let peer = self.peers.get(tag.peer());
        let mut numbered = (0u8..).zip(peer.map_or(&[][..], |peer| &peer.paths));
        // If the path was removed, the indices in `tag.tried` are not valid any more: any path will do.
        let Some((index, path)) = numbered.find(|(_, path)| path.id == tag.path) else {
            return Tried::default();
        };
        let mut tried = tag.tried;
        tried.note(choice(index, path), reason);
        tried
    }

    /// Sends news by a path that was not tried, or through another member. Returns false if there is none; the paths
    /// that refused it are added to `tried`.
    pub(super) fn send_again(
        &mut self,
        tag: &SendTag,
        tried: &mut Tried,
        bytes: &[u8],
        reason: &str,
    ) -> bool {
        let (now_us, handle) = (self.now_us, tag.peer());
        while (tried.count() as usize) < TRIES_MAX {
            let Some(choice) = self.select_path(handle, tried) else {
                break;
            };
            let index = usize::from(choice.path);
            match self.post_on(now_us, handle, index, Class::News, bytes, *tried) {
                Ok(()) => {
                    self.note_moved(handle, tag.path, index, reason);
                    return true;
                }
                Err(reason) => tried.note(choice, reason),
            }
        }
        !is_envelope(bytes) && self.relay_copies(now_us, handle, Class::News, bytes) > 0
    }

    /// Sends failed news by a path that was not tried; if there is none, reports the failure.
    pub(super) fn resend(&mut self, tag: SendTag, mut tried: Tried, bytes: &[u8], reason: &str) {
        let handle = tag.peer();
        if is_announcement(bytes) {
            // It is made again for the path that it is about.
            if let Some(path) = self.peers.path_by_id(handle, tag.path) {
                path.announced = false;
            }
            return;
        }
        if self.send_again(&tag, &mut tried, bytes, reason) {
            return;
        }
        self.under_way_drops += 1;
        if self.peers.get(handle).is_some() {
            let tried = self.pairs_tried(handle, &tried);
            self.push_event(FabricEvent::NewsFailed {
                peer: handle,
                tried,
            });
        }
    }

    /// Returns the news that is under way on a rail which is about to be closed. Beats are stale by then, and are
    /// only counted.
    pub(super) fn take_under_way(&mut self, rail: usize) -> Vec<(SendTag, Vec<u8>)> {
        let Some(rail) = &self.rails[rail] else {
            return Vec::new();
        };
        self.under_way_drops += rail.lanes.beats.under_way().count() as u64;
        let news = rail.lanes.news.under_way();
        let news = news.filter(|(_, tag, _)| !tag.is_sent_again());
        news.map(|(_, tag, bytes)| (tag, bytes.to_vec())).collect()
    }

    /// The pairs of a local and a remote NID that failed for a message to a peer.
    #[must_use]
    pub fn pairs_tried(&self, peer: PeerHandle, tried: &Tried) -> Vec<(Nid, Nid)> {
        let paths = self.peers.get(peer).map_or(&[][..], |peer| &peer.paths);
        let paths = paths.iter().enumerate();
        let in_vain = paths.filter(|(index, _)| tried.has_path(*index));
        in_vain.filter_map(|(_, path)| self.pair_of(path)).collect()
    }

    /// dbg-115: reports which pair a message left, and which replaces it.
    pub(super) fn note_moved(&mut self, peer: PeerHandle, from: u32, to: usize, reason: &str) {
        let Some(known) = self.peers.get(peer) else {
            return;
        };
        let from = known.paths.iter().find(|path| path.id == from);
        let pairs = from
            .zip(known.paths.get(to))
            .and_then(|(from, to)| Some((self.pair_of(from)?, self.pair_of(to)?)));
        if let Some((from, to)) = pairs {
            let reason = reason.to_owned();
            self.push_event(FabricEvent::Moved {
                peer,
                from,
                to,
                reason,
            });
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
        // An error of the rail alone does not change the path's own health.
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
            let has_lost_device = rail.has_lost_device(error);
            if change.is_some() {
                self.report_rail_change(index, change, &error.to_string());
            }
            if has_lost_device {
                let reason = "its device was removed";
                self.push_event(FabricEvent::RailStale {
                    rail: index,
                    reason,
                });
            }
        }
    }

    /// Reports a change of a rail's health to the host.
    pub(super) fn report_rail_change(
        &mut self,
        rail: usize,
        change: Option<HealthChange>,
        reason: &str,
    ) {
        match change {
            None => {}
            Some(HealthChange::Failed) => {
                self.leave_rail(rail);
                self.push_event(FabricEvent::RailFailing {
                    rail,
                    reason: reason.to_owned(),
                });
            }
            // The rail still fails for another reason.
            Some(HealthChange::Recovered)
                if self.rails[rail]
                    .as_ref()
                    .is_some_and(|one| one.receive_failing) =>
            {
                self.push_event(FabricEvent::RailFailing {
                    rail,
                    reason: RECEIVE_FAILING.to_owned(),
                });
            }
            Some(HealthChange::Recovered) => self.push_event(FabricEvent::RailRecovered { rail }),
            Some(HealthChange::Shifted) => {
                let Some(state) = self.rails[rail].as_ref().map(|one| one.health.state()) else {
                    return;
                };
                let reason = reason.to_owned();
                self.push_event(FabricEvent::RailHealth {
                    rail,
                    state,
                    reason,
                });
            }
        }
    }
}

/// After a local failure another rail to the same NID is tried first, after all other failures another NID.
fn requeue_reason(error: &CallError) -> DropReason {
    match Outcome::of_code(error.code).blame() {
        Blame::Local => DropReason::RailBusy,
        Blame::Remote => DropReason::ProviderError,
    }
}

pub(super) fn choice(index: u8, path: &Path) -> Choice {
    Choice {
        path: index,
        rail: path.rail as u8,
        remote: path.remote,
    }
}

/// The rails as inputs of a choice, by index.
pub(super) fn rail_inputs(
    rails: &[Option<Rail>],
    memory_node: Option<u32>,
) -> [RailInput; NIDS_MAX] {
    let mut inputs = [RailInput::default(); NIDS_MAX];
    for (input, rail) in inputs.iter_mut().zip(rails) {
        if let Some(rail) = rail {
            let (now, most) = (rail.lanes.credits(), rail.lanes.credits_most());
            let (credits, queued_bytes) = load(now, most, rail.queued_bytes);
            *input = RailInput {
                foreign: !serves(&rail.partitions, memory_node),
                distance: rail.distance,
                credits,
                queued_bytes,
            };
        }
    }
    inputs
}

/// A rail's load as it counts in a choice, in credits and queued bytes: not at all as long as half of the rail's
/// credits are free. Some providers complete a send at once, others hold it until the next poll. If each credit
/// counted, all messages of one turn would go by the former.
pub(super) fn load(credits: u32, most: u32, queued_bytes: u64) -> (u32, u64) {
    match 2 * u64::from(credits) < u64::from(most) {
        true => (credits, queued_bytes),
        false => (u32::MAX, 0),
    }
}

/// One path as input of a choice.
pub(super) fn input(
    rails: &[Option<Rail>],
    peer: &Peer,
    path: &Path,
    health: &HealthConfig,
) -> PathInput {
    let rail = rails[path.rail].as_ref();
    let failed = rail.is_none_or(Rail::is_avoided);
    let standing = if path.health.is_blocked() {
        Standing::Blocked
    } else if failed
        || path.health.is_failed()
        || peer.rail_liveness.is_silent(path.rail)
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

/// Adds the avoided paths that are due to be probed. Spare paths only if they were used before.
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
            let told_failing = peer.told_failing.contains(&path.nid);
            peer.rail_liveness
                .probe_due(now_us, path.rail, told_failing)
                || by_health
        };
        if due {
            selection.add_probe(choice(index, path));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Arrival, Fabric, FabricConfig, NidList, Transport};

    fn open(rails: &str) -> Fabric {
        let library = crate::load().expect("libfabric is installed where tests run");
        let rails = rails.split(',').map(|nid| nid.parse().unwrap()).collect();
        Fabric::open(&FabricConfig::new(library, rails)).unwrap()
    }

    /// All messages that have arrived. On loopback they are available as soon as they are sent.
    fn received(fabric: &mut Fabric) -> Vec<(usize, Vec<u8>)> {
        let mut received = Vec::new();
        let mut keep = |arrival: Arrival<'_>| received.push((arrival.rail, arrival.bytes.to_vec()));
        while fabric.poll(0, &mut keep) {}
        received
    }

    /// RS-06, snd-085, dbg-115: a send that fails under way is repeated by another rail, a bounded number of times.
    #[test]
    fn news_that_failed_under_way_is_sent_by_another_rail_and_beats_are_not() {
        let mut a = open("127.41.40.1:0@udp,127.41.40.2:0@udp");
        let mut b = open("127.41.41.1:0@udp,127.41.41.2:0@udp");
        let to_b = a.peer(&b.local_nids()).unwrap();
        let error = a
            .config
            .library
            .error("fi_cq_readerr", Errno::NETDOWN.raw_os_error().into());
        let fail = |a: &mut Fabric, class: Class, tried: Tried| {
            // As if the first path had taken it before.
            let path = &mut a.peers.get_mut(to_b).unwrap().paths[0];
            path.sends[class as usize] += 1;
            let tag = SendTag {
                tried,
                peer: to_b.index,
                generation: to_b.generation,
                path: path.id,
                ..SendTag::default()
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
            reason: error.to_string(),
        };
        assert!(std::iter::from_fn(|| a.poll_event()).any(|event| event == moved));
        // All paths were tried: the message is given up, and each failure was counted.
        let mut tried = Tried::default();
        for index in 0..4 {
            let path = &a.peers.get(to_b).unwrap().paths[index];
            tried.note(choice(index as u8, path), DropReason::ProviderError);
        }
        fail(&mut a, Class::News, tried);
        assert_eq!(received(&mut b), []);
        let drops = a.paths(to_b)[0].counters.dropped(DropReason::ProviderError);
        assert_eq!(drops, 3);
        // RS-06: the failure is reported once, with the pairs that were tried. A beat is only counted.
        let reported: Vec<FabricEvent> = std::iter::from_fn(|| a.poll_event())
            .filter(|event| matches!(event, FabricEvent::NewsFailed { .. }))
            .collect();
        let paths = &a.peers.get(to_b).unwrap().paths;
        let tried = paths.iter().map(|path| a.pair_of(path).unwrap()).collect();
        assert_eq!(reported, [FabricEvent::NewsFailed { peer: to_b, tried }]);
        assert_eq!(a.under_way_drops(), 2);
        // Its path was removed meanwhile: another path takes it.
        a.peers.get_mut(to_b).unwrap().paths[0].sends = [0, 2];
        let tag = SendTag {
            peer: to_b.index,
            generation: to_b.generation,
            path: u32::MAX,
            ..SendTag::default()
        };
        a.send_failed(2, 0, Class::News, tag, &error, b"gone");
        assert_eq!(text(&received(&mut b)), ["gone"]);
    }

    /// RS-06: news under way on a rail that is closed is sent by another rail, at worst twice. Beats are counted.
    #[test]
    fn news_under_way_on_a_removed_rail_is_sent_by_another() {
        let library = crate::load().expect("libfabric is installed where tests run");
        let rails = ["127.41.50.1:0@udp", "127.41.50.2:0@udp"].map(|nid| nid.parse().unwrap());
        let mut a = Fabric::open(&FabricConfig {
            inject: false,
            ..FabricConfig::new(library, rails.to_vec())
        })
        .unwrap();
        let mut b = open("127.41.51.1:0@udp,127.41.51.2:0@udp");
        let to_b = a.peer(&b.local_nids()).unwrap();
        // The rails take turns: messages on the second rail stay there.
        for (class, bytes) in [(Class::News, b"news 0"), (Class::Beat, b"beat 1")] {
            a.send(1, to_b, class, Route::Next, bytes);
        }
        a.send(1, to_b, Class::Beat, Route::Next, b"beat 0");
        a.remove_rail(&a.local_nids().as_slice()[0].clone())
            .unwrap();
        let came = text(&received(&mut b));
        let count = |wanted: &str| came.iter().filter(|one| *one == wanted).count();
        assert_eq!(
            (count("news 0"), count("beat 1"), count("beat 0")),
            (2, 1, 1),
            "{came:?}"
        );
        assert_eq!(a.under_way_drops(), 1);
        assert_eq!(a.poll_event(), None, "no news was lost");
    }

    fn text(received: &[(usize, Vec<u8>)]) -> Vec<String> {
        let in_words = |(_, bytes): &(usize, Vec<u8>)| String::from_utf8_lossy(bytes).into_owned();
        received.iter().map(in_words).collect()
    }

    fn pairs(choices: &[Choice]) -> Vec<(u8, u8)> {
        choices.iter().map(|one| (one.rail, one.remote)).collect()
    }

    /// One local rail and another NID of the peer have failed: the one pair that works is spare.
    #[test]
    fn a_message_to_all_takes_spare_pairs_if_no_home_pair_works() {
        let mut a = open("127.41.44.1:0@udp,127.41.44.2:0@udp");
        let b = "127.41.45.1:7001@udp,127.41.45.2:7001@udp".parse().unwrap();
        let to_b = a.peer(&b).unwrap();
        let all = |a: &mut Fabric| {
            let selection = a.select_paths(1, to_b, Route::All, &Tried::default());
            pairs(selection.choices())
        };
        a.rails[0].as_mut().unwrap().receive_failing = true;
        assert_eq!(all(&mut a), [(0, 0), (1, 1)], "one home pair works");
        a.told_failing(to_b, &[b.as_slice()[1].clone()]);
        assert_eq!(all(&mut a), [(0, 0), (1, 1), (1, 0)]);
        a.rails[1].as_mut().unwrap().receive_failing = true;
        assert_eq!(all(&mut a), [(0, 0), (1, 1)], "no pair works");
    }

    #[test]
    fn a_relayed_message_uses_no_probe() {
        let mut a = open("127.41.46.1:0@udp,127.41.46.2:0@udp");
        let b = "127.41.47.1:7001@udp,127.41.47.2:7001@udp".parse().unwrap();
        let to_b = a.peer(&b).unwrap();
        let rail_liveness = &mut a.peers.get_mut(to_b).unwrap().rail_liveness;
        rail_liveness.watch(0, crate::Pace::without_requests(100));
        rail_liveness.heard(150, 1);
        rail_liveness.judge(150, |_| {});
        let (route, tried) = (Route::Next, Tried::default());
        let choice = a.select_path(to_b, &tried).unwrap();
        assert_eq!(choice.rail, 1);
        let selection = a.select_paths(160, to_b, route, &tried);
        assert_eq!(pairs(selection.probes()), [(0, 0)]);
    }

    /// A peer learns from messages on a rail that it works again. If all members avoided it, it would fail for ever.
    #[test]
    fn a_nid_that_its_peer_reports_as_failing_is_probed_once_an_interval() {
        let mut a = open("127.41.50.1:0@udp,127.41.50.2:0@udp");
        let b: NidList = "127.41.51.1:7001@udp,127.41.51.2:7001@udp".parse().unwrap();
        let to_b = a.peer(&b).unwrap();
        a.told_failing(to_b, &[b.as_slice()[1].clone()]);
        let mut tried = |now_us| {
            let selection = a.select_paths(now_us, to_b, Route::Next, &Tried::default());
            pairs(selection.probes()) == [(1, 1)]
        };
        let times = [0, 1, 99_999, 100_000, 100_001, 300_000];
        let due = [true, false, false, true, false, true];
        assert_eq!(
            times.map(&mut tried),
            due,
            "at the same times whether or not the peer is watched"
        );
    }

    /// A rail whose provider holds messages until the next poll takes its turn, until half of its credits are used.
    #[test]
    fn a_rail_that_holds_a_few_messages_keeps_its_turn() {
        let mut a = open("127.41.48.1:0@udp,127.41.48.2:0@udp");
        let b = "127.41.49.1:7001@udp,127.41.49.2:7001@udp".parse().unwrap();
        let to_b = a.peer(&b).unwrap();
        a.rails[0].as_mut().unwrap().queued_bytes = 500;
        let took: Vec<u8> = (0..4)
            .map(|_| a.select_path(to_b, &Tried::default()).unwrap().rail)
            .collect();
        assert_eq!(took, [0, 1, 0, 1]);
        assert_eq!(load(64, 128, 500), load(128, 128, 0));
        assert_eq!(load(63, 128, 500), (63, 500));
    }
}
