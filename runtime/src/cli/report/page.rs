//! The page: a summary, the timeline as a drawing, and every incident in a table.

use super::{Incident, timeline};
use crate::cli::show::counted;
use crate::journal::rfc3339;
use muster_fabric::fold;
use serde_json::Value;
use std::fmt::Write as _;

/// Incidents that are drawn and listed; the table says how many more there are.
pub(super) const ROWS_MAX: usize = 5000;

const STYLE: &str = "body{font:14px/1.45 system-ui,sans-serif;margin:2em auto;max-width:1100px;padding:0 1em;\
color:#1d2430}h1{font-size:1.5em}table{border-collapse:collapse;width:100%}th,td{text-align:left;\
padding:.25em .6em;border-bottom:1px solid #dde2ea;vertical-align:top}tr.failure td{background:#fdecec}\
svg{width:100%;height:auto;background:#f8fafc;border:1px solid #dde2ea}.n{color:#5b6675}";

/// The page as text.
pub(super) fn page(
    incidents: &[Incident<'_>],
    events: &[Value],
    unread: usize,
    left_out: usize,
) -> String {
    let mut page =
        String::from("<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/>");
    let jobs = names(events, "job");
    let nodes = names(events, "node");
    let title = format!("Muster: job {}", jobs.join(", "));
    let _ = write!(
        page,
        "<title>{}</title><style>{STYLE}</style></head><body>",
        escaped(&title)
    );
    let failures = incidents
        .iter()
        .filter(|incident| incident.is_failure())
        .count();
    let span = incidents.first().zip(incidents.last());
    let _ = write!(
        page,
        "<h1>{}</h1><p>{} in {}, from {} in the journals of {}.",
        escaped(&title),
        counted(failures, "failure"),
        counted(incidents.len(), "incident"),
        counted(events.len(), "event"),
        escaped(&fold(nodes.iter().map(String::as_str)))
    );
    if let Some((first, last)) = span {
        let _ = write!(
            page,
            " From {} to {}.",
            rfc3339(first.first_us),
            rfc3339(last.last_us)
        );
    }
    for (count, what) in [
        (unread, "lines could not be read and are missing here."),
        (
            left_out,
            "events are beyond what a page holds, and are missing here.",
        ),
        (
            gaps(events),
            "lines are missing in the journals themselves: they could not be written.",
        ),
    ] {
        if count > 0 {
            let _ = write!(page, " <b>{count} {what}</b>");
        }
    }
    page.push_str(
        "</p><p class=\"n\">Times are those of the clocks of the nodes: between nodes they are as \
        alike as these are.</p>",
    );
    timeline::draw(&mut page, incidents);
    table(&mut page, incidents);
    page.push_str("</body></html>\n");
    page
}

/// The values of a key, each once.
fn names(events: &[Value], key: &str) -> Vec<String> {
    let mut names: Vec<String> = events
        .iter()
        .filter_map(|event| event[key].as_str())
        .map(str::to_owned)
        .collect();
    names.sort();
    names.dedup();
    names
}

fn gaps(events: &[Value]) -> usize {
    let gaps = events
        .iter()
        .filter(|event| event["event"] == "journal-gap");
    gaps.filter_map(|event| event["lines"].as_u64())
        .sum::<u64>() as usize
}

fn table(page: &mut String, incidents: &[Incident<'_>]) {
    page.push_str(
        "<table><thead><tr><th>Time (UTC)</th><th>What</th><th>Whom</th><th>How it is known</th>\
        <th>Silence</th><th>Told by</th><th>Last after the first</th></tr></thead><tbody>",
    );
    for incident in incidents.iter().take(ROWS_MAX) {
        let class = if incident.is_failure() {
            " class=\"failure\""
        } else {
            ""
        };
        let mut whom = incident.whom();
        if !incident.ranks.is_empty() {
            let ranks: Vec<String> = incident.ranks.iter().map(ToString::to_string).collect();
            whom += &format!(" with ranks {}", fold(ranks.iter().map(String::as_str)));
        }
        let silence = incident
            .silent_ms
            .map_or("-".into(), |ms| format!("{ms:.1} ms"));
        let spread = (incident.last_us - incident.first_us) as f64 / 1000.0;
        let nodes = fold(incident.nodes.iter().copied());
        let _ = write!(
            page,
            "<tr{class}><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{silence}</td><td>{} ({})</td>\
             <td>{spread:.2} ms</td></tr>",
            rfc3339(incident.first_us),
            escaped(incident.event),
            escaped(&whom),
            escaped(&incident.known),
            escaped(&nodes),
            incident.nodes.len()
        );
    }
    page.push_str("</tbody></table>");
    if incidents.len() > ROWS_MAX {
        let _ = write!(
            page,
            "<p>{} more are left out.</p>",
            incidents.len() - ROWS_MAX
        );
    }
}

/// As text of a page, whatever is in it: what is no letter at all has a sign in its place.
pub(super) fn escaped(text: &str) -> String {
    text.replace(char::is_control, "\u{fffd}")
        .replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::super::gather;
    use super::*;
    use serde_json::json;

    #[test]
    fn names_from_outside_are_text_and_nothing_is_loaded() {
        let event = |node: &str, at: u64| {
            json!({ "event": "node-failed", "node": node, "member": "<script>&\"", "unix_us": at, "job": "j",
                "cause": "silence on every rail", "silent_ms": 60.04, "reporters": ["n1", "n2"], "ranks": [3] })
        };
        let events = [
            event("n1", 1_000_000),
            event("n2", 1_001_500),
            json!({ "event": "journal-gap", "lines": 4 }),
        ];
        let page = page(&gather(&events), &events, 2, 0);
        for there in [
            "1 failure in 1 incident, from 3 events",
            "&lt;script&gt;&amp;&quot; with ranks 3",
            "60.0 ms",
            "1.50 ms",
            "by n[1-2]",
            "2 lines could not be read",
            "4 lines are missing",
            "n[1-2] (2)",
            "<svg ",
        ] {
            assert!(page.contains(there), "{there}: {page}");
        }
        assert!(
            !page.contains("<script") && !page.contains("http"),
            "{page}"
        );
    }
}
