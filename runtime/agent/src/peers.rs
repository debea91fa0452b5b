//! From the protocol's members to the fabric's peers, and back.
//!
//! The protocol names a member or a seed and has an address that it never reads; the fabric
//! knows peers by their NIDs. The outbox holds the one list between the two, keyed by the
//! address, so a seed that turns out to be a member is one peer, not two.

use muster_fabric::{NIDS_MAX, Nid, NidError, NidList, PeerError, PeerHandle, Transport};
use std::collections::BTreeMap;
use tracing::warn;

/// More addresses than this and the list is begun anew: members come and go for months.
const ADDRESSES_MAX: usize = 4096;

/// Whose word an address is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AddressSource {
    /// The member's own, and all of it: what it does not name is no rail of its any more.
    Own,
    /// Somebody's, of a seed for instance; it may be a part.
    Hint,
}

/// An address that led nowhere for a reason that can pass is tried again when it was asked for so often.
const PATIENCE: u32 = 16;

#[derive(Clone, Copy, Debug)]
struct Entry {
    /// None: it leads nowhere.
    peer: Option<PeerHandle>,
    /// The peer has exactly these NIDs.
    exact: bool,
    /// Nobody but the configuration, a seed or an introduction has said so.
    hinted: bool,
    /// It leads nowhere now: how often it is to be asked for before it is tried again. None: only other
    /// rails can help.
    retry_in: Option<u32>,
}

/// The list.
#[derive(Default)]
pub(super) struct PeerDirectory {
    peers: BTreeMap<Vec<u8>, Entry>,
    /// Datagrams that could not be sent because their address leads nowhere.
    pub(super) undeliverable: u64,
    /// Members whose interfaces are not those that somebody else has named for them.
    pub(super) contradictions: u64,
    /// Addresses that were looked for, so far: a handle that is given out after one more may be a new one.
    pub(super) resolved: u64,
    /// How often the list was begun anew: the handles that it gave out before mean nobody now.
    pub(super) begun_anew: u64,
}

impl PeerDirectory {
    /// The peer at this address. An address that cannot be used is remembered as such, and
    /// said once.
    pub(super) fn peer(
        &mut self,
        fabric: &mut dyn Transport,
        address: &[u8],
        word: AddressSource,
    ) -> Option<PeerHandle> {
        let known = self.peers.get_mut(address);
        let is_new = known.is_none();
        if let Some(known) = known
            && !known.is_open(word)
        {
            return known.peer;
        }
        if is_new && self.peers.len() >= ADDRESSES_MAX {
            self.forget_all(fabric);
        }
        self.resolved += 1;
        let resolved = self.resolve(fabric, address, word, is_new);
        let peer = resolved.ok();
        let exact = word == AddressSource::Own;
        if exact && peer.is_some() {
            self.compare(address);
            // Whatever else led there was another list of NIDs.
            let others = self.peers.values_mut().filter(|entry| entry.peer == peer);
            others.for_each(|entry| entry.exact = false);
        }
        let entry = Entry {
            peer,
            exact,
            hinted: word == AddressSource::Hint,
            retry_in: (resolved == Err(Nowhere::Now)).then_some(PATIENCE),
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
        if self.peers.values().any(|entry| entry.peer == Some(peer)) {
            return;
        }
        fabric.forget(peer);
        // An interface that it had taken from another is free again: that one's next word has it back.
        for (other, entry) in &mut self.peers {
            if entry.exact && share(other, address) {
                entry.exact = false;
            }
        }
    }

    fn forget_all(&mut self, fabric: &mut dyn Transport) {
        self.begun_anew += 1;
        for entry in std::mem::take(&mut self.peers).into_values() {
            entry.peer.into_iter().for_each(|peer| fabric.forget(peer));
        }
    }

    /// The peer at an address that is not known, or not by this word. What fails is said if it is new.
    fn resolve(
        &mut self,
        fabric: &mut dyn Transport,
        address: &[u8],
        word: AddressSource,
        is_new: bool,
    ) -> Result<PeerHandle, Nowhere> {
        let text = String::from_utf8_lossy(address);
        let nids: NidList = text.parse().map_err(|error: NidError| {
            warn!(address = %text, %error, "a member's address cannot be understood");
            Nowhere::Ever
        })?;
        let mut taken = fabric.peer(&nids);
        // As often as NIDs may have belonged to others, each of whom loses at least one.
        for _ in 0..NIDS_MAX {
            let Err(PeerError::NidTaken { by, .. }) = taken else {
                break;
            };
            match self.yield_nids(fabric, by, &nids, word) {
                Yielded::Same(peer) => return Ok(peer),
                Yielded::Freed => taken = fabric.peer(&nids),
            }
        }
        taken.map_err(|error| {
            if is_new {
                warn!(address = %text, %error, "a member cannot be reached over our rails");
            }
            match error {
                PeerError::NoCommonNet { .. } | PeerError::NoDestination { .. } => Nowhere::Ever,
                _ => Nowhere::Now,
            }
        })
    }

    /// Settles who has NIDs that two addresses name. What a member says of itself counts more than what
    /// anybody says of it. If one address is a part of the other, both are one node, as a seed that names a
    /// single NID is, or a member that has opened or closed a rail; else the later word counts, since a
    /// node that comes back with other rails is known by its old ones too.
    fn yield_nids(
        &mut self,
        fabric: &mut dyn Transport,
        by: PeerHandle,
        claimed: &NidList,
        word: AddressSource,
    ) -> Yielded {
        let Some(known) = fabric.nids(by) else {
            return Yielded::Freed;
        };
        let has = |list: &NidList, nid: &Nid| list.iter().any(|one| one == nid);
        if claimed.iter().all(|nid| has(&known, nid)) {
            if word == AddressSource::Own
                && known != *claimed
                && let Err(error) = fabric.renew(by, claimed)
            {
                warn!(%claimed, %known, %error, "a member's other rails cannot be used");
            }
            return Yielded::Same(by);
        }
        let is_own = |entry: &Entry| entry.exact && entry.peer == Some(by);
        if word == AddressSource::Hint && self.peers.values().any(is_own) {
            self.contradictions += 1;
            warn!(%claimed, %known, "a member has other interfaces than somebody names for it");
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
            // Whatever led there is looked for anew.
            self.peers.retain(|_, entry| entry.peer != Some(by));
        }
        Yielded::Freed
    }
}

impl Entry {
    /// Whether it has to be looked for, again, when it is asked for by this word.
    fn is_open(&mut self, word: AddressSource) -> bool {
        match (&mut self.retry_in, self.peer) {
            (Some(left), None) => {
                *left = left.saturating_sub(1);
                *left == 0
            }
            (None, None) => false,
            (_, Some(_)) => !self.exact && word == AddressSource::Own,
        }
    }
}

/// Whether two addresses name the same interface.
fn share(one: &[u8], other: &[u8]) -> bool {
    let mut nids = one.split(|byte| *byte == b',');
    nids.any(|nid| other.split(|byte| *byte == b',').any(|own| own == nid))
}

/// Why an address leads nowhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Nowhere {
    /// That can pass by itself.
    Now,
    /// As long as our rails are what they are.
    Ever,
}

/// What has become of a peer that had some of the NIDs that are claimed.
enum Yielded {
    /// It is the one that claims them, or that they are said of.
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

    /// dyn-060: what somebody says of a member changes nothing of what it says itself.
    #[test]
    fn a_hint_takes_no_interface_from_a_member_and_adds_none() {
        for (own, hint) in [
            (format!("{A},{B}"), format!("{A},{B},{C}")),
            (format!("{B},{C}"), format!("{A},{B}")),
        ] {
            let (mut fabric, mut peers) =
                (fabric("127.59.2.1:0@udp0", 8), PeerDirectory::default());
            let mut ask = |text: &str, word| peers.peer(&mut fabric, text.as_bytes(), word);
            let member = ask(&own, AddressSource::Own).unwrap();
            assert_eq!(ask(&hint, AddressSource::Hint), Some(member));
            assert_eq!(ask(&own, AddressSource::Own), Some(member));
            assert_eq!(nids(&fabric, member), own);
            assert_eq!(peers.contradictions, 1);
        }
    }

    /// Two members claim one interface: the later has it, the other keeps the rest, and has it back when the
    /// later one is gone.
    #[test]
    fn an_interface_goes_to_the_later_word_and_back_when_its_owner_is_gone() {
        let (mut fabric, mut peers) = (fabric("127.59.2.5:0@udp0", 8), PeerDirectory::default());
        let [first, second] = [[A, B], [B, C]].map(|nids| nids.join(","));
        let ask = |peers: &mut PeerDirectory, fabric: &mut Fabric, text: &str| {
            peers
                .peer(fabric, text.as_bytes(), AddressSource::Own)
                .unwrap()
        };
        let one = ask(&mut peers, &mut fabric, &first);
        let two = ask(&mut peers, &mut fabric, &second);
        assert_ne!(one, two);
        let owned = |fabric: &Fabric| [one, two].map(|peer| nids(fabric, peer));
        assert_eq!(owned(&fabric), [A.to_owned(), second.clone()]);
        assert_eq!(ask(&mut peers, &mut fabric, &first), one);
        assert_eq!(
            owned(&fabric),
            [A.to_owned(), second.clone()],
            "no word is new"
        );
        peers.release(&mut fabric, second.as_bytes());
        assert_eq!(ask(&mut peers, &mut fabric, &first), one);
        assert_eq!(nids(&fabric, one), first);
    }

    #[test]
    fn a_members_own_word_is_more_than_the_hint_before_it() {
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

    /// Two seeds turn out to be one member: one of the peers goes, and nobody is sent to it any more.
    #[test]
    fn an_address_whose_peer_was_forgotten_leads_to_the_one_that_has_it_now() {
        let (mut fabric, mut peers) = (fabric("127.59.2.3:0@udp0", 8), PeerDirectory::default());
        let mut ask = |fabric: &mut Fabric, text: &str, word| {
            peers.peer(fabric, text.as_bytes(), word).unwrap()
        };
        let (one, other) = (
            ask(&mut fabric, A, AddressSource::Hint),
            ask(&mut fabric, B, AddressSource::Hint),
        );
        assert_ne!(one, other);
        let own = format!("{A},{B}");
        let member = ask(&mut fabric, &own, AddressSource::Own);
        for seed in [A, B] {
            let peer = ask(&mut fabric, seed, AddressSource::Hint);
            assert_eq!(peer, member);
            assert_eq!(nids(&fabric, peer), own);
        }
    }

    #[test]
    fn what_cannot_be_taken_in_now_is_tried_again_and_what_never_can_is_not() {
        let (mut fabric, mut peers) = (fabric("127.59.2.4:0@udp0", 1), PeerDirectory::default());
        let mut ask = |fabric: &mut Fabric, text: &str| {
            let hint = AddressSource::Hint;
            peers.peer(fabric, text.as_bytes(), hint)
        };
        let (strange, far) = ("no address", "127.59.3.4:7001@udp7");
        fabric.set_relay(false);
        assert_eq!(ask(&mut fabric, strange), None);
        assert_eq!(ask(&mut fabric, far), None);
        let first = ask(&mut fabric, A).unwrap();
        assert_eq!(ask(&mut fabric, B), None, "full");
        fabric.forget(first);
        let tries = (1..).find(|_| ask(&mut fabric, B).is_some());
        assert_eq!(tries, Some(PATIENCE));
        for address in [strange, far] {
            assert_eq!(peers.peers[address.as_bytes()].retry_in, None);
        }
    }
}
