//! Ranks that overwrite all memory that they share with their agent, as stray pointers do, and workers that
//! die then. The successor starts, declares no running rank dead, and detects dead ones.

use muster_tests::DEADLINE;
use muster_tests::nodes::Nodes;
use muster_tests::process::signal;
use muster_tests::rank::{Rank, alive};
use rustix::process::{Pid, Resource, Rlimit, Signal, prlimit};
use std::time::SystemTime;

const FAILURES: [&str; 5] = ["NodeFailed", "RankFailed", "RankLeft", "Outcast", "LOST"];
/// Address space that a successor may need beyond its supervisor's: for the rails and threads. The state
/// table takes 45 MB.
const BESIDES: u64 = 32 << 20;

/// Ranks 0 to 2 on n1, rank 3 on n2.
fn start_all() -> (Nodes, Vec<Rank>) {
    // On a busy machine the next worker may take longer than standard's deadline.
    let job = Nodes::new(2).with_profile("quiet");
    let mut ranks: Vec<Rank> = (0..4)
        .map(|rank| job.start(1 + rank as usize / 3, rank))
        .collect();
    for rank in &mut ranks {
        rank.await_states(&alive(2, 4));
        rank.take_passed();
    }
    (job, ranks)
}

/// Kills the worker of n1; another one takes over.
fn replace_worker(job: &Nodes, ranks: &[Rank]) {
    let (supervisor, worker) = job.agent(1).pair();
    signal(worker, Signal::KILL);
    for rank in &ranks[..3] {
        rank.await_words(&["ATTACHED"]);
    }
    let (same_supervisor, successor) = job.agent(1).pair();
    assert_eq!(same_supervisor, supervisor);
    assert_ne!(successor, worker);
}

/// A new rank is accepted, a killed one is reported, and no other failure is reported before.
fn expect_service(job: &Nodes, mut ranks: Vec<Rank>, what: &str) {
    let newcomer = job.start(1, 4);
    ranks.remove(1).kill();
    for rank in ranks.iter().chain([&newcomer]) {
        rank.await_words(&["EVENT", "RankFailed", "rank=1"]);
        assert_eq!(rank.take_passed_with(&FAILURES), [""; 0], "{what}");
    }
    for rank in &mut ranks {
        rank.await_states("n1=Alive n2=Alive 0=Alive 1=Failed 2=Alive 3=Alive 4=Alive");
    }
}

/// Regression: zeros at the beginning of the state table ended every successor, ones in the slots failed
/// running ranks.
#[test]
fn a_scribbled_state_table_and_a_killed_worker_cause_no_failure() {
    let since = SystemTime::UNIX_EPOCH.elapsed();
    let seed = since.map_or(1, |since| since.as_nanos() as u64);
    println!("seed {seed}");
    for what in ["zeros", "ones", "bits", "noise"] {
        let (job, mut ranks) = start_all();
        ranks[0].send(&format!("scribble {what} {seed}"));
        let printed = ranks[0].await_words(&["SCRIBBLED"]);
        assert_ne!(printed, "SCRIBBLED 0", "nothing could be written");
        replace_worker(&job, &ranks);
        expect_service(&job, ranks, what);
    }
}

/// A successor maps nothing that its supervisor has mapped already: it starts even if address space is
/// scarce.
#[test]
fn a_successor_needs_no_second_mapping_of_the_state_table() {
    let (job, ranks) = start_all();
    let (supervisor, _) = job.agent(1).pair();
    let statm =
        std::fs::read_to_string(format!("/proc/{supervisor}/statm")).expect("the supervisor runs");
    let pages: u64 = statm
        .split(' ')
        .next()
        .and_then(|pages| pages.parse().ok())
        .expect("a size");
    let page = rustix::param::page_size() as u64;
    let limit = Some(pages * page + BESIDES);
    let limit = Rlimit {
        current: limit,
        maximum: limit,
    };
    let supervisor = Pid::from_raw(supervisor as i32).expect("a process");
    prlimit(Some(supervisor), Resource::As, limit).expect("a process of this user");
    println!("{limit:?}, waiting {DEADLINE:?} at most");
    replace_worker(&job, &ranks);
    expect_service(&job, ranks, "short of address space");
}
