//! The scenario files: each one runs, and errors in a file are reported.

use std::path::PathBuf;

use muster_sim::{Scenario, Span, run, shrink, story, sweep};

/// First seed: different from those used in development.
const FRESH: u64 = 1_000_000;

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/scenarios")
}

fn read(name: &str) -> Scenario {
    let path = folder().join(name);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{name}: {e}"));
    Scenario::read(&text).unwrap_or_else(|e| panic!("{name}: {e}"))
}

/// Asserts that all seeds are sound; otherwise prints the first failures with their stories.
fn sound(name: &str, first: u64, count: u64) {
    let scenario = read(name);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let found = sweep(&scenario, first, count, threads, |_| {});
    for report in found.failed.iter().take(3) {
        let shrunk = shrink(&report.drawn).scenario;
        println!("{name} seed={}: {}", report.seed, report.outcome.kind());
        println!("shrunk:\n{}\n{}", shrunk.write(), story(&shrunk, 60, false));
    }
    let failed: Vec<_> = found
        .failed
        .iter()
        .map(|report| {
            (
                report.seed,
                report.outcome.kind(),
                report.outcome.violations().first(),
            )
        })
        .map(|(seed, kind, first)| format!("{seed} {kind} {first:?}"))
        .collect();
    assert!(
        failed.is_empty(),
        "{name}: {}\n{}",
        failed.len(),
        failed.join("\n")
    );
}

/// ZM-02, ZM-06, ZM-08: all kinds of faults, 250 worlds.
#[test]
fn zones_with_all_faults_keep_their_guarantees() {
    sound("zone-all-faults.toml", FRESH, 250);
}

/// Seeds that failed once are replayed from then on: `tests/seeds/NAME.txt` belongs to the scenario NAME. The folders
/// in it belong to other tests.
#[test]
fn every_kept_seed_is_sound() {
    let seeds = folder().join("../seeds");
    let mut replayed = 0;
    for entry in std::fs::read_dir(&seeds).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            continue;
        }
        let name = format!("{}.toml", path.file_stem().unwrap().to_str().unwrap());
        let text = std::fs::read_to_string(&path).unwrap();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let seed = line.split_whitespace().next().unwrap().parse().unwrap();
            sound(&name, seed, 1);
            replayed += 1;
        }
    }
    assert!(replayed >= 3);
}

/// Every other scenario with some seeds. Each one is named after a bug of other systems that it guards
/// against.
#[test]
fn every_regression_scenario_is_sound() {
    let mut names: Vec<String> = std::fs::read_dir(folder())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| {
            !["zone-", "burns-", "job-"]
                .iter()
                .any(|start| name.starts_with(start))
        })
        .collect();
    names.sort();
    assert!(names.len() >= 15, "{names:?}");
    for name in names {
        let members = read(&name).zone.members.high;
        let count = if members > 100 { 1 } else { 4 };
        sound(&name, FRESH, count);
        let stem = name.trim_end_matches(".toml");
        assert_eq!(read(&name).name, stem, "a scenario is named as its file");
    }
}

/// A drawn scenario is a scenario file again, and drawing it again does not change it.
#[test]
fn a_drawn_scenario_is_a_scenario_file() {
    let drawn = read("zone-all-faults.toml").draw(11);
    let again = Scenario::read(&drawn.write()).unwrap();
    assert_eq!(again, drawn);
    assert_eq!(again.draw(11), drawn);
    let (left, right) = (run(&drawn, 11), run(&read("zone-all-faults.toml"), 11));
    assert_eq!(left.figures, right.figures);
}

/// The result of a seed does not depend on the number of threads.
#[test]
fn the_result_does_not_depend_on_the_threads() {
    let scenario = read("zone-all-faults.toml");
    let alone = sweep(&scenario, 5, 12, 1, |_| {});
    let many = sweep(&scenario, 5, 12, 5, |_| {});
    assert_eq!(alone.figures, many.figures);
}

/// A wrong file is refused with the name, the reason and the remedy; nothing is run.
#[test]
fn bad_scenarios_are_refused_with_a_remedy() {
    let head = "name = 'x'\nguards = 'y'\n[zone]\n";
    let cases = [
        ("members = 5\ncolour = 3", "colour"),
        ("members = 'many'", "members"),
        ("members = 0", "zone.members"),
        ("members = [9, 3]", "write the smaller number first"),
        (
            "members = 5\nprofile = 'slow'",
            "use fast, standard or quiet",
        ),
        ("members = 5\ntheta = 3", "raise successors"),
        (
            "members = 5\n[network]\nloss_permille = 2000",
            "network.loss_permille",
        ),
        ("members = 5\n[[safety.fault]]\nkind = 'explode'", "explode"),
        (
            "members = 5\n[[safety.fault]]\nkind = 'crash'\nfor_ms = 5",
            "leave it out",
        ),
        (
            "members = 5\n[[safety.fault]]\nkind = 'crash'\nnode = 5",
            "fault.node",
        ),
        (
            "members = 5\n[[safety.fault]]\nkind = 'crash'\nnodes = 6",
            "fault.nodes",
        ),
        (
            "members = 5\n[[safety.fault]]\nkind = 'crash'\ncount = 1001",
            "fault.count",
        ),
    ];
    for (text, expected) in cases {
        let error = Scenario::read(&format!("{head}{text}"))
            .unwrap_err()
            .to_string();
        assert!(error.contains(expected), "{text}: {error}");
        assert!(error.contains("; "), "no remedy: {error}");
    }
    let error = Scenario::read("[zone]").unwrap_err().to_string();
    assert!(error.contains("missing field"), "{error}");
}

/// A scenario that cannot be sound fails, is shrunk, fails in the same way again, and has a story.
#[test]
fn a_failure_is_shrunk_and_has_a_story() {
    let mut scenario = read("zone-all-faults.toml");
    scenario.expect.quiet_bytes = Span::just(1);
    let report = run(&scenario, 3);
    assert_eq!(report.outcome.kind(), "correctness");
    let shrunk = shrink(&report.drawn).scenario;
    assert!(shrunk.safety.fault.is_empty(), "{}", shrunk.write());
    assert!(shrunk.zone.members.low <= report.drawn.zone.members.low);
    let again = run(&shrunk, 3);
    assert_eq!(again.outcome.violations()[0].checker, "traffic");
    let story = story(&shrunk, 20, false);
    assert!(
        story.contains("beat") && story.contains("!!! traffic"),
        "{story}"
    );
}
