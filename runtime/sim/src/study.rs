//! The zone study: how long a whole zone takes to agree, and the cost. All simulated.
//!
//! A zone boots, and then members leave, join, crash or stop, some at once. Each time the study measures when
//! each view became right, when the monitor's view did, and what was sent.
//!
//! A *crash* is the death of a process: the fabric of every member that watches it reports it a round trip later,
//! as in `musterd`. In the paper's mode these are all of its neighbours.
//! *Silence* is a node that stops without a sign. No checker runs, since worlds of thousands of
//! members report millions of events. Running members that are declared failed are counted.

use std::collections::BTreeMap;

use muster_protocol::{Config, Input, MONITOR_KEY, Mode, NodeState, Profile};

use crate::network::Network;
use crate::world::{Cpus, NodeIndex, World};

const MS: u64 = 1000;
/// Longest time to wait for a view to become right.
const LIMIT_US: u64 = 120_000 * MS;
/// Time after which messages that follow from news have been sent once all views are right.
const SETTLE_US: u64 = 30 * MS;
/// Quiet time between two measurements.
const QUIET_US: u64 = 300 * MS;
/// Duration of the measurement of a quiet zone.
const IDLE_US: u64 = 1_000 * MS;
/// Number of members whose addresses a member gets, as from the PMIx bootstrap in a large job: the next ones
/// in order, and some that are spread over the others.
const SEEDS: usize = 16;
/// From the break of a connection until the process is known to have ended, in microseconds, about as real agents take.
pub(crate) const REFUSAL_US: u64 = 2 * MS;

/// A set of parameters: Muster's, or those of the paper's evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// `ours` or `paper`.
    pub name: &'static str,
    /// Heartbeat and deadline. The paper does not state its own.
    pub profile: Profile,
    /// How news spreads.
    pub mode: Mode,
    /// Number of reporters that make a failure.
    pub theta: usize,
    /// Number of ring successors that each member observes.
    pub successors: usize,
    /// Number of random neighbours.
    pub neighbours: usize,
}

impl Timing {
    /// The defaults of `musterd`.
    pub const OURS: Self = Self {
        name: "ours",
        profile: Profile::Standard,
        mode: Mode::Prompt { tau_us: 1_000 },
        theta: 2,
        successors: 2,
        neighbours: 3,
    };
    /// The plain algorithm with the parameters of the paper's section 5.
    pub const PAPER: Self = Self {
        name: "paper",
        profile: Profile::Quiet,
        mode: Mode::Paper { tau_us: 200_000 },
        theta: 1,
        successors: 1,
        neighbours: 3,
    };

    /// The timing with this name.
    #[must_use]
    pub fn of(name: &str) -> Option<Self> {
        [Self::OURS, Self::PAPER]
            .into_iter()
            .find(|timing| timing.name == name)
    }

    pub(crate) fn configure(&self, config: &mut Config) {
        config.mode = self.mode;
        config.theta = self.theta;
        config.successors = self.successors;
        config.neighbours = self.neighbours;
    }
}

/// The zone that is measured.
#[derive(Clone, Debug)]
pub struct ZoneSetting {
    /// Members at boot.
    pub members: usize,
    /// The timing.
    pub timing: Timing,
    /// The network.
    pub network: Network,
    /// The cost of handling a datagram.
    pub cpus: Cpus,
}

/// One measurement.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Measured {
    /// `boot`, `monitor`, `idle`, `leave`, `join`, `crash` or `silence`.
    pub what: &'static str,
    /// Number of members that change at once.
    pub count: usize,
    /// Until all views were right, in microseconds; `None`: not within two minutes.
    pub took_us: Option<u64>,
    /// Until the views of half of the members were right, in microseconds.
    pub half_us: u64,
    /// Until the views of 99 % of them were right, in microseconds.
    pub most_us: u64,
    /// Until the monitor's view was right, in microseconds; `None`: there was no monitor.
    pub monitor_us: Option<u64>,
    /// How long messages were counted, in microseconds: until all views were right, and the time after it.
    pub counted_us: u64,
    /// Datagrams sent in that time, for each member.
    pub datagrams_each: u64,
    /// Bytes sent in that time, for each member.
    pub bytes_each: u64,
    /// Facts that arrived in news frames at all members.
    pub facts: u64,
    /// Facts among them that were new to the receiver.
    pub facts_new: u64,
    /// Sum over the running members that were declared failed: how many others did so.
    pub false_failures: u64,
    /// Datagrams dropped because a socket was full.
    pub overrun: u64,
}

impl Measured {
    /// Copies of a piece of news that a member received, on average; 0 if there was no news.
    #[must_use]
    pub fn copies(&self) -> f64 {
        self.facts as f64 / self.facts_new.max(1) as f64
    }
}

/// Measures a zone: its boot, its quiet, then every change for each of the counts.
pub fn study(
    seed: u64,
    setting: &ZoneSetting,
    counts: &[usize],
    mut report: impl FnMut(&Measured),
) -> Vec<Measured> {
    let mut zone = Zone::new(seed, setting);
    let mut all = Vec::new();
    let mut take = |measured: Measured| {
        report(&measured);
        all.push(measured);
    };
    take(zone.boot());
    take(zone.declare_monitor());
    take(zone.idle());
    for what in ["leave", "join", "crash", "silence"] {
        for count in counts {
            take(zone.change(what, *count));
        }
    }
    all
}

/// Boots a zone, lets it converge, and drops one engine. `heap` returns the bytes in use before and after;
/// the difference is the engine's memory.
pub fn engine_memory(seed: u64, setting: &ZoneSetting, heap: impl Fn() -> u64) -> u64 {
    let mut zone = Zone::new(seed, setting);
    zone.boot();
    zone.world.run(IDLE_US);
    let before = heap();
    zone.world.crash(setting.members / 2);
    before.saturating_sub(heap())
}

struct Zone<'a> {
    world: World,
    setting: &'a ZoneSetting,
    /// The next member that changes.
    next: usize,
    joined: usize,
    monitor: Option<NodeIndex>,
}

/// Counters at the start of a measurement.
struct Before {
    frames: u64,
    bytes: u64,
    overrun: u64,
    facts: BTreeMap<NodeIndex, (u64, u64)>,
}

impl<'a> Zone<'a> {
    fn new(seed: u64, setting: &'a ZoneSetting) -> Self {
        let mut world = World::new(seed);
        world.checker.disable();
        world.keep_no_records();
        world.network = setting.network.clone();
        world.cpus = setting.cpus;
        Self {
            world,
            setting,
            next: 1,
            joined: 0,
            monitor: None,
        }
    }

    fn add(&mut self, name: &str) {
        let mut config = self.world.config(name, self.setting.timing.profile);
        self.setting.timing.configure(&mut config);
        let members = self.setting.members;
        let next = (self.world.len() + 1) % members;
        let others = (1..SEEDS).map(|_| self.world.chance().between(0, members as u64 - 1));
        let seeds = core::iter::once(next as u64).chain(others);
        config.seeds = seeds
            .map(|seed| format!("address-{seed}").into_bytes())
            .collect();
        self.world.add(config);
    }

    fn boot(&mut self) -> Measured {
        let before = self.before();
        for index in 0..self.setting.members {
            self.add(&format!("node{index}"));
        }
        self.measure("boot", self.setting.members, &before)
    }

    /// The last member declares itself the monitor of the zone.
    fn declare_monitor(&mut self) -> Measured {
        self.world.run(QUIET_US);
        let before = self.before();
        let node = self.setting.members - 1;
        let (key, value) = (MONITOR_KEY, &b"1"[..]);
        self.world.input(node, Input::Publish { key, value }).ok();
        self.monitor = Some(node);
        self.measure("monitor", 1, &before)
    }

    /// Measures the messages of a zone without changes.
    fn idle(&mut self) -> Measured {
        self.world.run(QUIET_US);
        let (since, before) = (self.world.now(), self.before());
        self.world.run(IDLE_US);
        let mut measured = Measured {
            what: "idle",
            count: 0,
            counted_us: self.world.now().since(since),
            ..Measured::default()
        };
        self.count(&mut measured, &before);
        measured
    }

    fn change(&mut self, what: &'static str, count: usize) -> Measured {
        self.world.run(QUIET_US);
        let before = self.before();
        let mut broken = Vec::new();
        for _ in 0..count {
            if what == "join" {
                self.joined += 1;
                self.add(&format!("joined{}", self.joined));
            } else {
                broken.extend(self.end(what));
            }
        }
        let since = self.world.now();
        if !broken.is_empty() {
            self.world.run(2 * self.world.network.delay_max_us);
        }
        for (observer, id) in &broken {
            self.world.report(*observer, *id, false);
        }
        if !broken.is_empty() {
            self.world.run(REFUSAL_US);
        }
        for (observer, id) in broken {
            self.world.report(observer, id, true);
        }
        self.measure_since(what, count, &before, since)
    }

    /// Ends the next member. Returns the members whose fabric reports that, with the member that ended.
    fn end(&mut self, what: &str) -> Vec<(NodeIndex, muster_protocol::MemberId)> {
        let node = self.next;
        self.next += 1;
        match what {
            "leave" => {
                self.world.input(node, Input::Leave { exit_code: 0 }).ok();
            }
            "crash" => {
                let id = self.world.id(node);
                self.world.crash(node);
                let is_told = |other: &NodeIndex| {
                    let mut watched = self.world.engine(*other).observing();
                    watched.any(|watched| watched == id)
                };
                let others = self.world.running().into_iter();
                return others.filter(is_told).map(|other| (other, id)).collect();
            }
            _ => self.world.pause(node, u64::MAX / 4),
        }
        Vec::new()
    }

    fn measure(&mut self, what: &'static str, count: usize, before: &Before) -> Measured {
        let since = self.world.now();
        self.measure_since(what, count, before, since)
    }

    fn measure_since(
        &mut self,
        what: &'static str,
        count: usize,
        before: &Before,
        since: muster_protocol::Instant,
    ) -> Measured {
        let left_us = LIMIT_US - self.world.now().since(since);
        let done = self.world.run_until(left_us, World::agrees);
        let running = self.world.running();
        let right_us = |node: &NodeIndex| Some(self.world.right_since(*node)?.since(since));
        let mut times: Vec<u64> = running.iter().filter_map(right_us).collect();
        times.sort_unstable();
        let rank = |part: usize| times.get((times.len() * part / 100).min(times.len() - 1));
        let mut measured = Measured {
            what,
            count,
            took_us: done.then(|| self.world.now().since(since)),
            half_us: rank(50).copied().unwrap_or_default(),
            most_us: rank(99).copied().unwrap_or_default(),
            monitor_us: self.monitor.as_ref().and_then(right_us),
            ..Measured::default()
        };
        // Copies and acknowledgements may still be under way when all members know.
        self.world.run(SETTLE_US);
        measured.counted_us = self.world.now().since(since);
        self.count(&mut measured, before);
        measured
    }

    /// Counts what was sent and received since, for each running member.
    fn count(&self, measured: &mut Measured, before: &Before) {
        let running = self.world.running();
        let members = running.len().max(1) as u64;
        measured.datagrams_each = (self.world.frames_sent_by_all() - before.frames) / members;
        measured.bytes_each = (self.world.bytes_sent_by_all() - before.bytes) / members;
        measured.overrun = self.world.overrun() - before.overrun;
        for node in &running {
            let (heard, new) = self.facts_of(*node);
            let then = before.facts.get(node).copied().unwrap_or_default();
            measured.facts += heard - then.0;
            measured.facts_new += new - then.1;
        }
        measured.false_failures = self.false_failures(&running);
    }

    fn before(&self) -> Before {
        let running = self.world.running().into_iter();
        Before {
            frames: self.world.frames_sent_by_all(),
            bytes: self.world.bytes_sent_by_all(),
            overrun: self.world.overrun(),
            facts: running.map(|node| (node, self.facts_of(node))).collect(),
        }
    }

    /// Facts that arrived at a node, and the number of new ones among them.
    fn facts_of(&self, node: NodeIndex) -> (u64, u64) {
        let counters = self.world.engine(node).counters();
        (
            counters.news_facts,
            counters.news_facts - counters.news_duplicates,
        )
    }

    /// How often a running member was declared failed: the number of members that learned it about
    /// themselves, and the number of views that hold them failed. Only needed if a member was declared failed
    /// or a view is not right: a right view holds no running member failed.
    fn false_failures(&self, running: &[NodeIndex]) -> u64 {
        let outcasts = running
            .iter()
            .map(|node| self.world.engine(*node).counters().outcasts);
        let outcasts: u64 = outcasts.sum();
        if self.world.agrees() {
            return outcasts;
        }
        let fails = |observer: &NodeIndex| {
            let engine = self.world.engine(*observer);
            let failed = running.iter().filter(|node| {
                let seen = engine.member(self.world.id(**node));
                seen.is_some_and(|seen| seen.state() == NodeState::Failed)
            });
            failed.count() as u64
        };
        outcasts + running.iter().map(fails).sum::<u64>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setting(timing: Timing, cpus: Cpus) -> ZoneSetting {
        ZoneSetting {
            members: 40,
            timing,
            network: Network::with_round_trip(1000),
            cpus,
        }
    }

    fn took(measured: &[Measured], what: &str) -> u64 {
        let one = measured.iter().find(|one| one.what == what);
        one.and_then(|one| one.took_us).unwrap()
    }

    /// ZM-15, ZM-16, ZM-17: a small zone is measured, and all members know which member joined or went.
    #[test]
    fn a_zone_is_measured() {
        let measured = study(1, &setting(Timing::OURS, Cpus::default()), &[1, 4], |_| {});
        assert_eq!(measured.len(), 11);
        for one in &measured {
            assert!(one.took_us.is_some() || one.what == "idle", "{one:?}");
            assert!(one.bytes_each > 0 && one.false_failures == 0, "{one:?}");
            assert!(one.half_us <= one.most_us && Some(one.most_us) <= one.took_us.or(Some(0)));
        }
        assert!(
            took(&measured, "silence") > took(&measured, "crash"),
            "a crash is reported at once, silence only after the deadline"
        );
        let crash = measured.iter().find(|one| one.what == "crash").unwrap();
        assert!(crash.monitor_us <= crash.took_us && crash.monitor_us.is_some());
    }

    /// The timing `ours` is the default of an engine.
    #[test]
    fn ours_is_the_default() {
        let plain = Config::new("n", b"a", Timing::OURS.profile);
        let mut ours = plain.clone();
        Timing::OURS.configure(&mut ours);
        let of = |config: &Config| {
            let sizes = (config.theta, config.successors, config.neighbours);
            (config.mode, sizes)
        };
        assert_eq!(of(&ours), of(&plain));
        assert_eq!(Timing::OURS.profile, Profile::Standard);
    }

    /// ZM-08: in paper mode news waits for tau at each hop, as the paper measured it.
    #[test]
    fn the_paper_mode_delays_news_by_tau() {
        let measured = study(1, &setting(Timing::PAPER, Cpus::default()), &[1], |_| {});
        let tau_us = Timing::PAPER.mode.tau_us();
        assert!(took(&measured, "leave") > tau_us, "{measured:?}");
        assert!(took(&measured, "boot") > tau_us, "{measured:?}");
    }

    /// Handling costs time: the same zone boots later.
    #[test]
    fn handling_costs_delay_the_boot() {
        let cpus = Cpus {
            service_us: 200,
            shared_by: 2,
            ..Cpus::default()
        };
        let free = study(1, &setting(Timing::OURS, Cpus::default()), &[1], |_| {});
        let paid = study(1, &setting(Timing::OURS, cpus), &[1], |_| {});
        assert!(took(&paid, "boot") > took(&free, "boot"));
    }
}
