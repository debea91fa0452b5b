//! Agents with few descriptors continue: a shortage causes no node failure, and ranks are accepted when there
//! is room again.
//!
//! Real ranks and real agents, as in `agents.rs`. An agent has the limit of the rank that starts it.

use muster_tests::nodes::Nodes;
use muster_tests::process::wait_for_end;
use muster_tests::rank::{Rank, rank_program};
use muster_tests::until;
use std::io::{ErrorKind, Read};
use std::net::TcpStream;

const LOSSES: [&str; 3] = ["NodeFailed", "Outcast", "LOST"];
/// The port of a rail that names none.
const PORT: u16 = 7741;
/// Number of connections without a request, and of those among them that the first worker certainly has.
const SILENT_MAX: usize = 900;
const SILENT_CLOSED: usize = 50;

/// Starts a rank with this limit of open files.
fn start_limited(job: &Nodes, node: usize, rank: u32, open_files: u32) -> Rank {
    let mut command = job.command("prlimit", node, rank);
    command
        .arg(format!("--nofile={open_files}:{open_files}"))
        .arg(rank_program());
    Rank::start(&mut command, &format!("rank {rank}"))
}

/// Kills a rank. A lost member would be reported before the rank's end.
fn kill_and_expect_nothing_else(victim: Rank, number: u32, others: &[Rank]) {
    victim.kill();
    for rank in others {
        rank.await_words(&["EVENT", "RankFailed", &format!("rank={number}")]);
        assert_eq!(rank.take_passed_with(&LOSSES), [""; 0]);
    }
}

/// Idle TCP connections take all descriptors except the reserved ones: a new worker takes over and closes
/// them, no node is declared failed, and the next rank is accepted.
#[test]
fn silent_connections_to_a_tcp_rail_leave_descriptors_for_ranks() {
    let job = Nodes::new(2)
        .with_kind("tcp")
        .with_one_rail()
        .with_profile("quiet");
    let mut ranks = vec![start_limited(&job, 1, 0, 256)];
    ranks[0].await_words(&["ATTACHED"]);
    ranks.push(job.start(2, 1));
    let all = "n1=Alive n2=Alive 0=Alive 1=Alive";
    ranks.iter_mut().for_each(|rank| rank.await_states(all));
    let (supervisor, worker) = job.agent(1).pair();

    let rails = job.rails(1);
    let (address, _) = rails.split_once('@').expect("a NID");
    let mut silent: Vec<TcpStream> = Vec::new();
    until(
        || format!("worker {worker} does not end"),
        || {
            // While one worker takes over from the other, a connection may be refused.
            let more = silent.len() < SILENT_MAX;
            let one = more.then(|| TcpStream::connect((address, PORT)));
            silent.extend(one.and_then(Result::ok));
            (job.agent(1).worker != Some(worker)).then_some(())
        },
    );
    wait_for_end(worker);
    // The last connections may have reached the new worker.
    for stream in silent.iter_mut().take(SILENT_CLOSED) {
        let read = stream.read(&mut [0]);
        let is_closed = match &read {
            Ok(count) => *count == 0,
            Err(error) => error.kind() == ErrorKind::ConnectionReset,
        };
        assert!(is_closed, "{read:?}");
    }
    let log = job.log(1);
    assert!(
        log.contains("descriptors run out") && log.contains("muster-rails(7)"),
        "{log}"
    );

    let mut newcomer = job.begin(1, 2);
    newcomer.await_words(&["ATTACHED"]);
    newcomer.await_counter("workers_renewed", 1);
    let (same_supervisor, new_worker) = job.agent(1).pair();
    assert_eq!(same_supervisor, supervisor);
    assert_ne!(new_worker, worker);
    ranks
        .iter_mut()
        .for_each(|rank| rank.await_states(&format!("{all} 2=Alive")));
    kill_and_expect_nothing_else(newcomer, 2, &ranks);
}
