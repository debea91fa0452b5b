//! A node that was declared failed does not come back if its MPI was notified of it: its ranks learn that
//! they are outcast, also from an agent that they had to start and that knows the verdict only from the
//! others.
//!
//! Real ranks and real agents, as in `agents.rs`; every wait is for an event.

use muster_tests::nodes::Nodes;
use muster_tests::process::{signal, wait_for_end};
use muster_tests::rank::Rank;
use rustix::process::Signal;

const NODES: usize = 3;
/// The node that is lost, and its ranks.
const LOST: usize = 2;
const RANKS: [usize; 2] = [2, 3];

/// Kills both processes of the lost node's agent while its ranks cannot start another one.
fn lose_the_agent(job: &Nodes, ranks: &[Rank]) {
    let pids = RANKS.map(|rank| ranks[rank].pid());
    pids.iter().for_each(|pid| signal(*pid, Signal::STOP));
    let (supervisor, worker) = job.agent(LOST).pair();
    // Stopped first, so that the supervisor does not fork another worker.
    for what in [Signal::STOP, Signal::KILL] {
        [supervisor, worker]
            .iter()
            .for_each(|pid| signal(*pid, what));
    }
    [supervisor, worker].into_iter().for_each(wait_for_end);
}

#[test]
fn ranks_of_a_failed_node_learn_that_they_are_outcast() {
    let job = Nodes::new(NODES).with_variable("MUSTER_ULFM", "1");
    let mut ranks = job.start_all(2);
    ranks.iter().for_each(|rank| drop(rank.take_passed()));
    lose_the_agent(&job, &ranks);
    let others = [0, 1, 4, 5];
    for other in others {
        ranks[other].await_words(&["EVENT", "NodeFailed", "node=n2"]);
    }
    for _ in 0..2 {
        for rank in RANKS {
            signal(ranks[rank].pid(), Signal::CONT);
        }
        for rank in RANKS {
            ranks[rank].await_words(&["EVENT", "Overflow"]);
            ranks[rank].await_words(&["EVENT", "Outcast"]);
        }
        // The next agent learns it, too.
        lose_the_agent(&job, &ranks);
    }
    for rank in RANKS {
        signal(ranks[rank].pid(), Signal::CONT);
    }
    // No other node has accepted that node before the next event.
    ranks.remove(0).kill();
    for other in [0, 3, 4] {
        ranks[other].await_words(&["EVENT", "RankFailed", "rank=0"]);
        let passed = ranks[other].take_passed();
        let is_up = |line: &String| line.contains("NodeUp") || line.contains("RankUp");
        let returned = |line: &String| line.contains("node=n2") && is_up(line);
        assert!(!passed.iter().any(returned), "{passed:?}");
    }
}
