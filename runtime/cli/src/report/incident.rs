//! What several agents say of one thing, put together; and apart from that, what cut off nodes say of others.

use super::apart::Apart;
use super::entry::Entry;
use crate::events::known;
use muster_control::explanation::ranges;
use muster_hostlist::fold;
use std::collections::{BTreeMap, BTreeSet};

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
    /// When the last one did that was not cut off.
    pub(super) last_us: u64,
    /// When the member was heard for the last time before; when it happened, where that does not apply.
    pub(super) heard_us: u64,
    /// The agents, in that order.
    pub(super) nodes: Vec<&'a str>,
    /// Those that were cut off, and said so as well when they could.
    pub(super) later: Vec<&'a str>,
    /// How the first one knew it.
    pub(super) known: String,
    /// Ranks that went with a node.
    pub(super) ranks: BTreeSet<u64>,
}

impl<'a> Incident<'a> {
    fn new(entry: &Entry<'a>) -> Self {
        let ranks = entry.line["ranks"].as_array().into_iter().flatten();
        Self {
            event: entry.event,
            member: entry.member,
            rank: entry.rank,
            first_us: entry.at_us,
            last_us: entry.at_us,
            heard_us: entry.heard_us(),
            nodes: vec![entry.node],
            later: Vec::new(),
            known: known(entry.line),
            ranks: ranks.filter_map(serde_json::Value::as_u64).collect(),
        }
    }

    fn add(&mut self, entry: &Entry<'a>, apart: &Apart<'_>) {
        if apart.meets(entry.node, self.first_us, entry.at_us) {
            self.later.push(entry.node);
            return;
        }
        self.last_us = self.last_us.max(entry.at_us);
        self.nodes.push(entry.node);
    }

    fn is_said_by(&self, node: &str) -> bool {
        self.nodes.contains(&node) || self.later.contains(&node)
    }

    /// Whether somebody was lost by it.
    pub(super) fn is_failure(&self) -> bool {
        ["node-failed", "rank-failed"].contains(&self.event)
    }

    /// To whom, in words.
    pub(super) fn whom(&self) -> String {
        match self.rank {
            Some(rank) => format!("rank {rank} on {}", self.member),
            None if self.ranks.is_empty() => self.member.to_owned(),
            None => format!("{} with {}", self.member, ranks_in_words(&self.ranks)),
        }
    }
}

/// What a node said of others while it was cut off, and when it had them back.
#[derive(Debug)]
pub(super) struct View<'a> {
    /// The node that was cut off.
    pub(super) node: &'a str,
    /// What it said, in the journal's word.
    pub(super) event: &'a str,
    /// Of which members.
    pub(super) members: BTreeSet<&'a str>,
    /// Of which ranks, if of ranks.
    pub(super) ranks: BTreeSet<u64>,
    /// When it said so first and last.
    pub(super) first_us: u64,
    pub(super) last_us: u64,
    /// How it knew the first.
    pub(super) known: String,
}

impl View<'_> {
    /// Of whom, in words.
    pub(super) fn whom(&self) -> String {
        let members = fold(self.members.iter().copied());
        match self.ranks.is_empty() {
            true => members,
            false => format!("{} on {members}", ranks_in_words(&self.ranks)),
        }
    }
}

/// `rank 7`, `ranks 0-3,7`
fn ranks_in_words(ranks: &BTreeSet<u64>) -> String {
    let sorted: Vec<u64> = ranks.iter().copied().collect();
    let plural = if sorted.len() == 1 { "" } else { "s" };
    format!("rank{plural} {}", ranges(&sorted))
}

/// All that happened, by time.
#[derive(Debug, Default)]
pub(super) struct Explanation<'a> {
    /// To the job.
    pub(super) incidents: Vec<Incident<'a>>,
    /// In the eyes of nodes that were cut off.
    pub(super) views: Vec<View<'a>>,
}

/// Puts events together, which come by time.
///
/// What several nodes say of one subject is one incident if the subject has not come back between, or if they say so
/// within `close_us` of each other; what a node says again is another one.
pub(super) fn gather<'a>(
    entries: &[Entry<'a>],
    apart: &Apart<'a>,
    close_us: u64,
) -> Explanation<'a> {
    let (own, of_job) = split(entries, apart, close_us);
    let mut incidents: Vec<Incident<'a>> = Vec::new();
    let mut open: BTreeMap<Key<'_>, Open> = BTreeMap::new();
    for entry in of_job {
        for over in ended_by(entry.event) {
            if let Some(one) = open.get_mut(&(*over, entry.member, entry.rank)) {
                one.is_over = true;
            }
        }
        let key = (entry.event, entry.member, entry.rank);
        let same = open.get(&key).copied();
        let same = same.and_then(|one| Some((one.is_over, incidents.get_mut(one.index)?)));
        if let Some((is_over, found)) = same
            && !found.is_said_by(entry.node)
            && (!is_over || entry.at_us - found.last_us <= close_us)
        {
            found.add(entry, apart);
            continue;
        }
        let index = incidents.len();
        let is_over = ends_with_nothing(entry.event);
        open.insert(key, Open { index, is_over });
        incidents.push(Incident::new(entry));
    }
    let mut explanation = Explanation {
        incidents,
        views: Vec::new(),
    };
    explanation.add_views(&own, apart, close_us);
    explanation
}

/// What happened, to which member, to which of its ranks.
type Key<'a> = (&'a str, &'a str, Option<u64>);

/// The last incident of a key.
#[derive(Clone, Copy)]
struct Open {
    index: usize,
    /// The subject has come back since, or cannot.
    is_over: bool,
}

impl<'a> Explanation<'a> {
    /// A cut off node that says what the job says is one more that says so. Everything else is its own view.
    fn add_views(&mut self, own: &[&Entry<'a>], apart: &Apart<'a>, close_us: u64) {
        let mut said: BTreeMap<Key<'_>, Vec<usize>> = BTreeMap::new();
        for (index, one) in self.incidents.iter().enumerate() {
            let key = (one.event, one.member, one.rank);
            said.entry(key).or_default().push(index);
        }
        let mut open: BTreeMap<(&str, &str), usize> = BTreeMap::new();
        for entry in own {
            let same = said.get(&(entry.event, entry.member, entry.rank));
            let is_same = |index: &&usize| {
                let one = &self.incidents[**index];
                let (from_us, until_us) = (
                    one.first_us.saturating_sub(close_us),
                    one.last_us + close_us,
                );
                (from_us..=until_us).contains(&entry.at_us) && !one.is_said_by(entry.node)
            };
            if let Some(index) = same.into_iter().flatten().find(is_same) {
                self.incidents[*index].add(entry, apart);
                continue;
            }
            let key = (entry.node, entry.event);
            let view = open.get(&key).and_then(|index| self.views.get_mut(*index));
            if let Some(view) = view.filter(|view| entry.at_us - view.last_us <= close_us) {
                view.last_us = entry.at_us;
                view.members.insert(entry.member);
                view.ranks.extend(entry.rank);
                continue;
            }
            open.insert(key, self.views.len());
            self.views.push(View {
                node: entry.node,
                event: entry.event,
                members: BTreeSet::from([entry.member]),
                ranks: entry.rank.into_iter().collect(),
                first_us: entry.at_us,
                last_us: entry.at_us,
                known: known(entry.line),
            });
        }
    }
}

/// What cut off nodes say of the state of others, with what they say when they have them back; and all the rest.
/// What a node says of ranks comes from their own nodes and is not its view, though other nodes pass it on. A node that
/// has just come back may first give up what it held of others.
fn split<'a, 'b>(
    entries: &'b [Entry<'a>],
    apart: &Apart<'a>,
    close_us: u64,
) -> (Vec<&'b Entry<'a>>, Vec<&'b Entry<'a>>) {
    let mut lost: BTreeSet<(&str, &str)> = BTreeSet::new();
    let is_own = |entry: &&Entry<'a>| {
        let pair = (entry.node, entry.member);
        let is_apart = || {
            apart.meets(
                entry.node,
                entry.at_us.saturating_sub(close_us),
                entry.at_us,
            )
        };
        match entry.event {
            _ if !entry.is_of_another() => false,
            "node-suspect" | "node-degraded" | "node-failed" | "group-failed" => {
                let is_own = is_apart();
                match is_own {
                    true => lost.insert(pair),
                    false => lost.remove(&pair),
                };
                is_own
            }
            "node-up" | "node-recovered" | "rank-up" => lost.contains(&pair),
            _ => false,
        }
    };
    let of_members = entries.iter().filter(|entry| !entry.member.is_empty());
    of_members.partition(is_own)
}

/// What is over for a subject when this is said of it.
fn ended_by(event: &str) -> &'static [&'static str] {
    match event {
        "node-up" => &["node-failed", "node-left", "node-suspect", "node-degraded"],
        "node-recovered" => &["node-suspect", "node-degraded"],
        "node-suspect" | "node-degraded" => &["node-recovered"],
        "node-failed" | "node-left" => &["node-up", "node-recovered"],
        "rank-up" => &["rank-failed", "rank-left", "rank-hung"],
        "rank-hung" => &["rank-up"],
        "rank-failed" | "rank-left" => &["rank-up"],
        _ => &[],
    }
}

/// Whether no event says that the subject has come back from this one.
fn ends_with_nothing(event: &str) -> bool {
    !event.starts_with("rank-")
        && ![
            "node-up",
            "node-recovered",
            "node-suspect",
            "node-degraded",
            "node-failed",
            "node-left",
        ]
        .contains(&event)
}

#[cfg(test)]
mod tests {
    use super::super::entry::entries;
    use super::*;
    use serde_json::{Value, json};

    const CLOSE_US: u64 = 120_000;

    fn told(events: &[Value]) -> Vec<(String, Vec<String>, u64)> {
        let entries = entries(events);
        let explanation = gather(&entries, &Apart::find(&entries, CLOSE_US), CLOSE_US);
        assert!(explanation.views.is_empty(), "{:?}", explanation.views);
        let one = |one: &Incident<'_>| {
            let nodes = one.nodes.iter().map(ToString::to_string).collect();
            (
                format!("{} {}", one.event, one.whom()),
                nodes,
                one.last_us - one.first_us,
            )
        };
        explanation.incidents.iter().map(one).collect()
    }

    fn said(event: &str, node: &str, member: &str, at: u64) -> Value {
        json!({ "event": event, "node": node, "member": member, "unix_us": at })
    }

    fn is(what: &str, nodes: &[&str], spread_us: u64) -> (String, Vec<String>, u64) {
        (
            what.into(),
            nodes.iter().map(ToString::to_string).collect(),
            spread_us,
        )
    }

    #[test]
    fn what_several_agents_say_is_one_incident() {
        let mut first = said("node-failed", "n1", "n4", 1_000_000);
        first["reporters"] = json!(["n1"]);
        first["silent_ms"] = 60.0.into();
        first["ranks"] = json!([6, 7]);
        let events = [
            said("node-failed", "n2", "n4", 1_000_500),
            first,
            json!({ "event": "journal-opened", "node": "n1", "unix_us": 1 }),
            // The same agent says it again: it had come back.
            said("node-failed", "n1", "n4", 3_000_000),
        ];
        let entries = entries(&events);
        let explanation = gather(&entries, &Apart::default(), CLOSE_US);
        assert_eq!(explanation.incidents.len(), 2);
        let first = &explanation.incidents[0];
        assert_eq!(
            (first.nodes.clone(), first.last_us - first.first_us),
            (vec!["n1", "n2"], 500)
        );
        assert_eq!(first.heard_us, 940_000);
        assert!(
            first.is_failure()
                && first.whom() == "n4 with ranks 6-7"
                && first.known.contains("by n1")
        );
    }

    /// Two failures of one node 4 s apart, each seen by another node, are two where it was back between.
    #[test]
    fn a_node_that_was_back_between_has_failed_twice() {
        let events = [
            said("node-failed", "n1", "n4", 1_000_000),
            said("node-up", "n1", "n4", 2_000_000),
            said("node-failed", "n2", "n4", 5_149_000),
        ];
        let wanted = [
            is("node-failed n4", &["n1"], 0),
            is("node-up n4", &["n1"], 0),
            is("node-failed n4", &["n2"], 0),
        ];
        assert_eq!(told(&events), wanted);
    }

    #[test]
    fn a_late_observer_says_the_same_while_the_node_has_not_come_back() {
        let events = [
            said("node-failed", "n1", "n4", 1_000_000),
            said("node-failed", "n2", "n4", 9_000_000),
        ];
        assert_eq!(
            told(&events),
            [is("node-failed n4", &["n1", "n2"], 8_000_000)]
        );
    }

    #[test]
    fn observers_that_are_close_say_the_same_although_one_has_it_back() {
        let events = [
            said("node-suspect", "n1", "n4", 1_000_000),
            said("node-recovered", "n1", "n4", 1_030_000),
            said("node-suspect", "n2", "n4", 1_050_000),
            said("node-recovered", "n2", "n4", 1_060_000),
        ];
        let wanted = [
            is("node-suspect n4", &["n1", "n2"], 50_000),
            is("node-recovered n4", &["n1", "n2"], 30_000),
        ];
        assert_eq!(told(&events), wanted);
    }
}
