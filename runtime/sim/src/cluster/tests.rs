//! Tests of the machine that do not depend on the figures.

use super::*;

fn mean_ms(setting: &ClusterSetting, runs: u64) -> f64 {
    let runs_ms = (1..=runs).map(|seed| {
        let agreement = run_cluster(setting, seed);
        agreement
            .agreed_ms
            .unwrap_or_else(|| panic!("seed {seed} did not agree: {agreement:?}"))
    });
    runs_ms.sum::<f64>() / runs as f64
}

/// BG-05, BG-08: a run is decided by its seed; a damaged gossip is not received.
#[test]
fn a_run_is_decided_by_its_seed() {
    let mut setting = ClusterSetting::new(32, Gossiping::Basic);
    let (one, other) = (run_cluster(&setting, 5), run_cluster(&setting, 5));
    assert_eq!(one.agreed_ms, other.agreed_ms);
    assert_eq!((one.sent, one.received), (other.sent, other.received));
    setting.wire_fault = 0.1;
    let damaged = run_cluster(&setting, 5);
    let rate = |run: Agreement| run.received as f64 / run.sent as f64;
    assert!(rate(damaged) < 0.9 * rate(one), "{damaged:?} {one:?}");
}

/// BG-08: nodes agree on a death after the clean-up time at the earliest.
#[test]
fn a_death_takes_at_least_the_clean_up_time() {
    let mut setting = ClusterSetting::new(32, Gossiping::Basic);
    (setting.start, setting.cleanup_us) = (Start::Death, 5_000);
    let agreement = run_cluster(&setting, 3);
    let agreed_ms = agreement.agreed_ms.unwrap();
    assert!(agreed_ms > 4.0 && agreed_ms < 10.0, "{agreed_ms}");
    assert_eq!(agreement.false_detections, 0);
}

/// BG-08: the times of a point's runs are sorted, p50 and p99 are taken from them, and bytes are the mean.
#[test]
fn a_point_summarizes_its_runs() {
    let all = PointFound {
        agreed_ms: (1..=101).map(f64::from).collect(),
        ..PointFound::default()
    };
    let quantiles = [0.0, 0.5, 0.99, 1.0].map(|part| all.quantile_ms(part));
    assert_eq!(quantiles, [1.0, 51.0, 100.0, 101.0].map(Some));
    assert_eq!(PointFound::default().quantile_ms(0.5), None);
    let setting = ClusterSetting::new(32, Gossiping::Basic);
    let runs: Vec<Agreement> = (1..=3).map(|seed| run_cluster(&setting, seed)).collect();
    let found = PointFound::of(&setting, 1..=3);
    let mut agreed_ms: Vec<f64> = runs.iter().filter_map(|run| run.agreed_ms).collect();
    agreed_ms.sort_by(f64::total_cmp);
    assert_eq!((found.runs, &found.agreed_ms), (3, &agreed_ms));
    assert_eq!(found.quantile_ms(0.5), Some(agreed_ms[1]));
    let bytes = runs.iter().map(|run| run.bytes as f64).sum::<f64>() / 3.0;
    assert!(
        bytes > 0.0 && (found.bytes - bytes).abs() < 1e-6,
        "{found:?}"
    );
}

/// BG-07: messages of 512 bytes, 20 MB per second from each node. The pauses have the mean that gives that
/// rate and, as in a Poisson process, a deviation as large as the mean.
#[test]
fn the_traffic_is_a_poisson_process_of_the_rate_that_is_set() {
    let setting = ClusterSetting::new(32, Gossiping::Basic);
    assert_eq!(setting.traffic_bytes, 20_000_000);
    let mut world = World::new(&setting, 7);
    let pauses: Vec<f64> = (0..50_000).map(|_| world.traffic_pause() as f64).collect();
    let mean = pauses.iter().sum::<f64>() / pauses.len() as f64;
    let square = |pause: &f64| (pause - mean).powi(2);
    let deviation = (pauses.iter().map(square).sum::<f64>() / pauses.len() as f64).sqrt();
    assert!((mean / 25_600.0 - 1.0).abs() < 0.03, "mean {mean} ns");
    assert!(
        (deviation / mean - 1.0).abs() < 0.03,
        "deviation {deviation} ns"
    );
}

/// BG-10: a clean-up time that is too short makes agreement impossible; a long one changes nothing.
#[test]
fn a_short_clean_up_time_declares_running_nodes_dead() {
    let mut setting = ClusterSetting::new(96, Gossiping::Basic);
    setting.cleanup_us = 800;
    setting.limit_us = 4_000;
    let short = run_cluster(&setting, 1);
    assert!(
        short.agreed_ms.is_none() && short.false_detections > 100,
        "{short:?}"
    );
    setting.cleanup_us = 10_000;
    let long = run_cluster(&setting, 1);
    assert!(
        long.agreed_ms.is_some() && long.false_detections == 0,
        "{long:?}"
    );
}

/// BG-06: with the watchdog, nodes with a broken port send by the other network or by another node. Without
/// it, what they send there is lost.
#[test]
fn the_watchdog_routes_around_broken_ports() {
    let rate = |broken_ports, watchdog_us| {
        let mut setting = ClusterSetting::new(48, Gossiping::Hierarchical(0.9));
        (setting.broken_ports, setting.watchdog_us) = (broken_ports, watchdog_us);
        let runs = (1..=4).map(|seed| run_cluster(&setting, seed));
        let (received, sent) = runs.fold((0, 0), |(received, sent), run| {
            assert!(run.agreed_ms.is_some(), "{run:?}");
            (received + run.received, sent + run.sent)
        });
        received as f64 / sent as f64
    };
    let (whole, with, without) = (rate(0, None), rate(8, Some(1000)), rate(8, None));
    assert!(without < with && with < whole, "{without} {with} {whole}");
}

/// BG-15: a list for all nodes of the cluster is the fastest, at the price of many times the gossips. A list
/// for a buddy costs one more.
#[test]
fn hybrids_are_faster_and_costlier() {
    let of = |gossiping| {
        let setting = ClusterSetting::new(48, gossiping);
        let runs = (1..=4).map(|seed| run_cluster(&setting, seed));
        let runs: Vec<_> = runs.collect();
        let ms = runs.iter().map(|run| run.agreed_ms.unwrap()).sum::<f64>();
        (ms, runs.iter().map(|run| run.sent).sum::<u64>() as f64 / ms)
    };
    let hierarchical = of(Gossiping::Hierarchical(0.9));
    let broadcast = of(Gossiping::Broadcast);
    let buddies = of(Gossiping::Buddies(0.9));
    assert!(
        broadcast.0 < hierarchical.0,
        "{broadcast:?} {hierarchical:?}"
    );
    assert!(
        broadcast.1 > 8.0 * hierarchical.1,
        "{broadcast:?} {hierarchical:?}"
    );
    assert!(
        (1.5..2.1).contains(&(buddies.1 / hierarchical.1)),
        "{buddies:?}"
    );
}

/// BG-13: the more nodes, the later.
#[test]
fn agreement_takes_longer_in_larger_machines() {
    let small = mean_ms(&ClusterSetting::new(16, Gossiping::Basic), 6);
    let large = mean_ms(&ClusterSetting::new(96, Gossiping::Basic), 6);
    assert!(large > 1.3 * small, "{small} {large}");
}
