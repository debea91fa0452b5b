//! Planning: the zones of a job from what is known about the machine.
//!
//! A job of at most [`Aim::one_zone_max`] nodes is one zone. A larger one is cut into zones of about [`Aim::zone`]
//! nodes along its switches, or in the order of its node list where no switches are known. Where a zone of a higher
//! level would have more than [`Aim::above_max`] zone supervisors, one more level is added.

use crate::directory::{Directory, NodeIndex};
use crate::error::MapError;
use crate::limits::{DEPTH_MAX, SUPERVISORS};
use crate::map::{ZoneEntry, ZoneMap};

/// The sizes to aim at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aim {
    /// Most nodes of a job that is one zone.
    pub one_zone_max: usize,
    /// Nodes of a zone, about.
    pub zone: usize,
    /// Most members of a zone above base zones.
    pub above_max: usize,
}

impl Default for Aim {
    fn default() -> Self {
        Self {
            one_zone_max: 1024,
            zone: 256,
            above_max: 512,
        }
    }
}

/// A switch and the nodes that are connected to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Switch {
    /// The path of the switches above it, outermost first; siblings have equal paths.
    pub above: String,
    /// Its nodes.
    pub nodes: Vec<NodeIndex>,
}

/// Plans the zones of the nodes in `directory`. `switches` are the leaf switches in their order; none if they are
/// not known.
///
/// # Errors
/// Switches that do not have each node once, or sizes at which [`DEPTH_MAX`] levels are not enough.
pub fn plan(directory: Directory, switches: &[Switch], aim: Aim) -> Result<ZoneMap, MapError> {
    let nodes = directory.len();
    let all = [Switch {
        above: String::new(),
        nodes: (0..nodes as u32).map(NodeIndex).collect(),
    }];
    let switches = if switches.is_empty() || nodes <= aim.one_zone_max {
        &all[..]
    } else {
        switches
    };
    let zones = match nodes <= aim.one_zone_max {
        true => vec![all[0].nodes.clone()],
        false => cut(switches, aim.zone.max(2)),
    };
    let paths = paths(zones.len(), aim.above_max / SUPERVISORS)?;
    let entries = zones.into_iter().zip(paths);
    let entries = entries.map(|(nodes, path)| ZoneEntry { path, nodes });
    ZoneMap::new(directory, entries.collect())
}

/// Cuts large switches into equal parts, and joins small ones that follow each other under one switch.
fn cut(switches: &[Switch], zone: usize) -> Vec<Vec<NodeIndex>> {
    let mut zones: Vec<Vec<NodeIndex>> = Vec::new();
    let mut open: Vec<NodeIndex> = Vec::new();
    let mut above = "";
    for switch in switches {
        let is_too_large = open.len() + switch.nodes.len() > zone + zone / 4;
        let is_elsewhere = switch.above != above && open.len() >= zone / 4;
        if !open.is_empty() && (is_too_large || is_elsewhere) {
            zones.push(std::mem::take(&mut open));
        }
        above = &switch.above;
        if switch.nodes.len() > zone + zone / 2 {
            zones.extend(equal_parts(&switch.nodes, zone));
        } else {
            open.extend_from_slice(&switch.nodes);
        }
    }
    if !open.is_empty() {
        zones.push(open);
    }
    zones
}

/// Consecutive parts of at most `most`, of sizes that differ by at most one.
fn equal_parts(nodes: &[NodeIndex], most: usize) -> impl Iterator<Item = Vec<NodeIndex>> {
    let parts = nodes.len().div_ceil(most);
    (0..parts).map(move |part| {
        let at = |part: usize| part * nodes.len() / parts;
        nodes[at(part)..at(part + 1)].to_vec()
    })
}

/// Paths for so many zones, with at most `children_max` zones directly below another.
fn paths(zones: usize, children_max: usize) -> Result<Vec<String>, MapError> {
    const NAMES: [&str; DEPTH_MAX] = ["z", "g", "h"];
    let children_max = children_max.max(2);
    // Number of zones at each level, the highest left out.
    let mut counts = vec![zones];
    while counts[counts.len() - 1] > children_max {
        counts.push(counts[counts.len() - 1].div_ceil(children_max));
    }
    if counts.len() > DEPTH_MAX {
        return Err(MapError::TooManyZones {
            zones,
            children_max,
        });
    }
    let path = |zone: usize| {
        let mut number = zone;
        let mut parts = Vec::new();
        for (level, count) in counts.iter().enumerate() {
            parts.push(format!("{}{}", NAMES[level], number + 1));
            // Groups differ by at most one in size.
            let groups = counts.get(level + 1).copied().unwrap_or(1);
            number = number * groups / count;
        }
        parts.reverse();
        parts.join("/")
    };
    Ok((0..zones).map(path).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn nodes(count: usize) -> Directory {
        let names: Vec<String> = (0..count).map(|n| format!("n{n}")).collect();
        Directory::new(names.iter().map(String::as_str)).unwrap()
    }

    fn sizes(map: &ZoneMap, level: usize) -> Vec<usize> {
        map.zones_at(level).map(|zone| map.members(zone)).collect()
    }

    #[test]
    fn a_job_of_1024_nodes_is_one_zone_and_one_of_1025_has_several() {
        let map = plan(nodes(1024), &[], Aim::default()).unwrap();
        assert_eq!((map.levels(), sizes(&map, 0)), (1, vec![1024]));
        let map = plan(nodes(1025), &[], Aim::default()).unwrap();
        assert_eq!(map.levels(), 2);
        assert_eq!(sizes(&map, 0), [205; 5]);
        assert_eq!(sizes(&map, 1), [10]);
    }

    /// ZM-12: a million nodes, no zone above 512 members.
    #[test]
    fn a_million_nodes_have_three_levels() {
        let map = plan(nodes(1 << 20), &[], Aim::default()).unwrap();
        assert_eq!(map.levels(), 3);
        assert_eq!(map.zones_at(0).count(), 4096);
        assert_eq!(map.zones_at(1).count(), 16);
        assert_eq!(sizes(&map, 1), [512; 16]);
        assert_eq!(sizes(&map, 2), [32]);
    }

    #[test]
    fn small_switches_are_joined_under_one_switch_and_large_ones_cut() {
        // 40 leaf switches of 32 nodes, ten under each of four; one switch of 1000.
        let mut switches: Vec<Switch> = (0..40u32)
            .map(|leaf| Switch {
                above: format!("s{}", leaf / 10),
                nodes: (leaf * 32..(leaf + 1) * 32).map(NodeIndex).collect(),
            })
            .collect();
        switches.push(Switch {
            above: "s4".to_owned(),
            nodes: (1280..2280).map(NodeIndex).collect(),
        });
        let map = plan(nodes(2280), &switches, Aim::default()).unwrap();
        assert_eq!(sizes(&map, 0), [320, 320, 320, 320, 250, 250, 250, 250]);
    }

    #[test]
    fn sizes_that_need_too_many_levels_are_refused() {
        let aim = Aim {
            one_zone_max: 1,
            zone: 2,
            above_max: 4,
        };
        let error = plan(nodes(1000), &[], aim).unwrap_err();
        assert!(matches!(error, MapError::TooManyZones { .. }), "{error}");
    }

    proptest! {
        /// Whatever the sizes: every node has a zone, and no zone of a higher level is too large.
        #[test]
        fn every_plan_keeps_its_aims(count in 1usize..6000, zone in 8usize..300, above in 16usize..600) {
            let aim = Aim { one_zone_max: zone, zone, above_max: above };
            let Ok(map) = plan(nodes(count), &[], aim) else { return Ok(()) };
            let base: usize = sizes(&map, 0).iter().sum();
            prop_assert_eq!(base, count);
            for level in 1..map.levels() {
                let (least, most) = (sizes(&map, level).into_iter().min(), sizes(&map, level).into_iter().max());
                prop_assert!(most.unwrap_or(0) <= above, "{:?}", sizes(&map, level));
                prop_assert!(most.unwrap_or(0) - least.unwrap_or(0) <= 2, "{:?}", sizes(&map, level));
            }
        }
    }
}
