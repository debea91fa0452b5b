//! Tests of the zone map.

use super::*;
use proptest::prelude::*;

fn nodes(count: usize) -> Directory {
    let names: Vec<String> = (0..count).map(|n| format!("n{n}")).collect();
    Directory::new(names.iter().map(String::as_str)).unwrap()
}

fn entry(path: &str, nodes: impl IntoIterator<Item = u32>) -> ZoneEntry {
    ZoneEntry {
        path: path.to_owned(),
        nodes: nodes.into_iter().map(NodeIndex).collect(),
    }
}

fn id(level: u8, number: u32) -> ZoneId {
    ZoneId { level, number }
}

#[test]
fn zones_and_their_members_are_found_from_both_ends() {
    let entries = vec![
        entry("row2/rack1", 8..12),
        entry("row1/rack10", 4..8),
        entry("row1/rack2", 0..4),
    ];
    let map = ZoneMap::new(nodes(12), entries).unwrap();
    assert_eq!(map.levels(), 3);
    let paths: Vec<&str> = map.zones().map(|zone| map.path(zone)).collect();
    assert_eq!(
        paths,
        [
            "row1/rack2",
            "row1/rack10",
            "row2/rack1",
            "row1",
            "row2",
            "/"
        ]
    );
    let members: Vec<usize> = map.zones().map(|zone| map.members(zone)).collect();
    assert_eq!(members, [4, 4, 4, 4, 2, 4]);
    let zones: Vec<ZoneId> = map.zones_of(NodeIndex(9)).collect();
    assert_eq!(zones, [id(0, 2), id(1, 1), id(2, 0)]);
    assert_eq!(
        map.children(id(1, 0)).collect::<Vec<_>>(),
        [id(0, 0), id(0, 1)]
    );
    assert_eq!(map.nodes(id(0, 1)), [4, 5, 6, 7].map(NodeIndex));
    assert_eq!(map.nodes_below(id(2, 0)), 12);
}

#[test]
fn one_zone_has_one_level() {
    let map = ZoneMap::new(nodes(3), vec![entry("all", 0..3)]).unwrap();
    assert_eq!((map.levels(), map.path(id(0, 0))), (1, "all"));
    assert_eq!(map.parent(id(0, 0)), None);
}

/// zones.md: maps with holes, a node in two zones, zones of one, a depth that does not fit.
#[test]
fn bad_maps_are_refused_with_both_sides_named() {
    let message = |count, entries| ZoneMap::new(nodes(count), entries).unwrap_err().to_string();
    let hole = message(6, vec![entry("a", 0..2), entry("b", 4..6)]);
    assert_eq!(hole, "n[2-3] are in no zone: add them to a zone");
    let twice = message(4, vec![entry("a", 0..3), entry("b", 2..4)]);
    assert_eq!(
        twice,
        "node n2 is in zone a and in zone b: give it one zone"
    );
    let depths = message(4, vec![entry("a/x", 0..2), entry("b", 2..4)]);
    assert_eq!(
        depths,
        "zone a/x is 2 deep and zone b is 1: all zones must have the same depth"
    );
    let deep = message(2, vec![entry("a/b/c/d", 0..2)]);
    assert!(deep.contains("at most 3"), "{deep}");
    for path in ["", "a//b", "/", "a b", "a/"] {
        let name = message(2, vec![entry(path, 0..2)]);
        assert!(name.contains("is no name of a zone"), "{name}");
    }
    let large = message(5000, vec![entry("a", 0..4500), entry("b", 4500..5000)]);
    assert!(
        large.contains("zone a has 4500 members: at most 4096"),
        "{large}"
    );
}

#[test]
fn a_zone_of_one_node_joins_its_neighbour_under_the_same_switch() {
    let entries = vec![
        entry("r1/a", 0..2),
        entry("r2/b", [2]),
        entry("r2/c", 3..5),
        entry("r3/d", [5]),
    ];
    let map = ZoneMap::new(nodes(6), entries).unwrap();
    let paths: Vec<&str> = map.zones_at(0).map(|zone| map.path(zone)).collect();
    assert_eq!(paths, ["r1/a", "r2/c"]);
    assert_eq!(map.nodes(id(0, 1)), [2, 3, 4, 5].map(NodeIndex));
    let merged: Vec<String> = map
        .merged()
        .iter()
        .map(|one| format!("{}>{}", one.zone, one.into))
        .collect();
    assert_eq!(merged, ["r2/b>r2/c", "r3/d>r2/c"]);
    // Nobody is left to join with.
    let alone = ZoneMap::new(nodes(1), vec![entry("a", [0])]).unwrap();
    assert!(alone.merged().is_empty());
}

#[test]
fn the_digest_depends_on_names_and_zones_only() {
    let of = |entries| ZoneMap::new(nodes(6), entries).unwrap().digest();
    let one = of(vec![entry("a", 0..3), entry("b", 3..6)]);
    assert_eq!(
        one,
        of(vec![
            entry("b", [5, 4, 3]),
            entry("a", 0..2),
            entry("a", [2])
        ])
    );
    assert_ne!(one, of(vec![entry("a", 0..2), entry("b", 2..6)]));
    assert_ne!(one, of(vec![entry("a", 0..3), entry("c", 3..6)]));
    assert_ne!(one, of(vec![entry("r/a", 0..3), entry("r/b", 3..6)]));
}

#[test]
fn contradictory_sources_are_refused_with_both_named() {
    let of = |entries| ZoneMap::new(nodes(6), entries).unwrap();
    let one = of(vec![entry("a", 0..3), entry("b", 3..6)]);
    let same = of(vec![entry("x", 3..6), entry("y", 0..3)]);
    assert_eq!(one.agree("the map file", &same, "Slurm's topology"), Ok(()));
    let other = of(vec![entry("a", 0..4), entry("b", 4..6)]);
    let error = one
        .agree("the map file", &other, "Slurm's topology")
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "the map file puts n0 and n3 into two zones, Slurm's topology into one zone: remove one of the two sources, \
         or make them agree"
    );
}

proptest! {
    /// Any partition: each node is in exactly the zone that lists it, and zones nest.
    #[test]
    fn every_node_is_in_the_zone_that_lists_it(zones in proptest::collection::vec((0u8..3, 0u8..4), 2..80)) {
        let mut entries: BTreeMap<String, Vec<u32>> = BTreeMap::new();
        for (node, (row, rack)) in zones.iter().enumerate() {
            entries.entry(format!("r{row}/k{rack}")).or_default().push(node as u32);
        }
        let entries = entries.iter().map(|(path, nodes)| entry(path, nodes.iter().copied()));
        let map = ZoneMap::new(nodes(zones.len()), entries.collect()).unwrap();
        let mut seen = 0;
        for zone in map.zones_at(0) {
            for node in map.nodes(zone) {
                prop_assert_eq!(map.base_zone(*node), Some(zone));
                seen += 1;
            }
        }
        prop_assert_eq!(seen, zones.len());
        for zone in map.zones() {
            for child in map.children(zone) {
                prop_assert_eq!(map.parent(child), Some(zone));
            }
        }
        let tops = map.zones_at(map.levels() - 1).count();
        prop_assert_eq!(tops, 1);
    }
}
