//! Step 4: health of this node's rails and of its peers' rails.
//!
//! A member is *degraded* while one of its rails is silent to this node and another is not, while it reports a failed
//! rail itself, or while it is heard through relays only. If a rail is late, its member is probed on all rails.

use super::{EventLoop, instant};
use crate::rails::nid_of;
use crate::status::RAILS_KEY;
use muster_control::rail_status::RailStatus;
use muster_fabric::{
    DropReason, FabricEvent, HealthState, Nid, NidList, Pace, PeerHandle, Transport,
};
use muster_protocol::{Event, EventKind, Input, MemberId, Reject};
use muster_sys::clock::monotonic_ns;
use std::collections::BTreeMap;
use tracing::{error, info, warn};

impl EventLoop {
    /// Events of the fabric about rails and peers.
    pub(super) fn check_liveness(&mut self) {
        self.watch_beats();
        while let Some(event) = self.fabric.poll_event() {
            self.timing.worked = true;
            self.handle_rail_event(event);
        }
    }

    fn handle_rail_event(&mut self, event: FabricEvent) {
        match event {
            FabricEvent::PeerGone { peer } | FabricEvent::PeerEnded { peer } => {
                if let Some(member) = self.monitor.watched.get(&peer).copied() {
                    let has_ended = matches!(event, FabricEvent::PeerEnded { .. });
                    info!(id = member.0, has_ended, "a liveness connection was closed");
                    self.input(match has_ended {
                        true => Input::Ended(member),
                        false => Input::Unreachable(member),
                    });
                }
            }
            FabricEvent::RailLate { peer, .. } => {
                if let Some(member) = self.monitor.watched.get(&peer).copied() {
                    self.input(Input::Ask(member));
                }
            }
            FabricEvent::RailSilent {
                peer,
                rail,
                silent_us,
                worked: true,
            } => {
                self.note_silent(peer, rail, Some(silent_us));
            }
            FabricEvent::RailSilent { peer, rail, .. } => self.note_no_path(peer, rail),
            FabricEvent::RailBack { peer, rail } => self.note_silent(peer, rail, None),
            FabricEvent::PeerIndirect { peer } => self.note_indirect(peer, true),
            FabricEvent::PeerDirect { peer } => self.note_indirect(peer, false),
            FabricEvent::UnknownNid { nid } => self.resolve_peer(&nid),
            FabricEvent::RailFailing { rail, reason } => self.note_own(rail, Some(&reason)),
            FabricEvent::RailRecovered { rail } => self.note_own(rail, None),
            FabricEvent::RailStale { rail, reason } => self.renew_rail(rail, reason),
            FabricEvent::RailHealth {
                rail,
                state,
                reason,
            } => self.note_health(rail, state, &reason),
            FabricEvent::RailSpeed {
                rail,
                mbits,
                best_mbits,
            } => self.note_speed(rail, mbits, best_mbits),
            FabricEvent::Moved {
                from, to, reason, ..
            } => {
                let ((local, remote), (by, at)) = (from, to);
                error!(
                    %local, %remote, %by, %at, reason,
                    "a send failed on one pair of NIDs and is repeated on another"
                );
            }
            FabricEvent::NewsFailed { tried, .. } => {
                let now_us = monotonic_ns() / 1000;
                let reason = DropReason::ProviderError;
                self.monitor.drops.dropped(now_us, reason, || tried);
            }
            // An agent sends no bulk messages.
            FabricEvent::BulkDone { .. }
            | FabricEvent::BulkFailed { .. }
            | FabricEvent::BulkSent { .. }
            | FabricEvent::Asked { .. }
            | FabricEvent::Answered { .. } => {}
        }
    }

    /// A watched member is silent on one of this node's rails, or not any more. dbg-020: the fabric counts it.
    fn note_silent(&mut self, peer: PeerHandle, rail: usize, silent_us: Option<u64>) {
        let Some(member) = self.monitor.watched.get(&peer).copied() else {
            return;
        };
        let rails = self.monitor.silent_rails.entry(member).or_default();
        let changed = match silent_us {
            Some(_) => rails.insert(rail),
            None => rails.remove(&rail),
        };
        if !changed {
            return;
        }
        let name = self.tree.name_of(member).unwrap_or("?");
        match silent_us {
            Some(us) => warn!(name, rail, us, "this member is heard on other rails only"),
            None => info!(name, rail, "this member is heard on this rail again"),
        }
        self.check_rails(member);
    }

    /// A watched member was never heard on one of this node's rails. This is not a failure: the path is avoided, and
    /// retried at intervals.
    fn note_no_path(&self, peer: PeerHandle, rail: usize) {
        let member = self.monitor.watched.get(&peer).copied();
        if let Some(name) = member.and_then(|member| self.tree.name_of(member)) {
            info!(
                name,
                rail, "there is no path: this member was heard on other rails only"
            );
        }
    }

    /// A watched member is heard through relays only, or directly again.
    fn note_indirect(&mut self, peer: PeerHandle, indirect: bool) {
        let Some(member) = self.monitor.watched.get(&peer).copied() else {
            return;
        };
        let name = self.tree.name_of(member).unwrap_or("?");
        if indirect {
            warn!(name, "this member is heard through relays only");
            self.monitor.indirect.insert(member);
        } else {
            info!(name, "this member is heard directly again");
            self.monitor.indirect.remove(&member);
        }
        self.check_rails(member);
    }

    /// A frame is to be relayed to a NID that the fabric does not know. Resolves it if it belongs to a member.
    fn resolve_peer(&mut self, nid: &Nid) {
        let has = |address: &[u8]| {
            let nids = String::from_utf8_lossy(address).parse::<NidList>();
            nids.is_ok_and(|nids| nids.iter().any(|one| one == nid))
        };
        let mut members = self.tree.base().members();
        let found = members.find(|member| member.state().in_view() && has(member.address()));
        let id = found.map(|member| member.id());
        drop(members);
        if let Some(id) = id {
            self.peer_of(id);
        }
    }

    /// A rail of this node fails, or works again. dbg-110: a change of state is logged as an error.
    fn note_own(&mut self, rail: usize, reason: Option<&str>) {
        let Some(nid) = nid_of(&self.fabric, rail) else {
            return;
        };
        if let Some(reason) = reason {
            error!(rail = %nid, reason, "a rail of this node fails; the other rails are used");
        } else {
            error!(rail = %nid, "a rail of this node works again");
        }
        self.monitor.status.set(rail, nid, reason.is_some());
        self.check_rails(self.tree.base().id());
    }

    /// The health of a rail of this node has fallen below its maximum, or reached it again. dbg-110: a change of
    /// state is logged as an error.
    fn note_health(&self, rail: usize, state: HealthState, reason: &str) {
        if let Some(nid) = nid_of(&self.fabric, rail) {
            let state = state.word();
            error!(rail = %nid, state, reason, "the health of a rail of this node has changed");
        }
    }

    /// A rail of this node is slower than before, or as fast again. dbg-110: a change of state is logged as an error.
    fn note_speed(&mut self, rail: usize, mbits: u32, best_mbits: u32) {
        let Some(nid) = nid_of(&self.fabric, rail) else {
            return;
        };
        if mbits < best_mbits {
            error!(rail = %nid, mbits, best_mbits, "a rail of this node is slower than before");
        } else {
            error!(rail = %nid, mbits, "a rail of this node is as fast as before again");
        }
    }

    /// Publishes the failing rails of this node.
    pub(super) fn publish_status(&mut self) {
        let (now_ns, tree) = (monotonic_ns(), &mut self.tree);
        let published = self.monitor.status.publish(now_ns / 1000, |value| {
            let key = RAILS_KEY;
            match tree.handle(instant(now_ns), Input::Publish { key, value }) {
                Ok(()) => true,
                // The engine of an outcast accepts no more inputs.
                Err(Reject::Stopped) => false,
                // Age gossip does not distribute attributes, so there is no receiver.
                Err(Reject::NoAttributes) => true,
                Err(reject) => {
                    warn!(
                        ?reject,
                        "the failing rails of this node cannot be published yet; the agent retries"
                    );
                    false
                }
            }
        });
        if published {
            // A later worker must not publish another value under the same number.
            self.lifetime.snapshot_due_us = Some(0);
        }
    }

    /// A member has published its failing rails, has failed or left, or has returned.
    pub(super) fn note_status_event(&mut self, event: &Event) {
        let gone = matches!(
            event.kind,
            EventKind::NodeFailed | EventKind::NodeLeft { .. }
        );
        let is_published = match event.kind {
            EventKind::AttributeChanged { key, .. } => {
                self.tree.base().changed_key(key) == Some(RAILS_KEY)
            }
            _ => false,
        };
        let member = event.member;
        if !(gone || is_published) || member == self.tree.base().id() {
            return;
        }
        let value = self
            .tree
            .base()
            .attribute(member, RAILS_KEY)
            .filter(|_| is_published);
        let status = value.and_then(RailStatus::read).unwrap_or_default();
        let nids = status.failing;
        if nids.is_empty() && !self.monitor.reported_failing.contains_key(&member) {
            return;
        }
        if let Some(peer) = self.peer_of(member) {
            self.fabric.told_failing(peer, &nids);
        }
        match nids.is_empty() {
            true => _ = self.monitor.reported_failing.remove(&member),
            false => _ = self.monitor.reported_failing.insert(member, nids),
        }
        if !gone {
            self.check_rails(member);
        }
    }

    /// Tells the engine whether a member is degraded.
    pub(super) fn check_rails(&mut self, member: MemberId) {
        let silent = self.monitor.silent_rails.get(&member);
        let degraded = silent.is_some_and(|rails| !rails.is_empty())
            || self.monitor.indirect.contains(&member)
            || self.monitor.reported_failing.contains_key(&member)
            || member == self.tree.base().id() && self.monitor.status.is_failing();
        // The engine accepts this only for members in the view.
        if self
            .tree
            .base()
            .member(member)
            .is_some_and(|one| one.state().in_view())
        {
            self.input(Input::Degraded { member, degraded });
        }
    }

    /// Forgets all silences and stops watching, because rails or peers have changed. `watch_beats` starts again.
    pub(super) fn forget_silences(&mut self) {
        self.monitor.watched.clear();
        let indirect = std::mem::take(&mut self.monitor.indirect);
        let silent = std::mem::take(&mut self.monitor.silent_rails).into_keys();
        for member in silent.chain(indirect) {
            self.check_rails(member);
        }
    }

    /// Makes the fabric watch exactly the members that send beats to this node. Only they send regularly on each
    /// rail, so only their silence on one rail is significant.
    fn watch_beats(&mut self) {
        if self.peers.cleared != self.monitor.directory_generation {
            self.monitor.directory_generation = self.peers.cleared;
            self.forget_silences();
        }
        if self.tree.observing().count() == self.monitor.watched.len()
            && self.tree.observing().all(|id| self.is_watched(id))
        {
            return;
        }
        let observing: Vec<MemberId> = self.tree.observing().collect();
        let wanted: BTreeMap<PeerHandle, MemberId> = observing
            .into_iter()
            .filter_map(|member| Some((self.peer_of(member)?, member)))
            .collect();
        let now_us = monotonic_ns() / 1000;
        let gone: Vec<_> = self
            .monitor
            .watched
            .iter()
            .filter(|(peer, member)| wanted.get(peer) != Some(member))
            .map(|(peer, member)| (*peer, *member))
            .collect();
        for (peer, member) in gone {
            self.fabric.unwatch(peer);
            self.monitor.watched.remove(&peer);
            let was_silent = self.monitor.silent_rails.remove(&member).is_some();
            if self.monitor.indirect.remove(&member) || was_silent {
                self.check_rails(member);
            }
        }
        let rails = self.fabric.rail_count() as u64;
        let pace = Pace::of_beats(self.timing.heartbeat_us, self.timing.deadline_us, rails);
        for (peer, member) in wanted {
            if self.monitor.watched.insert(peer, member).is_none() {
                self.fabric.watch(now_us, peer, pace);
            }
        }
    }

    /// Whether a member is watched under its current address. After a change of rails it may be another peer.
    fn is_watched(&self, id: MemberId) -> bool {
        let address = self.tree.address_of_member(id);
        let peer = address.and_then(|address| self.peers.known(address));
        peer.is_some_and(|peer| self.monitor.watched.get(&peer) == Some(&id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin_endpoint::AdminEndpoint;
    use crate::cpu_placement::CpuPlacement;
    use crate::descriptors::{Descriptors, Renewals};
    use crate::rails::Rails;
    use crate::signals::Signals;
    use muster_config::RailsDocument;
    use muster_fabric::{Fabric, FabricConfig, PathState};
    use muster_protocol::{Config, Instant, Overlay, Profile};
    use muster_zones::Tree;
    use std::slice;

    /// Two engines that exchange frames directly until both are members.
    fn engines(addresses: [&str; 2]) -> [Overlay; 2] {
        let mut engines = [("own", 0), ("other", 1)].map(|(name, at)| {
            let mut config = Config::new(name, addresses[at].as_bytes(), Profile::Standard);
            config.seeds = vec![addresses[0].as_bytes().to_vec()];
            config.key = Some([7; 32]);
            config.incarnation = 1;
            Overlay::new(config).unwrap()
        });
        let mut buffer = vec![0; 1472];
        for ms in 1.. {
            let now = Instant(monotonic_ns() / 1000 + ms * 1000);
            for from in [0, 1] {
                let [one, other] = engines.get_disjoint_mut([from, 1 - from]).unwrap();
                if one.poll_timeout() <= now {
                    one.handle(now, Input::Wake).unwrap();
                }
                while let Some(transmit) = one.poll_transmit(now, &mut buffer) {
                    let bytes = &buffer[..transmit.size];
                    let _ = other.handle(now, Input::Datagram { bytes });
                }
            }
            if engines.iter().all(|engine| engine.live() == 2) {
                break;
            }
            assert!(ms < 10_000, "the engines did not join");
        }
        engines
    }

    /// A member's report of failing rails also applies to a peer that is created later.
    #[test]
    fn a_peer_that_is_created_later_has_the_reported_failing_rails() {
        let given = [
            "127.59.5.1:0@udp0",
            "127.59.5.2:7002@udp0,127.59.5.3:7002@udp0",
        ];
        let library = muster_fabric::load().expect("libfabric is installed where tests run");
        let rail = vec![given[0].parse().unwrap()];
        let fabric = Fabric::open(&FabricConfig::new(library, rail)).unwrap();
        let own = fabric.local_nids();
        let document = RailsDocument::import("version: 1\n").unwrap();
        let rails = Rails::new(
            document,
            own.iter().cloned().collect(),
            CpuPlacement::default(),
        );
        let [engine, _other] = engines([&own.to_string(), given[1]]);
        let (signals, profile) = (Signals::install().unwrap(), Profile::Standard);
        let admin_endpoint = AdminEndpoint::default();
        let mut event_loop = EventLoop::new(
            (fabric, rails),
            Tree::flat(engine.into()),
            None,
            admin_endpoint,
            profile,
            signals,
            Descriptors::new(None, Renewals::default()),
        )
        .unwrap();
        let member = MemberId::of("other");
        let bad: Nid = "127.59.5.3:7002@udp0".parse().unwrap();
        event_loop
            .monitor
            .reported_failing
            .insert(member, vec![bad.clone()]);
        let failing = |event_loop: &mut EventLoop| -> Vec<Nid> {
            let peer = event_loop.peer_of(member).unwrap();
            let paths = event_loop.fabric.paths(peer).into_iter();
            let failed = paths.filter(|path| path.state == PathState::Failed);
            failed.map(|path| path.nid).collect()
        };
        assert_eq!(failing(&mut event_loop), slice::from_ref(&bad));
        // The address is released in between.
        let address = given[1].as_bytes();
        event_loop.peers.release(&mut event_loop.fabric, address);
        assert_eq!(failing(&mut event_loop), [bad]);
    }
}
