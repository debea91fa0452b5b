//! Requests from an agent's own node, however many at once, do not make the node fail: the agent serves its
//! ranks.
//!
//! Real ranks and real agents, as in `agents.rs`. The order of a rank's events shows that no node was
//! declared failed: a failure would come before a later event.

use muster_tests::local_load::LocalLoad;
use muster_tests::nodes::Nodes;
use muster_tests::rank::Rank;
use muster_tests::until;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

const NODES: usize = 3;
/// Least number of requests to the flooded node's agent. All other requests are sent as fast as possible
/// beside them.
const CONNECTIONS: u64 = 3_000;
const NEWCOMERS: u64 = 6;
/// Ranks of one node that start at once.
const MASS: u32 = 250;
const LOSSES: [&str; 3] = ["NodeFailed", "Outcast", "LOST"];

/// A job of three nodes with one rank each; the ranks have seen each other.
fn begin() -> (Arc<Nodes>, Vec<Rank>) {
    let job = Arc::new(Nodes::new(NODES));
    let ranks = job.start_all(1);
    ranks.iter().for_each(|rank| drop(rank.take_passed()));
    (job, ranks)
}

/// Kills the rank of the first node. The others get its event after all earlier ones, which must contain no
/// node failure.
fn end_without_a_loss(mut ranks: Vec<Rank>) {
    ranks.remove(0).kill();
    for rank in &ranks {
        rank.await_words(&["EVENT", "RankFailed", "rank=0"]);
        assert_eq!(rank.take_passed_with(&LOSSES), [""; 0]);
    }
}

#[test]
fn a_node_whose_agent_is_flooded_by_its_own_processes_is_not_declared_failed() {
    let (job, ranks) = begin();
    let (job_of_newcomers, next) = (Arc::clone(&job), AtomicU32::new(NODES as u32));
    let load = LocalLoad::begin(&job, 1, move || {
        job_of_newcomers.begin(1, next.fetch_add(1, Ordering::Relaxed))
    });
    let asked = |count: &AtomicU64| count.load(Ordering::Relaxed);
    until(
        || format!("enough: {:?}", load.counts()),
        || {
            let is_enough = asked(&load.counts().connections) >= CONNECTIONS
                && asked(&load.counts().ranks) >= NEWCOMERS;
            is_enough.then_some(())
        },
    );
    load.end();
    end_without_a_loss(ranks);
}

#[test]
fn a_node_with_many_starting_and_dying_ranks_is_not_declared_failed() {
    let (job, ranks) = begin();
    let first = NODES as u32;
    let comers: Vec<Rank> = (first..first + MASS)
        .map(|rank| job.begin(1, rank))
        .collect();
    for newcomer in &comers {
        newcomer.await_words(&["ATTACHED"]);
    }
    comers.into_iter().for_each(Rank::kill);
    end_without_a_loss(ranks);
}
