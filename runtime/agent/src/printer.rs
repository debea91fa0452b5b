//! Prints events as lines on standard output, for a member without a job.
//!
//! One line for each change of the view: a keyword, the member's name, and CLOCK_MONOTONIC in nanoseconds. Programs
//! parse it: a keyword is never renamed, new ones may be added. Further fields may follow the time:
//!
//! - `GROUP-DOWN` has the group in place of the member, and after the time its members, separated by commas.
//! - `MINORITY` and `MAJORITY` have `REACHED/OF`, and `MINORITY` also `hold` or `continue`.
//! - `REFUSED` has the setting that differs, its value here, and the other member's. The name of a member of another
//!   release cannot be read: it is `?`.

use crate::difference::words;
use muster_protocol::{Engine, Event, EventKind};
use muster_sys::clock::monotonic_ns;
use std::io::{self, Write};

/// Prints that this member's rails are open and its loop begins.
///
/// # Errors
/// Standard output cannot be written.
pub(super) fn print_ready(name: &str) -> io::Result<()> {
    let mut output = io::stdout().lock();
    writeln!(output, "READY {name} {}", monotonic_ns())?;
    output.flush()
}

/// Prints a limitation on standard error, for a parent that waits for [`print_ready`].
pub(super) fn print_limitation(what: &str) {
    // A closed standard error is ignored.
    let line = format!("musterd: {what}\n");
    let _ = io::stderr().write_all(line.as_bytes());
}

/// Prints an event of the node with this name, if it changes the view.
///
/// # Errors
/// Standard output cannot be written: its reader has ended.
pub(super) fn print(engine: &Engine, event: &Event, name: &str) -> io::Result<()> {
    let Some(keyword) = keyword(&event.kind) else {
        return Ok(());
    };
    let at_ns = event.at.0 * 1000;
    let name_of = |id| engine.name_of(id).unwrap_or("?");
    let line = match event.kind {
        EventKind::GroupFailed { number, .. } => {
            let Some(failure) = engine.group_failure(number) else {
                return Ok(());
            };
            let mut members: Vec<&str> = failure.members.iter().map(|id| name_of(*id)).collect();
            members.sort_unstable();
            format!("{keyword} {} {at_ns} {}", failure.group, members.join(","))
        }
        EventKind::Minority { reached, of, held } => {
            let policy = if held { "hold" } else { "continue" };
            format!("{keyword} {name} {at_ns} {reached}/{of} {policy}")
        }
        EventKind::Majority { reached, of } => format!("{keyword} {name} {at_ns} {reached}/{of}"),
        EventKind::Refused(difference) => {
            let words = words(difference).map(|word| word.replace(' ', "_"));
            format!("{keyword} {name} {at_ns} {}", words.join(" "))
        }
        _ => format!("{keyword} {name} {at_ns}"),
    };
    let mut output = io::stdout().lock();
    writeln!(output, "{line}")?;
    output.flush()
}

fn keyword(kind: &EventKind) -> Option<&'static str> {
    Some(match kind {
        EventKind::NodeUp => "UP",
        EventKind::NodeDegraded => "DEGRADED",
        EventKind::NodeRecovered => "RECOVERED",
        EventKind::NodeSuspect => "SUSPECT",
        EventKind::NodeFailed => "DOWN",
        EventKind::NodeLeft { .. } => "LEFT",
        EventKind::Outcast => "OUTCAST",
        EventKind::GroupFailed { .. } => "GROUP-DOWN",
        EventKind::Minority { .. } => "MINORITY",
        EventKind::Majority { .. } => "MAJORITY",
        EventKind::Refused(_) => "REFUSED",
        EventKind::NameTaken
        | EventKind::NameClaimed
        | EventKind::RankChanged { .. }
        | EventKind::AttributeChanged { .. } => return None,
    })
}
