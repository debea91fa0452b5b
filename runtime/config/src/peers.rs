//! Peers as they are named in a change: words with ranges, and what they do to the peers that are known.
//!
//! Counted before anything is made of them, and found by their NIDs: a change names hundreds at once.

use super::SEEDS_MAX;
use super::change::ChangeError;
use super::rails::RailsDocument;
use muster_fabric::{Address, NIDS_MAX, Nid, NidError, NidList};
use muster_hostlist::expand;
use std::collections::BTreeMap;

/// Peers that one change may name: as many as an agent has room for.
pub const PEERS_AT_ONCE_MAX: usize = SEEDS_MAX;

/// The peers that each of these words stands for.
pub(super) fn all_peers_of(text: &str) -> Result<Vec<NidList>, ChangeError> {
    let mut peers = Vec::new();
    for word in text.split(' ') {
        peers.extend(peers_of(word)?);
        // Before more is made of the words behind.
        if peers.len() > PEERS_AT_ONCE_MAX {
            return Err(ChangeError::ManyAtOnce);
        }
    }
    Ok(peers)
}

/// The peers that a text stands for: `10.0.0.[1-4]@udp0,10.1.0.[1-4]@udp1` is four with two NIDs each.
///
/// # Errors
/// A text that is none, stands for too many, or whose lists differ in length.
pub fn peers_of(text: &str) -> Result<Vec<NidList>, ChangeError> {
    let mut lists: Vec<(&str, Vec<String>)> = Vec::new();
    for part in split(text) {
        let names = expand(part, PEERS_AT_ONCE_MAX)?;
        if let Some((first, others)) = lists.first()
            && others.len() != names.len()
        {
            return Err(ChangeError::Uneven {
                text: text.to_owned(),
                first: (*first).to_owned(),
                first_count: others.len(),
                other: part.to_owned(),
                other_count: names.len(),
            });
        }
        // Counted before more is made of it.
        if lists.len() >= NIDS_MAX {
            let given = split(text).count();
            return Err(NidError::LongList { given }.into());
        }
        lists.push((part, names));
    }
    let count = lists.first().map_or(0, |(_, names)| names.len());
    let peer = |index: usize| -> Result<NidList, ChangeError> {
        let mut nids = Vec::with_capacity(lists.len());
        for (_, names) in &lists {
            let nid: Nid = names[index].parse()?;
            if matches!(nid.address, Address::Interface(_)) {
                let nid = nid.to_string();
                return Err(ChangeError::Interface { nid });
            }
            nids.push(nid);
        }
        Ok(NidList::new(nids)?)
    };
    (0..count).map(peer).collect()
}

/// The parts between commas that are outside of brackets.
fn split(text: &str) -> impl Iterator<Item = &str> {
    let mut inside = false;
    let comma = move |letter: char| {
        match letter {
            '[' => inside = true,
            ']' => inside = false,
            _ => {}
        }
        letter == ',' && !inside
    };
    text.split(comma).map(str::trim)
}

/// Peers by their NIDs: whose each is, found without a look at all of them.
struct Owners {
    /// A peer that is gone leaves an empty place.
    peers: Vec<Option<NidList>>,
    places: BTreeMap<Nid, usize>,
}

impl Owners {
    fn of(peers: Vec<NidList>) -> Owners {
        let mut owners = Owners {
            peers: Vec::with_capacity(peers.len()),
            places: BTreeMap::new(),
        };
        peers.into_iter().for_each(|peer| owners.push(peer));
        owners
    }

    fn push(&mut self, peer: NidList) {
        let place = self.peers.len();
        self.places
            .extend(peer.iter().map(|nid| (nid.clone(), place)));
        self.peers.push(Some(peer));
    }

    /// The place of a NID's peer, and that peer.
    fn find(&self, nid: &Nid) -> Option<(usize, &NidList)> {
        let place = *self.places.get(nid)?;
        Some((place, self.peers[place].as_ref()?))
    }

    /// Takes a peer away, or leaves it with these NIDs.
    fn set(&mut self, place: usize, left: Option<NidList>) {
        for nid in self.peers[place].iter().flatten() {
            self.places.remove(nid);
        }
        let nids = left.iter().flatten().cloned();
        self.places.extend(nids.map(|nid| (nid, place)));
        self.peers[place] = left;
    }

    fn into_peers(self) -> Vec<NidList> {
        self.peers.into_iter().flatten().collect()
    }
}

pub(super) fn add_peers(
    document: &mut RailsDocument,
    peers: Vec<NidList>,
) -> Result<(), ChangeError> {
    let mut known = Owners::of(std::mem::take(&mut document.peers));
    for peer in peers {
        let has = |nid: &Nid| peer.iter().any(|one| one == nid);
        // What it replaces: peers whose NIDs it all has.
        for nid in &peer {
            if let Some((place, other)) = known.find(nid)
                && other.iter().all(has)
            {
                known.set(place, None);
            }
        }
        if let Some((nid, (_, other))) = peer.iter().find_map(|nid| Some((nid, known.find(nid)?))) {
            return Err(ChangeError::NidTaken {
                nid: nid.to_string(),
                other: other.to_string(),
            });
        }
        known.push(peer);
    }
    document.peers = known.into_peers();
    Ok(())
}

pub(super) fn remove_peers(
    document: &mut RailsDocument,
    peers: &[NidList],
) -> Result<(), ChangeError> {
    let mut known = Owners::of(std::mem::take(&mut document.peers));
    for nid in peers.iter().flatten() {
        let Some((place, peer)) = known.find(nid) else {
            let nid = nid.to_string();
            return Err(ChangeError::NoSuchPeer { nid });
        };
        let left = peer.iter().filter(|one| *one != nid).cloned();
        let left = NidList::new(left.collect()).ok();
        known.set(place, left);
    }
    document.peers = known.into_peers();
    Ok(())
}
