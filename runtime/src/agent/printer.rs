//! Events as lines on standard output, for a member without a job.
//!
//! One line for each change of the view: a word, the member's name, and CLOCK_MONOTONIC in
//! nanoseconds. Programs read it: a word is never renamed, a new one may be added.

use muster_protocol::{Event, EventKind, Overlay};
use std::io::{self, Write};

/// Prints an event if it is one of the view.
///
/// # Errors
/// Standard output cannot be written; nobody reads us any more.
pub(super) fn print(engine: &Overlay, event: &Event) -> io::Result<()> {
    let Some(word) = word(&event.kind) else {
        return Ok(());
    };
    let name = engine.name_of(event.member).unwrap_or("?");
    let mut output = io::stdout().lock();
    writeln!(output, "{word} {name} {}", event.at.0 * 1000)?;
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
        EventKind::NameTaken
        | EventKind::NameClaimed
        | EventKind::RankChanged { .. }
        | EventKind::Refused { .. }
        | EventKind::AttributeChanged { .. } => return None,
    })
}
