//! The answers of `musterd` and `muster` to wrong input: the value, the reason, the remedy, and no panic.

use muster_tests::{Member, program};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

/// Runs `musterd` with arguments that cannot work. Returns its exit code and its output.
fn refused(directory: &Path, arguments: &[&str]) -> (Option<i32>, String) {
    let output = Command::new(program("musterd"))
        .args(arguments)
        .env("MUSTER_DIR", directory)
        .env_remove("MUSTER_RAILS")
        .output()
        .expect("musterd can be started");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!text.contains("panicked"), "{text}");
    assert!(!output.status.success(), "{arguments:?} were accepted");
    (output.status.code(), text)
}

const MEMBER: [&str; 4] = ["--name", "n1", "--print-events", "plain"];

#[test]
fn each_wrong_input_is_named_with_its_reason() {
    let directory = tempfile::tempdir().unwrap();
    let cases: [(&[&str], &[&str]); 16] = [
        (&["--nonsense"], &["--nonsense", "--help"]),
        (&["--dir", "/tmp"], &["--dir", "--print-events"]),
        (&["--while-input"], &["--while-input", "--print-events"]),
        (&["--rail", "nonsense"], &["nonsense", "@udp0"]),
        (&["--rail", "10.0.0.1@quantum0"], &["quantum0"]),
        (&["--rail", "127.0.0.1:99999@udp0"], &["99999"]),
        (&["--rail", "nosuchif0@udp0"], &["nosuchif0", "lo"]),
        (&["--rail", "127.0.0.1@udp0", "--seed", "what"], &["what"]),
        (&["--group", "rack 3"], &["rack 3", "MUSTER_GROUP"]),
        (&["--minority", "stop"], &["stop", "continue or hold"]),
        (
            &["--zones", "many", "--nodes", "n[1-8]"],
            &["many", "topology:PATH", "MUSTER_ZONES"],
        ),
        (
            &["--zones", "4", "--nodes", "n[1-8]", "--minority", "hold"],
            &["2 zones", "--minority continue"],
        ),
        (
            &["--zones", "4", "--nodes", "n[1-8]", "--protocol", "age"],
            &["\"4\"", "age gossip", "--zones off"],
        ),
        (
            &[
                "--zones",
                "4",
                "--nodes",
                "n[1-8]",
                "--seed",
                "y1=127.0.0.1@udp0",
            ],
            &["y1", "8 nodes", "MUSTER_NODES"],
        ),
        (&["--profile", "hasty"], &["hasty", "standard"]),
        (
            &["--key-file", "/nonexistent/key"],
            &["/nonexistent/key", "MUSTER_KEY_FILE"],
        ),
    ];
    for (arguments, words) in cases {
        let arguments = [&MEMBER[..], arguments].concat();
        let (code, text) = refused(directory.path(), &arguments);
        assert!(
            matches!(code, Some(1 | 2 | 7)),
            "{arguments:?} gave {code:?}"
        );
        for word in words {
            assert!(
                text.contains(word),
                "{arguments:?}: {word:?} is missing in:\n{text}"
            );
        }
    }
}

/// A wrong argument is refused before an agent is contacted or waited for.
#[test]
fn a_wrong_argument_is_refused_before_an_agent_is_contacted() {
    let directory = tempfile::tempdir().unwrap();
    let cases: [(&[&str], &[&str]); 15] = [
        (&["top", "-n", "0"], &["-n \"0\"", "below 1", "1 or more"]),
        (
            &["top", "--delay", "1s"],
            &["--delay \"1s\"", "from 0.1 to 3600", "--delay 1;"],
        ),
        (
            &["wait", "--count", "0"],
            &["--count \"0\"", "below 1", "1 or more"],
        ),
        (
            &["wait", "n1", "--timeout", "5h"],
            &[
                "\"5h\"",
                "not a whole number",
                "0 to 31536000",
                "--timeout 60",
            ],
        ),
        (&["wait", "n 1"], &["\"n 1\"", "without spaces", "n[1-4]"]),
        (&["wait", "--ranks", "0-x"], &["\"0-x\"", "0-3,7"]),
        (
            &["wait", "n1", "--count", "2"],
            &["--count is 2, but only 1", "leave --count out"],
        ),
        (&["events", "--member", ""], &["\"\"", "n[1-4]"]),
        (&["events", "--count", "0"], &["below 1"]),
        (&["members", "n[1-"], &["n[1-", "muster members"]),
        (&["why", ""], &["\"\" is not a name", "muster members"]),
        (&["attrs", "a b"], &["\"a b\" is not a name"]),
        (&["explain", "a b"], &["\"a b\" is not a name"]),
        (&["peers", "--most", "0"], &["below 1", "--most 4096"]),
        (
            &["run", "--rails", "none", "--nodes", "2", "true"],
            &["--rails \"none\"", "whole number from 1"],
        ),
    ];
    for (arguments, words) in cases {
        let output = Command::new(program("muster"))
            .args(arguments)
            .env("MUSTER_DIR", directory.path())
            .env_remove("MUSTER_CONTROL")
            .output()
            .expect("muster can be started");
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {text}");
        assert!(
            text.starts_with(&format!("muster {}", arguments[0])) && text.contains("\nhint: "),
            "{arguments:?}: {text}"
        );
        for word in words {
            assert!(
                text.contains(word),
                "{arguments:?}: {word:?} is missing in:\n{text}"
            );
        }
    }
}

/// The seed may be reached through others, so it is no error; but a mistyped net must be reported.
#[test]
fn a_seed_that_no_rail_leads_to_is_named_in_the_log() {
    let directory = tempfile::tempdir().unwrap();
    let (reader, writer) = std::io::pipe().unwrap();
    let arguments = ["--rail", "127.66.90.1:0@udp0", "--seed", "192.0.2.9@o2ib0"];
    let _member = Member::start_logging(directory.path(), "n1", &arguments, &[], writer.into());
    // Lines about messages without a path follow, one per second.
    let lines = BufReader::new(reader).lines().map_while(Result::ok);
    let line = lines
        .take(5)
        .find(|line| line.contains("192.0.2.9@o2ib0"))
        .expect("the seed is named");
    for word in ["none of the nets", "127.66.90.1:", "@udp0", "--rail"] {
        assert!(line.contains(word), "{word:?} is missing in {line}");
    }
}

#[test]
fn a_directory_that_cannot_be_used_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    std::fs::write(&file, "").unwrap();
    let (_, text) = refused(
        &file,
        &[&MEMBER[..], &["--rail", "127.64.0.1@udp0"]].concat(),
    );
    assert!(
        text.contains("file") && text.contains("MUSTER_DIR"),
        "{text}"
    );
}

/// The size of a Slurm step is that of the job that an agent serves, and nothing to a member without a job.
#[test]
fn a_job_too_large_for_one_zone_is_refused_without_its_list() {
    let directory = tempfile::tempdir().unwrap();
    let start = |arguments: &[&str]| {
        let output = Command::new(program("musterd"))
            .args(arguments)
            .args(["--rail", "nosuchif0@udp0"])
            .envs([("SLURM_STEP_NUM_NODES", "5000"), ("MUSTER_JOB", "large")])
            .env("MUSTER_DIR", directory.path())
            .output()
            .unwrap();
        assert!(!output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let text = start(&["--serve"]);
    for part in [
        "5000 nodes",
        "SLURM_STEP_NUM_NODES",
        "at most 4096",
        "MUSTER_NODES",
    ] {
        assert!(text.contains(part), "{part:?} is missing in:\n{text}");
    }
    for accepted in [&["--serve", "--nodes", "n[1-5000]"][..], &MEMBER] {
        let text = start(accepted);
        assert!(text.contains("nosuchif0"), "{text}");
    }
}

#[test]
fn a_missing_libfabric_is_an_error_with_a_remedy() {
    let directory = tempfile::tempdir().unwrap();
    let output = Command::new(program("musterd"))
        .args(MEMBER)
        .args(["--rail", "127.64.0.2@udp0"])
        .env("MUSTER_DIR", directory.path())
        .env("MUSTER_LIBFABRIC", "/nonexistent/libfabric.so.1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    for word in ["/nonexistent/libfabric.so.1", "MUSTER_LIBFABRIC"] {
        assert!(text.contains(word), "{word:?} is missing in:\n{text}");
    }
}

/// For every program an empty variable counts as not given, and one that cannot be understood is reported.
#[test]
fn variables_are_used_reported_or_empty() {
    let directory = tempfile::tempdir().unwrap();
    let start = |variable: &str, value: &str| {
        Command::new(program("musterd"))
            .args(["--name", "n1", "--rail", "nosuchif0@udp0"])
            .env("MUSTER_DIR", directory.path())
            .env(variable, value)
            .output()
            .unwrap()
    };
    for variable in [
        "MUSTER_SEEDS",
        "MUSTER_PROFILE",
        "MUSTER_LINGER_MS",
        "MUSTER_KEY_FILE",
    ] {
        let text = String::from_utf8_lossy(&start(variable, "").stderr).into_owned();
        assert!(text.contains("nosuchif0"), "{variable}: {text}");
    }
    for (variable, value, words) in [
        (
            "MUSTER_LOG",
            "=,bad[",
            ["MUSTER_LOG has an invalid value", "bad["],
        ),
        (
            "MUSTER_LOG",
            "warm",
            ["\"warm\" is no level", "did you mean warn?"],
        ),
        (
            "MUSTER_SEED",
            "127.0.0.1@udp0",
            ["MUSTER_SEED is no setting", "did you mean MUSTER_SEEDS?"],
        ),
    ] {
        let output = start(variable, value);
        let printed = [output.stdout, output.stderr].concat();
        let text = String::from_utf8_lossy(&printed);
        for word in words {
            assert_eq!(text.matches(word).count(), 1, "{word}: {text}");
        }
    }
    let output = Command::new(program("muster"))
        .arg("members")
        .env("MUSTER_DIR", directory.path())
        .env("MUSTER_JOBS", "nobody")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    let words =
        "muster: MUSTER_JOBS is no setting of Muster and has no effect; did you mean MUSTER_JOB?\n";
    assert_eq!(text.matches(words).count(), 1, "{text}");
    let output = Command::new(program("muster"))
        .arg("members")
        .env("MUSTER_DIR", directory.path())
        .env("MUSTER_CONTROL", "")
        .env("MUSTER_JOB", "nobody")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(3));
}

/// A closed reader is no failure, a full disk is one; neither causes a panic.
#[test]
fn output_that_cannot_be_written_is_no_panic() {
    let scenario = muster_tests::workspace().join("tests/scenarios");
    let scenario = scenario.join("another-job-is-ignored.toml");
    let run = |output: Stdio| {
        let mut command = Command::new(program("muster"));
        command.args(["sim", "run"]).arg(&scenario);
        command.stdout(output).output().unwrap()
    };
    let full = std::fs::File::create("/dev/full").unwrap();
    let output = run(full.into());
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("standard output cannot be written"), "{text}");
    assert_eq!(output.status.code(), Some(1));
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = run(writer.into());
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.is_empty(), "{text}");
}

/// Without an agent: exit code 3, and a hint.
#[test]
fn without_an_agent_the_command_reports_it() {
    let directory = tempfile::tempdir().unwrap();
    let output = Command::new(program("muster"))
        .arg("members")
        .env("MUSTER_DIR", directory.path())
        .env_remove("MUSTER_JOB")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{text}");
    assert!(
        text.contains("no agent") && text.contains("hint: "),
        "{text}"
    );
}

/// What the parser of command lines refuses has the form of all other errors, for every program.
#[test]
fn a_wrong_command_line_is_reported_with_its_command_the_reason_and_a_remedy() {
    let cases: [(&str, &[&str], &str); 10] = [
        (
            "muster",
            &["members", "--stat", "alive"],
            "muster members: \"--stat\": unknown option\nhint: did you mean --state? \
             See muster members --help\n",
        ),
        (
            "muster",
            &["wait", "n1", "--timeout"],
            "muster wait: --timeout: its value is missing\nhint: give a whole number from 0 to 31536000",
        ),
        (
            "muster",
            &["members", "-o", "xml"],
            "muster members: -o \"xml\": unknown value\nhint: give table, json or yaml",
        ),
        (
            "muster",
            &["why"],
            "muster why: NAME|RANK: it is missing\nhint: NAME|RANK: The member's name, or a rank's number",
        ),
        (
            "muster",
            &["membres"],
            "muster: \"membres\": unknown command\nhint: did you mean members? See muster --help\n",
        ),
        (
            "muster",
            &["run", "--nodes", "2", "--hosts", "a", "true"],
            "muster run: --nodes: it excludes --hosts\nhint: give only one of --nodes and --hosts; \
             see muster run --help\n",
        ),
        (
            "muster",
            &["run", "--mca", "btl", "tcp", "true"],
            "muster run: \"--mca\": it is an option of other launchers\nhint: ",
        ),
        (
            "muster",
            &["bench", "rails", "--turn", "2"],
            "muster bench rails: \"--turn\": unknown option\nhint: did you mean --turns? \
             See muster bench rails --help\n",
        ),
        (
            "musterd",
            &["--nam", "n1"],
            "musterd: \"--nam\": unknown option\nhint: did you mean --name? See musterd --help\n",
        ),
        (
            "musterd",
            &["n1"],
            "musterd: \"n1\": one argument too many\nhint: it takes only options; see musterd --help\n",
        ),
    ];
    for (name, arguments, wanted) in cases {
        let output = Command::new(program(name))
            .args(arguments)
            .output()
            .expect("a program can be started");
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {text}");
        assert!(text.starts_with(wanted), "{arguments:?}:\n{text}");
        assert_eq!(text.lines().count(), 2, "{arguments:?}:\n{text}");
        assert!(output.stdout.is_empty(), "{arguments:?}: {output:?}");
    }
}
