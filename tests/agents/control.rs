//! An administrator changes a running agent: rails, peers and policy are shown, explained, changed, exported
//! and imported, with real agents on loopback. No member is declared failed because of it.

use muster_tests::admin::Admin;
use muster_tests::nodes::Nodes;
use muster_tests::{Member, Members, program, skipped, until};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// Starts member `index` of a test on two rails; all of them join through the first member.
fn members(directory: &Path, net: u8) -> Members<'_> {
    Members::new(directory, &[0, 1].map(|rail| format!("127.66.{net}{rail}")))
}

fn pair(directory: &Path, net: u8) -> (Member, Member) {
    let members = members(directory, net);
    let members = [members.start(1), members.start(2)];
    assert_eq!(Member::await_all_up(&members), [""; 0]);
    members.into()
}

/// Returns the false alarms in these lines.
fn alarms(lines: &[String]) -> Vec<&String> {
    let harmless = |line: &&String| line.starts_with("DEGRADED") || line.starts_with("RECOVERED");
    lines.iter().filter(|line| !harmless(line)).collect()
}

/// cfg-170: export, import into a new agent, export: the same result; and an agent that is started with the
/// exported file uses it. The test covers rails by their nets, peers, rules and limits: cfg-010, cfg-015,
/// cfg-045, cfg-050, cfg-055, cfg-065, cfg-070, cfg-075, cfg-090, cfg-165; partitions: cfg-030, cfg-035. The
/// agent alone does all of it: cfg-005.
#[test]
fn an_exported_configuration_is_the_same_after_an_import() {
    let directory = tempfile::tempdir().unwrap();
    let admin = Admin::of(directory.path(), "n1");
    let member = members(directory.path(), 1).start(1);
    for words in [
        &["rails", "add", "127.66.12.1:0@udp2", "--partitions", "0,1"][..],
        &["rails", "set", "--numa-range", "21", "--sensitivity", "200"],
        &[
            "rails",
            "set",
            "--retry-us",
            "3000000",
            "--upper-us",
            "30000000",
        ],
        &["peers", "add", "127.66.10.[7-8]@udp0,127.66.11.[7-8]@udp1"],
        &["policy", "add", "--net", "udp1", "--priority", "3"],
        &[
            "policy",
            "add",
            "--local",
            "127.66.[10-11].*@udp0",
            "--remote",
            "*@udp0",
            "--messages",
            "5",
        ],
    ] {
        let answer = admin.await_answer(words, |answer| answer.contains("done"));
        // A rule that matches nothing is reported as such.
        let is_times = words.contains(&"--retry-us");
        assert_eq!(
            answer.contains("only the transport time-out has an effect"),
            is_times,
            "{answer}"
        );
    }
    let dump = admin.ask(&["export"]);
    for there in [
        "nid: 127.66.12.1:0@udp2\n        partitions: [0, 1]",
        "- nids: [127.66.10.8@udp0, 127.66.11.8@udp1]",
        "numa_range: 21",
        "sensitivity: 200",
        "retry_us: 3000000",
        "upper_us: 30000000",
        "- net: udp1\n    priority: 3",
        "remote: [\"*@udp0\"]\n    priority: 0\n    messages: 5",
    ] {
        assert!(dump.contains(there), "{there}:\n{dump}");
    }
    let file = directory.path().join("dump.yaml");
    fs::write(&file, &dump).unwrap();
    assert!(member.leave());

    let other = ["--rail", "127.66.19.1@udp9"];
    let fresh = Member::start(directory.path(), "n1", &other);
    let file = file.to_str().unwrap();
    admin.await_answer(&["import", file], |answer| answer.contains("done"));
    assert_eq!(admin.ask(&["export"]), dump);
    let rails = admin.json(&["rails"]);
    assert_eq!(rails["rails"].as_array().unwrap().len(), 3, "{rails}");
    assert!(fresh.leave());

    let begun = Member::start(directory.path(), "n1", &["--config", file]);
    assert_eq!(
        admin.await_answer(&["export"], |answer| !answer.is_empty()),
        dump
    );
    // The values are in force, not only stored: cfg-025, dbg-035.
    let rails = admin.json(&["rails"]);
    let partitions = |rail: &&Value| rail["partitions"] == serde_json::json!([0, 1]);
    let rails = rails["rails"].as_array().unwrap();
    assert_eq!(rails.iter().filter(partitions).count(), 1, "{rails:?}");
    assert!(begun.leave());
}

/// cfg-020, cfg-060: rails are opened and closed under two agents that keep each other alive. The other one
/// learns of it, the last rail stays, and no member is declared failed.
#[test]
fn rails_are_opened_and_closed_without_a_failure() {
    let directory = tempfile::tempdir().unwrap();
    let (first, second) = pair(directory.path(), 2);
    let (admin, other) = (
        Admin::of(directory.path(), "n1"),
        Admin::of(directory.path(), "n2"),
    );
    let rails_of_n1 = |answer: &str| {
        let line = answer.lines().find(|line| line.starts_with("n1 "));
        line.and_then(|line| line.split_whitespace().last())
            .unwrap_or_default()
            .to_owned()
    };
    other.ask(&["rails", "add", "127.66.22.2@udp2"]);
    for _ in 0..5 {
        for (words, rails) in [
            (
                ["rails", "add", "127.66.22.1@udp2"],
                "127.66.20.1@udp0,127.66.21.1@udp1,127.66.22.1@udp2",
            ),
            (
                ["rails", "del", "127.66.20.1@udp0"],
                "127.66.21.1@udp1,127.66.22.1@udp2",
            ),
            (["rails", "del", "127.66.21.1@udp1"], "127.66.22.1@udp2"),
            (
                ["rails", "add", "127.66.20.1@udp0"],
                "127.66.20.1@udp0,127.66.22.1@udp2",
            ),
            (
                ["rails", "add", "127.66.21.1@udp1"],
                "127.66.20.1@udp0,127.66.21.1@udp1,127.66.22.1@udp2",
            ),
            (
                ["rails", "del", "127.66.22.1@udp2"],
                "127.66.20.1@udp0,127.66.21.1@udp1",
            ),
        ] {
            admin.ask(&words);
            let sorted = |list: &str| {
                let mut nids: Vec<String> = list.split(',').map(str::to_owned).collect();
                nids.sort();
                nids
            };
            other.await_answer(&["members"], |answer| {
                sorted(&rails_of_n1(answer)) == sorted(rails)
            });
        }
    }
    // Nothing is sent to a closed rail any more; a reopened one is used again.
    let peers = other.await_answer(&["peers", "n1", "-o", "json"], |answer| {
        let nids: Value = serde_json::from_str(answer).unwrap_or_default();
        let nids = nids["peers"][0]["nids"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        nids.len() == 2
            && nids
                .iter()
                .all(|nid| nid["state"] == "active" && nid["sends"] != 0)
    });
    assert!(!peers.contains("127.66.22.1"), "{peers}");

    admin.ask(&["rails", "del", "127.66.20.1@udp0"]);
    let (code, _, error) = admin.run(&["rails", "del", "127.66.21.1@udp1"]);
    assert_eq!(code, Some(1));
    let why = "127.66.21.1@udp1 is the last rail of this node; add another before it is removed";
    assert!(error.contains(why), "{error}");
    assert_eq!(admin.json(&["rails"])["rails"].as_array().unwrap().len(), 1);

    // The two members still detect each other's end, and reported nothing about each other before.
    second.kill();
    let lines = first.wait_for(&["DOWN n2".into()]);
    let suspect = |line: &&&String| !line.starts_with("SUSPECT");
    let false_alarms = alarms(&lines);
    assert_eq!(false_alarms.iter().filter(suspect).count(), 0, "{lines:?}");
}

/// Whether a TCP connection between these addresses is open: a liveness connection.
fn is_held(from: [u8; 4], to: [u8; 4]) -> bool {
    let hex = |ip: [u8; 4]| format!("{:08X}:", u32::from_ne_bytes(ip));
    let connections = fs::read_to_string("/proc/net/tcp").unwrap();
    connections.lines().any(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        words[1].starts_with(&hex(from)) && words[2].starts_with(&hex(to)) && words[3] == "01"
    })
}

/// RS-04: a member that replaces one of its rails by another is watched on its present rails.
#[test]
fn a_member_with_new_rails_is_watched_on_them() {
    let directory = tempfile::tempdir().unwrap();
    let (first, second) = pair(directory.path(), 9);
    let (admin, other) = (
        Admin::of(directory.path(), "n1"),
        Admin::of(directory.path(), "n2"),
    );
    admin.ask(&["rails", "add", "127.66.92.1@udp2"]);
    let dump = other.ask(&["export"]);
    let next = dump
        .replace("udp0", "udp2")
        .replace("127.66.90.", "127.66.92.");
    assert_ne!(dump, next);
    let file = directory.path().join("next.yaml");
    fs::write(&file, next).unwrap();
    other.ask(&["import", file.to_str().unwrap()]);
    let is_held = || is_held([127, 66, 92, 1], [127, 66, 92, 2]).then_some(());
    until(|| "a liveness connection to the new rail".into(), is_held);
    for member in [&first, &second] {
        let lines = member.pending_lines();
        assert_eq!(alarms(&lines), Vec::<&String>::new(), "{}", member.name);
    }
}

/// cfg-095, cfg-100, cfg-105, cfg-160: a rule is in force at once, `muster explain` names the pair that is
/// used and the reason against the others, and a rail that is idle because of a rule is not considered
/// broken.
#[test]
fn a_rule_decides_and_explain_reports_it() {
    let directory = tempfile::tempdir().unwrap();
    let (first, second) = pair(directory.path(), 3);
    let admin = Admin::of(directory.path(), "n1");
    let before = admin.json(&["explain", "n2"]);
    assert_eq!(before["schema"], "muster/explain/v1");
    assert!(before["taken"]["local"].is_string(), "{before}");

    admin.ask(&["policy", "add", "--net", "udp1"]);
    assert!(admin.ask(&["policy"]).contains("net udp1"));
    let explanation = admin.ask(&["explain", "n2"]);
    assert!(
        explanation.starts_with("n1 -> n2: 127.66.31.1@udp1 -> 127.66.31.2@udp1 (dscp-46)\n"),
        "{explanation}"
    );
    assert!(
        explanation.contains("not taken, since the policy prefers another net"),
        "{explanation}"
    );
    let pair = admin.json(&["explain", "127.66.30.1@udp0", "127.66.30.2@udp0"]);
    assert_eq!(pair["pair"]["taken"], false, "{pair}");
    assert_eq!(
        pair["pair"]["why"], "the policy prefers another net",
        "{pair}"
    );
    let pair = admin.json(&["explain", "n1", "127.66.31.2@udp1"]);
    assert_eq!(pair["pair"]["taken"], true, "{pair}");

    // Enough rounds for the detection of a silent rail: it still carries beats.
    let sends = |net: usize| {
        let nets = admin.json(&["stats", "--per", "net"]);
        nets["nets"][net]["sends"].as_u64().unwrap()
    };
    let (idle, busy) = (sends(0), sends(1));
    let is_sent = || (sends(1) >= busy + 50).then_some(());
    until(|| "50 messages more".into(), is_sent);
    assert!(
        sends(0) > idle,
        "the rail that is not preferred carries a beat now and then"
    );
    for member in [&first, &second] {
        let lines = member.pending_lines();
        assert_eq!(alarms(&lines), Vec::<&String>::new(), "{}", member.name);
    }
    admin.ask(&["policy", "del", "1"]);
    assert_eq!(admin.json(&["policy"])["rules"], serde_json::json!([]));
}

/// Counters per rail, net, NID and peer, as tables, JSON and YAML, and reset by hand: dbg-005, dbg-010,
/// dbg-015, dbg-020, dbg-035, dbg-040, dbg-045, dbg-050, dbg-055, dbg-060, dbg-065, dbg-070, dbg-075,
/// dbg-080, dbg-085, dbg-090, dbg-095, dbg-100, dbg-105, dbg-120.
#[test]
fn counters_are_shown_and_reset() {
    let directory = tempfile::tempdir().unwrap();
    let (_first, _second) = pair(directory.path(), 4);
    let admin = Admin::of(directory.path(), "n1");
    let sends = || {
        let rails = admin.json(&["rails"]);
        let rails = rails["rails"].as_array().unwrap().clone();
        rails
            .iter()
            .map(|rail| rail["sends"].as_u64().unwrap())
            .sum::<u64>()
    };
    let is_sent = || (sends() >= 100).then_some(());
    until(|| "100 messages".into(), is_sent);
    let rail = &admin.json(&["rails"])["rails"][0];
    for key in [
        "state",
        "health",
        "sends",
        "receives",
        "timeouts",
        "credits",
        "partitions",
        "usage",
    ] {
        assert!(!rail[key].is_null(), "{key}: {rail}");
    }
    let one = admin.json(&["rails", "show", "--net", "udp1", "--index", "0"]);
    assert_eq!(one["rails"][0]["nid"], "127.66.41.1@udp1", "{one}");
    let (code, _, error) = admin.run(&["rails", "show", "--net", "udp1", "--index", "1"]);
    assert!(
        code == Some(1) && error.contains("udp1 has 1 rails here"),
        "{error}"
    );
    let peers = admin.json(&["peers", "n[2-9]"]);
    let nid = &peers["peers"][0]["nids"][0];
    assert_eq!(
        nid["rails"],
        serde_json::json!(["127.66.40.1@udp0"]),
        "{peers}"
    );
    for key in [
        "credits",
        "queued_bytes",
        "sends",
        "receives",
        "state",
        "health",
    ] {
        assert!(!nid[key].is_null(), "{key}: {nid}");
    }
    // In parts: the single peer, and none after it.
    for (most, behind, count) in [("4096", "0", 1), ("1", "0", 1), ("1", "1", 0)] {
        let peers = admin.json(&["peers", "--most", most, "--behind", behind]);
        let peers = peers["peers"].as_array().unwrap().clone();
        assert_eq!(peers.len(), count, "{most} behind {behind}: {peers:?}");
    }
    for (per, there) in [
        ("net", "udp1"),
        ("peer", "n2"),
        ("rail", "127.66.41.1"),
        ("nid", "127.66.41.2"),
    ] {
        let table = admin.ask(&["stats", "--per", per]);
        assert!(table.contains(there), "{per}: {table}");
    }
    let yaml = admin.ask(&["stats", "-o", "yaml"]);
    assert!(
        yaml.contains("\nfabric:\n  ") && yaml.contains("\n  rail_drops: "),
        "{yaml}"
    );
    let has_rates = || {
        let before = sends();
        let rates = admin.json(&["stats", "--per", "rail", "--rate", "200"]);
        let seconds = rates["seconds"].as_f64().unwrap();
        let each = rates["rates"].as_array().unwrap().iter();
        let each: Vec<f64> = each
            .map(|rail| rail["sends"].as_f64().unwrap() * seconds)
            .collect();
        let counts = |one: &f64| (one - one.round()).abs() < 1e-6;
        assert!(each.len() == 2 && each.iter().all(counts), "{rates}");
        // The number sent meanwhile: at most the difference of the counters around it, and above 0 if the
        // agent has run meanwhile.
        let (sent, at_most) = (each.iter().sum::<f64>(), sends() - before);
        assert!(sent < at_most as f64 + 0.5, "{rates}: {sent} of {at_most}");
        (sent > 0.5).then_some(())
    };
    until(|| "a rate that is not 0".into(), has_rates);
    // The counters grow again at once: read soon after the reset, they are below the earlier values.
    let before = sends();
    let is_less = || {
        admin.ask(&["stats", "--zero"]);
        (sends() < before).then_some(())
    };
    until(|| "less than before".into(), is_less);
}

/// Each error names the value, the reason and the remedy, and the configuration stays unchanged. AG-11: a
/// range that is too large; cfg-040, cfg-080: one rail per interface, one owner per NID.
#[test]
fn an_impossible_change_is_refused_and_changes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let _member = members(directory.path(), 5).start(1);
    let admin = Admin::of(directory.path(), "n1");
    let before = admin.await_answer(&["export"], |answer| !answer.is_empty());
    let bad = |name: &str, text: &str| {
        let path = directory.path().join(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let unknown_key = bad(
        "key.yaml",
        "version: 1\nnets:\n  - net: udp0\n    rials: []\n",
    );
    let no_rail = bad("norail.yaml", "version: 1\nnets: []\n");
    let busy = before.replace("127.66.51.1@udp1", "nosuchif0@udp1");
    let half = bad(
        "half.yaml",
        &busy.replace("127.66.50.1@udp0", "127.66.50.9@udp0"),
    );
    let cases: [(&[&str], &[&str]); 21] = [
        (
            &["rails", "add", "nonsense"],
            &["nonsense", "write address@net"],
        ),
        (&["rails", "add", "127.0.0.1@quantum0"], &["quantum0"]),
        (
            &["rails", "add", "nosuchif0@udp0"],
            &["nosuchif0", "this node has"],
        ),
        (
            &["rails", "add", "127.66.50.1:99@udp3"],
            &["127.66.50.1", "name each interface once"],
        ),
        (
            &["rails", "set", "--retry-us", "10000000"],
            &["is not shorter than the reply time-out", "10000000"],
        ),
        (
            &["rails", "set", "--sensitivity", "2000"],
            &["2000", "give 0 to 1000"],
        ),
        (
            &["peers", "add", "127.66.[0-255].[0-255]@udp0"],
            &["65536 names", "1024", "give fewer at a time"],
        ),
        (
            &["peers", "add", "10.0.0.[5-2]@udp0"],
            &["10.0.0.[5-2]@udp0", "write the lower number first"],
        ),
        (
            &["peers", "add", "10.0.0.1@udp0,10.0.0.1@udp0"],
            &[
                "10.0.0.1@udp0",
                "is in the list twice",
                "name each interface once",
            ],
        ),
        (
            &["rails", "set", "--numa-range=-1"],
            &["\"-1\"", "--numa-range", "give a whole number from 0"],
        ),
        (
            &["rails", "del", "127.66.50.9@udp0"],
            &["127.66.50.9@udp0 is not a rail of this node", "127.66.51.1"],
        ),
        (
            &["policy", "add", "--net", "quantum0"],
            &["quantum0", "nets are udp, tcp"],
        ),
        (
            &["policy", "add", "--net", "udp0", "--messages", "0"],
            &["0 messages in a row", "give 1 to"],
        ),
        (
            &["peers", "add", "10.0.0.1@o2ib0"],
            &["10.0.0.1@o2ib0", "udp0"],
        ),
        // The first one is valid, the second is not: neither is added.
        (
            &["peers", "add", "127.66.10.9@udp0", "10.0.0.2@o2ib0"],
            &["10.0.0.2@o2ib0", "udp0"],
        ),
        (
            &["policy", "add", "--local", "10.0.0.1"],
            &["10.0.0.1", "no net"],
        ),
        (&["policy", "del", "7"], &["rule 7", "muster policy show"]),
        (&["explain", "n9"], &["n9", "muster peers"]),
        (
            &["import", &unknown_key],
            &["key.yaml", "line 4, column 5", "rials", "net, rails"],
        ),
        (&["import", &no_rail], &["names no rail", "muster export"]),
        // The first of the rails can be opened, the second cannot: neither is.
        (&["import", &half], &["nosuchif0", "this node has"]),
    ];
    for (words, printed) in cases {
        let (code, _, error) = admin.run(words);
        assert!(
            matches!(code, Some(1 | 2 | 7)),
            "{words:?} gave {code:?}: {error}"
        );
        for word in printed {
            assert!(
                error.contains(word),
                "{words:?}: {word:?} is missing in:\n{error}"
            );
        }
        assert_eq!(admin.ask(&["export"]), before, "after {words:?}");
    }
    admin.ask(&["policy", "add", "--net", "udp0", "--priority", "1"]);
    let (_, _, error) = admin.run(&["policy", "add", "--net", "udp0", "--priority", "2"]);
    assert!(
        error.contains("two rules are about \"net udp0\"")
            && error.contains("leave one of them out"),
        "{error}"
    );
    // A rule that matches nothing now may match later: it is accepted with a note.
    let idle = admin.ask(&["policy", "add", "--local", "ib9@udp0"]);
    for word in ["local ib9@udp0", "has no effect yet", "127.66.50.1"] {
        assert!(idle.contains(word), "{word:?} is missing in:\n{idle}");
    }
    let (first, second) = ("127.66.50.8@udp0,127.66.51.8@udp1", "127.66.51.8@udp1");
    admin.ask(&["peers", "add", first]);
    let (_, _, error) = admin.run(&["peers", "add", second]);
    assert!(
        error.contains(second) && error.contains("a NID has one owner"),
        "{error}"
    );
    let rails = admin.json(&["rails"]);
    assert_eq!(rails["rails"].as_array().unwrap().len(), 2, "{rails}");
}

/// A wrong configuration is refused with the place of the error, and no agent starts.
#[test]
fn a_wrong_configuration_starts_no_agent() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("config.yaml");
    let start = |text: &str| {
        fs::write(&file, text).unwrap();
        let mut command = Command::new(program("musterd"));
        command
            .args(["--name", "n1", "--print-events", "plain", "--config"])
            .arg(&file);
        let output = command
            .env("MUSTER_DIR", directory.path())
            .output()
            .unwrap();
        (
            output.status.code(),
            String::from_utf8_lossy(&output.stderr).into_owned(),
        )
    };
    let (code, error) = start("version: 1\npolicy:\n  - net: udp0\n    priorty: 3\n");
    assert_eq!(code, Some(7), "{error}");
    for word in ["config.yaml", "line 4, column 5", "priorty"] {
        assert!(error.contains(word), "{word:?} is missing in:\n{error}");
    }
    fs::remove_file(&file).unwrap();
    let mut command = Command::new(program("musterd"));
    let output = command.arg("--config").arg(&file).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(
        error.contains("config.yaml") && error.contains("MUSTER_CONFIG"),
        "{error}"
    );
}

/// The exit code distinguishes an agent that is absent, one that does not answer, one that the user must not
/// contact, and a file that cannot be read.
#[test]
fn exit_codes_distinguish_failures() {
    let directory = tempfile::tempdir().unwrap();
    let run = |words: &[&str]| {
        let mut command = Command::new(program("muster"));
        command.args(words).env("MUSTER_DIR", directory.path());
        let output = command.output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), error)
    };
    let (code, error) = run(&["rails"]);
    assert_eq!(code, Some(3), "{error}");
    let document = directory.path().join("wrong.yaml");
    fs::write(&document, "version: 1\nnest: []\n").unwrap();
    let (code, error) = run(&["import", document.to_str().unwrap()]);
    assert_eq!(code, Some(7), "{error}");
    // This socket accepts connections and sends nothing, like a stopped agent.
    let silent = UnixListener::bind(directory.path().join("silent.control")).unwrap();
    let (code, error) = run(&["rails"]);
    assert_eq!(code, Some(5), "{error}");
    drop(silent);
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let (code, error) = run(&["rails"]);
    assert_eq!(code, Some(6), "{error}");
    assert!(error.contains("0777"), "{error}");
}

/// Another user is refused and told the owner of the agent, even where the directory permits access. Requires
/// root, since no other user can change its identity.
#[test]
fn another_user_may_neither_query_nor_change() {
    if !rustix::process::geteuid().is_root() {
        skipped("root", "this user cannot become another one");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let member = members(directory.path(), 6).start(1);
    let admin = Admin::of(directory.path(), "n1");
    let before = admin.await_answer(&["export"], |answer| !answer.is_empty());
    // As if the permissions had been opened.
    let allow =
        |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    let muster = directory.path().join("muster");
    copy_program(&program("muster"), &muster);
    for (path, mode) in [
        (directory.path(), 0o755),
        (&muster, 0o755),
        (&admin.0, 0o666),
    ] {
        allow(path, mode);
    }
    for words in [
        &["rails"][..],
        &["rails", "add", "127.66.62.1@udp2"],
        &["stats", "--zero"],
    ] {
        let mut command = Command::new(&muster);
        command
            .args(words)
            .arg("--agent")
            .arg(&admin.0)
            .uid(65_534)
            .gid(65_534);
        let output = command.output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(6), "{error}");
        assert!(
            error.contains("belongs to uid 0") && error.contains("as root"),
            "{error}"
        );
    }
    assert_eq!(admin.ask(&["export"]), before);
    allow(directory.path(), 0o700);
    assert!(member.leave());
}

/// snd-010: the agent knows the NUMA node of its rails. The machine is described by a file: two sockets, with
/// the second network card named like the loopback interface here.
#[test]
fn rails_are_placed_on_the_machine() {
    let directory = tempfile::tempdir().unwrap();
    let topology = muster_tests::workspace().join("tests/topologies/two-sockets.xml");
    let topology = fs::read_to_string(topology)
        .unwrap()
        .replace("\"eth1\"", "\"lo\"");
    let file = directory.path().join("machine.xml");
    fs::write(&file, topology).unwrap();
    let rail = ["--rail", "127.66.80.1@udp0"];
    let machine = ("HWLOC_XMLFILE", file.as_os_str());
    let _member = Member::start_with(directory.path(), "n1", &rail, &[machine]);
    let admin = Admin::of(directory.path(), "n1");
    admin.await_answer(&["rails"], |answer| answer.contains("127.66.80.1@udp0"));
    let rails = admin.json(&["rails"]);
    let rail = &rails["rails"][0];
    assert_eq!(
        (&rail["interface"], &rail["numa_node"]),
        (&"lo".into(), &1.into()),
        "{rails}"
    );
}

/// Changes survive the worker: the next one opens the same rails with the same rules, and other members do
/// not notice.
#[test]
fn changes_survive_the_worker() {
    let job = Nodes::new(2);
    let ranks = job.start_all(1);
    let control = job.agent_directory(1).directory().join("control");
    let admin = Admin(control);
    let rail = "127.66.72.1:0@udp7";
    admin.await_answer(&["rails", "add", rail], |answer| answer.contains("done"));
    admin.ask(&["policy", "add", "--net", "udp7", "--priority", "9"]);
    let (dump, rails) = (admin.ask(&["export"]), nids(&admin));
    assert!(dump.contains(rail) && rails.iter().any(|nid| nid.starts_with("127.66.72.1:")));
    job.kill_worker(1);
    let again = admin.await_answer(&["export"], |answer| !answer.is_empty());
    assert_eq!((again, nids(&admin)), (dump, rails));
    drop(ranks);
}

fn nids(admin: &Admin) -> Vec<String> {
    let rails = admin.json(&["rails"]);
    let rails = rails["rails"].as_array().unwrap();
    rails
        .iter()
        .map(|rail| rail["nid"].as_str().unwrap().to_owned())
        .collect()
}

/// Copies with another process: a file that this process wrote may still be open for writing in a child that
/// another thread has just forked, and then cannot be executed.
fn copy_program(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg(from).arg(to).status().unwrap();
    assert!(copied.success(), "cp {} {}", from.display(), to.display());
}
