//! Rails whose connections broke while their links stayed up.

use super::Fabric;
use crate::peer_handle::PeerHandle;
use crate::transport::FabricEvent;
use muster_provider::Nid;

impl Fabric {
    /// Notes that a peer is silent on a rail whose provider keeps broken connections.
    pub(super) fn note_stale(&mut self, handle: PeerHandle, index: usize) {
        let rail = self.rails.get(index).and_then(Option::as_ref);
        let local = rail.map(|rail| &rail.nid);
        let local = local.filter(|nid| nid.net.kind.keeps_broken_connections());
        let Some(from) = local.and_then(Nid::socket_address) else {
            return;
        };
        let paths = self.peers.get(handle).map(|peer| &peer.paths[..]);
        let mut paths = paths.unwrap_or_default().iter();
        let home = paths.find(|path| path.rail == index && !path.spare);
        if let Some(to) = home.and_then(|path| path.nid.liveness_address()) {
            let now_us = self.now_us;
            self.stale_probes
                .begin(now_us, (handle, index), *from.ip(), to);
        }
    }

    /// Probes peers that are silent on such rails, and reports rails whose connections are stale.
    pub(super) fn probe_stale(&mut self, now_us: u64) {
        if self
            .stale_probes
            .due_us()
            .is_none_or(|due_us| now_us < due_us)
        {
            return;
        }
        let peers = &self.peers;
        let is_silent = |handle: PeerHandle, rail: usize| {
            let peer = peers.get(handle);
            peer.is_some_and(|peer| peer.rail_liveness.is_silent(rail))
        };
        for rail in self.stale_probes.poll(now_us, is_silent) {
            let reason =
                "a peer is silent on it whose interface answers, so connections are broken";
            self.push_event(FabricEvent::RailStale { rail, reason });
        }
    }
}
