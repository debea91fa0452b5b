//! The result of the demo: computed from the logs of the ranks, printed as a timeline and as JSON.

use super::journal::Fact;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// The kind of an injected fault.
#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum FaultKind {
    /// SIGSTOP to one rank, and SIGCONT when all others were notified.
    Hung,
    /// SIGKILL to one rank.
    Kill,
    /// SIGSTOP to a whole node.
    Silent,
}

/// An injected fault and the ranks that it concerns.
pub(crate) struct Fault {
    pub(crate) kind: FaultKind,
    /// A rank number, or a node's name.
    pub(crate) target: String,
    pub(crate) lost_ranks: Vec<u32>,
    /// CLOCK_MONOTONIC just before the signal was sent, in ns.
    pub(crate) t0_ns: u64,
    /// The ranks that must be notified.
    pub(crate) expected: Vec<u32>,
}

/// The data of a finished run.
pub(crate) struct Run {
    pub(crate) seed: u64,
    /// CLOCK_MONOTONIC when every rank was ready, in ns.
    pub(crate) start_ns: u64,
    pub(crate) faults: Vec<Fault>,
    /// Every rank's log.
    pub(crate) all: BTreeMap<u32, Vec<Fact>>,
    /// The ranks that must finish.
    pub(crate) survivors: Vec<u32>,
    /// The survivors that died.
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
    /// Ranks that failed without an injected fault: Open MPI crashed in them.
    crashed: Vec<u32>,
    survivors_finished: bool,
    shrunk_with_mpi: bool,
    killed_at_end: usize,
    #[serde(skip)]
    timeline: String,
}

#[derive(Serialize)]
struct FaultReport {
    kind: FaultKind,
    target: String,
    t0_ns: u64,
    told: Vec<Notification>,
    /// For a hung rank: the ranks that were notified that it continues.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    back: Vec<Notification>,
    p50_ms: f64,
    max_ms: f64,
    /// Number of ranks that were not notified of all of it.
    missing: usize,
}

#[derive(Serialize)]
struct Notification {
    rank: u32,
    ms: f64,
    cause: String,
    #[serde(skip)]
    text: String,
}

impl Report {
    /// Computes the result of a run.
    pub(crate) fn new(run: &Run) -> Self {
        let Run {
            faults,
            all,
            survivors,
            ..
        } = run;
        let facts_of = |rank: &u32| all.get(rank).map_or(&[][..], Vec::as_slice);
        let reports: Vec<_> = faults.iter().map(|fault| judge(fault, all)).collect();
        let alive = survivors.iter().filter(|rank| !run.crashed.contains(rank));
        let fatal = faults.iter().filter(|fault| fault.kind != FaultKind::Hung);
        let last_ns = fatal.map(|fault| fault.t0_ns).max();
        let shrunk_with_mpi = alive
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
            timeline: String::new(),
        };
        report.timeline = report.draw_timeline(run.start_ns, faults, all, survivors);
        report
    }

    /// The timeline as text.
    pub(crate) fn timeline(&self) -> &str {
        &self.timeline
    }

    /// The result as JSON.
    pub(crate) fn json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default() + "\n"
    }

    /// Returns the first check that failed, if any.
    pub(crate) fn verdict(&self) -> Result<(), String> {
        let missing: usize = self.faults.iter().map(|fault| fault.missing).sum();
        if missing > 0 {
            return Err(format!("{missing} notifications of survivors are missing"));
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
                "not every survivor continued with MPI: see SHRUNK and NOSHRINK in the ranks' logs"
                    .into(),
            );
        }
        Ok(())
    }

    fn draw_timeline(
        &self,
        start_ns: u64,
        faults: &[Fault],
        all: &BTreeMap<u32, Vec<Fact>>,
        survivors: &[u32],
    ) -> String {
        let mut timeline = String::from("\n     time  what\n");
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
            let _ = writeln!(timeline, "{at_ms:>9.1}  {what}");
            for told in report.told.iter().chain(&report.back) {
                let _ = writeln!(
                    timeline,
                    "{:>+9.2}  rank {:<3} is told: {}",
                    told.ms, told.rank, told.text
                );
            }
            // A hang kills no rank: a later shrink of MPI belongs to a later fault.
            if fault.kind != FaultKind::Hung {
                timeline.push_str(&recovery(fault, all, survivors));
            }
            let _ = writeln!(
                timeline,
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
            let _ = writeln!(timeline, "rank {rank} failed without an injected fault");
        }
        let _ = writeln!(
            timeline,
            "result: {} survivors, their computation is {done}; {} false failures{}",
            survivors.len(),
            self.false_failures,
            if self.shrunk_with_mpi {
                ""
            } else {
                "; MPI could not shrink everywhere"
            },
        );
        timeline
    }
}

/// Whether a rank continued with MPI after each fault, and after the last one with at most the survivors.
fn has_shrunk(facts: &[Fact], last_ns: u64, survivors: usize) -> bool {
    let is_alone = |fact: &Fact| matches!(fact, Fact::NotShrunk { .. });
    let fits = |fact: &Fact| {
        matches!(fact, Fact::Shrunk { at_ns, size }
            if *at_ns >= last_ns && (1..=survivors).contains(&(*size as usize)))
    };
    !facts.iter().any(is_alone) && facts.iter().any(fits)
}

/// Time at which the survivors had shrunk MPI after a fault.
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

/// The ranks that were notified of a fault, with latencies.
fn judge(fault: &Fault, all: &BTreeMap<u32, Vec<Fact>>) -> FaultReport {
    let (event, end) = match fault.kind {
        FaultKind::Hung => ("RANK_HUNG", Some("RANK_RESUMED")),
        FaultKind::Kill => ("RANK_FAILED", None),
        FaultKind::Silent => ("NODE_FAILED", None),
    };
    let told = notifications_of(fault, event, all);
    let back = end.map_or_else(Vec::new, |end| notifications_of(fault, end, all));
    let has_rank = |list: &[Notification], rank| list.iter().any(|told| told.rank == rank);
    let missing = fault
        .expected
        .iter()
        .filter(|&&rank| !has_rank(&told, rank) || (end.is_some() && !has_rank(&back, rank)))
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

/// The first notification of each expected rank of this event since the fault, sorted by latency.
fn notifications_of(
    fault: &Fault,
    event: &str,
    all: &BTreeMap<u32, Vec<Fact>>,
) -> Vec<Notification> {
    let first = |&rank: &u32| {
        all.get(&rank)?.iter().find_map(|fact| match fact {
            Fact::Notified {
                at_ns,
                event: e,
                target,
                cause,
                text,
            } if e == event && *target == fault.target => Some(Notification {
                rank,
                ms: at_ns.checked_sub(fault.t0_ns)? as f64 / 1e6,
                cause: cause.clone(),
                text: text.clone(),
            }),
            _ => None,
        })
    };
    let mut told: Vec<Notification> = fault.expected.iter().filter_map(first).collect();
    told.sort_by(|a, b| a.ms.total_cmp(&b.ms));
    told
}

/// The number of failures and hangs that were reported of a rank or node that no fault had hit by then, and that is
/// alive.
fn false_failures(faults: &[Fault], all: &BTreeMap<u32, Vec<Fact>>, crashed: &[u32]) -> usize {
    let has_crashed = |target: &str| target.parse().is_ok_and(|rank| crashed.contains(&rank));
    let hit = |event: &str, target: &str, at_ns: u64| {
        faults.iter().any(|fault| {
            at_ns >= fault.t0_ns
                && match event {
                    "NODE_FAILED" => fault.kind == FaultKind::Silent && fault.target == target,
                    // A hang is no failure.
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
            Fact::Notified {
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

    fn notification(at_ns: u64, event: &str, target: &str) -> Fact {
        Fact::Notified {
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
                vec![
                    notification(2_000_000, "RANK_FAILED", "2"),
                    shrunk(6_000_000, 2),
                ],
            ),
            (
                1,
                vec![
                    notification(4_500_000, "RANK_FAILED", "2"),
                    shrunk(6_000_000, 2),
                ],
            ),
        ];
        let report = report(all, vec![]);
        assert_eq!(report.faults[0].p50_ms, 1.0);
        assert_eq!(report.faults[0].max_ms, 3.5);
        assert_eq!(report.faults[0].missing, 0);
        assert_eq!(report.verdict(), Ok(()));
    }

    /// Continuing without MPI is no recovery. Neither is a shrink before the fault, nor one that includes a failed
    /// rank.
    #[test]
    fn a_survivor_that_did_not_shrink_mpi_is_found() {
        let notified_of_2 = || notification(2_000_000, "RANK_FAILED", "2");
        let other = |facts: Vec<Fact>| {
            let facts = [vec![notified_of_2()], facts].concat();
            report(
                vec![(0, vec![notified_of_2(), shrunk(6_000_000, 2)]), (1, facts)],
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
        // A rank in which Open MPI has crashed need not shrink.
        let all = vec![
            (0, vec![notified_of_2(), shrunk(6_000_000, 2)]),
            (1, vec![notified_of_2()]),
        ];
        assert!(report(all, vec![1]).shrunk_with_mpi);
    }

    #[test]
    fn a_rank_that_was_not_notified_is_missing() {
        let all = vec![
            (0, vec![notification(2_000_000, "RANK_FAILED", "2")]),
            (1, vec![]),
        ];
        let report = report(all, vec![]);
        assert_eq!(report.faults[0].missing, 1);
        assert!(report.verdict().is_err());
    }

    #[test]
    fn a_hang_is_notified_twice_and_is_no_failure() {
        let judged = |events: Vec<(u64, &str)>| {
            let facts = events
                .into_iter()
                .map(|(at, event)| notification(at, event, "2"))
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
    fn a_failure_of_an_alive_rank_and_one_before_its_fault_are_false() {
        let all = vec![
            (
                0,
                vec![
                    notification(2_000_000, "RANK_FAILED", "2"),
                    notification(3_000_000, "NODE_FAILED", "n1"),
                ],
            ),
            (
                1,
                vec![
                    notification(999_999, "RANK_FAILED", "2"),
                    notification(2_000_000, "RANK_FAILED", "2"),
                ],
            ),
        ];
        let report = report(all, vec![]);
        assert_eq!(report.false_failures, 2);
        assert!(report.verdict().is_err());
    }

    #[test]
    fn the_failure_of_a_rank_that_really_died_is_not_false() {
        let notified_of_2 = || notification(3_000_000, "RANK_FAILED", "2");
        let all = vec![
            (
                0,
                vec![notified_of_2(), notification(4_000_000, "RANK_FAILED", "1")],
            ),
            (1, vec![notified_of_2()]),
        ];
        assert_eq!(report(all.clone(), vec![1]).false_failures, 0);
        assert_eq!(report(all, vec![]).false_failures, 1);
    }
}
