//! `JobWorld` is a simulated job: its shards, the truth, and virtual time.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Mutex, PoisonError};

use muster_protocol::{Config, Input, Instant, Phase};
use muster_zones::{NodeIndex, Tree, TreeConfig, ZoneMap};

use super::checks::Facts;
use super::node::{Draw, JobNode, mix};
use super::plan::JobPlan;
use super::shard::{Arrival, Shard, Work};

/// Start of virtual time.
pub(super) const START: Instant = Instant(10_000_000);
/// Nodes of each zone that all its nodes know.
const SEEDS: usize = 4;
/// The key of every simulated job.
const KEY: [u8; 32] = [42; 32];

/// A simulated job.
#[derive(Debug)]
pub(super) struct JobWorld {
    pub(super) shards: Vec<Shard>,
    pub(super) facts: Facts,
    pub(super) now: Instant,
    /// The shortest delay of a datagram: shards may run for so long without each other.
    window_us: u64,
    per_shard: usize,
}

impl JobWorld {
    /// A job whose nodes start now, in as many shards as there are threads.
    pub(super) fn new(plan: &JobPlan, seed: u64, threads: usize) -> Self {
        let setting = plan.setting();
        let map = Arc::new(setting.map().expect("a plan that was checked"));
        let contacts = (0..plan.nodes as u32).map(|node| node.to_le_bytes().to_vec());
        let contacts: Arc<Vec<Vec<u8>>> = Arc::new(contacts.collect());
        let per_shard = plan.nodes.div_ceil(threads);
        let delay_us = (plan.delay_us.low as u64, plan.delay_us.high as u64);
        let facts = Facts {
            map: Arc::clone(&map),
            ended: vec![false; plan.nodes],
            ended_ranks: Vec::new(),
            subjects: Vec::new(),
        };
        let starts: Vec<usize> = (0..plan.nodes).step_by(per_shard).collect();
        let start = |first: usize| {
            let nodes = first..(first + per_shard).min(plan.nodes);
            let node = |node| start_node(plan, seed, node, &map, &contacts);
            let mut shard = Shard::new(first, nodes.clone().map(node).collect(), delay_us);
            for node in nodes {
                shard.input(START, node, Input::Wake, &facts);
            }
            shard
        };
        let shards = std::thread::scope(|scope| {
            let threads: Vec<_> = starts
                .iter()
                .map(|first| scope.spawn(|| start(*first)))
                .collect();
            let shards = threads
                .into_iter()
                .map(|thread| thread.join().expect("a shard"));
            shards.collect()
        });
        let mut world = Self {
            shards,
            facts,
            now: START,
            window_us: delay_us.0,
            per_shard,
        };
        world.exchange();
        world
    }

    /// Delivers what left the shards outside of a run.
    fn exchange(&mut self) {
        let leaving = self
            .shards
            .iter_mut()
            .map(|shard| core::mem::take(&mut shard.leaving));
        for arrival in leaving.collect::<Vec<_>>().into_iter().flatten() {
            let shard = arrival.to as usize / self.per_shard;
            self.shards[shard].take(arrival);
        }
    }

    /// Lets everything happen that happens before a time, each shard on a thread of its own.
    pub(super) fn run_until(&mut self, until: Instant) {
        let Self { shards, facts, .. } = self;
        let count = shards.len();
        let (facts, window_us, per_shard) = (&*facts, self.window_us, self.per_shard);
        let (barrier, has_panicked) = (Barrier::new(count), AtomicBool::new(false));
        let arriving: Vec<Mutex<Vec<Arrival>>> = (0..count).map(|_| Mutex::default()).collect();
        let next: Vec<AtomicU64> = shards
            .iter()
            .map(|shard| AtomicU64::new(shard.next_at().0))
            .collect();
        let run = |place: usize, shard: &mut Shard| {
            loop {
                // All threads see the same times, so all of them end in the same turn.
                let first = next.iter().map(|next| next.load(Ordering::Acquire)).min();
                let first = Instant(first.unwrap_or(u64::MAX));
                barrier.wait();
                if first >= until {
                    return;
                }
                // The others must not wait for a thread that has panicked.
                let until = first.after(window_us).min(until);
                let ran = catch_unwind(AssertUnwindSafe(|| shard.run(until, facts)));
                has_panicked.fetch_or(ran.is_err(), Ordering::AcqRel);
                for arrival in core::mem::take(&mut shard.leaving) {
                    let to = &arriving[arrival.to as usize / per_shard];
                    to.lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .push(arrival);
                }
                barrier.wait();
                if let Err(panic) = ran {
                    resume_unwind(panic);
                }
                if has_panicked.load(Ordering::Acquire) {
                    return;
                }
                let arrivals = core::mem::take(
                    &mut *arriving[place]
                        .lock()
                        .unwrap_or_else(PoisonError::into_inner),
                );
                arrivals.into_iter().for_each(|arrival| shard.take(arrival));
                next[place].store(shard.next_at().0, Ordering::Release);
                barrier.wait();
            }
        };
        std::thread::scope(|scope| {
            for (place, shard) in shards.iter_mut().enumerate() {
                let run = &run;
                scope.spawn(move || run(place, shard));
            }
        });
        self.now = until;
    }

    pub(super) fn node(&self, node: usize) -> &JobNode {
        let shard = &self.shards[node / self.per_shard];
        &shard.nodes[node - shard.first]
    }

    /// Gives a node an input now.
    pub(super) fn input(&mut self, node: usize, input: Input<'_>) {
        self.shards[node / self.per_shard].input(self.now, node, input, &self.facts);
        self.exchange();
    }

    /// Kills nodes. If their connections are seen to break, the fabric tells those who observe them, after a delay.
    pub(super) fn kill(&mut self, nodes: &[usize], is_seen: bool) {
        for node in nodes {
            if is_seen {
                self.break_connections(*node);
            }
            let shard = &mut self.shards[node / self.per_shard];
            shard.nodes[node - shard.first].tree = None;
            self.facts.ended[*node] = true;
        }
    }

    fn break_connections(&mut self, node: usize) {
        let Some(id) = self.node(node).tree.as_ref().map(|tree| tree.base().id()) else {
            return;
        };
        for shard in &mut self.shards {
            for observer in shard.observers_of(id) {
                shard.report_end(self.now.after(self.window_us), observer, id);
            }
        }
    }

    /// The nodes that run.
    pub(super) fn running(&self) -> usize {
        self.facts.ended.iter().filter(|ended| !**ended).count()
    }

    /// The nodes that know of the present change.
    pub(super) fn knowing(&self) -> usize {
        self.shards.iter().map(|shard| shard.knowing).sum()
    }

    /// What all shards have done.
    pub(super) fn work(&self) -> Work {
        let mut all = Work::default();
        for shard in &self.shards {
            all.inputs += shard.work.inputs;
            all.datagrams += shard.work.datagrams;
            all.bytes += shard.work.bytes;
        }
        all
    }

    /// Of all that all nodes have sent and been told, with the times.
    pub(super) fn digest(&self) -> u64 {
        let nodes = self
            .shards
            .iter()
            .flat_map(|shard| &shard.nodes)
            .enumerate();
        nodes.fold(0, |digest, (number, node)| {
            digest ^ mix(node.digest ^ mix(number as u64))
        })
    }

    /// The first node that does not know the truth about the job, with what it lacks.
    pub(super) fn first_difference(&self) -> Option<String> {
        let alive = self.running() as u32;
        let map = &self.facts.map;
        let ended = |node: &NodeIndex| self.facts.ended[node.0 as usize];
        for (number, node) in self
            .shards
            .iter()
            .flat_map(|shard| &shard.nodes)
            .enumerate()
        {
            let Some(tree) = &node.tree else {
                continue;
            };
            if tree.phase() != Phase::Running {
                return Some(format!("node {number} does not run"));
            }
            let zone = map.base_zone(NodeIndex(number as u32))?;
            let members = map.nodes(zone).iter().filter(|node| !ended(node)).count();
            if tree.base().live() != members {
                let live = tree.base().live();
                return Some(format!(
                    "node {number} knows {live} of {members} members of its zone"
                ));
            }
            let known = tree.nodes_alive();
            if known != alive {
                return Some(format!("node {number} knows {known} of {alive} nodes"));
            }
        }
        None
    }
}

fn start_node(
    plan: &JobPlan,
    seed: u64,
    node: usize,
    map: &Arc<ZoneMap>,
    contacts: &Arc<Vec<Vec<u8>>>,
) -> JobNode {
    let mut draw = Draw::new(seed, node);
    let index = NodeIndex(node as u32);
    let name = map.directory().name(index).unwrap_or_default();
    let timing = plan.setting().timing;
    let mut config = Config::new(&name, &contacts[node], timing.profile);
    timing.configure(&mut config);
    config.key = Some(KEY);
    config.incarnation = START.0 * 1000;
    config.first_sequence = START.0;
    config.random_seed = draw.next();
    let members = map.base_zone(index).map_or(&[][..], |zone| map.nodes(zone));
    let seeds = members.iter().take(SEEDS).filter(|seed| **seed != index);
    config.seeds = seeds
        .map(|seed| contacts[seed.0 as usize].clone())
        .collect();
    let tree = Tree::new(TreeConfig {
        map: Arc::clone(map),
        engine: config,
        contacts: Arc::clone(contacts),
        degraded_attribute: None,
    });
    JobNode::new(tree.expect("the configuration of a simulated node"), draw)
}
