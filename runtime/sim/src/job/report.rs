//! `JobReport` is what a simulated job has shown.

use super::plan::JobPlan;
use super::world::{JobWorld, START};

/// Most violations that are listed.
const WRONG_MAX: usize = 20;

/// When nodes knew of a change, in microseconds since it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spread {
    /// Half of the nodes knew.
    pub p50_us: u64,
    /// 99 of 100 nodes knew.
    pub p99_us: u64,
    /// All nodes knew that ever did.
    pub max_us: u64,
    /// Nodes that did not know in time.
    pub unknowing: usize,
}

impl Spread {
    /// Of the time of each node; `None` if it did not know in time.
    pub(super) fn of(times: impl Iterator<Item = Option<u64>>) -> Self {
        let (mut known, mut unknowing) = (Vec::new(), 0);
        for time in times {
            match time {
                Some(time) => known.push(time),
                None => unknowing += 1,
            }
        }
        known.sort_unstable();
        // The smallest time at which this part of the nodes knew.
        let part = |percent: usize| {
            let rank = (known.len() * percent).div_ceil(100).saturating_sub(1);
            known.get(rank).copied().unwrap_or_default()
        };
        Self {
            p50_us: part(50),
            p99_us: part(99),
            max_us: part(100),
            unknowing,
        }
    }
}

/// What a change has shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changed {
    /// `boot`, or the name of the change.
    pub what: &'static str,
    /// Nodes, or ranks, that it was about.
    pub count: usize,
    /// When the nodes knew.
    pub known: Spread,
    /// Datagrams sent by each node meanwhile.
    pub datagrams_each: u64,
    /// Bytes sent by each node meanwhile.
    pub bytes_each: u64,
    /// What the first node that did not know the truth lacked.
    pub difference: Option<String>,
}

/// What a simulated job has shown. All times are virtual.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobReport {
    /// Nodes of the job.
    pub nodes: usize,
    /// Base zones.
    pub zones: usize,
    /// Levels of zones.
    pub levels: usize,
    /// The seed.
    pub seed: u64,
    /// The boot and the changes, in their order.
    pub changes: Vec<Changed>,
    /// What nodes were told that was not so, at most 20 for each shard.
    pub wrong: Vec<String>,
    /// Virtual time, in microseconds.
    pub virtual_us: u64,
    /// Inputs that nodes have handled.
    pub inputs: u64,
    /// Datagrams sent.
    pub datagrams: u64,
    /// Bytes sent.
    pub bytes: u64,
    /// Of all that all nodes have sent and been told, with the times: equal for equal courses.
    pub digest: u64,
}

impl JobReport {
    pub(super) fn new(plan: &JobPlan, seed: u64, world: &JobWorld) -> Self {
        let map = &world.facts.map;
        Self {
            nodes: plan.nodes,
            zones: map.zones_at(0).count(),
            levels: map.levels(),
            seed,
            changes: Vec::new(),
            wrong: Vec::new(),
            virtual_us: 0,
            inputs: 0,
            datagrams: 0,
            bytes: 0,
            digest: 0,
        }
    }

    pub(super) fn add(&mut self, world: &JobWorld, changed: Changed) {
        self.changes.push(changed);
        let work = world.work();
        self.virtual_us = world.now.since(START);
        (self.inputs, self.datagrams, self.bytes) = (work.inputs, work.datagrams, work.bytes);
        self.digest = world.digest();
        let mut wrong: Vec<_> = world.shards.iter().flat_map(|shard| &shard.wrong).collect();
        wrong.sort_unstable_by_key(|wrong| (wrong.at, wrong.node));
        let text = wrong.iter().take(WRONG_MAX).map(|wrong| {
            let at_us = wrong.at.since(START);
            let (ms, us) = (at_us / 1000, at_us % 1000);
            format!(
                "{ms}.{us:03} ms: node {} was told {:?}",
                wrong.node, wrong.told
            )
        });
        self.wrong = text.collect();
    }

    /// Whether a node was told what is not so, or does not know the truth.
    #[must_use]
    pub fn is_wrong(&self) -> bool {
        let is_wrong =
            |changed: &Changed| changed.difference.is_some() || changed.known.unknowing > 0;
        !self.wrong.is_empty() || self.changes.iter().any(is_wrong)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_spread_of_times() {
        let times = (1..=200).map(Some).chain([None]);
        let spread = Spread {
            p50_us: 100,
            p99_us: 198,
            max_us: 200,
            unknowing: 1,
        };
        assert_eq!(Spread::of(times), spread);
        assert_eq!(Spread::of(core::iter::empty()), Spread::default());
    }
}
