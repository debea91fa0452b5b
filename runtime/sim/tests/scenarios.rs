//! The scenario files: every one of them runs, and what is wrong in a file is said.

use std::path::PathBuf;

use muster_sim::{Scenario, shrink, story, sweep};

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/scenarios")
}

fn read(name: &str) -> Scenario {
    let path = folder().join(name);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{name}: {e}"));
    Scenario::read(&text).unwrap_or_else(|e| panic!("{name}: {e}"))
}

/// All seeds are sound, or the first failures are told with their stories.
fn sound(name: &str, first: u64, count: u64) {
    let scenario = read(name);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let found = sweep(&scenario, first, count, threads, |_| {});
    for report in found.failed.iter().take(3) {
        let shrunk = shrink(&report.drawn).scenario;
        println!("{name} seed={}: {}", report.seed, report.outcome.kind());
        println!("shrunk:\n{}\n{}", shrunk.write(), story(&shrunk, 60));
    }
    let failed: Vec<_> = found
        .failed
        .iter()
        .map(|report| (report.seed, report.outcome.kind(), report.outcome.violations().first()))
        .map(|(seed, kind, first)| format!("{seed} {kind} {first:?}"))
        .collect();
    assert!(failed.is_empty(), "{name}: {}\n{}", failed.len(), failed.join("\n"));
}

#[test]
fn two_hundred_worlds_with_all_faults() {
    sound("zone-all-faults.toml", 0, 1000);
}
