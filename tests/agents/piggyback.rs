//! BG-03: the messages of a real MPI program replace heartbeats, without a change to the program.

use muster_tests::compile::{compile, interposer};
use muster_tests::job::{Job, job, processes_of};
use muster_tests::launchers::{open_mpi_5_on_two_nodes, venv};
use muster_tests::nodes::Nodes;
use muster_tests::process::{signal, signal_all};
use muster_tests::rank::Rank;
use rustix::process::Signal;

/// The ranks send messages with the library until this many beats were left out on each node.
const ENOUGH: u64 = 50;

/// Four ranks on two nodes exchange messages for some seconds; then the second node is stopped. With the
/// library or without.
fn chatter(with_library: bool) -> Job {
    let mut printed = None;
    job(|folder| {
        let compiler = venv("venv").join("mpicc");
        let program = compile(&compiler, "chatter", &[], folder);
        let library = interposer(&compiler, folder);
        let mut launcher = open_mpi_5_on_two_nodes(folder);
        launcher.args(["--with-ft", "ulfm", "-n", "4"]);
        if with_library {
            let preload = format!("LD_PRELOAD={}", library.display());
            launcher.args(["-x", &preload, "-x", "MUSTER_PMPI_STATS=1"]);
        }
        launcher.arg(&program);
        if with_library {
            launcher.arg(ENOUGH.to_string());
        }
        let mut outcome = Job::launch(&mut launcher, folder);
        outcome.read_until(|job| job.count("READY") == 4);
        signal_all(&processes_of("n2", folder), Signal::STOP);
        outcome.read_until(|job| job.count("FAIL") + job.count("DONE") > 0);
        outcome.stop();
        let text = outcome.text();
        let ends = ["FAIL", "READY", "GONE", "DONE"].map(|word| outcome.count(word));
        assert_eq!(ends, [0, 4, 1, 1], "{text}");
        println!("{text}");
        printed = Some(outcome);
    });
    printed.expect("the job was run")
}

/// The sum of a counter over the ranks' agents: two ranks query each one.
fn sum(outcome: &Job, name: &str) -> u64 {
    let stats = outcome
        .lines
        .iter()
        .filter(|line| line.starts_with("STATS"));
    let numbers = stats.map(|line| {
        let mut words = line
            .split_whitespace()
            .filter_map(|word| word.split_once('='));
        let (_, number) = words.find(|(key, _)| *key == name).expect("the counter");
        number.parse::<u64>().expect("a number")
    });
    numbers.sum()
}

/// The deadline of the standard profile, in microseconds: no node is declared failed sooner. How much later
/// depends on how soon agents and ranks get a core; `runtime/protocol/tests/traffic.rs` tests it to the
/// microsecond.
const DEADLINE_US: u64 = 60_000;

/// The stopped node was reported, and not too early.
fn expect_found(outcome: &Job) {
    let mut gone = outcome.lines.iter().filter_map(|line| {
        let (_, rest) = line.split_once("silent_us=")?;
        rest.split(' ').next()?.parse::<u64>().ok()
    });
    let silent_us = gone.next().expect("the length of the silence");
    println!("silent for {silent_us} us");
    assert!(silent_us >= DEADLINE_US, "{silent_us} us");
}

/// Beats are saved while the ranks exchange messages, the quieter node is not taken for silent, and a node
/// that becomes silent is detected. The saved share also depends on how often the ranks get a core.
#[test]
fn messages_of_an_mpi_program_replace_heartbeats() {
    let outcome = chatter(true);
    for name in ["beats_left_out", "beats_stood_in"] {
        assert!(sum(&outcome, name) > 4 * ENOUGH, "{}", outcome.text());
    }
    expect_found(&outcome);
}

/// Without the library no beat is left out.
#[test]
fn no_beat_is_saved_without_the_library() {
    let outcome = chatter(false);
    assert_eq!(sum(&outcome, "beats_left_out"), 0, "{}", outcome.text());
    assert_eq!(sum(&outcome, "beats_stood_in"), 0);
    assert!(sum(&outcome, "beats_sent") > 100);
    expect_found(&outcome);
}

/// Starts two ranks on two nodes that see each other and whose messages carry their agents' piggybacks.
fn carriers(job: &Nodes, how: &str) -> Vec<Rank> {
    let mut ranks = job.start_all(1);
    let ports = [0, 1].map(|number: usize| {
        ranks[number].send("port");
        let answer = ranks[number].await_words(&["PORT"]);
        answer.split(' ').nth(1).expect("a port").to_owned()
    });
    for (own, other) in [(0, 1), (1, 0)] {
        ranks[own].send(&format!("talk {other} {} {how}", ports[other]));
        ranks[own].await_words(&["TALKING"]);
    }
    ranks
}

/// BG-03: heartbeats ride in the messages of an application, and are not sent separately; a death is still
/// detected. How many depends on how soon the ranks get a core; `runtime/protocol/tests/traffic.rs` tests the
/// proportion.
#[test]
fn messages_carry_heartbeats() {
    let job = Nodes::new(2).with_one_rail();
    let mut ranks = carriers(&job, "whole");
    for rank in &mut ranks {
        rank.await_counter("beats_carried", 8);
        rank.await_counter("beats_left_out", 8);
        // Exactly those beats are left out that a message carried.
        let left_out = rank.counter("beats_left_out");
        let taken = rank.counter("piggyback_taken");
        let offered = rank.counter("beats_offered");
        assert!(left_out <= taken && taken <= offered);
        let sent = rank.counter("beats_sent");
        println!("{left_out} beats left out, {sent} sent, {taken} of {offered} taken");
        assert_eq!(rank.counter("rejected_forged"), 0);
    }
    ranks[0].await_states("n1=Alive n2=Alive 0=Alive 1=Alive");
    let (supervisor, worker) = job.agent(2).pair();
    let (first, second) = (&ranks[0], &ranks[1]);
    signal(supervisor, Signal::STOP);
    signal(worker, Signal::STOP);
    signal(second.pid(), Signal::STOP);
    first.await_words(&["EVENT", "NodeFailed", "node=n2"]);
    for pid in [supervisor, worker] {
        signal(pid, Signal::KILL);
    }
}

/// An application may cut, damage, repeat or replace the bytes: they are refused, and no node is taken for
/// silent.
#[test]
fn damaged_piggybacks_do_no_harm() {
    let job = Nodes::new(2).with_one_rail();
    let mut ranks = carriers(&job, "rough");
    for rank in &mut ranks {
        rank.await_counter("beats_carried", 5);
        rank.await_counter("rejected_forged", 1);
        rank.await_counter("rejected_duplicate", 1);
    }
    for rank in &mut ranks {
        rank.await_states("n1=Alive n2=Alive 0=Alive 1=Alive");
        assert_eq!(
            rank.take_passed_with(&["NodeSuspect", "NodeFailed"]),
            [""; 0]
        );
    }
}

/// The agent that follows a killed one takes and offers piggybacks like the one before.
#[test]
fn another_worker_continues_with_piggybacks() {
    let job = Nodes::new(2).with_one_rail();
    let mut ranks = carriers(&job, "whole");
    ranks[0].await_counter("beats_carried", 5);
    job.kill_worker(2);
    ranks[1].await_words(&["ATTACHED"]);
    ranks[1].await_counter("beats_carried", 5);
    ranks[1].await_counter("piggyback_taken", 5);
    let before = ranks[0].counter("beats_carried");
    ranks[0].await_counter("beats_carried", before + 5);
    // If the next worker came later than the deadline, the node was declared failed, and is back.
    ranks[0].await_states("n1=Alive n2=Alive 0=Alive 1=Alive");
}

/// With two rails each one is watched by its own traffic: no beat is left out, and none is offered as a
/// piggyback.
#[test]
fn two_rails_send_all_their_beats() {
    let job = Nodes::new(2);
    let mut ranks = carriers(&job, "whole");
    for rank in &mut ranks {
        let before = rank.counter("beats_sent");
        rank.await_counter("beats_sent", before + 50);
        assert_eq!(rank.counter("beats_offered"), 0);
        assert_eq!(rank.counter("beats_left_out"), 0);
    }
}
