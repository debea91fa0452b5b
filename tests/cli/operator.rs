//! An operator's view: events, waits, verdicts, settings and the journal, from real agents on loopback; and
//! the protocol of the control socket, with different versions and with users that may only read.

use muster_tests::admin::Admin;
use muster_tests::nodes::Nodes;
use muster_tests::{DEADLINE, Member, Members, program, python_with, skipped, until, workspace};
use rustix::fs::{OFlags, fcntl_setfl};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::Signal;
use serde_json::Value;
use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

fn group<'a>(directory: &'a Path, net: u8, variables: &'a [(&str, &OsStr)]) -> Members<'a> {
    Members::new(directory, &[format!("127.71.{net}")]).with_variables(variables)
}

/// Starts members that know each other.
fn start(directory: &Path, net: u8, count: usize, variables: &[(&str, &OsStr)]) -> Vec<Member> {
    group(directory, net, variables).start_up(count)
}

/// A full pipe, and its read end, from which no process reads.
fn full_pipe() -> (OwnedFd, OwnedFd) {
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).unwrap();
    fcntl_setfl(&writer, OFlags::NONBLOCK).unwrap();
    while rustix::io::write(&writer, &[b'.'; 4096]).is_ok() {}
    fcntl_setfl(&writer, OFlags::empty()).unwrap();
    (reader, writer)
}

/// A writer of a log line blocks while the reader does not read. The event loop must not block, or the member
/// is silent to all others. This holds for all lines, from the one that it has joined.
#[test]
fn a_log_without_a_reader_blocks_no_agent() {
    let directory = tempfile::tempdir().unwrap();
    let (_unread, log) = full_pipe();
    let talkative: [(&str, &OsStr); 1] = [("MUSTER_LOG", OsStr::new("debug"))];
    let arguments = ["--rail", "127.71.90.1@udp0"];
    let first = Member::start_logging(directory.path(), "n1", &arguments, &talkative, log.into());
    let second = group(directory.path(), 90, &[]).start(2);
    first.wait_for(&["UP n2".into()]);
    second.wait_for(&["UP n1".into()]);
    second.kill();
    first.wait_for(&["DOWN n2".into()]);
}

/// Sends one line to the socket. Returns the whole answer.
fn send(socket: &Path, line: &str) -> String {
    let mut stream = UnixStream::connect(socket).expect("the control socket");
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    stream.write_all(line.as_bytes()).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// An agent dies while commands follow the events, wait for its death, and wait for it to be alive.
#[test]
fn a_failure_is_followed_waited_for_and_checked() {
    let directory = tempfile::tempdir().unwrap();
    let mut members = start(directory.path(), 1, 3, &[]);
    let admin = Admin::of(directory.path(), "n1");
    let muster = |words: &[&str]| {
        let mut command = Command::new(program("muster"));
        command.args(words).arg("--agent").arg(&admin.0);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    };
    assert_eq!(admin.ask(&["wait", "n[1-3]"]), "n[1-3] alive\n");
    assert_eq!(
        admin.json(&["wait", "--count", "3"])["schema"],
        "muster/wait/v1"
    );
    assert_eq!(admin.ask(&["check"]), "OK: 3 of 3 members alive\n");
    let (code, line, _) = admin.run(&["check", "--nagios", "--members", "3"]);
    assert_eq!(code, Some(0));
    assert!(
        line.starts_with("MUSTER OK - 3 of 3 members alive | alive=3;3: degraded=0"),
        "{line}"
    );
    assert_eq!(line.lines().count(), 1);
    let folded = admin.ask(&["members", "--fold"]);
    assert!(folded.contains("n[1-3]  alive  3"), "{folded}");

    let mut following = muster(&["events", "--follow", "-o", "json"])
        .spawn()
        .unwrap();
    let mut events = BufReader::new(following.stdout.take().unwrap()).lines();
    let mut next = |wanted: &str| {
        loop {
            let line = events.next().expect("an event").unwrap();
            let event: Value = serde_json::from_str(&line).unwrap();
            assert_eq!(event["schema"], "muster/event/v1");
            if event["event"] == wanted {
                return event;
            }
        }
    };
    next("journal-opened");
    assert_eq!(next("node-up")["node"], "n1");
    let waiting = muster(&["wait", "n3", "--state", "failed"])
        .spawn()
        .unwrap();
    let hoping = muster(&["wait", "n2", "n3", "n9"]).spawn().unwrap();
    members.remove(2).kill();
    let death = next("node-failed");
    assert_eq!(
        (&death["member"], &death["node"]),
        (&"n3".into(), &"n1".into())
    );
    assert!(
        death["cause"].is_string() && death["time"].as_str().unwrap().ends_with('Z'),
        "{death}"
    );
    assert!(
        !death["reporters"].as_array().unwrap().is_empty(),
        "{death}"
    );

    let waited = waiting.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&waited.stdout), "n3 failed\n");
    // A member that should be alive has failed.
    let hoped = hoping.wait_with_output().unwrap();
    assert_eq!(hoped.status.code(), Some(4), "{hoped:?}");
    let (code, verdict, _) = admin.run(&["check"]);
    assert_eq!(code, Some(4));
    assert_eq!(
        verdict,
        "CRITICAL: 2 of 3 members alive, 1 failed\nfailed: n3\n"
    );
    let (code, line, _) = admin.run(&["check", "--nagios"]);
    assert_eq!(code, Some(2), "{line}");
    let (code, _, error) = admin.run(&["wait", "n3", "--timeout", "0"]);
    assert!(
        code == Some(4) && error.contains("n3 failed or left"),
        "{error}"
    );
    let (code, _, error) = admin.run(&["wait", "n7", "--timeout", "0"]);
    assert!(code == Some(5) && error.contains("unknown: n7"), "{error}");

    // Without `--follow`: the present events, and the end. With `--since` only later ones.
    let all = admin.ask(&["events"]);
    assert!(all.contains("node-failed      n3"), "{all}");
    let last = death["seq"].to_string();
    let behind = admin.ask(&["events", "--since", &last, "-o", "json"]);
    assert!(!behind.contains("\"node-failed\""), "{behind}");
    // The agent ends: a follower is notified of that.
    let first = members.remove(0);
    assert!(first.leave());
    assert_eq!(following.wait().unwrap().code(), Some(3));
    let (code, line, _) = admin.run(&["check", "--nagios"]);
    assert!(
        code == Some(3) && line.starts_with("MUSTER UNKNOWN - "),
        "{line}"
    );
}

#[test]
fn every_output_has_its_schema_and_every_answer_its_protocol() {
    let directory = tempfile::tempdir().unwrap();
    let _members = start(directory.path(), 2, 2, &[]);
    let admin = Admin::of(directory.path(), "n1");
    for (words, schema) in [
        (&["members"][..], "members"),
        (&["why", "n2"], "why"),
        (&["attrs"], "attributes"),
        (&["config", "show"], "config"),
        (&["metrics"], "metrics"),
        (&["stats"], "stats"),
        (&["rails"], "rails"),
        (&["peers"], "peers"),
        (&["policy"], "policy"),
        (&["explain", "n2"], "explain"),
        (&["export"], "export"),
        (&["stats", "--zero"], "change"),
        (&["stats", "--per", "net"], "nets"),
        (&["stats", "--per", "relay"], "relays"),
    ] {
        let answer = admin.json(words);
        assert_eq!(answer["schema"], format!("muster/{schema}/v1"), "{words:?}");
        assert_eq!(answer["protocol"], 1, "{words:?}");
        assert_eq!(answer["release"], env!("CARGO_PKG_VERSION"), "{words:?}");
    }
    for (words, schema) in [
        (&["top", "--delay", "0.1"][..], "top"),
        (&["check"], "check"),
        (&["wait", "n2"], "wait"),
        (&["stats", "--rate", "50"], "rates"),
    ] {
        assert_eq!(
            admin.json(words)["schema"],
            format!("muster/{schema}/v1"),
            "{words:?}"
        );
        let yaml = admin.ask(&[words, &["-o", "yaml"]].concat());
        assert!(
            yaml.contains(&format!("schema: muster/{schema}/v1")),
            "{words:?}: {yaml}"
        );
    }
    let top = admin.ask(&["top", "--delay", "0.1"]);
    for there in [
        "n1 of job -: ",
        "members: 2 alive, 0 degraded",
        "n1 *",
        "127.71.2.1@udp0",
    ] {
        assert!(top.contains(there), "{there}: {top}");
    }
    assert!(
        !top.contains('\x1b'),
        "no colour but on a terminal: {top:?}"
    );
    as_a_yaml_parser_reads(&admin);
    // Attributes: the agent's own one is present, for one member or for all.
    let attributes = admin.ask(&["attrs", "n2"]);
    assert!(attributes.starts_with("NODE  KEY"), "{attributes}");
    let (code, _, error) = admin.run(&["attrs", "n77"]);
    assert!(
        code == Some(1) && error.contains("no member named n77"),
        "{error}"
    );
}

/// PyYAML reads the same keys and kinds of values as a JSON parser. `make setup` installs it.
fn as_a_yaml_parser_reads(admin: &Admin) {
    let Some(python) = python_with("yaml") else {
        return;
    };
    let script = workspace().join("tests/programs/same_documents.py");
    let end = Instant::now() + DEADLINE;
    // A member that did not run for a while is suspected in one of the two documents, with reporters.
    loop {
        let directory = tempfile::tempdir().unwrap();
        write_documents(admin, directory.path());
        let mut compare = Command::new(&python);
        let output = compare.arg(&script).arg(directory.path()).output().unwrap();
        if output.status.success() {
            assert_eq!(String::from_utf8_lossy(&output.stdout), "7 alike\n");
            return;
        }
        let printed = String::from_utf8_lossy(&output.stderr);
        assert!(Instant::now() < end, "{printed}");
    }
}

fn write_documents(admin: &Admin, directory: &Path) {
    for (number, words) in [
        "members",
        "why n2",
        "rails",
        "peers",
        "stats",
        "config show",
        "check",
    ]
    .into_iter()
    .enumerate()
    {
        let words: Vec<&str> = words.split(' ').collect();
        for shape in ["json", "yaml"] {
            let (_, printed, _) = admin.run(&[&words[..], &["-o", shape]].concat());
            fs::write(directory.join(format!("{number}.{shape}")), printed).unwrap();
        }
    }
}

/// Members by name and by state; an unknown member is named. A plugin with wrong options is UNKNOWN, not
/// CRITICAL.
#[test]
fn members_are_selected_and_a_plugin_raises_no_false_alarm() {
    let directory = tempfile::tempdir().unwrap();
    let mut members = start(directory.path(), 10, 3, &[]);
    let admin = Admin::of(directory.path(), "n1");
    members.remove(2).kill();
    let failed = |answer: &str| answer.contains("n3");
    admin.await_answer(&["members", "--state", "failed"], failed);
    // A member that this machine did not run for a while is declared failed, and comes back.
    let await_names = |words: &[&str], wanted: &[&str]| {
        let is_so = |answer: &str| {
            let answer: Value = serde_json::from_str(answer).unwrap();
            let members = answer["members"].as_array().unwrap().iter();
            let names: Vec<&str> = members.map(|one| one["name"].as_str().unwrap()).collect();
            names == wanted
        };
        admin.await_answer(&[words, &["-o", "json"]].concat(), is_so);
    };
    await_names(&["members"], &["n1", "n2", "n3"]);
    await_names(&["members", "-s", "failed"], &["n3"]);
    await_names(&["members", "-s", "alive,failed", "n[2-3]"], &["n2", "n3"]);
    await_names(&["members", "n[2-3]", "-s", "left"], &[]);
    let table = admin.ask(&["members", "n3"]);
    assert!(
        table.lines().count() == 2 && table.contains("n3"),
        "{table}"
    );
    let (code, _, error) = admin.run(&["members", "n[1,7-9]"]);
    assert!(
        code == Some(1) && error.contains("no member named n[7-9]"),
        "{error}"
    );
    let (code, _, error) = admin.run(&["members", "-s", "dead"]);
    assert!(code == Some(2) && error.contains("give alive, "), "{error}");

    let (code, line, _) = admin.run(&["check", "--nagios", "--member", "x"]);
    assert_eq!(code, Some(3), "{line}");
    assert!(
        line.starts_with("MUSTER UNKNOWN - wrong usage: \"--member\": unknown option; ")
            && line.contains("--members?")
            && line.lines().count() == 1,
        "{line}"
    );
    let (code, ..) = admin.run(&["check", "--member", "x"]);
    assert_eq!(code, Some(2));
}

/// A killed rank is named wherever its node is shown.
#[test]
fn a_killed_rank_is_named() {
    let job = Nodes::new(1);
    let (_first, second) = (job.start(1, 0), job.start(1, 1));
    let admin = Admin(job.agent_directory(1).directory().join("control"));
    second.kill();
    let table = admin.await_answer(&["members"], |answer| answer.contains("(failed 1)"));
    assert!(table.contains("0-1 (failed 1)"), "{table}");
    let explanation = admin.ask(&["why", "n1"]);
    assert!(
        explanation.contains("\nranks 0-1 (failed 1)\n"),
        "{explanation}"
    );
    let (code, verdict, _) = admin.run(&["check"]);
    let printed = "CRITICAL: 1 of 1 members alive, 1 rank failed\nranks failed: 1\n";
    assert_eq!((code, verdict.as_str()), (Some(4), printed));
    let (_, answer, _) = admin.run(&["check", "-o", "json"]);
    let answer: Value = serde_json::from_str(&answer).unwrap();
    assert_eq!(answer["ranks"]["failed"], serde_json::json!([1]));
}

/// The only rank of a node is killed, and its agent, without clients, leaves: that is reported as an unclean
/// end.
#[test]
fn a_node_that_left_after_its_rank_was_killed_is_reported_as_critical() {
    let job = Nodes::new(2);
    let (_first, second) = (job.start(1, 0), job.start(2, 1));
    let admin = Admin(job.agent_directory(1).directory().join("control"));
    admin.await_answer(&["check"], |answer| answer == "OK: 2 of 2 members alive\n");
    second.kill();
    admin.await_answer(&["members", "--state", "left"], |answer| {
        answer.contains("announced, after rank 1 failed")
    });
    let events = admin.await_answer(&["events"], |answer| answer.contains("node-left"));
    let left = events.lines().find(|line| line.contains("node-left"));
    let left = left.expect("the node left");
    assert!(left.ends_with("announced, after rank 1 failed"), "{left}");
    let (code, verdict, _) = admin.run(&["check"]);
    let printed = "CRITICAL: 1 of 2 members alive, 1 left after a rank failed, 1 rank failed\n\
                ranks failed: 1\nleft after a rank failed: n2\n";
    assert_eq!((code, verdict.as_str()), (Some(4), printed));
}

/// The origin of each setting: option, variable, file, default.
#[test]
fn settings_have_an_origin() {
    let directory = tempfile::tempdir().unwrap();
    let quiet = ("MUSTER_PROFILE", OsStr::new("quiet"));
    let _members = start(directory.path(), 3, 1, &[quiet]);
    let admin = Admin::of(directory.path(), "n1");
    admin.await_answer(&["config", "show"], |answer| !answer.is_empty());
    let settings = admin.json(&["config", "show"]);
    let origin = |key: &str| {
        let settings = settings["settings"].as_array().unwrap();
        let found = settings
            .iter()
            .find(|setting| setting["key"] == key)
            .expect("a setting");
        [&found["value"], &found["origin"]].map(|text| text.as_str().unwrap().to_owned())
    };
    assert_eq!(origin("profile"), ["quiet", "variable MUSTER_PROFILE"]);
    assert_eq!(origin("rail"), ["127.71.3.1@udp0", "option --rail"]);
    assert_eq!(origin("minority"), ["continue", "default"]);
    assert_eq!(origin("directory")[1], "variable MUSTER_DIR");
    let table = admin.ask(&["config", "show", "--origin"]);
    assert!(table.contains("variable MUSTER_PROFILE"), "{table}");
    assert!(!admin.ask(&["config", "show"]).contains("ORIGIN"));

    let check = |name: &str, text: &str| {
        let path = directory.path().join(name);
        fs::write(&path, text).unwrap();
        let mut command = Command::new(program("muster"));
        let output = command
            .args(["config", "check"])
            .arg(&path)
            .output()
            .unwrap();
        let printed = [output.stdout, output.stderr].concat();
        (
            output.status.code(),
            String::from_utf8_lossy(&printed).into_owned(),
        )
    };
    let (code, printed) = check("right.yaml", &admin.ask(&["export"]));
    assert!(
        code == Some(0) && printed.contains("is valid: rails 1"),
        "{printed}"
    );
    let (code, printed) = check("wrong.yaml", "version: 1\nnest: []\n");
    assert!(
        code == Some(7) && printed.contains("line 2, column 1"),
        "{printed}"
    );
}

/// Each side reports both version numbers if the other has another version, and does nothing else.
#[test]
fn different_versions_are_named_on_both_sides() {
    let directory = tempfile::tempdir().unwrap();
    let _members = start(directory.path(), 4, 1, &[]);
    let admin = Admin::of(directory.path(), "n1");
    admin.await_answer(&["members"], |answer| !answer.is_empty());
    for line in ["muster/2 stats zero\n", "muster/2 a word of later\n"] {
        let answer: Value = serde_json::from_str(&send(&admin.0, line)).unwrap();
        assert_eq!(
            (&answer["kind"], &answer["protocol"]),
            (&"version".into(), &1.into())
        );
        let why = answer["error"].as_str().unwrap();
        assert!(
            why.contains("version 2") && why.contains("speaks 1"),
            "{why}"
        );
    }
    let members: Value = serde_json::from_str(&send(&admin.0, "muster/1 members\n")).unwrap();
    assert_eq!(members["schema"], "muster/members/v1");

    let path = directory.path().join("later");
    let listener = UnixListener::bind(&path).unwrap();
    let agent = std::thread::spawn(move || {
        for answer in [
            "{\"protocol\":2,\"release\":\"9.1.0\",\"members\":[]}\n",
            "{\"members\":[]}\n",
        ] {
            let (stream, _) = listener.accept().unwrap();
            let mut line = String::new();
            BufReader::new(&stream).read_line(&mut line).unwrap();
            assert_eq!(line, "muster/1 members\n");
            (&stream).write_all(answer.as_bytes()).unwrap();
        }
    });
    let later = Admin(path);
    for theirs in ["version 2 (release 9.1.0)", "a version before 1"] {
        let (code, _, error) = later.run(&["members"]);
        assert_eq!(code, Some(1));
        assert!(
            error.contains(theirs) && error.contains("speaks version 1 (release"),
            "{error}"
        );
    }
    agent.join().unwrap();
}

/// With a second control socket, other users may read, and change nothing. Requires root, since no other user
/// can change its identity.
#[test]
fn other_users_may_read_where_the_site_allows_it() {
    let directory = tempfile::tempdir().unwrap();
    let open = directory.path().join("open");
    fs::create_dir(&open).unwrap();
    let variables = [("MUSTER_READABLE_IN", open.as_os_str())];
    let mut members = start(directory.path(), 5, 1, &variables);
    let own = Admin::of(directory.path(), "n1");
    own.await_answer(&["members"], |answer| !answer.is_empty());
    let user = rustix::process::geteuid().as_raw();
    let listener = Admin(open.join(format!("muster-{user}-n1.control")));
    assert_eq!(fs::metadata(&listener.0).unwrap().mode() & 0o777, 0o666);
    // The agent's own user may do everything at both sockets.
    assert_eq!(
        listener.json(&["stats", "--zero"])["schema"],
        "muster/change/v1"
    );
    if user == 0 {
        let muster = directory.path().join("muster");
        // With another process: children of other threads would hold the file open, and it could not be
        // executed.
        let mut copy = Command::new("cp");
        let copied = copy.arg(program("muster")).arg(&muster).status().unwrap();
        assert!(copied.success());
        for path in [directory.path(), &open, &muster] {
            fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        let ask = |words: &[&str]| {
            let mut command = Command::new(&muster);
            command
                .args(words)
                .arg("--agent")
                .arg(&listener.0)
                .uid(65_534)
                .gid(65_534);
            let output = command.output().unwrap();
            let printed = [output.stdout, output.stderr].concat();
            (
                output.status.code(),
                String::from_utf8_lossy(&printed).into_owned(),
            )
        };
        let (code, printed) = ask(&["members"]);
        assert!(code == Some(0) && printed.contains("n1 *"), "{printed}");
        let (code, printed) = ask(&["events"]);
        assert!(
            code == Some(0) && printed.contains("journal-opened"),
            "{printed}"
        );
        for words in [
            &["stats", "--zero"][..],
            &["rails", "add", "127.71.5.9@udp1"],
            &["attrs"],
        ] {
            let (code, printed) = ask(words);
            assert!(
                code == Some(6) && printed.contains("for its user alone"),
                "{words:?}: {printed}"
            );
        }
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o700)).unwrap();
    } else {
        skipped("root", "this user cannot become another one");
    }
    assert!(members.remove(0).leave());
    assert!(!listener.0.exists(), "the second socket is removed, too");
}

/// Each event is a line in the file of its node. A directory that cannot be written affects only the journal,
/// and is reported once.
#[test]
fn the_journal_has_every_event_and_a_bad_directory_costs_nothing_else() {
    let directory = tempfile::tempdir().unwrap();
    let journal = directory.path().join("journal");
    fs::create_dir(&journal).unwrap();
    let variables = [("MUSTER_JOURNAL", journal.as_os_str())];
    let mut members = start(directory.path(), 6, 3, &variables);
    members.remove(2).kill();
    for member in &members {
        member.wait_for(&["DOWN n3".into()]);
    }
    let lines_of = |name: &str| -> Vec<Value> {
        let path = journal.join(format!("muster-{name}.jsonl"));
        let text = fs::read_to_string(path).unwrap_or_default();
        let whole = text
            .split_inclusive('\n')
            .filter(|line| line.ends_with('\n'));
        whole
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    };
    for name in ["n1", "n2"] {
        let failed = |line: &Value| line["event"] == "node-failed" && line["member"] == "n3";
        let is_told = || lines_of(name).iter().any(failed).then_some(());
        until(|| format!("{name}: {:?}", lines_of(name)), is_told);
        let numbers: Vec<u64> = lines_of(name)
            .iter()
            .filter_map(|line| line["seq"].as_u64())
            .collect();
        assert!(
            numbers.iter().copied().eq(1..=numbers.len() as u64),
            "{numbers:?}"
        );
    }
    let stats = Admin::of(directory.path(), "n1").json(&["stats"]);
    assert_eq!(stats["agent"]["journal_lines_unwritten"], 0, "{stats}");

    // All of it is on one page.
    let page = directory.path().join("report.html");
    let mut command = Command::new(program("muster"));
    let output = command
        .arg("report")
        .arg(&journal)
        .arg("--file")
        .arg(&page)
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && printed.contains("report.html: 1 node failed ("),
        "{printed}"
    );
    let page = fs::read_to_string(page).unwrap();
    for there in [
        "<svg ",
        "<td class=\"t\">node-failed</td><td>n3</td>",
        "n[1-2] (2)",
    ] {
        assert!(page.contains(there), "{there}: {page}");
    }
    assert_self_contained(&page);
    // The same page on standard output only; no file is made.
    let mut command = Command::new(program("muster"));
    command.arg("report").arg(&journal).args(["--file", "-"]);
    let output = command.current_dir(directory.path()).output().unwrap();
    assert!(
        output.status.success() && output.stderr.is_empty(),
        "{output:?}"
    );
    let page = String::from_utf8(output.stdout).unwrap();
    assert!(
        page.starts_with("<!DOCTYPE html>") && page.ends_with("</html>\n"),
        "{page}"
    );
    assert!(
        page.contains("<td class=\"t\">node-failed</td><td>n3</td>"),
        "{page}"
    );
    assert_self_contained(&page);
    assert!(!directory.path().join("-").exists());
    let mut command = Command::new(program("muster"));
    let output = command.args(["report", "/proc/nowhere"]).output().unwrap();
    let printed = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.code() == Some(1) && printed.contains("/proc/nowhere"),
        "{printed}"
    );

    let nowhere = [("MUSTER_JOURNAL", OsStr::new("/proc/nowhere"))];
    let lost = group(directory.path(), 7, &nowhere).start(4);
    let admin = Admin::of(directory.path(), "n4");
    admin.await_answer(&["events"], |answer| answer.contains("journal-opened"));
    let stats = admin.json(&["stats"]);
    assert_eq!(stats["agent"]["journal_lines_unwritten"], 1, "{stats}");
    lost.signal(Signal::TERM);
}

/// A full file becomes the previous part, and the report contains both.
#[test]
fn a_full_journal_is_rotated_and_the_report_has_both_parts() {
    let directory = tempfile::tempdir().unwrap();
    let journal = directory.path().join("journal");
    fs::create_dir(&journal).unwrap();
    // From an earlier incarnation, which has filled the file.
    let event = r#"{"event":"node-failed","member":"n9","node":"n1","unix_us":1,"cause":"told"}"#;
    let file = journal.join("muster-n1.jsonl");
    fs::write(&file, format!("{event}\n{}\n", " ".repeat(4096))).unwrap();
    let bound = ("MUSTER_JOURNAL_KB", OsStr::new("4"));
    let variables = [("MUSTER_JOURNAL", journal.as_os_str()), bound];
    let _members = start(directory.path(), 11, 2, &variables);
    let text = || fs::read_to_string(&file);
    let is_up = || text().ok().filter(|text| text.contains("\"node-up\""));
    until(|| format!("{:?}", text()), is_up);
    let before = fs::read_to_string(journal.join("muster-n1.jsonl.1")).unwrap();
    assert!(before.contains(event), "{before}");
    assert!(fs::metadata(&file).unwrap().len() <= 4096);
    let page = directory.path().join("report.html");
    let mut report = Command::new(program("muster"));
    report.arg("report").arg(&file).arg("--file").arg(&page);
    assert!(report.output().unwrap().status.success());
    let page = fs::read_to_string(page).unwrap();
    for there in [
        "<td class=\"t\">node-failed</td><td>n9</td>",
        "<td class=\"t\">node-up</td>",
    ] {
        assert!(page.contains(there), "{there}: {page}");
    }
}

/// A strict parser accepts the page, and it loads nothing: no script, link, picture or address.
fn assert_self_contained(page: &str) {
    for part in [
        "<script", "<link", "<img", "<iframe", "@import", "url(", " src=", " href=", "http",
    ] {
        assert!(!page.contains(part), "{part}: {page}");
    }
    let script = "import sys, xml.etree.ElementTree as tree\n\
                  page = tree.parse(sys.stdin).getroot()\n\
                  print(page.tag, len(page.findall('.//svg')), len(page.findall('.//tbody/tr')))";
    let mut python = Command::new("python3");
    let python = python
        .args(["-c", script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut python = python.spawn().expect("python3");
    let mut input = python.stdin.take().unwrap();
    input.write_all(page.as_bytes()).unwrap();
    drop(input);
    let output = python.wait_with_output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && printed.starts_with("html 1 "),
        "{printed}"
    );
}

/// The destination of the log: an unknown one is reported, and a machine without systemd's journal has
/// standard error.
#[test]
fn the_log_goes_to_its_destination_or_the_reason_is_reported() {
    let has_journald = Path::new("/run/systemd/journal/socket").exists();
    for (place, printed) in [
        ("journald", "journal cannot be reached"),
        ("the moon", "MUSTER_LOG_TO"),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let mut agent = Command::new(program("musterd"))
            .args([
                "--name",
                "n1",
                "--rail",
                "127.71.8.1@udp0",
                "--print-events",
                "plain",
            ])
            .env("MUSTER_DIR", directory.path())
            .env("MUSTER_LOG_TO", place)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut ready = String::new();
        BufReader::new(agent.stdout.take().unwrap())
            .read_line(&mut ready)
            .unwrap();
        assert!(ready.starts_with("READY n1"), "{ready}");
        agent.kill().unwrap();
        let log = agent.wait_with_output().unwrap();
        let log = String::from_utf8_lossy(&log.stderr);
        assert!(
            log.contains(printed) != (place == "journald" && has_journald),
            "{log}"
        );
    }
}
