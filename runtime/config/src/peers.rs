//! Peers in a change: lists with ranges, and their effect on the configured peers.
//!
//! They are counted before ranges are expanded, and looked up by NID, since one change may name hundreds.

use super::PEERS_AT_ONCE_MAX;
use super::change_error::ChangeError;
use super::rails::RailsDocument;
use muster_fabric::{Address, NIDS_MAX, Nid, NidError, NidList};
use muster_hostlist::expand;
use std::collections::BTreeMap;

/// The peers of all space-separated lists.
pub(super) fn all_peers_of(text: &str) -> Result<Vec<NidList>, ChangeError> {
    let mut peers = Vec::new();
    for word in text.split(' ') {
        peers.extend(peers_of(word)?);
        // Checked before the next list is expanded.
        if peers.len() > PEERS_AT_ONCE_MAX {
            return Err(ChangeError::ManyAtOnce);
        }
    }
    Ok(peers)
}

/// The peers of one list: `10.0.0.[1-4]@udp0,10.1.0.[1-4]@udp1` is four peers with two NIDs each.
///
/// # Errors
/// An invalid list, one with too many peers, or one whose parts differ in length.
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
        // Checked before more is expanded.
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

/// The parts of a list, split at commas outside of brackets.
fn split(text: &str) -> impl Iterator<Item = &str> {
    let mut inside = false;
    let comma = move |character: char| {
        match character {
            '[' => inside = true,
            ']' => inside = false,
            _ => {}
        }
        character == ',' && !inside
    };
    text.split(comma).map(str::trim)
}

/// The peers, indexed by NID.
struct PeersByNid {
    /// A removed peer leaves `None`.
    peers: Vec<Option<NidList>>,
    indices: BTreeMap<Nid, usize>,
}

impl PeersByNid {
    fn of(peers: Vec<NidList>) -> PeersByNid {
        let mut found = PeersByNid {
            peers: Vec::with_capacity(peers.len()),
            indices: BTreeMap::new(),
        };
        peers.into_iter().for_each(|peer| found.push(peer));
        found
    }

    fn push(&mut self, peer: NidList) {
        let index = self.peers.len();
        self.indices
            .extend(peer.iter().map(|nid| (nid.clone(), index)));
        self.peers.push(Some(peer));
    }

    /// The index of a NID's peer, and that peer.
    fn find(&self, nid: &Nid) -> Option<(usize, &NidList)> {
        let index = *self.indices.get(nid)?;
        Some((index, self.peers[index].as_ref()?))
    }

    /// Replaces a peer by one with these NIDs, or removes it.
    fn set(&mut self, index: usize, left: Option<NidList>) {
        for nid in self.peers[index].iter().flatten() {
            self.indices.remove(nid);
        }
        let nids = left.iter().flatten().cloned();
        self.indices.extend(nids.map(|nid| (nid, index)));
        self.peers[index] = left;
    }

    fn into_peers(self) -> Vec<NidList> {
        self.peers.into_iter().flatten().collect()
    }
}

pub(super) fn add_peers(
    document: &mut RailsDocument,
    peers: Vec<NidList>,
) -> Result<(), ChangeError> {
    let mut known = PeersByNid::of(std::mem::take(&mut document.peers));
    for peer in peers {
        let has = |nid: &Nid| peer.iter().any(|one| one == nid);
        // It replaces the peers whose NIDs it all has.
        for nid in &peer {
            if let Some((index, other)) = known.find(nid)
                && other.iter().all(has)
            {
                known.set(index, None);
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
    let mut known = PeersByNid::of(std::mem::take(&mut document.peers));
    for nid in peers.iter().flatten() {
        let Some((index, peer)) = known.find(nid) else {
            let nid = nid.to_string();
            return Err(ChangeError::NoSuchPeer { nid });
        };
        let left = peer.iter().filter(|one| *one != nid).cloned();
        let left = NidList::new(left.collect()).ok();
        known.set(index, left);
    }
    document.peers = known.into_peers();
    Ok(())
}
