//! `Assignment` is the role of each node while all nodes are alive: what a plan leads to.

use muster_protocol::MemberId;

use crate::directory::NodeIndex;
use crate::limits::SUPERVISORS;
use crate::map::{ZoneId, ZoneMap};
use crate::roles::{Role, choose, guards};

/// Guards of each zone, unless the zone above has fewer members from other zones.
pub const GUARDS: usize = 2;

/// The roles in one zone. Each list begins with the first choice.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ZoneRoles {
    /// Members that take part in the zone above. None in the highest zone.
    pub supervisors: Vec<NodeIndex>,
    /// Members of the zone above, from other zones, that declare this one failed if it sends no supervisor. None for
    /// the highest zone.
    pub guards: Vec<NodeIndex>,
}

/// The roles in all zones of a map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignment {
    roles: Vec<Vec<ZoneRoles>>,
}

impl Assignment {
    /// The roles while all nodes of the map are alive.
    #[must_use]
    pub fn of(map: &ZoneMap) -> Self {
        let ids: Vec<MemberId> = map
            .directory()
            .names()
            .map(|name| MemberId::of(&name))
            .collect();
        let mut roles: Vec<Vec<ZoneRoles>> = Vec::new();
        // The members of each zone of the present level.
        let mut members: Vec<Vec<NodeIndex>> = map
            .zones_at(0)
            .map(|zone| map.nodes(zone).to_vec())
            .collect();
        for level in 0..map.levels() - 1 {
            let mut own: Vec<ZoneRoles> = map
                .zones_at(level)
                .map(|zone| members_roles(map.path(zone), &members[zone.number as usize], &ids))
                .collect();
            let above = |parent: ZoneId| -> Vec<(NodeIndex, ZoneId)> {
                let of = |child: ZoneId| {
                    let supervisors = own[child.number as usize].supervisors.clone();
                    supervisors.into_iter().map(move |node| (node, child))
                };
                map.children(parent).flat_map(of).collect()
            };
            let above: Vec<Vec<(NodeIndex, ZoneId)>> = map.zones_at(level + 1).map(above).collect();
            for zone in map.zones_at(level) {
                let parent = map.parent(zone).map_or(0, |parent| parent.number as usize);
                let candidates = above[parent].iter();
                let candidates =
                    candidates.map(|(node, home)| (ids[node.0 as usize], *home == zone));
                let chosen = guards(map.path(zone), candidates, GUARDS);
                let node = |id: &MemberId| {
                    above[parent]
                        .iter()
                        .find(|(node, _)| ids[node.0 as usize] == *id)
                };
                let nodes = chosen.iter().filter_map(node).map(|(node, _)| *node);
                own[zone.number as usize].guards = nodes.collect();
            }
            let nodes = above.into_iter();
            members = nodes
                .map(|zone| zone.into_iter().map(|(node, _)| node).collect())
                .collect();
            roles.push(own);
        }
        roles.push(vec![ZoneRoles::default()]);
        Self { roles }
    }

    /// The roles in a zone of the same map.
    #[must_use]
    pub fn zone(&self, zone: ZoneId) -> &ZoneRoles {
        &self.roles[usize::from(zone.level)][zone.number as usize]
    }
}

fn members_roles(path: &str, members: &[NodeIndex], ids: &[MemberId]) -> ZoneRoles {
    let chosen = |role, count| {
        let candidates = members.iter().map(|node| ids[node.0 as usize]);
        let ids_chosen = choose(role, path, candidates, count);
        let node = |id: &MemberId| {
            members
                .iter()
                .copied()
                .find(|node| ids[node.0 as usize] == *id)
        };
        ids_chosen.iter().filter_map(node).collect()
    };
    ZoneRoles {
        supervisors: chosen(Role::Supervisor, SUPERVISORS),
        guards: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::directory::Directory;
    use crate::plan::{Aim, plan};

    fn assignment(count: usize) -> (ZoneMap, Assignment) {
        let names: Vec<String> = (0..count).map(|n| format!("n{n}")).collect();
        let directory = Directory::new(names.iter().map(String::as_str)).unwrap();
        let aim = Aim {
            one_zone_max: 16,
            zone: 16,
            above_max: 32,
        };
        let map = plan(directory, &[], aim).unwrap();
        let assignment = Assignment::of(&map);
        (map, assignment)
    }

    /// ZM-12: each zone has supervisors and guards, and no guard is a node of its zone.
    #[test]
    fn every_zone_but_the_highest_has_all_roles() {
        let (map, assignment) = assignment(1000);
        assert_eq!(map.levels(), 3);
        for zone in map.zones() {
            let roles = assignment.zone(zone);
            let counts = [&roles.supervisors, &roles.guards].map(Vec::len);
            let expected = if map.parent(zone).is_some() {
                [2; 2]
            } else {
                [0; 2]
            };
            assert_eq!(counts, expected, "{}", map.path(zone));
            for guard in &roles.guards {
                assert!(
                    map.zones_of(*guard).all(|home| home != zone),
                    "{}",
                    map.path(zone)
                );
            }
        }
    }

    /// The members of a zone above are the supervisors of the zones below it.
    #[test]
    fn supervisors_are_nodes_of_their_zone() {
        let (map, assignment) = assignment(300);
        for zone in map.zones() {
            let roles = assignment.zone(zone);
            for node in &roles.supervisors {
                assert!(map.zones_of(*node).any(|home| home == zone));
            }
        }
    }

    #[test]
    fn one_zone_needs_no_roles() {
        let (map, assignment) = assignment(16);
        let zone = map.zones().next().unwrap();
        assert_eq!(assignment.zone(zone), &ZoneRoles::default());
    }
}
