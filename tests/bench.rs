//! The benches' own parts: every phase is measured, and nothing is left behind, however one ends.
//!
//! Counts are asserted, times are not: those are for `make bench`.

use muster_tests::{DEADLINE, program};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Four members, one fault of each kind.
const SMALL: [&str; 14] = [
    "bench",
    "detect",
    "--members",
    "4",
    "--faults",
    "1",
    "--pauses",
    "1",
    "--rounds",
    "1",
    "--idle",
    "1",
    "--seed",
    "7",
];

/// A bench whose processes are known by the scratch directory that they inherit.
fn bench(scratch: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(program("muster"));
    command
        .args(arguments)
        .env("TMPDIR", scratch)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

fn report(scratch: &Path, arguments: &[&str]) -> Value {
    let output = bench(scratch, arguments).args(["-o", "json"]).output();
    let output = output.expect("muster can be started");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    serde_json::from_slice(&output.stdout).expect("the report is JSON")
}

/// Command names of living processes that inherited this scratch directory.
fn running(scratch: &Path) -> Vec<String> {
    let mark = format!("TMPDIR={}", scratch.display());
    let mut names = Vec::new();
    for entry in std::fs::read_dir("/proc").expect("/proc").flatten() {
        let environment = std::fs::read(entry.path().join("environ")).unwrap_or_default();
        if environment
            .split(|byte| *byte == 0)
            .any(|entry| entry == mark.as_bytes())
        {
            let name = std::fs::read_to_string(entry.path().join("comm"));
            names.push(name.unwrap_or_default().trim().to_owned());
        }
    }
    names
}

fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + DEADLINE;
    while !done() {
        assert!(Instant::now() < end, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn has_namespaces() -> bool {
    let status = Command::new("unshare")
        .args(["--net", "true"])
        .stderr(Stdio::null())
        .status();
    status.is_ok_and(|status| status.success())
}

#[test]
fn every_phase_is_measured_once_by_each_survivor() {
    let scratch = tempfile::tempdir().unwrap();
    let report = report(scratch.path(), &SMALL);
    assert_eq!(report["schema"], "muster/bench-detect/v1");
    let (ours, can_cut) = (&report["systems"][0], report["cut_skipped"].is_null());
    assert_eq!(can_cut, has_namespaces(), "{report:#}");
    for (metric, count) in [
        ("load", 4),
        ("boot", 1),
        ("join", 3),
        ("killed", 3),
        // Both the short stop and the pause begin with one.
        ("silent", 6),
        ("resumed", 3),
        ("paused", 3),
        ("idle_cpu", 4),
        ("idle_wakeups", 4),
        ("sent_counted", 4),
        ("memory", 4),
        ("cut", if can_cut { 3 } else { 0 }),
        ("healed", if can_cut { 3 } else { 0 }),
        ("sent_on_wire", if can_cut { 4 } else { 0 }),
    ] {
        let counted = ours["metrics"][metric]["n"].as_u64().unwrap_or(0);
        assert_eq!(counted, count, "{metric}: {report:#}");
    }
    let counts = &ours["counts"];
    assert_eq!(counts["faults"], if can_cut { 4 } else { 3 });
    for nothing in ["missing", "not_back", "version_kept", "failures"] {
        assert_eq!(counts[nothing], 0, "{nothing}: {report:#}");
    }
    assert_eq!(running(scratch.path()), Vec::<String>::new());
    assert_eq!(std::fs::read_dir(scratch.path()).unwrap().count(), 0);
}

#[test]
fn a_calm_run_counts_what_its_members_said() {
    let scratch = tempfile::tempdir().unwrap();
    let arguments = [
        "bench",
        "calm",
        "--minutes",
        "0.02",
        "--members",
        "4",
        "--busy-per-core",
        "1",
        "--stops",
        "1",
        "--profile",
        "quiet",
    ];
    let report = report(scratch.path(), &arguments);
    assert_eq!(report["schema"], "muster/bench-calm/v1");
    assert_eq!(report["metrics"]["silent"]["n"], 3, "{report:#}");
    assert!(report["counts"]["false_downs"].is_u64());
    assert_eq!(running(scratch.path()), Vec::<String>::new());
}

/// Starts a bench, waits until a process of this name runs, and sends the signal.
fn struck(scratch: &Path, process: &str, signal: Signal) -> Child {
    let mut child = bench(scratch, &SMALL)
        .spawn()
        .expect("muster can be started");
    wait_for(process, || {
        let ended = child.try_wait().expect("a child");
        assert!(ended.is_none(), "it ended before {process} ran");
        running(scratch).iter().any(|name| name == process)
    });
    let pid = Pid::from_raw(child.id() as i32).expect("a child has a pid");
    kill_process(pid, signal).expect("it has not been waited for");
    child
}

#[test]
fn an_interrupted_bench_leaves_no_process_no_namespace_and_no_file() {
    // Namespaces have no names here: they end with the last process in them.
    let moments: &[&str] = match has_namespaces() {
        true => &["musterd", "bridge"],
        false => &["musterd"],
    };
    for moment in moments {
        let scratch = tempfile::tempdir().unwrap();
        let output = struck(scratch.path(), moment, Signal::INT)
            .wait_with_output()
            .unwrap();
        assert_eq!(output.status.code(), Some(130), "{moment}");
        assert!(String::from_utf8_lossy(&output.stderr).contains("interrupted"));
        assert_eq!(running(scratch.path()), Vec::<String>::new(), "{moment}");
        assert_eq!(
            std::fs::read_dir(scratch.path()).unwrap().count(),
            0,
            "{moment}"
        );
    }
}

#[test]
fn what_a_killed_bench_had_started_ends_by_itself() {
    let scratch = tempfile::tempdir().unwrap();
    let output = struck(scratch.path(), "musterd", Signal::KILL)
        .wait_with_output()
        .unwrap();
    assert_eq!(output.status.signal(), Some(9));
    wait_for("the end of all members", || {
        running(scratch.path()).is_empty()
    });
}
