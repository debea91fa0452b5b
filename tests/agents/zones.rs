//! Jobs with zones, end to end: real agents in zones of three nodes, a rank on each node. Ranks, nodes, supervisors and
//! a whole zone are killed; every rank that is left learns of each loss, and of no other.

use muster_ipc::control_socket::SOCKET;
use muster_tests::admin::Admin;
use muster_tests::nodes::Nodes;
use muster_tests::rank::Rank;
use muster_tests::until;
use serde_json::Value;
use std::cell::RefCell;

const ZONE: usize = 3;
const NODES: usize = 9;

/// A job and its ranks; rank 0 is on n1, rank 1 on n2, and so on.
struct World {
    ranks: Vec<Option<Rank>>,
    job: Nodes,
}

impl World {
    /// Starts a rank on each node; the zones have formed, and each has its supervisors in the zone above.
    fn start(profile: &'static str) -> Self {
        let job = Nodes::new(NODES).with_one_rail().with_zones(ZONE);
        // An agent whose rank was killed stays: it is to be killed, not to leave.
        let job = job.with_profile(profile).with_linger_ms(600_000);
        let ranks = (0..NODES).map(|node| Some(job.start(node + 1, node as u32)));
        let mut world = Self {
            ranks: ranks.collect(),
            job,
        };
        world.await_formed();
        world
    }

    /// What `muster zones` of a node prints.
    /// What the command prints. An agent whose worker was killed answers as soon as the next one has started.
    fn zones(&self, node: usize) -> Value {
        let parse = |answer: &str| serde_json::from_str(answer).ok();
        let is_json = |answer: &str| parse(answer).is_some_and(|answer: Value| answer.is_object());
        let answer = self
            .admin(node)
            .await_answer(&["zones", "-o", "json"], is_json);
        parse(&answer).expect("it was checked")
    }

    fn admin(&self, node: usize) -> Admin {
        Admin(self.job.agent_directory(node).directory().join(SOCKET))
    }

    /// What a rank of this node is told of the zones equals what `muster zones` and `muster members --zone` of its
    /// node print, as soon as both know of the same suspicions.
    fn expect_same_zones(&mut self, node: usize) {
        let mut rank = self.ranks[node - 1].take().expect("a rank");
        let seen = RefCell::new((String::new(), String::new()));
        until(
            || format!("{:#?}", seen.borrow()),
            || {
                rank.send("zones");
                let answers = (rank.await_words(&["ZONES"]), self.zones_as_printed(node));
                let is_same = answers.0 == answers.1;
                *seen.borrow_mut() = answers;
                is_same.then_some(())
            },
        );
        self.ranks[node - 1] = Some(rank);
    }

    /// The line that a rank of this node is to print about the zones.
    fn zones_as_printed(&self, node: usize) -> String {
        let answer = self.zones(node);
        let all = answer["zones"].as_array().expect("zones");
        let base: Vec<&Value> = all.iter().filter(|zone| zone["level"] == 0).collect();
        let own = base.iter().position(|zone| zone["own"] == true);
        let mut expected = format!("ZONES own={:?}", own.map(|number| number as u32));
        for zone in base {
            let name = zone["zone"].as_str().expect("a name");
            let counts = ["alive", "degraded", "suspect", "failed", "left", "unknown"];
            let counts = counts.map(|state| zone[state].to_string());
            let members = self.admin(node).json(&["members", "--zone", name]);
            let members = members["nodes"].as_array().expect("nodes");
            let names: Vec<&str> = members.iter().filter_map(|n| n["name"].as_str()).collect();
            expected += &format!(" {name}={}:{}", names.join(","), counts.join(","));
        }
        expected
    }

    fn supervisors(&self) -> Vec<usize> {
        let is_supervisor = |node: &usize| self.zones(*node)["member_of"][0] == "/";
        (1..=NODES).filter(is_supervisor).collect()
    }

    fn await_formed(&mut self) {
        let all: String = (1..=NODES).map(|node| format!("n{node}=Alive ")).collect();
        for rank in self.ranks.iter_mut().flatten() {
            rank.await_view(|view| view.contains(all.trim()));
        }
        let zones = || {
            format!(
                "{:#?}",
                (1..=NODES).map(|n| self.zones(n)).collect::<Vec<_>>()
            )
        };
        until(zones, || {
            let supervisors = self.supervisors();
            let sees_all = |node: &usize| {
                let zones = self.zones(*node);
                let zones = zones["zones"].as_array().into_iter().flatten();
                let known = zones.filter_map(|zone| zone["supervisors"].as_array());
                known.map(Vec::len).sum::<usize>() == 2 * NODES / ZONE
            };
            let is_formed =
                supervisors.len() == 2 * NODES / ZONE && supervisors.iter().all(sees_all);
            is_formed.then_some(())
        });
    }

    fn lose_node(&mut self, node: usize) {
        self.job.lose(node, self.ranks[node - 1].take());
    }

    /// The commands of a node know of failed nodes in all zones: `check`, `wait` and `metrics`.
    fn expect_known_to_commands(&self, lost: &[usize], zone: &[usize]) {
        let node = (1..=NODES).find(|node| !lost.contains(node) && !zone.contains(node));
        let admin = self.admin(node.expect("a node that is left"));
        let failed: Vec<String> = lost.iter().chain(zone).map(|n| format!("n{n}")).collect();
        let (code, printed, _) = admin.run(&["check", "--nagios"]);
        let (alive, of) = (NODES - failed.len(), format!(" failed={}", failed.len()));
        let begin = format!("MUSTER CRITICAL - {alive} of {NODES} members alive");
        assert!(
            printed.starts_with(&begin) && printed.contains(&of),
            "{printed}"
        );
        assert_eq!(code, Some(2));
        let names: Vec<&str> = failed.iter().map(String::as_str).collect();
        admin.ask(&[&["wait", "--state", "failed"], names.as_slice()].concat());
        let metrics = admin.ask(&["metrics"]);
        let is_count =
            |line: &&str| line.starts_with("muster_members{") && line.contains("state=\"failed\"");
        let count = metrics.lines().find(is_count).expect("the failed members");
        assert!(count.ends_with(&format!(" {}", failed.len())), "{count}");
    }

    fn living(&self) -> impl Iterator<Item = &Rank> {
        self.ranks.iter().flatten()
    }

    /// Every rank gets an event with each of these lists of words.
    fn expect(&self, lists: &[&[&str]]) {
        self.living().for_each(|rank| rank.await_each(lists));
    }

    /// Asserts that no rank was told of a failed node that the test did not wait for.
    fn expect_no_other_failure(&self) {
        for rank in self.living() {
            assert_eq!(
                rank.take_passed_with(&["EVENT NodeFailed", "Outcast"]),
                [""; 0]
            );
        }
    }
}

/// ZM-02, ZM-12.
#[test]
fn every_rank_learns_of_each_loss_in_any_zone() {
    let mut world = World::start("standard");
    world.ranks[4].take().expect("a rank").kill();
    world.expect(&[&["EVENT", "RankFailed", "node=n5", "rank=4"]]);
    // A supervisor, and a node that is none.
    let supervisors = world.supervisors();
    let others = (1..=NODES).filter(|node| !supervisors.contains(node));
    let other = others.min().expect("each zone has three nodes");
    let lost = [supervisors[supervisors.len() - 1], other];
    for node in lost {
        world.lose_node(node);
        world.expect(&[&["EVENT", "NodeFailed", &format!("node=n{node}")]]);
    }
    world.expect_no_other_failure();
    // A whole zone: the second one.
    let zone: Vec<usize> = (ZONE + 1..=2 * ZONE)
        .filter(|node| !lost.contains(node))
        .collect();
    for node in &zone {
        world.lose_node(*node);
    }
    // They may become known in another order.
    let names: Vec<String> = zone.iter().map(|node| format!("node=n{node}")).collect();
    let events: Vec<[&str; 3]> = names
        .iter()
        .map(|name| ["EVENT", "NodeFailed", name.as_str()])
        .collect();
    let lists: Vec<&[&str]> = events.iter().map(<[&str; 3]>::as_slice).collect();
    world.expect(&lists);
    world.expect_no_other_failure();
    let seen = world.zones(1)["zones"][1].clone();
    assert_eq!(
        (&seen["zone"], &seen["failed"]),
        (&"z2".into(), &ZONE.into()),
        "{seen}"
    );
    world.expect_known_to_commands(&lost, &zone);
}

/// ZM-12: the next worker of a supervisor takes up its roles. No rank is told of a failure meanwhile, and what happens
/// afterwards is reported in both directions.
#[test]
fn the_next_worker_of_a_supervisor_takes_up_its_roles() {
    // On a busy machine the next worker may take longer than standard's deadline.
    let mut world = World::start("quiet");
    for supervisor in world.supervisors() {
        world.job.kill_worker(supervisor);
    }
    world.await_formed();
    for victim in [1, NODES] {
        world.ranks[victim - 1].take().expect("a rank").kill();
        let (node, rank) = (format!("node=n{victim}"), format!("rank={}", victim - 1));
        world.expect(&[&["EVENT", "RankFailed", &node, &rank]]);
    }
    world.expect_no_other_failure();
}

/// ZM-12, ZM-13: ranks of each zone are told the zones, their nodes and the states of these, as an operator is.
#[test]
fn a_rank_is_told_the_zones_that_the_command_prints() {
    let mut world = World::start("standard");
    for node in [1, ZONE + 1, NODES] {
        world.expect_same_zones(node);
    }
    let admin = world.admin(1);
    let why = |node: &str| admin.json(&["why", node])["zone"].clone();
    let zones = [
        admin.json(&["members"])["zone"].clone(),
        why("n2"),
        why("n5"),
    ];
    assert_eq!(zones, ["z1", "z1", "z2"]);
    let (lost, left) = (ZONE + 2, 2 * ZONE);
    world.lose_node(lost);
    world.expect(&[&["EVENT", "NodeFailed", &format!("node=n{lost}")]]);
    for node in [1, left, NODES] {
        world.expect_same_zones(node);
    }
    // The report of an agent of another zone, and that of an agent of this zone.
    for node in [1, left] {
        let page = world.admin(node).ask(&["report", "--file", "-"]);
        let (_, by_zone) = page.split_once("Losses by zone").expect("a table of zones");
        let row = format!("<td>z2</td><td>n{lost} (1)</td><td>-</td>");
        assert!(by_zone.contains(&row), "{page}");
    }
    // Not equal by chance: the state of the lost node is one of the answer.
    let zones = world.zones(1)["zones"][1].clone();
    assert_eq!(
        (&zones["failed"], &zones["alive"]),
        (&1.into(), &2.into()),
        "{zones}"
    );
}

/// ZM-11: attributes reach nodes of other zones, also after the supervisors that copied them have died.
#[test]
fn attributes_are_read_in_other_zones() {
    let mut world = World::start("standard");
    let last = NODES - 1;
    let mut reader = world.ranks[last].take().expect("a rank");
    reader.send("watch load");
    reader.await_words(&["WATCHING", "load"]);
    let publish = |world: &mut World, value: &str| {
        let writer = world.ranks[0].as_mut().expect("a rank");
        writer.send(&format!("publish load {value}"));
        writer.await_words(&["PUBLISHED", "load"]);
    };
    publish(&mut world, "7");
    reader.await_words(&["EVENT", "Attribute", "node=n1"]);
    reader.send("get n1 load");
    assert_eq!(reader.await_words(&["VALUE"]), "VALUE n1 load 7");
    // The supervisors of the reader's zone, if the reader is none of them.
    let supervisors = world.supervisors();
    let own = supervisors
        .into_iter()
        .filter(|node| (2 * ZONE + 1..NODES).contains(node));
    for node in own.collect::<Vec<_>>() {
        world.lose_node(node);
        reader.await_words(&["EVENT", "NodeFailed", &format!("node=n{node}")]);
    }
    publish(&mut world, "8");
    // Two supervisors copy it, each with an event.
    reader.await_words(&["EVENT", "Attribute", "node=n1"]);
    let read = || String::from("the reader does not get the new value");
    until(read, || {
        reader.send("get n1 load");
        (reader.await_words(&["VALUE"]) == "VALUE n1 load 8").then_some(())
    });
    // A rank may not publish the keys of the agents.
    reader.send("publish muster.zones.x 1");
    reader.await_words(&["ERROR", "key", "reserved"]);
}
