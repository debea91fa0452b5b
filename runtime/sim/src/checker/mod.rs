//! Checkers of what must hold. They see all members from outside; each checker has a name.
//!
//! The checkers in this module examine every event, and `world` calls them. Those that examine the whole world
//! are in `inspection`.
//!
//! - `alternation`: up and down alternate, for each observer and member.
//! - `resurrection`: no member comes back with a version that was gone.
//! - `accuracy`: no running member is declared failed unless a fault excuses it; `world::excuses` lists the
//!   excuses. No running member is reported as left. No member that crashed long ago is reported as up.
//! - `groups`: a failed group is a list of members that were reported as failed.
//! - `hold`: with that policy, the smaller side of a split declares no member of the larger side failed.
//! - `incarnations`: the versions that an observer reports of a member only grow, and so do a member's own.
//! - `rank-order`: the facts that an observer reports of a rank only get newer.
//! - `attribute-order`: a node's writes are reported in the order of writing.
//!
//! Two more are elsewhere: after each wake-up, `rest` checks that an engine with nothing to send does not
//! request an immediate wake-up again (`world::cpu`). In the calm after the end, `attribute-traffic` checks that
//! no frames with attributes are sent (`run`).
//!
//! Checkers only collect violations. No member takes part in checking itself, and no checker influences the
//! run. An observer that was itself declared failed starts over with the view of the others: what it reported
//! before does not bind it.

mod always;

use std::fmt;

use muster_protocol::{Event, EventKind, Instant, MemberId};

use always::{
    Accuracy, Alternation, AttributeOrder, Groups, Hold, Incarnations, RankOrder, Resurrection,
};

/// Most violations kept: the first ones show the cause.
const VIOLATIONS_MAX: usize = 64;

/// A broken guarantee.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Name of the checker that found it.
    pub checker: &'static str,
    /// When, in the world's time.
    pub at: Instant,
    /// The member concerned, if it is one member.
    pub member: Option<MemberId>,
    /// The description.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.checker, self.what)
    }
}

/// One event, as the checkers see it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen<'a> {
    pub(crate) observer: usize,
    pub(crate) event: &'a Event,
    /// The member runs in this version's incarnation and no fault excuses a failure report.
    pub(crate) blameless: bool,
    /// For a failure or a departure: the member runs in this version's incarnation.
    pub(crate) runs: bool,
    /// For a member that comes up: it crashed long ago, and nothing excuses an observer that does not know.
    pub(crate) long_gone: bool,
    /// The observer's own id.
    pub(crate) own: MemberId,
    /// For a failure, if something is cut and the policy is `hold`: the observer's side.
    pub(crate) side: Option<&'a [MemberId]>,
    /// For a failed group: its members.
    pub(crate) listed: &'a [MemberId],
}

/// A checker that examines every event.
trait Check: fmt::Debug + Send {
    fn name(&self) -> &'static str;
    /// Returns a description of the violation, if there is one.
    fn see(&mut self, seen: &Seen<'_>) -> Option<String>;
    /// The observer starts a new incarnation and knows no member.
    fn forget(&mut self, observer: usize);
    /// Another worker takes over the observer; it has only what the last one left.
    fn hand_over(&mut self, _observer: usize) {}
    /// The observer was declared failed and takes over the view of the others.
    fn start_over(&mut self, _observer: usize) {}
}

/// All checkers, and what they found.
#[derive(Debug)]
pub struct Checker {
    checks: Vec<Box<dyn Check>>,
    violations: Vec<Violation>,
}

impl Default for Checker {
    fn default() -> Self {
        Self {
            checks: vec![
                Box::<Alternation>::default(),
                Box::<Resurrection>::default(),
                Box::<Accuracy>::default(),
                Box::<Groups>::default(),
                Box::<Hold>::default(),
                Box::<Incarnations>::default(),
                Box::<RankOrder>::default(),
                Box::<AttributeOrder>::default(),
            ],
            violations: Vec::new(),
        }
    }
}

impl Checker {
    /// The violations found so far.
    #[must_use]
    pub fn violations(&self) -> &[Violation] {
        &self.violations
    }

    /// Disables all checkers: for measuring worlds of millions of events.
    pub fn disable(&mut self) {
        self.checks.clear();
    }

    pub(crate) fn is_disabled(&self) -> bool {
        self.checks.is_empty()
    }

    /// Adds a violation that was found elsewhere.
    pub(crate) fn add(&mut self, violation: Violation) {
        if self.violations.len() < VIOLATIONS_MAX {
            self.violations.push(violation);
        }
    }

    pub(crate) fn forget(&mut self, observer: usize) {
        for check in &mut self.checks {
            check.forget(observer);
        }
    }

    pub(crate) fn hand_over(&mut self, observer: usize) {
        for check in &mut self.checks {
            check.hand_over(observer);
        }
    }

    pub(crate) fn see(&mut self, at: Instant, seen: &Seen<'_>) {
        for check in &mut self.checks {
            if let Some(what) = check.see(seen)
                && self.violations.len() < VIOLATIONS_MAX
            {
                self.violations.push(Violation {
                    checker: check.name(),
                    at,
                    member: Some(seen.event.member),
                    what: format!("{what}: observer {}, {:?}", seen.observer, seen.event),
                });
            }
            if seen.event.kind == EventKind::Outcast {
                check.start_over(seen.observer);
            }
        }
    }
}
