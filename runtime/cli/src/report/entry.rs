//! `Entry` is a line of a journal, with the fields that a report uses.

use crate::answer::text;
use serde_json::Value;
use std::collections::BTreeMap;

/// Clocks are converted for each line, which may swap two lines that are at most this far apart. The order of the file
/// is correct then.
const SWAPPED_US: u64 = 1_000;
/// The longest deadline of all profiles, for journals without a deadline.
const DEADLINE_MS: f64 = 1_000.0;
/// Nodes whose conclusions are within this many deadlines of each other conclude from the same silence.
const CLOSE_DEADLINES: f64 = 2.0;

/// An event in the journal of an agent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry<'a> {
    pub(super) at_us: u64,
    /// The name of the event, as in the journal.
    pub(super) event: &'a str,
    /// The node whose agent wrote the event.
    pub(super) node: &'a str,
    /// The node that the event is about; empty if there is none.
    pub(super) member: &'a str,
    /// The rank that the event is about, if any.
    pub(super) rank: Option<u64>,
    pub(super) line: &'a Value,
}

impl Entry<'_> {
    /// Whether the event is about another node than the one that wrote it.
    pub(super) fn is_of_another(&self) -> bool {
        !self.member.is_empty() && self.member != self.node
    }

    /// Time of the last sign of life from the member before this conclusion.
    pub(super) fn heard_us(&self) -> u64 {
        let silent_ms = self.line["silent_ms"].as_f64().unwrap_or(0.0);
        self.at_us.saturating_sub((silent_ms * 1000.0) as u64)
    }
}

/// All events, sorted by time. Events of one node stay in the order of its journal.
pub(super) fn entries(events: &[Value]) -> Vec<Entry<'_>> {
    let mut last: BTreeMap<&str, u64> = BTreeMap::new();
    let entry = |line| {
        let event: &Value = line;
        let node = text(event, "node");
        let at_us = event["unix_us"].as_u64()?;
        let before = last.insert(node, at_us).unwrap_or(0);
        let is_swapped = at_us < before && before - at_us < SWAPPED_US;
        let at_us = if is_swapped { before } else { at_us };
        last.insert(node, at_us);
        Some(Entry {
            at_us,
            event: text(event, "event"),
            node,
            member: event["member"].as_str().unwrap_or(""),
            rank: event["rank"].as_u64(),
            line: event,
        })
    };
    let mut entries: Vec<Entry<'_>> = events.iter().filter_map(entry).collect();
    entries.sort_by_key(|entry| entry.at_us);
    entries
}

/// How far apart in time two nodes may conclude the same, from the longest deadline in the journals.
pub(super) fn close_us(entries: &[Entry<'_>]) -> u64 {
    let deadlines = entries
        .iter()
        .filter_map(|entry| entry.line["deadline_ms"].as_f64());
    let longest_ms = deadlines.reduce(f64::max).unwrap_or(DEADLINE_MS);
    (CLOSE_DEADLINES * longest_ms * 1000.0) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn lines_of_one_node_a_microsecond_apart_keep_their_order() {
        let line = |node: &str, event: &str, at: u64| json!({ "event": event, "node": node, "unix_us": at });
        let events = [
            line("n1", "node-failed", 5_000_821),
            line("n1", "minority", 5_000_820),
            line("n2", "node-up", 5_000_000),
            // A larger step back is a clock that was set; its times are used.
            line("n1", "majority", 4_000_000),
        ];
        let order: Vec<&str> = entries(&events).iter().map(|entry| entry.event).collect();
        assert_eq!(order, ["majority", "node-up", "node-failed", "minority"]);
    }

    #[test]
    fn the_close_time_follows_from_the_deadline() {
        let mut line = json!({ "event": "node-failed", "node": "n1", "unix_us": 1 });
        assert_eq!(close_us(&entries(&[line.clone()])), 2_000_000);
        line["deadline_ms"] = 60.5.into();
        assert_eq!(close_us(&entries(&[line])), 121_000);
    }
}
