//! Compares the two engines: the same network, the same faults, the same measurements.
//!
//! A job is quiet for a while, and its messages and the CPU time of its engines are counted. Then one member
//! stops, and the time is measured until all other members hold it failed. For silence, both engines have
//! only their own messages as evidence. No other member dies, so any other member that is held failed is held
//! failed falsely.
//!
//! The overlay boots from a few addresses, as in the zone study. Age gossip needs the whole list and receives
//! it. The simulation does not charge time for the engines' work; their CPU time is counted separately.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use muster_protocol::age::{Age, AgeConfig, Participant};
use muster_protocol::{
    Config, Engine, EventKind, Input, Instant, MemberId, Overlay, Phase, Profile,
};

use crate::chance::Chance;
use crate::network::Network;

const KEY: [u8; 32] = [42; 32];
const START: Instant = Instant(10_000_000);
/// Addresses that a member of the overlay starts with.
const SEEDS: u64 = 16;
/// Longest time for a boot or a detection.
const LIMIT_US: u64 = 120_000_000;

/// An engine with its timing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contender {
    /// Zone membership with the timing of this profile.
    Overlay(Profile),
    /// Age gossip with this cycle, all else by default.
    Age {
        /// The cycle in microseconds.
        interval_us: u64,
    },
}

/// The job to measure.
#[derive(Clone, Debug)]
pub struct CompareSetting {
    /// How many members.
    pub members: usize,
    /// Which engine.
    pub contender: Contender,
    /// The network.
    pub network: Network,
    /// How long the quiet job is measured, in microseconds.
    pub quiet_us: u64,
}

/// The result of one seed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Compared {
    /// Until half of the other members held the silent one failed, in microseconds; `None` if they did not
    /// within two minutes.
    pub half_us: Option<u64>,
    /// The same for 99 % of them.
    pub most_us: Option<u64>,
    /// The same for all of them.
    pub all_us: Option<u64>,
    /// Datagrams per second that a member of the quiet job sends.
    pub datagrams: f64,
    /// Their bytes per second, without network headers.
    pub bytes: f64,
    /// CPU time that the engine of one member uses in a second of the quiet job, in microseconds.
    pub cpu_us: f64,
    /// How often a running member was held failed, in total.
    pub false_failures: u64,
}

/// Runs one setting with one seed. `cpu_ns` returns the CPU time of this thread; it affects only `cpu_us`.
#[must_use]
pub fn compare(setting: &CompareSetting, seed: u64, cpu_ns: impl Fn() -> u64) -> Compared {
    let mut job = Job::new(setting, seed, &cpu_ns);
    if !job.boot() {
        return job.found;
    }
    job.quiet();
    job.silence();
    job.found
}

/// An input of a member with its time: a datagram, or a wake-up.
pub(crate) struct Recorded {
    pub(crate) at: Instant,
    pub(crate) datagram: Option<Box<[u8]>>,
}

impl Recorded {
    fn of(at: Instant, input: &Input<'_>) -> Self {
        let datagram = match input {
            Input::Datagram { bytes } => Some((*bytes).into()),
            _ => None,
        };
        Self { at, datagram }
    }
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Action {
    Wake(usize),
    Arrive(usize, Box<[u8]>),
}

pub(crate) struct Job<'a> {
    setting: &'a CompareSetting,
    cpu_ns: &'a dyn Fn() -> u64,
    chance: Chance,
    pub(crate) engines: Vec<Option<Engine>>,
    /// The inputs of each member while they are recorded.
    pub(crate) record: Option<Vec<Vec<Recorded>>>,
    by_address: BTreeMap<Vec<u8>, usize>,
    by_id: BTreeMap<MemberId, usize>,
    /// When each member wakes next. An earlier planned wake-up is void.
    wakes: Vec<Instant>,
    queue: BinaryHeap<Reverse<(Instant, u64, Action)>>,
    order: u64,
    now: Instant,
    buffer: Vec<u8>,
    /// Whether CPU time is counted now.
    counts: bool,
    worked_ns: u64,
    datagrams: u64,
    bytes: u64,
    silent: Option<usize>,
    /// When each member first held the silent one failed.
    knows: Vec<Option<Instant>>,
    found: Compared,
}

impl<'a> Job<'a> {
    pub(crate) fn new(setting: &'a CompareSetting, seed: u64, cpu_ns: &'a dyn Fn() -> u64) -> Self {
        let count = setting.members;
        let mut job = Self {
            setting,
            cpu_ns,
            chance: Chance::new(seed),
            engines: Vec::new(),
            record: None,
            by_address: (0..count)
                .map(|node| (name(node).into_bytes(), node))
                .collect(),
            by_id: (0..count)
                .map(|node| (MemberId::of(&name(node)), node))
                .collect(),
            wakes: vec![Instant::NEVER; count],
            queue: BinaryHeap::new(),
            order: 0,
            now: START,
            buffer: vec![0; 65_536],
            counts: false,
            worked_ns: 0,
            datagrams: 0,
            bytes: 0,
            silent: None,
            knows: vec![None; count],
            found: Compared::default(),
        };
        for node in 0..count {
            let engine = match setting.contender {
                Contender::Overlay(profile) => job.overlay(node, profile),
                Contender::Age { interval_us } => job.age(node, interval_us),
            };
            job.engines.push(Some(engine));
        }
        job
    }

    fn overlay(&mut self, node: usize, profile: Profile) -> Engine {
        let count = self.setting.members as u64;
        let mut config = Config::new(&name(node), name(node).as_bytes(), profile);
        config.key = Some(KEY);
        config.random_seed = self.chance.between(0, u64::MAX - 1);
        config.incarnation = START.0 * 1000;
        config.first_sequence = START.0;
        let next = (node as u64 + 1) % count;
        let others = (1..SEEDS).map(|_| self.chance.between(0, count - 1));
        let seeds = core::iter::once(next).chain(others);
        config.seeds = seeds.map(|seed| name(seed as usize).into_bytes()).collect();
        let engine = Overlay::new(config).expect("the configuration of a simulated member");
        engine.into()
    }

    fn age(&mut self, node: usize, interval_us: u64) -> Engine {
        let participants = (0..self.setting.members).map(|node| Participant::new(&name(node)));
        let mut config = AgeConfig::new(&name(node), participants.collect());
        config.key = Some(KEY);
        config.random_seed = self.chance.between(0, u64::MAX - 1);
        config.interval_us = interval_us;
        config.allow_fast_interval = true;
        config.incarnation = START.0 * 1000;
        config.first_sequence = START.0;
        let engine = Age::new(config).expect("the configuration of a simulated member");
        engine.into()
    }

    /// Runs until every member holds every running member alive. Returns false if that took too long.
    pub(crate) fn boot(&mut self) -> bool {
        for node in 0..self.setting.members {
            self.touch(node, Input::Wake);
        }
        let end = self.now.after(LIMIT_US);
        let mut whole = 0;
        while self.now < end {
            while whole < self.setting.members && self.is_whole(whole) {
                whole += 1;
            }
            if whole == self.setting.members {
                return true;
            }
            self.run(self.step_us());
        }
        false
    }

    fn is_whole(&self, node: usize) -> bool {
        let engine = self.engines[node].as_ref();
        engine.is_some_and(|engine| engine.live() == self.setting.members)
    }

    /// How long to run between two checks of all members.
    fn step_us(&self) -> u64 {
        match self.setting.contender {
            Contender::Overlay(profile) => profile.heartbeat_us(),
            Contender::Age { interval_us } => interval_us,
        }
    }

    /// Runs until the messages that follow from the boot have ended.
    pub(crate) fn settle(&mut self) {
        self.run(10 * self.step_us());
    }

    fn quiet(&mut self) {
        self.settle();
        let (datagrams, bytes) = (self.datagrams, self.bytes);
        self.counts = true;
        self.run(self.setting.quiet_us);
        self.counts = false;
        let member_seconds = self.setting.members as f64 * self.setting.quiet_us as f64 / 1e6;
        self.found.datagrams = (self.datagrams - datagrams) as f64 / member_seconds;
        self.found.bytes = (self.bytes - bytes) as f64 / member_seconds;
        self.found.cpu_us = self.worked_ns as f64 / 1e3 / member_seconds;
    }

    /// Stops one member at a random time in its cycle.
    fn silence(&mut self) {
        let off_us = self.chance.between(0, self.step_us());
        self.run(off_us);
        let silent = self.chance.between(0, self.setting.members as u64 - 1) as usize;
        self.engines[silent] = None;
        self.silent = Some(silent);
        let (since, others) = (self.now, self.setting.members - 1);
        let end = self.now.after(LIMIT_US);
        while self.now < end && self.knows.iter().flatten().count() < others {
            self.run(self.step_us());
        }
        let mut times: Vec<u64> = self
            .knows
            .iter()
            .flatten()
            .map(|at| at.since(since))
            .collect();
        times.sort_unstable();
        let rank = |part: usize| times.get((others * part).div_ceil(100) - 1).copied();
        (self.found.half_us, self.found.most_us, self.found.all_us) =
            (rank(50), rank(99), rank(100));
    }

    pub(crate) fn run(&mut self, duration_us: u64) {
        let end = self.now.after(duration_us);
        while let Some(Reverse((at, ..))) = self.queue.peek()
            && *at <= end
            && let Some(Reverse((at, _, what))) = self.queue.pop()
        {
            self.now = at;
            match what {
                Action::Wake(node) if self.wakes[node] == at => self.touch(node, Input::Wake),
                Action::Wake(_) => {}
                Action::Arrive(node, bytes) => self.touch(node, Input::Datagram { bytes: &bytes }),
            }
        }
        self.now = end;
    }

    fn at(&mut self, at: Instant, what: Action) {
        self.order += 1;
        self.queue.push(Reverse((at, self.order, what)));
    }

    /// Hands one input to an engine and handles everything that follows from it.
    fn touch(&mut self, node: usize, input: Input<'_>) {
        let now = self.now;
        let Some(mut engine) = self.engines[node].take() else {
            return;
        };
        if let Some(record) = &mut self.record {
            record[node].push(Recorded::of(now, &input));
        }
        self.work(|| engine.handle(now, input).ok());
        let mut buffer = core::mem::take(&mut self.buffer);
        while let Some(transmit) = self.work(|| engine.poll_transmit(now, &mut buffer)) {
            self.datagrams += 1;
            self.bytes += transmit.size as u64;
            let address = engine.address_of(transmit.target);
            if let Some(to) = address.and_then(|address| self.by_address.get(address)) {
                self.carry(node, *to, &buffer[..transmit.size]);
            }
        }
        self.buffer = buffer;
        while let Some(event) = engine.poll_event() {
            if event.kind == EventKind::NodeFailed {
                self.note_failed(node, event.member);
            }
        }
        let wake = engine.poll_timeout().max(now);
        if engine.phase() == Phase::Running && wake != self.wakes[node] {
            self.wakes[node] = wake;
            self.at(wake, Action::Wake(node));
        }
        self.engines[node] = Some(engine);
    }

    fn carry(&mut self, from: usize, to: usize, bytes: &[u8]) {
        let network = &self.setting.network;
        for (delay_us, bytes) in network.carry(&mut self.chance, from, to, bytes) {
            let arrival = Action::Arrive(to, bytes.into_boxed_slice());
            self.at(self.now.after(delay_us), arrival);
        }
    }

    /// Runs a function of the engine and counts its CPU time.
    fn work<T>(&mut self, does: impl FnOnce() -> T) -> T {
        if !self.counts {
            return does();
        }
        let before = (self.cpu_ns)();
        let done = does();
        self.worked_ns += (self.cpu_ns)().saturating_sub(before);
        done
    }

    fn note_failed(&mut self, observer: usize, failed: MemberId) {
        let failed = self.by_id.get(&failed).copied();
        if failed.is_some() && failed == self.silent {
            self.knows[observer].get_or_insert(self.now);
        } else {
            self.found.false_failures += 1;
        }
    }
}

fn name(node: usize) -> String {
    format!("n{node}@sim0")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(contender: Contender, loss_permille: u32) -> Compared {
        let mut network = Network::with_round_trip(1000);
        network.loss_permille = loss_permille;
        let setting = CompareSetting {
            members: 24,
            contender,
            network,
            quiet_us: 2_000_000,
        };
        compare(&setting, 3, || 0)
    }

    /// Both engines find the silent member and no other, and send as many messages as their timing implies:
    /// age gossip one ping and one reply per cycle, the overlay two beats per heartbeat.
    #[test]
    fn both_engines_find_the_silent_member() {
        let overlay = of(Contender::Overlay(Profile::Standard), 0);
        let age = of(
            Contender::Age {
                interval_us: 20_000,
            },
            0,
        );
        for found in [&overlay, &age] {
            assert!(found.half_us <= found.most_us && found.most_us <= found.all_us);
            assert!(
                found.half_us.is_some() && found.all_us.is_some(),
                "{found:?}"
            );
            assert_eq!(found.false_failures, 0, "{found:?}");
            let rate = found.datagrams;
            assert!((90.0..130.0).contains(&rate), "{found:?}");
        }
        // 3 log2 N + 4 cycles, minus the age at the time of the silence.
        let cycles = age.all_us.unwrap() / 20_000;
        assert!((14..=22).contains(&cycles), "{age:?}");
        assert!(overlay.all_us < age.half_us, "{overlay:?} {age:?}");
    }

    /// Lost datagrams cause no false failure with either engine, and a run follows from its seed.
    #[test]
    fn losses_cause_no_false_failure() {
        for contender in [
            Contender::Overlay(Profile::Standard),
            Contender::Age {
                interval_us: 20_000,
            },
        ] {
            let found = of(contender, 50);
            assert_eq!(found.false_failures, 0, "{found:?}");
            assert!(found.all_us.is_some(), "{found:?}");
            assert_eq!(found, of(contender, 50));
        }
    }
}
