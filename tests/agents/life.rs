//! The life cycle of agents with their ranks: many ranks, several jobs and users on one node, processes that
//! execute or start others, workers killed at any time, and what remains after a job.
//!
//! Real ranks and real agents, as in `agents.rs`; every wait is for an event.

use muster_tests::admin::Admin;
use muster_tests::nodes::{Nodes, as_user};
use muster_tests::process::{signal, wait_for_end};
use muster_tests::rank::{Rank, alive, rank_program};
use muster_tests::{DEADLINE, Member, program, skipped};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rustix::process::Signal;
use std::collections::BTreeSet;
use std::fs::File;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

/// Failures and ends that a rank is notified of.
const BAD_NEWS: [&str; 7] = [
    "LOST",
    "NodeFailed",
    "RankFailed",
    "RankHung",
    "Outcast",
    "NodeLeft",
    "RankLeft",
];

fn assert_no_bad_news(ranks: &[&Rank]) {
    for rank in ranks {
        assert_eq!(rank.take_passed_with(&BAD_NEWS), [""; 0]);
    }
}

/// Many ranks of one node start at once: they find one agent, see each other, and all learn of the death of
/// each, on the other node as well.
#[test]
fn a_node_full_of_ranks_has_one_agent_that_knows_them_all() {
    const RANKS: u32 = 128;
    let job = Nodes::new(2);
    let mut ranks: Vec<Rank> = (0..RANKS).map(|rank| job.begin(1, rank)).collect();
    let mut neighbour = job.start(2, RANKS);
    for rank in &ranks {
        rank.await_words(&["ATTACHED"]);
    }
    let view = alive(2, RANKS + 1);
    for rank in ranks.iter_mut().chain([&mut neighbour]) {
        rank.await_states(&view);
    }
    assert_eq!(job.agent(1).all.len(), 2, "one supervisor, one worker");
    let pair = job.agent(1).pair();
    assert_no_bad_news(&ranks.iter().collect::<Vec<_>>());
    drop(neighbour.take_passed());

    // The first, the last, and one that another thread of the agent's watch handles.
    for victim in [127, 126, 0] {
        ranks.remove(victim as usize).kill();
        let words = ["EVENT", "RankFailed", &format!("rank={victim}")];
        for rank in ranks.iter().chain([&neighbour]) {
            rank.await_words(&words);
        }
    }
    assert_no_bad_news(&ranks.iter().chain([&neighbour]).collect::<Vec<_>>());
    // All others at once.
    ranks
        .iter()
        .for_each(|rank| signal(rank.pid(), Signal::KILL));
    let expected: Vec<String> = (1..126).map(|rank| format!("rank={rank}")).collect();
    let expected: Vec<[&str; 3]> = expected
        .iter()
        .map(|rank| ["EVENT", "RankFailed", rank])
        .collect();
    neighbour.await_each(&expected.iter().map(|words| &words[..]).collect::<Vec<_>>());
    neighbour.await_words(&["EVENT", "NodeLeft", "node=n1"]);
    wait_for_end(pair.0);
    assert_eq!(job.agent(1).all, [0; 0]);
}

/// Two jobs of one user share nodes, interfaces and directory, and nothing else.
#[test]
fn two_jobs_of_one_user_on_the_same_nodes_do_not_meet() {
    let job = Nodes::new(2);
    let other = job.beside();
    two_jobs(&job, &other);
}

/// The same with two users whose jobs and nodes have the same names, in a directory that all users may write
/// to.
#[test]
fn the_jobs_of_two_users_on_the_same_nodes_do_not_meet() {
    const NOBODY: u32 = 65534;
    let job = Nodes::new(2);
    set_mode(job.directory(), 0o1777);
    let other = job.of_user(NOBODY);
    if let Err(why) = may_run_as(NOBODY) {
        skipped("root", &format!("no ranks of another user: {why}"));
        return;
    }
    two_jobs(&job, &other);
}

fn two_jobs(job: &Nodes, other: &Nodes) {
    let (mut ours, mut theirs) = (job.start_all(1), other.start_all(1));
    let (agents, others): (Vec<u32>, Vec<u32>) = (
        (1..=2).flat_map(|node| job.agent(node).all).collect(),
        (1..=2).flat_map(|node| other.agent(node).all).collect(),
    );
    assert_eq!((agents.len(), others.len()), (4, 4));
    ours.iter()
        .chain(&theirs)
        .for_each(|rank| drop(rank.take_passed()));

    // A rank of each job, with the same number: only its own job is notified.
    ours.pop().expect("two ranks").kill();
    ours[0].await_words(&["EVENT", "RankFailed", "rank=1"]);
    theirs[0].await_states(&alive(2, 2));
    assert_no_bad_news(&[&theirs[0], &theirs[1]]);
    theirs.remove(0).kill();
    theirs[0].await_words(&["EVENT", "RankFailed", "rank=0"]);
    // The end of one job does not affect the other.
    let mut last = theirs.remove(0);
    last.send("leave 0");
    assert_eq!(last.await_end(), Some(0));
    others.into_iter().for_each(wait_for_end);
    let again = job.start(2, 1);
    ours[0].await_words(&["EVENT", "RankUp", "rank=1"]);
    drop(again);
}

/// Whether this process may start ranks of another user that can execute the agent's program.
fn may_run_as(user: u32) -> Result<(), String> {
    let mut command = as_user(user, "/usr/bin/test");
    command.arg("-x").arg(program("musterd"));
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{command:?}: {status}")),
        Err(error) => Err(format!("{command:?}: {error}")),
    }
}

/// A rank that executes another image, or itself again, is the same process: it is not reported dead, and the
/// new image attaches as the same rank. This also holds when the worker dies at that moment.
#[test]
fn a_rank_that_executes_itself_again_stays_alive() {
    // On a busy machine the next worker may take longer than standard's deadline.
    let job = Nodes::new(2).with_profile("quiet");
    let mut ranks = job.start_all(1);
    ranks.iter().for_each(|rank| drop(rank.take_passed()));
    for _ in 0..2 {
        ranks[1].send("exec");
        ranks[1].await_words(&["ANEW"]);
        ranks[1].await_words(&["ATTACHED"]);
    }
    let (_, worker) = job.agent(2).pair();
    signal(worker, Signal::STOP);
    ranks[1].send("exec");
    signal(worker, Signal::KILL);
    // The earlier image may have been attached to the next worker, too.
    ranks[1].await_words(&["ANEW"]);
    ranks[1].await_words(&["ATTACHED"]);
    ranks[1].await_states(&alive(2, 2));
    assert_no_bad_news(&[&ranks[0], &ranks[1]]);
    // The new image is watched.
    ranks.remove(1).kill();
    let event = ranks[0].await_words(&["EVENT", "RankFailed", "rank=1"]);
    assert!(event.contains("cause=KernelFutex"), "{event}");
    assert_eq!(ranks[0].take_passed_with(&BAD_NEWS), [""; 0]);
}

/// A rank that executes a program without Muster is alive as long as that program runs.
#[test]
fn a_rank_that_became_another_program_is_followed_to_its_end() {
    let job = Nodes::new(2);
    let mut rank = job.start(1, 0);
    rank.await_states(&alive(1, 1));
    let mut other = job.start(2, 1);
    rank.await_words(&["EVENT", "RankUp", "rank=1"]);
    other.send("become cat");
    let end = Instant::now() + DEADLINE;
    while std::fs::read_to_string(format!("/proc/{}/comm", other.pid()))
        .is_ok_and(|it| it.trim() != "cat")
    {
        assert!(Instant::now() < end, "it does not become another program");
    }
    other.send("ECHO");
    other.await_words(&["ECHO"]);
    assert_eq!(rank.take_passed_with(&BAD_NEWS), [""; 0]);
    other.kill();
    rank.await_words(&["EVENT", "RankFailed", "rank=1"]);
}

/// A process that a rank starts is a client of the same agent. It is a rank of its own if it has a number,
/// and its end is not its parent's.
#[test]
fn a_child_of_a_rank_joins_its_agent() {
    let job = Nodes::new(2);
    let mut ranks = job.start_all(1);
    let agents = (job.agent(1).pair(), job.agent(2).pair());
    ranks[1].send("spawn 2");
    let expected = ranks[1].await_words(&["SPAWNED"]);
    let child: u32 = expected
        .split(' ')
        .nth(1)
        .and_then(|pid| pid.parse().ok())
        .expect("its pid");
    ranks[1].await_words(&["ATTACHED"]);
    ranks
        .iter_mut()
        .for_each(|rank| rank.await_states(&alive(2, 3)));
    assert_eq!((job.agent(1).pair(), job.agent(2).pair()), agents);
    ranks.iter().for_each(|rank| drop(rank.take_passed()));
    signal(child, Signal::KILL);
    for rank in &ranks {
        rank.await_words(&["EVENT", "RankFailed", "rank=2"]);
        assert_eq!(rank.take_passed_with(&BAD_NEWS), [""; 0]);
    }
    ranks[0].await_states("n1=Alive n2=Alive 0=Alive 1=Alive 2=Failed");
}

/// Workers are killed while ranks attach, while one dies, while one leaves, and in between. Only failed ranks
/// are declared failed, and all ranks learn of them.
#[test]
fn a_worker_may_be_killed_at_any_moment() {
    let seed = std::env::var("MUSTER_TEST_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok());
    let seed: u64 = seed.unwrap_or_else(|| std::process::id().into());
    println!("seed {seed} (MUSTER_TEST_SEED repeats the order, not the moments)");
    let mut dice = ChaCha8Rng::seed_from_u64(seed);
    let job = Nodes::new(2).with_profile("quiet");
    let mut ranks = job.start_all(1);
    ranks.iter().for_each(|rank| drop(rank.take_passed()));
    // Four times in total on each node: at the fifth time within ten seconds a supervisor gives up.
    for number in 2..6u32 {
        let node = node_of(number);
        let newcomer = job.begin(node, number);
        kill_worker(&job, node, dice.random_range(0..400));
        newcomer.await_words(&["ATTACHED"]);
        // Two workers that are killed before they serve are as silent as a dead node.
        ranks[node - 1].await_words(&["ATTACHED"]);
        ranks.push(newcomer);
        let view = alive(2, number + 1);
        ranks.iter_mut().for_each(|rank| rank.await_states(&view));
    }
    assert_no_bad_news(&ranks.iter().collect::<Vec<_>>());
    for (number, leaves) in [(5, true), (4, false), (3, false), (2, true)] {
        let mut last = ranks.pop().expect("there are some");
        let looks = dice.random_range(0..400);
        if leaves {
            last.send("leave 0");
            kill_worker(&job, node_of(number), looks);
            assert_eq!(last.await_end(), Some(0));
        } else {
            kill_worker(&job, node_of(number), looks);
            last.kill();
        }
        let word = if leaves { "RankLeft" } else { "RankFailed" };
        let ended = format!("rank={number}");
        for (place, rank) in ranks.iter().enumerate() {
            let expected = &["EVENT", word, &ended][..];
            if place + 1 == node_of(number) {
                rank.await_each(&[expected, &["ATTACHED"]]);
            } else {
                rank.await_each(&[expected]);
            }
        }
    }
    assert_no_bad_news(&ranks.iter().collect::<Vec<_>>());
}

/// Even ranks are on n1, odd ones on n2.
fn node_of(rank: u32) -> usize {
    1 + rank as usize % 2
}

/// Kills a node's worker after `looks` reads of its state, which vary the moment.
fn kill_worker(job: &Nodes, node: usize, looks: u32) {
    let end = Instant::now() + DEADLINE;
    let (_, worker) = loop {
        // Between two workers there is none.
        let agent = job.agent(node);
        if let (Some(supervisor), Some(worker)) = (agent.supervisor, agent.worker) {
            break (supervisor, worker);
        }
        assert!(Instant::now() < end, "n{node} has no worker: {agent:?}");
    };
    for _ in 0..looks {
        let _ = std::fs::read(format!("/proc/{worker}/stat"));
    }
    signal(worker, Signal::KILL);
    wait_for_end(worker);
}

/// After a job has ended, nothing of it is left: no process, no file, no memory, however it ended.
#[test]
fn nothing_is_left_of_a_job_that_has_ended() {
    for killed in [false, true] {
        let job = Nodes::new(2);
        let mut ranks: Vec<Rank> = (0..4u32).map(|rank| begin_quiet(&job, rank)).collect();
        for rank in &mut ranks {
            rank.await_words(&["ATTACHED"]);
            rank.await_states(&alive(2, 4));
        }
        let tables: BTreeSet<String> = ranks
            .iter()
            .flat_map(|rank| state_tables_of(rank.pid()))
            .collect();
        assert_eq!(
            tables.len(),
            4,
            "a state table in two halves on each node: {tables:?}"
        );
        let agents: Vec<u32> = (1..=2).flat_map(|node| job.agent(node).all).collect();
        assert_eq!(agents.len(), 4);
        for mut rank in ranks {
            if killed {
                rank.kill();
            } else {
                rank.send("leave 0");
                assert_eq!(rank.await_end(), Some(0));
            }
        }
        agents.into_iter().for_each(wait_for_end);
        for node in 1..=2 {
            assert_eq!(job.agent(node).all, [0; 0]);
        }
        let files = std::fs::read_dir(job.directory()).expect("the test's own directory");
        let files: Vec<_> = files.flatten().map(|file| file.file_name()).collect();
        assert_eq!(files, ["key"], "killed: {killed}");
        for process in std::fs::read_dir("/proc")
            .expect("/proc is mounted")
            .flatten()
        {
            let pid = process
                .file_name()
                .to_str()
                .and_then(|pid| pid.parse().ok());
            let mapped = pid.map(state_tables_of).unwrap_or_default();
            assert!(
                mapped.is_disjoint(&tables),
                "{pid:?} has {mapped:?}, killed: {killed}"
            );
        }
    }
}

/// An agent that could not start leaves nothing, not even the key that an earlier, killed agent of the job
/// had left there.
#[test]
fn an_agent_that_cannot_start_leaves_nothing() {
    let rank = &*rank_program();
    let cases = [
        // The configuration is refused; the supervisor finds no libfabric; the worker finds no rail, or may
        // open too few files.
        ("MUSTER_RAILS", "nonsense", rank, false),
        (
            "MUSTER_LIBFABRIC",
            "/nonexistent/libfabric.so.1",
            rank,
            true,
        ),
        ("MUSTER_RAILS", "nosuchif0@udp0", rank, true),
        ("FILES", "16", "/bin/sh", true),
    ];
    for (variable, value, program, has_key) in cases {
        let job = Nodes::new(1);
        let place = job.agent_directory(1);
        if has_key {
            place.prepare().expect("a folder");
            std::fs::write(place.key_file(), "5c".repeat(32)).expect("a file");
            set_mode(&place.key_file(), 0o600);
        }
        let mut command = job.command(program, 1, 0);
        if program != rank {
            command.args(["-c", "ulimit -n $FILES; exec \"$0\"", rank]);
        }
        command.env(variable, value).env_remove("MUSTER_LOG");
        let rank = Rank::start(&mut command, "a refused rank");
        rank.await_words(&["REFUSED"]);
        assert_eq!(rank.await_end(), Some(3));
        job.agent(1).all.into_iter().for_each(wait_for_end);
        let left = std::fs::read_dir(place.directory());
        let left: Vec<_> = left.into_iter().flatten().flatten().collect();
        assert!(!place.directory().exists(), "{variable}={value}: {left:?}");
    }
}

/// Two ranks per node, without a log, which would be kept for its reader.
fn begin_quiet(job: &Nodes, rank: u32) -> Rank {
    let mut command = job.rank(1 + rank as usize / 2, rank);
    Rank::start(command.env_remove("MUSTER_LOG"), &format!("rank {rank}"))
}

/// The state tables that a process has mapped, each in two halves, by device and inode.
fn state_tables_of(pid: u32) -> BTreeSet<String> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let lines = maps.lines().filter(|line| line.contains("memfd:muster"));
    let inode = |line: &str| {
        line.split_whitespace()
            .skip(3)
            .take(2)
            .collect::<Vec<_>>()
            .join(" ")
    };
    lines.map(inode).collect()
}

fn set_mode(path: &Path, mode: u32) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("our own");
}

/// libfabric finds the agent's `fopen`, which does not open the kernel's list of symbols: an agent starts faster.
#[test]
fn an_agent_exports_the_fopen_for_libfabric() {
    let mut command = Command::new("nm");
    let output = command
        .args(["--dynamic", "--defined-only"])
        .arg(program("musterd"))
        .output();
    let text = String::from_utf8(output.expect("nm").stdout).expect("names");
    assert!(
        text.lines().any(|line| line.ends_with(" T fopen")),
        "{text}"
    );
}

/// Libraries that an agent loads print to its standard error, too.
#[test]
fn an_agent_starts_without_messages() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("log");
    let log = File::create(&path).expect("our own");
    let rail = ["--rail", "127.66.81.1@udp0"];
    let _member = Member::start_logging(directory.path(), "n1", &rail, &[], log.into());
    let admin = Admin::of(directory.path(), "n1");
    admin.await_answer(&["rails"], |rails| rails.contains("127.66.81.1@udp0"));
    assert_eq!(std::fs::read_to_string(&path).expect("our own"), "");
}
