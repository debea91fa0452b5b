//! Tests of the sources of zone maps.

use super::*;
use muster_zones::NodeIndex;

fn nodes(list: &str) -> Directory {
    let names = muster_hostlist::expand(list, 10_000).unwrap();
    Directory::new(names.iter().map(String::as_str)).unwrap()
}

fn zones(map: &ZoneMap) -> Vec<(String, Vec<u32>)> {
    let of = |zone| {
        let nodes = map.nodes(zone).iter().map(|node| node.0);
        (map.path(zone).to_owned(), nodes.collect())
    };
    map.zones_at(0).map(of).collect()
}

fn zone(path: &str, nodes: impl IntoIterator<Item = u32>) -> (String, Vec<u32>) {
    (path.to_owned(), nodes.into_iter().collect())
}

const FILE: &str = "
# a whole machine
row1/rack1: n[1-4]
row1/rack2: n[5-8]   # its second rack
row2/rack3: n[9-99]
";

const TOPOLOGY: &str = "
SwitchName=leaf1 Level=0 LinkSpeed=1 Nodes=n[1-4]
SwitchName=leaf2 Level=0 LinkSpeed=1 Nodes=n[5-8]
SwitchName=top Level=1 LinkSpeed=1 Nodes=n[1-8] Switches=leaf[1-2]
";

fn topology(text: &str) -> Result<Topology, String> {
    parse_topology("topology.conf", text).map_err(|error| error.to_string())
}

#[test]
fn a_map_file_of_the_machine_serves_a_job_of_some_nodes() {
    let sources = ZoneSources {
        file: Some(("zones.map".to_owned(), FILE.to_owned())),
        ..ZoneSources::default()
    };
    let (map, by) = sources.map(&nodes("n[3-6],n[10-11]")).unwrap();
    assert_eq!(by, "zones.map");
    let expected = [
        zone("row1/rack1", 0..2),
        zone("row1/rack2", 2..4),
        zone("row2/rack3", 4..6),
    ];
    assert_eq!(zones(&map), expected);
    let error = sources.map(&nodes("n[1-8],login1")).unwrap_err();
    assert_eq!(
        error.to_string(),
        "zones.map: login1 is in no zone: add it to a zone"
    );
}

#[test]
fn a_bad_line_of_a_map_file_is_named() {
    let error = |text: &str| {
        let sources = ZoneSources {
            file: Some(("zones.map".to_owned(), text.to_owned())),
            ..ZoneSources::default()
        };
        sources.map(&nodes("n[1-4]")).unwrap_err().to_string()
    };
    assert_eq!(
        error("a: n[1-2]\nb n[3-4]\n"),
        "zones.map, line 2: \"b n[3-4]\" has no ':'; write ZONE: NODES, as in row1/rack1: n[001-256]"
    );
    let bracket = error("a: n[1-2\n");
    assert!(
        bracket.starts_with("zones.map, line 1: \"n[1-2\" cannot be expanded"),
        "{bracket}"
    );
    let twice = error("a: n[1-3]\nb: n[3-4]");
    assert_eq!(
        twice,
        "zones.map: node n3 is in zone a and in zone b: give it one zone"
    );
}

#[test]
fn a_pattern_names_the_zone_of_a_node() {
    let of = |pattern: &str, list: &str| {
        let sources = ZoneSources {
            pattern: Some(pattern.to_owned()),
            ..ZoneSources::default()
        };
        sources
            .map(&nodes(list))
            .map(|(map, _)| zones(&map))
            .map_err(|error| error.to_string())
    };
    let found = of("(x*)(c*)s*n*", "x1c[0-1]s[0-1]n0,x2c0s[0-1]n0").unwrap();
    assert_eq!(
        found,
        [
            zone("x1/c0", 0..2),
            zone("x1/c1", 2..4),
            zone("x2/c0", 4..6)
        ]
    );
    for (pattern, part) in [
        ("(r*)n*", "node x1 does not fit it"),
        ("x*", "no parentheses"),
        ("(x*", "'(' without ')'"),
        ("x*)", "')' without '('"),
        ("((x*))", "'(' within '('"),
        ("(x**)", "two '*' in a row"),
    ] {
        let error = of(pattern, "x[1-2]").unwrap_err();
        assert!(error.contains(part) && error.contains(pattern), "{error}");
    }
}

#[test]
fn switches_of_slurm_become_zones() {
    let mut sources = ZoneSources {
        topology: Some(("scontrol".to_owned(), topology(TOPOLOGY).unwrap())),
        each_switch: true,
        ..ZoneSources::default()
    };
    let (map, by) = sources.map(&nodes("n[1-8]")).unwrap();
    assert_eq!(
        (zones(&map), by.as_str()),
        (vec![zone("leaf1", 0..4), zone("leaf2", 4..8)], "scontrol")
    );
    // Eight nodes are one zone unless switches are requested.
    sources.each_switch = false;
    let (map, _) = sources.map(&nodes("n[1-8]")).unwrap();
    assert_eq!(map.zones_at(0).count(), 1);
    sources.aim.one_zone_max = 4;
    sources.aim.zone = 4;
    let (map, _) = sources.map(&nodes("n[1-8]")).unwrap();
    assert_eq!(zones(&map), [zone("z1", 0..4), zone("z2", 4..8)]);
    // A node that no switch has would be lost.
    let error = sources.map(&nodes("n[1-8],login1")).unwrap_err();
    assert_eq!(
        error.to_string(),
        "scontrol: login1 is in no zone: add it to a zone"
    );
}

#[test]
fn bad_topologies_are_refused_with_their_line() {
    for (text, part) in [
        ("", "line 1: it has no SwitchName"),
        ("Nodes=n1", "line 1: \"Nodes=n1\" has no SwitchName"),
        ("SwitchName=a", "switch a has neither Nodes nor Switches"),
        ("SwitchName=a Nodes", "\"Nodes\" has no '='"),
        (
            "SwitchName=a Nodes=n1\nSwitchName=a Nodes=n2",
            "line 2: switch a is there twice",
        ),
        (
            "SwitchName=a Nodes=n1\nSwitchName=b Nodes=n[1-2]",
            "line 2: node n1 is at switch a and at switch b",
        ),
        (
            "SwitchName=a Switches=b",
            "switch b is below a and has no line",
        ),
        (
            "SwitchName=a Nodes=n1\nSwitchName=b Switches=a\nSwitchName=c Switches=a",
            "line 3: switch a is below b and c",
        ),
        (
            "SwitchName=a Switches=b,c\nSwitchName=b Switches=a\nSwitchName=c Nodes=n2",
            "line 3: more than 16 switches above c, or a circle",
        ),
        ("BlockName=b Nodes=n1", "blocks are not supported"),
    ] {
        let error = topology(text).unwrap_err();
        assert!(error.contains(part), "{text:?}: {error}");
    }
}

#[test]
fn contradictory_sources_are_refused() {
    let sources = ZoneSources {
        file: Some(("zones.map".to_owned(), FILE.to_owned())),
        topology: Some(("topology.conf".to_owned(), topology(TOPOLOGY).unwrap())),
        each_switch: true,
        ..ZoneSources::default()
    };
    assert!(sources.map(&nodes("n[1-8]")).is_ok());
    let other = ZoneSources {
        file: Some(("zones.map".to_owned(), "a: n[1-5]\nb: n[6-8]".to_owned())),
        ..sources
    };
    let error = other.map(&nodes("n[1-8]")).unwrap_err();
    assert_eq!(
        error.to_string(),
        "zones.map puts n1 and n5 into one zone, topology.conf into two zones: remove one of the two sources, or make \
         them agree"
    );
}

#[test]
fn without_a_source_the_node_list_is_cut() {
    let sources = ZoneSources::default();
    let directory = nodes("n[1-2000]");
    let (map, by) = sources.map(&directory).unwrap();
    assert_eq!((map.zones_at(0).count(), by.as_str()), (8, "the node list"));
    assert_eq!(
        map.base_zone(NodeIndex(1999)).map(|zone| zone.number),
        Some(7)
    );
}
