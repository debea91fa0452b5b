//! What must hold at every moment, seen from outside.
//!
//! - Up and down alternate, for each observer and member.
//! - Nobody comes back with a version that was gone (unless the observer itself was cast out in
//!   between and started over with the others' view).
//! - Accuracy: nobody is declared failed who runs and was not excused by a fault.
//!
//! The checker only collects violations; a test asks for them at the end, when it can also print
//! the seed.

use std::collections::{BTreeMap, BTreeSet};

use muster_protocol::{CauseKind, Event, EventKind, MemberId, Version};

/// A broken promise, in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation(pub String);

/// Watches the events of all members.
#[derive(Clone, Debug, Default)]
pub struct Checker {
    up: BTreeSet<(usize, MemberId)>,
    gone: BTreeMap<(usize, MemberId), Version>,
    violations: Vec<Violation>,
}

impl Checker {
    /// What was broken so far.
    #[must_use]
    pub fn violations(&self) -> &[Violation] {
        &self.violations
    }

    /// An observer starts a new life and knows nobody.
    pub(crate) fn forget(&mut self, observer: usize) {
        self.up.retain(|(by, _)| *by != observer);
        self.gone.retain(|(by, _), _| *by != observer);
    }

    /// One event; `running` says whether the member runs in this version's incarnation and no
    /// fault excuses its death.
    pub(crate) fn see(&mut self, observer: usize, event: &Event, running: bool) {
        let pair = (observer, event.member);
        match event.kind {
            EventKind::NodeUp => {
                if !self.up.insert(pair) {
                    self.broken(observer, event, "up twice");
                }
                if self
                    .gone
                    .get(&pair)
                    .is_some_and(|gone| event.version <= *gone)
                {
                    self.broken(observer, event, "back from the dead with an old version");
                }
            }
            EventKind::NodeFailed | EventKind::NodeLeft { .. } => {
                let own = matches!(event.kind, EventKind::NodeLeft { .. });
                if !self.up.remove(&pair) && !own {
                    self.broken(observer, event, "down without having been up");
                }
                self.gone.insert(pair, event.version);
                let failed = event.kind == EventKind::NodeFailed;
                if failed && running && event.cause.kind != CauseKind::Superseded {
                    self.broken(observer, event, "declared failed and alive");
                }
            }
            EventKind::NodeSuspect | EventKind::NodeRecovered | EventKind::NodeDegraded => {
                if !self.up.contains(&pair) {
                    self.broken(observer, event, "in doubt without being up");
                }
            }
            EventKind::Outcast => self.gone.retain(|(by, _), _| *by != observer),
            EventKind::RankChanged { .. }
            | EventKind::AttributeChanged { .. }
            | EventKind::Refused { .. }
            | EventKind::NameTaken => {}
        }
    }

    fn broken(&mut self, observer: usize, event: &Event, what: &str) {
        self.violations
            .push(Violation(format!("{what}: observer {observer}, {event:?}")));
    }
}
