//! Selection on machines that the developers do not have: two and eight sockets, InfiniBand and Ethernet on
//! different nodes. The topologies are hwloc XML files, made by `tests/topologies/make.py`.

use muster_fabric::locality::{self, Machine, Sharing};
use muster_fabric::{
    Net, PathInput, Policy, RailInput, Ranks, Request, Rule, Subject, choose, explain,
};
use proptest::prelude::*;
use std::path::PathBuf;

fn machine(name: &str) -> Machine {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/topologies");
    locality::read_file(&root.join(name)).expect(name)
}

/// snd-015.
#[test]
fn devices_nodes_and_distances_are_read() {
    let two = machine("two-sockets.xml");
    let nodes =
        ["eth0", "ib0", "mlx5_0", "eth1", "ib1", "mlx5_1"].map(|name| two.node_of_device(name));
    assert_eq!(
        nodes,
        [Some(0), Some(0), Some(0), Some(1), Some(1), Some(1)]
    );
    assert_eq!(two.distances, [10, 21, 21, 10]);
    assert_eq!(two.nodes[1].threads, (8..16).collect::<Vec<u32>>());
    assert_eq!((two.cores.len(), two.partitions()), (8, vec![0, 1]));

    let eight = machine("eight-sockets.xml");
    assert_eq!(eight.node_of_device("ib2"), Some(6));
    assert_eq!(
        eight.node_of_device("eth1"),
        None,
        "a device below the whole machine has no node"
    );
    let from_2 = [0, 1, 2, 3, 6].map(|to| eight.distance(2, to));
    assert_eq!(from_2, [24, 24, 10, 12, 28]);
    assert_eq!(
        eight.distance_to_device(Some(2), "eth1"),
        locality::DISTANCE_LOCAL
    );
    assert_eq!(
        eight.distance_to_device(None, "ib0"),
        locality::DISTANCE_LOCAL
    );
}

/// snd-010, on the machine that runs the test: any machine has a thread.
#[test]
fn the_local_machine_is_read() {
    let machine = locality::read().unwrap();
    let threads: Vec<u32> = machine.cores.iter().flatten().copied().collect();
    assert!(
        machine.choose_thread(&threads, &[], None).is_some(),
        "{machine:?}"
    );
}

#[test]
fn the_error_for_a_malformed_topology_names_the_file() {
    let file = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
    let error = locality::read_file(&file).unwrap_err().to_string();
    assert!(
        error.contains("Cargo.toml") && error.contains("lstopo"),
        "{error}"
    );
}

/// Rails on these devices, as inputs of the choice for memory on a node; each rail has one path.
fn inputs(machine: &Machine, devices: &[&str], memory: u32) -> (Vec<RailInput>, Vec<PathInput>) {
    let rail = |device: &&str| RailInput {
        distance: machine.distance_to_device(Some(memory), device),
        foreign: false,
        credits: 64,
        queued_bytes: 0,
    };
    let path = |rail: u8| PathInput {
        rail,
        remote: rail,
        credits: 8,
        ..PathInput::default()
    };
    let rails = devices.iter().map(rail).collect();
    (rails, (0..devices.len() as u8).map(path).collect())
}

/// The devices that messages from memory on a node use, over some rounds.
fn used<'a>(machine: &Machine, devices: &[&'a str], memory: u32, numa_range: u32) -> Vec<&'a str> {
    let (rails, mut paths) = inputs(machine, devices, memory);
    let request = Request {
        numa_range,
        ..Request::default()
    };
    let mut used: Vec<&str> = (1..=16)
        .map(|turn| {
            let choice = choose(&request, &rails, &paths).unwrap();
            paths[usize::from(choice.path)].turn = turn;
            devices[usize::from(choice.rail)]
        })
        .collect();
    used.sort_unstable();
    used.dedup();
    used
}

/// snd-005, snd-010, snd-020, snd-025.
#[test]
fn messages_use_the_rails_near_their_memory() {
    let two = machine("two-sockets.xml");
    let rails = ["ib0", "ib1", "eth0", "eth1"];
    assert_eq!(used(&two, &rails, 0, 0), ["eth0", "ib0"]);
    assert_eq!(used(&two, &rails, 1, 0), ["eth1", "ib1"]);
    assert_eq!(used(&two, &rails, 1, 20), ["eth1", "ib1"]);
    assert_eq!(used(&two, &rails, 1, 21), ["eth0", "eth1", "ib0", "ib1"]);

    let eight = machine("eight-sockets.xml");
    let rails = ["ib0", "ib1", "ib2", "eth0"];
    let table: [(u32, u32, &[&str]); 6] = [
        (2, 0, &["ib0"]),
        (3, 0, &["ib1"]),
        (2, 12, &["ib0", "ib1"]),
        (7, 0, &["ib2"]),
        (4, 0, &["ib0", "ib1", "ib2"]),
        (5, 28, &["eth0", "ib0", "ib1", "ib2"]),
    ];
    for (memory, range, expected) in table {
        assert_eq!(
            used(&eight, &rails, memory, range),
            expected,
            "node {memory}, range {range}"
        );
    }
}

/// cfg-025, cfg-030, cfg-035: a rail that is bound to CPU partitions carries only messages of these partitions
/// if there is another rail; partitions are compared before distances.
#[test]
fn a_rail_serves_the_partitions_that_it_is_bound_to() {
    let two = machine("two-sockets.xml");
    let devices = ["ib0", "ib1"];
    let used = |memory: u32, bound: [&[u32]; 2]| {
        let (mut rails, paths) = inputs(&two, &devices, memory);
        for (rail, bound) in rails.iter_mut().zip(bound) {
            rail.foreign = !bound.is_empty() && !bound.contains(&memory);
        }
        let why = explain(&Request::default(), &rails, &paths);
        let lost = why.rails.iter().filter_map(|one| one.lost);
        let words: Vec<&str> = lost.map(|lost| lost.words()).collect();
        (devices[usize::from(why.choice.unwrap().rail)], words)
    };
    assert_eq!(used(0, [&[], &[]]).0, "ib0");
    let other_rail = (
        devices[1],
        vec!["it is bound to other CPU partitions than the message's"],
    );
    assert_eq!(used(0, [&[1], &[]]), other_rail);
    assert_eq!(used(0, [&[1], &[0, 1]]), other_rail);
    // No rail serves the partition: both are equal in this, and the nearer one is chosen.
    assert_eq!(used(0, [&[1], &[1]]).0, "ib0");
}

/// The policy is compared before the distance, and the distance before credits.
#[test]
fn a_preferred_net_is_chosen_in_spite_of_its_distance() {
    let eight = machine("eight-sockets.xml");
    let devices = ["ib2", "eth0"];
    let (mut rails, mut paths) = inputs(&eight, &devices, 0);
    rails[1].credits = 1;
    let choice = choose(&Request::default(), &rails, &paths).unwrap();
    assert_eq!(devices[usize::from(choice.rail)], "eth0");
    let net = |text: &str| text.parse::<Net>().unwrap();
    let policy = Policy::new(vec![Rule::new(Subject::Net(net("o2ib0")))]).unwrap();
    for (path, nid) in paths.iter_mut().zip(["10.0.0.1@o2ib0", "10.0.0.1@tcp0"]) {
        let nid = nid.parse().unwrap();
        path.ranks = policy.ranks(&nid, None, &nid);
    }
    let choice = choose(&Request::default(), &rails, &paths).unwrap();
    assert_eq!(devices[usize::from(choice.rail)], "ib2");
    let why = explain(&Request::default(), &rails, &paths);
    assert_eq!(
        why.rails[1].lost.unwrap().words(),
        "the policy prefers another net"
    );
    paths
        .iter_mut()
        .for_each(|path| path.ranks = Ranks::default());
}

#[test]
fn an_agent_gets_a_core_that_no_rank_uses_near_its_first_rail() {
    let two = machine("two-sockets.xml");
    let all: Vec<u32> = (0..16).collect();
    let near = two.node_of_device("ib1");
    let choose = |allowed: &[u32], ranks: &[u32]| two.choose_thread(allowed, ranks, near).unwrap();
    let free = choose(&all, &[]);
    assert_eq!(
        (free.thread, free.node, free.sharing),
        (15, Some(1), Sharing::Free)
    );
    // Ranks use all cores of the near socket: a free core far away is better than a shared one.
    let ranks: Vec<u32> = (8..16).collect();
    let far = choose(&all, &ranks);
    assert_eq!(
        (far.thread, far.sharing, far.distance),
        (7, Sharing::Free, 21)
    );
    // Ranks use one thread of each core: the other thread of a near core is chosen.
    let ranks: Vec<u32> = (0..16).step_by(2).collect();
    let beside = choose(&all, &ranks);
    assert_eq!((beside.thread, beside.sharing), (15, Sharing::CoreWithRank));
    // All threads are used.
    assert_eq!(choose(&all, &all).sharing, Sharing::WithRank);
    assert_eq!(choose(&[3], &[]).thread, 3, "the only allowed thread");
    assert!(two.choose_thread(&[], &[], near).is_none());
}

proptest! {
    /// On every machine, the chosen rail is never farther than another one, and a large enough range gives the
    /// same result as no distances at all.
    #[test]
    fn no_nearer_rail_is_skipped(
        memory in 0..8u32, credits in proptest::collection::vec(0..3u32, 4), range in 0..40u32,
    ) {
        let eight = machine("eight-sockets.xml");
        let devices = ["ib0", "ib1", "ib2", "eth0"];
        let (mut rails, paths) = inputs(&eight, &devices, memory);
        rails.iter_mut().zip(&credits).for_each(|(rail, credits)| rail.credits = *credits);
        let request = Request { numa_range: range, ..Request::default() };
        let choice = choose(&request, &rails, &paths).unwrap();
        let distance = |rail: &RailInput| rail.distance.max(range);
        let nearest = rails.iter().map(distance).min();
        prop_assert_eq!(Some(distance(&rails[usize::from(choice.rail)])), nearest);
        let flat: Vec<RailInput> = rails.iter().map(|rail| RailInput { distance: 0, ..*rail }).collect();
        let wide = Request { numa_range: 1000, ..Request::default() };
        prop_assert_eq!(choose(&wide, &rails, &paths), choose(&Request::default(), &flat, &paths));
    }
}
