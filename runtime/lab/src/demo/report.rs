//! What the demo found: computed from the ranks' logs, told as a timeline and as JSON.

use super::journal::Fact;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// What was done to the job.
#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum FaultKind {
    /// SIGSTOP to one rank, and SIGCONT when all were told.
    Hung,
    /// SIGKILL to one rank.
    Kill,
    /// SIGSTOP to a whole node.
    Silent,
}

/// One fault and whom it concerns.
pub(crate) struct Fault {
    pub(crate) kind: FaultKind,
    /// A rank number, or a node's name.
    pub(crate) target: String,
    pub(crate) lost_ranks: Vec<u32>,
    /// CLOCK_MONOTONIC just before the signal was sent, in ns.
    pub(crate) t0_ns: u64,
    /// The ranks that have to be told.
    pub(crate) expected: Vec<u32>,
}

/// What is known at the end of a run.
pub(crate) struct Run {
    pub(crate) seed: u64,
    /// CLOCK_MONOTONIC when every rank was ready, in ns.
    pub(crate) start_ns: u64,
    pub(crate) faults: Vec<Fault>,
    /// Every rank's log.
    pub(crate) all: BTreeMap<u32, Vec<Fact>>,
    /// The ranks that had to finish.
    pub(crate) survivors: Vec<u32>,
    /// Those of them that died.
    pub(crate) crashed: Vec<u32>,
    pub(crate) finished: bool,
    pub(crate) killed_at_end: usize,
}

/// The result of a demo.
#[derive(Serialize)]
pub(crate) struct Report {
    schema: &'static str,
    seed: u64,
    faults: Vec<FaultReport>,
    false_failures: usize,
    /// Ranks that no fault had hit and that died all the same: Open MPI crashed in them.
    crashed: Vec<u32>,
    survivors_finished: bool,
    shrunk_with_mpi: bool,
    killed_at_end: usize,
    #[serde(skip)]
    story: String,
}

#[derive(Serialize)]
struct FaultReport {
    kind: FaultKind,
    target: String,
    t0_ns: u64,
    told: Vec<Told>,
    /// Of a hung rank: who was told that it goes on.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    back: Vec<Told>,
    p50_ms: f64,
    max_ms: f64,
    /// Ranks that were not told all of it.
    missing: usize,
}

#[derive(Serialize)]
struct Told {
    rank: u32,
    ms: f64,
    cause: String,
    #[serde(skip)]
    text: String,
}

impl Report {
    /// Judges a run.
    pub(crate) fn new(run: &Run) -> Self {
        let Run {
            faults,
            all,
            survivors,
            ..
        } = run;
        let facts_of = |rank: &u32| all.get(rank).map_or(&[][..], Vec::as_slice);
        let reports: Vec<_> = faults.iter().map(|fault| judge(fault, all)).collect();
        let living = survivors.iter().filter(|rank| !run.crashed.contains(rank));
        let deadly = faults.iter().filter(|fault| fault.kind != FaultKind::Hung);
        let last_ns = deadly.map(|fault| fault.t0_ns).max();
        let shrunk_with_mpi = living
            .map(facts_of)
            .all(|facts| last_ns.is_none_or(|last_ns| has_shrunk(facts, last_ns, survivors.len())));
        let mut report = Self {
            schema: "muster/demo/v1",
            seed: run.seed,
            faults: reports,
            false_failures: false_failures(faults, all, &run.crashed),
            crashed: run.crashed.clone(),
            survivors_finished: run.finished,
            shrunk_with_mpi,
            killed_at_end: run.killed_at_end,
            story: String::new(),
        };
        report.story = report.tell(run.start_ns, faults, all, survivors);
        report
    }

    /// The readable story.
    pub(crate) fn timeline(&self) -> &str {
        &self.story
    }

    /// The same for programs.
    pub(crate) fn json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default() + "\n"
    }

    /// Whether every promise was kept; else which was not.
    pub(crate) fn verdict(&self) -> Result<(), String> {
        let missing: usize = self.faults.iter().map(|fault| fault.missing).sum();
        if missing > 0 {
            return Err(format!(
                "{missing} times a survivor was not told of a fault"
            ));
        }
        if self.false_failures > 0 {
            return Err(format!(
                "{} false failures were reported",
                self.false_failures
            ));
        }
        if !self.survivors_finished {
            return Err("not every survivor finished its computation".into());
        }
        if !self.shrunk_with_mpi {
            return Err(
                "not every survivor went on with MPI: see SHRUNK and NOSHRINK in the ranks' logs"
                    .into(),
            );
        }
        Ok(())
    }

    fn tell(
        &self,
        start_ns: u64,
        faults: &[Fault],
        all: &BTreeMap<u32, Vec<Fact>>,
        survivors: &[u32],
    ) -> String {
        let mut story = String::from("\n     time  what\n");
        for (fault, report) in faults.iter().zip(&self.faults) {
            let what = match fault.kind {
                FaultKind::Hung => format!(
                    "rank {} hangs (SIGSTOP) until all are told (SIGCONT)",
                    fault.target
                ),
                FaultKind::Kill => format!("rank {} is killed (SIGKILL)", fault.target),
                FaultKind::Silent => format!("node {} falls silent (SIGSTOP)", fault.target),
            };
            let at_ms = fault.t0_ns.saturating_sub(start_ns) as f64 / 1e6;
            let _ = writeln!(story, "{at_ms:>9.1}  {what}");
            for told in report.told.iter().chain(&report.back) {
                let _ = writeln!(
                    story,
                    "{:>+9.2}  rank {:<3} is told: {}",
                    told.ms, told.rank, told.text
                );
            }
            // Nobody dies of a hang: what MPI does later belongs to a later fault.
            if fault.kind != FaultKind::Hung {
                story.push_str(&recovery(fault, all, survivors));
            }
            let _ = writeln!(
                story,
                "           => p50 {:.2} ms, max {:.2} ms, {} of {} not told",
                report.p50_ms,
                report.max_ms,
                report.missing,
                fault.expected.len()
            );
        }
        let done = if self.survivors_finished {
            "right"
        } else {
            "NOT complete"
        };
        for rank in &self.crashed {
            let _ = writeln!(
                story,
                "rank {rank} died by itself: no fault of ours had hit it"
            );
        }
        let _ = writeln!(
            story,
            "result: {} survivors, their computation is {done}; {} false failures{}",
            survivors.len(),
            self.false_failures,
            if self.shrunk_with_mpi {
                ""
            } else {
                "; MPI could not shrink everywhere"
            },
        );
        story
    }
}

/// Whether a rank went on with MPI after each fault, and after the last one with no more than the survivors.
fn has_shrunk(facts: &[Fact], last_ns: u64, survivors: usize) -> bool {
    let is_alone = |fact: &Fact| matches!(fact, Fact::NotShrunk { .. });
    let fits = |fact: &Fact| {
        matches!(fact, Fact::Shrunk { at_ns, size }
            if *at_ns >= last_ns && (1..=survivors).contains(&(*size as usize)))
    };
    !facts.iter().any(is_alone) && facts.iter().any(fits)
}

/// When the survivors had shrunk MPI after a fault.
fn recovery(fault: &Fault, all: &BTreeMap<u32, Vec<Fact>>, survivors: &[u32]) -> String {
    let after = |at_ns: u64| at_ns.checked_sub(fault.t0_ns);
    let mut first: Vec<(u64, u32)> = Vec::new();
    let mut refused = String::new();
    for rank in survivors {
        let facts = all.get(rank).map_or(&[][..], Vec::as_slice);
        let shrunk = facts.iter().find_map(|fact| match fact {
            Fact::Shrunk { at_ns, size } => Some((after(*at_ns)?, *size)),
            _ => None,
        });
        first.extend(shrunk);
        for fact in facts {
            if let (Fact::NotShrunk { why }, None) = (fact, shrunk) {
                let _ = writeln!(
                    refused,
                    "           rank {rank}: MPI could not shrink: {why}"
                );
            }
        }
    }
    match first.iter().max() {
        Some((ns, size)) => format!(
            "{:>+9.2}  {} ranks have shrunk MPI_COMM_WORLD to {size} and go on\n{refused}",
            *ns as f64 / 1e6,
            first.len()
        ),
        None => refused,
    }
}

/// Who was told of a fault, after how many milliseconds.
fn judge(fault: &Fault, all: &BTreeMap<u32, Vec<Fact>>) -> FaultReport {
    let (event, end) = match fault.kind {
        FaultKind::Hung => ("RANK_HUNG", Some("RANK_RESUMED")),
        FaultKind::Kill => ("RANK_FAILED", None),
        FaultKind::Silent => ("NODE_FAILED", None),
    };
    let told = told_of(fault, event, all);
    let back = end.map_or_else(Vec::new, |end| told_of(fault, end, all));
    let knows = |said: &[Told], rank| said.iter().any(|told| told.rank == rank);
    let missing = fault
        .expected
        .iter()
        .filter(|&&rank| !knows(&told, rank) || (end.is_some() && !knows(&back, rank)))
        .count();
    FaultReport {
        kind: fault.kind,
        target: fault.target.clone(),
        t0_ns: fault.t0_ns,
        p50_ms: told
            .get(told.len().saturating_sub(1) / 2)
            .map_or(0.0, |t| t.ms),
        max_ms: told.last().map_or(0.0, |t| t.ms),
        missing,
        told,
        back,
    }
}

/// Who of those concerned was told of this event since the fault, the first time, earliest first.
fn told_of(fault: &Fault, event: &str, all: &BTreeMap<u32, Vec<Fact>>) -> Vec<Told> {
    let first = |&rank: &u32| {
        all.get(&rank)?.iter().find_map(|fact| match fact {
            Fact::Told {
                at_ns,
                event: e,
                target,
                cause,
                text,
            } if e == event && *target == fault.target => Some(Told {
                rank,
                ms: at_ns.checked_sub(fault.t0_ns)? as f64 / 1e6,
                cause: cause.clone(),
                text: text.clone(),
            }),
            _ => None,
        })
    };
    let mut told: Vec<Told> = fault.expected.iter().filter_map(first).collect();
    told.sort_by(|a, b| a.ms.total_cmp(&b.ms));
    told
}

/// Failures and hangs that were reported about somebody whom no fault had hit by then, and who lives.
fn false_failures(faults: &[Fault], all: &BTreeMap<u32, Vec<Fact>>, crashed: &[u32]) -> usize {
    let has_crashed = |target: &str| target.parse().is_ok_and(|rank| crashed.contains(&rank));
    let hit = |event: &str, target: &str, at_ns: u64| {
        faults.iter().any(|fault| {
            at_ns >= fault.t0_ns
                && match event {
                    "NODE_FAILED" => fault.kind == FaultKind::Silent && fault.target == target,
                    // A hang is no death.
                    "RANK_FAILED" if fault.kind == FaultKind::Hung => false,
                    _ => target
                        .parse()
                        .is_ok_and(|rank| fault.lost_ranks.contains(&rank)),
                }
        })
    };
    all.values()
        .flatten()
        .filter(|fact| match fact {
            Fact::Told {
                at_ns,
                event,
                target,
                ..
            } => match event.as_str() {
                "NODE_FAILED" => !hit(event, target, *at_ns),
                "RANK_FAILED" | "RANK_HUNG" => !hit(event, target, *at_ns) && !has_crashed(target),
                _ => false,
            },
            _ => false,
        })
        .count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(at_ns: u64, event: &str, target: &str) -> Fact {
        Fact::Told {
            at_ns,
            event: event.into(),
            target: target.into(),
            cause: "futex".into(),
            text: String::new(),
        }
    }

    fn shrunk(at_ns: u64, size: u32) -> Fact {
        Fact::Shrunk { at_ns, size }
    }

    fn report(all: Vec<(u32, Vec<Fact>)>, crashed: Vec<u32>) -> Report {
        Report::new(&Run {
            seed: 1,
            start_ns: 0,
            faults: vec![kill_of_2()],
            all: all.into_iter().collect(),
            survivors: vec![0, 1],
            crashed,
            finished: true,
            killed_at_end: 0,
        })
    }

    fn kill_of_2() -> Fault {
        Fault {
            kind: FaultKind::Kill,
            target: "2".into(),
            lost_ranks: vec![2],
            t0_ns: 1_000_000,
            expected: vec![0, 1],
        }
    }

    #[test]
    fn times_are_from_the_signal_to_the_stamp_of_each_rank() {
        let all = vec![
            (
                0,
                vec![told(2_000_000, "RANK_FAILED", "2"), shrunk(6_000_000, 2)],
            ),
            (
                1,
                vec![told(4_500_000, "RANK_FAILED", "2"), shrunk(6_000_000, 2)],
            ),
        ];
        let report = report(all, vec![]);
        assert_eq!(report.faults[0].p50_ms, 1.0);
        assert_eq!(report.faults[0].max_ms, 3.5);
        assert_eq!(report.faults[0].missing, 0);
        assert_eq!(report.verdict(), Ok(()));
    }

    /// Going on without MPI is no recovery, nor is a shrink of before, nor one that has the dead in it.
    #[test]
    fn who_did_not_shrink_mpi_is_found() {
        let heard = || told(2_000_000, "RANK_FAILED", "2");
        let other = |facts: Vec<Fact>| {
            let facts = [vec![heard()], facts].concat();
            report(
                vec![(0, vec![heard(), shrunk(6_000_000, 2)]), (1, facts)],
                vec![],
            )
        };
        assert_eq!(other(vec![shrunk(6_000_000, 2)]).verdict(), Ok(()));
        let alone = Fact::NotShrunk { why: "late".into() };
        for facts in [
            vec![],
            vec![alone.clone()],
            vec![shrunk(6_000_000, 2), alone],
            vec![shrunk(900_000, 2)],
            vec![shrunk(6_000_000, 3)],
        ] {
            let report = other(facts);
            assert!(!report.shrunk_with_mpi && report.verdict().is_err());
            assert!(report.timeline().contains("could not shrink everywhere"));
        }
        // One that Open MPI has crashed needs none.
        let all = vec![(0, vec![heard(), shrunk(6_000_000, 2)]), (1, vec![heard()])];
        assert!(report(all, vec![1]).shrunk_with_mpi);
    }

    #[test]
    fn a_rank_that_was_not_told_is_missing() {
        let all = vec![(0, vec![told(2_000_000, "RANK_FAILED", "2")]), (1, vec![])];
        let report = report(all, vec![]);
        assert_eq!(report.faults[0].missing, 1);
        assert!(report.verdict().is_err());
    }

    #[test]
    fn a_hang_is_told_twice_and_is_no_failure() {
        let judged = |words: Vec<(u64, &str)>| {
            let facts = words
                .into_iter()
                .map(|(at, event)| told(at, event, "2"))
                .collect();
            Report::new(&Run {
                seed: 1,
                start_ns: 0,
                faults: vec![Fault {
                    kind: FaultKind::Hung,
                    expected: vec![0],
                    ..kill_of_2()
                }],
                all: [(0, facts)].into(),
                survivors: vec![0],
                crashed: vec![],
                finished: true,
                killed_at_end: 0,
            })
        };
        let good = judged(vec![(3_000_000, "RANK_HUNG"), (5_000_000, "RANK_RESUMED")]);
        assert_eq!(good.verdict(), Ok(()));
        assert_eq!(good.faults[0].max_ms, 2.0);
        assert_eq!(good.faults[0].back[0].ms, 4.0);
        assert!(good.json().contains("\"hung\""));
        assert!(!good.timeline().contains("shrunk"));
        assert_eq!(judged(vec![(3_000_000, "RANK_HUNG")]).faults[0].missing, 1);
        let dead = judged(vec![
            (3_000_000, "RANK_HUNG"),
            (4_000_000, "RANK_FAILED"),
            (5_000_000, "RANK_RESUMED"),
        ]);
        assert_eq!(dead.false_failures, 1);
        let early = judged(vec![(999_999, "RANK_HUNG"), (5_000_000, "RANK_RESUMED")]);
        assert_eq!(early.false_failures, 1);
    }

    #[test]
    fn a_failure_of_the_living_and_one_before_its_fault_are_false() {
        let all = vec![
            (
                0,
                vec![
                    told(2_000_000, "RANK_FAILED", "2"),
                    told(3_000_000, "NODE_FAILED", "n1"),
                ],
            ),
            (
                1,
                vec![
                    told(999_999, "RANK_FAILED", "2"),
                    told(2_000_000, "RANK_FAILED", "2"),
                ],
            ),
        ];
        let report = report(all, vec![]);
        assert_eq!(report.false_failures, 2);
        assert!(report.verdict().is_err());
    }

    #[test]
    fn the_failure_of_a_rank_that_really_died_is_not_false() {
        let heard = || told(3_000_000, "RANK_FAILED", "2");
        let all = vec![
            (0, vec![heard(), told(4_000_000, "RANK_FAILED", "1")]),
            (1, vec![heard()]),
        ];
        assert_eq!(report(all.clone(), vec![1]).false_failures, 0);
        assert_eq!(report(all, vec![]).false_failures, 1);
    }
}
