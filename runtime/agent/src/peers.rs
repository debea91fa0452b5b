//! `PeerDirectory` maps addresses of the engine's members to peers of the fabric.
//!
//! The engine names a member or a seed and stores its address as bytes that it does not interpret. The fabric
//! identifies peers by their NIDs. The directory is keyed by the address, so a seed that turns out to be a member is
//! one peer, not two.

use muster_fabric::{NIDS_MAX, Nid, NidError, NidList, PeerError, PeerHandle, Transport};
use muster_protocol::MemberId;
use std::collections::BTreeMap;
use tracing::warn;

/// Maximum number of addresses. The directory is cleared when it is full, because members change over months.
const ADDRESSES_MAX: usize = 4096;

/// The source of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AddressSource {
    /// The member itself. The list is complete: a NID that it does not contain is not a rail of the member.
    Own,
    /// Another source, such as a seed. The list may be incomplete.
    Hint,
}

/// Requests for an unusable address until it is retried, if the reason may be temporary.
const RETRY_AFTER: u32 = 16;

#[derive(Clone, Copy, Debug)]
struct Entry {
    /// None: the address is not usable.
    peer: Option<PeerHandle>,
    /// The peer has exactly these NIDs.
    exact: bool,
    /// The only source so far is the configuration, a seed or a third member.
    hinted: bool,
    /// For an address that is not usable now: requests left until it is retried. None: only other rails can help.
    retry_in: Option<u32>,
}

/// The peer of a member, as it was resolved from its own address.
struct MemberPeer {
    address: Vec<u8>,
    peer: PeerHandle,
    /// The directory's number of changes when it was resolved. After another change it counts no more.
    changes: u64,
}

/// The directory.
#[derive(Default)]
pub(super) struct PeerDirectory {
    peers: BTreeMap<Vec<u8>, Entry>,
    /// The peers of members, so that a datagram of a known member needs no search by its address.
    members: BTreeMap<MemberId, MemberPeer>,
    /// Number of changes of the directory.
    changes: u64,
    /// Datagrams that could not be sent because their address is not usable.
    pub(super) undeliverable: u64,
    /// Members whose NIDs differ from those that another source has for them.
    pub(super) contradictions: u64,
    /// Number of resolved addresses. A handle that is returned after an increment may be a new one.
    pub(super) resolved: u64,
    /// Number of times that the directory was cleared. Handles that it returned before are invalid.
    pub(super) cleared: u64,
}

impl PeerDirectory {
    /// Returns the peer of a member that was resolved from this address, if nothing has changed since.
    pub(super) fn of_member(&self, member: MemberId, address: &[u8]) -> Option<PeerHandle> {
        let known = self.members.get(&member)?;
        (known.changes == self.changes && known.address == address).then_some(known.peer)
    }

    /// Stores the peer that [`Self::peer`] has resolved from the member's own address.
    pub(super) fn note_member(&mut self, member: MemberId, address: &[u8], peer: PeerHandle) {
        if self.members.len() >= ADDRESSES_MAX {
            self.members.clear();
        }
        let changes = self.changes;
        match self.members.get_mut(&member) {
            Some(known) if known.address == address => {
                (known.peer, known.changes) = (peer, changes);
            }
            _ => {
                let address = address.to_vec();
                let known = MemberPeer {
                    address,
                    peer,
                    changes,
                };
                self.members.insert(member, known);
            }
        }
    }

    /// Returns the peer at this address. An address that is not usable is stored as such, and logged once.
    pub(super) fn peer(
        &mut self,
        fabric: &mut dyn Transport,
        address: &[u8],
        source: AddressSource,
    ) -> Option<PeerHandle> {
        let known = self.peers.get_mut(address);
        let is_new = known.is_none();
        if let Some(known) = known
            && !known.is_open(source)
        {
            return known.peer;
        }
        if is_new && self.peers.len() >= ADDRESSES_MAX {
            self.forget_all(fabric);
        }
        self.resolved += 1;
        self.changes += 1;
        let resolved = self.resolve(fabric, address, source, is_new);
        let peer = resolved.ok();
        let exact = source == AddressSource::Own;
        if exact && peer.is_some() {
            self.compare(address);
            // Other addresses of this peer have another list of NIDs.
            let others = self.peers.values_mut().filter(|entry| entry.peer == peer);
            others.for_each(|entry| entry.exact = false);
        }
        let entry = Entry {
            peer,
            exact,
            hinted: source == AddressSource::Hint,
            retry_in: (resolved == Err(Unusable::Now)).then_some(RETRY_AFTER),
        };
        self.peers.insert(address.to_vec(), entry);
        peer
    }

    /// dyn-060: counts and logs a configuration for a member that contradicts the member's own list. Additional NIDs
    /// in the member's list are no contradiction, because a seed names one interface.
    fn compare(&mut self, own: &[u8]) {
        let has = |nid: &[u8]| interfaces(own).any(|one| one == nid);
        for (address, _) in self.peers.iter().filter(|(_, entry)| entry.hinted) {
            if interfaces(address).any(has) && !interfaces(address).all(has) {
                self.contradictions += 1;
                let configured = String::from_utf8_lossy(address);
                let own = String::from_utf8_lossy(own);
                warn!(%configured, %own, "a member has other interfaces than configured; correct the seed or peer");
            }
        }
    }

    /// The peer at this address, if the member itself named the address.
    pub(super) fn known(&self, address: &[u8]) -> Option<PeerHandle> {
        let entry = self.peers.get(address).filter(|entry| entry.exact)?;
        entry.peer
    }

    /// Forgets unusable addresses: with other rails, or with relays, they may be usable.
    pub(super) fn rails_changed(&mut self) {
        self.changes += 1;
        self.peers.retain(|_, entry| entry.peer.is_some());
    }

    /// Releases an address that is no longer needed.
    pub(super) fn release(&mut self, fabric: &mut dyn Transport, address: &[u8]) {
        self.changes += 1;
        let Some(Entry {
            peer: Some(peer), ..
        }) = self.peers.remove(address)
        else {
            return;
        };
        if self.peers.values().any(|entry| entry.peer == Some(peer)) {
            return;
        }
        fabric.forget(peer);
        // A NID that it had taken from another member is free again. That member gets it back with its next own
        // address.
        for (other, entry) in &mut self.peers {
            if entry.exact && share(other, address) {
                entry.exact = false;
            }
        }
    }

    fn forget_all(&mut self, fabric: &mut dyn Transport) {
        self.cleared += 1;
        self.changes += 1;
        for entry in std::mem::take(&mut self.peers).into_values() {
            entry.peer.into_iter().for_each(|peer| fabric.forget(peer));
        }
    }

    /// Resolves an address that is not known, or not from this source. Logs a failure if the address is new.
    fn resolve(
        &mut self,
        fabric: &mut dyn Transport,
        address: &[u8],
        source: AddressSource,
        is_new: bool,
    ) -> Result<PeerHandle, Unusable> {
        let text = String::from_utf8_lossy(address);
        let nids: NidList = text.parse().map_err(|error: NidError| {
            warn!(address = %text, %error, "a member's address is not a list of NIDs");
            Unusable::UntilRailsChange
        })?;
        let mut taken = fabric.peer(&nids);
        // At most once per NID: each may belong to another peer, and that peer loses at least one.
        for _ in 0..NIDS_MAX {
            let Err(PeerError::NidTaken { by, .. }) = taken else {
                break;
            };
            match self.yield_nids(fabric, by, &nids, source) {
                Yielded::Same(peer) => return Ok(peer),
                Yielded::Freed => taken = fabric.peer(&nids),
            }
        }
        taken.map_err(|error| {
            if is_new {
                warn!(address = %text, %error, "a member cannot be reached over this node's rails");
            }
            match error {
                PeerError::NoCommonNet { .. } | PeerError::NoDestination { .. } => {
                    Unusable::UntilRailsChange
                }
                _ => Unusable::Now,
            }
        })
    }

    /// Decides which peer has the NIDs that two addresses contain.
    ///
    /// - A member's own list takes precedence over other sources.
    /// - If one list is a part of the other, both are one node: a seed names a single NID, and a member may open and
    ///   close rails.
    ///   Then the newer list also has the valid addresses of the providers: they change when a member starts again.
    /// - Else the newer list takes precedence: a node that returns with other rails is still known by its old ones.
    fn yield_nids(
        &mut self,
        fabric: &mut dyn Transport,
        by: PeerHandle,
        claimed: &NidList,
        source: AddressSource,
    ) -> Yielded {
        let Some(known) = fabric.nids(by) else {
            return Yielded::Freed;
        };
        let has = |list: &NidList, nid: &Nid| list.iter().any(|one| one == nid);
        if claimed.iter().all(|nid| has(&known, nid)) {
            let now = match source {
                AddressSource::Own => claimed.clone(),
                AddressSource::Hint => with_names_of(&known, claimed),
            };
            if known != now
                && let Err(error) = fabric.renew(by, &now)
            {
                warn!(%claimed, %known, %error, "the new rails of a member cannot be used");
            }
            if known != now && source == AddressSource::Hint {
                // A member that has started again, or an old seed: the member's own address decides.
                let others = self
                    .peers
                    .values_mut()
                    .filter(|entry| entry.peer == Some(by));
                others.for_each(|entry| entry.exact = false);
            }
            return Yielded::Same(by);
        }
        let is_own = |entry: &Entry| entry.exact && entry.peer == Some(by);
        if source == AddressSource::Hint && self.peers.values().any(is_own) {
            self.contradictions += 1;
            warn!(%claimed, %known, "a member has other interfaces than another source states for it");
            return Yielded::Same(by);
        }
        if known.iter().all(|nid| has(claimed, nid)) && fabric.renew(by, claimed).is_ok() {
            return Yielded::Same(by);
        }
        warn!(
            %claimed, %known,
            "two addresses contain the same interface: either a member has changed its rails, or two members claim \
             it; the newer address takes precedence"
        );
        let left: Vec<Nid> = known
            .iter()
            .filter(|nid| !has(claimed, nid))
            .cloned()
            .collect();
        let kept = NidList::new(left).is_ok_and(|left| fabric.renew(by, &left).is_ok());
        if !kept {
            fabric.forget(by);
            // Other addresses of this peer are resolved again.
            self.peers.retain(|_, entry| entry.peer != Some(by));
        }
        Yielded::Freed
    }
}

impl Entry {
    /// Returns whether the address must be resolved (again) for this source.
    fn is_open(&mut self, source: AddressSource) -> bool {
        match (&mut self.retry_in, self.peer) {
            (Some(left), None) => {
                *left = left.saturating_sub(1);
                *left == 0
            }
            (None, None) => false,
            (_, Some(_)) => !self.exact && source == AddressSource::Own,
        }
    }
}

/// Whether two addresses contain the same NID.
fn share(one: &[u8], other: &[u8]) -> bool {
    interfaces(one).any(|nid| interfaces(other).any(|own| own == nid))
}

/// The known NIDs with the providers' addresses that another list has for them.
fn with_names_of(known: &NidList, other: &NidList) -> NidList {
    let named = |nid: &Nid| other.iter().find(|one| *one == nid).unwrap_or(nid).clone();
    NidList::new(known.iter().map(named).collect()).unwrap_or_else(|_| known.clone())
}

/// The NIDs of an address, without the providers' addresses.
fn interfaces(address: &[u8]) -> impl Iterator<Item = &[u8]> {
    let nids = address.split(|byte| *byte == b',');
    nids.map(|nid| nid.split(|byte| *byte == b'/').next().unwrap_or(nid))
}

/// Why an address is not usable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unusable {
    /// The reason may be temporary.
    Now,
    /// It lasts as long as this node's rails do not change.
    UntilRailsChange,
}

/// The result for a peer that had some of the claimed NIDs.
enum Yielded {
    /// It is the peer that the address belongs to.
    Same(PeerHandle),
    /// It has none of them any more.
    Freed,
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_fabric::{Fabric, FabricConfig};

    const A: &str = "127.59.3.1:7001@udp0";
    const B: &str = "127.59.3.2:7001@udp0";
    const C: &str = "127.59.3.3:7001@udp0";

    fn fabric(rail: &str, peers_max: usize) -> Fabric {
        let library = muster_fabric::load().expect("libfabric is installed where tests run");
        Fabric::open(&FabricConfig {
            peers_max,
            ..FabricConfig::new(library, vec![rail.parse().unwrap()])
        })
        .unwrap()
    }

    fn nids(fabric: &Fabric, peer: PeerHandle) -> String {
        fabric
            .nids(peer)
            .map_or_else(String::new, |nids| nids.to_string())
    }

    #[test]
    fn a_member_is_resolved_again_after_any_change() {
        let (mut fabric, mut peers) = (fabric("127.59.2.6:0@udp0", 8), PeerDirectory::default());
        let (member, address) = (MemberId::of("n2"), b"127.59.2.7@udp0");
        assert_eq!(peers.of_member(member, address), None);
        let peer = peers
            .peer(&mut fabric, address, AddressSource::Own)
            .unwrap();
        peers.note_member(member, address, peer);
        assert_eq!(peers.of_member(member, address), Some(peer));
        assert_eq!(
            peers.of_member(member, b"127.59.2.8@udp0"),
            None,
            "another address"
        );
        let other = peers.peer(&mut fabric, b"127.59.2.9@udp0", AddressSource::Own);
        assert!(other.is_some());
        assert_eq!(
            peers.of_member(member, address),
            None,
            "another member was resolved"
        );
        peers.note_member(member, address, peer);
        peers.release(&mut fabric, address);
        assert_eq!(peers.of_member(member, address), None, "released");
    }

    /// dyn-060: a hint does not change what a member states of itself.
    #[test]
    fn a_hint_takes_no_interface_from_a_member_and_adds_none() {
        for (own, hint) in [
            (format!("{A},{B}"), format!("{A},{B},{C}")),
            (format!("{B},{C}"), format!("{A},{B}")),
        ] {
            let (mut fabric, mut peers) =
                (fabric("127.59.2.1:0@udp0", 8), PeerDirectory::default());
            let mut resolve = |text: &str, source| peers.peer(&mut fabric, text.as_bytes(), source);
            let member = resolve(&own, AddressSource::Own).unwrap();
            assert_eq!(resolve(&hint, AddressSource::Hint), Some(member));
            assert_eq!(resolve(&own, AddressSource::Own), Some(member));
            assert_eq!(nids(&fabric, member), own);
            assert_eq!(peers.contradictions, 1);
        }
    }

    /// Two members claim one interface: the newer claim gets it and the other keeps its remaining ones. The first
    /// gets it back when the other is released.
    #[test]
    fn an_interface_goes_to_the_newer_claim_and_back_when_that_is_released() {
        let (mut fabric, mut peers) = (fabric("127.59.2.5:0@udp0", 8), PeerDirectory::default());
        let [first, second] = [[A, B], [B, C]].map(|nids| nids.join(","));
        let resolve = |peers: &mut PeerDirectory, fabric: &mut Fabric, text: &str| {
            peers
                .peer(fabric, text.as_bytes(), AddressSource::Own)
                .unwrap()
        };
        let one = resolve(&mut peers, &mut fabric, &first);
        let two = resolve(&mut peers, &mut fabric, &second);
        assert_ne!(one, two);
        let owned = |fabric: &Fabric| [one, two].map(|peer| nids(fabric, peer));
        assert_eq!(owned(&fabric), [A.to_owned(), second.clone()]);
        assert_eq!(resolve(&mut peers, &mut fabric, &first), one);
        assert_eq!(
            owned(&fabric),
            [A.to_owned(), second.clone()],
            "no claim is new"
        );
        peers.release(&mut fabric, second.as_bytes());
        assert_eq!(resolve(&mut peers, &mut fabric, &first), one);
        assert_eq!(nids(&fabric, one), first);
    }

    /// The provider gives a rail another address when a member starts again. Its join is a hint; an old seed is, too.
    #[test]
    fn a_newer_address_of_the_provider_replaces_an_older_one() {
        let (mut fabric, mut peers) = (fabric("127.59.2.8:0@udp0", 8), PeerDirectory::default());
        let [before, after] = ["01", "02"].map(|name| format!("{A},127.59.3.9@cxi0/{name}"));
        let mut resolve = |text: &str, source| {
            let peer = peers.peer(&mut fabric, text.as_bytes(), source).unwrap();
            (peer, nids(&fabric, peer))
        };
        let (peer, _) = resolve(&before, AddressSource::Own);
        let hint = "127.59.3.9@cxi0/02";
        assert_eq!(resolve(hint, AddressSource::Hint), (peer, after.clone()));
        assert_eq!(resolve(&after, AddressSource::Own), (peer, after.clone()));
        // Another seed has the old address.
        let seed = "127.59.3.9:7741@cxi0/01";
        assert_eq!(resolve(seed, AddressSource::Hint), (peer, before));
        assert_eq!(resolve(&after, AddressSource::Own), (peer, after));
    }

    #[test]
    fn a_members_own_address_replaces_an_earlier_hint() {
        let (mut fabric, mut peers) = (fabric("127.59.2.2:0@udp0", 8), PeerDirectory::default());
        let own = format!("{A},{B}");
        let seed = peers
            .peer(&mut fabric, A.as_bytes(), AddressSource::Hint)
            .unwrap();
        let member = peers.peer(&mut fabric, own.as_bytes(), AddressSource::Own);
        assert_eq!(member, Some(seed));
        assert_eq!(nids(&fabric, seed), own);
        assert_eq!(peers.contradictions, 0, "a seed names one interface");
    }

    /// Two seeds turn out to be one member: one of the two peers is forgotten and no longer used.
    #[test]
    fn an_address_of_a_forgotten_peer_resolves_to_its_new_peer() {
        let (mut fabric, mut peers) = (fabric("127.59.2.3:0@udp0", 8), PeerDirectory::default());
        let mut resolve = |fabric: &mut Fabric, text: &str, source| {
            peers.peer(fabric, text.as_bytes(), source).unwrap()
        };
        let (one, other) = (
            resolve(&mut fabric, A, AddressSource::Hint),
            resolve(&mut fabric, B, AddressSource::Hint),
        );
        assert_ne!(one, other);
        let own = format!("{A},{B}");
        let member = resolve(&mut fabric, &own, AddressSource::Own);
        for seed in [A, B] {
            let peer = resolve(&mut fabric, seed, AddressSource::Hint);
            assert_eq!(peer, member);
            assert_eq!(nids(&fabric, peer), own);
        }
    }

    #[test]
    fn a_temporary_failure_is_retried_and_a_lasting_one_is_not() {
        let (mut fabric, mut peers) = (fabric("127.59.2.4:0@udp0", 1), PeerDirectory::default());
        let mut resolve = |fabric: &mut Fabric, text: &str| {
            let hint = AddressSource::Hint;
            peers.peer(fabric, text.as_bytes(), hint)
        };
        let (invalid, far) = ("no address", "127.59.3.4:7001@udp7");
        fabric.set_relay(false);
        assert_eq!(resolve(&mut fabric, invalid), None);
        assert_eq!(resolve(&mut fabric, far), None);
        let first = resolve(&mut fabric, A).unwrap();
        assert_eq!(resolve(&mut fabric, B), None, "full");
        fabric.forget(first);
        let tries = (1..).find(|_| resolve(&mut fabric, B).is_some());
        assert_eq!(tries, Some(RETRY_AFTER));
        for address in [invalid, far] {
            assert_eq!(peers.peers[address.as_bytes()].retry_in, None);
        }
    }
}
