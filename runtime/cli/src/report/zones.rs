//! The losses of each zone, in a job with zones.

use super::entry::Entry;
use super::incident::Incident;
use muster_hostlist::by_number;
use std::collections::{BTreeMap, BTreeSet};

/// What a zone has lost.
#[derive(Debug)]
pub(super) struct ZoneLosses<'a> {
    /// The path of the zone.
    pub(super) zone: &'a str,
    /// Nodes that failed and have not come back.
    pub(super) failed: BTreeSet<&'a str>,
    /// Nodes that failed and came back.
    pub(super) back: BTreeSet<&'a str>,
    /// Ranks that failed, or were lost with their node.
    pub(super) ranks: BTreeSet<u64>,
    /// Times of the first and the last failure.
    pub(super) first_us: u64,
    pub(super) last_us: u64,
}

/// The zones of the job, as far as journals name them.
#[derive(Debug, Default)]
pub(super) struct Zones<'a> {
    /// The zones with losses, in the natural order of their paths.
    pub(super) losses: Vec<ZoneLosses<'a>>,
    /// Number of zones without one.
    pub(super) whole: usize,
}

impl<'a> Zones<'a> {
    /// Sorts the incidents of the job, which are in the order of time, by the zones of their members.
    pub(super) fn of(entries: &[Entry<'a>], incidents: &[Incident<'a>]) -> Self {
        let zone_of: BTreeMap<&str, &'a str> = entries
            .iter()
            .filter_map(|entry| Some((entry.member, entry.line["zone"].as_str()?)))
            .collect();
        let mut zones: BTreeMap<&str, ZoneLosses<'a>> = BTreeMap::new();
        for one in incidents {
            let Some(zone) = zone_of.get(one.member) else {
                continue;
            };
            if one.event == "node-up" {
                if let Some(losses) = zones.get_mut(zone)
                    && losses.failed.remove(one.member)
                {
                    losses.back.insert(one.member);
                }
                continue;
            }
            if !one.is_failure() {
                continue;
            }
            let losses = zones.entry(zone).or_insert_with(|| ZoneLosses {
                zone,
                failed: BTreeSet::new(),
                back: BTreeSet::new(),
                ranks: BTreeSet::new(),
                first_us: one.first_us,
                last_us: one.first_us,
            });
            losses.last_us = one.first_us;
            losses.ranks.extend(one.ranks.iter().copied());
            losses.ranks.extend(one.rank);
            if one.event == "node-failed" {
                losses.failed.insert(one.member);
                losses.back.remove(one.member);
            }
        }
        let all: BTreeSet<&str> = zone_of.into_values().collect();
        let mut losses: Vec<ZoneLosses<'a>> = zones.into_values().collect();
        losses.sort_by(|one, other| by_number(one.zone, other.zone));
        Self {
            whole: all.len() - losses.len(),
            losses,
        }
    }

    /// Whether the job has zones.
    pub(super) fn is_any(&self) -> bool {
        self.whole > 0 || !self.losses.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::super::material::Material;
    use serde_json::{Value, json};

    fn line(event: &str, node: &str, member: &str, zone: &str, at_ms: u64) -> Value {
        json!({ "event": event, "node": node, "member": member, "zone": zone, "unix_us": at_ms * 1000,
            "deadline_ms": 60.0, "cause": "told" })
    }

    #[test]
    fn losses_are_those_of_the_zone_of_the_member() {
        let mut rank = line("rank-failed", "n1", "n4", "z2", 100);
        rank["rank"] = 7.into();
        let mut lost = line("node-failed", "n1", "n5", "z2", 200);
        lost["ranks"] = json!([8, 9]);
        let events = vec![
            line("node-up", "n1", "n2", "z1", 1),
            line("node-up", "n1", "n12", "z10", 2),
            rank,
            lost,
            // A node of the zone itself reports the same.
            line("node-failed", "n6", "n5", "z2", 201),
            line("node-failed", "n1", "n12", "z10", 300),
            line("node-up", "n1", "n12", "z10", 9_000),
        ];
        let material = Material {
            events,
            ..Material::default()
        };
        let zones = material.content().zones;
        let names: Vec<&str> = zones.losses.iter().map(|one| one.zone).collect();
        assert_eq!((names, zones.whole), (vec!["z2", "z10"], 1));
        let second = &zones.losses[0];
        assert_eq!(second.failed.iter().copied().collect::<Vec<_>>(), ["n5"]);
        assert_eq!(second.ranks.iter().copied().collect::<Vec<_>>(), [7, 8, 9]);
        assert_eq!((second.first_us, second.last_us), (100_000, 200_000));
        let tenth = &zones.losses[1];
        assert!(tenth.failed.is_empty());
        assert_eq!(tenth.back.iter().copied().collect::<Vec<_>>(), ["n12"]);
    }

    #[test]
    fn a_job_that_is_not_divided_has_no_zones() {
        let mut event = line("node-failed", "n1", "n2", "", 1);
        event.as_object_mut().expect("an object").remove("zone");
        let material = Material {
            events: vec![event],
            ..Material::default()
        };
        assert!(!material.content().zones.is_any());
    }
}
