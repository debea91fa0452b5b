//! What several agents say of one thing, put together.

use crate::cli::events::known;
use crate::cli::show::text;
use serde_json::Value;
use std::collections::BTreeMap;

/// What is said of the same thing longer than this after the first word is another incident.
const TOGETHER_US: u64 = 5_000_000;

/// One thing that happened.
#[derive(Debug)]
pub(super) struct Incident<'a> {
    /// What, in the journal's word.
    pub(super) event: &'a str,
    /// To which member.
    pub(super) member: &'a str,
    /// To which of its ranks, if to one.
    pub(super) rank: Option<u64>,
    /// When the first agent concluded it.
    pub(super) first_us: u64,
    /// When the last one did.
    pub(super) last_us: u64,
    /// The agents, in that order.
    pub(super) nodes: Vec<&'a str>,
    /// How the first one knew it.
    pub(super) known: String,
    /// The longest silence that was measured.
    pub(super) silent_ms: Option<f64>,
    /// Ranks that went with a node.
    pub(super) ranks: Vec<u64>,
}

impl Incident<'_> {
    /// Whether somebody was lost by it.
    pub(super) fn is_failure(&self) -> bool {
        ["node-failed", "rank-failed"].contains(&self.event)
    }

    /// To whom, in words.
    pub(super) fn whom(&self) -> String {
        match self.rank {
            Some(rank) => format!("rank {rank} on {}", self.member),
            None => self.member.to_owned(),
        }
    }
}

/// All of them, by time.
pub(super) fn gather(events: &[Value]) -> Vec<Incident<'_>> {
    let mut sorted: Vec<(u64, &Value)> = events
        .iter()
        .filter_map(|event| Some((event["unix_us"].as_u64()?, event)))
        .filter(|(_, event)| event["member"].is_string())
        .collect();
    sorted.sort_by_key(|(at, _)| *at);
    let mut incidents: Vec<Incident<'_>> = Vec::new();
    let mut open: BTreeMap<(&str, &str, Option<u64>), usize> = BTreeMap::new();
    for (at, event) in sorted {
        let key = (
            text(event, "event"),
            text(event, "member"),
            event["rank"].as_u64(),
        );
        let node = text(event, "node");
        let same = open.get(&key).and_then(|index| incidents.get_mut(*index));
        let same =
            same.filter(|found| at - found.first_us <= TOGETHER_US && !found.nodes.contains(&node));
        let silent_ms = event["silent_ms"].as_f64();
        if let Some(found) = same {
            found.last_us = at;
            found.nodes.push(node);
            found.silent_ms = match (found.silent_ms, silent_ms) {
                (Some(one), Some(other)) => Some(one.max(other)),
                (one, other) => one.or(other),
            };
            continue;
        }
        open.insert(key, incidents.len());
        let ranks = event["ranks"].as_array().into_iter().flatten();
        incidents.push(Incident {
            event: key.0,
            member: key.1,
            rank: key.2,
            first_us: at,
            last_us: at,
            nodes: vec![node],
            known: known(event),
            silent_ms,
            ranks: ranks.filter_map(Value::as_u64).collect(),
        });
    }
    incidents
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_several_agents_say_is_one_incident() {
        let event = |node: &str, at: u64| {
            json!({ "event": "node-failed", "node": node, "member": "n4", "unix_us": at,
                "cause": "silence on every rail", "reporters": ["n1"], "silent_ms": 60.0, "ranks": [6, 7] })
        };
        let events = [
            event("n2", 1_000_500),
            event("n1", 1_000_000),
            json!({ "event": "journal-opened", "node": "n1", "unix_us": 1 }),
            // The same agent says it again: it had come back.
            event("n1", 3_000_000),
            event("n3", 60_000_000),
        ];
        let incidents = gather(&events);
        assert_eq!(incidents.len(), 3);
        let first = &incidents[0];
        assert_eq!(
            (first.nodes.clone(), first.last_us - first.first_us),
            (vec!["n1", "n2"], 500)
        );
        assert!(first.is_failure() && first.ranks == [6, 7] && first.known.contains("by n1"));
    }
}
