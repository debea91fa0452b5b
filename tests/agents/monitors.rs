//! Monitors in a job of real agents: nodes that declare themselves by an attribute, and to which the members that
//! find a silence report it directly.
//!
//! In a view of at most 32 members all are told directly, so the job is larger. What its agents send each
//! other is counted for each peer. A member sends to those that it has a link with at every heartbeat, so only one
//! that has no link with a monitor shows the report.

use muster_ipc::control_socket::SOCKET;
use muster_tests::admin::Admin;
use muster_tests::nodes::Nodes;
use muster_tests::rank::Rank;
use muster_tests::until;

const NODES: usize = 40;
/// Most nodes that may be lost: with fewer members left, all would be told directly.
const LOST_MAX: usize = 6;

/// The monitors; a member reports to at most eight.
const MONITORS: [usize; 6] = [1, 2, 3, 4, 5, 6];
/// How many reports without a link must have come to monitors. A member that reports has asked about half of all
/// members to probe, which looks alike: a few prove nothing.
const TOLD_MIN: usize = 12;

/// What a node has sent to monitors.
#[derive(Debug)]
struct Sent {
    node: usize,
    /// Its own reports about any member.
    reports: u64,
    /// Its messages to each monitor; none if it has a link with that one, or is that one.
    messages: [Option<u64>; MONITORS.len()],
}

/// A job with a rank on each node: rank 0 is on n1, rank 1 on n2, and so on.
struct World {
    ranks: Vec<Option<Rank>>,
    job: Nodes,
    lost: usize,
}

impl World {
    /// Starts a rank on each node; all see each other.
    fn start() -> Self {
        // So many agents on few cores are late at times, which must not be taken for a silence. An agent whose
        // rank was killed stays: it is to be killed, not to leave.
        let job = Nodes::new(NODES).with_one_rail().with_profile("quiet");
        let job = job.with_linger_ms(600_000);
        let ranks: Vec<Rank> = (0..NODES).map(|n| job.begin(n + 1, n as u32)).collect();
        let mut world = Self {
            ranks: ranks
                .into_iter()
                .map(|rank| Some(rank.attached()))
                .collect(),
            job,
            lost: 0,
        };
        world.await_all_alive();
        world
    }

    fn await_all_alive(&mut self) {
        for rank in self.ranks.iter_mut().flatten() {
            rank.await_view(|view| {
                view.matches(" n").count() == NODES && view.matches("=Alive").count() == 2 * NODES
            });
        }
    }

    fn rank(&mut self, node: usize) -> &mut Rank {
        self.ranks[node - 1].as_mut().expect("a rank")
    }

    fn admin(&self, node: usize) -> Admin {
        Admin(self.job.agent_directory(node).directory().join(SOCKET))
    }

    fn living(&self) -> Vec<usize> {
        (1..=NODES)
            .filter(|node| self.ranks[node - 1].is_some())
            .collect()
    }

    /// A process of this node declares it a monitor; all nodes know that.
    fn declare(&mut self, monitor: usize) {
        let rank = self.rank(monitor);
        rank.send("publish muster.monitor 1");
        rank.await_words(&["PUBLISHED", "muster.monitor"]);
        for node in self.living() {
            let rank = self.rank(node);
            until(
                || format!("n{node} does not know the monitor n{monitor}"),
                || {
                    rank.send(&format!("get n{monitor} muster.monitor"));
                    rank.await_words(&["VALUE"])
                        .ends_with(" muster.monitor 1")
                        .then_some(())
                },
            );
        }
    }

    /// How many messages a node has sent to each monitor.
    fn sends(&self, from: usize) -> [u64; MONITORS.len()] {
        let stats = self.admin(from).json(&["stats", "--per", "peer"]);
        let peers = stats["peers"].as_array().expect("peers");
        MONITORS.map(|monitor| {
            let name = format!("n{monitor}");
            let peer = peers.iter().find(|peer| peer["name"] == name.as_str());
            peer.map_or(0, |peer| peer["sends"].as_u64().expect("a number"))
        })
    }

    /// What the living nodes have sent to the monitors. A node that sends nothing to a monitor, while it sends
    /// more beats than it has links, has no link with it.
    fn sent(&mut self) -> Vec<Sent> {
        let before: Vec<(Sent, u64)> = self
            .living()
            .into_iter()
            .map(|node| {
                let sent = Sent {
                    node,
                    reports: self.rank(node).counter("reports"),
                    messages: self.sends(node).map(Some),
                };
                (sent, self.rank(node).counter("beats_sent"))
            })
            .collect();
        let await_beats = |(mut sent, beats): (Sent, u64)| {
            let least = beats + 2 * NODES as u64;
            self.rank(sent.node).await_counter("beats_sent", least);
            let now = self.sends(sent.node);
            for (index, before) in sent.messages.iter_mut().enumerate() {
                let is_other = MONITORS[index] != sent.node;
                *before = before.filter(|before| is_other && *before == now[index]);
            }
            sent
        };
        before.into_iter().map(await_beats).collect()
    }

    /// Kills nodes, one after the other, until members that have no link with a monitor have sent it [`TOLD_MIN`]
    /// reports. All monitors know of each report and verdict.
    fn expect_reports(&mut self) {
        let mut told = 0;
        while told < TOLD_MIN {
            let victim = NODES - self.lost;
            let mut before = self.sent();
            before.retain(|sent| sent.node != victim);
            self.lose(victim);
            for monitor in MONITORS {
                let node = format!("node=n{victim}");
                let rank = self.rank(monitor);
                rank.await_words(&["EVENT", "NodeFailed", &node]);
                let why = self.admin(monitor).json(&["why", &node[5..]]);
                let reporters = why["reporters"].as_array().expect("reporters");
                assert!(!reporters.is_empty(), "{why:#}");
            }
            for sent in before {
                // A member that was only asked to probe counts as a reporter, too, and sends no report.
                if self.rank(sent.node).counter("reports") == sent.reports {
                    continue;
                }
                // A report is sent in the turn in which it is counted, and statistics are read between turns. A
                // later look would count what the member may send to any other.
                let now = self.sends(sent.node);
                for (index, before) in sent.messages.iter().enumerate() {
                    let Some(before) = before else { continue };
                    assert!(now[index] > *before, "{now:?} are sent, {sent:?} before");
                    told += 1;
                }
            }
        }
    }

    fn lose(&mut self, node: usize) {
        self.lost += 1;
        assert!(self.lost <= LOST_MAX, "too few members are left");
        self.job.lose(node, self.ranks[node - 1].take());
    }

    /// Starts a lost node again.
    fn restart(&mut self, node: usize) {
        self.lost -= 1;
        self.ranks[node - 1] = Some(self.job.start(node, node as u32 - 1));
    }
}

/// ZM-10, ZM-14: nodes that a process declares monitors are told of a silence by the members that find it, also
/// without a link to these. One of them dies and returns, and another one is told; then all are told of what
/// happens.
#[test]
fn monitors_are_told_by_the_reporters() {
    let mut world = World::start();
    for monitor in MONITORS {
        world.declare(monitor);
    }
    let (one, other) = (MONITORS[0], MONITORS[1]);
    let node = format!("node=n{other}");
    world.lose(other);
    world.rank(one).await_words(&["EVENT", "NodeFailed", &node]);
    world.restart(other);
    world.rank(one).await_words(&["EVENT", "NodeUp", &node]);
    world.declare(other);
    world.expect_reports();
}
