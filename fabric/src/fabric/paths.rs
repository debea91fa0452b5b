//! Adding, changing and forgetting of peers, and the paths that lead to them.
//!
//! A path persists as long as its rail and its NID do, with its health, its figures and its sends under way. The
//! addresses of home paths are made known to the provider at once, so that an unreachable peer is refused. The
//! addresses of spare paths, and those that a provider has to resolve, are made known when they are needed.

use super::Fabric;
use crate::error::PeerError;
use crate::peer::{self, Pair, Path, Peer};
use crate::peer_handle::PeerHandle;
use crate::policy::Policy;
use crate::rail::{self, Rail};
use crate::select::Choice;
use crate::stats::DropReason;
use crate::transport::FabricEvent;
use muster_provider::{Nid, NidList};
use std::net::SocketAddrV4;

impl Fabric {
    pub(super) fn add_peer(&mut self, nids: &NidList) -> Result<PeerHandle, PeerError> {
        if self.peers.len() >= self.config.peers_max {
            return Err(PeerError::ManyPeers {
                limit: self.config.peers_max,
            });
        }
        self.check_owners(nids, None)?;
        let paths = self.match_paths(Vec::new(), nids);
        let paths = match self.open_home(paths, nids) {
            // The peer can only be reached through other members.
            Err((PeerError::NoCommonNet { .. }, none)) if self.may_relay(nids) => none,
            opened => opened.map_err(|(error, _)| error)?,
        };
        let handle = self.peers.insert(Peer::new(nids.clone(), paths));
        self.own(nids, handle);
        Ok(handle)
    }

    /// Whether other members may carry to these NIDs: all must have an address and a port.
    fn may_relay(&self, nids: &NidList) -> bool {
        let has_address = |nid: &Nid| nid.socket_address().is_some_and(|at| at.port() != 0);
        self.config.relay && nids.iter().all(has_address)
    }

    pub(super) fn replace_nids(
        &mut self,
        handle: PeerHandle,
        nids: &NidList,
    ) -> Result<(), PeerError> {
        if self.peers.get(handle).is_none() {
            return Err(PeerError::Forgotten);
        }
        self.check_owners(nids, Some(handle))?;
        // New paths are opened before anything that exists changes.
        let fresh = self.match_paths(Vec::new(), nids);
        let known = self.peers.get_mut(handle).expect("just seen");
        let (old_nids, old) = (known.nids.clone(), std::mem::take(&mut known.paths));
        let is_new = |path: &Path| !old.iter().any(|one| one.is_same(path.rail, &path.nid));
        let fresh = fresh.into_iter().filter(is_new).collect();
        let opened = self.open_home(fresh, nids);
        let opened = match opened {
            // While old paths remain, it is not an error that no new one can be opened.
            Err((PeerError::NoCommonNet { .. }, paths))
                if self.may_relay(nids)
                    || old
                        .iter()
                        .any(|path| nids.iter().any(|nid| *nid == path.nid)) =>
            {
                Ok(paths)
            }
            other => other,
        };
        let (fresh, result) = match opened {
            Ok(fresh) => (fresh, Ok(())),
            Err((error, _)) => (Vec::new(), Err(error)),
        };
        let new_nids = if result.is_ok() { nids } else { &old_nids };
        let all = old.into_iter().chain(fresh).collect();
        let paths = self.match_paths(all, new_nids);
        let now_us = self.now_us;
        let known = self.peers.get_mut(handle).expect("just seen");
        let ended = known.set_paths(now_us, paths);
        known.nids = new_nids.clone();
        self.disown(&old_nids, handle);
        let new_nids = new_nids.clone();
        self.own(&new_nids, handle);
        self.update_observer(handle);
        self.end_silences(handle, ended);
        self.find_receive_failing_rails();
        result
    }

    /// Notes which of its NIDs a peer reports as failing. They are avoided until its next report. Bulk messages under
    /// way to them are sent by others.
    pub fn told_failing(&mut self, handle: PeerHandle, nids: &[Nid]) {
        let Some(peer) = self.peers.get_mut(handle) else {
            return;
        };
        if peer.told_failing == nids {
            return;
        }
        peer.told_failing = nids.to_vec();
        let is_told = |_: &Choice, path: &Path| nids.contains(&path.nid);
        self.leave_path(handle, is_told, DropReason::ProviderError);
    }

    pub(super) fn remove_peer(&mut self, handle: PeerHandle) {
        if let Some(peer) = self.peers.remove(handle) {
            self.disown(&peer.nids, handle);
            self.close_paths(peer.paths);
            self.relay_state.carried.forget(handle);
            self.update_observer(handle);
            let streams = || peer.bulk.iter().flat_map(|bulk| bulk.streams());
            for receiver in streams().map(|stream| &stream.receiver) {
                let begun = u64::from(receiver.is_busy());
                self.bulk_unfinished += receiver.dropped + begun;
            }
            for message in streams().flat_map(|stream| stream.sender.waiting()) {
                self.push_event(FabricEvent::BulkFailed {
                    peer: handle,
                    message,
                    tried: Vec::new(),
                    through: Vec::new(),
                });
            }
            if let Some(mut bulk) = peer.bulk {
                self.rails_in_doubt = true;
                self.report_unanswered(handle, bulk.gets.expired(u64::MAX));
            }
        }
    }

    /// Pairs all peers again with the open rails, by the policy in force.
    pub(super) fn pair_all(&mut self) {
        let handles: Vec<PeerHandle> = self.peers.iter().map(|(handle, _)| handle).collect();
        for handle in handles {
            let Some(known) = self.peers.get_mut(handle) else {
                continue;
            };
            let (nids, paths) = (known.nids.clone(), std::mem::take(&mut known.paths));
            let paths = self.match_paths(paths, &nids);
            let now_us = self.now_us;
            if let Some(known) = self.peers.get_mut(handle) {
                let ended = known.set_paths(now_us, paths);
                self.end_silences(handle, ended);
            }
            self.update_observer(handle);
        }
        self.find_receive_failing_rails();
    }

    /// Reports the end of a silence for rails that do not lead to a peer any more: no message will arrive there.
    fn end_silences(&mut self, peer: PeerHandle, rails: Vec<usize>) {
        for rail in rails {
            self.push_event(FabricEvent::RailBack { peer, rail });
        }
    }

    /// Observes the liveness connections of a watched peer, one for each home path, and closes all others.
    pub(super) fn update_observer(&mut self, handle: PeerHandle) {
        let Some(observer) = &mut self.observer else {
            return;
        };
        let watched = self
            .peers
            .get(handle)
            .filter(|one| one.rail_liveness.is_watched());
        let paths = watched.into_iter().flat_map(|peer| &peer.paths);
        let way = |path: &Path| {
            let rail = self.rails[path.rail].as_ref()?;
            let own = rail.nid.socket_address()?;
            Some((*own.ip(), path.nid.liveness_address()?))
        };
        let ways: Vec<_> = paths.filter(|path| !path.spare).filter_map(way).collect();
        observer.observe(handle, &ways);
    }

    /// The paths between rails and NIDs: existing ones, and new ones that are not open yet. Paths that do not exist
    /// any more are closed.
    fn match_paths(&mut self, mut old: Vec<Path>, nids: &NidList) -> Vec<Path> {
        let rails = self.own_rails();
        let pairs = peer::pairs(&rails, nids);
        let mut paths = Vec::with_capacity(pairs.len());
        for pair in pairs {
            let nid = &nids.as_slice()[usize::from(pair.remote)];
            let is_same = |path: &Path| path.is_same(pair.rail, nid);
            let mut path = match old.iter().position(is_same) {
                Some(index) => old.swap_remove(index),
                None => self.new_path(&pair, nid),
            };
            path.remote = pair.remote;
            path.spare = pair.spare;
            path.ranks = rank(&self.config.policy, self.rails[pair.rail].as_ref(), nid);
            paths.push(path);
        }
        self.close_paths(old);
        paths
    }

    fn new_path(&mut self, pair: &Pair, nid: &Nid) -> Path {
        self.next_path = self.next_path.wrapping_add(1);
        Path::new(self.next_path, pair, nid.clone(), Default::default())
    }

    /// Makes the addresses of home paths known to the rails. If the provider refuses an address and took another, the
    /// refused one is tried again when it is needed. A NID without an address or port refuses the peer. If there are
    /// no paths, they are returned with the error.
    fn open_home(
        &mut self,
        mut paths: Vec<Path>,
        nids: &NidList,
    ) -> Result<Vec<Path>, (PeerError, Vec<Path>)> {
        if paths.is_empty() {
            let rails = self.open_rails().map(|(_, rail)| &rail.nid);
            let error = PeerError::NoCommonNet {
                peer: nids.to_string(),
                peer_nets: nets(nids.iter()),
                own_nets: nets(rails),
            };
            return Err((error, paths));
        }
        let (mut taken, mut refused) = (false, None);
        for index in 0..paths.len() {
            if paths[index].spare {
                continue;
            }
            let (rail, nid) = (paths[index].rail, &paths[index].nid);
            match self.open_address(rail, nid) {
                Ok(addresses) => {
                    paths[index].addresses = Some(addresses);
                    taken = true;
                }
                Err(error @ (PeerError::Provider { .. } | PeerError::NoName { .. })) => {
                    refused = Some(error);
                }
                Err(error) => {
                    self.close_paths(paths);
                    return Err((error, Vec::new()));
                }
            }
        }
        match refused {
            Some(error) if !taken => {
                self.close_paths(paths);
                Err((error, Vec::new()))
            }
            _ => Ok(paths),
        }
    }

    /// The addresses of a NID in both lanes of a rail.
    pub(super) fn open_address(&mut self, rail: usize, nid: &Nid) -> Result<[u64; 2], PeerError> {
        let lacking = |lacks| PeerError::NoDestination {
            nid: nid.to_string(),
            lacks,
        };
        let news = nid.socket_address().ok_or_else(|| lacking("address"))?;
        if news.port() == 0 {
            return Err(lacking("port"));
        }
        let beat_port = nid.beat_port();
        let beat_port = beat_port.ok_or_else(|| lacking("port for beats (the next one)"))?;
        let beats = SocketAddrV4::new(*news.ip(), beat_port);
        let refused = |reason| PeerError::Provider {
            nid: nid.to_string(),
            reason,
        };
        let rail = self.rails[rail]
            .as_mut()
            .ok_or_else(|| lacking("open rail"))?;
        if rail.lanes.news.has_name() && nid.name.is_none() {
            return Err(PeerError::NoName {
                nid: nid.to_string(),
            });
        }
        let addresses = rail
            .lanes
            .insert(rail::by_class(news, beats), nid.name.as_ref());
        addresses.map_err(refused)
    }

    fn close_paths(&mut self, paths: Vec<Path>) {
        for path in paths {
            let Some(rail) = &mut self.rails[path.rail] else {
                continue;
            };
            if let Some(addresses) = path.addresses {
                rail.lanes.remove(addresses);
            }
            if let Some(address) = path.beat_address() {
                rail.lanes.beats.remove(address);
            }
            if let (Some(address), Some(bulk)) = (path.bulk_address, &mut rail.bulk) {
                bulk.remove(address);
            }
            // Completions of these sends will not find the path.
            rail.queued_bytes = rail.queued_bytes.saturating_sub(path.queued_bytes);
        }
    }

    /// The rails of this node, with what decides the pairing.
    fn own_rails(&self) -> Vec<peer::OwnRail<'_>> {
        let rails = self.open_rails().map(|(index, rail)| peer::OwnRail {
            index,
            nid: &rail.nid,
            subnet: rail.subnet,
        });
        rails.collect()
    }

    /// The NIDs that identify a peer: without those that have an address of this node, which several peers may have.
    fn owned(&self, nids: &NidList) -> Vec<Nid> {
        let unusable = peer::unusable(&self.own_rails(), nids);
        let owned = nids.iter().filter(|nid| !unusable.contains(nid));
        owned.cloned().collect()
    }

    fn check_owners(&self, nids: &NidList, own: Option<PeerHandle>) -> Result<(), PeerError> {
        for nid in self.owned(nids) {
            let owner = self.owners.get(&nid).filter(|owner| Some(**owner) != own);
            let Some(&owner) = owner else {
                continue;
            };
            let other = self.peers.get(owner).map(|peer| peer.nids.to_string());
            return Err(PeerError::NidTaken {
                nid: nid.to_string(),
                other: other.unwrap_or_default(),
                by: owner,
            });
        }
        Ok(())
    }

    fn disown(&mut self, nids: &NidList, handle: PeerHandle) {
        for nid in nids {
            if self.owners.get(nid) == Some(&handle) {
                self.owners.remove(nid);
            }
        }
    }

    fn own(&mut self, nids: &NidList, handle: PeerHandle) {
        let owned = self.owned(nids).into_iter().map(|nid| (nid, handle));
        self.owners.extend(owned);
    }
}

fn rank(policy: &Policy, rail: Option<&Rail>, remote: &Nid) -> crate::policy::Ranks {
    let rail = rail.expect("pairs consist of open rails");
    policy.ranks(&rail.nid, rail.interface(), remote)
}

/// The nets of these NIDs, each once, as a text for messages.
fn nets<'a>(nids: impl Iterator<Item = &'a Nid>) -> String {
    let mut words: Vec<String> = nids.map(|nid| nid.net.to_string()).collect();
    words.sort();
    words.dedup();
    words.join(", ")
}
