//! Peers: remote members by their NIDs, and the paths that lead to them.
//!
//! On each net that both are on, local rails and remote NIDs are paired by index, the shorter side
//! going round: two rails and two NIDs make two *home* paths, one rail and two NIDs also two. So every
//! local rail and every remote NID is used, and a copy on every home path reaches each of them. All
//! other pairs on the net are *spare*: they are opened when they are first needed.

use crate::fabric::PeerBulk;
use crate::health::{Health, Hearing};
use crate::nid::{NIDS_MAX, Nid, NidList};
use crate::policy::Ranks;
use crate::relay::PeerRelay;
use crate::stats::{Counters, Heat};

/// A peer that was taken in. Once it was forgotten, the handle stands for nobody.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerHandle {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

/// One path: a local rail and a remote NID.
#[derive(Debug)]
pub(crate) struct Path {
    /// What stands for it in sends that are under way: unique in the life of the fabric.
    pub(crate) id: u32,
    pub(crate) rail: usize,
    /// The NID's index among the peer's.
    pub(crate) remote: u8,
    pub(crate) nid: Nid,
    pub(crate) spare: bool,
    pub(crate) ranks: Ranks,
    /// What stands for the NID in each of the rail's lanes, by class; none before it is opened.
    pub(crate) addresses: Option<[u64; 2]>,
    /// The same in the rail's bulk lane.
    pub(crate) bulk_address: Option<u64>,
    /// Sends under way on each of the rail's lanes, by class.
    pub(crate) sends: [usize; 2],
    /// The most that ever were under way.
    pub(crate) sends_most: usize,
    pub(crate) queued_bytes: u64,
    /// Sends under way on the rail's bulk lane.
    pub(crate) bulk_sends: u32,
    /// Bytes of bulk messages that have gone by it and are not acknowledged.
    pub(crate) bulk_bytes: u64,
    pub(crate) health: Health,
    /// The same for the bulk lane, where only the peer's acknowledgements count.
    pub(crate) bulk_health: Health,
    /// When it was used last, on the peer's count.
    pub(crate) turn: u64,
    pub(crate) heat: Heat,
    pub(crate) counters: Counters,
}

impl Path {
    pub(crate) fn new(id: u32, pair: &Pair, nid: Nid, ranks: Ranks) -> Path {
        Path {
            id,
            rail: pair.rail,
            remote: pair.remote,
            nid,
            spare: pair.spare,
            ranks,
            addresses: None,
            bulk_address: None,
            sends: [0; 2],
            sends_most: 0,
            queued_bytes: 0,
            bulk_sends: 0,
            bulk_bytes: 0,
            health: Health::default(),
            bulk_health: Health::default(),
            turn: 0,
            heat: Heat::default(),
            counters: Counters::default(),
        }
    }
}

/// A peer.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) nids: NidList,
    pub(crate) paths: Vec<Path>,
    pub(crate) hearing: Hearing,
    /// NIDs that it says do not work.
    pub(crate) told_failing: Vec<Nid>,
    /// Messages so far: the count that turns are taken on.
    pub(crate) turn: u64,
    /// The path that the last message took, and how many it has taken in a row.
    pub(crate) run: (u32, u32),
    /// Bulk messages to and from it, once there was one.
    pub(crate) bulk: Option<Box<PeerBulk>>,
    /// How it is reached through others, and what it has others reach through us.
    pub(crate) relay: PeerRelay,
}

impl Peer {
    pub(crate) fn new(nids: NidList, paths: Vec<Path>) -> Peer {
        let mut peer = Peer {
            nids,
            paths,
            hearing: Hearing::new(&[false; NIDS_MAX]),
            told_failing: Vec::new(),
            turn: 0,
            run: (u32::MAX, 0),
            bulk: None,
            relay: PeerRelay::default(),
        };
        peer.note_rails();
        peer
    }

    /// Takes other paths. What is under way by a path that was chosen by its place is chosen anew.
    /// Returns the rails that were silent and lead to the peer no more.
    pub(crate) fn set_paths(&mut self, now_us: u64, paths: Vec<Path>) -> Vec<usize> {
        self.paths = paths;
        let ended = self.note_rails();
        if let Some(bulk) = &mut self.bulk {
            bulk.choose_anew(now_us);
        }
        ended
    }

    /// Says to the hearing which rails lead to the peer; returns those whose silence ends with that.
    fn note_rails(&mut self) -> Vec<usize> {
        let leads =
            |paths: &[Path], rail| paths.iter().any(|path| path.rail == rail && !path.spare);
        let (paths, hearing) = (&self.paths, &mut self.hearing);
        let ends = |rail: &usize| hearing.set_used(*rail, leads(paths, *rail));
        (0..NIDS_MAX).filter(ends).collect()
    }

    /// Notes that a message takes this path.
    pub(crate) fn take(&mut self, path: usize) {
        self.turn += 1;
        let path = &mut self.paths[path];
        path.turn = self.turn;
        let again = self.run.0 == path.id;
        self.run = (
            path.id,
            if again {
                self.run.1.saturating_add(1)
            } else {
                1
            },
        );
    }

    /// Whether the policy wants the next message on this path too.
    pub(crate) fn in_run(&self, path: &Path) -> bool {
        // A path that has had its count begins anew when the others have had their turn.
        self.run.0 == path.id && !self.run.1.is_multiple_of(path.ranks.messages)
    }
}

/// A local rail and a remote NID on one net.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pair {
    pub(crate) rail: usize,
    pub(crate) remote: u8,
    pub(crate) spare: bool,
}

/// All pairs of rails (each with its index) and NIDs of a peer on one net: home pairs first.
pub(crate) fn pairs(rails: &[(usize, &Nid)], peer: &NidList) -> Vec<Pair> {
    let mut home = Vec::new();
    let mut spare = Vec::new();
    let mut nets = Vec::new();
    for (_, rail) in rails {
        if nets.contains(&rail.net) {
            continue;
        }
        nets.push(rail.net);
        let own = rails.iter().filter(|(_, one)| one.net == rail.net);
        let own: Vec<usize> = own.map(|(index, _)| *index).collect();
        let remotes = (0u8..).zip(peer).filter(|(_, one)| one.net == rail.net);
        let remotes: Vec<u8> = remotes.map(|(index, _)| index).collect();
        if remotes.is_empty() {
            continue;
        }
        let count = own.len().max(remotes.len());
        let at_home = |turn: usize| (own[turn % own.len()], remotes[turn % remotes.len()]);
        let regular: Vec<(usize, u8)> = (0..count).map(at_home).collect();
        for rail in &own {
            for remote in &remotes {
                if !regular.contains(&(*rail, *remote)) {
                    spare.push((*rail, *remote));
                }
            }
        }
        home.extend(regular);
    }
    let home = home.into_iter().map(|pair| (pair, false));
    let spare = spare.into_iter().map(|pair| (pair, true));
    let pair = |((rail, remote), spare)| Pair {
        rail,
        remote,
        spare,
    };
    home.chain(spare).map(pair).collect()
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

    pub(crate) fn get_mut(&mut self, handle: PeerHandle) -> Option<&mut Peer> {
        let slot = self.slots.get_mut(handle.index as usize)?;
        if slot.generation == handle.generation {
            slot.peer.as_mut()
        } else {
            None
        }
    }

    /// The path of a send that was under way; none if it has gone meanwhile.
    pub(crate) fn path_by_id(&mut self, handle: PeerHandle, id: u32) -> Option<&mut Path> {
        let peer = self.get_mut(handle)?;
        peer.paths.iter_mut().find(|path| path.id == id)
    }

    /// All peers that are known, with their handles.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (PeerHandle, &Peer)> {
        let handle = |(index, slot): (u32, &Slot)| PeerHandle {
            index,
            generation: slot.generation,
        };
        let slots = (0u32..).zip(&self.slots);
        slots.filter_map(move |(index, slot)| Some((handle((index, slot)), slot.peer.as_ref()?)))
    }

    /// All peers that are known.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Peer> {
        self.slots.iter_mut().filter_map(|slot| slot.peer.as_mut())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all_pairs(own: &str, remote: &str) -> Vec<Pair> {
        let own: NidList = own.parse().unwrap();
        let rails: Vec<(usize, &Nid)> = own.iter().enumerate().collect();
        pairs(&rails, &remote.parse().unwrap())
    }

    fn home(own: &str, remote: &str) -> Vec<(usize, u8)> {
        let home = all_pairs(own, remote)
            .into_iter()
            .filter(|pair| !pair.spare);
        home.map(|pair| (pair.rail, pair.remote)).collect()
    }

    #[test]
    fn rails_and_nids_on_one_net_pair_by_index() {
        assert_eq!(
            home("1.0.0.1@udp,1.0.0.2@udp", "2.0.0.1@udp,2.0.0.2@udp"),
            [(0, 0), (1, 1)]
        );
    }

    #[test]
    fn the_shorter_side_goes_round_so_that_every_interface_is_used() {
        assert_eq!(
            home("1.0.0.1@udp", "2.0.0.1@udp,2.0.0.2@udp"),
            [(0, 0), (0, 1)]
        );
        assert_eq!(
            home(
                "1.0.0.1@udp,1.0.0.2@udp,1.0.0.3@udp",
                "2.0.0.1@udp,2.0.0.2@udp"
            ),
            [(0, 0), (1, 1), (2, 0)]
        );
    }

    #[test]
    fn the_same_net_name_is_preferred_to_the_same_index() {
        assert_eq!(
            home("1.0.0.1@udp0,1.0.0.2@udp1", "2.0.0.2@udp1,2.0.0.1@udp0"),
            [(0, 1), (1, 0)]
        );
    }

    #[test]
    fn without_a_common_net_there_is_no_path() {
        assert_eq!(all_pairs("1.0.0.1@udp0", "2.0.0.1@udp1,2.0.0.1@o2ib0"), []);
    }

    fn nids(side: u8) -> impl Strategy<Value = NidList> {
        proptest::collection::vec(0..3u8, 1..=NIDS_MAX).prop_map(move |nets| {
            let nid = |(index, net)| format!("10.{side}.0.{index}@udp{net}").parse().unwrap();
            NidList::new((1..).zip(nets).map(nid).collect::<Vec<Nid>>()).unwrap()
        })
    }

    proptest! {
        /// Every pair on a common net is there once, and each side of a common net is in a home pair.
        #[test]
        fn pairs_are_complete_and_unique(own in nids(1), remote in nids(2)) {
            let rails: Vec<(usize, &Nid)> = own.iter().enumerate().collect();
            let all = pairs(&rails, &remote);
            for (rail, local) in own.iter().enumerate() {
                let mut at_home = false;
                for (index, nid) in (0u8..).zip(&remote) {
                    let found = all.iter().filter(|pair| pair.rail == rail && pair.remote == index);
                    prop_assert_eq!(found.count(), usize::from(nid.net == local.net));
                    at_home |= all.iter().any(|pair| pair.rail == rail && !pair.spare);
                }
                let common = remote.iter().any(|nid| nid.net == local.net);
                prop_assert_eq!(at_home, common);
            }
        }
    }
}
