//! Real members with age gossip: everybody comes up, dies, sleeps and returns everywhere; who is set
//! otherwise stops, and so does who finds out.

use muster_tests::admin::Admin;
use muster_tests::launch::{Outcome, compile, job, open_mpi_5_on_two_nodes, run, venv};
use muster_tests::ranks::{Job, Rank, signal, wait_for_end};
use muster_tests::{DEADLINE, Member, program};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::process::Signal;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Lines};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Instant;

const COUNT: usize = 64;

fn nid(net: u8, index: usize) -> String {
    format!("127.{net}.0.{index}@udp0")
}

fn start(directory: &Path, net: u8, index: usize, count: usize, more: &[&str]) -> Member {
    let rail = nid(net, index);
    let all = format!("127.{net}.0.[1-{count}]@udp0");
    let mut arguments = vec!["--rail", &rail, "--protocol", "age", "--participants", &all];
    arguments.extend(more);
    Member::start(directory, &format!("g{index}"), &arguments)
}

/// Reads on until a member says this, and returns what it said before.
fn until(member: &Member, line: &str) -> Vec<String> {
    let mut before = Vec::new();
    loop {
        let said = member.next_line();
        if said == line {
            return before;
        }
        before.push(said);
    }
}

/// What is said of a death before it: suspicion of the dead one, and of nobody else.
fn assert_about(said: &[String], nid: &str) {
    let is_right = |line: &String| line.ends_with(nid) && !line.starts_with("DOWN");
    assert!(said.iter().all(is_right), "{nid}: {said:?}");
}

/// AG-01, AG-05, AG-10, BG-04: 64 members; one is killed and comes back in a new life, one is stopped and goes on; one
/// more, which has another list, and the member that it pings name what differs, and stop.
#[test]
fn members_come_up_die_sleep_and_return() {
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
        assert_about(&until(member, &format!("DOWN {killed}")), &killed);
    }
    let sleeper = members.remove(18);
    sleeper.signal(Signal::STOP);
    for member in &members {
        assert_about(&until(member, &format!("DOWN {stopped}")), &stopped);
    }
    sleeper.signal(Signal::CONT);
    for member in &members {
        assert_about(&until(member, &format!("UP {stopped}")), &stopped);
    }
    let again = start(directory.path(), 91, 9, COUNT, &[]);
    for member in members.iter().chain([&sleeper]) {
        let before = until(member, &format!("UP {killed}"));
        // Who slept through nobody's death accuses nobody.
        assert!(before.is_empty(), "{}: {before:?}", member.name);
    }
    let shown = Command::new(program("muster"))
        .args(["members", "--agent"])
        .arg(directory.path().join("g1.control"))
        .output()
        .unwrap();
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(shown.contains("127.91.0."), "{shown}");
    let stranger = start(directory.path(), 91, 65, COUNT + 1, &[]);
    let said = stranger.next_line();
    let met = said.strip_prefix("REFUSED ");
    let met = met.and_then(|rest| rest.strip_suffix(" participants"));
    let met = met.unwrap_or_else(|| panic!("it hears of nobody: {said}"));
    let mut all = members.iter().chain([&sleeper, &again]);
    let is_met = |index: usize| nid(91, index) == met;
    let met = all.find(|one| one.name[1..].parse().is_ok_and(is_met));
    let met = met.expect("one of the members");
    until(met, &format!("REFUSED {} participants", nid(91, 65)));
    for stopped in [met, &stranger] {
        let (_, said) = ask(directory.path(), &stopped.name, &["status"]);
        assert!(said.contains("gossip is stopped"), "{said}");
        assert!(said.contains("has another participants"), "{said}");
    }
}

/// AG-05: another interval, or another list: both sides name what differs.
#[test]
fn who_is_set_otherwise_stops_and_so_does_who_finds_out() {
    let directory = tempfile::tempdir().unwrap();
    let one = start(directory.path(), 92, 1, 2, &[]);
    let other = start(directory.path(), 92, 2, 2, &["--interval-ms", "300"]);
    until(&one, &format!("REFUSED {} interval_us", nid(92, 2)));
    until(&other, &format!("REFUSED {} interval_us", nid(92, 1)));
    let one = start(directory.path(), 93, 1, 2, &[]);
    let other = start(directory.path(), 93, 2, 3, &[]);
    until(&one, &format!("REFUSED {} participants", nid(93, 2)));
    until(&other, &format!("REFUSED {} participants", nid(93, 1)));
}

/// AG-05: initialised with another interval, and started only after more cycles than parameters travel in: both sides
/// find out all the same.
#[test]
fn who_is_set_otherwise_and_waits_before_it_starts_is_found_out() {
    let directory = tempfile::tempdir().unwrap();
    let members = [1, 2].map(|index| start(directory.path(), 89, index, 2, &[]));
    for (member, other) in members.iter().zip([2, 1]) {
        until(member, &format!("UP {}", nid(89, other)));
    }
    let ask = |arguments: &[&str]| {
        let (done, said) = ask(directory.path(), "g2", arguments);
        assert!(done, "{said}");
        said
    };
    // At both, many more cycles pass than there are participants.
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
    until(&members[1], &format!("LEFT {}", nid(89, 1)));
    wait("g2");
    ask(&["start"]);
    for (member, other) in members.iter().zip([2, 1]) {
        until(member, &format!("REFUSED {} interval_us", nid(89, other)));
    }
}

/// AG-11: stopped, it is silent and held failed; started, it is back; initialised anew, it has forgotten
/// everybody and waits.
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
    let (done, said) = ask(&["status"]);
    assert!(
        done && said.contains("gossip is running") && said.contains("127.95.0.3@udp0"),
        "{said}"
    );
    let (done, said) = ask(&["stop"]);
    assert!(done && said.contains("stopped"), "{said}");
    let (first, second) = (&members[0], nid(95, 2));
    assert_about(&until(first, &format!("DOWN {second}")), &second);
    let (done, said) = ask(&["start"]);
    assert!(done, "{said}");
    assert_about(&until(first, &format!("UP {second}")), &second);
    let (done, said) = ask(&["init", "127.95.0.[1-3]@tcp0"]);
    assert!(!done && said.contains("its rails are"), "{said}");
    let (done, said) = ask(&[
        "init",
        "127.95.0.[2-3]@udp0",
        "127.95.0.1@udp0",
        "--interval-ms",
        "200",
    ]);
    assert!(done && said.contains("3 participants"), "{said}");
    until(&members[1], &format!("LEFT {}", nid(95, 1)));
    let (_, said) = ask(&["status"]);
    assert!(said.contains("gossip is stopped"), "{said}");
    // Cycles go on, and make what is held older: that nothing is held is what tells.
    for other in [nid(95, 1), nid(95, 3)] {
        assert!(said.contains(&format!("{other}  -    unknown")), "{said}");
    }
    let (done, said) = ask(&["start"]);
    assert!(done, "{said}");
    until(&members[1], &format!("UP {}", nid(95, 1)));
    // AG-17: what was logged is whole when it has ended.
    assert!(members.remove(0).leave());
    assert_log(&std::fs::read_to_string(&log).unwrap(), &second);
}

/// AG-17: each change of somebody's health is a line with the clock, as a warning if it is for the worse, and else with
/// the clock of the message that brought it.
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

/// Starts a member whose participants are told by others.
fn start_told(directory: &Path, net: u8, index: usize, told_by: &str, more: &[&str]) -> Member {
    let rail = nid(net, index);
    let mut arguments = vec!["--rail", &rail, "--protocol", "age"];
    arguments.extend(["--participants", told_by]);
    arguments.extend(more);
    Member::start(directory, &format!("g{index}"), &arguments)
}

/// Waits until each member tells that all others are up, as they are called.
fn await_all_up(members: &[Member], called: impl Fn(usize) -> String) {
    for (index, member) in (1..).zip(members) {
        let others = (1..=members.len()).filter(|other| *other != index);
        let ups: Vec<_> = others
            .map(|other| format!("UP {}", called(other)))
            .collect();
        assert_eq!(member.wait_for(&ups), Vec::<String>::new());
    }
}

/// What `muster gossip` says of this member.
fn ask(directory: &Path, member: &str, arguments: &[&str]) -> (bool, String) {
    let mut command = Command::new(program("muster"));
    command.arg("gossip").args(arguments).arg("--agent");
    let output = command
        .arg(directory.join(format!("{member}.control")))
        .output()
        .unwrap();
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    (output.status.success(), said)
}

/// A gossip server, until it is dropped.
struct Server {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Server {
    fn start(directory: &Path, participants: usize) -> (Self, String) {
        let mut child = Command::new(program("muster"))
            .args(["gossip", "serve", "--listen", "127.0.0.1:0"])
            .args(["--participants", &participants.to_string()])
            .env("MUSTER_DIR", directory)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut server = Self { child, lines };
        let said = server.await_line("gossip server at ");
        let at = said.split([' ', ',']).nth(3).unwrap().to_owned();
        (server, format!("server:{at}"))
    }

    /// The next line that holds these words.
    fn await_line(&mut self, words: &str) -> String {
        let mut lines = self.lines.by_ref().map(Result::unwrap);
        lines
            .find(|line| line.contains(words))
            .unwrap_or_else(|| panic!("the server ended before it said {words:?}"))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// BG-04: members that know nothing but the server find each other there when all have come, and are called by
/// their names; one that was killed and comes back is told the list again, and so is one that is initialised anew;
/// without the server all goes on.
#[test]
fn a_gossip_server_brings_all_together() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let (mut server, told_by) = Server::start(path, 4);
    let start_one = |index| start_told(path, 97, index, &told_by, &[]);
    let mut members: Vec<_> = [1, 2, 3].map(start_one).into();
    // Who has joined serves its control socket, too.
    server.await_line("3 of 4 have joined");
    let waits = |member: &str| {
        let (_, said) = ask(path, member, &["status"]);
        said.contains("gossip is waiting for its participants")
    };
    assert!(waits("g1"));
    let (done, said) = ask(path, "g1", &["start"]);
    assert!(done && waits("g1"), "{said}");
    members.push(start_one(4));
    await_all_up(&members, |other| format!("g{other}"));
    members.remove(1).kill();
    assert_about(&until(&members[0], "DOWN g2"), "g2");
    let again = start_one(2);
    assert_about(&until(&members[0], "UP g2"), "g2");
    until(&again, "UP g1");
    // Whoever takes the list anew is told the same.
    let (done, said) = ask(path, "g4", &["init", &told_by]);
    assert!(done && said.contains("begins when all"), "{said}");
    until(&members[2], "LEFT g1");
    until(&members[2], "UP g1");
    drop(server);
    let (_, said) = ask(path, "g1", &["status"]);
    assert!(said.contains("gossip is running"), "{said}");
}

/// BG-04: an agent whose worker was killed goes on with the participants that a server had told it, though that server
/// is gone.
#[test]
fn a_worker_that_takes_over_needs_no_server() {
    let job = Job::new(2).with_one_rail();
    let (server, told_by) = Server::start(job.directory(), 2);
    let mut ranks = [0, 1].map(|number| {
        let program = env!("CARGO_BIN_EXE_muster-test-rank");
        let mut command = job.command(program, number as usize + 1, number);
        command.env("MUSTER_PROTOCOL", "age");
        command.env("MUSTER_PARTICIPANTS", &told_by);
        Rank::start(&mut command, &format!("rank {number}"))
    });
    for (number, rank) in ranks.iter_mut().enumerate() {
        rank.await_words(&["ATTACHED"]);
        rank.await_view(|view| view.contains("n1=Alive n2=Alive"));
        // What another node's rank is, is not told.
        rank.await_view(|view| view.contains(&format!(" {number}=Alive")));
    }
    drop(server);
    let (_, worker) = job.agent(2).pair();
    signal(worker, Signal::KILL);
    ranks[1].await_words(&["ATTACHED"]);
    ranks[1].await_counter("pings_sent", 3);
    // A few cycles later each has heard of the other's life, whatever was thought meanwhile.
    for rank in &mut ranks {
        rank.await_view(|view| view.contains("n1=Alive n2=Alive"));
    }
}

/// BG-04: as many nodes as were expected, known by seeds, take part: each has the others' addresses.
#[test]
fn seeds_bring_all_together() {
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

/// BG-03, BG-04: the nodes of an MPI job, told how many there are, find each other through PMIx; where ranks run comes
/// from the launcher's map, and their messages carry pings, which then do not go by themselves. How many depends on
/// how soon ranks get a core; the protocol's `riding_tests` have the proportion.
#[test]
fn nodes_of_a_job_meet_through_pmix_and_messages_carry_pings() {
    job(|folder| {
        let compiler = venv("venv").join("mpicc");
        let program = compile(&compiler, "meets", &[], folder);
        let mut launcher = open_mpi_5_on_two_nodes(folder);
        launcher.args(["-n", "4", "-x", "MUSTER_PROTOCOL=age"]);
        launcher.args(["-x", "MUSTER_PARTICIPANTS=seeds:2"]);
        launcher.arg(&program).arg("2");
        expect_carried(&run(&mut launcher, folder));
    });
}

/// The same where MPI has no PMIx: addresses, and where ranks run, come by an allgather (BG-03, BG-04).
#[test]
fn nodes_of_a_job_meet_through_mpi_and_messages_carry_pings() {
    job(|folder| {
        let folders = venv("mpich");
        let program = compile(&folders.join("mpicc"), "meets", &[], folder);
        let mut launcher = Command::new(folders.join("mpiexec"));
        launcher
            .args(["-n", "4"])
            .arg(&program)
            .args(["2", "cards"]);
        launcher.env("MUSTER_PROTOCOL", "age");
        launcher.env("MUSTER_PARTICIPANTS", "seeds:2");
        let pid = std::process::id();
        let net = format!("{}.{}", 191 + pid / 250 % 60, 1 + pid % 250);
        launcher.env("MEETS_NET", net);
        expect_carried(&run(&mut launcher, folder));
    });
}

/// All four ranks were ready, and on each node pings were left out, which messages took.
fn expect_carried(outcome: &Outcome) {
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
        // Left out are those that a message took, and no other.
        let left_out = number("gossips_piggybacked");
        let (taken, offered) = (number("piggyback_taken"), number("gossips_offered"));
        let is_sound = 5 <= left_out && left_out <= taken && taken <= offered;
        assert!(is_sound, "{line}");
    }
    assert!(outcome.expect_end().success(), "{text}");
}

/// Waits until a file of the watched directory has been replaced, or for a while in vain.
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

/// AG-17, BG-02: members of two groups that gossip at home most find everybody; each keeps its state as files,
/// which are whole whenever one looks, and go on being written when gossip is stopped.
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

/// AG-02, AG-03, AG-04, AG-11: what cannot be is refused at the start, with the remedy.
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
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            !output.status.success() && said.contains(words),
            "{arguments:?}: {said}"
        );
    }
}

/// With age gossip, too, the ranks of a node are told of those that end while it has no worker, of which the next
/// one takes over nothing but the board.
#[test]
fn age_gossip_tells_of_ranks_that_end_while_no_worker_runs() {
    // Nobody comes to the second node.
    let job = Job::new(2).with_one_rail();
    let rails = [job.rails(1), job.rails(2)].join(",");
    let mut ranks: Vec<Rank> = (0..3)
        .map(|rank| {
            let mut command = job.command(env!("CARGO_BIN_EXE_muster-test-rank"), 1, rank);
            command.env_remove("MUSTER_SEEDS");
            command.env("MUSTER_PROTOCOL", "age");
            command.env("MUSTER_PARTICIPANTS", &rails);
            let rank = Rank::start(&mut command, &format!("rank {rank}"));
            rank.await_words(&["ATTACHED"]);
            rank
        })
        .collect();
    ranks[0].await_view(|view| view.ends_with(" 0=Alive 1=Alive 2=Alive"));
    let (keeper, worker) = job.agent(1).pair();
    signal(keeper, Signal::STOP);
    signal(worker, Signal::KILL);
    wait_for_end(worker);
    let mut leaving = ranks.pop().expect("rank 2");
    leaving.tell("leave 3");
    assert_eq!(leaving.await_end(), Some(3));
    ranks.pop().expect("rank 1").kill();
    signal(keeper, Signal::CONT);
    ranks[0].await_each(&[
        &["EVENT", "RankFailed", "rank=1"],
        &["EVENT", "RankLeft", "rank=2", "code=3"],
    ]);
    ranks[0].await_view(|view| view.ends_with(" 0=Alive 1=Failed 2=Left"));
}
