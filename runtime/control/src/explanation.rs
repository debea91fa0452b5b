//! Explanation of a member's state as text. The command `muster why` and the C API print the same text.

use muster_hostlist::fold;
use serde_json::Value;
use std::fmt::Write as _;

/// A line with the state, one with the ranks if it has some, and one for each observation.
pub(super) fn explain(member: &Value) -> String {
    let text = |key: &str| member[key].as_str().unwrap_or("-");
    let mut lines = String::new();
    if member["rank"].is_object() {
        lines = of_rank(&member["rank"]);
    }
    let _ = writeln!(
        lines,
        "{} is {}: {}",
        text("name"),
        text("state"),
        known(member)
    );
    if member["ranks"]
        .as_array()
        .is_some_and(|ranks| !ranks.is_empty())
    {
        let _ = writeln!(lines, "ranks {}", ranks(member));
    }
    for seen in member["evidence"].as_array().into_iter().flatten() {
        let text = |key: &str| seen[key].as_str().unwrap_or("-");
        let ms = seen["ms_ago"].as_f64().unwrap_or(0.0);
        let cause = seen["cause"]
            .as_str()
            .map_or(String::new(), |cause| format!(" ({cause})"));
        let _ = writeln!(
            lines,
            "{:>12.3} s ago  {}{cause}, says {}; version {}.{}",
            ms / 1000.0,
            text("what"),
            text("by"),
            seen["incarnation"],
            seen["minor"],
        );
    }
    lines
}

/// `rank 3 on n2 is failed: kernel futex, signal 9`
fn of_rank(rank: &Value) -> String {
    let text = |key: &str| rank[key].as_str().unwrap_or("-");
    let (node, state) = (text("node"), text("state"));
    let mut lines = format!(
        "rank {} on {node} is {state}: {}",
        rank["rank"],
        text("cause")
    );
    for (key, word) in [("signal", "signal"), ("exit_code", "exit code")] {
        if let Some(number) = rank[key].as_i64() {
            let _ = write!(lines, ", {word} {number}");
        }
    }
    lines + "\n"
}

/// Cause and reporters in a few words, and that ranks had failed on a node that left.
pub fn known(member: &Value) -> String {
    let reporters = member["reporters"].as_array().into_iter().flatten();
    let reporters: Vec<&str> = reporters.filter_map(Value::as_str).collect();
    let mut known = member["cause"].as_str().unwrap_or("-").to_owned();
    if !reporters.is_empty() {
        let _ = write!(known, ", by {}", fold(reporters));
    }
    if member["state"] == "left"
        && let Some(after) = after_failure(&failed_ranks(member))
    {
        let _ = write!(known, ", {after}");
    }
    known
}

/// The failed ranks of a member, in order.
pub fn failed_ranks(member: &Value) -> Vec<u64> {
    let facts = member["ranks"].as_array().into_iter().flatten();
    let failed = facts.filter(|fact| fact["state"] == "failed");
    let mut failed: Vec<u64> = failed.filter_map(|fact| fact["rank"].as_u64()).collect();
    failed.sort_unstable();
    failed
}

/// `after rank 1 failed`: why the end of a node that left was no orderly one; none if no rank had failed.
pub fn after_failure(failed: &[u64]) -> Option<String> {
    match failed {
        [] => None,
        [one] => Some(format!("after rank {one} failed")),
        several => Some(format!("after ranks {} failed", ranges(several))),
    }
}

/// The ranks of a member, and which of them are not well: `4-7 (failed 5; hung 6)`.
pub fn ranks(member: &Value) -> String {
    let facts = || member["ranks"].as_array().into_iter().flatten();
    let numbers = |state: Option<&str>| {
        let of = facts().filter(|fact| state.is_none() || fact["state"].as_str() == state);
        let mut ranks: Vec<u64> = of.filter_map(|fact| fact["rank"].as_u64()).collect();
        ranks.sort_unstable();
        ranks
    };
    let unwell: Vec<String> = ["failed", "hung"]
        .into_iter()
        .map(|state| (state, numbers(Some(state))))
        .filter(|(_, ranks)| !ranks.is_empty())
        .map(|(state, ranks)| format!("{state} {}", ranges(&ranks)))
        .collect();
    let all = ranges(&numbers(None));
    match unwell.is_empty() {
        true => all,
        false => format!("{all} ({})", unwell.join("; ")),
    }
}

/// `0-3,7` for 0, 1, 2, 3 and 7; `-` for none.
pub fn ranges(sorted: &[u64]) -> String {
    let mut parts: Vec<(u64, u64)> = Vec::new();
    for &number in sorted {
        match parts.last_mut() {
            Some((_, end)) if *end + 1 == number => *end = number,
            _ => parts.push((number, number)),
        }
    }
    let part = |(start, end): &(u64, u64)| match start == end {
        true => start.to_string(),
        false => format!("{start}-{end}"),
    };
    if parts.is_empty() {
        "-".into()
    } else {
        parts.iter().map(part).collect::<Vec<_>>().join(",")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn ranks_are_folded() {
        assert_eq!(ranges(&[0, 1, 2, 3, 7]), "0-3,7");
        assert_eq!(ranges(&[5]), "5");
        assert_eq!(ranges(&[]), "-");
    }

    #[test]
    fn ranks_that_are_not_well_are_named() {
        let ranks = |states: &[&str]| {
            let facts = states.iter().enumerate();
            let facts = facts.map(|(rank, state)| json!({ "rank": rank, "state": state }));
            ranks(&json!({ "name": "n1", "state": "alive", "ranks": facts.collect::<Vec<_>>() }))
        };
        assert_eq!(ranks(&["alive", "left", "alive"]), "0-2");
        assert_eq!(
            ranks(&["alive", "failed", "hung", "failed"]),
            "0-3 (failed 1,3; hung 2)"
        );
        assert_eq!(ranks(&[]), "-");
    }

    #[test]
    fn a_node_that_left_after_its_rank_failed_does_not_read_as_a_clean_end() {
        let left = |states: &[&str]| {
            let facts = states.iter().enumerate();
            let facts = facts.map(|(rank, state)| json!({ "rank": rank, "state": state }));
            json!({ "name": "n1", "state": "left", "cause": "announced", "ranks": facts.collect::<Vec<_>>() })
        };
        assert_eq!(known(&left(&["left", "left"])), "announced");
        assert_eq!(
            known(&left(&["left", "failed"])),
            "announced, after rank 1 failed"
        );
        let lines = explain(&left(&["failed", "failed", "left", "failed"]));
        assert!(
            lines.starts_with("n1 is left: announced, after ranks 0-1,3 failed\n"),
            "{lines}"
        );
    }

    #[test]
    fn the_lines_lists_the_evidence() {
        let member = json!({ "name": "n2", "state": "suspect", "cause": "silence on every rail",
            "reporters": ["n3", "n1", "n2"], "evidence": [{ "ms_ago": 1500.0, "what": "was reported",
            "cause": "silence on every rail", "by": "n1", "incarnation": 7, "minor": 1 }] });
        let lines = explain(&member);
        assert!(
            lines.starts_with("n2 is suspect: silence on every rail, by n[1-3]\n"),
            "{lines}"
        );
        let mut of_rank = member;
        of_rank["rank"] = json!({ "rank": 5, "node": "n2", "state": "failed", "cause": "kernel futex",
            "signal": 9 });
        let whole = explain(&of_rank);
        assert_eq!(
            whole,
            format!("rank 5 on n2 is failed: kernel futex, signal 9\n{lines}")
        );
        assert!(
            lines.contains("1.500 s ago") && lines.contains("says n1"),
            "{lines}"
        );
    }
}
