//! Real members with age gossip: all members report starts, deaths, stops and returns. A member with
//! different parameters stops, and so does the member that detects it.

use muster_tests::admin::Admin;
use muster_tests::compile::compile;
use muster_tests::job::{Job, job};
use muster_tests::launchers::{open_mpi_5_on_two_nodes, venv};
use muster_tests::nodes::Nodes;
use muster_tests::process::{Process, signal, wait_for_end};
use muster_tests::rank::Rank;
use muster_tests::{DEADLINE, Member, program};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::process::Signal;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

const COUNT: usize = 64;

fn nid(net: u8, index: usize) -> String {
    format!("127.{net}.0.{index}@udp0")
}

fn start(directory: &Path, net: u8, index: usize, count: usize, more: &[&str]) -> Member {
    let all = format!("127.{net}.0.[1-{count}]@udp0");
    start_told(directory, net, index, &all, more)
}

/// Reads lines until a member prints this one. Returns the lines before it.
fn read_until(member: &Member, line: &str) -> Vec<String> {
    let mut before = Vec::new();
    loop {
        let printed = member.next_line();
        // After the name of a parameter its two values follow.
        if printed == line || printed.starts_with(&format!("{line} ")) {
            return before;
        }
        before.push(printed);
    }
}

/// Asserts that the lines before a death are suspicions of the dead member, and of no other.
fn assert_about(printed: &[String], nid: &str) {
    let is_right = |line: &String| line.ends_with(nid) && !line.starts_with("DOWN");
    assert!(printed.iter().all(is_right), "{nid}: {printed:?}");
}

/// AG-01, AG-05, AG-10, BG-04: 64 members. One is killed and comes back with a new incarnation, one is
/// stopped and continues. One more has another list of participants: it and the member that it pings name the
/// difference, and stop.
#[test]
fn members_start_die_stop_and_return() {
    let directory = tempfile::tempdir().unwrap();
    let mut members: Vec<_> = (1..=COUNT)
        .map(|index| start(directory.path(), 91, index, COUNT, &[]))
        .collect();
    for (index, member) in (1..).zip(&members) {
        let others = (1..=COUNT).filter(|other| *other != index);
        let ups: Vec<_> = others
            .map(|other| format!("UP {}", nid(91, other)))
            .collect();
        assert_eq!(member.wait_for(&ups), Vec::<String>::new());
    }
    let (killed, stopped) = (nid(91, 9), nid(91, 20));
    members.remove(8).kill();
    for member in &members {
        assert_about(&read_until(member, &format!("DOWN {killed}")), &killed);
    }
    let sleeper = members.remove(18);
    sleeper.signal(Signal::STOP);
    for member in &members {
        assert_about(&read_until(member, &format!("DOWN {stopped}")), &stopped);
    }
    sleeper.signal(Signal::CONT);
    for member in &members {
        assert_about(&read_until(member, &format!("UP {stopped}")), &stopped);
    }
    let again = start(directory.path(), 91, 9, COUNT, &[]);
    for member in members.iter().chain([&sleeper]) {
        let before = read_until(member, &format!("UP {killed}"));
        // A member that was not stopped during a death suspects no member.
        assert!(before.is_empty(), "{}: {before:?}", member.name);
    }
    let shown = Command::new(program("muster"))
        .args(["members", "--agent"])
        .arg(directory.path().join("g1.control"))
        .output()
        .unwrap();
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(shown.contains("127.91.0."), "{shown}");
    let outsider = start(directory.path(), 91, 65, COUNT + 1, &[]);
    let printed = outsider.next_line();
    let met = printed.strip_prefix("REFUSED ");
    let met = met.and_then(|rest| rest.split_once(" participants "));
    let met = met.map(|(name, _)| name);
    let met = met.unwrap_or_else(|| panic!("no member answered it: {printed}"));
    let mut all = members.iter().chain([&sleeper, &again]);
    let is_met = |index: usize| nid(91, index) == met;
    let met = all.find(|one| one.name[1..].parse().is_ok_and(is_met));
    let met = met.expect("one of the members");
    read_until(met, &format!("REFUSED {} participants", nid(91, 65)));
    for stopped in [met, &outsider] {
        let (_, printed) = ask(directory.path(), &stopped.name, &["status"]);
        assert!(printed.contains("gossip is stopped"), "{printed}");
        assert!(printed.contains("has participants "), "{printed}");
    }
}

/// AG-05: another interval, or another list: both sides name the difference.
#[test]
fn both_members_stop_when_parameters_differ() {
    let directory = tempfile::tempdir().unwrap();
    let one = start(directory.path(), 92, 1, 2, &[]);
    let other = start(directory.path(), 92, 2, 2, &["--interval-ms", "300"]);
    read_until(
        &one,
        &format!("REFUSED {} interval_us 200000 300000", nid(92, 2)),
    );
    read_until(
        &other,
        &format!("REFUSED {} interval_us 300000 200000", nid(92, 1)),
    );
    let one = start(directory.path(), 93, 1, 2, &[]);
    let other = start(directory.path(), 93, 2, 3, &[]);
    read_until(&one, &format!("REFUSED {} participants", nid(93, 2)));
    read_until(&other, &format!("REFUSED {} participants", nid(93, 1)));
}

/// AG-05: initialised with another interval, and started only after more cycles than those in which
/// parameters are sent. Both sides still detect it.
#[test]
fn a_late_start_with_other_parameters_is_detected() {
    let directory = tempfile::tempdir().unwrap();
    let members = [1, 2].map(|index| start(directory.path(), 89, index, 2, &[]));
    for (member, other) in members.iter().zip([2, 1]) {
        read_until(member, &format!("UP {}", nid(89, other)));
    }
    let ask = |arguments: &[&str]| {
        let (done, printed) = ask(directory.path(), "g2", arguments);
        assert!(done, "{printed}");
        printed
    };
    // On both members, many more cycles pass than there are participants.
    let wait = |member: &str| {
        let admin = Admin::of(directory.path(), member);
        let mut clocks = BTreeSet::new();
        let what = || format!("the clock of {member}");
        muster_tests::until(what, || {
            clocks.insert(admin.json(&["gossip", "status"])["clock"].as_u64());
            (clocks.len() >= 8).then_some(())
        });
    };
    wait("g1");
    ask(&["init", "127.89.0.[1-2]@udp0", "--interval-ms", "300"]);
    read_until(&members[1], &format!("LEFT {}", nid(89, 1)));
    wait("g2");
    ask(&["start"]);
    for (member, (other, values)) in members
        .iter()
        .zip([(2, "200000 300000"), (1, "300000 200000")])
    {
        read_until(
            member,
            &format!("REFUSED {} interval_us {values}", nid(89, other)),
        );
    }
}

/// AG-11: a stopped member is silent and declared failed; a started one is back; a newly initialised one has
/// forgotten all others and waits.
#[test]
fn an_operator_stops_starts_and_initialises() {
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("g1.log");
    let mut members: Vec<_> = (2..=3)
        .map(|index| start(directory.path(), 95, index, 3, &[]))
        .collect();
    members.insert(0, start_logging(directory.path(), 95, 1, 3, &log));
    for (index, member) in (1..).zip(&members) {
        let others = (1..=3).filter(|other| *other != index);
        let ups: Vec<_> = others
            .map(|other| format!("UP {}", nid(95, other)))
            .collect();
        assert_eq!(member.wait_for(&ups), Vec::<String>::new());
    }
    let ask = |arguments: &[&str]| ask(directory.path(), "g2", arguments);
    let (done, printed) = ask(&["status"]);
    assert!(
        done && printed.contains("gossip is running") && printed.contains("127.95.0.3@udp0"),
        "{printed}"
    );
    let (done, printed) = ask(&["stop"]);
    assert!(done && printed.contains("stopped"), "{printed}");
    let (first, second) = (&members[0], nid(95, 2));
    assert_about(&read_until(first, &format!("DOWN {second}")), &second);
    let (done, printed) = ask(&["start"]);
    assert!(done, "{printed}");
    assert_about(&read_until(first, &format!("UP {second}")), &second);
    let (done, printed) = ask(&["init", "127.95.0.[1-3]@tcp0"]);
    assert!(!done && printed.contains("its rails are"), "{printed}");
    let (done, printed) = ask(&[
        "init",
        "127.95.0.[2-3]@udp0",
        "127.95.0.1@udp0",
        "--interval-ms",
        "200",
    ]);
    assert!(done && printed.contains("3 participants"), "{printed}");
    read_until(&members[1], &format!("LEFT {}", nid(95, 1)));
    let (_, printed) = ask(&["status"]);
    assert!(printed.contains("gossip is stopped"), "{printed}");
    // Cycles continue and ages grow, so the test checks that no age is held.
    for other in [nid(95, 1), nid(95, 3)] {
        assert!(
            printed.contains(&format!("{other}  -    unknown")),
            "{printed}"
        );
    }
    let (done, printed) = ask(&["start"]);
    assert!(done, "{printed}");
    read_until(&members[1], &format!("UP {}", nid(95, 1)));
    // AG-17: the log is complete when the member has ended.
    assert!(members.remove(0).leave());
    assert_log(&std::fs::read_to_string(&log).unwrap(), &second);
}

/// AG-17: each change of a member's health is logged with the clock: as a warning if it is a change for the
/// worse, otherwise with the clock of the message that caused it.
fn assert_log(log: &str, nid: &str) {
    let about = |event: &str| {
        let words = [format!("peer=\"{nid}\""), format!("event={event}")];
        let mut lines = log.lines().filter(|line| line.contains(" gossip clock="));
        let line = lines.find(|line| words.iter().all(|word| line.contains(word)));
        line.unwrap_or_else(|| panic!("{event}: {log}"))
    };
    for worse in ["NodeSuspect", "NodeFailed"] {
        let line = about(worse);
        assert!(
            line.contains("WARN") && !line.contains("message_clock="),
            "{line}"
        );
    }
    let line = about("NodeUp");
    assert!(
        line.contains("INFO") && line.contains("message_clock="),
        "{line}"
    );
}

/// Starts a member that logs all events.
fn start_logging(directory: &Path, net: u8, index: usize, count: usize, log: &Path) -> Member {
    let rail = nid(net, index);
    let all = format!("127.{net}.0.[1-{count}]@udp0");
    let arguments = ["--rail", &rail, "--protocol", "age", "--participants", &all];
    let log = std::fs::File::create(log).unwrap().into();
    let level = [("MUSTER_LOG", OsStr::new("info"))];
    Member::start_logging(directory, &format!("g{index}"), &arguments, &level, log)
}

/// Starts a member that gets its participants from others.
fn start_told(directory: &Path, net: u8, index: usize, told_by: &str, more: &[&str]) -> Member {
    let rail = nid(net, index);
    let mut arguments = vec!["--rail", &rail, "--protocol", "age"];
    arguments.extend(["--participants", told_by]);
    arguments.extend(more);
    Member::start(directory, &format!("g{index}"), &arguments)
}

/// Waits until each member reports that all others are up, by these names.
fn await_all_up(members: &[Member], called: impl Fn(usize) -> String) {
    for (index, member) in (1..).zip(members) {
        let others = (1..=members.len()).filter(|other| *other != index);
        let ups: Vec<_> = others
            .map(|other| format!("UP {}", called(other)))
            .collect();
        assert_eq!(member.wait_for(&ups), Vec::<String>::new());
    }
}

/// Runs `muster gossip` for this member. Returns whether it succeeded, and its output.
fn ask(directory: &Path, member: &str, arguments: &[&str]) -> (bool, String) {
    let mut command = Command::new(program("muster"));
    command.arg("gossip").args(arguments).arg("--agent");
    let output = command
        .arg(directory.join(format!("{member}.control")))
        .output()
        .unwrap();
    let printed = [output.stdout, output.stderr].concat();
    let printed = String::from_utf8_lossy(&printed).into_owned();
    (output.status.success(), printed)
}

/// Starts a gossip server. Returns it and how members are told of it.
fn serve(directory: &Path, participants: usize) -> (Process, String) {
    let mut command = Command::new(program("muster"));
    command
        .args(["gossip", "serve", "--listen", "127.0.0.1:0"])
        .args(["--participants", &participants.to_string()])
        .env("MUSTER_DIR", directory)
        .stdout(Stdio::piped());
    let server = Process::start(&mut command);
    let printed = await_line(&server, "gossip server at ");
    let at = printed.split([' ', ',']).nth(3).unwrap().to_owned();
    (server, format!("server:{at}"))
}

/// Returns the next line that contains these words.
fn await_line(process: &Process, words: &str) -> String {
    let end = Instant::now() + DEADLINE;
    let lines = std::iter::from_fn(|| process.line_until(end).ok());
    let mut lines = lines.filter(|line| line.contains(words));
    lines
        .next()
        .unwrap_or_else(|| panic!("the server printed no {words:?}"))
}

/// BG-04: members that know only the server find each other there when all have joined, and are identified by
/// their names. A killed member that comes back receives the list again, and so does a newly initialised one.
/// Without the server all go on.
#[test]
fn a_gossip_server_introduces_all_members() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let (server, told_by) = serve(path, 4);
    let start_one = |index| start_told(path, 97, index, &told_by, &[]);
    let mut members: Vec<_> = [1, 2, 3].map(start_one).into();
    // A joined member serves its control socket, too.
    await_line(&server, "3 of 4 have joined");
    let waits = |member: &str| {
        let (_, printed) = ask(path, member, &["status"]);
        printed.contains("gossip is waiting for its participants")
    };
    assert!(waits("g1"));
    let (done, printed) = ask(path, "g1", &["start"]);
    assert!(done && waits("g1"), "{printed}");
    members.push(start_one(4));
    await_all_up(&members, |other| format!("g{other}"));
    members.remove(1).kill();
    assert_about(&read_until(&members[0], "DOWN g2"), "g2");
    let again = start_one(2);
    assert_about(&read_until(&members[0], "UP g2"), "g2");
    read_until(&again, "UP g1");
    // A member that requests the list again gets the same one.
    let (done, printed) = ask(path, "g4", &["init", &told_by]);
    assert!(done && printed.contains("begins when all"), "{printed}");
    read_until(&members[2], "LEFT g1");
    read_until(&members[2], "UP g1");
    drop(server);
    let (_, printed) = ask(path, "g1", &["status"]);
    assert!(printed.contains("gossip is running"), "{printed}");
}

/// BG-04: an agent whose worker was killed continues with the participants from a server, although that
/// server is gone.
#[test]
fn a_worker_that_takes_over_needs_no_server() {
    let job = Nodes::new(2).with_one_rail();
    let (server, told_by) = serve(job.directory(), 2);
    let job = job
        .with_variable("MUSTER_PROTOCOL", "age")
        .with_variable("MUSTER_PARTICIPANTS", &told_by);
    let mut ranks = [job.begin(1, 0), job.begin(2, 1)].map(Rank::attached);
    for (number, rank) in ranks.iter_mut().enumerate() {
        rank.await_view(|view| view.contains("n1=Alive n2=Alive"));
        // The state of another node's rank is not spread.
        rank.await_view(|view| view.contains(&format!(" {number}=Alive")));
    }
    drop(server);
    job.kill_worker(2);
    ranks[1].await_words(&["ATTACHED"]);
    ranks[1].await_counter("pings_sent", 3);
    // A few cycles later each one has a new sign of life from the other, whatever was suspected meanwhile.
    for rank in &mut ranks {
        rank.await_view(|view| view.contains("n1=Alive n2=Alive"));
    }
}

/// BG-04: the expected number of nodes, known by seeds, takes part: each has the others' addresses.
#[test]
fn seeds_introduce_all_members() {
    let directory = tempfile::tempdir().unwrap();
    let members: Vec<_> = (1..=3)
        .map(|index| {
            let others: Vec<_> = (1..=3).filter(|other| *other != index).collect();
            let [one, other] = [0, 1].map(|at| nid(98, others[at]));
            let seeds = ["--seed", &one, "--seed", &other];
            start_told(directory.path(), 98, index, "seeds:3", &seeds)
        })
        .collect();
    await_all_up(&members, |other| nid(98, other));
}

/// BG-03, BG-04: the nodes of an MPI job know their number and find each other through PMIx. The launcher's
/// map states where ranks run. Messages of the ranks carry pings, which are then not sent separately. How
/// many depends on how soon ranks get a core; the protocol's `riding_tests` test the proportion.
#[test]
fn nodes_of_a_job_meet_through_pmix_and_messages_carry_pings() {
    job(|folder| {
        let compiler = venv("venv").join("mpicc");
        let program = compile(&compiler, "meets", &[], folder);
        let mut launcher = open_mpi_5_on_two_nodes(folder);
        launcher.args(["-n", "4", "-x", "MUSTER_PROTOCOL=age"]);
        launcher.args(["-x", "MUSTER_PARTICIPANTS=seeds:2"]);
        launcher.arg(&program).arg("2");
        expect_carried(Job::run(&mut launcher, folder));
    });
}

/// The same for an MPI without PMIx: an allgather distributes addresses and where ranks run (BG-03, BG-04).
#[test]
fn nodes_of_a_job_meet_through_mpi_and_messages_carry_pings() {
    job(|folder| {
        let folders = venv("mpich");
        let program = compile(&folders.join("mpicc"), "meets", &[], folder);
        let mut launcher = Command::new(folders.join("mpiexec"));
        launcher
            .args(["-n", "4"])
            .arg(&program)
            .args(["2", "records"]);
        launcher.env("MUSTER_PROTOCOL", "age");
        launcher.env("MUSTER_PARTICIPANTS", "seeds:2");
        let pid = std::process::id();
        let net = format!("{}.{}", 191 + pid / 250 % 60, 1 + pid % 250);
        launcher.env("MEETS_NET", net);
        expect_carried(Job::run(&mut launcher, folder));
    });
}

/// All four ranks were ready, and on each node messages carried pings that were not sent separately.
fn expect_carried(mut outcome: Job) {
    let text = outcome.text();
    let counts = ["READY", "CARRIED", "FAIL"].map(|word| outcome.count(word));
    assert_eq!(counts, [4, 4, 0], "{text}");
    println!("{text}");
    let is_told = |line: &&String| line.starts_with("CARRIED");
    for line in outcome.lines.iter().filter(is_told) {
        let number = |name: &str| -> u64 {
            let mut words = line.split([' ', '=']);
            words.find(|word| *word == name);
            let number = words.next().and_then(|number| number.parse().ok());
            number.unwrap_or_else(|| panic!("{name}: {text}"))
        };
        // Exactly those pings are left out that a message carried.
        let left_out = number("gossips_piggybacked");
        let (taken, offered) = (number("piggyback_taken"), number("gossips_offered"));
        let is_sound = 5 <= left_out && left_out <= taken && taken <= offered;
        assert!(is_sound, "{line}");
    }
    assert!(outcome.expect_end().success(), "{text}");
}

/// Waits until a file of the watched directory has been replaced, with a limit.
fn await_new_file(replaced: &OwnedFd) {
    let second = Timespec {
        tv_sec: 1,
        tv_nsec: 0,
    };
    let mut polled = [PollFd::new(replaced, PollFlags::IN)];
    if poll(&mut polled, Some(&second)).unwrap() > 0 {
        rustix::io::read(replaced, &mut [0; 4096]).unwrap();
    }
}

/// AG-17, BG-02: members of two groups, with most gossip inside the group, find all others. Each writes its
/// state to files, which are complete at any time and are still written after gossip is stopped.
#[test]
fn groups_and_state_files() {
    let directory = tempfile::tempdir().unwrap();
    let state = directory.path().join("state");
    let files = state.join("g2");
    std::fs::create_dir_all(&files).unwrap();
    let replaced = inotify::init(CreateFlags::CLOEXEC).unwrap();
    inotify::add_watch(&replaced, &files, WatchFlags::MOVED_TO).unwrap();
    let groups = "one=127.96.0.[1-3]@udp0 two=127.96.0.[4-6]@udp0";
    let members: Vec<_> = (1..=6)
        .map(|index| {
            let rail = nid(96, index);
            let mut arguments = vec![
                "--rail",
                &rail,
                "--protocol",
                "age",
                "--participants",
                groups,
            ];
            arguments.extend(["--local", "0.8", "--gossip-state", state.to_str().unwrap()]);
            Member::start(directory.path(), &format!("g{index}"), &arguments)
        })
        .collect();
    for (index, member) in (1..).zip(&members) {
        let others = (1..=6).filter(|other| *other != index);
        let ups: Vec<_> = others
            .map(|other| format!("UP {}", nid(96, other)))
            .collect();
        member.wait_for(&ups);
    }
    let wait_for = |name: &str, is_right: &dyn Fn(&str) -> bool| {
        let end = Instant::now() + DEADLINE;
        loop {
            let text = std::fs::read_to_string(files.join(name)).unwrap_or_default();
            if is_right(&text) {
                return text;
            }
            assert!(Instant::now() < end, "{name}: {text}");
            await_new_file(&replaced);
        }
    };
    let members_file = wait_for("members", &|text| text.matches(" alive\n").count() == 6);
    assert!(members_file.starts_with("# clock "), "{members_file}");
    let parameters = wait_for("parameters", &|text| text.contains("state running\n"));
    for line in [
        "own 127.96.0.2@udp0\n",
        "group one\n",
        "local 0.8\n",
        "participants 6\n",
    ] {
        assert!(parameters.contains(line), "{line}: {parameters}");
    }
    let clock = wait_for("clock", &|text| text.contains("\ncycle "));
    assert!(clock.starts_with("# clock "), "{clock}");
    let ages = wait_for("ages", &|text| text.lines().count() == 7);
    assert!(ages.contains("127.96.0.2@udp0 0\n"), "{ages}");
    let history = wait_for("history", &|text| text.lines().count() > 3);
    let last = history.lines().last().unwrap();
    assert_eq!(last.split(' ').count(), 8, "{history}");
    let output = Command::new(program("muster"))
        .args(["gossip", "stop", "--agent"])
        .arg(directory.path().join("g2.control"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    wait_for("parameters", &|text| text.contains("state stopped\n"));
}

/// AG-02, AG-03, AG-04, AG-11: wrong settings are refused at the start, with the remedy.
#[test]
fn a_wrong_start_is_refused_with_a_remedy() {
    let cases: [(&[&str], &str); 11] = [
        (&["--participants", "server:head"], "server:HOST:PORT"),
        (&["--participants", "seeds:1"], "number of nodes"),
        (&["--local", "0.9"], "GROUP=NIDS"),
        (&["--interval-ms", "100"], "allow_fast_interval"),
        (&["--round-trip-ms", "500"], "half the estimated round trip"),
        (&["--participants", "127.94.0.9@tcp0"], "127.94.0.9@tcp0"),
        (
            &["--participants", "file:/nonexistent"],
            "file:/nonexistent",
        ),
        (
            &["--participants", "10.[0-999].[0-999].[0-999]@udp0"],
            "stands for 1000000000 names",
        ),
        (&["--participants", "127.94.0.2@udp0"], "listed twice"),
        (
            &["--participants", "127.94.0.[5-4]@udp0"],
            "MUSTER_PARTICIPANTS",
        ),
        (
            &["--rail", "127.94.0.77@udp0", "--rail", "127.94.0.2:0@udp1"],
            "its rails are",
        ),
    ];
    for (arguments, words) in cases {
        let mut command = Command::new(program("musterd"));
        command.args([
            "--print-events",
            "plain",
            "--name",
            "g",
            "--protocol",
            "age",
        ]);
        command.args(["--participants", "127.94.0.[1-3]@udp0"]);
        if !arguments.contains(&"--rail") {
            command.args(["--rail", "127.94.0.1@udp0"]);
        }
        let directory = tempfile::tempdir().unwrap();
        command.args(arguments).env("MUSTER_DIR", directory.path());
        let output = command.output().unwrap();
        let printed = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            !output.status.success() && printed.contains(words),
            "{arguments:?}: {printed}"
        );
    }
}

/// With age gossip, too, the ranks of a node learn which ranks ended while it had no worker. The next worker
/// inherits only the state table.
#[test]
fn age_gossip_tells_of_ranks_that_end_while_no_worker_runs() {
    // The second node has no member.
    let job = Nodes::new(2).with_one_rail();
    let rails = [job.rails(1), job.rails(2)].join(",");
    let job = job
        .with_variable("MUSTER_PROTOCOL", "age")
        .with_variable("MUSTER_PARTICIPANTS", &rails);
    let start = |rank| {
        Rank::start(
            job.rank(1, rank).env_remove("MUSTER_SEEDS"),
            &format!("rank {rank}"),
        )
    };
    let mut ranks: Vec<Rank> = (0..3).map(|rank| start(rank).attached()).collect();
    ranks[0].await_view(|view| view.ends_with(" 0=Alive 1=Alive 2=Alive"));
    let (supervisor, worker) = job.agent(1).pair();
    signal(supervisor, Signal::STOP);
    signal(worker, Signal::KILL);
    wait_for_end(worker);
    let mut leaving = ranks.pop().expect("rank 2");
    leaving.send("leave 3");
    assert_eq!(leaving.await_end(), Some(3));
    ranks.pop().expect("rank 1").kill();
    signal(supervisor, Signal::CONT);
    ranks[0].await_each(&[
        &["EVENT", "RankFailed", "rank=1"],
        &["EVENT", "RankLeft", "rank=2", "code=3"],
    ]);
    ranks[0].await_view(|view| view.ends_with(" 0=Alive 1=Failed 2=Left"));
}
