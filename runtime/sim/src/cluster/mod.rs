//! The machine of the gossip simulation paper (BG): clusters of 16 nodes with two networks each, background
//! traffic and faults, and on each node the age engine in the paper's mode.
//!
//! What the paper measures: one node has been dead for long and is in no list; at the start it is repaired;
//! the run ends when all nodes list it. Here a run may also start with the node's death and end when no node
//! lists it.
//!
//! The paper's mode of the engine: pushes without replies, only to listed members; ages that count from the
//! time at which a member stated that it is alive (the paper's heartbeat times); one threshold.

mod figure;
mod network;
mod setting;
#[cfg(test)]
mod tests;
mod topology;

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use muster_protocol::age::{Age, AgeConfig, Choice, Exchange, Participant};
use muster_protocol::{EventKind, Input, Instant, MemberId, Target};

use crate::chance::Chance;
pub use figure::{Axis, ClusterFigure, Line, PaperPoint, PointFound};
use network::{Message, MessageId, Step, Wires};
pub use setting::{Agreement, ClusterSetting, Gossiping, Start};
pub use topology::CLUSTER;
use topology::{Port, Topology};

const KEY: [u8; 32] = [3; 32];
/// The incarnation of every node.
const FIRST_INCARNATION: u64 = 1;
/// Size of an application's message (BG-07).
const TRAFFIC_BYTES: u64 = 512;
/// Oldest age that the engine distinguishes from "never".
const AGE_MAX: u64 = 250;

/// Runs one setting with one seed.
#[must_use]
pub fn run_cluster(setting: &ClusterSetting, seed: u64) -> Agreement {
    World::new(setting, seed).run()
}

/// What happens next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Action {
    Wires(Step),
    Wake(usize),
    Traffic(usize),
    Start,
}

struct World<'a> {
    setting: &'a ClusterSetting,
    chance: Chance,
    topology: Topology,
    wires: Wires,
    /// When each node wakes next. An earlier planned wake-up is void.
    wakes_ns: Vec<u64>,
    /// The gossip of each node that has not been sent yet, if gossips wait.
    sending: Vec<Option<MessageId>>,
    /// When each node's local and global port last received an undamaged message.
    received_ns: Vec<[u64; 2]>,
    engines: Vec<Option<Age>>,
    ids: Vec<MemberId>,
    queue: BinaryHeap<Reverse<(u64, u64, Action)>>,
    order: u64,
    now_ns: u64,
    /// The node that is repaired or dies, and the nodes that must agree.
    subject: usize,
    judges: Vec<usize>,
    /// Which nodes do not run now.
    is_dead: Vec<bool>,
    /// For each judging node: the judged nodes that it has wrong.
    missing: Vec<Vec<bool>>,
    missing_count: usize,
    started_ns: Option<u64>,
    agreement: Agreement,
    buffer: Vec<u8>,
}

impl<'a> World<'a> {
    fn new(setting: &'a ClusterSetting, seed: u64) -> Self {
        let mut chance = Chance::new(seed);
        let mut topology = Topology::new(setting.nodes, setting.uplinks);
        let clusters = setting.nodes / CLUSTER;
        for cluster in 0..setting.partitions.min(clusters) {
            topology.cut[cluster] = true;
        }
        // The largest group: the clusters that are not cut off, or one that is.
        let whole = setting.partitions.min(clusters) * CLUSTER;
        let judges: Vec<usize> = if whole < setting.nodes {
            (whole..setting.nodes).collect()
        } else {
            (0..CLUSTER).collect()
        };
        let subject = *chance.pick(&judges).unwrap_or(&0);
        let nids: Vec<String> = (0..setting.nodes)
            .map(|node| format!("n{node:04}@my0"))
            .collect();
        let mut world = Self {
            setting,
            wires: Wires::new(topology.wires()),
            wakes_ns: vec![0; setting.nodes],
            sending: vec![None; setting.nodes],
            received_ns: vec![[0; 2]; setting.nodes],
            topology,
            ids: nids.iter().map(|nid| MemberId::of(nid)).collect(),
            engines: Vec::new(),
            queue: BinaryHeap::new(),
            order: 0,
            now_ns: 0,
            subject,
            is_dead: (0..setting.nodes)
                .map(|node| node == subject && setting.start == Start::Repair)
                .collect(),
            missing: vec![vec![false; setting.nodes]; setting.nodes],
            missing_count: 0,
            judges,
            started_ns: None,
            agreement: Agreement::default(),
            buffer: vec![0; 65_000],
            chance,
        };
        world.engines = (0..setting.nodes)
            .map(|node| Some(world.engine(&nids, node, seed)))
            .collect();
        world
    }

    fn engine(&self, nids: &[String], node: usize, seed: u64) -> Age {
        let setting = self.setting;
        let participants = nids.iter().enumerate().map(|(node, nid)| {
            let mut participant = Participant::new(nid);
            participant.group = format!("c{}", node / CLUSTER);
            participant
        });
        let mut config = AgeConfig::new(&nids[node], participants.collect());
        let permille = |part: f64| (part * 1000.0) as u16;
        match setting.gossiping {
            Gossiping::Basic => {}
            Gossiping::Hierarchical(local) => {
                config.choice = Choice::Local {
                    permille: permille(local),
                };
            }
            Gossiping::Piggyback { factor, local } => {
                config.piggyback_permille = Some(permille(factor));
                if let Some(local) = local {
                    config.choice = Choice::Local {
                        permille: permille(local),
                    };
                }
            }
            Gossiping::Broadcast => config.choice = Choice::Local { permille: 0 },
            Gossiping::Buddies(local) => {
                config.choice = Choice::Local {
                    permille: permille(local),
                };
            }
        }
        config.interval_us = setting.interval_us;
        config.round_trip_us = 0;
        config.allow_fast_interval = true;
        config.key = Some(KEY);
        config.incarnation = FIRST_INCARNATION;
        config.random_seed = seed ^ 0x6275_726e;
        config.mtu = 65_000;
        let cycles = (setting.cleanup_us / setting.interval_us).clamp(1, AGE_MAX) as u8;
        (config.suspect_after, config.dead_after, config.up_within) = (cycles, cycles, cycles);
        config.rules.hop = 0;
        config.rules.obsolete_after = u64::MAX;
        config.pings_dead = false;
        config.exchange = Exchange::Push;
        Age::new(config).expect("the setting is a possible configuration")
    }

    fn run(mut self) -> Agreement {
        self.break_ports();
        self.assume_steady_state();
        let interval_us = self.setting.interval_us;
        let some_cycles_us = (2 * self.setting.cleanup_us)
            .min(30 * interval_us)
            .max(20 * interval_us);
        let warm_us = self.setting.warm_us.unwrap_or(some_cycles_us);
        self.at(warm_us * 1000, Action::Start);
        let end_ns = (warm_us + self.setting.limit_us) * 1000;
        while let Some(Reverse((at_ns, _, what))) = self.queue.pop() {
            if at_ns > end_ns {
                break;
            }
            self.now_ns = at_ns;
            self.run_action(what);
            if let Some(started_ns) = self.started_ns
                && self.missing_count == 0
            {
                self.agreement.agreed_ms = Some((self.now_ns - started_ns) as f64 / 1e6);
                break;
            }
        }
        self.agreement.under_way = self.wires.under_way();
        self.agreement
    }

    /// All running nodes are in all lists; the node to be repaired is in none.
    fn assume_steady_state(&mut self) {
        let is_down = self.setting.start == Start::Repair;
        for node in 0..self.setting.nodes {
            let mut engine = self.engines[node].take().expect("it was just made");
            let since = self.first_moment(&engine);
            let known = |other: &usize| *other != node && !(is_down && *other == self.subject);
            for other in (0..self.setting.nodes).filter(known) {
                let heard = Input::TrafficFrom {
                    member: self.ids[other],
                    age_us: 0,
                };
                engine.handle(since, heard).expect("a participant");
            }
            // In the paper no node has to be discovered, not even the repaired one.
            for other in 0..self.setting.nodes {
                engine.know(self.ids[other], FIRST_INCARNATION);
            }
            while engine.poll_event().is_some() {}
            self.engines[node] = Some(engine);
            if !(is_down && node == self.subject) {
                self.begin(node);
            }
        }
    }

    /// When an engine begins. If all cycles are to be in step, this compensates the random offset that the
    /// engine draws for its first cycle.
    fn first_moment(&self, engine: &Age) -> Instant {
        let now = Instant(self.now_ns / 1000);
        if !self.setting.in_step {
            return now;
        }
        let mut probe = engine.clone();
        probe.handle(now, Input::Wake).ok();
        let off_us = probe.poll_timeout().since(now);
        now.after(self.setting.interval_us - off_us.min(self.setting.interval_us))
    }

    /// Starts a node's cycles and its traffic.
    fn begin(&mut self, node: usize) {
        let Some(engine) = &self.engines[node] else {
            return;
        };
        let since = self.first_moment(engine);
        let Some(engine) = &mut self.engines[node] else {
            return;
        };
        engine.handle(since, Input::Wake).ok();
        self.plan_wake(node);
        if self.setting.traffic_bytes > 0 {
            let pause_ns = self.traffic_pause();
            self.at(pause_ns, Action::Traffic(node));
        }
    }

    fn at(&mut self, later_ns: u64, what: Action) {
        self.order += 1;
        self.queue
            .push(Reverse((self.now_ns + later_ns, self.order, what)));
    }

    fn plan_wake(&mut self, node: usize) {
        let Some(engine) = &self.engines[node] else {
            return;
        };
        let mut wake_ns = engine.poll_timeout().0.saturating_mul(1000);
        if self.sending[node].is_some() {
            // A due gossip is sent after the previous one has left; cycles go on.
            wake_ns = wake_ns.max(self.now_ns + self.setting.interval_us * 1000);
        }
        let wake_ns = wake_ns.max(self.now_ns);
        self.wakes_ns[node] = wake_ns;
        self.at(wake_ns - self.now_ns, Action::Wake(node));
    }

    /// The pause before a node's next application message. BG-07: a Poisson process.
    fn traffic_pause(&mut self) -> u64 {
        let mean_ns = 1e9 * TRAFFIC_BYTES as f64 / self.setting.traffic_bytes as f64;
        let uniform = self.chance.between(1, 1 << 40) as f64 / (1_u64 << 40) as f64;
        (-uniform.ln() * mean_ns) as u64
    }

    fn run_action(&mut self, what: Action) {
        match what {
            Action::Start => self.start(),
            Action::Wake(node) if self.wakes_ns[node] != self.now_ns => {}
            Action::Wake(node) => {
                if self.stops_for_good(node) {
                    return self.die(node);
                }
                self.watch(node);
                let now = Instant(self.now_ns / 1000);
                let Some(engine) = &mut self.engines[node] else {
                    return;
                };
                // A piggybacked gossip may have postponed it.
                if engine.poll_timeout() <= now {
                    engine.handle(now, Input::Wake).ok();
                    self.read_events(node);
                    self.transmit(node);
                }
                self.plan_wake(node);
            }
            Action::Traffic(node) => self.traffic(node),
            Action::Wires(step) => self.step(step),
        }
    }

    fn start(&mut self) {
        self.started_ns = Some(self.now_ns);
        let was = std::mem::take(&mut self.agreement.false_detections);
        self.agreement = Agreement {
            false_detections: was,
            ..Agreement::default()
        };
        match self.setting.start {
            Start::Repair => {
                self.is_dead[self.subject] = false;
                for judge in self.judges.clone() {
                    if judge != self.subject {
                        self.set_missing(judge, self.subject, true);
                    }
                }
                self.begin(self.subject);
            }
            Start::Death => self.die(self.subject),
        }
    }

    /// BG-05: whether a processor stops for good now.
    fn stops_for_good(&mut self, node: usize) -> bool {
        let is_possible = self.started_ns.is_some()
            && node != self.subject
            && self.agreement.stopped < self.setting.processor_deaths_max as u64;
        is_possible && self.engines[node].is_some() && self.happens(self.setting.processor_death)
    }

    /// Whether an event of this probability happens now. Probability 0 draws no random number.
    fn happens(&mut self, probability: f64) -> bool {
        const PARTS: u64 = 1_000_000;
        let parts = (probability * PARTS as f64) as u64;
        parts > 0 && self.chance.between(0, PARTS - 1) < parts
    }

    /// A node stops. Every node that lists it is wrong from now on; its own list no longer counts.
    fn die(&mut self, node: usize) {
        self.engines[node] = None;
        self.is_dead[node] = true;
        self.agreement.stopped += u64::from(node != self.subject);
        for judge in self.judges.clone() {
            let is_listed = !self.is_dead[judge] && !self.missing[judge][node];
            self.set_missing(judge, node, is_listed);
            self.set_missing(node, judge, false);
        }
    }

    /// Records whether a judging node is wrong about another one.
    fn set_missing(&mut self, judge: usize, about: usize, misses: bool) {
        let is_judge = |node: &usize| self.judges.contains(node);
        if !is_judge(&judge) || !is_judge(&about) {
            return;
        }
        let before = std::mem::replace(&mut self.missing[judge][about], misses);
        self.missing_count += usize::from(misses);
        self.missing_count -= usize::from(before);
    }

    /// Reads what a node concluded.
    fn read_events(&mut self, node: usize) {
        while let Some(event) = self.engines[node].as_mut().and_then(Age::poll_event) {
            let about = self.ids.iter().position(|id| *id == event.member);
            let Some(about) = about else { continue };
            let is_listed = match event.kind {
                EventKind::NodeUp | EventKind::NodeRecovered => true,
                EventKind::NodeFailed => false,
                _ => continue,
            };
            let is_dead = self.is_dead[about];
            // Nodes beyond a partition are rightly taken off the list.
            let is_together = self.judges.contains(&node) && self.judges.contains(&about);
            if !is_listed && !is_dead && is_together {
                self.agreement.false_detections += 1;
            }
            self.set_missing(node, about, is_listed == is_dead);
        }
    }

    fn transmit(&mut self, node: usize) {
        let mut buffer = std::mem::take(&mut self.buffer);
        let now = Instant(self.now_ns / 1000);
        while self.sending[node].is_none()
            && let Some(engine) = &mut self.engines[node]
            && let Some(transmit) = engine.poll_transmit(now, &mut buffer)
        {
            let Target::Member(to) = transmit.target else {
                continue;
            };
            if let Some(to) = self.ids.iter().position(|id| *id == to) {
                let gossip: Box<[u8]> = buffer[..transmit.size].into();
                self.copy(node, to, &gossip);
                let message = self.send(node, to, self.setting.gossip_size(), Some(gossip));
                self.sending[node] = message.filter(|_| self.setting.waits);
            }
        }
        self.buffer = buffer;
    }

    /// BG-15: sends the same list to another receiver.
    fn copy(&mut self, from: usize, to: usize, gossip: &[u8]) {
        let first = from - from % CLUSTER;
        let others = match self.setting.gossiping {
            Gossiping::Broadcast => first..first + CLUSTER,
            Gossiping::Buddies(_) => from ^ 1..(from ^ 1) + 1,
            _ => return,
        };
        for other in others.filter(|other| *other != from && *other != to) {
            self.send(from, other, self.setting.gossip_size(), Some(gossip.into()));
        }
    }

    /// Does nothing if there is no route.
    fn send(
        &mut self,
        from: usize,
        to: usize,
        bytes: u64,
        gossip: Option<Box<[u8]>>,
    ) -> Option<MessageId> {
        if gossip.is_some() {
            self.agreement.sent += 1;
            self.agreement.bytes += self.setting.gossip_size();
        }
        let way = self.topology.route(from, to)?;
        let id = self.wires.send((from, to), way, bytes, gossip);
        self.at(0, Action::Wires(Step::Head(id)));
        Some(id)
    }

    /// BG-07: a message of the application, which may carry a gossip (BG-03).
    fn traffic(&mut self, node: usize) {
        if self.engines[node].is_none() {
            return;
        }
        let nodes = self.setting.nodes as u64;
        let cluster = (node - node % CLUSTER) as u64;
        let is_local = self.chance.permille(self.setting.local_permille());
        let to = loop {
            let to = if is_local {
                self.chance.between(cluster, cluster + CLUSTER as u64 - 1)
            } else {
                self.chance.between(0, nodes - 1)
            } as usize;
            if to != node && (to / CLUSTER == node / CLUSTER) == is_local {
                break to;
            }
        };
        let mut gossip = None;
        if let (Some(engine), Gossiping::Piggyback { .. }) =
            (&mut self.engines[node], self.setting.gossiping)
        {
            let now = Instant(self.now_ns / 1000);
            let size = engine.piggyback(now, self.ids[to], &mut self.buffer);
            gossip = size.map(|size| self.buffer[..size].into());
            self.read_events(node);
            self.plan_wake(node);
        }
        let carried = gossip.as_ref().map_or(0, |_| self.setting.gossip_size());
        self.send(node, to, TRAFFIC_BYTES + carried, gossip);
        let pause_ns = self.traffic_pause();
        self.at(pause_ns, Action::Traffic(node));
    }

    fn step(&mut self, step: Step) {
        let mut later = Vec::new();
        match step {
            Step::Head(id) => self.wires.head(id, |after, step| later.push((after, step))),
            Step::Release(wire) => {
                self.wires
                    .release(wire, |after, step| later.push((after, step)));
            }
            Step::Arrived(id) => {
                if let Some(message) = self.wires.arrived(id) {
                    let from = message.from;
                    self.arrive(message);
                    if self.sending[from] == Some(id) {
                        self.sending[from] = None;
                        self.transmit(from);
                    }
                }
            }
        }
        for (after_ns, step) in later {
            self.at(after_ns, Action::Wires(step));
        }
    }

    /// BG-05: each wire and either processor may have damaged the message. A damaged one is dropped.
    fn arrive(&mut self, message: Message) {
        let Message {
            to, gossip, way, ..
        } = message;
        let (wire, processor) = (self.setting.wire_fault, self.setting.processor_fault);
        let is_damaged = way.iter().any(|_| self.happens(wire))
            || self.happens(processor)
            || self.happens(processor);
        if is_damaged || self.topology.loses(&way) {
            return;
        }
        for (node, port) in self.topology.ports_in(&way).collect::<Vec<_>>() {
            self.received_ns[node][port as usize] = self.now_ns;
            self.topology.set_down(node, port, false);
        }
        let is_down = self.is_dead[to];
        let (Some(gossip), Some(engine)) = (gossip, &mut self.engines[to]) else {
            return;
        };
        if is_down {
            return;
        }
        self.agreement.received += 1;
        let now = Instant(self.now_ns / 1000);
        engine.handle(now, Input::Datagram { bytes: &gossip }).ok();
        self.read_events(to);
    }

    /// BG-06: a node considers a port down if it received no undamaged message for too long.
    fn watch(&mut self, node: usize) {
        let Some(watchdog_us) = self.setting.watchdog_us else {
            return;
        };
        for port in [Port::Local, Port::Global] {
            let silent_ns = self.now_ns - self.received_ns[node][port as usize];
            if silent_ns > watchdog_us * 1000 {
                self.topology.set_down(node, port, true);
            }
        }
    }

    fn break_ports(&mut self) {
        let nodes = self.setting.nodes as u64;
        let mut left = (0..self.setting.nodes).collect::<Vec<_>>();
        for _ in 0..self.setting.broken_ports.min(nodes as usize / 2) {
            for port in [Port::Local, Port::Global] {
                let at = self.chance.between(0, left.len() as u64 - 1) as usize;
                self.topology.set_broken(left.swap_remove(at), port, true);
            }
        }
    }
}
