//! The logs of the ranks: one file per rank, one fact per line.
//!
//! The ranks stamp with CLOCK_MONOTONIC. On one machine that is one clock, so the difference between a stamp and the
//! time of the fault is the latency. The ranks compute no statistics.

use std::fs;
use std::path::{Path, PathBuf};

/// A fact from a rank's log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fact {
    /// The rank sees the whole job alive.
    Ready { pid: u32, node: String },
    /// The application received an event.
    Notified {
        at_ns: u64,
        event: String,
        target: String,
        cause: String,
        text: String,
    },
    /// MPI shrank its communicator.
    Shrunk { at_ns: u64, size: u32 },
    /// MPI could not shrink; the rank continues alone.
    NotShrunk { why: String },
    /// The computation continued.
    Resumed { at_ns: u64 },
    /// The computation ended, with a correct or a wrong result.
    Done { correct: bool },
}

/// The logs of all ranks of a job.
pub(crate) struct Journal {
    directory: PathBuf,
}

impl Journal {
    pub(crate) fn new(directory: &Path) -> Self {
        Self {
            directory: directory.to_owned(),
        }
    }

    /// Every fact that a rank has written so far, in order. Unknown lines are skipped, since the program may write more
    /// than the checker requires.
    pub(crate) fn facts(&self, rank: u32) -> Vec<Fact> {
        let path = self.directory.join(format!("rank-{rank}.log"));
        let text = fs::read_to_string(path).unwrap_or_default();
        // A last line without a newline is still being written.
        let complete = text.rfind('\n').map_or("", |end| &text[..end]);
        complete.lines().filter_map(parse).collect()
    }
}

fn parse(line: &str) -> Option<Fact> {
    let mut parts = line.splitn(2, ' ');
    let (kind, rest) = (parts.next()?, parts.next().unwrap_or(""));
    let mut fields = rest.split(' ');
    match kind {
        "READY" => {
            let _rank = fields.next()?;
            let pid = fields.next()?.parse().ok()?;
            Some(Fact::Ready {
                pid,
                node: fields.next()?.to_owned(),
            })
        }
        "TOLD" => {
            let mut fields = rest.splitn(5, ' ');
            Some(Fact::Notified {
                at_ns: fields.next()?.parse().ok()?,
                event: fields.next()?.to_owned(),
                target: fields.next()?.to_owned(),
                cause: fields.next()?.to_owned(),
                text: fields.next().unwrap_or("").to_owned(),
            })
        }
        "SHRUNK" => Some(Fact::Shrunk {
            at_ns: fields.next()?.parse().ok()?,
            size: fields.next()?.parse().ok()?,
        }),
        "NOSHRINK" => {
            let why = rest.split_once(' ').map_or(rest, |(_, why)| why);
            Some(Fact::NotShrunk {
                why: why.to_owned(),
            })
        }
        "RESUMED" => Some(Fact::Resumed {
            at_ns: fields.next()?.parse().ok()?,
        }),
        "DONE" => Some(Fact::Done {
            correct: fields.nth(1)? == "ok",
        }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_become_facts_and_an_incomplete_line_is_skipped() {
        let directory = tempfile::tempdir().unwrap();
        let text = "READY 3 4711 n2 99\n\
                    TOLD 1000 RANK_FAILED 5 futex rank 5 on n3 failed: killed\n\
                    SHRUNK 2000 7\nNOSHRINK 2500 not within 20 s\nRESUMED 3000 12\n\
                    HELLO there\nDONE 4000 ok\nDONE 50";
        fs::write(directory.path().join("rank-3.log"), text).unwrap();
        let facts = Journal::new(directory.path()).facts(3);
        assert_eq!(
            facts,
            vec![
                Fact::Ready {
                    pid: 4711,
                    node: "n2".into()
                },
                Fact::Notified {
                    at_ns: 1000,
                    event: "RANK_FAILED".into(),
                    target: "5".into(),
                    cause: "futex".into(),
                    text: "rank 5 on n3 failed: killed".into(),
                },
                Fact::Shrunk {
                    at_ns: 2000,
                    size: 7
                },
                Fact::NotShrunk {
                    why: "not within 20 s".into()
                },
                Fact::Resumed { at_ns: 3000 },
                Fact::Done { correct: true },
            ]
        );
    }

    #[test]
    fn a_rank_that_wrote_nothing_has_no_facts() {
        let directory = tempfile::tempdir().unwrap();
        assert!(Journal::new(directory.path()).facts(0).is_empty());
    }
}
