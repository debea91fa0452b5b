//! The world: engines, the network between them, virtual time, and faults.
//!
//! Time jumps from one happening to the next. Two at the same time occur in the order in which they were
//! caused. After each one, the engine concerned is drained as every host must do it: transmits, events,
//! time-out.
//!
//! Modules: `faults` changes nodes, `excuses` records which failures that excuses, `rails` are the paths
//! between nodes, `outsider` records and replays frames without the key, `views` compares all nodes, `queue`
//! holds what will happen, `agreement` tracks which views are right, `cpu` is the cost of handling a
//! datagram.

mod addresses;
mod agreement;
mod cpu;
mod excuses;
mod faults;
mod outsider;
mod queue;
mod rails;
mod views;

use muster_protocol::{
    Config, Event, EventKind, Input, Instant, MemberId, Overlay, Phase, Profile, Reject, Transmit,
    Version, describe,
};

use crate::chance::Chance;
use crate::checker::{Checker, Seen, Violation};
use crate::clock::Clock;
use crate::network::Network;
use crate::trace::{Line, Trace};
pub use outsider::Recording;
pub use views::FactsHeard;

use addresses::Addresses;
use agreement::{Agreement, Held};
pub use cpu::Cpus;
use cpu::{NodeIo, Work};
use queue::{Alarm, Happening, Queue};

/// Number of a node in its world.
pub type NodeIndex = usize;

/// The key of every simulated job.
const KEY: [u8; 32] = [42; 32];
/// Datagrams that a stopped node's socket holds; later ones are lost.
const INBOX_MAX: usize = 256;
/// Start of virtual time: a real host's clock does not start at zero.
pub(crate) const START: Instant = Instant(10_000_000);

/// An event and the node that reported it.
#[derive(Clone, Copy, Debug)]
pub struct Record {
    /// The node whose engine reported it.
    pub observer: NodeIndex,
    /// When, in the world's time; the event itself has the observer's own.
    pub at: Instant,
    /// The event.
    pub event: Event,
}

#[derive(Debug)]
struct Node {
    id: MemberId,
    config: Config,
    /// `None` while it is crashed.
    engine: Option<Overlay>,
    paused: bool,
    /// When it continues, at the earliest.
    continues_at: Instant,
    /// Whether what arrives while it is paused is lost.
    drops_input: bool,
    inbox: Vec<Vec<u8>>,
    alarm: Alarm,
    /// Wake-ups in a row after which it requested another immediate one.
    restless: u32,
    /// Its sockets and loop, if handling a datagram takes time.
    io: NodeIo,
    /// When its present incarnation began.
    started_at: Instant,
    /// When it last crashed.
    gone_at: Instant,
    /// Whether it has the key of another job.
    foreign: bool,
    clock: Clock,
    /// The most by which it handles an event late, in microseconds.
    slow_us: u64,
    /// The highest version it ever had.
    version: Version,
    bytes_sent: u64,
    frames_sent: u64,
}

/// A simulated job.
#[derive(Debug)]
pub struct World {
    /// The network's probabilities and cuts; can be changed at any time.
    pub network: Network,
    /// The cost of handling a datagram.
    pub cpus: Cpus,
    /// The checkers of what must always hold.
    pub checker: Checker,
    now: Instant,
    nodes: Vec<Node>,
    by_address: Addresses,
    queue: Queue,
    work: Work,
    agreement: Agreement,
    /// Datagrams dropped because a socket was full.
    overrun: u64,
    chance: Chance,
    records: Vec<Record>,
    keep_records: bool,
    excuses: excuses::Excuses,
    trace: Option<Trace>,
    rails: rails::Rails,
    outsider: Option<outsider::Outsider>,
    buffer: Vec<u8>,
}

impl World {
    /// Creates an empty world. Everything in it follows from the seed and the calls.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self {
            network: Network::default(),
            cpus: Cpus::default(),
            checker: Checker::default(),
            now: START,
            nodes: Vec::new(),
            by_address: Addresses::default(),
            queue: Queue::default(),
            work: Work::default(),
            agreement: Agreement::default(),
            overrun: 0,
            chance: Chance::new(seed),
            records: Vec::new(),
            keep_records: true,
            excuses: excuses::Excuses::default(),
            trace: None,
            rails: rails::Rails::default(),
            outsider: None,
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

    /// A configuration for a node with this name and an address of its own, with the first node as its seed.
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
        self.by_address.insert(&config.address, index);
        let engine = Overlay::new(config.clone()).expect("the configuration of a simulated node");
        self.nodes.push(Node {
            id: engine.id(),
            foreign: config.key.is_some_and(|key| key != KEY),
            clock: Clock::new(self.now),
            started_at: self.now,
            gone_at: self.now,
            slow_us: 0,
            version: engine.version(),
            frames_sent: 0,
            config,
            engine: Some(engine),
            paused: false,
            continues_at: Instant::default(),
            drops_input: false,
            inbox: Vec::new(),
            alarm: Alarm::default(),
            restless: 0,
            io: NodeIo::default(),
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

    /// All events reported so far, in order.
    #[must_use]
    pub fn records(&self) -> &[Record] {
        &self.records
    }

    /// Number of nodes, also crashed ones.
    #[must_use]
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether there is no node.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Stops keeping events: for worlds with millions of them.
    pub fn keep_no_records(&mut self) {
        self.keep_records = false;
    }

    /// Starts to record every fault, frame and event.
    pub(crate) fn start_trace(&mut self) {
        self.trace = Some(Trace::default());
    }

    pub(crate) fn trace(&self) -> Option<&Trace> {
        self.trace.as_ref()
    }

    /// The world's random numbers.
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

    /// The address of a node.
    #[must_use]
    pub fn address(&self, node: NodeIndex) -> &[u8] {
        &self.nodes[node].config.address
    }

    /// Bytes that a node has handed to the network.
    #[must_use]
    pub fn bytes_sent(&self, node: NodeIndex) -> u64 {
        self.nodes[node].bytes_sent
    }

    /// Bytes that all nodes have handed to the network.
    #[must_use]
    pub fn bytes_sent_by_all(&self) -> u64 {
        self.nodes.iter().map(|node| node.bytes_sent).sum()
    }

    /// Datagrams that all nodes have handed to the network.
    #[must_use]
    pub fn frames_sent_by_all(&self) -> u64 {
        self.nodes.iter().map(|node| node.frames_sent).sum()
    }

    /// The id of a node.
    #[must_use]
    pub fn id(&self, node: NodeIndex) -> MemberId {
        self.nodes[node].id
    }

    /// Bytes arrive at a node without a sender.
    ///
    /// # Errors
    /// Returns the engine's refusal.
    pub fn inject(&mut self, node: NodeIndex, bytes: &[u8]) -> Result<(), Reject> {
        self.touch(node, Input::Datagram { bytes })
    }

    /// Lets this much time pass.
    pub fn run(&mut self, duration_us: u64) {
        self.note_mends();
        let end = self.now.after(duration_us);
        while let Some(at) = self.queue.next_at()
            && at <= end
        {
            self.step();
        }
        self.now = end;
    }

    /// Runs until `done` returns true. Returns false if that took longer than the limit.
    pub fn run_until(&mut self, limit_us: u64, mut done: impl FnMut(&Self) -> bool) -> bool {
        self.note_mends();
        let end = self.now.after(limit_us);
        loop {
            if done(self) {
                return true;
            }
            match self.queue.next_at() {
                Some(at) if at <= end => self.step(),
                _ => {
                    self.now = end;
                    return done(self);
                }
            }
        }
    }

    fn step(&mut self) {
        let Some((at, order, happening)) = self.queue.pop() else {
            return;
        };
        self.now = at;
        self.check_rails();
        match happening {
            Happening::Alarm(node) => {
                let node = node as usize;
                let alarm = &mut self.nodes[node].alarm;
                if self.queue.fires(alarm, node, (at, order)) {
                    self.fire_alarm(node);
                }
            }
            Happening::LateWake(node) => {
                let entry = &self.nodes[node as usize];
                if !entry.paused && entry.engine.is_some() {
                    self.wake(node as usize);
                }
            }
            Happening::Arrival(node, buffer_id, class) => {
                if self.cpus.service_us == 0 {
                    self.arrive(node as usize, buffer_id);
                } else {
                    self.enqueue(node as usize, buffer_id, class);
                }
            }
            Happening::Turn(cpu) => self.take_turn(cpu as usize),
            Happening::Continue(node) => self.continue_node(node as usize),
            Happening::Play => self.replay_next(),
        }
    }

    fn fire_alarm(&mut self, node: NodeIndex) {
        let entry = &self.nodes[node];
        if entry.paused || entry.engine.is_none() {
            return;
        }
        match entry.slow_us {
            0 => self.wake(node),
            slow_us => {
                let late_us = self.chance.between(0, slow_us);
                let at = self.now.after(late_us);
                self.queue.push(at, Happening::LateWake(node as u32));
            }
        }
    }

    /// The time that a node requested has come. Where handling takes time, the node is queued for its CPU.
    fn wake(&mut self, node: NodeIndex) {
        if self.cpus.service_us == 0 {
            self.touch(node, Input::Wake).ok();
        } else {
            self.queue_for_cpu(node);
        }
    }

    fn arrive(&mut self, node: NodeIndex, buffer_id: queue::BufferId) {
        let bytes = self.queue.take(buffer_id);
        let entry = &mut self.nodes[node];
        if entry.engine.is_none() {
            return self.queue.recycle(buffer_id, bytes);
        }
        if entry.paused {
            if entry.inbox.len() < INBOX_MAX && !entry.drops_input {
                entry.inbox.push(bytes.clone());
            }
            return self.queue.recycle(buffer_id, bytes);
        }
        let input = Input::Datagram { bytes: &bytes };
        if self.cpus.service_us == 0 {
            self.touch(node, input).ok();
        } else {
            let own_now = self.nodes[node].clock.own(self.now);
            self.handle(node, own_now, input).ok();
        }
        self.queue.recycle(buffer_id, bytes);
    }

    /// Continues a stopped node.
    fn continue_node(&mut self, node: NodeIndex) {
        // It crashed, or a longer stop began meanwhile.
        if self.nodes[node].engine.is_none() || self.now < self.nodes[node].continues_at {
            return;
        }
        self.nodes[node].paused = false;
        self.nodes[node].drops_input = false;
        for bytes in core::mem::take(&mut self.nodes[node].inbox) {
            self.touch(node, Input::Datagram { bytes: &bytes }).ok();
        }
        if self.cpus.service_us > 0 {
            // It reads what has arrived before it judges silences.
            return self.queue_for_cpu(node);
        }
        self.touch(node, Input::Wake).ok();
    }

    /// Handles one input and everything that follows from it: at once, or when the CPU gets to it.
    fn touch(&mut self, node: NodeIndex, input: Input<'_>) -> Result<(), Reject> {
        let own_now = self.nodes[node].clock.own(self.now);
        let result = self.handle(node, own_now, input);
        if self.nodes[node].engine.is_none() {
            return result;
        }
        if self.cpus.service_us > 0 {
            self.queue_for_cpu(node);
            return result;
        }
        while self.write_one(node, own_now) {}
        self.drain(node);
        if matches!(input, Input::Wake) {
            self.check_rest(node, own_now);
        }
        self.set_alarm(node);
        result
    }

    /// Handles one input and the events that follow from it.
    fn handle(
        &mut self,
        node: NodeIndex,
        own_now: Instant,
        input: Input<'_>,
    ) -> Result<(), Reject> {
        let Some(engine) = &mut self.nodes[node].engine else {
            return Err(Reject::Stopped);
        };
        let result = engine.handle(own_now, input);
        if self.cpus.service_us > 0 {
            self.drain(node);
        }
        result
    }

    /// Records what this node holds now for the comparison of views.
    fn note_view(&mut self, node: NodeIndex) {
        let entry = &self.nodes[node];
        let engine = entry
            .engine
            .as_ref()
            .filter(|engine| engine.phase() == Phase::Running);
        let held = engine
            .filter(|_| !entry.paused && !entry.foreign)
            .map(|engine| Held {
                own: engine.own_digest(),
                view: engine.digest(),
            });
        self.agreement.note(node, held, self.now);
    }

    fn drain(&mut self, node: NodeIndex) {
        while let Some(event) = self.nodes[node]
            .engine
            .as_mut()
            .and_then(Overlay::poll_event)
        {
            self.take_event(node, event);
        }
        let now = self.now;
        let entry = &mut self.nodes[node];
        let Some(engine) = &entry.engine else {
            return;
        };
        let version = engine.version();
        if version < entry.version {
            let what = format!(
                "own version went back from {:?} to {version:?}",
                entry.version
            );
            self.checker.add(Violation {
                checker: "incarnations",
                at: now,
                member: Some(engine.id()),
                what,
            });
        }
        entry.version = entry.version.max(version);
        self.note_view(node);
    }

    /// The engine writes a datagram, which is sent when the CPU is done with it. Returns false if there is
    /// none.
    fn write_one(&mut self, node: NodeIndex, own_now: Instant) -> bool {
        let mut buffer = core::mem::take(&mut self.buffer);
        let engine = self.nodes[node].engine.as_mut();
        let transmit = engine.and_then(|engine| engine.poll_transmit(own_now, &mut buffer));
        if let Some(transmit) = transmit {
            self.send(node, transmit, &buffer[..transmit.size]);
        }
        self.buffer = buffer;
        transmit.is_some()
    }

    fn send(&mut self, node: NodeIndex, transmit: Transmit, bytes: &[u8]) {
        let entry = &mut self.nodes[node];
        entry.bytes_sent += transmit.size as u64;
        entry.frames_sent += 1;
        let engine = entry.engine.as_ref();
        let target = engine.and_then(|engine| engine.address_of(transmit.target));
        let Some(to) = target.and_then(|address| self.by_address.get(address)) else {
            return;
        };
        let copies = self.carry(node, to, transmit.route, bytes);
        self.record_frame(to, bytes);
        if self.trace.is_some() {
            self.trace_frame(node, to, bytes, &copies);
        }
        let slow_us = self.nodes[to].slow_us;
        let leaves = self.now.after(self.cpus.service_us);
        for (mut delay_us, bytes) in copies {
            if slow_us > 0 {
                delay_us += self.chance.between(0, slow_us);
            }
            let buffer_id = self.queue.store(&bytes);
            let arrival = Happening::Arrival(to as u32, buffer_id, transmit.class);
            self.queue.push(leaves.after(delay_us), arrival);
        }
    }

    fn take_event(&mut self, observer: NodeIndex, event: Event) {
        if self.nodes[observer].foreign || self.is_unwatched() {
            return;
        }
        let listed: Vec<MemberId> = match (event.kind, &self.nodes[observer].engine) {
            (EventKind::GroupFailed { number, .. }, Some(engine)) => {
                let failure = engine.group_failure(number);
                failure.map_or_else(Vec::new, |failure| failure.members.clone())
            }
            _ => Vec::new(),
        };
        if event.kind == EventKind::Outcast {
            self.note_cast_out(observer);
        }
        let is_down = matches!(
            event.kind,
            EventKind::NodeFailed | EventKind::NodeLeft { .. }
        );
        let runs = is_down && self.runs(&event);
        let failed = event.kind == EventKind::NodeFailed;
        let blameless = failed && runs && !self.is_excused(observer, &event);
        let long_gone = event.kind == EventKind::NodeUp && self.is_long_gone(observer, &event);
        let side = match event.kind {
            EventKind::NodeFailed => self.side_of(observer),
            _ => None,
        };
        let seen = Seen {
            observer,
            event: &event,
            blameless,
            runs,
            long_gone,
            own: self.id(observer),
            side: side.as_deref(),
            listed: &listed,
        };
        self.checker.see(self.now, &seen);
        if self.trace.is_some() {
            let by: Vec<MemberId> = event.cause.reporters.iter().collect();
            let by = match by[..] {
                [] => String::new(),
                _ => format!(", by {}", self.names(&by)),
            };
            let text = format!(
                "{} REPORTS {} v{}.{}: {:?} ({:?}{by})",
                self.nodes[observer].config.name,
                self.names(&[event.member]),
                event.version.incarnation,
                event.version.minor,
                event.kind,
                event.cause.kind,
            );
            self.trace_line(text, vec![event.member]);
        }
        if self.keep_records {
            self.records.push(Record {
                observer,
                at: self.now,
                event,
            });
        }
    }

    /// Whether events are not used: a world that only measures.
    fn is_unwatched(&self) -> bool {
        !self.keep_records && self.trace.is_none() && self.checker.is_disabled()
    }

    fn trace_frame(
        &mut self,
        from: NodeIndex,
        to: NodeIndex,
        bytes: &[u8],
        copies: &[(u64, Vec<u8>)],
    ) {
        let Some((text, mut about)) = describe::frame(bytes) else {
            return;
        };
        let fate = match copies {
            [] => "lost".to_owned(),
            [(delay_us, _)] => format!("{delay_us} us"),
            [(delay_us, _), ..] => format!("{} copies, first {delay_us} us", copies.len()),
        };
        let text = format!(
            "{} -> {} [{fate}] {}",
            self.nodes[from].config.name,
            self.nodes[to].config.name,
            self.with_names(&text)
        );
        about.push(self.id(from));
        about.push(self.id(to));
        self.trace_line(text, about);
    }

    pub(crate) fn trace_line(&mut self, text: String, about: Vec<MemberId>) {
        let at = self.now;
        if let Some(trace) = &mut self.trace {
            trace.push(Line { at, text, about });
        }
    }

    fn names(&self, ids: &[MemberId]) -> String {
        let name = |id: &MemberId| {
            let node = self
                .nodes
                .iter()
                .find(|n| MemberId::of(&n.config.name) == *id);
            node.map_or_else(|| format!("{id:?}"), |node| node.config.name.clone())
        };
        ids.iter().map(name).collect::<Vec<_>>().join(" ")
    }

    /// Replaces member ids in a text by names.
    pub(crate) fn with_names(&self, text: &str) -> String {
        let mut text = text.to_owned();
        if text.contains("MemberId(") {
            for node in &self.nodes {
                let id = format!("{:?}", MemberId::of(&node.config.name));
                text = text.replace(&id, &node.config.name);
            }
        }
        text
    }
}
