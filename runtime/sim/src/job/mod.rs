//! Whole jobs: every node has the same tree of engines as `musterd`, and all zones are complete.
//!
//! A job boots, and things happen to it, one after the other. Measured is when each node knows of them. No failure may
//! be reported of a node that runs, and after each change every node must know the truth.
//!
//! The nodes are divided into shards, one for each thread (`shard`). The course depends only on the plan and the seed,
//! not on the number of threads: `JobReport::digest` shows it.

mod checks;
mod node;
mod plan;
mod report;
mod shard;
mod world;

use muster_protocol::{Input, RankDetail, RankState, Told};
use muster_zones::ZoneId;

use checks::{SUBJECTS_MAX, Subject};
use plan::ZONES_MIN;
pub use plan::{Change, JobPlan, JobScenario};
pub use report::{Changed, JobReport, Spread};
use world::{JobWorld, START};

/// Interval of the question whether all nodes know.
const ASK_US: u64 = 1_000;
/// Longest time until all nodes know of a change, in microseconds.
const LIMIT_US: u64 = 30_000_000;
/// Quiet time before each change: later news is under way no longer.
const QUIET_US: u64 = 20_000;
/// Nodes of a rack.
const RACK: usize = 64;
/// The rank that ends.
const RANK: u32 = 0;

/// How far a simulation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobProgress {
    /// What happens now: `boot`, or the name of a change.
    pub what: &'static str,
    /// Its place among the boot and all changes, from 1 on.
    pub step: usize,
    /// How many the boot and all changes are.
    pub steps: usize,
    /// Virtual time since the start, in microseconds.
    pub virtual_us: u64,
    /// Inputs that nodes have handled.
    pub inputs: u64,
    /// Nodes that know of the present change.
    pub knowing: usize,
}

struct Run<'a> {
    world: JobWorld,
    plan: &'a JobPlan,
    tell: &'a mut dyn FnMut(JobProgress),
    what: &'static str,
    step: usize,
}

/// Runs a job on so many threads. `tell` is called every simulated millisecond.
///
/// # Panics
/// If the plan was not checked ([`JobScenario::read`]), or `threads` is 0.
#[must_use]
pub fn run_job(
    plan: &JobPlan,
    seed: u64,
    threads: usize,
    tell: &mut dyn FnMut(JobProgress),
) -> JobReport {
    let world = JobWorld::new(plan, seed, threads);
    let mut run = Run {
        world,
        plan,
        tell,
        what: "boot",
        step: 1,
    };
    let mut report = JobReport::new(plan, seed, &run.world);
    let booted = run.boot();
    report.add(&run.world, booted);
    for change in &plan.changes {
        if report.is_wrong() {
            break;
        }
        run.what = change.name();
        run.step += 1;
        let changed = run.change(*change);
        report.add(&run.world, changed);
    }
    report
}

impl Run<'_> {
    /// Until all zones are complete, and every node knows that all others are alive.
    fn boot(&mut self) -> Changed {
        let before = self.world.work();
        let since = self.world.now;
        let mut missing = None;
        while self.world.now.since(since) < LIMIT_US {
            self.pass(ASK_US);
            missing = self.world.first_difference();
            if missing.is_none() {
                break;
            }
        }
        let took_us = self.world.now.since(since);
        let (datagrams_each, bytes_each) = self.cost(before);
        Changed {
            what: "boot",
            count: self.plan.nodes,
            known: Spread::of(core::iter::once(Some(took_us))),
            datagrams_each,
            bytes_each,
            difference: missing,
        }
    }

    /// Lets something happen, until all nodes know it.
    fn change(&mut self, change: Change) -> Changed {
        self.pass(QUIET_US);
        self.world.facts.subjects.clear();
        for shard in &mut self.world.shards {
            shard.knowing = 0;
            for node in &mut shard.nodes {
                (node.known, node.knew_at) = (0, None);
            }
        }
        let before = self.world.work();
        let count = self.begin(change);
        let since = self.world.now;
        while self.world.now.since(since) < LIMIT_US && self.world.knowing() < self.world.running()
        {
            self.pass(ASK_US);
        }
        let (datagrams_each, bytes_each) = self.cost(before);
        let times = self.world.shards.iter().flat_map(|shard| &shard.nodes);
        let times = times.filter(|node| node.tree.is_some());
        let times = times.map(|node| Some(node.knew_at?.since(since)));
        let known = Spread::of(times);
        self.pass(QUIET_US);
        Changed {
            what: change.name(),
            count,
            known,
            datagrams_each,
            bytes_each,
            difference: self.world.first_difference(),
        }
    }

    /// Datagrams and bytes for each node that runs, since a time.
    fn cost(&self, before: shard::Work) -> (u64, u64) {
        let (now, running) = (self.world.work(), self.world.running().max(1) as u64);
        let datagrams = (now.datagrams - before.datagrams) / running;
        (datagrams, (now.bytes - before.bytes) / running)
    }

    fn pass(&mut self, us: u64) {
        let until = self.world.now.after(us);
        while self.world.now < until {
            let next = self.world.now.after(ASK_US).min(until);
            self.world.run_until(next);
            (self.tell)(JobProgress {
                what: self.what,
                step: self.step,
                steps: 1 + self.plan.changes.len(),
                virtual_us: self.world.now.since(START),
                inputs: self.world.work().inputs,
                knowing: self.world.knowing(),
            });
        }
    }

    /// Begins a change. Returns how many nodes or ranks it is about.
    fn begin(&mut self, change: Change) -> usize {
        if change == Change::Rank {
            let node = self.running(self.zone(1))[0];
            return self.end_rank(node);
        }
        let victims = self.victims(change);
        let subjects = victims.iter().map(|node| Subject::Node(*node as u32));
        self.world.facts.subjects = match change {
            Change::Zone => vec![Subject::Zone(self.zone(11))],
            _ => subjects.take(SUBJECTS_MAX).collect(),
        };
        self.world.kill(&victims, change == Change::Agent);
        victims.len()
    }

    /// The base zone at so many sixteenths of the job: each change is about another part of it.
    fn zone(&self, part: usize) -> ZoneId {
        let zones: Vec<ZoneId> = self.world.facts.map.zones_at(0).collect();
        zones[zones.len() * part / ZONES_MIN]
    }

    /// The nodes of a base zone that run.
    fn running(&self, zone: ZoneId) -> Vec<usize> {
        let facts = &self.world.facts;
        let nodes = facts.map.nodes(zone).iter().map(|node| node.0 as usize);
        nodes.filter(|node| !facts.ended[*node]).collect()
    }

    /// The nodes that a change kills.
    fn victims(&self, change: Change) -> Vec<usize> {
        let last = |part| self.running(self.zone(part)).pop();
        match change {
            Change::Rank => Vec::new(),
            Change::Silent => last(3).into_iter().collect(),
            Change::Agent => last(5).into_iter().collect(),
            Change::Several => (0..ZONES_MIN).filter_map(last).collect(),
            Change::Rack => {
                let first = self.running(self.zone(7))[0];
                let ended = &self.world.facts.ended;
                let rack = (first..self.plan.nodes).filter(|node| !ended[*node]);
                rack.take(RACK.min(self.plan.nodes / 8)).collect()
            }
            Change::Supervisors => {
                let mut members = self.running(self.zone(9));
                members.retain(|node| {
                    let tree = self.world.node(*node).tree.as_ref();
                    tree.is_some_and(|tree| tree.memberships().count() > 1)
                });
                members
            }
            Change::Zone => self.running(self.zone(11)),
        }
    }

    /// Starts a rank on a node, and lets it end a little later.
    fn end_rank(&mut self, node: usize) -> usize {
        let state = |run: &mut Self, state| {
            let detail = RankDetail {
                code: 0,
                argument: 0,
            };
            run.world.input(
                node,
                Input::Told(Told::Rank {
                    rank: RANK,
                    state,
                    detail,
                }),
            );
        };
        state(self, RankState::Alive);
        self.pass(QUIET_US);
        self.world.facts.subjects = vec![Subject::Rank(RANK)];
        self.world.facts.ended_ranks.push(RANK);
        state(self, RankState::Failed);
        1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::Span;

    /// The other threads would wait for ever for one that has panicked.
    #[test]
    #[should_panic(expected = "a scoped thread panicked")]
    fn a_thread_that_panics_ends_the_run() {
        let delay_us = Span {
            low: 100,
            high: 200,
        };
        let plan = JobPlan {
            nodes: 32,
            zone: 8,
            above: 16,
            timing: "ours".to_owned(),
            delay_us,
            changes: Vec::new(),
        };
        let mut world = JobWorld::new(&plan, 1, 2);
        // Datagrams to these nodes find no place in the shard.
        world.shards[1].nodes.clear();
        world.run_until(START.after(100_000));
    }

    /// Of a node that died it is asserted that it runs: the checkers find that all were told what is not so.
    #[test]
    fn a_false_failure_is_found() {
        let plan = JobPlan {
            nodes: 32,
            zone: 8,
            above: 16,
            timing: "ours".to_owned(),
            delay_us: Span {
                low: 100,
                high: 200,
            },
            changes: Vec::new(),
        };
        let mut world = JobWorld::new(&plan, 1, 2);
        world.run_until(START.after(100_000));
        assert_eq!(world.first_difference(), None);
        world.kill(&[20], false);
        world.facts.ended[20] = false;
        world.run_until(START.after(400_000));
        let wrong = world.shards.iter().flat_map(|shard| &shard.wrong);
        let wrong: Vec<usize> = wrong.map(|wrong| wrong.node).collect();
        assert_eq!(wrong.len(), 31, "{wrong:?}");
        let difference = world.first_difference();
        assert!(difference.is_some_and(|text| text.starts_with("node 0 knows 31 of 32 nodes")));
    }
}
