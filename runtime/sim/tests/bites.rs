//! The checkers bite: every mistake planted in the protocol is caught within 200 seeds.
//!
//! Run with `cargo test -p muster-sim --features planted-faults --test bites`. Each fault is
//! planted in one thread; the list of what was caught, where and by which checker is printed.
//!
//! Not here: a threshold of one reporter. Since deadlines follow each neighbour's own beats, one
//! member alone is hardly ever wrong in these worlds; the rule is shown by a story (`stories`) and
//! by the table in the protocol's `verdict`.

use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use muster_protocol::planted::{Fault, plant};
use muster_sim::{Outcome, Scenario, run};

const SEEDS: u64 = 200;
/// Where a fault is looked for. Most are found where everything goes wrong; some are so well
/// covered by other rules that only a scenario made for them shows them.
fn ground(fault: Fault) -> &'static str {
    match fault {
        Fault::NoReplayWindow => "late-frames-keep-nobody-alive",
        Fault::NoLatenessShift => "stopped-detector-accuses-nobody",
        Fault::SleeperTellsOn => "a-sleeper-tells-no-old-tales",
        Fault::NoProbes => "two-alone-at-high-loss",
        Fault::LostDirtyMark => "one-death-is-told-once",
        Fault::NoResend => "lost-news-comes-again-soon",
        Fault::NoRepair => "losses-lose-no-news",
        Fault::TreeNeverPruned => "no-member-is-told-again-and-again",
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

/// Where and how a fault was caught.
fn hunt(fault: Fault) -> Option<String> {
    let scenario = read(ground(fault));
    for seed in 0..SEEDS {
        plant(Some(fault));
        let report = run(&scenario, seed);
        plant(None);
        if report.outcome == Outcome::Sound {
            continue;
        }
        // It is the fault that is caught, not the scenario.
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
