//! From the protocol's members to the fabric's peers, and back.
//!
//! The protocol names a member or a seed and has an address that it never reads; the fabric
//! knows peers by their NIDs. The outbox holds the one list between the two, keyed by the
//! address, so a seed that turns out to be a member is one peer, not two.

use muster_fabric::{NidList, PeerHandle, Transport};
use std::collections::BTreeMap;
use tracing::warn;

/// More addresses than this and the list is begun anew: members come and go for months.
const ADDRESSES_MAX: usize = 4096;

/// The list.
#[derive(Default)]
pub(super) struct Outbox {
    peers: BTreeMap<Vec<u8>, Option<PeerHandle>>,
    /// Datagrams that could not be sent because their address leads nowhere.
    pub(super) undeliverable: u64,
    /// How often the list was begun anew: the handles that it gave out before mean nobody now.
    pub(super) begun_anew: u64,
}

impl Outbox {
    /// The peer at this address. An address that cannot be used is remembered as such, and
    /// said once.
    pub(super) fn peer(
        &mut self,
        fabric: &mut dyn Transport,
        address: &[u8],
    ) -> Option<PeerHandle> {
        if let Some(known) = self.peers.get(address) {
            return *known;
        }
        if self.peers.len() >= ADDRESSES_MAX {
            self.forget_all(fabric);
        }
        let peer = resolve(fabric, address);
        self.peers.insert(address.to_vec(), peer);
        peer
    }

    fn forget_all(&mut self, fabric: &mut dyn Transport) {
        self.begun_anew += 1;
        for peer in std::mem::take(&mut self.peers).into_values().flatten() {
            fabric.forget(peer);
        }
    }
}

fn resolve(fabric: &mut dyn Transport, address: &[u8]) -> Option<PeerHandle> {
    let text = String::from_utf8_lossy(address);
    let nids: NidList = match text.parse() {
        Ok(nids) => nids,
        Err(error) => {
            warn!(address = %text, %error, "a member's address cannot be understood");
            return None;
        }
    };
    match fabric.peer(&nids) {
        Ok(peer) => Some(peer),
        Err(error) => {
            warn!(address = %text, %error, "a member cannot be reached over our rails");
            None
        }
    }
}
