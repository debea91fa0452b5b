//! Shrinking: removes what a failing scenario does not need to fail in the same way.
//!
//! The search is greedy and bounded. It drops faults (many at once first), then members, network faults and
//! time; while a step succeeds, it starts again from the beginning. After a change the world draws everything
//! anew, so a shrunk scenario is a different run with the same failure, not a part of the first one.

use crate::run::run_drawn;
use crate::scenario::{Scenario, Span};

/// Most runs of one search.
const RUNS_MAX: usize = 400;

/// The result.
#[derive(Clone, Debug)]
pub struct Shrunk {
    /// The smaller scenario, drawn.
    pub scenario: Scenario,
    /// Number of runs.
    pub runs: usize,
}

/// Shrinks a drawn scenario that fails. One that does not fail is returned unchanged.
#[must_use]
pub fn shrink(drawn: &Scenario) -> Shrunk {
    let wanted = run_drawn(drawn, false).0.signature();
    let mut best = Shrunk {
        scenario: drawn.clone(),
        runs: 1,
    };
    if wanted.0 == "sound" {
        return best;
    }
    loop {
        let before = best.scenario.clone();
        drop_faults(&mut best, wanted);
        for smaller in candidates(&best.scenario) {
            attempt(&mut best, wanted, smaller);
        }
        if best.scenario == before || best.runs >= RUNS_MAX {
            return best;
        }
    }
}

type Signature = (&'static str, Option<&'static str>);

/// Takes the candidate if it fails in the same way.
fn attempt(best: &mut Shrunk, wanted: Signature, candidate: Scenario) -> bool {
    if best.runs >= RUNS_MAX || candidate == best.scenario {
        return false;
    }
    best.runs += 1;
    let fails = run_drawn(&candidate, false).0.signature() == wanted;
    if fails {
        best.scenario = candidate;
    }
    fails
}

fn drop_faults(best: &mut Shrunk, wanted: Signature) {
    let mut size = best.scenario.safety.fault.len();
    while size > 0 {
        let mut at = 0;
        while at < best.scenario.safety.fault.len() {
            let mut candidate = best.scenario.clone();
            let end = (at + size).min(candidate.safety.fault.len());
            candidate.safety.fault.drain(at..end);
            if !attempt(best, wanted, candidate) {
                at += size;
            }
        }
        size /= 2;
    }
}

/// Simpler scenarios, each by one step.
fn candidates(from: &Scenario) -> Vec<Scenario> {
    let mut found = Vec::new();
    let mut add = |change: &dyn Fn(&mut Scenario)| {
        let mut candidate = from.clone();
        change(&mut candidate);
        found.push(candidate);
    };
    let members = from.zone.members.low;
    for fewer in [members / 2, members - members / 4, members - 1] {
        if fewer >= 1 && fewer < members {
            add(&|scenario| {
                scenario.zone.members = Span::just(fewer);
                let faults = &mut scenario.safety.fault;
                faults.retain(|fault| {
                    let inside = |node: Option<Span>| node.is_none_or(|node| node.low < fewer);
                    inside(fault.node) && inside(fault.to) && fault.nodes.low <= fewer
                });
            });
        }
    }
    let none = Span::just(0);
    add(&|scenario| scenario.network.loss_permille = none);
    add(&|scenario| scenario.network.duplicate_permille = none);
    add(&|scenario| scenario.network.corrupt_permille = none);
    add(&|scenario| scenario.network.reorder_permille = none);
    add(&|scenario| scenario.network.replay_permille = none);
    add(&|scenario| scenario.network.jitter_us = none);
    add(&|scenario| scenario.zone.start_spread_ms = none);
    add(&|scenario| {
        let last = scenario
            .safety
            .fault
            .iter()
            .map(|fault| fault.end_ms())
            .max();
        let duration_ms = last.unwrap_or(0) as i64 + 100;
        let now = scenario.safety.duration_ms;
        scenario.safety.duration_ms = Span::just(duration_ms.min(now.low));
    });
    for index in 0..from.safety.fault.len() {
        add(&|scenario| scenario.safety.fault[index].nodes = Span::just(1));
    }
    found
}
