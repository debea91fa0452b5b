//! A trace: what happened, line by line. It is kept only while a story is requested.
//!
//! A failed run is run again from its seed with a trace, so a sweep of thousands of runs does not pay for
//! traces. The trace is bounded; the oldest lines are dropped first.

use std::collections::VecDeque;

use muster_protocol::{Instant, MemberId};

/// Most lines kept.
const LINES_MAX: usize = 200_000;

/// One line of a trace.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    pub(crate) at: Instant,
    pub(crate) text: String,
    /// The members concerned; empty: all.
    pub(crate) about: Vec<MemberId>,
}

/// The lines so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct Trace {
    lines: VecDeque<Line>,
}

impl Trace {
    pub(crate) fn push(&mut self, line: Line) {
        if self.lines.len() == LINES_MAX {
            self.lines.pop_front();
        }
        self.lines.push_back(line);
    }

    /// The last `count` lines until `until` that concern `about` or all members, in order.
    pub(crate) fn last(&self, until: Instant, about: Option<MemberId>, count: usize) -> Vec<&Line> {
        let concerns = |line: &&Line| {
            line.at <= until
                && about.is_none_or(|id| line.about.is_empty() || line.about.contains(&id))
        };
        let mut last: Vec<&Line> = self
            .lines
            .iter()
            .rev()
            .filter(concerns)
            .take(count)
            .collect();
        last.reverse();
        last
    }
}
