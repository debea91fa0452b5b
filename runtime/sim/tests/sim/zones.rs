//! Jobs with zones in simulated worlds with all faults.

use muster_sim::{Timing, ZonedSetting, run_zoned, study_zoned};

/// Two levels: 12 zones of 8 nodes.
const TWO_LEVELS: ZonedSetting = ZonedSetting {
    nodes: 96,
    zone: 8,
    above_max: 64,
    timing: Timing::OURS,
    loss_permille: 10,
    start_us: 0,
    faults: 8,
    has_cuts: true,
    stops_outcasts: false,
};

/// Three levels: 16 zones of 6 nodes, below four zones.
const THREE_LEVELS: ZonedSetting = ZonedSetting {
    nodes: 96,
    zone: 6,
    above_max: 8,
    timing: Timing::OURS,
    loss_permille: 10,
    start_us: 0,
    faults: 8,
    has_cuts: false,
    stops_outcasts: false,
};

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// `MUSTER_SIM_SEED=n` runs one world again with its story, `MUSTER_SIM_SEEDS=n` runs `n` worlds from
/// `MUSTER_SIM_FIRST` on.
fn all_are_right(setting: ZonedSetting, usual: std::ops::Range<u64>) {
    let one = number("MUSTER_SIM_SEED");
    let seeds = match one {
        Some(seed) => seed..seed + 1,
        None => {
            let first = number("MUSTER_SIM_FIRST").unwrap_or(usual.start);
            first..number("MUSTER_SIM_SEEDS").map_or(usual.end, |count| first + count)
        }
    };
    let mut failed = Vec::new();
    let mut boots = Vec::new();
    for seed in seeds {
        let report = run_zoned(setting, seed);
        boots.push(report.boot_us);
        if one.is_some() {
            println!("{}", report.story.join("\n"));
        }
        if !report.violations.is_empty() {
            let first = report
                .violations
                .iter()
                .take(4)
                .cloned()
                .collect::<Vec<_>>();
            println!("seed {seed}: {}", first.join("\n  "));
            failed.push(seed);
        }
    }
    boots.sort_unstable();
    println!("boot: {} ms (median)", boots[boots.len() / 2] / 1000);
    assert!(
        failed.is_empty(),
        "reproduce with MUSTER_SIM_SEED=.. for {failed:?}"
    );
}

/// ZM-10, ZM-12. Once the zones have formed, each node has the supervisors of its zone as monitors.
#[test]
fn two_levels_survive_all_faults() {
    all_are_right(TWO_LEVELS, 0..4);
}

/// ZM-12.
#[test]
fn three_levels_survive_deaths() {
    assert_eq!(THREE_LEVELS.map().unwrap().levels(), 3);
    all_are_right(THREE_LEVELS, 0..4);
}

/// A seed decides everything.
#[test]
fn one_seed_gives_one_job() {
    let setting = ZonedSetting {
        nodes: 24,
        ..TWO_LEVELS
    };
    assert_eq!(run_zoned(setting, 7), run_zoned(setting, 7));
}

/// ZM-12. Three levels with cuts.
#[test]
fn three_levels_survive_all_faults() {
    let setting = ZonedSetting {
        has_cuts: true,
        ..THREE_LEVELS
    };
    all_are_right(setting, 0..4);
}

/// ZM-12. Nodes that are outcast stop, alone or with their zones: no node that goes on was told that another has failed
/// that goes on too, or that one is alive again that it was told has failed.
#[test]
fn outcast_zones_stop_where_mpi_was_told() {
    let setting = ZonedSetting {
        nodes: 48,
        zone: 6,
        stops_outcasts: true,
        ..TWO_LEVELS
    };
    all_are_right(setting, 0..12);
}

/// ZM-12. The nodes of a job start over three seconds, fifty deadlines: no node is failed that has not started, and no
/// node is in a minority.
#[test]
fn nodes_that_start_late_are_not_failed() {
    let setting = ZonedSetting {
        nodes: 48,
        start_us: 3_000_000,
        ..TWO_LEVELS
    };
    all_are_right(setting, 0..4);
}

/// Replays seeds that failed once. Their files have the reasons.
fn stay_right(setting: ZonedSetting, kept: &str) {
    let seeds = kept.lines().filter(|line| !line.starts_with('#'));
    for seed in seeds.map(|line| line.parse().unwrap()) {
        let violations = run_zoned(setting, seed).violations;
        assert_eq!(violations, [""; 0], "seed {seed} of {setting:?}");
    }
}

#[test]
fn seeds_of_two_levels_that_failed_stay_right() {
    let setting = ZonedSetting {
        nodes: 48,
        zone: 6,
        ..TWO_LEVELS
    };
    let kept = include_str!("../../../../tests/seeds/zones/two-levels.txt");
    stay_right(setting, kept);
    let outcasts_stop = ZonedSetting {
        stops_outcasts: true,
        ..setting
    };
    let kept = include_str!("../../../../tests/seeds/zones/outcasts-stop.txt");
    stay_right(outcasts_stop, kept);
}

#[test]
fn seeds_of_many_zones_that_failed_stay_right() {
    let setting = ZonedSetting {
        nodes: 80,
        zone: 4,
        ..TWO_LEVELS
    };
    let kept = include_str!("../../../../tests/seeds/zones/many-zones.txt");
    stay_right(setting, kept);
}

#[test]
fn seeds_of_200_nodes_that_failed_stay_right() {
    let setting = ZonedSetting {
        nodes: 200,
        zone: 10,
        ..TWO_LEVELS
    };
    let kept = include_str!("../../../../tests/seeds/zones/large-two-levels.txt");
    stay_right(setting, kept);
}

#[test]
fn seeds_of_three_levels_that_failed_stay_right() {
    let setting = ZonedSetting {
        has_cuts: true,
        ..THREE_LEVELS
    };
    let kept = include_str!("../../../../tests/seeds/zones/three-levels.txt");
    stay_right(setting, kept);
}

/// Jobs of 200 nodes with zones of 8.
const LARGE: ZonedSetting = ZonedSetting {
    nodes: 200,
    zone: 8,
    above_max: 10,
    has_cuts: true,
    ..THREE_LEVELS
};

#[test]
fn seeds_of_200_nodes_in_three_levels_that_failed_stay_right() {
    let kept = include_str!("../../../../tests/seeds/zones/large-three-levels.txt");
    stay_right(LARGE, kept);
}

#[test]
fn seeds_of_four_levels_that_failed_stay_right() {
    let setting = ZonedSetting {
        above_max: 6,
        ..LARGE
    };
    let kept = include_str!("../../../../tests/seeds/zones/four-levels.txt");
    stay_right(setting, kept);
}

/// ZM-15, ZM-16: two levels of zones are measured, with our parameters and with those of the zone membership paper,
/// whose news wait for tau at each hop.
#[test]
fn two_levels_are_measured() {
    let measured = [Timing::OURS, Timing::PAPER].map(|timing| {
        let setting = ZonedSetting {
            nodes: 48,
            timing,
            ..TWO_LEVELS
        };
        study_zoned(setting, 1)
    });
    for one in measured.iter().flatten() {
        assert!(one.took_us.is_some(), "{one:?}");
        assert_eq!(one.false_failures, 0, "{one:?}");
        assert!(one.bytes_each > 0, "{one:?}");
    }
    let [ours, paper] = measured.map(|all| all.iter().map(|one| one.took_us).collect::<Vec<_>>());
    assert_eq!(ours.len(), 9);
    // All but the idle job.
    let changes = ours.iter().zip(&paper).enumerate();
    for (place, (ours, paper)) in changes.filter(|(place, _)| *place != 1) {
        assert!(ours < paper, "measurement {place}: {ours:?}, {paper:?}");
    }
}
