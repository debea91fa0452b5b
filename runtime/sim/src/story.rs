//! The story of a failure: the last trace lines before it, by default those about the member concerned.
//!
//! The run is repeated from its seed with a trace: frames between members, what the network did with them,
//! events that members reported, and the begin and end of faults.

use std::fmt::Write;

use crate::run::run_drawn;
use crate::scenario::Scenario;
use crate::world::START;

/// Returns the last `lines` trace lines before the first violation of a drawn scenario: of all members with
/// `all_members`, otherwise of the member that the violation is about.
#[must_use]
pub fn story(drawn: &Scenario, lines: usize, all_members: bool) -> String {
    let (outcome, _, world) = run_drawn(drawn, true);
    let mut text = String::new();
    let Some((world, trace)) = world
        .as_ref()
        .and_then(|world| Some((world, world.trace()?)))
    else {
        return "the run panicked; there is no story\n".to_owned();
    };
    let first = outcome.violations().first();
    let until = first.map_or(world.now(), |violation| violation.at);
    let about = first
        .and_then(|violation| violation.member)
        .filter(|_| !all_members);
    for line in trace.last(until, about, lines) {
        let at_us = line.at.since(START);
        let _ = writeln!(
            text,
            "{:>9}.{:03} ms  {}",
            at_us / 1000,
            at_us % 1000,
            line.text
        );
    }
    if let Some(violation) = first {
        let at_us = until.since(START);
        let what = world.with_names(&violation.to_string());
        let _ = writeln!(
            text,
            "{:>9}.{:03} ms  !!! {what}",
            at_us / 1000,
            at_us % 1000
        );
    }
    text
}
