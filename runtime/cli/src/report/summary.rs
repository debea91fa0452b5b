//! The summary: the losses of the job in one line.

use super::apart::Apart;
use super::entry::Entry;
use super::incident::Incident;
use crate::answer::counted;
use std::collections::{BTreeMap, BTreeSet};

/// The kind of loss of a node that was declared failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Loss {
    /// The node has not come back.
    Failed,
    /// The node was alive but could not reach the job, and has not come back.
    CutOff,
    /// The node came back. Its agent had another incarnation, or no journal of its own shows that it was alive
    /// meanwhile.
    Returned,
    /// The node was alive, could not reach the job, and came back.
    CutOffAndReturned,
}

/// All losses of one kind.
#[derive(Default)]
struct Losses<'a> {
    nodes: BTreeSet<&'a str>,
    ranks: usize,
    times: usize,
    longest_us: u64,
}

impl<'a> Losses<'a> {
    fn add(&mut self, node: &'a str, for_us: u64) {
        self.nodes.insert(node);
        self.times += 1;
        self.longest_us = self.longest_us.max(for_us);
    }
}

/// The summary, such as `1 rank failed; 1 node was cut off for 4.1 s and came back`. Views of nodes that were cut off
/// are not part of it.
pub(super) fn summary(
    incidents: &[Incident<'_>],
    entries: &[Entry<'_>],
    apart: &Apart<'_>,
) -> String {
    let of_ranks = incidents.iter().filter(|one| one.event == "rank-failed");
    let ranks: BTreeSet<Option<u64>> = of_ranks.map(|one| one.rank).collect();
    let mut parts = Vec::new();
    if !ranks.is_empty() {
        parts.push(format!("{} failed", counted(ranks.len(), "rank")));
    }
    let losses = losses(incidents, entries, apart);
    parts.extend(losses.iter().map(|(kind, losses)| loss_text(*kind, losses)));
    match parts.is_empty() {
        true => "no failure".into(),
        false => parts.join("; "),
    }
}

fn losses<'a>(
    incidents: &[Incident<'a>],
    entries: &[Entry<'_>],
    apart: &Apart<'a>,
) -> BTreeMap<Loss, Losses<'a>> {
    let mut back: BTreeMap<&str, u64> = BTreeMap::new();
    let mut lost: BTreeMap<Loss, Losses<'_>> = BTreeMap::new();
    // In reverse order, so that each failure finds the next return.
    for one in incidents.iter().rev() {
        if one.event == "node-up" {
            back.insert(one.member, one.first_us);
        }
        if one.event != "node-failed" {
            continue;
        }
        let back_us = back.remove(one.member);
        let until_us = back_us.unwrap_or(u64::MAX);
        let is_new_incarnation = |entry: &Entry<'_>| {
            let is_meanwhile = (one.first_us..=until_us).contains(&entry.at_us);
            entry.event == "journal-opened" && entry.node == one.member && is_meanwhile
        };
        let was_apart = apart.was_alive(one.member, one.heard_us, until_us);
        let kind = match (
            was_apart && !entries.iter().any(is_new_incarnation),
            back_us,
        ) {
            (true, Some(_)) => Loss::CutOffAndReturned,
            (false, Some(_)) => Loss::Returned,
            (true, None) => Loss::CutOff,
            (false, None) => Loss::Failed,
        };
        let of = lost.entry(kind).or_default();
        of.add(one.member, until_us - one.heard_us);
        of.ranks += one.ranks.len();
    }
    // Nodes that were cut off, and for which the journals of the others are missing.
    for (node, from_us, until_us) in apart.iter() {
        let is_reported = |one: &Incident<'_>| one.event == "node-failed" && one.member == node;
        if incidents.iter().any(is_reported) {
            continue;
        }
        let is_back = |entry: &Entry<'_>, until_us| {
            entry.event == "node-up" && entry.node == node && entry.at_us >= until_us
        };
        let back_us = until_us.filter(|until| entries.iter().any(|entry| is_back(entry, *until)));
        let kind = match back_us {
            Some(_) => Loss::CutOffAndReturned,
            None => Loss::CutOff,
        };
        lost.entry(kind)
            .or_default()
            .add(node, back_us.unwrap_or(from_us) - from_us);
    }
    lost
}

fn loss_text(kind: Loss, losses: &Losses<'_>) -> String {
    let count = losses.nodes.len();
    let nodes = counted(count, "node");
    let were = if count == 1 { "was" } else { "were" };
    let longest = match losses.times {
        1 => format!("{:.1} s", losses.longest_us as f64 / 1e6),
        _ => format!("up to {:.1} s", losses.longest_us as f64 / 1e6),
    };
    let times = match losses.times {
        times if times == count => String::new(),
        times => format!(" ({times} times)"),
    };
    match kind {
        Loss::Failed if losses.ranks == 0 => format!("{nodes} failed"),
        Loss::Failed => format!("{nodes} failed with {}", counted(losses.ranks, "rank")),
        Loss::CutOff => format!("{nodes} {were} cut off and did not come back"),
        Loss::Returned => format!("{nodes} failed and came back after {longest}{times}"),
        Loss::CutOffAndReturned => {
            format!("{nodes} {were} cut off for {longest} and came back{times}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::entry::entries;
    use super::super::incident::merge;
    use super::*;
    use serde_json::{Value, json};

    const CLOSE_US: u64 = 120_000;

    /// The summary, and the views of nodes that were cut off.
    fn summarised(events: &[Value]) -> (String, Vec<String>) {
        let entries = entries(events);
        let apart = Apart::find(&entries, CLOSE_US);
        let explanation = merge(&entries, &apart, CLOSE_US);
        let view = |view: &super::super::incident::View<'_>| {
            let members: Vec<&str> = view.members.iter().copied().collect();
            format!("{}: {} {}", view.node, view.event, members.join(" "))
        };
        let summary = summary(&explanation.incidents, &entries, &apart);
        (summary, explanation.views.iter().map(view).collect())
    }

    fn event(event: &str, node: &str, member: &str, ms: u64) -> Value {
        json!({ "event": event, "node": node, "member": member, "unix_us": 1_000_000 + 1_000 * ms })
    }

    fn lost(node: &str, member: &str, ms: u64, silent_ms: u64) -> Value {
        let mut line = event("node-failed", node, member, ms);
        line["silent_ms"] = (silent_ms as f64).into();
        line["ranks"] = json!([7]);
        line
    }

    /// n4 is cut off at 1 s: it and the other nodes find each other silent.
    fn cut() -> Vec<Value> {
        let mut events: Vec<Value> = ["n1", "n2", "n3"]
            .map(|node| lost(node, "n4", 1_060, 60))
            .into();
        events.push(event("node-suspect", "n4", "n2", 1_050));
        events.extend(["n1", "n2", "n3"].map(|other| lost("n4", other, 1_070, 70)));
        events.push(event("minority", "n4", "n4", 1_070));
        events
    }

    fn healed() -> Vec<Value> {
        let mut events = vec![
            event("outcast", "n4", "n4", 5_060),
            event("majority", "n4", "n4", 5_060),
        ];
        events.extend(["n1", "n2", "n3"].map(|other| event("node-up", "n4", other, 5_061)));
        events.push(json!({ "event": "rank-up", "node": "n4", "member": "n1", "rank": 0, "unix_us": 6_070_000 }));
        events.extend(["n1", "n2", "n3"].map(|node| event("node-up", node, "n4", 5_062)));
        events
    }

    #[test]
    fn a_split_is_reported_in_the_view_of_the_larger_side() {
        let mut events = cut();
        let mut rank = event("rank-failed", "n1", "n1", 0);
        rank["rank"] = 1.into();
        events.push(rank);
        let views = vec![
            "n4: node-suspect n2".to_owned(),
            "n4: node-failed n1 n2 n3".to_owned(),
        ];
        let unhealed = "1 rank failed; 1 node was cut off and did not come back";
        assert_eq!(summarised(&events), (unhealed.to_owned(), views.clone()));
        events.extend(healed());
        let (summary, all) = summarised(&events);
        assert_eq!(
            summary,
            "1 rank failed; 1 node was cut off for 4.1 s and came back"
        );
        let after = ["n4: node-up n1 n2 n3", "n4: rank-up n1"].map(str::to_owned);
        assert_eq!(all, [views, after.into()].concat());
    }

    /// An older incarnation in the view of a node ends when the node learns of the next one. That is no failure.
    #[test]
    fn an_older_incarnation_in_the_view_of_a_returned_node_is_no_failure() {
        let mut events: Vec<Value> = cut().into_iter().chain(healed()).collect();
        events.push(lost("n4", "n3", 5_065, 0));
        events.push(event("node-up", "n4", "n3", 5_065));
        assert_eq!(
            summarised(&events).0,
            "1 node was cut off for 4.1 s and came back"
        );
    }

    /// The journals of each side alone give a consistent summary.
    #[test]
    fn one_side_of_a_split_is_enough() {
        let all: Vec<Value> = cut().into_iter().chain(healed()).collect();
        let of = |nodes: &[&str]| {
            let of_these = |line: &&Value| nodes.iter().any(|node| line["node"] == *node);
            summarised(&all.iter().filter(of_these).cloned().collect::<Vec<_>>())
        };
        assert_eq!(of(&["n4"]).0, "1 node was cut off for 4.0 s and came back");
        let back = "1 node failed and came back after 4.1 s";
        assert_eq!(of(&["n1", "n2"]), (back.to_owned(), vec![]));
        let cut = "1 node was cut off for 4.1 s and came back";
        assert_eq!(of(&["n1", "n4"]).0, cut);
    }

    /// If no node reports `minority` or `outcast`, or those lines are lost, the view of the larger side is used.
    #[test]
    fn without_minority_events_the_larger_side_is_used() {
        let mut events: Vec<Value> = cut().into_iter().chain(healed()).collect();
        events.retain(|line| line["member"] != line["node"]);
        assert_eq!(
            summarised(&events).0,
            "1 node was cut off for 4.1 s and came back"
        );
    }

    /// Two nodes against two: their own reports decide which side was the minority.
    #[test]
    fn of_two_equal_sides_the_minority_is_not_used() {
        let mut events = Vec::new();
        for (node, other) in [("n1", "n3"), ("n1", "n4"), ("n2", "n3"), ("n2", "n4")] {
            events.extend([lost(node, other, 1_060, 60), lost(other, node, 1_065, 65)]);
        }
        events.extend(["n3", "n4"].map(|node| event("minority", node, node, 1_065)));
        let (summary, views) = summarised(&events);
        assert_eq!(summary, "2 nodes were cut off and did not come back");
        assert_eq!(views, ["n3: node-failed n1 n2", "n4: node-failed n1 n2"]);
    }

    /// No side has a majority, and no node is outcast: all nodes are alive.
    #[test]
    fn if_all_nodes_are_cut_off_none_has_failed() {
        let mut events = Vec::new();
        for node in ["n1", "n2", "n3"] {
            let others = ["n1", "n2", "n3"]
                .into_iter()
                .filter(|other| *other != node);
            events.extend(others.map(|other| lost(node, other, 1_060, 60)));
            events.push(event("minority", node, node, 1_060));
        }
        assert_eq!(
            summarised(&events).0,
            "3 nodes were cut off and did not come back"
        );
    }

    /// The survivors of a job in which most nodes have failed are a minority, and their view is correct.
    #[test]
    fn a_minority_that_no_node_contradicts_is_used() {
        let mut events: Vec<Value> = ["n2", "n3", "n4"]
            .map(|other| lost("n1", other, 1_060, 60))
            .into();
        events.push(event("minority", "n1", "n1", 1_060));
        assert_eq!(
            summarised(&events),
            ("3 nodes failed with 3 ranks".to_owned(), vec![])
        );
        // One node is started again.
        events.push(json!({ "event": "journal-opened", "node": "n3", "unix_us": 9_000_000 }));
        events.push(event("node-up", "n1", "n3", 8_100));
        let summary = "2 nodes failed with 2 ranks; 1 node failed and came back after 7.1 s";
        assert_eq!(summarised(&events), (summary.to_owned(), vec![]));
    }

    /// A node that fails after it has reported another failure has reported correctly.
    #[test]
    fn reports_of_a_node_that_fails_later_are_used() {
        let mut events: Vec<Value> = ["n1", "n2", "n3"]
            .map(|node| lost(node, "n4", 1_060, 60))
            .into();
        events.extend(["n1", "n2"].map(|node| lost(node, "n3", 1_100, 60)));
        assert_eq!(
            summarised(&events),
            ("2 nodes failed with 2 ranks".to_owned(), vec![])
        );
    }

    /// An event of a cut off node that equals the events of all others is added to the incident, and does not count as
    /// slow.
    #[test]
    fn an_event_of_a_cut_off_node_that_others_report_too_is_no_view() {
        let mut events = cut();
        events.extend(["n1", "n2"].map(|node| lost(node, "n3", 1_065, 60)));
        events.extend(healed());
        let mut rank = event("rank-failed", "n1", "n1", 3_000);
        rank["rank"] = 1.into();
        events.push(rank.clone());
        (rank["node"], rank["unix_us"]) = ("n4".into(), 6_080_000.into());
        events.push(rank);
        let entries = entries(&events);
        let apart = Apart::find(&entries, CLOSE_US);
        let explanation = merge(&entries, &apart, CLOSE_US);
        let rank = explanation
            .incidents
            .iter()
            .find(|one| one.event == "rank-failed")
            .unwrap();
        assert_eq!(
            (rank.nodes.clone(), rank.later.clone()),
            (vec!["n1"], vec!["n4"])
        );
        assert_eq!(rank.last_us, rank.first_us);
        let failed = explanation
            .incidents
            .iter()
            .find(|one| one.event == "node-failed" && one.member == "n3");
        assert_eq!(failed.unwrap().later, ["n4"]);
        let of_n3 = |view: &super::super::incident::View<'_>| {
            view.event == "node-failed" && view.members.contains("n3")
        };
        assert!(
            !explanation.views.iter().any(of_n3),
            "{:?}",
            explanation.views
        );
    }

    #[test]
    fn a_job_without_losses_has_no_failure() {
        assert_eq!(
            summarised(&[event("node-up", "n1", "n2", 0)]).0,
            "no failure"
        );
        let twice = [
            lost("n1", "n2", 1_000, 60),
            event("node-up", "n1", "n2", 2_000),
            lost("n1", "n2", 3_000, 60),
            event("node-up", "n1", "n2", 5_000),
        ];
        assert_eq!(
            summarised(&twice).0,
            "1 node failed and came back after up to 2.1 s (2 times)"
        );
    }
}
