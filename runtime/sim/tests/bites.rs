//! Tests that the checkers find faults: every fault planted in the protocol is caught within 200 seeds.
//!
//! Run with `cargo test -p muster-sim --features planted-faults --test bites`. Each fault is planted in one
//! thread; the test prints which faults were caught, where and by which checker.
//!
//! Not covered: a threshold of one reporter. Since deadlines follow each neighbour's own beats, one member
//! alone is hardly ever wrong in these worlds; `stories` and the table in the protocol's `verdict` test the
//! rule.

use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use muster_protocol::planted::{Fault, plant};
use muster_sim::{Outcome, Scenario, run};

const SEEDS: u64 = 200;
/// The scenario in which a fault is searched. Most faults are found in the scenario with all faults. Some are
/// so well covered by other rules that only a scenario made for them shows them.
fn scenario_for(fault: Fault) -> &'static str {
    match fault {
        Fault::NoReplayWindow => "late-frames-keep-no-failed-member-alive",
        Fault::NoLatenessShift => "a-stopped-detector-suspects-no-member",
        Fault::SleeperTellsOn => "a-stopped-member-spreads-no-old-news",
        Fault::NoProbes => "two-alone-at-high-loss",
        Fault::LostDirtyMark => "one-failure-is-reported-once",
        Fault::NoResend => "lost-news-is-sent-again-soon",
        Fault::NoRepair => "losses-do-not-lose-news",
        Fault::TreeNeverPruned => "news-is-sent-in-few-copies",
        Fault::HistoryUnbounded => "tables-do-not-grow-with-churn",
        Fault::NothingHeld | Fault::GroupUnchecked => "the-smaller-side-holds",
        _ => "zone-all-faults",
    }
}

fn read(name: &str) -> Scenario {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/scenarios");
    let text = std::fs::read_to_string(folder.join(format!("{name}.toml"))).unwrap();
    Scenario::read(&text).unwrap()
}

/// Returns where and how a fault was caught.
fn hunt(fault: Fault) -> Option<String> {
    let scenario = read(scenario_for(fault));
    for seed in 0..SEEDS {
        plant(Some(fault));
        let report = run(&scenario, seed);
        plant(None);
        if report.outcome == Outcome::Sound {
            continue;
        }
        // The fault must be caught, not the scenario.
        assert_eq!(
            run(&scenario, seed).outcome,
            Outcome::Sound,
            "{fault:?} {seed}"
        );
        let first = report.outcome.violations().first();
        let checker = first.map_or("-", |violation| violation.checker);
        let kind = report.outcome.kind();
        return Some(format!("{} seed {seed}: {kind}, {checker}", scenario.name));
    }
    None
}

#[test]
fn every_planted_fault_is_caught() {
    let next = AtomicUsize::new(0);
    let caught = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some(fault) = Fault::ALL.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let found = hunt(*fault);
                    caught.lock().unwrap().push((fault.name(), found));
                }
            });
        }
    });
    let mut caught = caught.into_inner().unwrap();
    caught.sort();
    let missed: Vec<_> = caught.iter().filter(|(_, found)| found.is_none()).collect();
    for (fault, found) in &caught {
        println!("{fault:24} {}", found.as_deref().unwrap_or("NOT CAUGHT"));
    }
    assert!(missed.is_empty(), "{missed:?}");
}
