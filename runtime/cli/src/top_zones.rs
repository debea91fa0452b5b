//! The zones in `muster top`: how many nodes of each are in which state.

use super::answer::{align, array, counted, text};
use muster_terminal::paint;
use serde_json::Value;

/// The columns: title, and the states that it counts. The first has the name.
pub(super) const COLUMNS: [(&str, &[&str]); 7] = [
    ("ZONE", &[]),
    ("NODES", &["nodes"]),
    ("ALIVE", &["alive"]),
    ("DEGRADED", &["degraded"]),
    ("FAILED", &["failed"]),
    ("LEFT", &["left"]),
    ("UNKNOWN", &["unknown", "suspect"]),
];

/// The zones in their natural order, or those first that need attention: with failed, suspected, degraded nodes.
pub(super) fn sorted(picture: &Value, by_name: bool) -> Vec<&Value> {
    let mut zones: Vec<&Value> = array(picture, "zones").iter().collect();
    if !by_name {
        let none = |zone: &Value, state: &str| zone[state].as_u64().unwrap_or(0) == 0;
        zones.sort_by_key(|zone| {
            ["failed", "suspect", "degraded", "left"].map(|state| none(zone, state))
        });
    }
    zones
}

/// A cell of a zone's row. The zone of the agent's node is marked.
pub(super) fn cell(zone: &Value, (_, states): (&str, &[&str])) -> String {
    if states.is_empty() {
        let marker = if zone["own"] == true { " *" } else { "" };
        return format!("{}{marker}", text(zone, "zone"));
    }
    let counts = states.iter().filter_map(|state| zone[*state].as_u64());
    counts.sum::<u64>().to_string()
}

/// Number of nodes of all zones that are in a state; with `nodes`, of all nodes.
pub(super) fn sum(picture: &Value, state: &str) -> u64 {
    let zones = array(picture, "zones").iter();
    zones.filter_map(|zone| zone[state].as_u64()).sum()
}

/// The table of at most `most` zones, those that need attention first, below the numbers of the job.
pub(super) fn table(picture: &Value, most: usize, coloured: bool) -> String {
    let zones = sorted(picture, false);
    let states = ["alive", "degraded", "suspect", "failed", "left", "unknown"].map(|state| {
        let count = sum(picture, state);
        let state_now = if count > 0 { state } else { "-" };
        paint::state(&format!("{count} {state}"), state_now, coloured)
    });
    let nodes = counted(sum(picture, "nodes") as usize, "node");
    let mut out = format!(
        "{nodes} in {}: {}\n\n",
        counted(zones.len(), "zone"),
        states.join(", ")
    );
    let mut rows = vec![COLUMNS.map(|(title, _)| title.to_owned())];
    let shown = zones.iter().take(most);
    rows.extend(shown.map(|zone| COLUMNS.map(|column| cell(zone, column))));
    out += &align(&rows);
    if zones.len() > most {
        out += &format!("and {} more\n", zones.len() - most);
    }
    out
}

#[cfg(test)]
pub(super) fn sample(zones: usize) -> Value {
    let zone = |number: usize| {
        serde_json::json!({ "level": 0, "zone": format!("z{number}"), "own": number == 1, "nodes": 4,
            "alive": if number == 2 { 2 } else { 4 }, "degraded": 0, "suspect": 0,
            "failed": if number == 2 { 1 } else { 0 }, "left": 0, "unknown": if number == 2 { 1 } else { 0 } })
    };
    (1..=zones).map(zone).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_table_has_the_zones_that_need_attention_first() {
        let picture = json!({ "zones": sample(3) });
        let text = table(&picture, 2, false);
        let words = |line: usize| -> Vec<&str> {
            let line = text.lines().nth(line).expect("a line");
            line.split_whitespace().collect()
        };
        assert!(
            text.starts_with(
                "12 nodes in 3 zones: 10 alive, 0 degraded, 0 suspect, 1 failed, 0 left, 1 unknown\n\nZONE"
            ),
            "{text}"
        );
        assert_eq!(words(3), ["z2", "4", "2", "0", "1", "0", "1"]);
        assert_eq!(words(4), ["z1", "*", "4", "4", "0", "0", "0", "0"]);
        assert_eq!(words(5), ["and", "1", "more"]);
        let by_name = sorted(&picture, true);
        assert_eq!(by_name[0]["zone"], "z1");
    }
}
