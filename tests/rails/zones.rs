//! Rails that fail in a job with zones.

use muster_tests::admin::Admin;
use muster_tests::hosts::{Fault, Hosts, address};
use muster_tests::{Member, program, until};
use std::path::Path;

const ZONE: usize = 3;
const HOSTS: usize = 2 * ZONE;
/// The host whose rail fails: one of the second zone.
const DEGRADED: usize = HOSTS;

/// The members of a job of two zones, by host.
struct World<'a> {
    hosts: &'a Hosts,
    directory: &'a Path,
    members: Vec<Member>,
}

impl<'a> World<'a> {
    fn start(hosts: &'a Hosts, directory: &'a Path) -> Self {
        let mut world = Self {
            hosts,
            directory,
            members: Vec::new(),
        };
        world.members = (1..=HOSTS).map(|host| world.begin(host)).collect();
        assert_eq!(Member::await_all_up(&world.members), [""; 0]);
        world
    }

    fn begin(&self, host: usize) -> Member {
        let nids = |host| {
            let nid = |rail| format!("{}:7741@udp{rail}", address(host, rail));
            [nid(0), nid(1)]
        };
        let seed = |host| format!("n{host}={}", nids(host).join(","));
        let (nodes, zone) = (format!("n[1-{HOSTS}]"), ZONE.to_string());
        let seeds: Vec<String> = (1..=HOSTS).map(seed).collect();
        let (seeds, [first, second]) = (seeds.join(" "), nids(host));
        let arguments = [
            ["--rail", &first],
            ["--rail", &second],
            ["--nodes", &nodes],
            ["--zones", &zone],
            ["--seed", &seeds],
        ];
        let command = self.hosts.command(host, &program("musterd"));
        Member::start_by(
            command,
            self.directory,
            &format!("n{host}"),
            arguments.as_flattened(),
        )
    }

    /// Waits until each member of the first zone has printed this, and nothing else about the second one. On a busy
    /// machine it may suspect those of its own zone for a moment.
    fn await_elsewhere(&self, line: &str) {
        let second: Vec<String> = (ZONE + 1..=HOSTS).map(|host| format!("n{host}")).collect();
        for member in &self.members[..ZONE] {
            let mut others = member.wait_for(&[line.to_owned()]);
            others.retain(|other| second.iter().any(|name| other.contains(name.as_str())));
            assert_eq!(others, [""; 0], "before {line}");
        }
    }

    /// Waits until `muster members --zone` of a node of the first zone prints this state, and the cause of a bad one.
    fn await_printed(&self, state: &str) {
        let admin = Admin::of(self.directory, "n1");
        let name = format!("n{DEGRADED}");
        let printed = || admin.json(&["members", "--zone", "z2"]);
        until(
            || format!("{state}: {}", printed()),
            || {
                let answer = printed();
                let nodes = answer["nodes"].as_array().expect("nodes");
                let is_so = |node: &serde_json::Value| {
                    let is_told = node["cause"] == "rails" || state != "degraded";
                    node["name"] == name.as_str() && node["state"] == state && is_told
                };
                nodes.iter().any(is_so).then_some(())
            },
        );
    }
}

/// ZM-13: a node whose rail fails is degraded in all zones, until the rail works again or the node starts anew.
#[test]
fn a_node_with_a_failed_rail_is_degraded_in_other_zones() {
    let Some(hosts) = Hosts::open(HOSTS, 2) else {
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let mut world = World::start(&hosts, directory.path());
    let name = format!("n{DEGRADED}");
    hosts.break_rail(DEGRADED, 1, Fault::Down);
    world.await_elsewhere(&format!("DEGRADED {name}"));
    world.await_printed("degraded");
    let why = Admin::of(world.directory, "n1").ask(&["why", &name]);
    assert!(why.contains("a rail of it has failed"), "{why}");
    hosts.heal(DEGRADED, 1, Fault::Down);
    world.await_elsewhere(&format!("RECOVERED {name}"));
    world.await_printed("alive");

    hosts.break_rail(DEGRADED, 1, Fault::Down);
    world.await_elsewhere(&format!("DEGRADED {name}"));
    world.members.remove(DEGRADED - 1).kill();
    world.await_elsewhere(&format!("DOWN {name}"));
    hosts.heal(DEGRADED, 1, Fault::Down);
    let back = world.begin(DEGRADED);
    world.members.push(back);
    world.await_elsewhere(&format!("UP {name}"));
    world.await_printed("alive");
}
