//! AG-18: how far Lamport clocks drift, and which thresholds are as aggressive as is safe.
//!
//! The rules of age gossip without frames, on any number of participants. Only a sample of them has a column
//! in the vectors, since no column depends on another one. Each participant begins its cycles at a time of
//! its own; messages take time and are lost, and members stop for a while. No member dies, so every apparent
//! death is false.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use muster_protocol::age::gossip::{Freshness, Gossip, Rules};

use crate::chance::Chance;

/// Columns of the vectors.
const SAMPLE: usize = 256;
/// Nanoseconds per cycle; only fractions of it matter.
const CYCLE: u64 = 1_000_000;

/// The parameters of a study.
#[derive(Clone, Copy, Debug)]
pub struct LamportSetting {
    /// How many participants.
    pub members: usize,
    /// Messages lost, in thousandths.
    pub loss_permille: u32,
    /// The longest delay of a message, in thousandths of a cycle; the shortest is a tenth of it.
    pub delay_permille: u64,
    /// Cycles in which a stop begins, in millionths.
    pub stops_ppm: u64,
    /// The length of a stop, in cycles.
    pub stop_cycles: u64,
    /// Laziness of replies, in cycles.
    pub laziness: u8,
    /// A message that is further behind than this is obsolete.
    pub obsolete_after: u64,
    /// Cycles before counting begins, and cycles that are counted.
    pub cycles: (u64, u64),
}

/// The result.
#[derive(Clone, Debug, Default)]
pub struct LamportFound {
    /// Histogram of how far the receiver's clock was ahead of a message's clock. The last entry contains all
    /// that are further behind.
    pub behind: Vec<u64>,
    /// Histogram of ages, over all observers, columns and cycles, except observers that just woke up.
    pub ages: Vec<u64>,
    /// Messages classified as obsolete; none of them was under way for more than a cycle.
    pub obsolete: u64,
    /// Messages that arrived.
    pub arrived: u64,
    /// Steps of the clocks per cycle, on average.
    pub clock_rate: f64,
    /// Bytes of entries per reply.
    pub reply_entries: f64,
}

impl LamportFound {
    /// The part of ages above a threshold.
    #[must_use]
    pub fn older_than(&self, threshold: usize) -> f64 {
        part_above(&self.ages, threshold)
    }

    /// The part of messages further behind than a threshold.
    #[must_use]
    pub fn further_behind(&self, threshold: usize) -> f64 {
        part_above(&self.behind, threshold)
    }

    /// The greatest age.
    #[must_use]
    pub fn oldest(&self) -> usize {
        self.ages.iter().rposition(|count| *count > 0).unwrap_or(0)
    }

    /// The furthest behind that a message was.
    #[must_use]
    pub fn furthest(&self) -> usize {
        self.behind
            .iter()
            .rposition(|count| *count > 0)
            .unwrap_or(0)
    }

    /// This and what another seed found.
    #[must_use]
    pub fn and(mut self, other: &Self) -> Self {
        let (arrived, others) = (self.arrived as f64, other.arrived as f64);
        let mean =
            |one: f64, two: f64| (one * arrived + two * others) / (arrived + others).max(1.0);
        self.clock_rate = mean(self.clock_rate, other.clock_rate);
        self.reply_entries = mean(self.reply_entries, other.reply_entries);
        for (mine, theirs) in [
            (&mut self.behind, &other.behind),
            (&mut self.ages, &other.ages),
        ] {
            for (count, more) in mine.iter_mut().zip(theirs) {
                *count += more;
            }
        }
        self.obsolete += other.obsolete;
        self.arrived += other.arrived;
        self
    }

    /// The mean age.
    #[must_use]
    pub fn mean_age(&self) -> f64 {
        let sum: u64 = self
            .ages
            .iter()
            .zip(0_u64..)
            .map(|(count, age)| count * age)
            .sum();
        sum as f64 / self.ages.iter().sum::<u64>().max(1) as f64
    }
}

fn part_above(counts: &[u64], threshold: usize) -> f64 {
    let above: u64 = counts.iter().skip(threshold + 1).sum();
    above as f64 / counts.iter().sum::<u64>().max(1) as f64
}

/// What happens, in its order at one time.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Action {
    Cycle(usize),
    Ping {
        from: usize,
        to: usize,
        clock: u64,
        ages: Box<[u8]>,
    },
    Reply {
        to: usize,
        clock: u64,
        entries: Box<[(usize, u8)]>,
    },
}

struct Study<'a> {
    setting: &'a LamportSetting,
    chance: Chance,
    nodes: Vec<Gossip>,
    /// Until when a node is stopped, and how many cycles it missed.
    stopped_until: Vec<u64>,
    missed: Vec<u64>,
    /// Until when a node that woke up is not counted.
    uncounted_until: Vec<u64>,
    queue: BinaryHeap<Reverse<(u64, u64, Action)>>,
    order: u64,
    now: u64,
    counts_from: u64,
    replies: u64,
    entries: u64,
    found: LamportFound,
}

/// Runs one setting with one seed.
#[must_use]
pub fn study_lamport(setting: &LamportSetting, seed: u64) -> LamportFound {
    let rules = Rules {
        obsolete_after: setting.obsolete_after,
        laziness: setting.laziness,
        hop: 1,
    };
    let columns = setting.members.min(SAMPLE);
    let own = |node: usize| (node < columns).then_some(node);
    let mut study = Study {
        setting,
        chance: Chance::new(seed),
        nodes: (0..setting.members)
            .map(|node| Gossip::new(columns, own(node), rules))
            .collect(),
        stopped_until: vec![0; setting.members],
        missed: vec![0; setting.members],
        uncounted_until: vec![0; setting.members],
        queue: BinaryHeap::new(),
        order: 0,
        now: 0,
        counts_from: setting.cycles.0 * CYCLE,
        replies: 0,
        entries: 0,
        found: LamportFound {
            behind: vec![0; 1024],
            ages: vec![0; 256],
            ..LamportFound::default()
        },
    };
    for node in 0..setting.members {
        let phase = study.chance.between(0, CYCLE - 1);
        study.at(phase, Action::Cycle(node));
    }
    study.run()
}

impl Study<'_> {
    fn at(&mut self, at: u64, what: Action) {
        self.order += 1;
        self.queue.push(Reverse((at, self.order, what)));
    }

    fn run(mut self) -> LamportFound {
        let (before, counted) = self.setting.cycles;
        let mut clocks_before = 0;
        while let Some(Reverse((at, _, what))) = self.queue.pop() {
            if clocks_before == 0 && at >= self.counts_from {
                clocks_before = self.clocks();
            }
            if at >= (before + counted) * CYCLE {
                break;
            }
            self.now = at;
            match what {
                Action::Cycle(node) => self.cycle(node),
                Action::Ping {
                    from,
                    to,
                    clock,
                    ages,
                } => self.ping((from, to), clock, &ages),
                Action::Reply { to, clock, entries } => self.reply(to, clock, &entries),
            }
        }
        let steps = (self.clocks() - clocks_before) as f64 / self.nodes.len() as f64;
        self.found.clock_rate = steps / counted as f64;
        self.found.reply_entries = self.entries as f64 / self.replies.max(1) as f64;
        self.found
    }

    fn clocks(&self) -> u64 {
        self.nodes.iter().map(Gossip::clock).sum()
    }

    fn is_counted(&self) -> bool {
        self.now >= self.counts_from
    }

    fn cycle(&mut self, node: usize) {
        self.at(self.now + CYCLE, Action::Cycle(node));
        if self.now < self.stopped_until[node] {
            self.missed[node] += 1;
            return;
        }
        if self.chance.between(0, 999_999) < self.setting.stops_ppm {
            self.stopped_until[node] = self.now + self.setting.stop_cycles * CYCLE;
        }
        let missed = std::mem::take(&mut self.missed[node]);
        self.nodes[node].tick(1 + missed);
        if missed > 0 {
            self.uncounted_until[node] = self.now + 64 * CYCLE;
        }
        if self.is_counted() && self.now >= self.uncounted_until[node] {
            for age in self.nodes[node].ages() {
                self.found.ages[usize::from(*age)] += 1;
            }
        }
        let last = self.nodes.len() as u64 - 1;
        let to = (node as u64 + 1 + self.chance.between(0, last - 1)) % (last + 1);
        let ping = Action::Ping {
            from: node,
            to: to as usize,
            clock: self.nodes[node].clock(),
            ages: self.nodes[node].ages().into(),
        };
        self.send(ping);
    }

    fn send(&mut self, what: Action) {
        if self.chance.permille(self.setting.loss_permille) {
            return;
        }
        let most = (self.setting.delay_permille * CYCLE / 1000).max(10);
        let delay = self.chance.between(most / 10, most);
        self.at(self.now + delay, what);
    }

    /// A message for a stopped participant waits until it continues, as in a socket.
    fn waits(&self, node: usize) -> Option<u64> {
        (self.now < self.stopped_until[node]).then(|| self.stopped_until[node])
    }

    /// Takes a message's clock. Returns whether the message counts.
    fn take_clock(&mut self, to: usize, clock: u64) -> bool {
        if self.is_counted() {
            let behind = self.nodes[to].clock().saturating_sub(clock) as usize;
            let top = self.found.behind.len() - 1;
            self.found.behind[behind.min(top)] += 1;
            self.found.arrived += 1;
        }
        let is_current = self.nodes[to].hear_clock(clock) == Freshness::Current;
        if !is_current && self.is_counted() {
            self.found.obsolete += 1;
        }
        is_current
    }

    fn ping(&mut self, (from, to): (usize, usize), clock: u64, ages: &[u8]) {
        if let Some(until) = self.waits(to) {
            let ages = ages.into();
            self.at(
                until,
                Action::Ping {
                    from,
                    to,
                    clock,
                    ages,
                },
            );
            return;
        }
        let mut entries: Box<[(usize, u8)]> = Box::new([]);
        if self.take_clock(to, clock) {
            let node = &mut self.nodes[to];
            node.merge(ages);
            let younger = node.younger(ages).map(|index| (index, node.ages()[index]));
            entries = younger.collect();
        }
        if self.is_counted() {
            self.replies += 1;
            self.entries += entries.len() as u64;
        }
        let clock = self.nodes[to].clock();
        self.send(Action::Reply {
            to: from,
            clock,
            entries,
        });
    }

    fn reply(&mut self, to: usize, clock: u64, entries: &[(usize, u8)]) {
        if let Some(until) = self.waits(to) {
            let entries = entries.into();
            self.at(until, Action::Reply { to, clock, entries });
            return;
        }
        if self.take_clock(to, clock) {
            for (index, age) in entries {
                self.nodes[to].merge_one(*index, *age);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use muster_protocol::age::config::log2;
    use muster_protocol::age::{AgeConfig, Participant};

    use super::*;

    fn setting(members: usize, loss_permille: u32) -> LamportSetting {
        LamportSetting {
            members,
            loss_permille,
            delay_permille: 500,
            stops_ppm: 0,
            stop_cycles: 20,
            laziness: log2(members) / 4,
            obsolete_after: u64::MAX,
            cycles: (30, 60),
        }
    }

    fn defaults(members: usize) -> AgeConfig {
        let one = Participant::new("x");
        AgeConfig::new("x", vec![one; members])
    }

    /// AG-18: at 10 % loss no running member reaches the default thresholds, and no message of the present
    /// cycle is classified as obsolete. log2 N as a threshold of death declares many running members dead.
    #[test]
    fn the_defaults_hold_where_the_paper_thresholds_fail() {
        for members in [16, 96, 1024] {
            let found = study_lamport(&setting(members, 100), 7);
            let config = defaults(members);
            assert!(
                found.older_than(config.suspect_after.into()) < 2e-5,
                "{members}: {found:?}"
            );
            assert_eq!(found.older_than(config.dead_after.into()), 0.0, "{members}");
            let obsolete = config.rules.obsolete_after as usize;
            assert!(
                found.further_behind(obsolete) < 1e-3,
                "{members}: {}",
                found.furthest()
            );
            assert!(found.older_than(log2(members).into()) > 0.1);
        }
    }

    /// AG-18: 5 % loss hardly changes propagation, and neither does laziness, up to the maximum that a
    /// configuration allows. Up to 1024 members the default laziness is at most the least difference that
    /// replies contain in any case, so this test uses the maximum. Empty replies show that these bounds can
    /// be missed.
    #[test]
    fn a_little_loss_and_laziness_hardly_change_propagation() {
        let members = 256;
        let lazy = |laziness| {
            let setting = LamportSetting {
                laziness,
                ..setting(members, 0)
            };
            study_lamport(&setting, 3)
        };
        let keen = lazy(0);
        let lossy = study_lamport(&setting(members, 50), 3);
        assert!(lossy.arrived < keen.arrived, "nothing was lost");
        let [keen_age, lossy_age] = [&keen, &lossy].map(LamportFound::mean_age);
        assert!(
            lossy_age > keen_age && lossy_age < 1.1 * keen_age,
            "{keen_age} {lossy_age}"
        );
        let laziest = log2(members) / 2;
        let [most, mute] = [laziest, u8::MAX].map(lazy);
        assert!(
            most.reply_entries < 0.7 * keen.reply_entries,
            "replies are no shorter: {} {}",
            keen.reply_entries,
            most.reply_entries
        );
        let [most_age, mute_age] = [&most, &mute].map(LamportFound::mean_age);
        assert!(most_age < 1.1 * keen_age, "{keen_age} {most_age}");
        assert!(mute_age > 1.2 * keen_age, "{keen_age} {mute_age}");
    }
}
