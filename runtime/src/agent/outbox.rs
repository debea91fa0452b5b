//! From the protocol's members to the fabric's peers, and back.
//!
//! The protocol names a member or a seed and has an address that it never reads; the fabric
//! knows peers by their NIDs. The outbox holds the one list between the two, keyed by the
//! address, so a seed that turns out to be a member is one peer, not two.

use muster_fabric::{NIDS_MAX, Nid, NidList, PeerError, PeerHandle, Transport};
use std::collections::BTreeMap;
use tracing::warn;

/// More addresses than this and the list is begun anew: members come and go for months.
const ADDRESSES_MAX: usize = 4096;

/// Whose word an address is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Word {
    /// The member's own, and all of it: what it does not name is no rail of its any more.
    Own,
    /// Somebody's, of a seed for instance; it may be a part.
    Hint,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    /// None: it leads nowhere.
    peer: Option<PeerHandle>,
    /// The peer has exactly these NIDs.
    exact: bool,
    /// Nobody but the configuration, a seed or an introduction has said so.
    hinted: bool,
}

/// The list.
#[derive(Default)]
pub(super) struct Outbox {
    peers: BTreeMap<Vec<u8>, Entry>,
    /// Datagrams that could not be sent because their address leads nowhere.
    pub(super) undeliverable: u64,
    /// Members whose interfaces are not those that somebody else has named for them.
    pub(super) contradictions: u64,
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
        word: Word,
    ) -> Option<PeerHandle> {
        if let Some(known) = self.peers.get(address)
            && (known.exact || word == Word::Hint || known.peer.is_none())
        {
            return known.peer;
        }
        if self.peers.len() >= ADDRESSES_MAX {
            self.forget_all(fabric);
        }
        let peer = resolve(fabric, address, word);
        let exact = word == Word::Own;
        if exact && peer.is_some() {
            self.compare(address);
            // Whatever else led there was another list of NIDs.
            let others = self.peers.values_mut().filter(|entry| entry.peer == peer);
            others.for_each(|entry| entry.exact = false);
        }
        let hinted = word == Word::Hint;
        let entry = Entry {
            peer,
            exact,
            hinted,
        };
        self.peers.insert(address.to_vec(), entry);
        peer
    }

    /// dyn-060: flags what was configured for a member and is not what it says itself. That it has more
    /// is no contradiction: a seed names one interface.
    fn compare(&mut self, own: &[u8]) {
        let own = String::from_utf8_lossy(own);
        let has = |nid: &str| own.split(',').any(|one| one == nid);
        for (address, _) in self.peers.iter().filter(|(_, entry)| entry.hinted) {
            let configured = String::from_utf8_lossy(address);
            if configured.split(',').any(has) && !configured.split(',').all(has) {
                self.contradictions += 1;
                warn!(%configured, %own, "a member has other interfaces than were configured for it");
            }
        }
    }

    /// The peer at this address, if a member has named it as its own.
    pub(super) fn known(&self, address: &[u8]) -> Option<PeerHandle> {
        let entry = self.peers.get(address).filter(|entry| entry.exact)?;
        entry.peer
    }

    /// Our rails are others, or others carry for us now: what led nowhere may lead somewhere.
    pub(super) fn rails_changed(&mut self) {
        self.peers.retain(|_, entry| entry.peer.is_some());
    }

    /// Nobody needs this address any more.
    pub(super) fn release(&mut self, fabric: &mut dyn Transport, address: &[u8]) {
        let Some(Entry {
            peer: Some(peer), ..
        }) = self.peers.remove(address)
        else {
            return;
        };
        if !self.peers.values().any(|entry| entry.peer == Some(peer)) {
            fabric.forget(peer);
        }
    }

    fn forget_all(&mut self, fabric: &mut dyn Transport) {
        self.begun_anew += 1;
        for entry in std::mem::take(&mut self.peers).into_values() {
            entry.peer.into_iter().for_each(|peer| fabric.forget(peer));
        }
    }
}

fn resolve(fabric: &mut dyn Transport, address: &[u8], word: Word) -> Option<PeerHandle> {
    let text = String::from_utf8_lossy(address);
    let nids: NidList = match text.parse() {
        Ok(nids) => nids,
        Err(error) => {
            warn!(address = %text, %error, "a member's address cannot be understood");
            return None;
        }
    };
    let mut taken = fabric.peer(&nids);
    // As often as NIDs may have belonged to others, each of whom loses at least one.
    for _ in 0..NIDS_MAX {
        let Err(PeerError::NidTaken { by, .. }) = taken else {
            break;
        };
        match yield_nids(fabric, by, &nids, word) {
            Yielded::Same(peer) => return Some(peer),
            Yielded::Freed => taken = fabric.peer(&nids),
        }
    }
    match taken {
        Ok(peer) => Some(peer),
        Err(error) => {
            warn!(address = %text, %error, "a member cannot be reached over our rails");
            None
        }
    }
}

/// What has become of a peer that had some of the NIDs that are claimed.
enum Yielded {
    /// It is the one that claims them.
    Same(PeerHandle),
    /// It has none of them any more.
    Freed,
}

/// Settles who has NIDs that two addresses name. If one address is a part of the other, both are one
/// node, as a seed that names a single NID is, or a member that has opened or closed a rail; else the
/// later word counts, since a node that comes back with other rails is known by its old ones too.
fn yield_nids(
    fabric: &mut dyn Transport,
    by: PeerHandle,
    claimed: &NidList,
    word: Word,
) -> Yielded {
    let Some(known) = fabric.nids(by) else {
        return Yielded::Freed;
    };
    let has = |list: &NidList, nid: &Nid| list.iter().any(|one| one == nid);
    if claimed.iter().all(|nid| has(&known, nid)) {
        if word == Word::Own
            && known != *claimed
            && let Err(error) = fabric.renew(by, claimed)
        {
            warn!(%claimed, %known, %error, "a member's other rails cannot be used");
        }
        return Yielded::Same(by);
    }
    if known.iter().all(|nid| has(claimed, nid)) && fabric.renew(by, claimed).is_ok() {
        return Yielded::Same(by);
    }
    warn!(
        %claimed, %known,
        "two addresses name the same interface: of one member that has changed its rails, or of two; the \
         later word counts"
    );
    let left: Vec<Nid> = known
        .iter()
        .filter(|nid| !has(claimed, nid))
        .cloned()
        .collect();
    let kept = NidList::new(left).is_ok_and(|left| fabric.renew(by, &left).is_ok());
    if !kept {
        fabric.forget(by);
    }
    Yielded::Freed
}
