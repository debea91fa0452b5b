//! The world: engines, the network between them, virtual time, and faults.
//!
//! Time jumps from one happening to the next; two at the same time happen in the order in which
//! they were caused. After each, the engine that was touched is drained as every host must do it:
//! transmits, events, time-out.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use muster_protocol::{
    Config, Event, EventKind, Input, Instant, MemberId, NodeState, Overlay, Phase, Profile,
    RankDetail, RankState, Reject, Told,
};

use crate::chance::Chance;
use crate::checker::Checker;
use crate::network::Network;

/// Number of a node in its world.
pub type NodeIndex = usize;

/// The key of every simulated job.
const KEY: [u8; 32] = [42; 32];
/// Datagrams a stopped node's socket holds; later ones are lost.
const INBOX_MAX: usize = 256;
/// Virtual time begins here: no host's clock starts at zero.
const START: Instant = Instant(10_000_000);

/// One event and who told it.
#[derive(Clone, Copy, Debug)]
pub struct Record {
    /// The node whose engine told it.
    pub observer: NodeIndex,
    /// What it told.
    pub event: Event,
}

#[derive(Debug)]
struct Node {
    config: Config,
    /// `None` while it is crashed.
    engine: Option<Overlay>,
    paused: bool,
    inbox: Vec<Vec<u8>>,
    wake_at: Instant,
    /// A fault excuses others for calling it failed, in lives up to this one.
    excused: bool,
    bytes_sent: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Happening {
    Wake(NodeIndex),
    Arrival(NodeIndex, Vec<u8>),
    Continue(NodeIndex),
}

/// A simulated job.
#[derive(Debug)]
pub struct World {
    /// The network's odds and cuts; change them at any time.
    pub network: Network,
    /// What must always hold.
    pub checker: Checker,
    now: Instant,
    nodes: Vec<Node>,
    by_address: BTreeMap<Vec<u8>, NodeIndex>,
    queue: BinaryHeap<Reverse<(Instant, u64, Happening)>>,
    order: u64,
    chance: Chance,
    records: Vec<Record>,
    buffer: Vec<u8>,
}

impl World {
    /// An empty world; everything in it follows from the seed and the calls.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self {
            network: Network::default(),
            checker: Checker::default(),
            now: START,
            nodes: Vec::new(),
            by_address: BTreeMap::new(),
            queue: BinaryHeap::new(),
            order: 0,
            chance: Chance::new(seed),
            records: Vec::new(),
            buffer: vec![0; 65_536],
        }
    }

    /// A world of `count` nodes that all know the address of the first, and have just started.
    #[must_use]
    pub fn booted(seed: u64, count: usize, profile: Profile) -> Self {
        let mut world = Self::new(seed);
        for index in 0..count {
            let config = world.config(&format!("node{index}"), profile);
            world.add(config);
        }
        world
    }

    /// A configuration for a node of this name, at an address of its own, with the first node as
    /// its seed.
    #[must_use]
    pub fn config(&mut self, name: &str, profile: Profile) -> Config {
        let address = format!("address-{}", self.nodes.len());
        let mut config = Config::new(name, address.as_bytes(), profile);
        config.key = Some(KEY);
        config.random_seed = self.chance.between(0, u64::MAX - 1);
        config.seeds = vec![b"address-0".to_vec()];
        config.incarnation = self.now.0 * 1000;
        config.first_sequence = self.now.0;
        config
    }

    /// Starts a node.
    ///
    /// # Panics
    /// If the configuration is refused.
    pub fn add(&mut self, config: Config) -> NodeIndex {
        let index = self.nodes.len();
        self.by_address.insert(config.address.clone(), index);
        let engine = Overlay::new(config.clone()).expect("the configuration of a simulated node");
        self.nodes.push(Node {
            config,
            engine: Some(engine),
            paused: false,
            inbox: Vec::new(),
            wake_at: Instant::NEVER,
            excused: false,
            bytes_sent: 0,
        });
        self.touch(index, Input::Wake).ok();
        index
    }

    /// Virtual time now.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.now
    }

    /// Everything told so far, in order.
    #[must_use]
    pub fn records(&self) -> &[Record] {
        &self.records
    }

    /// The world's own stream of chance.
    pub fn chance(&mut self) -> &mut Chance {
        &mut self.chance
    }

    /// A node's engine.
    ///
    /// # Panics
    /// If the node is crashed.
    #[must_use]
    pub fn engine(&self, node: NodeIndex) -> &Overlay {
        self.nodes[node]
            .engine
            .as_ref()
            .expect("a crashed node has no engine")
    }

    /// Bytes a node has handed to the network.
    #[must_use]
    pub fn bytes_sent(&self, node: NodeIndex) -> u64 {
        self.nodes[node].bytes_sent
    }

    /// The id of a node.
    #[must_use]
    pub fn id(&self, node: NodeIndex) -> MemberId {
        MemberId::of(&self.nodes[node].config.name)
    }

    /// Nodes whose engine runs, is not stopped and has not left.
    #[must_use]
    pub fn running(&self) -> Vec<NodeIndex> {
        (0..self.nodes.len())
            .filter(|index| {
                let node = &self.nodes[*index];
                let running = node
                    .engine
                    .as_ref()
                    .is_some_and(|engine| engine.phase() == Phase::Running);
                running && !node.paused
            })
            .collect()
    }

    /// Hands an input to a node's engine now.
    ///
    /// # Errors
    /// What the engine said.
    pub fn input(&mut self, node: NodeIndex, input: Input<'_>) -> Result<(), Reject> {
        self.touch(node, input)
    }

    /// The kernel of a node says what became of a rank.
    ///
    /// # Panics
    /// If the engine refuses it.
    pub fn rank(&mut self, node: NodeIndex, rank: u32, state: RankState) {
        let detail = RankDetail {
            code: 1,
            argument: 9,
        };
        let told = Told::Rank {
            rank,
            state,
            detail,
        };
        self.touch(node, Input::Told(told))
            .expect("a rank fact of one's own node");
    }

    /// Power off: nothing of the node is left, and nobody is told.
    pub fn crash(&mut self, node: NodeIndex) {
        let node = &mut self.nodes[node];
        node.engine = None;
        node.paused = false;
        node.inbox.clear();
        node.wake_at = Instant::NEVER;
    }

    /// A crashed node (or one that runs) starts a new life.
    ///
    /// # Panics
    /// If the configuration is refused.
    pub fn restart(&mut self, node: NodeIndex) {
        self.crash(node);
        self.checker.forget(node);
        let entry = &mut self.nodes[node];
        entry.config.incarnation = self.now.0 * 1000;
        entry.config.first_sequence = self.now.0;
        entry.excused = false;
        entry.engine = Some(Overlay::new(entry.config.clone()).expect("checked before"));
        self.touch(node, Input::Wake).ok();
    }

    /// The worker of a node dies and another takes over from its snapshot, `gap_us` later.
    ///
    /// # Panics
    /// If the node is crashed or its snapshot cannot be read.
    pub fn resume_worker(&mut self, node: NodeIndex, gap_us: u64) {
        let mut bytes = Vec::new();
        self.engine(node).snapshot(&mut bytes);
        self.crash(node);
        let now = self.now.after(gap_us);
        let entry = &mut self.nodes[node];
        entry.config.first_sequence = now.0;
        let engine = Overlay::resume(entry.config.clone(), &bytes, now);
        entry.engine = Some(engine.expect("a snapshot made just now"));
        entry.paused = true;
        self.schedule(now, Happening::Continue(node));
    }

    /// SIGSTOP: the node does nothing for so long; its socket holds what arrives, up to a bound.
    pub fn pause(&mut self, node: NodeIndex, duration_us: u64) {
        if duration_us >= self.nodes[node].config.deadline_us / 3 {
            self.excuse(node);
        }
        self.nodes[node].paused = true;
        self.schedule(self.now.after(duration_us), Happening::Continue(node));
    }

    /// Nobody is blamed for calling this node failed from now on (until it restarts).
    pub fn excuse(&mut self, node: NodeIndex) {
        self.nodes[node].excused = true;
    }

    /// Cuts a node off, both ways.
    pub fn isolate(&mut self, node: NodeIndex) {
        let others: Vec<NodeIndex> = (0..self.nodes.len())
            .filter(|other| *other != node)
            .collect();
        self.split(&[node], &others);
    }

    /// Cuts all ways between two groups; everybody in them is excused.
    pub fn split(&mut self, left: &[NodeIndex], right: &[NodeIndex]) {
        for a in left {
            self.excuse(*a);
            for b in right {
                self.excuse(*b);
                self.network.cut(*a, *b);
                self.network.cut(*b, *a);
            }
        }
    }

    /// Bytes arrive at a node from nowhere.
    ///
    /// # Errors
    /// What the engine said.
    pub fn inject(&mut self, node: NodeIndex, bytes: &[u8]) -> Result<(), Reject> {
        self.touch(node, Input::Datagram { bytes })
    }

    /// Lets this much time go by.
    pub fn run(&mut self, duration_us: u64) {
        let end = self.now.after(duration_us);
        while let Some(at) = self.next_at()
            && at <= end
        {
            self.step();
        }
        self.now = end;
    }

    /// Runs until `done` says so; false if it did not within the time.
    pub fn run_until(&mut self, limit_us: u64, mut done: impl FnMut(&Self) -> bool) -> bool {
        let end = self.now.after(limit_us);
        loop {
            if done(self) {
                return true;
            }
            match self.next_at() {
                Some(at) if at <= end => self.step(),
                _ => {
                    self.now = end;
                    return done(self);
                }
            }
        }
    }

    /// Whether every running member's view is exactly the running members in their present
    /// versions, all alive, with the same rank facts.
    #[must_use]
    pub fn converged(&self) -> bool {
        let running = self.running();
        let Some(first) = running.first().map(|index| self.engine(*index)) else {
            return true;
        };
        let agree = running.iter().all(|index| {
            let engine = self.engine(*index);
            engine.live() == running.len() && engine.digest() == first.digest()
        });
        agree
            && running
                .iter()
                .all(|index| self.view_is_true(*index, &running))
    }

    fn view_is_true(&self, observer: NodeIndex, running: &[NodeIndex]) -> bool {
        let engine = self.engine(observer);
        running.iter().all(|index| {
            let subject = self.engine(*index);
            let Some(own) = subject.member(subject.id()) else {
                return false;
            };
            engine.member(subject.id()).is_some_and(|seen| {
                seen.version() == own.version()
                    && matches!(seen.state(), NodeState::Alive | NodeState::Degraded)
                    && seen.ranks().eq(own.ranks())
            })
        })
    }

    /// The observers that told this kind of event about a node since `since`, with the time.
    #[must_use]
    pub fn told(
        &self,
        since: Instant,
        node: NodeIndex,
        kind: impl Fn(&EventKind) -> bool,
    ) -> Vec<(NodeIndex, Instant)> {
        let id = self.id(node);
        let mut seen = BTreeSet::new();
        self.records
            .iter()
            .filter(|record| record.event.at >= since && record.event.member == id)
            .filter(|record| kind(&record.event.kind))
            .filter(|record| seen.insert(record.observer))
            .map(|record| (record.observer, record.event.at))
            .collect()
    }

    fn next_at(&self) -> Option<Instant> {
        self.queue.peek().map(|Reverse((at, _, _))| *at)
    }

    fn schedule(&mut self, at: Instant, happening: Happening) {
        self.order += 1;
        self.queue.push(Reverse((at, self.order, happening)));
    }

    fn step(&mut self) {
        let Some(Reverse((at, _, happening))) = self.queue.pop() else {
            return;
        };
        self.now = at;
        match happening {
            Happening::Wake(node) => {
                let entry = &self.nodes[node];
                if entry.wake_at == at && !entry.paused && entry.engine.is_some() {
                    self.touch(node, Input::Wake).ok();
                }
            }
            Happening::Arrival(node, bytes) => {
                let entry = &mut self.nodes[node];
                if entry.engine.is_none() {
                    return;
                }
                if entry.paused {
                    if entry.inbox.len() < INBOX_MAX {
                        entry.inbox.push(bytes);
                    }
                    return;
                }
                self.touch(node, Input::Datagram { bytes: &bytes }).ok();
            }
            Happening::Continue(node) => {
                if self.nodes[node].engine.is_none() {
                    return;
                }
                self.nodes[node].paused = false;
                for bytes in core::mem::take(&mut self.nodes[node].inbox) {
                    self.touch(node, Input::Datagram { bytes: &bytes }).ok();
                }
                self.touch(node, Input::Wake).ok();
            }
        }
    }

    /// One input, and everything that follows from it at once.
    fn touch(&mut self, node: NodeIndex, input: Input<'_>) -> Result<(), Reject> {
        let now = self.now;
        let Some(engine) = &mut self.nodes[node].engine else {
            return Err(Reject::Stopped);
        };
        let result = engine.handle(now, input);
        self.drain(node);
        result
    }

    fn drain(&mut self, node: NodeIndex) {
        let now = self.now;
        let mut buffer = core::mem::take(&mut self.buffer);
        while let Some(engine) = &mut self.nodes[node].engine
            && let Some(transmit) = engine.poll_transmit(now, &mut buffer)
        {
            let target = engine.address_of(transmit.target).map(<[u8]>::to_vec);
            let target = target.and_then(|address| self.by_address.get(&address).copied());
            self.nodes[node].bytes_sent += transmit.size as u64;
            let Some(to) = target else { continue };
            let bytes = &buffer[..transmit.size];
            for (delay_us, bytes) in self.network.carry(&mut self.chance, node, to, bytes) {
                self.schedule(now.after(delay_us), Happening::Arrival(to, bytes));
            }
        }
        self.buffer = buffer;
        while let Some(event) = self.nodes[node]
            .engine
            .as_mut()
            .and_then(Overlay::poll_event)
        {
            let running = self.is_blameless(&event);
            self.checker.see(node, &event, running);
            self.records.push(Record {
                observer: node,
                event,
            });
        }
        let Some(engine) = &self.nodes[node].engine else {
            return;
        };
        let at = engine.poll_timeout();
        if at != Instant::NEVER {
            // An engine that asks for now again and again would stop the world's clock.
            let at = at.max(now.after(1));
            self.nodes[node].wake_at = at;
            self.schedule(at, Happening::Wake(node));
        }
    }

    /// Whether the member of an event runs in that very life and no fault excuses its death.
    fn is_blameless(&self, event: &Event) -> bool {
        self.nodes.iter().any(|node| {
            MemberId::of(&node.config.name) == event.member
                && !node.excused
                && node.engine.as_ref().is_some_and(|engine| {
                    engine.phase() == Phase::Running
                        && engine.version().incarnation == event.version.incarnation
                })
        })
    }
}
