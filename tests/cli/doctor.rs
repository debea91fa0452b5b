//! `muster doctor` finds what hinders agents, each with a real cause: reduced limits and privileges, a
//! libfabric without a provider, agents that were killed, have another release or other settings, ranks on
//! the agent's cores, and a rail that a firewall cuts.

use muster_tests::admin::Admin;
use muster_tests::hosts::{Fault, Hosts, nids};
use muster_tests::nodes::Nodes;
use muster_tests::process::{signal, wait_for_end};
use muster_tests::rank::{Rank, rank_program};
use muster_tests::{DEADLINE, Member, Members, can, program, until};
use rustix::process::Signal;
use serde_json::Value;
use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

/// The command that runs a program without the right to real-time priority, for any user.
const WITHOUT_REAL_TIME: [&str; 2] = ["prlimit", "--rtprio=0:0"];
const WITHOUT_CAPABILITY: [&str; 3] = [
    "setpriv",
    "--bounding-set=-sys_nice",
    "--inh-caps=-sys_nice",
];

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// The words before a program that remove the right to real-time priority.
fn without_real_time() -> Vec<&'static str> {
    // A user that cannot drop the capability does not have it.
    let capability = if is_root() && can("setpcap", &WITHOUT_CAPABILITY) {
        &WITHOUT_CAPABILITY[..]
    } else {
        &[]
    };
    [&WITHOUT_REAL_TIME[..], capability].concat()
}

/// The doctor's report about this directory's agents, started with `before` in front of the command.
fn examine(directory: &Path, before: &[&str], variables: &[(&str, &str)]) -> Value {
    let muster = program("muster");
    let words = before.iter().map(OsStr::new).chain([muster.as_os_str()]);
    let words: Vec<&OsStr> = words.collect();
    let mut command = Command::new(words[0]);
    command.args(&words[1..]);
    command.args(["doctor", "--listen", "500", "-o", "json"]);
    command
        .env("MUSTER_DIR", directory)
        .env_remove("MUSTER_CONTROL");
    let output = command.envs(variables.iter().copied()).output().unwrap();
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
        panic!(
            "{before:?}: {error}: {}",
            String::from_utf8_lossy(&output.stderr)
        )
    });
    assert_eq!(answer["schema"], "muster/doctor/v1");
    let expected = if answer["verdict"] == "ok" { 0 } else { 4 };
    assert_eq!(output.status.code(), Some(expected), "{answer}");
    for finding in answer["findings"].as_array().unwrap() {
        let is_bad = finding["level"] != "ok";
        assert_eq!(finding["remedy"].is_string(), is_bad, "{finding}");
    }
    answer
}

/// The findings about one subject: level, what was found, the remedy.
fn found(answer: &Value, what: &str) -> Vec<[String; 3]> {
    let findings = answer["findings"].as_array().unwrap().iter();
    let of = findings.filter(|finding| finding["what"] == what);
    let words = |finding: &Value| {
        ["level", "found", "remedy"].map(|key| finding[key].as_str().unwrap_or("").to_owned())
    };
    of.map(words).collect()
}

/// Asserts that there is such a finding with these words.
fn expect(answer: &Value, what: &str, level: &str, words: &[&str]) {
    let found = found(answer, what);
    let is_it = |[is, printed, remedy]: &[String; 3]| {
        is == level
            && words
                .iter()
                .all(|word| printed.contains(word) || remedy.contains(word))
    };
    assert!(
        found.iter().any(is_it),
        "no {level} of {what} with {words:?}: {answer}"
    );
}

/// Runs the doctor until it has a finding about this subject.
fn await_finding(directory: &Path, what: &str) -> Value {
    await_findings(directory, |answer| !found(answer, what).is_empty())
}

/// Runs the doctor until its report satisfies `is_so`.
fn await_findings(directory: &Path, is_so: impl Fn(&Value) -> bool) -> Value {
    let end = Instant::now() + DEADLINE;
    loop {
        let answer = examine(directory, &[], &[]);
        if is_so(&answer) {
            return answer;
        }
        assert!(Instant::now() < end, "{answer}");
    }
}

/// Starts members that know each other.
fn start(directory: &Path, net: u8, count: usize) -> Vec<Member> {
    Members::new(directory, &[format!("127.73.{net}")]).start_up(count)
}

/// Every agent of the node is examined, received beats are reported, and the files of a killed agent are
/// found.
#[test]
fn running_agents_and_a_killed_one_are_reported() {
    let directory = tempfile::tempdir().unwrap();
    let mut members = start(directory.path(), 1, 2);
    // On a busy machine a beat may be later than the doctor's listening time.
    let is_heard = |rails: &[String; 3]| rails[1].contains("2 of 2");
    let answer = await_findings(directory.path(), |answer| {
        found(answer, "rails").iter().any(is_heard)
    });
    expect(&answer, "agents", "ok", &["n[1-2], release"]);
    expect(
        &answer,
        "rails",
        "ok",
        &["heard over 2 of 2 pairs, none is cut"],
    );
    expect(&answer, "leftovers", "ok", &["none"]);
    assert_eq!(found(&answer, "priority").len(), 2, "{answer}");
    assert_eq!(answer["matrix"].as_array().unwrap().len(), 2, "{answer}");

    members.remove(1).kill();
    let answer = examine(directory.path(), &[], &[]);
    expect(
        &answer,
        "leftovers",
        "warning",
        &["1 of agents", "rm -r", "n2.control"],
    );
    expect(&answer, "agents", "ok", &["n1, release"]);
}

/// What agents need from the machine, removed one by one.
#[test]
fn what_the_machine_lacks_is_found() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    let answer = examine(place, &["prlimit", "--nofile=32:32"], &[]);
    expect(
        &answer,
        "open files",
        "error",
        &["32; an agent requires 64", "nofile", "LimitNOFILE"],
    );
    let answer = examine(place, &without_real_time(), &[]);
    let words = ["not permitted", "rtprio limit of 1", "CAP_SYS_NICE"];
    expect(&answer, "real time", "warning", &words);
    let answer = examine(place, &[], &[("FI_PROVIDER", "tcp")]);
    expect(
        &answer,
        "providers",
        "error",
        &["none for udp", "FI_PROVIDER"],
    );
    let nowhere = [("MUSTER_LIBFABRIC", "/nonexistent/libfabric.so.1")];
    let answer = examine(place, &[], &nowhere);
    let words = ["/nonexistent/libfabric.so.1", "MUSTER_LIBFABRIC"];
    expect(&answer, "libfabric", "error", &words);
    let open = place.join("open");
    fs::create_dir(&open).unwrap();
    fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).unwrap();
    let answer = examine(&open, &[], &[]);
    expect(&answer, "directory", "error", &["0700", "MUSTER_DIR"]);
}

/// What only namespaces can show: a foreign /proc, a network without interfaces, and a device whose memory
/// cannot be locked.
#[test]
fn what_a_namespace_lacks_is_found() {
    let all = [
        ["unshare", "--pid"],
        ["unshare", "--net"],
        ["unshare", "--mount"],
    ];
    if !all.iter().all(|words| can("namespaces", words)) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let answer = examine(directory.path(), &["unshare", "--pid", "--fork"], &[]);
    expect(
        &answer,
        "/proc",
        "error",
        &["another pid namespace", "--mount-proc"],
    );
    let answer = examine(directory.path(), &["unshare", "--net"], &[]);
    expect(&answer, "interfaces", "warning", &["loopback", "ip link"]);
    let device = "mount -t tmpfs none /sys/class && mkdir -p /sys/class/infiniband/mlx5_0 && \
                  exec prlimit --memlock=65536:65536 \"$@\"";
    let words = ["unshare", "--mount", "sh", "-c", device, "sh"];
    let answer = examine(directory.path(), &words, &[]);
    expect(
        &answer,
        "memlock",
        "warning",
        &["64 KiB", "memlock to unlimited"],
    );
    expect(
        &answer,
        "providers",
        "warning",
        &["none for the devices mlx5_0", "verbs"],
    );
}

/// A stopped agent gives no answer; the others are still examined.
#[test]
fn an_agent_that_is_stopped_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let members = start(directory.path(), 6, 2);
    members[1].signal(Signal::STOP);
    let answer = examine(directory.path(), &[], &[]);
    expect(&answer, "agents", "error", &["n2", "ps -o stat"]);
    expect(&answer, "agents", "ok", &["n1, release"]);
    members[1].signal(Signal::CONT);
}

/// An agent of another release at a control socket.
#[test]
fn an_agent_of_another_release_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let listener = UnixListener::bind(directory.path().join("n9.control")).unwrap();
    std::thread::spawn(move || {
        // A client that only connects sends nothing.
        for stream in listener.incoming().flatten() {
            let mut line = String::new();
            if BufReader::new(&stream).read_line(&mut line).is_ok() && !line.is_empty() {
                let _ = (&stream).write_all(b"{\"protocol\":2,\"release\":\"9.1.0\"}\n");
            }
        }
    });
    let answer = examine(directory.path(), &[], &[]);
    let words = ["release 9.1.0", "one release on all nodes"];
    expect(&answer, "agents", "error", &words);
}

/// Two members with different settings ignore each other; both report it.
#[test]
fn different_settings_are_named() {
    let directory = tempfile::tempdir().unwrap();
    let start = |index, minority| {
        let members = Members::new(directory.path(), &["127.73.5".to_owned()]);
        members
            .with_arguments(&["--minority", minority])
            .start(index)
    };
    let _members = [start(1, "hold"), start(2, "continue")];
    let answer = await_finding(directory.path(), "versions");
    let words = [
        "do not listen to each other",
        "minority",
        "muster config show --origin",
    ];
    expect(&answer, "versions", "error", &words);
}

/// Members whose rules or limits for rails differ are named, until they are alike.
#[test]
fn different_policies_are_named() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let _members = start(directory, 9, 2);
    let change = |node| {
        let words = ["rails", "set", "--sensitivity", "150"];
        Admin::of(directory, node).await_answer(&words, |answer| answer.contains("done"));
    };
    change("n1");
    let answer = await_finding(directory, "policy");
    assert_eq!(found(&answer, "policy").len(), 1, "{answer}");
    let words = ["rules and limits", "n2 (default)", "muster import"];
    expect(&answer, "policy", "warning", &words);
    change("n2");
    await_findings(directory, |answer| found(answer, "policy").is_empty());
}

/// Two members with different keys never meet. Each reports the other one: in its doctor, below its table of
/// members and in its log, until the other one has the right key.
#[test]
fn agents_with_different_keys_are_named() {
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let folder = folders[0].path();
    let log = folder.join("log");
    let begin = |index: usize, folder: &Path, seeds: &str, log: Stdio| {
        let rail = format!("127.73.7.{index}@udp0");
        let arguments = ["--rail", &rail, "--seed", seeds];
        Member::start_logging(folder, &format!("n{index}"), &arguments, &[], log)
    };
    let both = "127.73.7.1@udp0 127.73.7.2@udp0";
    let first = begin(1, folder, both, fs::File::create(&log).unwrap().into());
    let second = begin(2, folders[1].path(), both, Stdio::inherit());
    let names = ["n2 (127.73.7.2", "n1 (127.73.7.1"];
    for (at, name) in names.into_iter().enumerate() {
        let own = format!("rejected at n{}: they prove another job key", at + 1);
        // The finding that the member is alone may come first.
        let is_named = |answer: &Value| found(answer, "keys").iter().any(|one| one[0] == "error");
        let answer = await_findings(folders[at].path(), is_named);
        expect(
            &answer,
            "keys",
            "error",
            &[name, &own, "--key-file", "MUSTER_DIR"],
        );
    }
    let members = |output: &str| {
        let mut command = Command::new(program("muster"));
        command.args(["members", "-o", output, "--agent"]);
        command.arg(folder.join("n1.control"));
        String::from_utf8(command.output().unwrap().stdout).unwrap()
    };
    let table = members("table");
    assert!(
        table.contains(names[0]) && table.contains("remedy: give both one key"),
        "{table}"
    );
    let value: Value = serde_json::from_str(&members("json")).unwrap();
    let unreachable = &value["unreachable"];
    assert_eq!(unreachable["another_key"][0]["name"], "n2", "{value}");
    assert!(
        unreachable["frames_of_another_key"].as_u64() > Some(0),
        "{value}"
    );
    let logged = fs::read_to_string(&log).unwrap();
    let mut lines = logged
        .lines()
        .filter(|line| line.contains("another job key"));
    assert_eq!(lines.clone().count(), 1, "{logged}");
    assert!(lines.next_back().unwrap().contains(names[0]), "{logged}");

    // A sender that the member does not expect, and that receives nothing from it.
    let third = begin(3, folders[1].path(), "127.73.7.1@udp0", Stdio::inherit());
    let is_both = |answer: &Value| {
        found(answer, "keys")
            .iter()
            .any(|one| one[1].contains("n3 ("))
    };
    let answer = await_findings(folder, is_both);
    expect(
        &answer,
        "keys",
        "warning",
        &["n3 (127.73.7.3", "their sender is not expected here"],
    );
    third.kill();
    second.kill();

    let second = begin(2, folder, both, Stdio::inherit());
    first.wait_for(&["UP n2".to_owned()]);
    second.wait_for(&["UP n1".to_owned()]);
    let value: Value = serde_json::from_str(&members("json")).unwrap();
    let left = value["unreachable"]["another_key"].as_array().unwrap();
    assert!(left.iter().all(|one| one["name"] == "n3"), "{value}");
}

/// A member whose seeds do not answer reports it; members that are lost later appear in the table.
#[test]
fn an_agent_without_an_answer_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let start = |index: usize| {
        let rail = format!("127.73.8.{index}@udp0");
        let seeds = "127.73.8.1@udp0 127.73.8.2@udp0";
        let arguments = ["--rail", &rail, "--seed", seeds];
        Member::start(directory.path(), &format!("n{index}"), &arguments)
    };
    let first = start(1);
    let answer = await_finding(directory.path(), "keys");
    let words = [
        "n1 is alone: no answer from 127.73.8.2",
        "an agent runs there",
        "firewall",
    ];
    expect(&answer, "keys", "warning", &words);
    let second = start(2);
    first.wait_for(&["UP n2".to_owned()]);
    second.kill();
    first.wait_for(&["DOWN n2".to_owned()]);
    let answer = examine(directory.path(), &[], &[]);
    assert_eq!(found(&answer, "keys").len(), 0, "{answer}");
}

/// A rank may run on every core of its agent, and the agent has real-time priority on none. Then both are
/// killed at once, and the remaining lock has no holder.
#[test]
fn an_agent_on_its_ranks_cores_and_the_lock_that_it_leaves() {
    let job = Nodes::new(1);
    let words = without_real_time();
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).arg(rank_program());
    job.place(&mut command, 1, 0);
    let rank = Rank::start(&mut command, "rank 0").attached();
    let answer = examine(job.directory(), &[], &[]);
    let words = ["runs without real-time priority", "rtprio limit"];
    expect(&answer, "priority", "warning", &words);
    let words = ["shares all of its cores", "core-spec"];
    expect(&answer, "cores", "warning", &words);
    expect(&answer, "leftovers", "ok", &["none"]);

    // A stopped agent neither ends in order nor is started again.
    let (supervisor, worker) = job.agent(1).pair();
    let both = [supervisor, worker];
    for pid in both {
        signal(pid, Signal::STOP);
    }
    rank.kill();
    for pid in both {
        signal(pid, Signal::KILL);
        wait_for_end(pid);
    }
    let answer = examine(job.directory(), &[], &[]);
    let place = job.agent_directory(1).directory().display().to_string();
    expect(
        &answer,
        "leftovers",
        "warning",
        &["1 of agents", &place, "rm -r"],
    );
}

/// A rail that a firewall cuts: the doctor names the rail, and what to open.
#[test]
fn a_firewall_between_rails_is_found() {
    let Some(hosts) = Hosts::open(2, 2) else {
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let nets = ["udp0", "udp1"];
    let mut agents: Vec<_> = (1..=2)
        .map(|index| {
            let rails = nids(index, &nets, 7741);
            let mut command = hosts.command(index, &program("musterd"));
            command.args(["--name", &format!("n{index}"), "--print-events", "plain"]);
            command.args(["--rail", &rails, "--seed", &nids(1, &nets, 7741)]);
            command
                .env("MUSTER_DIR", directory.path())
                .stdout(Stdio::null());
            command.spawn().unwrap()
        })
        .collect();
    let admin = Admin::of(directory.path(), "n1");
    admin.await_answer(&["wait", "n[1-2]"], |answer| answer == "n[1-2] alive\n");
    let rails = |level: &str| {
        let (code, answer, _) = admin.run(&["doctor", "--listen", "1000", "-o", "json"]);
        let answer: Value = serde_json::from_str(&answer).unwrap();
        assert_eq!(
            code,
            Some(if answer["verdict"] == "ok" { 0 } else { 4 }),
            "{answer}"
        );
        let findings = answer["findings"].as_array().unwrap().clone();
        let is_wanted = |one: &Value| one["what"] == "rails" && one["level"] == level;
        findings.into_iter().find(is_wanted)
    };
    until(|| "beats over all pairs".into(), || rails("ok"));
    hosts.break_rail(2, 1, Fault::Black);
    // On a busy machine no beat at all may arrive while the doctor listens.
    let hears = |cut: &Value| {
        let found = cut["found"].as_str().unwrap();
        found.starts_with("n1 hears n2 over other rails")
    };
    let cut = until(|| "the cut".into(), || rails("error").filter(hears));
    let found = cut["found"].as_str().unwrap();
    assert!(found.contains("10.77.1.2"), "{cut}");
    assert!(cut["remedy"].as_str().unwrap().contains("7741"), "{cut}");
    for agent in &mut agents {
        agent.kill().unwrap();
        agent.wait().unwrap();
    }
}
