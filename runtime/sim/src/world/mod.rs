//! The world: engines, the network between them, virtual time, and faults.
//!
//! Time jumps from one happening to the next; two at the same time happen in the order in which
//! they were caused. After each, the engine that was touched is drained as every host must do it:
//! transmits, events, time-out.
//!
//! `faults` is what can be done to nodes, `excuses` whom that excuses, `rails` the ways between
//! them, `outsider` records and plays frames without the key, `views` what can be asked about all of
//! them, `queue` what is to happen, `agreement` whose view is right, `cpu` what handling a datagram takes.

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
use cpu::{Desk, Work};
use queue::{Alarm, Happening, Queue};

/// Number of a node in its world.
pub type NodeIndex = usize;

/// The key of every simulated job.
const KEY: [u8; 32] = [42; 32];
/// Datagrams a stopped node's socket holds; later ones are lost.
const INBOX_MAX: usize = 256;
/// Virtual time begins here: no host's clock starts at zero.
pub(crate) const START: Instant = Instant(10_000_000);

/// One event and who told it.
#[derive(Clone, Copy, Debug)]
pub struct Record {
    /// The node whose engine told it.
    pub observer: NodeIndex,
    /// When, in the world's time; the event itself has the observer's own.
    pub at: Instant,
    /// What it told.
    pub event: Event,
}

#[derive(Debug)]
struct Node {
    id: MemberId,
    config: Config,
    /// `None` while it is crashed.
    engine: Option<Overlay>,
    paused: bool,
    /// Until when, at least.
    continues_at: Instant,
    /// What arrives while it is paused is lost.
    deaf: bool,
    inbox: Vec<Vec<u8>>,
    alarm: Alarm,
    /// Wake-ups in a row after which it asked for another one at once.
    restless: u32,
    /// Where it works, if handling a datagram takes time.
    desk: Desk,
    /// When its present life began.
    started_at: Instant,
    /// When it last crashed.
    gone_at: Instant,
    /// It holds the key of another job.
    foreign: bool,
    clock: Clock,
    /// Longest time by which it is late for whatever comes, in microseconds.
    slow_us: u64,
    /// The highest version it ever had.
    version: Version,
    bytes_sent: u64,
    frames_sent: u64,
}

/// A simulated job.
#[derive(Debug)]
pub struct World {
    /// The network's odds and cuts; change them at any time.
    pub network: Network,
    /// What handling a datagram takes.
    pub cpus: Cpus,
    /// What must always hold.
    pub checker: Checker,
    now: Instant,
    nodes: Vec<Node>,
    by_address: Addresses,
    queue: Queue,
    work: Work,
    agreement: Agreement,
    /// Datagrams that a full socket could not hold.
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
    /// An empty world; everything in it follows from the seed and the calls.
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
            deaf: false,
            inbox: Vec::new(),
            alarm: Alarm::default(),
            restless: 0,
            desk: Desk::default(),
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

    /// How many nodes there are, whatever became of them.
    #[must_use]
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether there is no node.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Events are not kept from now on: for worlds of millions of them.
    pub fn keep_no_records(&mut self) {
        self.keep_records = false;
    }

    /// Every fault, frame and event is written down from now on.
    pub(crate) fn start_trace(&mut self) {
        self.trace = Some(Trace::default());
    }

    pub(crate) fn trace(&self) -> Option<&Trace> {
        self.trace.as_ref()
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

    /// Where a node can be reached.
    #[must_use]
    pub fn address(&self, node: NodeIndex) -> &[u8] {
        &self.nodes[node].config.address
    }

    /// Bytes a node has handed to the network.
    #[must_use]
    pub fn bytes_sent(&self, node: NodeIndex) -> u64 {
        self.nodes[node].bytes_sent
    }

    /// Bytes all nodes have handed to the network.
    #[must_use]
    pub fn bytes_sent_by_all(&self) -> u64 {
        self.nodes.iter().map(|node| node.bytes_sent).sum()
    }

    /// Datagrams all nodes have handed to the network.
    #[must_use]
    pub fn frames_sent_by_all(&self) -> u64 {
        self.nodes.iter().map(|node| node.frames_sent).sum()
    }

    /// The id of a node.
    #[must_use]
    pub fn id(&self, node: NodeIndex) -> MemberId {
        self.nodes[node].id
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
        self.note_mends();
        let end = self.now.after(duration_us);
        while let Some(at) = self.queue.next_at()
            && at <= end
        {
            self.step();
        }
        self.now = end;
    }

    /// Runs until `done` says so; false if it did not within the time.
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
        self.hear_rails();
        match happening {
            Happening::Alarm(node) => {
                let node = node as usize;
                let alarm = &mut self.nodes[node].alarm;
                if self.queue.rings(alarm, node, (at, order)) {
                    self.ring(node);
                }
            }
            Happening::LateWake(node) => {
                let entry = &self.nodes[node as usize];
                if !entry.paused && entry.engine.is_some() {
                    self.wake(node as usize);
                }
            }
            Happening::Arrival(node, parcel, class) => {
                if self.cpus.service_us == 0 {
                    self.arrive(node as usize, parcel);
                } else {
                    self.take_in(node as usize, parcel, class);
                }
            }
            Happening::Turn(cpu) => self.take_turn(cpu as usize),
            Happening::Continue(node) => self.go_on(node as usize),
            Happening::Play => self.play_on(),
        }
    }

    fn ring(&mut self, node: NodeIndex) {
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

    /// The time a node asked for has come; where work takes time, it gets its turn.
    fn wake(&mut self, node: NodeIndex) {
        if self.cpus.service_us == 0 {
            self.touch(node, Input::Wake).ok();
        } else {
            self.line_up(node);
        }
    }

    fn arrive(&mut self, node: NodeIndex, parcel: queue::Parcel) {
        let bytes = self.queue.open(parcel);
        let entry = &mut self.nodes[node];
        if entry.engine.is_none() {
            return self.queue.give_back(parcel, bytes);
        }
        if entry.paused {
            if entry.inbox.len() < INBOX_MAX && !entry.deaf {
                entry.inbox.push(bytes.clone());
            }
            return self.queue.give_back(parcel, bytes);
        }
        let input = Input::Datagram { bytes: &bytes };
        if self.cpus.service_us == 0 {
            self.touch(node, input).ok();
        } else {
            let own_now = self.nodes[node].clock.own(self.now);
            self.handle(node, own_now, input).ok();
        }
        self.queue.give_back(parcel, bytes);
    }

    /// A stopped node runs again.
    fn go_on(&mut self, node: NodeIndex) {
        // A crash, or a longer stop that began meanwhile.
        if self.nodes[node].engine.is_none() || self.now < self.nodes[node].continues_at {
            return;
        }
        self.nodes[node].paused = false;
        self.nodes[node].deaf = false;
        for bytes in core::mem::take(&mut self.nodes[node].inbox) {
            self.touch(node, Input::Datagram { bytes: &bytes }).ok();
        }
        if self.cpus.service_us > 0 {
            // It reads what has come before it judges.
            return self.line_up(node);
        }
        self.touch(node, Input::Wake).ok();
    }

    /// One input, and everything that follows from it: at once, or when its CPU gets to it.
    fn touch(&mut self, node: NodeIndex, input: Input<'_>) -> Result<(), Reject> {
        let own_now = self.nodes[node].clock.own(self.now);
        let result = self.handle(node, own_now, input);
        if self.nodes[node].engine.is_none() {
            return result;
        }
        if self.cpus.service_us > 0 {
            self.line_up(node);
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

    /// One input, and what it makes the engine tell.
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

    /// Whose view is right is asked by what this node holds now.
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

    /// The engine writes a datagram, which leaves when the CPU is done with it. False if it has none.
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
        self.overhear(to, bytes);
        if self.trace.is_some() {
            self.trace_frame(node, to, bytes, &copies);
        }
        let slow_us = self.nodes[to].slow_us;
        let leaves = self.now.after(self.cpus.service_us);
        for (mut delay_us, bytes) in copies {
            if slow_us > 0 {
                delay_us += self.chance.between(0, slow_us);
            }
            let parcel = self.queue.wrap(&bytes);
            let arrival = Happening::Arrival(to as u32, parcel, transmit.class);
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
                "{} TELLS {} v{}.{}: {:?} ({:?}{by})",
                self.nodes[observer].config.name,
                self.names(&[event.member]),
                event.version.incarnation,
                event.version.minor,
                event.kind,
                event.cause.kind,
            );
            self.tell_story(text, vec![event.member]);
        }
        if self.keep_records {
            self.records.push(Record {
                observer,
                at: self.now,
                event,
            });
        }
    }

    /// Nobody looks at events: a world that only measures.
    fn is_unwatched(&self) -> bool {
        !self.keep_records && self.trace.is_none() && self.checker.watches_nothing()
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
        self.tell_story(text, about);
    }

    pub(crate) fn tell_story(&mut self, text: String, about: Vec<MemberId>) {
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

    /// Ids in a text become names.
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
