//! The claims of the gossip simulation paper that hold, in fewer runs than `muster sim figures --out`
//! takes; all of them are read from its scenario files.

use std::path::PathBuf;

use muster_sim::{ClusterFigure, PointFound};

const RUNS: u64 = 6;

fn read(name: &str) -> ClusterFigure {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/scenarios");
    let text = std::fs::read_to_string(folder.join(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
    ClusterFigure::read(&text).unwrap_or_else(|e| panic!("{name}: {e}"))
}

fn point(figure: &ClusterFigure, label: &str, x: f64) -> PointFound {
    let line = figure.line.iter().find(|line| line.label == label);
    let line = line.unwrap_or_else(|| panic!("{}: no line {label}", figure.name));
    PointFound::of(&figure.setting(line, x), 1..=RUNS)
}

fn mean_ms(figure: &ClusterFigure, label: &str, x: f64) -> f64 {
    let found = point(figure, label, x);
    found
        .mean_ms()
        .unwrap_or_else(|| panic!("{} {label} {x}: {found:?}", figure.name))
}

/// BG-11, BG-13: at 96 nodes hierarchical and piggyback agree before basic; it is contention that makes
/// it so, and with lists of 8 bytes a member it is far more so.
#[test]
fn contention_makes_basic_gossip_the_slowest() {
    let basic = mean_ms(&read("burns-11-basic.toml"), "basic, p = 0", 96.0);
    let hierarchical = mean_ms(
        &read("burns-12-hierarchical.toml"),
        "hierarchical, p = 0",
        96.0,
    );
    let piggyback = mean_ms(&read("burns-13-piggyback.toml"), "piggyback, p = 0", 96.0);
    assert!(basic > 1.1 * hierarchical, "{basic} {hierarchical}");
    assert!(basic > 1.1 * piggyback, "{basic} {piggyback}");
    let heavy = mean_ms(
        &read("burns-07-interval.toml"),
        "basic, 8 bytes a member",
        0.1,
    );
    assert!(heavy > 1.5 * basic, "{heavy} {basic}");
}

/// BG-11: where lists are long enough to fill the wires, gossip across the machine costs most, and
/// gossip at home alone brings no news: the best L lies between, near 0.9.
#[test]
fn the_local_factor_has_an_optimum() {
    let figure = read("burns-09-local.toml");
    let ms = |x| mean_ms(&figure, "hierarchical, 8 bytes a member", x);
    let best = ms(0.9);
    assert!(best < 0.8 * ms(0.5) && best < 0.8 * ms(0.98), "{best}");
}

/// BG-13: with the size of the machine hierarchical gossip grows more slowly than basic gossip.
#[test]
fn the_hierarchy_scales_better() {
    let slope = |file: &str, label: &str| {
        let figure = read(file);
        (mean_ms(&figure, label, 96.0) - mean_ms(&figure, label, 16.0)) / 80.0
    };
    let basic = slope("burns-11-basic.toml", "basic, p = 0");
    let hierarchical = slope("burns-12-hierarchical.toml", "hierarchical, p = 0");
    assert!(hierarchical < 0.9 * basic, "{hierarchical} {basic}");
}

/// BG-09: a long Tgossip makes agreement late; a short one fills the network, so that most gossips are
/// still on their way, and where lists are long the least lies between.
#[test]
fn the_interval_has_an_optimum() {
    let figure = read("burns-07-interval.toml");
    assert!(mean_ms(&figure, "basic", 0.2) > 1.2 * mean_ms(&figure, "basic", 0.1));
    let crowded = point(&figure, "basic", 0.01);
    assert!(crowded.received < 0.6 * crowded.sent, "{crowded:?}");
    let ms = |x| mean_ms(&figure, "basic, 8 bytes a member", x);
    let best = ms(0.05);
    assert!(best < ms(0.01) && best < 0.7 * ms(0.2), "{best}");
}

/// BG-14: cut off, clusters agree the sooner the fewer remain together, and a hierarchy, which gossips
/// at home most, is before piggyback when nearly all are cut off.
#[test]
fn partitions_favour_the_hierarchy() {
    let figure = read("burns-14-partitions.toml");
    let ms = |label, x| mean_ms(&figure, label, x);
    let hierarchical = [0.0, 5.0].map(|x| ms("hierarchical", x));
    assert!(hierarchical[1] < hierarchical[0], "{hierarchical:?}");
    let piggyback = ms("piggyback", 5.0);
    assert!(hierarchical[1] < piggyback, "{hierarchical:?} {piggyback}");
    assert!(ms("basic", 5.0) > 1.5 * hierarchical[1]);
}
