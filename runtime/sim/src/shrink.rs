//! Shrinking: what can be left out of a failing scenario while it still fails in the same way.
//!
//! Greedy and bounded: faults are dropped (many at once first), then members, network ills and
//! time; as long as something helps, again from the start. Everything after a change is drawn
//! anew by the world's chance, so a shrunk scenario is another run that fails alike, not a part
//! of the first.

use crate::run::run_drawn;
use crate::scenario::{Scenario, Span};

/// Most runs spent.
const RUNS_MAX: usize = 400;

/// What is left.
#[derive(Clone, Debug)]
pub struct Shrunk {
    /// The smaller scenario, drawn.
    pub scenario: Scenario,
    /// Runs it took.
    pub runs: usize,
}

/// Shrinks a drawn scenario that fails; one that does not comes back as it is.
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

/// Takes the candidate if it fails alike.
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

/// Simpler worlds, each by one step.
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
