//! `ZoneMap` is the zones of a job: each node's base zone, and the zones of the levels above.
//!
//! Level 0 has the base zones, whose members are nodes. The members of a zone of a higher level are *zone
//! supervisors*: a few nodes of each zone below it. The highest level has one zone. A job with one base zone has one
//! level.
//!
//! The map is a value: checked once, never changed, the same on every node. Its digest tells two maps apart.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use muster_hostlist::{by_number, fold};

use crate::directory::{Directory, NodeIndex};
use crate::error::{Contradiction, MapError};
use crate::limits::{DEPTH_MAX, PART_MAX, SUPERVISORS, ZONE_MEMBERS_MAX};
use crate::runs::Runs;

/// The path of the zone above all others, if no zone of the map is that.
pub const ROOT: &str = "/";

/// A zone's place in the map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ZoneId {
    /// 0 for a base zone.
    pub level: u8,
    /// Its place in the level, in the natural order of paths.
    pub number: u32,
}

/// A base zone as a source names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZoneEntry {
    /// Path of names, outermost zone first: `row1/rack3`.
    pub path: String,
    /// Its nodes.
    pub nodes: Vec<NodeIndex>,
}

/// A zone that was too small to stand alone, and the zone that took its node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Merged {
    /// The path of the zone that no longer exists.
    pub zone: String,
    /// The path of the zone that has its node now.
    pub into: String,
}

impl fmt::Display for Merged {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { zone, into } = self;
        write!(
            out,
            "zone {zone} has one node, which no other node of it could observe: it is part of zone {into}"
        )
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Zone {
    path: String,
    /// Its number in the level above; 0 at the highest level.
    parent: u32,
    /// Level 0: a range of `ZoneMap::order`. Above: a range of zones of the level below.
    parts: Range<u32>,
}

/// The zones of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZoneMap {
    directory: Directory,
    /// The nodes, base zone after base zone, in the directory's order within each.
    order: Vec<NodeIndex>,
    /// The number of each node's base zone.
    zone_of: Vec<u32>,
    levels: Vec<Vec<Zone>>,
    /// The number of nodes of each base zone.
    sizes: Runs<u32>,
    merged: Vec<Merged>,
    digest: u64,
}

impl ZoneMap {
    /// The map of these base zones.
    ///
    /// A zone of one node has no member that could observe it. So it becomes part of the zone that precedes it, or
    /// that follows the first one; [`ZoneMap::merged`] tells.
    ///
    /// # Errors
    /// A path that is not valid or has another depth, a node in no zone or in two, a zone that is too large.
    pub fn new(directory: Directory, entries: Vec<ZoneEntry>) -> Result<Self, MapError> {
        let mut zones = by_path(&directory, entries)?;
        check_nodes(&directory, &zones)?;
        let merged = merge_single_nodes(&mut zones);
        let levels = levels(&zones);
        let mut order = Vec::with_capacity(directory.len());
        let mut zone_of = vec![0; directory.len()];
        for (number, (_, nodes)) in zones.iter().enumerate() {
            order.extend_from_slice(nodes);
            for node in nodes {
                zone_of[node.0 as usize] = number as u32;
            }
        }
        let digest = digest(&directory, &levels, &zone_of);
        let sizes = zones.iter().map(|(_, nodes)| nodes.len() as u32);
        let sizes = (0..).zip(sizes).collect();
        let map = Self {
            directory,
            order,
            zone_of,
            levels,
            sizes,
            merged,
            digest,
        };
        map.check_sizes()?;
        Ok(map)
    }

    /// The map of a job whose nodes are not known beforehand: one zone without a list of its nodes.
    #[must_use]
    pub fn unknown() -> Self {
        Self {
            directory: Directory::default(),
            order: Vec::new(),
            zone_of: Vec::new(),
            levels: vec![Vec::new()],
            sizes: Runs::default(),
            merged: Vec::new(),
            digest: 0,
        }
    }

    fn check_sizes(&self) -> Result<(), MapError> {
        let too_large = self
            .zones()
            .find(|zone| self.members(*zone) > ZONE_MEMBERS_MAX);
        match too_large {
            Some(zone) => Err(MapError::TooLarge {
                zone: self.path(zone).to_owned(),
                members: self.members(zone),
            }),
            None => Ok(()),
        }
    }

    /// The nodes of the job.
    #[must_use]
    pub fn directory(&self) -> &Directory {
        &self.directory
    }

    /// Equal maps have equal digests; different ones have different digests but for a chance of 2^-64.
    #[must_use]
    pub fn digest(&self) -> u64 {
        self.digest
    }

    /// Number of levels; at least 1.
    #[must_use]
    pub fn levels(&self) -> usize {
        self.levels.len()
    }

    /// The zones of one level, in order.
    pub fn zones_at(&self, level: usize) -> impl Iterator<Item = ZoneId> + use<> {
        let count = self.levels.get(level).map_or(0, Vec::len) as u32;
        (0..count).map(move |number| ZoneId {
            level: level as u8,
            number,
        })
    }

    /// All zones, base zones first.
    pub fn zones(&self) -> impl Iterator<Item = ZoneId> {
        (0..self.levels.len()).flat_map(|level| self.zones_at(level))
    }

    /// The zone with this place in the map, if there is one.
    #[must_use]
    pub fn find(&self, level: u8, number: u32) -> Option<ZoneId> {
        let zones = self.levels.get(usize::from(level))?;
        ((number as usize) < zones.len()).then_some(ZoneId { level, number })
    }

    fn zone(&self, zone: ZoneId) -> &Zone {
        &self.levels[usize::from(zone.level)][zone.number as usize]
    }

    /// The path of a zone of this map.
    #[must_use]
    pub fn path(&self, zone: ZoneId) -> &str {
        &self.zone(zone).path
    }

    /// The zone above; `None` for the highest.
    #[must_use]
    pub fn parent(&self, zone: ZoneId) -> Option<ZoneId> {
        let level = zone.level + 1;
        (usize::from(level) < self.levels.len()).then(|| ZoneId {
            level,
            number: self.zone(zone).parent,
        })
    }

    /// The zones below; none for a base zone.
    pub fn children(&self, zone: ZoneId) -> impl Iterator<Item = ZoneId> + use<> {
        let parts = match zone.level {
            0 => 0..0,
            _ => self.zone(zone).parts.clone(),
        };
        parts.map(move |number| ZoneId {
            level: zone.level - 1,
            number,
        })
    }

    /// The nodes of a base zone, in the directory's order; none for a zone of a higher level.
    #[must_use]
    pub fn nodes(&self, zone: ZoneId) -> &[NodeIndex] {
        match zone.level {
            0 => {
                let parts = &self.zone(zone).parts;
                &self.order[parts.start as usize..parts.end as usize]
            }
            _ => &[],
        }
    }

    /// The nodes of a zone and of all zones below it, base zone after base zone.
    #[must_use]
    pub fn nodes_of(&self, zone: ZoneId) -> Vec<NodeIndex> {
        match zone.level {
            0 => self.nodes(zone).to_vec(),
            _ => self
                .children(zone)
                .flat_map(|child| self.nodes_of(child))
                .collect(),
        }
    }

    /// Number of members of a zone when all nodes are alive: its nodes, or the zone supervisors of the zones below.
    #[must_use]
    pub fn members(&self, zone: ZoneId) -> usize {
        match zone.level {
            0 => self.nodes(zone).len(),
            _ => self
                .children(zone)
                .map(|child| self.members(child).min(SUPERVISORS))
                .sum(),
        }
    }

    /// Number of nodes in a zone and in all zones below it.
    #[must_use]
    pub fn nodes_below(&self, zone: ZoneId) -> usize {
        match zone.level {
            0 => self.nodes(zone).len(),
            _ => self
                .children(zone)
                .map(|child| self.nodes_below(child))
                .sum(),
        }
    }

    /// The number of nodes of each base zone, by the zone's number.
    pub(crate) fn sizes(&self) -> &Runs<u32> {
        &self.sizes
    }

    /// The numbers of the zones in a zone, by level from its own one down: they are consecutive at each level.
    pub(crate) fn zones_in(&self, zone: ZoneId) -> Vec<(u8, Range<u32>)> {
        let below = |(level, numbers): &(u8, Range<u32>)| {
            let zones = self.levels.get(usize::from(*level))?;
            let first = zones.get(numbers.start as usize)?;
            let last = zones.get((numbers.end as usize).checked_sub(1)?)?;
            Some((level.checked_sub(1)?, first.parts.start..last.parts.end))
        };
        let own = (zone.level, zone.number..zone.number + 1);
        std::iter::successors(Some(own), below).collect()
    }

    /// The base zone of a node.
    #[must_use]
    pub fn base_zone(&self, node: NodeIndex) -> Option<ZoneId> {
        let number = *self.zone_of.get(node.0 as usize)?;
        Some(ZoneId { level: 0, number })
    }

    /// The zones of a node, from its base zone to the highest.
    pub fn zones_of(&self, node: NodeIndex) -> impl Iterator<Item = ZoneId> {
        std::iter::successors(self.base_zone(node), |zone| self.parent(*zone))
    }

    /// Zones of one node that became part of another zone.
    #[must_use]
    pub fn merged(&self) -> &[Merged] {
        &self.merged
    }

    /// Compares two sources of the same directory: whether each pair of nodes is in one zone in both.
    ///
    /// # Errors
    /// Two nodes that are in one zone for one source and in two for the other.
    pub fn agree(&self, source: &str, other: &Self, other_source: &str) -> Result<(), MapError> {
        let contradiction = |one: NodeIndex, two: NodeIndex| {
            let says = |map: &Self| match map.base_zone(one) == map.base_zone(two) {
                true => "one zone",
                false => "two zones",
            };
            MapError::Contradiction(Box::new(Contradiction {
                one_source: source.to_owned(),
                other_source: other_source.to_owned(),
                one: self.directory.name(one).unwrap_or_default(),
                other: self.directory.name(two).unwrap_or_default(),
                one_says: says(self),
                other_says: says(other),
            }))
        };
        // The first node seen of each zone of one map with that of the other.
        let (mut forth, mut back) = (BTreeMap::new(), BTreeMap::new());
        for (place, (mine, theirs)) in self.zone_of.iter().zip(&other.zone_of).enumerate() {
            let node = NodeIndex(place as u32);
            let (zone, first) = *forth.entry(mine).or_insert((theirs, node));
            if zone != theirs {
                return Err(contradiction(first, node));
            }
            let (zone, first) = *back.entry(theirs).or_insert((mine, node));
            if zone != mine {
                return Err(contradiction(first, node));
            }
        }
        Ok(())
    }
}

type Zones = Vec<(Vec<String>, Vec<NodeIndex>)>;

/// The entries with one path joined, in the natural order of paths, empty ones left out.
fn by_path(directory: &Directory, entries: Vec<ZoneEntry>) -> Result<Zones, MapError> {
    let mut zones: Zones = Vec::new();
    for entry in entries {
        let path = parse_path(&entry.path)?;
        if !entry.nodes.is_empty() {
            zones.push((path, entry.nodes));
        }
    }
    zones.sort_by(|(one, _), (other, _)| order_of_paths(one, other));
    zones.dedup_by(|(path, nodes), (kept, kept_nodes)| {
        let is_same = path == kept;
        if is_same {
            kept_nodes.append(nodes);
        }
        is_same
    });
    for (path, nodes) in &mut zones {
        nodes.sort_unstable();
        if let Some(pair) = nodes.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(MapError::TwoZones {
                node: directory.name(pair[0]).unwrap_or_default(),
                one: path.join("/"),
                other: path.join("/"),
            });
        }
    }
    let depth = zones.first().map_or(0, |(path, _)| path.len());
    match zones.iter().find(|(path, _)| path.len() != depth) {
        Some((path, _)) => Err(MapError::Depths {
            one: zones[0].0.join("/"),
            one_depth: depth,
            other: path.join("/"),
            other_depth: path.len(),
        }),
        None => Ok(zones),
    }
}

fn parse_path(path: &str) -> Result<Vec<String>, MapError> {
    let is_valid = |part: &str| {
        let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        (1..=PART_MAX).contains(&part.len()) && part.chars().all(is_allowed)
    };
    let parts: Vec<&str> = path.split('/').collect();
    if !parts.iter().all(|part| is_valid(part)) {
        return Err(MapError::ZoneName(path.to_owned()));
    }
    if parts.len() > DEPTH_MAX {
        return Err(MapError::TooDeep {
            zone: path.to_owned(),
            depth: parts.len(),
        });
    }
    Ok(parts.into_iter().map(str::to_owned).collect())
}

fn order_of_paths(one: &[String], other: &[String]) -> std::cmp::Ordering {
    let parts = one
        .iter()
        .zip(other)
        .map(|(one, other)| by_number(one, other));
    let first = parts.into_iter().find(|order| order.is_ne());
    first.unwrap_or_else(|| one.len().cmp(&other.len()))
}

fn check_nodes(directory: &Directory, zones: &Zones) -> Result<(), MapError> {
    let mut seen: Vec<Option<usize>> = vec![None; directory.len()];
    for (number, (path, nodes)) in zones.iter().enumerate() {
        for node in nodes {
            let Some(place) = seen.get_mut(node.0 as usize) else {
                return Err(MapError::Name(format!("node number {node}")));
            };
            if let Some(earlier) = place.replace(number) {
                return Err(MapError::TwoZones {
                    node: directory.name(*node).unwrap_or_default(),
                    one: zones[earlier].0.join("/"),
                    other: path.join("/"),
                });
            }
        }
    }
    let without =
        |(place, zone): (usize, &Option<usize>)| zone.is_none().then_some(NodeIndex(place as u32));
    let missing: Vec<NodeIndex> = seen.iter().enumerate().filter_map(without).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let names: Vec<String> = missing
        .iter()
        .filter_map(|node| directory.name(*node))
        .collect();
    Err(MapError::NoZone {
        nodes: fold(names.iter().map(String::as_str)),
        count: missing.len(),
    })
}

/// Joins each zone of one node with a neighbour: the preceding zone, under the same parent where there is one.
fn merge_single_nodes(zones: &mut Zones) -> Vec<Merged> {
    let mut merged = Vec::new();
    let mut place = 0;
    while zones.len() > 1 && place < zones.len() {
        if zones[place].1.len() > 1 {
            place += 1;
            continue;
        }
        let parent = |at: usize| &zones[at].0[..zones[at].0.len() - 1];
        let follows = place + 1 < zones.len();
        let has_sibling_before = place > 0 && parent(place - 1) == parent(place);
        let has_sibling_behind = follows && parent(place + 1) == parent(place);
        let into = match place > 0 && (has_sibling_before || !has_sibling_behind) {
            true => place - 1,
            false => place + 1,
        };
        let nodes = std::mem::take(&mut zones[place].1);
        zones[into].1.extend(nodes);
        zones[into].1.sort_unstable();
        merged.push(Merged {
            zone: zones[place].0.join("/"),
            into: zones[into].0.join("/"),
        });
        zones.remove(place);
    }
    merged
}

/// The levels above sorted base zones.
fn levels(zones: &Zones) -> Vec<Vec<Zone>> {
    let mut first = 0;
    let base = zones.iter().map(|(path, nodes)| {
        let parts = first..first + nodes.len() as u32;
        first = parts.end;
        (path.clone(), parts)
    });
    let mut below: Vec<(Vec<String>, Range<u32>)> = base.collect();
    let mut levels: Vec<Vec<Zone>> = Vec::new();
    loop {
        let mut above: Vec<(Vec<String>, Range<u32>)> = Vec::new();
        let mut level = Vec::with_capacity(below.len());
        for (number, (path, parts)) in below.iter().enumerate() {
            let number = number as u32;
            let parent = path.split_last().map_or(&[][..], |(_, parent)| parent);
            match above.last_mut() {
                Some((last, children)) if last == parent => children.end = number + 1,
                _ => above.push((parent.to_vec(), number..number + 1)),
            }
            level.push(Zone {
                path: match path.is_empty() {
                    true => ROOT.to_owned(),
                    false => path.join("/"),
                },
                parent: above.len() as u32 - 1,
                parts: parts.clone(),
            });
        }
        let is_highest = level.len() == 1;
        levels.push(level);
        if is_highest {
            return levels;
        }
        below = above;
    }
}

fn digest(directory: &Directory, levels: &[Vec<Zone>], zone_of: &[u32]) -> u64 {
    let mut hash = blake3::Hasher::new();
    hash.update(b"muster zone map 1");
    for name in directory.names() {
        hash.update(name.as_bytes());
        hash.update(&[0]);
    }
    for level in levels {
        hash.update(&(level.len() as u32).to_le_bytes());
        for zone in level {
            hash.update(zone.path.as_bytes());
            hash.update(&[0]);
            hash.update(&zone.parent.to_le_bytes());
        }
    }
    for zone in zone_of {
        hash.update(&zone.to_le_bytes());
    }
    let mut first = [0; 8];
    first.copy_from_slice(&hash.finalize().as_bytes()[..8]);
    u64::from_le_bytes(first)
}

#[cfg(test)]
#[path = "map_tests.rs"]
mod tests;
