//! `ZoneStates` is what is known about a part of a job: the state of each zone in it that has been alive, and its nodes
//! that have never been.

use std::collections::BTreeSet;
use std::ops::Range;

use muster_protocol::planted::{self, Fault};

use crate::directory::NodeIndex;
use crate::map::{ZoneId, ZoneMap};
use crate::runs::{Run, Runs};
use crate::tree::life::Life;
use crate::tree::{zone_number, zone_of_number};

/// Most runs of zones in bytes; the zones of further ones are not told.
const ZONE_RUNS_MAX: usize = 2200;
/// Bytes of a run of zones.
const ZONE_RUN_SIZE: usize = 29;
/// Most runs of nodes in bytes; the nodes of further ones count as alive.
const NODE_RUNS_MAX: usize = 2000;

/// The state of a zone that has been alive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ZoneState {
    /// Whether it counts as failed.
    pub(super) is_failed: bool,
    /// Whether none of its supervisors is in the view of the zone above at present.
    pub(super) is_absent: bool,
    /// Of a base zone: whether it has formed, so that all its other nodes are in `missing`.
    pub(super) has_formed: bool,
    /// How often it was declared failed.
    pub(super) declared: u32,
    /// In which life it was the last time.
    pub(super) of: u64,
    /// Its life now. In a publication only of a zone that was declared failed.
    pub(super) life: Life,
    /// In a publication: the ranks of the publisher's base zone were told that it failed, and it is not settled yet
    /// whether that was wrong.
    pub(super) is_told: bool,
}

impl ZoneState {
    /// What this and what another member says about the same zone.
    fn agree(mut self, other: Self) -> Self {
        self.is_failed &= other.is_failed;
        self.is_absent &= other.is_absent;
        self.has_formed &= other.has_formed;
        self.note_declaration(&other);
        self.life = self.life.earlier(other.life);
        self
    }

    /// Takes the later of two declarations that it has failed.
    pub(super) fn note_declaration(&mut self, other: &Self) {
        (self.declared, self.of) = (self.declared, self.of).max((other.declared, other.of));
    }
}

/// The states of zones, by [`zone_number`], and the nodes that have never been alive.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ZoneStates {
    pub(super) zones: Runs<ZoneState>,
    pub(super) missing: BTreeSet<u32>,
}

impl ZoneStates {
    pub(super) fn get(&self, zone: ZoneId) -> Option<ZoneState> {
        self.zones.get(zone_number(zone))
    }

    /// Adds what is known about another part of the job.
    pub(super) fn extend(&mut self, other: Self) {
        self.zones.extend(&other.zones);
        self.missing.extend(other.missing);
    }

    /// The zone above these has failed, and they with it.
    pub(super) fn fail(&mut self) {
        self.zones = self.zones.filter_map(|state| {
            Some(ZoneState {
                is_failed: true,
                ..state
            })
        });
    }

    /// The zone above these is absent, and they with it: some members may know that only of these, others of that one.
    pub(super) fn lose(&mut self) {
        self.zones = self.zones.filter_map(|state| {
            Some(ZoneState {
                is_absent: true,
                ..state
            })
        });
    }

    /// Takes what is said now about the same part of the job. Zones that had failed and are not mentioned, still have:
    /// not all of them are back.
    pub(super) fn replace(&mut self, now: Self) {
        let failed = |state: Option<ZoneState>| state.filter(|state| state.is_failed);
        self.zones = self
            .zones
            .merge(&now.zones, |held, new| new.or(failed(held)));
        self.missing = now.missing;
    }

    /// What this and what another member says about the same part of the job, `zone`, or all but its own zone. A zone
    /// has failed, and a node is missing, if both say so: one may not know better yet, or may be on the weaker side of
    /// a split of a zone in between.
    pub(super) fn agree(mut self, other: &Self, map: &ZoneMap, zone: Option<ZoneId>) -> Self {
        let knows = |states: &Self, node: u32| {
            let base = map.base_zone(NodeIndex(node));
            base.is_some_and(|base| Some(base) == zone || states.get(base).is_some())
        };
        let contradicts = |node: &u32| knows(other, *node) && !other.missing.contains(node);
        let added = other
            .missing
            .iter()
            .copied()
            .filter(|node| !knows(&self, *node));
        let added: Vec<u32> = added.collect();
        self.missing.retain(|node| !contradicts(node));
        self.missing.extend(added);
        self.zones = self
            .zones
            .merge(&other.zones, |held, state| match (held, state) {
                (Some(held), Some(state)) => Some(held.agree(state)),
                (held, state) => held.or(state),
            });
        self
    }

    /// No zone fails that had not failed before. One that was not known stays unknown.
    pub(super) fn keep_unfailed(&mut self, before: &Self) {
        self.zones = self.zones.merge(&before.zones, |state, held| {
            let mut state = state?;
            let is_new = state.is_failed && !held.is_some_and(|held| held.is_failed);
            state.is_failed &= !is_new;
            (!is_new || held.is_some()).then_some(state)
        });
    }

    /// Without the base zones that have not formed, and their nodes; `formed` are those that have, by number.
    pub(super) fn of_formed(&self, map: &ZoneMap, formed: &Runs<()>) -> Self {
        let base = self.base_zones();
        let known = base.merge(formed, |state, formed| {
            state.filter(|state| state.is_failed || formed.is_some())
        });
        let zones = known.runs().chain(self.zones.runs().filter(is_above));
        let mut known = Self {
            zones: zones.collect(),
            ..Self::default()
        };
        let missing = self.missing.iter().filter(|node| {
            let zone = map.base_zone(NodeIndex(**node));
            zone.is_some_and(|zone| known.get(zone).is_some())
        });
        known.missing = missing.copied().collect();
        known
    }

    /// Nodes that were missing still are, in a zone that does not know yet which of its nodes run.
    pub(super) fn keep_missing(&mut self, before: &Self, map: &ZoneMap) {
        let is_open = |node: &&u32| {
            let state = map
                .base_zone(NodeIndex(**node))
                .and_then(|zone| self.get(zone));
            state.is_some_and(|state| !state.has_formed)
        };
        let kept: Vec<u32> = before.missing.iter().filter(is_open).copied().collect();
        self.missing.extend(kept);
    }

    /// The zones with their states.
    pub(super) fn iter<'a>(
        &'a self,
        map: &'a ZoneMap,
    ) -> impl Iterator<Item = (ZoneId, ZoneState)> + 'a {
        let zones = self.zones.iter();
        zones.filter_map(|(number, state)| Some((zone_of_number(map, number)?, state)))
    }

    /// The numbers of the zones whose states are like this, with their states.
    pub(super) fn those<'a>(
        &'a self,
        is_one: impl Fn(ZoneState) -> bool + 'a,
    ) -> impl Iterator<Item = (u32, ZoneState)> + 'a {
        let runs = self.zones.runs().filter(move |run| is_one(run.value));
        runs.flat_map(|run| run.numbers().map(move |number| (number, run.value)))
    }

    /// The states of the base zones, by number.
    pub(super) fn base_zones(&self) -> Runs<ZoneState> {
        self.zones.runs().filter(|run| !is_above(run)).collect()
    }

    /// What it says about the zones below a zone, and about the nodes in it.
    pub(super) fn below(&self, map: &ZoneMap, zone: ZoneId) -> Self {
        let below = zone_numbers(map, zone).into_iter().skip(1).rev();
        Self {
            zones: below
                .flat_map(|numbers| self.zones.within(numbers))
                .collect(),
            missing: self.missing_nodes(map, zone, true),
        }
    }

    /// What it says about the zones outside of a zone, and about their nodes.
    pub(super) fn outside(&self, map: &ZoneMap, zone: ZoneId) -> Self {
        let mut zones = self.zones.clone();
        let within = zone_numbers(map, zone).into_iter();
        within.for_each(|numbers| zones.remove(numbers));
        Self {
            zones,
            missing: self.missing_nodes(map, zone, false),
        }
    }

    /// The nodes that have never been alive, in a zone or outside of it.
    fn missing_nodes(&self, map: &ZoneMap, zone: ZoneId, is_inside: bool) -> BTreeSet<u32> {
        let is_in = |node: u32| map.zones_of(NodeIndex(node)).any(|of| of == zone);
        let nodes = self.missing.iter().copied();
        nodes.filter(|node| is_in(*node) == is_inside).collect()
    }

    /// Appends it to bytes.
    pub(super) fn encode(&self, bytes: &mut Vec<u8>) {
        let told = self.zones.filter_map(|mut state| {
            if state.declared == 0 {
                state.life = Life::default();
            }
            Some(state)
        });
        let mut zones: Vec<Run<ZoneState>> = told.runs().collect();
        if planted::on(Fault::CensusForgets) {
            zones.pop();
        }
        zones.truncate(ZONE_RUNS_MAX);
        bytes.extend((zones.len() as u32).to_le_bytes());
        for run in zones {
            let state = run.value;
            bytes.extend(run.first.to_le_bytes());
            bytes.extend(run.count.to_le_bytes());
            bytes.extend(state.declared.to_le_bytes());
            bytes.extend(state.of.to_le_bytes());
            bytes.extend(state.life.began.to_le_bytes());
            let flags = [
                state.is_failed,
                state.is_absent,
                state.has_formed,
                state.is_told,
                state.life.is_sure,
            ];
            let flags = flags.iter().rev();
            bytes.push(flags.fold(0, |bits, flag| bits << 1 | u8::from(*flag)));
        }
        let mut nodes: Vec<(u32, u32)> = Vec::new();
        for node in &self.missing {
            match nodes.last_mut() {
                Some((first, count)) if *first + *count == *node => *count += 1,
                _ => nodes.push((*node, 1)),
            }
        }
        nodes.truncate(NODE_RUNS_MAX);
        for (first, count) in nodes {
            bytes.extend(first.to_le_bytes());
            bytes.extend(count.to_le_bytes());
        }
    }

    /// Reads bytes to their end; `None` if they are malformed, or name a zone or a node that the map does not have.
    pub(super) fn decode(map: &ZoneMap, bytes: &[u8]) -> Option<Self> {
        let (count, rest) = bytes.split_first_chunk::<4>()?;
        let size = (u32::from_le_bytes(*count) as usize).checked_mul(ZONE_RUN_SIZE)?;
        let (zones, nodes) = rest.split_at_checked(size)?;
        let number = |bytes: &[u8]| bytes.try_into().map(u32::from_le_bytes).ok();
        let long = |bytes: &[u8]| bytes.try_into().map(u64::from_le_bytes).ok();
        let mut states = Self::default();
        // Each run begins behind the last one, so that bytes do not stand for much more than their size.
        let mut next = 0;
        for run in zones.chunks_exact(ZONE_RUN_SIZE) {
            let (first, count) = (number(&run[..4])?, number(&run[4..8])?);
            let flags = run[28];
            let value = ZoneState {
                declared: number(&run[8..12])?,
                of: long(&run[12..20])?,
                life: Life {
                    began: long(&run[20..28])?,
                    is_sure: flags & 16 != 0,
                },
                is_failed: flags & 1 != 0,
                is_absent: flags & 2 != 0,
                has_formed: flags & 4 != 0,
                is_told: flags & 8 != 0,
            };
            let last = first.checked_add(count.checked_sub(1)?)?;
            let (from, to) = zone_of_number(map, first).zip(zone_of_number(map, last))?;
            if from.level != to.level || first < core::mem::replace(&mut next, last + 1) {
                return None;
            }
            states.zones.push(Run {
                first,
                count,
                value,
            });
        }
        if nodes.len() % 8 != 0 {
            return None;
        }
        let mut next = 0;
        for run in nodes.chunks_exact(8) {
            let (first, count) = (number(&run[..4])?, number(&run[4..])?);
            let end = first.checked_add(count)?;
            let is_behind = first >= core::mem::replace(&mut next, end);
            if !is_behind || end as usize > map.directory().len() {
                return None;
            }
            states.missing.extend(first..end);
        }
        Some(states)
    }
}

/// Whether the zones of a run are not base zones.
fn is_above<V>(run: &Run<V>) -> bool {
    run.first >> 24 > 0
}

/// The numbers of a zone and of those in it, by level from its own one down.
pub(super) fn zone_numbers(map: &ZoneMap, zone: ZoneId) -> Vec<Range<u32>> {
    let levels = map.zones_in(zone).into_iter();
    let numbers = levels.map(|(level, zones)| {
        let number = |number| zone_number(ZoneId { level, number });
        number(zones.start)..number(zones.end)
    });
    numbers.collect()
}

/// The zones above a zone, from the next one on.
pub(super) fn ancestors(map: &ZoneMap, zone: ZoneId) -> impl Iterator<Item = ZoneId> {
    let above = |zone: &ZoneId| map.parent(*zone);
    core::iter::successors(map.parent(zone), above)
}
