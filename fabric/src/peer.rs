//! Peers: remote members, known by their NIDs, and the paths that lead to them.
//!
//! On each common net, local rails and remote NIDs are paired. First they are paired within each subnet by index, and
//! the shorter side repeats. Then the rails and NIDs without a counterpart in their subnet are paired in the same
//! way, since subnets may be routed. These pairs are *home* paths: two rails and two NIDs of one subnet make two, and
//! so do one rail and two NIDs. All other pairs on the net are *spare* paths, which are opened when they are first
//! needed. Where no rail and NID agree by subnet, as on loopback, a copy on every home path reaches each rail and
//! each NID.
//!
//! A NID that has the address of a rail of this node (`docker0` has 172.17.0.1 on every machine) makes no path,
//! unless all of the peer's NIDs are like that.

use crate::bulk::PeerBulk;
use crate::lane_names::Told;
use crate::peer_handle::PeerHandle;
use crate::policy::Ranks;
use crate::relay::PeerRelay;
use crate::stats::{Counters, UsageRate};
use muster_provider::{NIDS_MAX, Nid, NidList, Subnet};
use muster_rail_health::{Health, RailLiveness};

/// One path: a local rail and a remote NID.
#[derive(Debug)]
pub(crate) struct Path {
    /// Identifies the path in sends that are under way. Unique within the fabric.
    pub(crate) id: u32,
    pub(crate) rail: usize,
    /// The NID's index among the peer's.
    pub(crate) remote: u8,
    pub(crate) nid: Nid,
    pub(crate) spare: bool,
    pub(crate) ranks: Ranks,
    /// The provider's addresses of the NID in each of the rail's datagram lanes, by class; none before the path is
    /// opened. Where the peer has to tell its address for beats, `told` has that one.
    pub(crate) addresses: Option<[u64; 2]>,
    /// The peer's announcement of the addresses of its other lanes.
    pub(crate) told: Option<Told>,
    /// The own addresses were announced to the peer.
    pub(crate) announced: bool,
    /// The same in the rail's bulk lane.
    pub(crate) bulk_address: Option<u64>,
    /// Sends under way on each of the rail's lanes, by class.
    pub(crate) sends: [usize; 2],
    /// The maximum of sends under way so far.
    pub(crate) sends_most: usize,
    pub(crate) queued_bytes: u64,
    /// Sends under way on the rail's bulk lane.
    pub(crate) bulk_sends: u32,
    /// Bytes of bulk messages that were sent on it and are not acknowledged.
    pub(crate) bulk_bytes: u64,
    pub(crate) health: Health,
    /// The health of the bulk lane, which only the peer's acknowledgements improve.
    pub(crate) bulk_health: Health,
    /// The peer's `turn` when the path was used last.
    pub(crate) turn: u64,
    pub(crate) usage: UsageRate,
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
            told: None,
            announced: false,
            bulk_address: None,
            sends: [0; 2],
            sends_most: 0,
            queued_bytes: 0,
            bulk_sends: 0,
            bulk_bytes: 0,
            health: Health::default(),
            bulk_health: Health::default(),
            turn: 0,
            usage: UsageRate::default(),
            counters: Counters::default(),
        }
    }

    /// Whether it is the path between this rail and this NID, at the provider's address in the NID.
    pub(crate) fn is_same(&self, rail: usize, nid: &Nid) -> bool {
        self.rail == rail && self.nid == *nid && self.nid.name == nid.name
    }

    /// The address for beats that the peer has told.
    pub(crate) fn beat_address(&self) -> Option<u64> {
        self.told.as_ref()?.beats
    }
}

/// A peer.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) nids: NidList,
    pub(crate) paths: Vec<Path>,
    pub(crate) rail_liveness: RailLiveness,
    /// NIDs that the peer reports as failing.
    pub(crate) told_failing: Vec<Nid>,
    /// Messages so far. Paths take turns by this count.
    pub(crate) turn: u64,
    /// The path of the last message, and how many messages it has taken in a row.
    pub(crate) run: (u32, u32),
    /// Bulk messages to and from the peer, after the first one.
    pub(crate) bulk: Option<Box<PeerBulk>>,
    /// The carriers that reach the peer, and what the peer may have carried.
    pub(crate) relay: PeerRelay,
}

impl Peer {
    pub(crate) fn new(nids: NidList, paths: Vec<Path>) -> Peer {
        let mut peer = Peer {
            nids,
            paths,
            rail_liveness: RailLiveness::new(&[false; NIDS_MAX]),
            told_failing: Vec::new(),
            turn: 0,
            run: (u32::MAX, 0),
            bulk: None,
            relay: PeerRelay::default(),
        };
        peer.note_rails();
        peer
    }

    /// Replaces the paths. Messages under way on a path that was chosen by its index are routed again. Returns the
    /// rails that were silent and do not lead to the peer any more.
    pub(crate) fn set_paths(&mut self, now_us: u64, paths: Vec<Path>) -> Vec<usize> {
        self.paths = paths;
        let ended = self.note_rails();
        if let Some(bulk) = &mut self.bulk {
            bulk.reroute(now_us);
        }
        ended
    }

    /// Updates which rails lead to the peer. Returns the rails whose silence ends with that.
    fn note_rails(&mut self) -> Vec<usize> {
        let leads =
            |paths: &[Path], rail| paths.iter().any(|path| path.rail == rail && !path.spare);
        let (paths, rail_liveness) = (&self.paths, &mut self.rail_liveness);
        let ends = |rail: &usize| rail_liveness.set_used(*rail, leads(paths, *rail));
        (0..NIDS_MAX).filter(ends).collect()
    }

    /// Counts a message that takes this path.
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

    /// Whether the policy assigns the next message to this path too.
    pub(crate) fn in_run(&self, path: &Path) -> bool {
        // A path that has taken its count of messages starts a new count at its next turn.
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

/// The part of a local rail that decides which NIDs it is paired with.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OwnRail<'a> {
    pub(crate) index: usize,
    pub(crate) nid: &'a Nid,
    pub(crate) subnet: Option<Subnet>,
}

/// All pairs of rails and NIDs of a peer on common nets, home pairs first.
pub(crate) fn pairs(rails: &[OwnRail<'_>], peer: &NidList) -> Vec<Pair> {
    let mut home = Vec::new();
    let mut spare = Vec::new();
    let mut nets = Vec::new();
    let unusable = unusable(rails, peer);
    for rail in rails {
        let net = rail.nid.net;
        if nets.contains(&net) {
            continue;
        }
        nets.push(net);
        let own: Vec<OwnRail<'_>> = rails
            .iter()
            .copied()
            .filter(|one| one.nid.net == net)
            .collect();
        let remotes = (0u8..).zip(peer).filter(|(_, one)| one.net == net);
        let remotes: Vec<(u8, &Nid)> = remotes.filter(|(_, nid)| !unusable.contains(nid)).collect();
        let regular = home_pairs(&own, &remotes);
        for rail in &own {
            for (remote, _) in &remotes {
                if !regular.contains(&(rail.index, *remote)) {
                    spare.push((rail.index, *remote));
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

/// The home pairs of one net: within each subnet by index, then, also by index, the rails and NIDs without a
/// counterpart in their subnet. If one side has none of these left, the other side's have no home pair.
fn home_pairs(own: &[OwnRail<'_>], remotes: &[(u8, &Nid)]) -> Vec<(usize, u8)> {
    // The subnet of a local rail that a NID belongs to; the narrowest if there are several.
    let subnet_of = |nid: &Nid| {
        let address = *nid.socket_address()?.ip();
        let subnets = own.iter().filter_map(|rail| rail.subnet);
        let near = subnets.filter(|subnet| subnet.contains(address));
        near.max_by_key(|subnet| subnet.prefix())
    };
    let mut groups: Vec<(Option<Subnet>, Vec<usize>, Vec<u8>)> =
        vec![(None, Vec::new(), Vec::new())];
    for (remote, nid) in remotes {
        let subnet = subnet_of(nid);
        match groups.iter_mut().find(|group| group.0 == subnet) {
            Some(group) => group.2.push(*remote),
            None => groups.push((subnet, Vec::new(), vec![*remote])),
        }
    }
    for rail in own {
        let group = groups.iter().position(|group| group.0 == rail.subnet);
        groups[group.unwrap_or(0)].1.push(rail.index);
    }
    // Rails and NIDs without a subnet come last.
    groups.rotate_left(1);
    let pairs = groups
        .iter()
        .flat_map(|(_, own, remotes)| by_index(own, remotes));
    pairs.collect()
}

/// Pairs by index; the shorter side repeats.
fn by_index(own: &[usize], remotes: &[u8]) -> Vec<(usize, u8)> {
    if own.is_empty() || remotes.is_empty() {
        return Vec::new();
    }
    let count = own.len().max(remotes.len());
    let at = |turn: usize| (own[turn % own.len()], remotes[turn % remotes.len()]);
    (0..count).map(at).collect()
}

/// Whether a NID has the address of a rail of this node, so that a message to it would come back. Loopback addresses
/// are not compared.
fn is_own(rails: &[OwnRail<'_>], nid: &Nid) -> bool {
    let address = nid.socket_address().map(|at| *at.ip());
    let address = address.filter(|ip| !ip.is_loopback());
    address.is_some() && rails.iter().any(|rail| rail.nid.address == nid.address)
}

/// The NIDs of a peer that cannot lead to it because a rail of this node has their address. None if that holds for
/// all of them: then the peer is another agent of this machine.
pub(crate) fn unusable<'a>(rails: &[OwnRail<'_>], peer: &'a NidList) -> Vec<&'a Nid> {
    let own: Vec<&Nid> = peer.iter().filter(|nid| is_own(rails, nid)).collect();
    match own.len() == peer.iter().count() {
        true => Vec::new(),
        false => own,
    }
}

/// All peers, by handle. The entry of a forgotten peer is reused with another generation.
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

    /// The path of a send that was under way; none if the path was removed meanwhile.
    pub(crate) fn path_by_id(&mut self, handle: PeerHandle, id: u32) -> Option<&mut Path> {
        let peer = self.get_mut(handle)?;
        peer.paths.iter_mut().find(|path| path.id == id)
    }

    /// All known peers, with their handles.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (PeerHandle, &Peer)> {
        let handle = |(index, slot): (u32, &Slot)| PeerHandle {
            index,
            generation: slot.generation,
        };
        let slots = (0u32..).zip(&self.slots);
        slots.filter_map(move |(index, slot)| Some((handle((index, slot)), slot.peer.as_ref()?)))
    }

    /// All known peers.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Peer> {
        self.slots.iter_mut().filter_map(|slot| slot.peer.as_mut())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::net::Ipv4Addr;

    /// Rails with these addresses, all with a mask of this many bits.
    fn own_rails(own: &NidList, bits: Option<u32>) -> Vec<OwnRail<'_>> {
        let subnet = |nid: &Nid| {
            let mask = Ipv4Addr::from(u32::MAX << (32 - bits?));
            Some(Subnet::of(*nid.socket_address()?.ip(), mask))
        };
        let rail = |(index, nid)| OwnRail {
            index,
            nid,
            subnet: subnet(nid),
        };
        own.iter().enumerate().map(rail).collect()
    }

    fn home_by_subnet(own: &str, remote: &str) -> Vec<(usize, u8)> {
        let own: NidList = own.parse().unwrap();
        let pairs = pairs(&own_rails(&own, Some(24)), &remote.parse().unwrap());
        let home = pairs.into_iter().filter(|pair| !pair.spare);
        home.map(|pair| (pair.rail, pair.remote)).collect()
    }

    /// Default rails are all on one net. The order and number of a node's interfaces do not tell which of them are on
    /// one network.
    #[test]
    fn interfaces_of_one_subnet_are_paired_whatever_their_order() {
        let own = "10.0.0.1@udp,10.0.1.1@udp";
        assert_eq!(
            home_by_subnet(own, "10.0.1.2@udp,10.0.0.2@udp"),
            [(1, 0), (0, 1)]
        );
        // The other subnets of both may be routed to each other.
        assert_eq!(
            home_by_subnet(own, "10.0.9.2@udp,10.0.1.2@udp"),
            [(1, 1), (0, 0)]
        );
        // One rail or NID has no counterpart left.
        assert_eq!(home_by_subnet(own, "10.0.1.2@udp"), [(1, 0)]);
        assert_eq!(
            home_by_subnet("10.0.1.1@udp", "10.0.0.2@udp,10.0.1.2@udp"),
            [(0, 1)]
        );
        // All subnets are routed: by index.
        assert_eq!(
            home_by_subnet(own, "10.0.8.2@udp,10.0.9.2@udp"),
            [(0, 0), (1, 1)]
        );
        assert_eq!(home_by_subnet(own, "10.0.8.2@udp"), [(0, 0), (1, 0)]);
    }

    #[test]
    fn an_address_in_two_subnets_belongs_to_the_narrower() {
        let own: NidList = "10.0.0.1@udp,10.0.1.1@udp".parse().unwrap();
        let mut rails = own_rails(&own, Some(24));
        rails[0].subnet = Some(Subnet::of([10, 0, 0, 1].into(), [255, 255, 0, 0].into()));
        let pairs = pairs(&rails, &"10.0.1.2@udp,10.0.7.2@udp".parse().unwrap());
        let home = pairs.iter().filter(|pair| !pair.spare);
        let home: Vec<_> = home.map(|pair| (pair.rail, pair.remote)).collect();
        assert_eq!(home, [(1, 0), (0, 1)]);
    }

    #[test]
    fn an_address_that_both_nodes_have_is_not_a_path() {
        let own: NidList = "10.0.0.1@udp,172.17.0.1@udp".parse().unwrap();
        let all = |remote: &str| pairs(&own_rails(&own, Some(24)), &remote.parse().unwrap());
        let found = all("172.17.0.1@udp,10.0.0.2@udp");
        assert!(found.iter().all(|pair| pair.remote == 1), "{found:?}");
        assert!(found.contains(&Pair {
            rail: 0,
            remote: 1,
            spare: false
        }));
        // The peer is another agent of this machine.
        let found = all("10.0.0.1:9@udp");
        assert!(found.contains(&Pair {
            rail: 0,
            remote: 0,
            spare: false
        }));
    }

    fn all_pairs(own: &str, remote: &str) -> Vec<Pair> {
        let own: NidList = own.parse().unwrap();
        pairs(&own_rails(&own, None), &remote.parse().unwrap())
    }

    fn home(own: &str, remote: &str) -> Vec<(usize, u8)> {
        let home = all_pairs(own, remote)
            .into_iter()
            .filter(|pair| !pair.spare);
        home.map(|pair| (pair.rail, pair.remote)).collect()
    }

    #[test]
    fn rails_and_nids_on_one_net_are_paired_by_index() {
        assert_eq!(
            home("1.0.0.1@udp,1.0.0.2@udp", "2.0.0.1@udp,2.0.0.2@udp"),
            [(0, 0), (1, 1)]
        );
    }

    #[test]
    fn the_shorter_side_repeats_so_that_every_interface_is_used() {
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
    fn pairs_need_the_same_net_not_the_same_index() {
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
        /// Every pair on a common net exists once, and each rail on a common net is in a home pair.
        #[test]
        fn pairs_are_complete_and_unique(own in nids(1), remote in nids(2)) {
            let all = pairs(&own_rails(&own, None), &remote);
            for (rail, local) in own.iter().enumerate() {
                let mut has_home = false;
                for (index, nid) in (0u8..).zip(&remote) {
                    let found = all.iter().filter(|pair| pair.rail == rail && pair.remote == index);
                    prop_assert_eq!(found.count(), usize::from(nid.net == local.net));
                    has_home |= all.iter().any(|pair| pair.rail == rail && !pair.spare);
                }
                let common = remote.iter().any(|nid| nid.net == local.net);
                prop_assert_eq!(has_home, common);
            }
        }
    }
}
