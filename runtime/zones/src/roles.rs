//! Roles of nodes: which members of a zone are its supervisors, and which members of the zone above guard it.
//!
//! All are chosen by rendezvous hashing: each candidate has a weight for the zone and the role, and the highest
//! weights win. Nodes with equal views choose alike without a message, and the loss of one node moves only its own
//! roles.

use muster_protocol::MemberId;

use crate::directory::NodeIndex;
use crate::limits::SUPERVISORS;
use crate::map::{ZoneId, ZoneMap};

/// Nodes of another zone whose addresses are tried to find the zone above.
pub const CANDIDATES: usize = 4;

/// A role of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Role {
    /// A member of a zone that takes part in the zone above, and reports its own zone there. In the zone membership
    /// paper the delegates of a zone report it, to supervisors from other zones.
    Supervisor = 2,
    /// A member of the zone above, from another zone, that declares the zone failed if it sends no supervisor.
    Guard = 3,
}

/// The candidates with the highest weights for a role in the zone at `path`, the highest first; at most `count`.
pub fn choose(
    role: Role,
    path: &str,
    candidates: impl IntoIterator<Item = MemberId>,
    count: usize,
) -> Vec<MemberId> {
    // The role is in the highest byte.
    let zone = MemberId::of(path).0 ^ (role as u64).rotate_right(8);
    let mut best: Vec<(u64, MemberId)> = Vec::with_capacity(count + 1);
    for id in candidates {
        let weight = (mix(zone ^ mix(id.0)), id);
        let place = best.partition_point(|other| *other > weight);
        if place < count {
            best.insert(place, weight);
            best.truncate(count);
        }
    }
    best.into_iter().map(|(_, id)| id).collect()
}

/// The nodes that come first as supervisors of a zone, at most `count`: while all nodes are alive, its supervisors
/// are among them.
#[must_use]
pub fn candidates(map: &ZoneMap, zone: ZoneId, count: usize) -> Vec<NodeIndex> {
    let members: Vec<NodeIndex> = match zone.level {
        0 => map.nodes(zone).to_vec(),
        _ => {
            let children = map.children(zone);
            children
                .flat_map(|child| candidates(map, child, count))
                .collect()
        }
    };
    best(map, zone, &members, count)
}

/// Those of some nodes that come first as supervisors of a zone.
fn best(map: &ZoneMap, zone: ZoneId, members: &[NodeIndex], count: usize) -> Vec<NodeIndex> {
    let id = |node: &NodeIndex| Some((MemberId::of(&map.directory().name(*node)?), *node));
    let ids: Vec<(MemberId, NodeIndex)> = members.iter().filter_map(id).collect();
    let all = ids.iter().map(|(id, _)| *id);
    let chosen = choose(Role::Supervisor, map.path(zone), all, count);
    let node = |id: MemberId| {
        ids.iter()
            .find(|(other, _)| *other == id)
            .map(|(_, node)| *node)
    };
    chosen.into_iter().filter_map(node).collect()
}

/// The nodes of a zone that may take part in the zone above while some of its base zones are lost, at most `count`: the
/// first supervisors of each base zone.
#[must_use]
pub(crate) fn candidates_of_bases(map: &ZoneMap, zone: ZoneId, count: usize) -> Vec<NodeIndex> {
    if zone.level == 0 {
        return candidates(map, zone, count);
    }
    let bases = map.zones_at(0).filter(|base| {
        let mut zones = core::iter::successors(Some(*base), |zone| map.parent(*zone));
        zones.any(|above| above == zone)
    });
    let nodes = bases.flat_map(|base| candidates(map, base, SUPERVISORS));
    best(map, zone, &nodes.collect::<Vec<_>>(), count)
}

/// The guards of the zone at `path`: members of the zone above that are not nodes of it, so that the death of a
/// zone kills no guard of it. `candidates` are the members of the zone above with whether each is a node of the zone.
pub fn guards(
    path: &str,
    candidates: impl IntoIterator<Item = (MemberId, bool)>,
    count: usize,
) -> Vec<MemberId> {
    let others = candidates.into_iter().filter(|(_, is_inside)| !is_inside);
    choose(Role::Guard, path, others.map(|(id, _)| id), count)
}

/// The finalizer of SplitMix64 (Steele, Lea, Flood: "Fast Splittable Pseudorandom Number Generators", 2014).
const fn mix(mut value: u64) -> u64 {
    value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn nodes(count: usize) -> Vec<MemberId> {
        (0..count).map(|n| MemberId::of(&format!("n{n}"))).collect()
    }

    #[test]
    fn two_roles_of_a_zone_are_chosen_independently() {
        let nodes = nodes(64);
        let different = (0..100).filter(|zone| {
            let path = format!("z{zone}");
            let of = |role| choose(role, &path, nodes.iter().copied(), 2);
            let (supervisors, guards) = (of(Role::Supervisor), of(Role::Guard));
            guards.iter().all(|id| !supervisors.contains(id))
        });
        // Two pairs of 64 are disjoint with probability 0.94.
        assert!(different.count() >= 80);
    }

    /// ZM-12: the death of a zone kills no guard of it.
    #[test]
    fn a_guard_is_never_a_node_of_its_zone() {
        let nodes = nodes(8);
        for zone in 0..200 {
            let inside =
                |id: &MemberId| nodes.iter().position(|n| n == id).unwrap() % 4 == zone % 4;
            let candidates = nodes.iter().map(|id| (*id, inside(id)));
            let chosen = guards(&format!("z{zone}"), candidates, 2);
            assert_eq!(chosen.len(), 2);
            assert!(!chosen.iter().any(inside));
        }
    }

    /// Guards are spread evenly: 1000 zones over 100 supervisors, two each.
    #[test]
    fn no_supervisor_guards_many_more_zones_than_the_others() {
        let nodes = nodes(100);
        let mut load = std::collections::BTreeMap::new();
        for zone in 0..1000 {
            for id in choose(Role::Guard, &format!("z{zone}"), nodes.iter().copied(), 2) {
                *load.entry(id).or_insert(0) += 1;
            }
        }
        let most = load.values().max().copied().unwrap_or(0);
        assert!(most <= 45, "{most} zones for one supervisor; 20 on average");
    }

    proptest! {
        /// The loss of a candidate changes nothing unless it was chosen, and then only its own place.
        #[test]
        fn a_loss_moves_only_its_own_role(count in 3usize..40, lost in 0usize..40, zone in 0u32..1000) {
            let nodes = nodes(count);
            let lost = nodes[lost % count];
            let path = format!("z{zone}");
            let before = choose(Role::Supervisor, &path, nodes.iter().copied(), 2);
            let rest = nodes.iter().copied().filter(|id| *id != lost);
            let after = choose(Role::Supervisor, &path, rest, 2);
            let kept: Vec<_> = before.iter().filter(|id| **id != lost).collect();
            prop_assert!(kept.iter().all(|id| after.contains(id)));
        }
    }
}
