//! Events as lines on standard output, for a member without a job.
//!
//! One line for each change of the view: a word, the member's name, and CLOCK_MONOTONIC in
//! nanoseconds. Programs read it: a word is never renamed, a new one may be added. More may follow
//! the time: `GROUP-DOWN` has the group in place of the member, and behind the time the members with
//! commas; `MINORITY` and `MAJORITY` how many of how many, and `hold` or `continue`; `REFUSED` the setting
//! that is not alike (`?` for the member of another release, whose name cannot be read).

use muster_protocol::{Engine, Event, EventKind};
use muster_sys::clock::monotonic_ns;
use std::io::{self, Write};

/// Says that this member's rails are open and its loop begins.
///
/// # Errors
/// Standard output cannot be written.
pub(super) fn print_ready(name: &str) -> io::Result<()> {
    let mut output = io::stdout().lock();
    writeln!(output, "READY {name} {}", monotonic_ns())?;
    output.flush()
}

/// Tells whoever has started this agent, and waits for [`print_ready`], what it goes without.
pub(super) fn print_lack(what: &str) {
    // Who does not listen does not want to know.
    let line = format!("musterd: {what}\n");
    let _ = io::stderr().write_all(line.as_bytes());
}

/// Prints an event if it is one of the view.
///
/// # Errors
/// Standard output cannot be written; nobody reads us any more.
pub(super) fn print(engine: &Engine, event: &Event) -> io::Result<()> {
    let Some(word) = word(&event.kind) else {
        return Ok(());
    };
    let at_ns = event.at.0 * 1000;
    let name_of = |id| engine.name_of(id).unwrap_or("?");
    let name = name_of(event.member);
    let line = match event.kind {
        EventKind::GroupFailed { number, .. } => {
            let Some(failure) = engine.group_failure(number) else {
                return Ok(());
            };
            let mut members: Vec<&str> = failure.members.iter().map(|id| name_of(*id)).collect();
            members.sort_unstable();
            format!("{word} {} {at_ns} {}", failure.group, members.join(","))
        }
        EventKind::Minority { reached, of, held } => {
            let policy = if held { "hold" } else { "continue" };
            format!("{word} {name} {at_ns} {reached}/{of} {policy}")
        }
        EventKind::Majority { reached, of } => format!("{word} {name} {at_ns} {reached}/{of}"),
        EventKind::Refused { parameter } => {
            let setting = parameter.name().replace(' ', "_");
            format!("{word} {name} {at_ns} {setting}")
        }
        _ => format!("{word} {name} {at_ns}"),
    };
    let mut output = io::stdout().lock();
    writeln!(output, "{line}")?;
    output.flush()
}

fn word(kind: &EventKind) -> Option<&'static str> {
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
        EventKind::Refused { .. } => "REFUSED",
        EventKind::NameTaken
        | EventKind::NameClaimed
        | EventKind::RankChanged { .. }
        | EventKind::AttributeChanged { .. } => return None,
    })
}
