//! Attributes end to end: ranks of three emulated nodes write and read through real agents, whose workers are
//! killed meanwhile.

use muster_tests::nodes::Nodes;
use muster_tests::rank::Rank;

const NODES: usize = 3;

fn ask(rank: &mut Rank, question: &str, answer: &[&str]) {
    rank.send(question);
    rank.await_words(answer);
}

/// Kills the worker of a node's agent. Waits until the node's rank is attached to the next one, and for
/// `lines` as well.
fn kill_worker(job: &Nodes, node: usize, rank: &Rank, lines: &[&[&str]]) {
    job.kill_worker(node);
    rank.await_each(&[&[&["ATTACHED"][..]], lines].concat());
}

/// ZM-11: ranks of other nodes read what a rank writes on one node, and watching ranks get an event. A value
/// of the largest size arrives complete.
#[test]
fn all_nodes_read_what_one_node_writes() {
    let job = Nodes::new(NODES);
    let mut ranks = job.start_all(1);
    for rank in &mut ranks[1..] {
        ask(rank, "watch load", &["WATCHING", "load"]);
    }
    for (value, seen) in [("publish load 7", "7"), ("fill load 65536", "65536 bytes")] {
        ask(&mut ranks[0], value, &["PUBLISHED", "load"]);
        for rank in &mut ranks[1..] {
            rank.await_words(&["EVENT", "Attribute", "node=n1"]);
            rank.send("get n1 load");
            let answer = rank.await_words(&["VALUE"]);
            assert_eq!(answer, format!("VALUE n1 load {seen}"));
        }
    }
    ask(
        &mut ranks[0],
        "withdraw load",
        &["WITHDRAWN", "load", "true"],
    );
    for rank in &mut ranks[1..] {
        rank.await_words(&["EVENT", "Attribute", "node=n1"]);
        ask(rank, "get n1 load", &["VALUE", "n1", "load", "none"]);
    }
    // A rank may not publish the key under which the agent publishes its rails.
    ask(
        &mut ranks[0],
        "publish muster.rails x",
        &["ERROR", "key", "begins"],
    );
    // The writer does not watch, and got no event.
    ask(
        &mut ranks[0],
        "get n3 load",
        &["VALUE", "n3", "load", "none"],
    );
    assert_eq!(ranks[0].take_passed_with(&["Attribute"]), [""; 0]);
}

/// ZM-11: a killed worker loses no attribute: the next one has the node's own, gets those of the others
/// again, and knows the watched keys.
#[test]
fn a_killed_worker_loses_no_attribute_and_no_watch() {
    // On a busy machine the next worker may take longer than standard's deadline.
    let job = Nodes::new(NODES).with_profile("quiet");
    let mut ranks = job.start_all(1);
    ask(&mut ranks[1], "watch role", &["WATCHING", "role"]);
    ask(&mut ranks[0], "publish role server", &["PUBLISHED", "role"]);
    ranks[1].await_words(&["EVENT", "Attribute", "node=n1"]);

    // The writer's worker: its map is there at once.
    kill_worker(&job, 1, &ranks[0], &[]);
    ask(
        &mut ranks[0],
        "get n1 role",
        &["VALUE", "n1", "role", "server"],
    );
    ask(
        &mut ranks[1],
        "get n1 role",
        &["VALUE", "n1", "role", "server"],
    );

    // The watcher's worker: the map that arrives again and its changes cause events. One change may have
    // arrived before the new worker knew that the key is watched.
    kill_worker(&job, 2, &ranks[1], &[&["EVENT", "Overflow"]]);
    ask(&mut ranks[0], "publish role client", &["PUBLISHED", "role"]);
    loop {
        ranks[1].await_words(&["EVENT", "Attribute", "node=n1"]);
        ranks[1].send("get n1 role");
        if ranks[1].await_words(&["VALUE"]) == "VALUE n1 role client" {
            break;
        }
    }
    for rank in &ranks {
        assert_eq!(rank.take_passed_with(&["Failed"]), [""; 0]);
    }
}
