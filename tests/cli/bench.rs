//! The parts of the benches: every phase is measured, and nothing is left behind, however a bench ends.
//!
//! Counts are asserted, times are not: `make bench` measures those.

use muster_tests::job::{await_nothing_left, processes_in};
use muster_tests::process::{name_of, signal};
use muster_tests::{can, program, until};
use rustix::process::Signal;
use serde_json::Value;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The benches of all tests use the same addresses, so only one runs at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

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

/// A bench whose processes are identified by the scratch directory that they inherit.
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
    let printed = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{printed}");
    serde_json::from_slice(&output.stdout).expect("the report is JSON")
}

/// Names of the running processes that inherited this scratch directory.
fn running(scratch: &Path) -> Vec<String> {
    processes_in(scratch).into_iter().map(name_of).collect()
}

/// Waits until a process of this name runs; the bench must not end before.
fn wait_for(bench: &mut Child, scratch: &Path, name: &str) {
    let runs = || {
        let end = bench.try_wait().expect("a child");
        assert!(end.is_none(), "it ended before {name} ran");
        running(scratch)
            .iter()
            .any(|known| known == name)
            .then_some(())
    };
    until(|| format!("no process named {name}"), runs);
}

fn has_namespaces() -> bool {
    can("namespaces", &["unshare", "--net"])
}

#[test]
fn every_phase_is_measured_once_by_each_survivor() {
    let _alone = alone();
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
    assert_eq!(running(scratch.path()), [""; 0]);
    assert_eq!(std::fs::read_dir(scratch.path()).unwrap().count(), 0);
}

/// Whether it predicts well is measured with more members and faults, on a quiet machine.
#[test]
fn the_simulator_is_fitted_to_a_small_group() {
    let scratch = tempfile::tempdir().unwrap();
    let _alone = alone();
    let arguments = [
        "sim",
        "calibrate",
        "--members",
        "8",
        "--predict",
        "9",
        "--faults",
        "1",
        "--seed",
        "1",
    ];
    let report = report(scratch.path(), &arguments);
    assert_eq!(report["fitted_to"], 8);
    let rows = report["rows"].as_array().expect("rows");
    let of = |row: &Value| {
        (
            row["members"].as_u64(),
            row["fault"].as_str().map(str::to_owned),
        )
    };
    let faults = [8, 9].map(|members| {
        ["leave", "crash", "silence"].map(|fault| (Some(members), Some(fault.to_owned())))
    });
    assert_eq!(rows.iter().map(of).collect::<Vec<_>>(), faults.concat());
    for row in rows {
        for side in ["measured", "simulated"] {
            let [half, most] = ["half", "most"].map(|part| row[side][part].as_f64().unwrap());
            assert!(0.0 < half && half <= most, "{report:#}");
        }
        let ratio =
            row["simulated"]["half"].as_f64().unwrap() / row["measured"]["half"].as_f64().unwrap();
        assert!(
            (row["ratio"].as_f64().unwrap() - ratio).abs() < 1e-9,
            "{report:#}"
        );
    }
    assert_eq!(running(scratch.path()), [""; 0]);
}

#[test]
fn a_calm_run_counts_the_reports_of_its_members() {
    let scratch = tempfile::tempdir().unwrap();
    let _alone = alone();
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
    assert_eq!(running(scratch.path()), [""; 0]);
}

/// Between two NIDs only the latency is measured. Another number of NIDs is refused.
#[test]
fn the_latency_between_two_nids_is_measured() {
    let _alone = alone();
    let scratch = tempfile::tempdir().unwrap();
    let between = |nids| {
        [
            "bench",
            "rails",
            "--rounds",
            "20",
            "--turns",
            "2",
            "--between",
            nids,
        ]
    };
    let nids = "127.92.3.1:7751@udp0,127.92.4.1:7751@udp0";
    let report = report(scratch.path(), &between(nids));
    assert_eq!(report["schema"], "muster/bench-rails-between/v1");
    assert_eq!(report["between"], nids);
    let one_way = &report["one_way_us"];
    assert_eq!(one_way["trips"], 40, "{report:#}");
    let of = |name: &str| one_way[name].as_f64().unwrap();
    assert!(of("p50") > 0.0 && of("p50") <= of("p99"), "{report:#}");
    let one = bench(scratch.path(), &between("127.92.3.1:7741@udp0")).output();
    let one = one.expect("muster can be started");
    let printed = String::from_utf8_lossy(&one.stderr);
    assert!(
        !one.status.success() && printed.contains("has 1 NIDs; give two"),
        "{printed}"
    );
}

/// Each figure is present, and agrees with the figures that it is computed from.
#[test]
fn rails_are_measured_beside_sockets_and_plain_libfabric() {
    let _alone = alone();
    let scratch = tempfile::tempdir().unwrap();
    let arguments = ["bench", "rails", "--rounds", "20", "--turns", "1"];
    let report = report(scratch.path(), &arguments);
    assert_eq!(report["schema"], "muster/bench-rails/v2");
    let figure = |path: &str| {
        let value = report.pointer(path).and_then(Value::as_f64);
        let value = value.unwrap_or_else(|| panic!("{path} is missing: {report:#}"));
        assert!(value.is_finite() && value > 0.0, "{path}: {report:#}");
        value
    };
    for system in [
        "udp sockets",
        "tcp sockets",
        "libfabric",
        "one rail",
        "two rails",
    ] {
        let of = |name| figure(&format!("/one_way_us/{system}/{name}"));
        assert!(of("p50") <= of("p99"), "{report:#}");
        assert_eq!(of("trips"), 20.0, "{report:#}");
    }
    let flows = [
        "flow/udp sockets",
        "flow/tcp sockets",
        "flow/one rail, datagrams",
        "flow/one rail, bulk messages",
        "stream/one rail",
        "stream/two rails",
        "stream/one rail, bulk messages",
        "stream/two rails, bulk messages",
    ];
    for flow in flows {
        let of = |name| figure(&format!("/{flow}/{name}"));
        assert!(of("come_bytes") <= of("sent_bytes"), "{flow}: {report:#}");
        of("mb_per_s");
    }
    // Acknowledged data arrives.
    for reliable in [
        "flow/tcp sockets",
        "flow/one rail, bulk messages",
        "stream/one rail, bulk messages",
        "stream/two rails, bulk messages",
    ] {
        let of = |name| figure(&format!("/{reliable}/{name}"));
        let behind = of("sent_bytes") - of("come_bytes");
        assert!(behind <= 2.0 * 1024.0 * 1024.0, "{reliable}: {report:#}");
    }
    let p50 = |system| figure(&format!("/one_way_us/{system}/p50"));
    let speed = |flow| figure(&format!("/{flow}/mb_per_s"));
    let ratios = [
        (
            "one rail to libfabric, p50",
            p50("one rail") / p50("libfabric"),
        ),
        (
            "one rail to udp sockets, p50",
            p50("one rail") / p50("udp sockets"),
        ),
        (
            "one rail to tcp sockets, p50",
            p50("one rail") / p50("tcp sockets"),
        ),
        (
            "datagrams to udp sockets, flow",
            speed("flow/one rail, datagrams") / speed("flow/udp sockets"),
        ),
        (
            "bulk messages to tcp sockets, flow",
            speed("flow/one rail, bulk messages") / speed("flow/tcp sockets"),
        ),
        (
            "two rails to one, stream",
            speed("stream/two rails") / speed("stream/one rail"),
        ),
        (
            "two rails to one, bulk stream",
            speed("stream/two rails, bulk messages") / speed("stream/one rail, bulk messages"),
        ),
    ];
    for (name, quotient) in ratios {
        let printed = figure(&format!("/ratios/{name}"));
        assert!(
            (printed / quotient - 1.0).abs() < 1e-9,
            "{name}: {report:#}"
        );
    }
    assert!(report["failover_ms"]["median"].is_number(), "{report:#}");
    // A busy machine may not have measured it.
    let shown = report["degraded_ms"]
        .as_object()
        .expect("the degraded times");
    assert!(shown.contains_key("median") && shown.contains_key("longest"));
}

#[test]
fn a_killed_rank_is_measured_on_all_others_and_by_other_signals() {
    let _alone = alone();
    let scratch = tempfile::tempdir().unwrap();
    let arguments = [
        "bench",
        "killed",
        "--nodes",
        "3",
        "--rounds",
        "2",
        "--resident-mb",
        "0,64",
    ];
    let report = report(scratch.path(), &arguments);
    assert_eq!(report["schema"], "muster/bench-killed/v1");
    for (index, size) in [0, 64].into_iter().enumerate() {
        let deaths = &report["sizes"][index];
        assert_eq!(deaths["resident_mb"], size, "{report:#}");
        assert_eq!(deaths["missing"], 0, "{report:#}");
        for (metric, count) in [
            ("agent", 2),
            ("near", 2),
            ("far", 4),
            ("pidfd", 2),
            ("pipe", 2),
        ] {
            assert_eq!(
                deaths["metrics"][metric]["n"], count,
                "{metric}: {report:#}"
            );
        }
    }
    await_nothing_left(scratch.path());
    assert_eq!(std::fs::read_dir(scratch.path()).unwrap().count(), 0);
}

#[test]
fn the_library_is_measured_beside_its_parts() {
    let _alone = alone();
    let scratch = tempfile::tempdir().unwrap();
    let report = report(
        scratch.path(),
        &["bench", "client", "--attaches", "5", "--seconds", "1"],
    );
    assert_eq!(report["schema"], "muster/bench-client/v1");
    for (metric, count) in [("query", 20), ("load", 20), ("attach", 5), ("exchange", 5)] {
        assert_eq!(
            report["metrics"][metric]["n"], count,
            "{metric}: {report:#}"
        );
    }
    assert_eq!(report["threads"], 1, "{report:#}");
    // A count that must be 0: without news no process is woken.
    assert_eq!(report["wakeups"], 0, "{report:#}");
    await_nothing_left(scratch.path());
}

/// Without messages no beat is left out; with messages some are, and a silence is still detected. How many
/// depends on how often the bench gets a core.
#[test]
fn saved_beats_are_counted_and_a_silence_is_detected() {
    let _alone = alone();
    let scratch = tempfile::tempdir().unwrap();
    let words = [
        "bench",
        "saved",
        "--rounds",
        "1",
        "--seconds",
        "5",
        "--every-ms",
        "1",
    ];
    let report = report(scratch.path(), &words);
    assert_eq!(report["schema"], "muster/bench-saved/v1");
    let rows = report["rows"].as_array().expect("a list");
    let every: Vec<Option<u64>> = rows.iter().map(|row| row["every_ms"].as_u64()).collect();
    assert_eq!(every, [None, Some(1)], "{report:#}");
    let number = |row: usize, name: &str| rows[row][name].as_f64().expect("a number");
    for row in rows {
        let sent = row["beats_sent_per_second"].as_f64();
        assert!(sent.is_some_and(|sent| sent > 0.0), "{report:#}");
        assert_eq!(row["silent_ms"]["n"], 1, "{report:#}");
    }
    assert_eq!(number(0, "beats_left_out_per_second"), 0.0, "{report:#}");
    assert!(number(1, "beats_left_out_per_second") > 0.0, "{report:#}");
    await_nothing_left(scratch.path());
}

#[test]
fn noise_is_measured_on_every_core_with_and_without() {
    let _alone = alone();
    let scratch = tempfile::tempdir().unwrap();
    let report = report(
        scratch.path(),
        &["bench", "noise", "--rounds", "1", "--seconds", "1"],
    );
    assert_eq!(report["schema"], "muster/bench-noise/v3");
    let cores = report["cores"].as_array().expect("a list");
    assert_eq!(
        cores.len(),
        std::thread::available_parallelism().unwrap().get()
    );
    for core in cores {
        for turn in 0..2 {
            assert!(core["n"][turn].as_u64().unwrap() > 0, "{report:#}");
        }
        let noise = &core["mean_percent"];
        let [without, with] = ["without", "with"].map(|turn| noise[turn].as_f64().unwrap());
        let difference = noise["difference"].as_f64().unwrap();
        assert!((with - without - difference).abs() < 1e-6, "{report:#}");
        // One round says nothing about the variation.
        assert!(noise["interval"].is_null(), "{report:#}");
    }
    await_nothing_left(scratch.path());
}

/// Starts a bench, waits until a process of this name runs, and sends the signal.
fn start_and_signal(scratch: &Path, process: &str, number: Signal) -> Child {
    let mut child = bench(scratch, &SMALL)
        .spawn()
        .expect("muster can be started");
    wait_for(&mut child, scratch, process);
    signal(child.id(), number);
    child
}

#[test]
fn an_interrupted_bench_leaves_no_process_no_namespace_and_no_file() {
    let _alone = alone();
    // Namespaces have no names here: they end with their last process.
    let moments: &[&str] = match has_namespaces() {
        true => &["musterd", "bridge"],
        false => &["musterd"],
    };
    for moment in moments {
        let scratch = tempfile::tempdir().unwrap();
        let output = start_and_signal(scratch.path(), moment, Signal::INT)
            .wait_with_output()
            .unwrap();
        assert_eq!(output.status.code(), Some(130), "{moment}");
        assert!(String::from_utf8_lossy(&output.stderr).contains("interrupted"));
        // The processes have been killed; the kernel may still be removing them.
        await_nothing_left(scratch.path());
        assert_eq!(
            std::fs::read_dir(scratch.path()).unwrap().count(),
            0,
            "{moment}"
        );
    }
}

#[test]
fn the_processes_of_a_killed_bench_end_by_themselves() {
    let _alone = alone();
    let scratch = tempfile::tempdir().unwrap();
    let output = start_and_signal(scratch.path(), "musterd", Signal::KILL)
        .wait_with_output()
        .unwrap();
    assert_eq!(output.status.signal(), Some(9));
    await_nothing_left(scratch.path());
}
