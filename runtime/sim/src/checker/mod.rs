//! What must hold, seen from outside: separate checkers, each with a name.
//!
//! Those that watch every event, all the time:
//! - `alternation`: up and down alternate, for each observer and member.
//! - `resurrection`: nobody comes back with a version that was gone.
//! - `accuracy`: nobody is declared failed who runs and was not excused by a fault; the list of
//!   excuses is `world::excuses`. Nobody is said to have left who runs, or to be there who crashed long
//!   ago.
//! - `groups`: a group that failed is a list of members that were told failed.
//! - `hold`: where the policy says so, the smaller side of a split condemns nobody of the larger.
//! - `incarnations`: the versions an observer tells of a member only grow, and so does a member's
//!   own.
//! - `rank-order`: the facts an observer tells of a rank only get newer.
//! - `attribute-order`: a node's writes are told in the order of writing.
//!
//! Those that look at the world from time to time: `memory` and `traffic` ([`bounds`]), and after each
//! wake-up `rest`: an engine that has nothing to send does not ask to be woken at once. Those that
//! look at the end: `equality`, `completeness`, `ranks`, `rank-ends`, `news`, `attributes` ([`end`]); and
//! in the calm after it `attribute-traffic`: there is none.
//!
//! They only collect violations; no member helps to check itself, and no checker decides what
//! happens. An observer that was itself cast out starts over with the others' view: what it told
//! before does not bind it.

mod always;
pub(crate) mod bounds;
pub(crate) mod end;

use std::fmt;

use muster_protocol::{Event, EventKind, Instant, MemberId};

use always::{
    Accuracy, Alternation, AttributeOrder, Groups, Hold, Incarnations, RankOrder, Resurrection,
};
pub use bounds::Bounds;

/// Most violations kept: the first ones tell the story.
const VIOLATIONS_MAX: usize = 64;

/// A broken promise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Name of the checker that found it.
    pub checker: &'static str,
    /// When, in the world's time.
    pub at: Instant,
    /// Whom it is about, if one member.
    pub member: Option<MemberId>,
    /// In words.
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
    /// The member runs in this version's incarnation and no fault excuses its death.
    pub(crate) blameless: bool,
    /// Of a failure or a goodbye: the member runs in this version's incarnation.
    pub(crate) runs: bool,
    /// Of one who comes: it crashed long ago, and nothing excuses who does not know.
    pub(crate) long_gone: bool,
    /// The observer's own id.
    pub(crate) own: MemberId,
    /// Of a failure, where something is cut and the policy is to hold: the observer's side.
    pub(crate) side: Option<&'a [MemberId]>,
    /// Of a group that failed: who.
    pub(crate) listed: &'a [MemberId],
}

/// A checker that watches every event.
trait Check: fmt::Debug + Send {
    fn name(&self) -> &'static str;
    /// Says in words what is broken, if something is.
    fn see(&mut self, seen: &Seen<'_>) -> Option<String>;
    /// An observer starts a new life and knows nobody.
    fn forget(&mut self, observer: usize);
    /// An observer's worker is another one, which holds what the last one left and no more.
    fn hand_over(&mut self, _observer: usize) {}
    /// An observer was cast out and takes over the others' view.
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
    /// What was broken so far.
    #[must_use]
    pub fn violations(&self) -> &[Violation] {
        &self.violations
    }

    /// Nothing is watched any more: for measuring worlds of millions of events.
    pub fn watch_nothing(&mut self) {
        self.checks.clear();
    }

    pub(crate) fn watches_nothing(&self) -> bool {
        self.checks.is_empty()
    }

    /// Adds what was found elsewhere.
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
