//! The story of a failure: the last lines before it, as a rule those that concern the one it is about.
//!
//! The run is repeated from its seed with a trace. Who told whom what, what became of it on the
//! way, what each told its application, and which faults began and ended.

use std::fmt::Write;

use crate::run::run_drawn;
use crate::scenario::Scenario;
use crate::world::START;

/// Tells the last `lines` lines before the first violation of a drawn scenario: of `everybody`, or of
/// the one whom the violation is about.
#[must_use]
pub fn story(drawn: &Scenario, lines: usize, everybody: bool) -> String {
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
        .filter(|_| !everybody);
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
