//! What the ranks wrote down: one log file a rank, one fact a line.
//!
//! The ranks stamp with CLOCK_MONOTONIC; on one machine that is one clock, so a stamp minus
//! the time of the fault is the time it took. The ranks compute no statistics themselves.

use std::fs;
use std::path::{Path, PathBuf};

/// A fact from a rank's log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fact {
    /// The rank sees the whole job alive.
    Ready { pid: u32, node: String },
    /// An event reached the application.
    Told {
        at_ns: u64,
        event: String,
        target: String,
        cause: String,
        text: String,
    },
    /// MPI shrank its communicator.
    Shrunk { at_ns: u64, size: u32 },
    /// MPI could not shrink; the rank goes on alone.
    NotShrunk { why: String },
    /// The computation went on.
    Resumed { at_ns: u64 },
    /// The computation ended, with a right or a wrong result.
    Done { right: bool },
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

    /// Every fact that a rank has written so far, in order. Unknown lines are skipped: the
    /// program may say more than the checker needs.
    pub(crate) fn facts(&self, rank: u32) -> Vec<Fact> {
        let path = self.directory.join(format!("rank-{rank}.log"));
        let text = fs::read_to_string(path).unwrap_or_default();
        // A last line without its end is still being written.
        let complete = text.rfind('\n').map_or("", |end| &text[..end]);
        complete.lines().filter_map(parse).collect()
    }
}

fn parse(line: &str) -> Option<Fact> {
    let mut words = line.splitn(2, ' ');
    let (kind, rest) = (words.next()?, words.next().unwrap_or(""));
    let mut rest_words = rest.split(' ');
    match kind {
        "READY" => {
            let _rank = rest_words.next()?;
            let pid = rest_words.next()?.parse().ok()?;
            Some(Fact::Ready {
                pid,
                node: rest_words.next()?.to_owned(),
            })
        }
        "TOLD" => {
            let mut fields = rest.splitn(5, ' ');
            Some(Fact::Told {
                at_ns: fields.next()?.parse().ok()?,
                event: fields.next()?.to_owned(),
                target: fields.next()?.to_owned(),
                cause: fields.next()?.to_owned(),
                text: fields.next().unwrap_or("").to_owned(),
            })
        }
        "SHRUNK" => Some(Fact::Shrunk {
            at_ns: rest_words.next()?.parse().ok()?,
            size: rest_words.next()?.parse().ok()?,
        }),
        "NOSHRINK" => {
            let why = rest.split_once(' ').map_or(rest, |(_, why)| why);
            Some(Fact::NotShrunk {
                why: why.to_owned(),
            })
        }
        "RESUMED" => Some(Fact::Resumed {
            at_ns: rest_words.next()?.parse().ok()?,
        }),
        "DONE" => Some(Fact::Done {
            right: rest_words.nth(1)? == "ok",
        }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_become_facts_and_a_half_written_line_waits() {
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
                Fact::Told {
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
                Fact::Done { right: true },
            ]
        );
    }

    #[test]
    fn a_rank_that_wrote_nothing_has_no_facts() {
        let directory = tempfile::tempdir().unwrap();
        assert!(Journal::new(directory.path()).facts(0).is_empty());
    }
}
