//! `muster sim` from outside: its output, its refusals, and its exit codes.

use muster_tests::{program, workspace};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Exit code, standard output, standard error.
fn muster(arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::new(program("muster"))
        .arg("sim")
        .args(arguments)
        .output()
        .expect("muster can be started");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(!err.contains("panicked"), "{err}");
    (output.status.code(), out, err)
}

fn json(arguments: &[&str]) -> (Option<i32>, Value) {
    let (code, out, err) = muster(arguments);
    let value = serde_json::from_str(&out).unwrap_or_else(|e| panic!("{e}: {out}{err}"));
    (code, value)
}

fn given(name: &str) -> String {
    let path = workspace().join("tests/scenarios").join(name);
    path.to_str().expect("a path in UTF-8").to_owned()
}

/// Writes a scenario file with this text after the head.
fn written(directory: &Path, text: &str) -> PathBuf {
    let path = directory.join("scenario.toml");
    let head = "name = \"x\"\nguards = \"y\"\n\n[zone]\n";
    std::fs::write(&path, format!("{head}{text}\n")).expect("written");
    path
}

#[test]
fn a_run_prints_the_drawn_scenario_and_its_outcome() {
    let file = given("one-failure-is-reported-once.toml");
    let (code, out, err) = muster(&["run", &file, "--seed", "7"]);
    assert_eq!(code, Some(0), "{err}");
    assert!(
        out.contains("\nsimulated: 1 run, ") && out.ends_with("seed 7: sound\n"),
        "{out}"
    );
    assert_eq!(out.lines().count(), 3, "{out}");
    let (_, drawn, _) = muster(&["run", &file, "--seed", "7", "--drawn"]);
    let scenario = drawn.strip_prefix(&format!("{out}\n# drawn from seed 7\n"));
    let scenario = scenario.expect("the scenario after the result");
    assert!(
        scenario.contains("[zone]") && !scenario.contains("copies_percent"),
        "a bound that is not set is not printed: {scenario}"
    );
    let (code, report) = json(&["run", &file, "--seed", "7", "-o", "json"]);
    assert_eq!(code, Some(0));
    assert_eq!(
        (&report["simulated"], &report["seed"]),
        (&Value::Bool(true), &7.into())
    );
    assert_eq!(report["outcome"], "sound");
    assert_eq!(report["violations"], Value::Array(Vec::new()));
    assert!(report["datagrams"].as_u64() > Some(0) && report["drawn"]["zone"].is_object());
    assert_eq!(
        json(&["run", &file, "--seed", "7", "-o", "json"]).1,
        report,
        "the same again"
    );
}

#[test]
fn a_sweep_names_its_seeds_and_does_not_depend_on_threads() {
    let file = given("one-failure-is-reported-once.toml");
    let sweep = ["sweep", "--scenario", &file, "--seeds", "3", "--first", "5"];
    let (code, out, err) = muster(&sweep);
    assert_eq!(code, Some(0), "{err}");
    assert!(
        out.contains("seeds 5 to 7") && out.contains("0 of 3 seeds failed"),
        "{out}"
    );
    let json_of = |threads| {
        let more = ["--threads", threads, "-o", "json"];
        let (code, report) = json(&[&sweep[..], &more].concat());
        assert_eq!(code, Some(0));
        report
    };
    let report = json_of("1");
    assert_eq!((&report["first"], &report["runs"]), (&5.into(), &3.into()));
    assert_eq!(report, json_of("4"));
    // Without a first seed one is drawn, and printed.
    // Every command takes a scenario in the same way.
    let (code, fresh) = json(&["sweep", &file, "--seeds", "1", "-o", "json"]);
    assert_eq!(code, Some(0));
    assert!(fresh["first"].is_u64());
}

/// A broken guarantee is 20, a world that does not converge 21; both print how to reproduce it.
#[test]
fn the_exit_code_tells_how_a_world_failed() {
    let directory = tempfile::tempdir().unwrap();
    let cases = [
        ("members = 4\n[expect]\nquiet_bytes = 1", 20, "traffic"),
        (
            "members = 40\nboot_within_ms = 1\n[network]\ndelay_min_us = 2000",
            21,
            "boot",
        ),
    ];
    for (text, expected, word) in cases {
        let path = written(directory.path(), text);
        let file = path.to_str().unwrap();
        let (code, out, err) = muster(&["run", file, "--seed", "3", "--no-shrink"]);
        assert_eq!(code, Some(expected), "{out}{err}");
        assert!(err.contains(word), "{err}");
        assert!(
            err.contains("reproduce with muster sim run") && err.contains("--seed 3"),
            "{err}"
        );
        let sweep = ["sweep", "--scenario", file, "--seeds", "2", "--first", "3"];
        let (code, out, err) = muster(&sweep);
        assert_eq!(code, Some(expected), "{out}{err}");
        assert!(
            out.contains("2 of 2 seeds failed") && out.contains("--seed 4"),
            "{out}"
        );
        let (code, report) = json(&[&sweep[..], &["-o", "json"]].concat());
        assert_eq!(code, Some(expected));
        assert_eq!(report["failed"].as_array().map(Vec::len), Some(2));
    }
}

/// The story of a failure, and the shrunk scenario.
#[test]
fn a_failing_run_has_a_story_and_is_shrunk() {
    let directory = tempfile::tempdir().unwrap();
    let text = "members = 4\n[expect]\nquiet_bytes = 1\n\
        [[safety.fault]]\nkind = \"crash\"\ncount = 2";
    let path = written(directory.path(), text);
    let (code, out, _) = muster(&["run", path.to_str().unwrap(), "--seed", "3", "--lines", "5"]);
    assert_eq!(code, Some(20));
    assert!(
        out.contains("!!! traffic") && out.contains("# shrunk in"),
        "{out}"
    );
    let (_, shrunk) = out.split_once("# shrunk in").unwrap();
    assert!(!shrunk.contains("kind = \"crash\""), "{shrunk}");
}

/// An error in a file is reported with file, line, value and remedy; nothing is run.
#[test]
fn a_bad_scenario_is_refused_with_its_place_and_a_remedy() {
    let directory = tempfile::tempdir().unwrap();
    let cases: [(&str, &[&str]); 7] = [
        ("members = 5\ncolour = 3", &["line 6", "colour"]),
        ("members = \"many\"", &["line 5", "members", "many"]),
        (
            "members = [9, 3]",
            &["line 5", "[9, 3]", "smaller number first"],
        ),
        (
            "members = 5\nsuccessors = 1",
            &["line 6", "successors = 1", "raise successors"],
        ),
        (
            "members = 5\n[network]\nloss_permille = 2000",
            &["line 7", "network.loss_permille", "2000", "in that range"],
        ),
        (
            "members = 5\n[[safety.fault]]\nkind = \"explode\"",
            &["line 7", "explode", "crash"],
        ),
        (
            "members = 5\n[[safety.fault]]\nkind = \"crash\"\n\
             [[safety.fault]]\nkind = \"crash\"\nnode = 5",
            &["line 10", "fault.node = 5:", "in that range"],
        ),
    ];
    for (text, words) in cases {
        let path = written(directory.path(), text);
        let file = path.to_str().unwrap();
        for arguments in [&["run", file][..], &["sweep", "--scenario", file]] {
            let (code, out, err) = muster(arguments);
            assert_eq!((code, out.as_str()), (Some(2), ""), "{text}: {err}");
            assert!(err.contains(file) && err.contains("; "), "{err}");
            for word in words {
                assert!(err.contains(word), "{word:?} is missing: {err}");
            }
        }
    }
    let (code, _, err) = muster(&["run", "/nonexistent/scenario.toml"]);
    assert_eq!(code, Some(2));
    assert!(
        err.contains("/nonexistent/scenario.toml") && err.contains("No such file"),
        "{err}"
    );
}

#[test]
fn a_wrong_command_line_is_refused() {
    let file = given("one-failure-is-reported-once.toml");
    let cases: [(&[&str], &str); 6] = [
        (&["run"], "SCENARIO"),
        (&["run", &file, "--seed", "many"], "many"),
        (&["run", &file, "-o", "xml"], "xml"),
        (&["sweep", "--scenario", &file, "--seeds", "0"], "0"),
        (&["figures", "--members", "3"], "3"),
        (
            &["figures", "--members", "8", "--counts", "4"],
            "larger zones",
        ),
    ];
    for (arguments, word) in cases {
        let (code, _, err) = muster(arguments);
        assert_eq!(code, Some(2), "{arguments:?}: {err}");
        assert!(err.contains(word), "{arguments:?}: {err}");
    }
}

/// An option that says nothing about a scenario of this kind is not ignored.
#[test]
fn options_of_another_kind_of_scenario_are_refused() {
    let (zone, job) = (
        given("one-failure-is-reported-once.toml"),
        given("job-4096.toml"),
    );
    let cases: [(&str, &[&str], &str); 5] = [
        (&zone, &["--threads", "2"], "is about one zone"),
        (&job, &["--drawn"], "is about a job with zones"),
        (&job, &["--lines", "9"], "is about a job with zones"),
        (&job, &["--all-members"], "is about a job with zones"),
        (&job, &["--no-shrink"], "is about a job with zones"),
    ];
    for (file, options, why) in cases {
        let (code, out, err) = muster(&[&["run", file], options].concat());
        assert_eq!((code, &*out), (Some(2), ""), "{options:?}: {err}");
        let named = format!("muster sim run: {}: ", options[0]);
        assert!(err.contains(&named) && err.contains(why), "{err}");
        assert!(err.contains("leave it out"), "{err}");
    }
}

#[test]
fn figures_of_a_small_zone_are_measured_and_drawn() {
    let directory = tempfile::tempdir().unwrap();
    let plot = directory.path().join("boot.svg");
    let (code, study) = json(&[
        "figures",
        "--members",
        "16",
        "--counts",
        "1",
        "--timing",
        "ours",
        "--plot",
        plot.to_str().unwrap(),
    ]);
    assert_eq!(code, Some(0));
    assert_eq!(study["simulated"], true);
    let measured = study["zones"][0]["measured"].as_array().expect("figures");
    for what in ["boot", "leave", "join", "crash", "silence"] {
        let figure = measured.iter().find(|figure| figure["what"] == what);
        let took = figure.map(|figure| &figure["all_views_right_ms"]);
        assert!(took.is_some_and(Value::is_number), "{what}: {study}");
    }
    let drawn = std::fs::read_to_string(plot).unwrap();
    assert!(drawn.starts_with("<svg") && drawn.contains("measured by the paper"));
}
