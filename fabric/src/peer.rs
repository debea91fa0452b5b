//! Peers: remote members by their NIDs, and the paths that lead to them.
//!
//! On each net that both are on, local rails and remote NIDs are paired by index, the shorter side
//! going round: two rails and two NIDs make two paths, one rail and two NIDs also two. So every
//! local rail and every remote NID is used, and a copy on every path reaches each of them.

use crate::health::{Hearing, SendHealth};
use crate::nid::{Nid, NidList};
use crate::stats::Counters;

/// A peer that was taken in. Once it was forgotten, the handle stands for nobody.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerHandle {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

/// Whether a path is used for messages that take one path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PathState {
    /// Nothing speaks against it.
    Up,
    /// The peer is silent on the local rail, see
    /// [`FabricEvent::RailSilent`](crate::FabricEvent::RailSilent).
    Silent,
    /// The provider refused several messages in a row, on this path or on the whole rail.
    Failing,
}

/// One path to a peer as its owner sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathView {
    /// Index of the local rail.
    pub rail: usize,
    /// The remote NID.
    pub nid: Nid,
    /// Whether it is used.
    pub state: PathState,
    /// What went over it. Receives are counted on the first path of a rail, since what arrives does
    /// not say reliably which of the peer's interfaces it left by.
    pub counters: Counters,
}

/// One path: a local rail and a remote NID.
#[derive(Debug)]
pub(crate) struct Path {
    pub(crate) rail: usize,
    pub(crate) nid: Nid,
    /// What stands for the NID in each of the rail's lanes, by class.
    pub(crate) addresses: [u64; 2],
    /// Sends under way on each of the rail's lanes, by class.
    pub(crate) sends: [usize; 2],
    pub(crate) health: SendHealth,
    pub(crate) counters: Counters,
}

/// A peer.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) paths: Vec<Path>,
    pub(crate) hearing: Hearing,
    /// Place in the round over the paths.
    pub(crate) cursor: usize,
}

/// The pairs of local rail and remote NID that make the paths, by index.
pub(crate) fn pair(rails: &[Nid], peer: &NidList) -> Vec<(usize, usize)> {
    let mut pairs = Vec::new();
    let mut nets = Vec::new();
    for rail in rails {
        if nets.contains(&rail.net) {
            continue;
        }
        nets.push(rail.net);
        let on_net = |nids: &[Nid]| -> Vec<usize> {
            (0..nids.len())
                .filter(|&index| nids[index].net == rail.net)
                .collect()
        };
        let (own, remote) = (on_net(rails), on_net(peer.as_slice()));
        if remote.is_empty() {
            continue;
        }
        for index in 0..own.len().max(remote.len()) {
            pairs.push((own[index % own.len()], remote[index % remote.len()]));
        }
    }
    pairs
}

/// All peers, by handle. The place of a forgotten peer is used again under another generation.
#[derive(Debug, Default)]
pub(crate) struct PeerTable {
    slots: Vec<Slot>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct Slot {
    generation: u32,
    peer: Option<Peer>,
}

impl PeerTable {
    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub(crate) fn insert(&mut self, peer: Peer) -> PeerHandle {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot {
                generation: 0,
                peer: None,
            });
            self.slots.len() as u32 - 1
        });
        let slot = &mut self.slots[index as usize];
        slot.peer = Some(peer);
        PeerHandle {
            index,
            generation: slot.generation,
        }
    }

    pub(crate) fn remove(&mut self, handle: PeerHandle) -> Option<Peer> {
        let slot = self.slots.get_mut(handle.index as usize)?;
        if slot.generation != handle.generation {
            return None;
        }
        let peer = slot.peer.take()?;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(handle.index);
        Some(peer)
    }

    pub(crate) fn get(&self, handle: PeerHandle) -> Option<&Peer> {
        let slot = self.slots.get(handle.index as usize)?;
        if slot.generation == handle.generation {
            slot.peer.as_ref()
        } else {
            None
        }
    }

    pub(crate) fn path_mut(&mut self, handle: PeerHandle, path: usize) -> Option<&mut Path> {
        self.get_mut(handle)?.paths.get_mut(path)
    }

    pub(crate) fn get_mut(&mut self, handle: PeerHandle) -> Option<&mut Peer> {
        let slot = self.slots.get_mut(handle.index as usize)?;
        if slot.generation == handle.generation {
            slot.peer.as_mut()
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(own: &str, remote: &str) -> Vec<(usize, usize)> {
        let own: NidList = own.parse().unwrap();
        pair(own.as_slice(), &remote.parse().unwrap())
    }

    #[test]
    fn rails_and_nids_on_one_net_pair_by_index() {
        assert_eq!(
            pairs("1.0.0.1@udp,1.0.0.2@udp", "2.0.0.1@udp,2.0.0.2@udp"),
            [(0, 0), (1, 1)]
        );
    }

    #[test]
    fn the_shorter_side_goes_round_so_that_every_interface_is_used() {
        assert_eq!(
            pairs("1.0.0.1@udp", "2.0.0.1@udp,2.0.0.2@udp"),
            [(0, 0), (0, 1)]
        );
        assert_eq!(
            pairs(
                "1.0.0.1@udp,1.0.0.2@udp,1.0.0.3@udp",
                "2.0.0.1@udp,2.0.0.2@udp"
            ),
            [(0, 0), (1, 1), (2, 0)]
        );
    }

    #[test]
    fn the_same_net_name_is_preferred_to_the_same_index() {
        assert_eq!(
            pairs("1.0.0.1@udp0,1.0.0.2@udp1", "2.0.0.2@udp1,2.0.0.1@udp0"),
            [(0, 1), (1, 0)]
        );
    }

    #[test]
    fn without_a_common_net_there_is_no_path() {
        assert_eq!(pairs("1.0.0.1@udp0", "2.0.0.1@udp1,2.0.0.1@o2ib0"), []);
    }
}
