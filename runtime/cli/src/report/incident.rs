//! Merges the events of several agents about one incident, and separates the views of nodes that were cut off.

use super::apart::Apart;
use super::entry::Entry;
use crate::events::known;
use muster_control::explanation::ranges;
use muster_hostlist::fold;
use std::collections::{BTreeMap, BTreeSet};

/// One incident: an event of a member or rank, as one or more agents reported it.
#[derive(Debug)]
pub(super) struct Incident<'a> {
    /// The name of the event, as in the journal.
    pub(super) event: &'a str,
    /// The member that it is about.
    pub(super) member: &'a str,
    /// The rank of the member, if it is about a rank.
    pub(super) rank: Option<u64>,
    /// Time of the first agent's conclusion.
    pub(super) first_us: u64,
    /// Time of the last conclusion by an agent that was not cut off.
    pub(super) last_us: u64,
    /// Time of the last sign of life from the member before it; the time of the event if that does not apply.
    pub(super) heard_us: u64,
    /// The agents that reported it, in the order of time.
    pub(super) nodes: Vec<&'a str>,
    /// The agents that were cut off and reported it later.
    pub(super) later: Vec<&'a str>,
    /// How the first agent knew it.
    pub(super) known: String,
    /// Ranks that were lost with the node.
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

    fn is_reported_by(&self, node: &str) -> bool {
        self.nodes.contains(&node) || self.later.contains(&node)
    }

    /// Whether a node or rank was lost.
    pub(super) fn is_failure(&self) -> bool {
        ["node-failed", "rank-failed"].contains(&self.event)
    }

    /// The subject, as text.
    pub(super) fn subject(&self) -> String {
        match self.rank {
            Some(rank) => format!("rank {rank} on {}", self.member),
            None if self.ranks.is_empty() => self.member.to_owned(),
            None => format!("{} with {}", self.member, ranks_text(&self.ranks)),
        }
    }
}

/// Events that a node reported about others while it was cut off, and the recoveries of those.
#[derive(Debug)]
pub(super) struct View<'a> {
    /// The node that was cut off.
    pub(super) node: &'a str,
    /// The name of the event, as in the journal.
    pub(super) event: &'a str,
    /// The members that it is about.
    pub(super) members: BTreeSet<&'a str>,
    /// The ranks that it is about, if any.
    pub(super) ranks: BTreeSet<u64>,
    /// Times of the first and the last event.
    pub(super) first_us: u64,
    pub(super) last_us: u64,
    /// How the first event was known.
    pub(super) known: String,
}

impl View<'_> {
    /// The subjects, as text.
    pub(super) fn subject(&self) -> String {
        let members = fold(self.members.iter().copied());
        match self.ranks.is_empty() {
            true => members,
            false => format!("{} on {members}", ranks_text(&self.ranks)),
        }
    }
}

/// `rank 7`, `ranks 0-3,7`
pub(super) fn ranks_text(ranks: &BTreeSet<u64>) -> String {
    let sorted: Vec<u64> = ranks.iter().copied().collect();
    let plural = if sorted.len() == 1 { "" } else { "s" };
    format!("rank{plural} {}", ranges(&sorted))
}

/// All incidents and views, sorted by time.
#[derive(Debug, Default)]
pub(super) struct Explanation<'a> {
    /// Incidents of the job.
    pub(super) incidents: Vec<Incident<'a>>,
    /// Views of nodes that were cut off.
    pub(super) views: Vec<View<'a>>,
}

/// Merges events, which are sorted by time.
///
/// Events of several nodes about one subject are one incident if the subject has not come back in between, or if they
/// are within `close_us` of each other. A second such event of the same node is another incident.
pub(super) fn merge<'a>(
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
            && !found.is_reported_by(entry.node)
            && (!is_over || entry.at_us - found.last_us <= close_us)
        {
            found.add(entry, apart);
            continue;
        }
        let index = incidents.len();
        let is_over = has_no_end(entry.event);
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

/// Event, member, and rank of the member.
type Key<'a> = (&'a str, &'a str, Option<u64>);

/// The last incident of a key.
#[derive(Clone, Copy)]
struct Open {
    index: usize,
    /// The subject has come back since, or cannot come back.
    is_over: bool,
}

impl<'a> Explanation<'a> {
    /// Adds the events of cut off nodes. An event that equals an incident of the job is added to it. All others are
    /// views.
    fn add_views(&mut self, own: &[&Entry<'a>], apart: &Apart<'a>, close_us: u64) {
        let mut by_key: BTreeMap<Key<'_>, Vec<usize>> = BTreeMap::new();
        for (index, one) in self.incidents.iter().enumerate() {
            let key = (one.event, one.member, one.rank);
            by_key.entry(key).or_default().push(index);
        }
        let mut open: BTreeMap<(&str, &str), usize> = BTreeMap::new();
        for entry in own {
            let same = by_key.get(&(entry.event, entry.member, entry.rank));
            let is_same = |index: &&usize| {
                let one = &self.incidents[**index];
                let (from_us, until_us) = (
                    one.first_us.saturating_sub(close_us),
                    one.last_us + close_us,
                );
                (from_us..=until_us).contains(&entry.at_us) && !one.is_reported_by(entry.node)
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

/// Separates the events in which cut off nodes judge others, with the recoveries of those, from all other events.
/// Events about ranks come from the node of the rank and are no view, though other nodes forward them. A node that has
/// just come back may first drop what it held of others.
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

/// The events that this event ends, for the same subject.
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

/// Whether no event can end this event.
fn has_no_end(event: &str) -> bool {
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

    fn merged(events: &[Value]) -> Vec<(String, Vec<String>, u64)> {
        let entries = entries(events);
        let explanation = merge(&entries, &Apart::find(&entries, CLOSE_US), CLOSE_US);
        assert!(explanation.views.is_empty(), "{:?}", explanation.views);
        let one = |one: &Incident<'_>| {
            let nodes = one.nodes.iter().map(ToString::to_string).collect();
            (
                format!("{} {}", one.event, one.subject()),
                nodes,
                one.last_us - one.first_us,
            )
        };
        explanation.incidents.iter().map(one).collect()
    }

    fn event(name: &str, node: &str, member: &str, at: u64) -> Value {
        json!({ "event": name, "node": node, "member": member, "unix_us": at })
    }

    fn is(what: &str, nodes: &[&str], spread_us: u64) -> (String, Vec<String>, u64) {
        (
            what.into(),
            nodes.iter().map(ToString::to_string).collect(),
            spread_us,
        )
    }

    #[test]
    fn reports_of_several_agents_are_one_incident() {
        let mut first = event("node-failed", "n1", "n4", 1_000_000);
        first["reporters"] = json!(["n1"]);
        first["silent_ms"] = 60.0.into();
        first["ranks"] = json!([6, 7]);
        let events = [
            event("node-failed", "n2", "n4", 1_000_500),
            first,
            json!({ "event": "journal-opened", "node": "n1", "unix_us": 1 }),
            // A second event of the same agent: the node had come back.
            event("node-failed", "n1", "n4", 3_000_000),
        ];
        let entries = entries(&events);
        let explanation = merge(&entries, &Apart::default(), CLOSE_US);
        assert_eq!(explanation.incidents.len(), 2);
        let first = &explanation.incidents[0];
        assert_eq!(
            (first.nodes.clone(), first.last_us - first.first_us),
            (vec!["n1", "n2"], 500)
        );
        assert_eq!(first.heard_us, 940_000);
        assert!(
            first.is_failure()
                && first.subject() == "n4 with ranks 6-7"
                && first.known.contains("by n1")
        );
    }

    /// Two failures of a node 4 s apart, each seen by another node, are two incidents if the node was back in between.
    #[test]
    fn a_node_that_was_back_in_between_has_failed_twice() {
        let events = [
            event("node-failed", "n1", "n4", 1_000_000),
            event("node-up", "n1", "n4", 2_000_000),
            event("node-failed", "n2", "n4", 5_149_000),
        ];
        let wanted = [
            is("node-failed n4", &["n1"], 0),
            is("node-up n4", &["n1"], 0),
            is("node-failed n4", &["n2"], 0),
        ];
        assert_eq!(merged(&events), wanted);
    }

    #[test]
    fn a_late_report_is_the_same_incident_while_the_node_is_not_back() {
        let events = [
            event("node-failed", "n1", "n4", 1_000_000),
            event("node-failed", "n2", "n4", 9_000_000),
        ];
        assert_eq!(
            merged(&events),
            [is("node-failed n4", &["n1", "n2"], 8_000_000)]
        );
    }

    #[test]
    fn reports_that_are_close_are_one_incident_although_one_observer_has_recovered() {
        let events = [
            event("node-suspect", "n1", "n4", 1_000_000),
            event("node-recovered", "n1", "n4", 1_030_000),
            event("node-suspect", "n2", "n4", 1_050_000),
            event("node-recovered", "n2", "n4", 1_060_000),
        ];
        let wanted = [
            is("node-suspect n4", &["n1", "n2"], 50_000),
            is("node-recovered n4", &["n1", "n2"], 30_000),
        ];
        assert_eq!(merged(&events), wanted);
    }
}
