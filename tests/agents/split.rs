//! A zone that is cut off from the rest of its job and comes back: real agents on hosts that are network namespaces, a
//! rank on each. The switch of the third zone is disconnected until both sides have told their ranks.

use muster_ipc::control_socket::SOCKET;
use muster_tests::admin::Admin;
use muster_tests::hosts::{Hosts, nids};
use muster_tests::nodes::Nodes;
use muster_tests::rank::{Rank, alive, rank_program};
use muster_tests::until;
use std::path::Path;

const ZONE: usize = 2;
const NODES: usize = 6;
/// The nodes of the zone that is cut off.
const CUT: [usize; ZONE] = [5, 6];
/// The nodes of the others.
const REST: [usize; NODES - ZONE] = [1, 2, 3, 4];

/// A job with a rank on each node; rank 0 is on n1, rank 1 on n2, and so on.
struct Split {
    ranks: Vec<Option<Rank>>,
    job: Nodes,
    hosts: Hosts,
}

impl Split {
    /// Starts the job and waits until its zones have formed. `None` if this user may not make networks.
    fn start(variables: &[(&'static str, &str)]) -> Option<Self> {
        let hosts = Hosts::open(NODES, 1)?;
        let mut job = Nodes::new(NODES).with_zones(ZONE).with_linger_ms(600_000);
        for (name, value) in variables {
            job = job.with_variable(name, value);
        }
        let rails = |node| nids(node, &["udp0"], 7741);
        let seeds: Vec<String> = (1..=NODES)
            .map(|node| format!("n{node}={}", rails(node)))
            .collect();
        let start = |node: usize| {
            let mut command = hosts.command(node, Path::new(&rank_program()));
            job.place(&mut command, node, node as u32 - 1);
            command
                .env("MUSTER_RAILS", rails(node))
                .env("MUSTER_SEEDS", seeds.join(" "));
            Some(Rank::start(&mut command, &format!("rank on n{node}")).attached())
        };
        let ranks = (1..=NODES).map(start).collect();
        let mut split = Self { ranks, job, hosts };
        split.await_states(&alive(NODES, NODES as u32));
        until(
            || String::from("the zones have not formed"),
            || {
                (1..=NODES)
                    .all(|node| split.knows_supervisors(node))
                    .then_some(())
            },
        );
        Some(split)
    }

    fn admin(&self, node: usize) -> Admin {
        Admin(self.job.agent_directory(node).directory().join(SOCKET))
    }

    /// Whether a node knows the supervisors of each zone: both its nodes.
    fn knows_supervisors(&self, node: usize) -> bool {
        let zones = self.admin(node).json(&["zones"]);
        let zones = zones["zones"].as_array().into_iter().flatten();
        let known = zones.filter_map(|zone| zone["supervisors"].as_array());
        known.map(Vec::len).sum::<usize>() == NODES
    }

    fn of(&self, node: usize) -> &Rank {
        self.ranks[node - 1].as_ref().expect("a rank")
    }

    fn await_states(&mut self, expected: &str) {
        let ranks = self.ranks.iter_mut().flatten();
        ranks.for_each(|rank| rank.await_states(expected));
    }

    /// Connects the hosts of the third zone to this bridge.
    fn connect_to(&self, bridge: &str) {
        let lines = CUT.map(|host| format!("link set p{host}r0 master {bridge}\n"));
        self.hosts.configure_hub(&lines.concat());
    }

    /// The rank of a node is told that each of these nodes has failed.
    fn await_failed(&self, node: usize, failed: &[usize]) {
        let names: Vec<String> = failed.iter().map(|node| format!("node=n{node}")).collect();
        let events: Vec<[&str; 3]> = names
            .iter()
            .map(|name| ["EVENT", "NodeFailed", name])
            .collect();
        let lists: Vec<&[&str]> = events.iter().map(<[&str; 3]>::as_slice).collect();
        self.of(node).await_each(&lists);
        // What was before, the start of these nodes for instance, is not of interest.
        drop(self.of(node).take_passed());
    }

    /// Cuts the third zone off until both sides have told their ranks, and waits until its ranks are told that they are
    /// outcast.
    fn cut_and_heal(&self) {
        self.hosts
            .configure_hub("link add br9 type bridge\nlink set br9 up\n");
        self.connect_to("br9");
        REST.iter().for_each(|node| self.await_failed(*node, &CUT));
        CUT.iter().for_each(|node| self.await_failed(*node, &REST));
        self.connect_to("br0");
        for node in CUT {
            self.of(node).await_words(&["EVENT", "Outcast"]);
        }
    }
}

/// ZM-12. Ranks tell their MPI of failures: the nodes of the outcast zone stop, and for the others they stay failed.
#[test]
fn an_outcast_zone_stops_where_mpi_was_told() {
    let Some(mut split) = Split::start(&[("MUSTER_ULFM", "1")]) else {
        return;
    };
    split.cut_and_heal();
    for node in CUT {
        until(
            || format!("n{node} goes on"),
            || {
                let members = split.admin(node).json(&["members"]);
                (members["outcast"] == true).then_some(())
            },
        );
    }
    // The others have not taken it back before the next event.
    split.ranks[0].take().expect("a rank").kill();
    for node in &REST[1..] {
        split
            .of(*node)
            .await_words(&["EVENT", "RankFailed", "rank=0"]);
        let told = split.of(*node).take_passed();
        let is_back = |line: &String| {
            let is_up = line.contains("NodeUp") || line.contains("RankUp");
            line.contains("Outcast")
                || (is_up && CUT.iter().any(|n| line.contains(&format!("node=n{n}"))))
        };
        assert!(!told.iter().any(is_back), "{told:?}");
        let zones = split.admin(*node).json(&["zones"]);
        assert_eq!(zones["zones"][2]["failed"], ZONE, "{zones}");
    }
}

/// ZM-12. No MPI was told: the outcast zone returns, and all ranks see all nodes alive.
#[test]
fn an_outcast_zone_returns_where_no_mpi_was_told() {
    let Some(mut split) = Split::start(&[]) else {
        return;
    };
    split.cut_and_heal();
    split.await_states(&alive(NODES, NODES as u32));
    for node in REST {
        let told = split.of(node).take_passed_with(&["Outcast"]);
        assert_eq!(told, [""; 0]);
    }
}
