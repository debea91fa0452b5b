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
/// Nodes that fall silent at once.
const SEVERAL: usize = ZONES_MIN;
/// Nodes of a rack.
const RACK: usize = 64;
/// The rank that ends.
const RANK: u32 = 0;

/// How far a simulation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobProgress {
    /// What happens now: `boot`, or the name of a change.
    pub what: &'static str,
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
    };
    let mut report = JobReport::new(plan, seed, &run.world);
    let booted = run.boot();
    report.add(&run.world, booted);
    for change in &plan.changes {
        if report.is_wrong() {
            break;
        }
        run.what = change.name();
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
        for node in self
            .world
            .shards
            .iter_mut()
            .flat_map(|shard| &mut shard.nodes)
        {
            (node.known, node.knew_at) = (0, None);
        }
        for shard in &mut self.world.shards {
            shard.knowing = 0;
        }
        let before = self.world.work();
        let count = self.begin(change);
        let since = self.world.now;
        let knowing = |run: &Self| {
            run.world
                .shards
                .iter()
                .map(|shard| shard.knowing)
                .sum::<usize>()
        };
        while self.world.now.since(since) < LIMIT_US && knowing(self) < self.world.running() {
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
                virtual_us: self.world.now.since(START),
                inputs: self.world.work().inputs,
                knowing: self.world.shards.iter().map(|shard| shard.knowing).sum(),
            });
        }
    }

    /// Begins a change. Returns how many nodes or ranks it is about.
    fn begin(&mut self, change: Change) -> usize {
        // Each change is about another part of the job.
        let zones: Vec<ZoneId> = self.world.facts.map.zones_at(0).collect();
        let zone = |part: usize| zones[zones.len() * part / ZONES_MIN];
        let nodes = |run: &Self, zone: ZoneId| -> Vec<usize> {
            let nodes = run
                .world
                .facts
                .map
                .nodes(zone)
                .iter()
                .map(|node| node.0 as usize);
            nodes.filter(|node| !run.world.facts.ended[*node]).collect()
        };
        let last = |run: &Self, zone: ZoneId| {
            nodes(run, zone)
                .last()
                .copied()
                .into_iter()
                .collect::<Vec<_>>()
        };
        match change {
            Change::Rank => {
                let node = nodes(self, zone(1))[0];
                self.end_rank(node)
            }
            Change::Silent => {
                let victims = last(self, zone(3));
                self.end(&victims, false)
            }
            Change::Agent => {
                let victims = last(self, zone(5));
                self.end(&victims, true)
            }
            Change::Several => {
                let victims: Vec<usize> = (0..SEVERAL)
                    .flat_map(|turn| last(self, zone(turn)))
                    .collect();
                self.end(&victims, false)
            }
            Change::Rack => {
                let node = nodes(self, zone(7))[0];
                let rack = (node..self.plan.nodes).filter(|node| !self.world.facts.ended[*node]);
                let victims: Vec<usize> = rack.take(RACK.min(self.plan.nodes / 8)).collect();
                self.end(&victims, false)
            }
            Change::Supervisors => {
                let members = nodes(self, zone(9)).into_iter();
                let is_above = |node: &usize| {
                    let tree = self.world.node(*node).tree.as_ref();
                    tree.is_some_and(|tree| tree.memberships().count() > 1)
                };
                let victims: Vec<usize> = members.filter(is_above).collect();
                self.end(&victims, false)
            }
            Change::Zone => {
                let zone = zone(11);
                let victims = nodes(self, zone);
                self.world.facts.subjects = vec![Subject::Zone(zone)];
                self.world.kill(&victims, false);
                victims.len()
            }
        }
    }

    fn end(&mut self, nodes: &[usize], is_seen: bool) -> usize {
        let subjects = nodes.iter().map(|node| Subject::Node(*node as u32));
        self.world.facts.subjects = subjects.take(SUBJECTS_MAX).collect();
        self.world.kill(nodes, is_seen);
        nodes.len()
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
