//! The zone study: how long a whole zone takes to agree, and at what price. All simulated.
//!
//! A zone boots, and then members leave, join, crash or fall silent, some at once; each time it
//! is measured until every view is right. A *crash* is the death of a process whose observers'
//! fabric says so a round trip later; *silence* is a node that just stops. No checker watches:
//! worlds of thousands of members tell millions of events.

use std::collections::BTreeMap;

use muster_protocol::{Input, Profile};

use crate::world::World;

const MS: u64 = 1000;
/// How exactly times are measured, in microseconds.
const STEP_US: u64 = 100;
/// Longest time waited for a view to become right.
const LIMIT_US: u64 = 120_000 * MS;
/// What follows from news when all views are right has happened after this time.
const SETTLE_US: u64 = 30 * MS;
/// Quiet between two measurements.
const QUIET_US: u64 = 300 * MS;

/// The zone that is measured.
#[derive(Clone, Copy, Debug)]
pub struct ZoneSetting {
    /// Members at boot.
    pub members: usize,
    /// The timing.
    pub profile: Profile,
    /// Reporters that make a failure.
    pub theta: usize,
    /// Ring successors each observes.
    pub successors: usize,
    /// Random neighbours.
    pub neighbours: usize,
    /// From one end of the network to the other and back, in microseconds.
    pub round_trip_us: u64,
}

/// One measurement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Measured {
    /// `boot`, `leave`, `join`, `crash` or `silence`.
    pub what: &'static str,
    /// How many at once.
    pub count: usize,
    /// Until all views were right, in microseconds; `None`: not within two minutes.
    pub took_us: Option<u64>,
    /// Datagrams sent meanwhile and in the 30 ms that follow, for each member.
    pub datagrams_each: u64,
    /// Bytes sent in that time, for each member.
    pub bytes_each: u64,
    /// Facts that arrived in news frames, at all members.
    pub facts: u64,
    /// Facts among them that brought something new.
    pub facts_new: u64,
}

impl Measured {
    /// How often a member was told a piece of news, on the average; 0 if there was none.
    #[must_use]
    pub fn copies(&self) -> f64 {
        self.facts as f64 / self.facts_new.max(1) as f64
    }
}

/// Measures a zone: its boot, then everything for each of the counts.
pub fn study(
    seed: u64,
    setting: ZoneSetting,
    counts: &[usize],
    mut told: impl FnMut(&Measured),
) -> Vec<Measured> {
    let mut zone = Zone::new(seed, setting);
    let mut all = Vec::new();
    let mut take = |measured: Measured| {
        told(&measured);
        all.push(measured);
    };
    take(zone.boot());
    for what in ["leave", "join", "crash", "silence"] {
        for count in counts {
            take(zone.change(what, *count));
        }
    }
    all
}

struct Zone {
    world: World,
    setting: ZoneSetting,
    /// The next member that something happens to.
    next: usize,
    joined: usize,
}

impl Zone {
    fn new(seed: u64, setting: ZoneSetting) -> Self {
        let mut world = World::new(seed);
        world.checker.watch_nothing();
        world.keep_no_records();
        let one_way_us = setting.round_trip_us / 2;
        world.network.delay_min_us = one_way_us - one_way_us / 10;
        world.network.delay_max_us = one_way_us + one_way_us / 10;
        Self {
            world,
            setting,
            next: 1,
            joined: 0,
        }
    }

    fn add(&mut self, name: &str) {
        let mut config = self.world.config(name, self.setting.profile);
        config.theta = self.setting.theta;
        config.successors = self.setting.successors;
        config.neighbours = self.setting.neighbours;
        self.world.add(config);
    }

    fn boot(&mut self) -> Measured {
        for index in 0..self.setting.members {
            self.add(&format!("node{index}"));
        }
        self.measure("boot", self.setting.members)
    }

    fn change(&mut self, what: &'static str, count: usize) -> Measured {
        self.world.run(QUIET_US);
        for _ in 0..count {
            if what == "join" {
                self.joined += 1;
                self.add(&format!("joined{}", self.joined));
            } else {
                self.end(what);
            }
        }
        self.measure(what, count)
    }

    fn end(&mut self, what: &str) {
        let node = self.next;
        self.next += 1;
        match what {
            "leave" => {
                self.world.input(node, Input::Leave { exit_code: 0 }).ok();
            }
            "crash" => {
                let id = self.world.id(node);
                let observers: Vec<_> = self.world.engine(node).observers().collect();
                self.world.crash(node);
                for observer in self.world.running() {
                    if observers.contains(&self.world.id(observer)) {
                        self.world.input(observer, Input::Unreachable(id)).ok();
                    }
                }
            }
            _ => self.world.pause(node, u64::MAX / 4),
        }
    }

    fn measure(&mut self, what: &'static str, count: usize) -> Measured {
        let since = self.world.now();
        let (frames, bytes) = self.sent();
        let facts = self.facts();
        let mut done = false;
        while !done && self.world.now().since(since) < LIMIT_US {
            self.world.run(STEP_US);
            done = self.world.converged();
        }
        let took_us = done.then(|| self.world.now().since(since));
        // Copies and acknowledgements may still be under way when everybody knows.
        self.world.run(SETTLE_US);
        let members = self.world.running().len().max(1) as u64;
        let sent = self.sent();
        let (mut heard, mut new) = (0, 0);
        for node in self.world.running() {
            let counters = self.world.engine(node).counters();
            let before = facts.get(&node).copied().unwrap_or_default();
            heard += counters.news_facts - before.0;
            new += counters.news_facts - counters.news_duplicates - before.1;
        }
        Measured {
            what,
            count,
            took_us,
            datagrams_each: (sent.0 - frames) / members,
            bytes_each: (sent.1 - bytes) / members,
            facts: heard,
            facts_new: new,
        }
    }

    /// Facts that arrived at each, and those among them that were new.
    fn facts(&self) -> BTreeMap<usize, (u64, u64)> {
        let running = self.world.running().into_iter();
        let counted = running.map(|node| {
            let counters = self.world.engine(node).counters();
            let new = counters.news_facts - counters.news_duplicates;
            (node, (counters.news_facts, new))
        });
        counted.collect()
    }

    fn sent(&self) -> (u64, u64) {
        (
            self.world.frames_sent_by_all(),
            self.world.bytes_sent_by_all(),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// ZM-15, ZM-16, ZM-17: a small zone is measured, and what joins or goes is known to all.
    #[test]
    fn a_zone_is_measured() {
        let setting = ZoneSetting {
            members: 40,
            profile: Profile::Standard,
            theta: 2,
            successors: 2,
            neighbours: 3,
            round_trip_us: 1000,
        };
        let measured = study(1, setting, &[1, 4], |_| {});
        assert_eq!(measured.len(), 9);
        for one in &measured {
            assert!(one.took_us.is_some(), "{one:?}");
            assert!(one.bytes_each > 0, "{one:?}");
        }
        let took = |what| {
            measured
                .iter()
                .find(|one| one.what == what)
                .unwrap()
                .took_us
        };
        assert!(
            took("silence") > took("crash"),
            "a crash is told, silence is waited for"
        );
    }
}
