//! The page: a summary, the losses of each zone, the timeline as a drawing, a table of all incidents, and one of the
//! views of nodes that were cut off.

use super::html::{ROWS_MAX, escaped};
use super::incident::{Explanation, Incident, View, ranks_text};
use super::timeline;
use super::zones::Zones;
use crate::answer::counted;
use muster_hostlist::fold;
use muster_sys::date::rfc3339;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fmt::Write as _;

/// Text wraps anywhere except in times and event names, so that the tables fit a narrow page.
const STYLE: &str = "body{font:14px/1.45 system-ui,sans-serif;margin:2em auto;max-width:960px;padding:0 1em;\
color:#1d2430;overflow-wrap:anywhere}h1{font-size:1.5em}h2{font-size:1.15em;margin-top:1.5em}\
table{border-collapse:collapse;width:100%}th,td{text-align:left;padding:.25em .6em .25em 0;\
border-bottom:1px solid #dde2ea;vertical-align:top}.t{white-space:nowrap}th{overflow-wrap:normal}\
tr.failure td{background:#fdecec}svg{width:100%;height:auto;background:#f8fafc;border:1px solid #dde2ea}\
.n{color:#5b6675}@media(max-width:700px){body{padding:0 .5em;margin:1em auto}table{font-size:12px}}";

/// The content of a page.
pub(super) struct Content<'a> {
    pub(super) summary: String,
    pub(super) explanation: Explanation<'a>,
    pub(super) zones: Zones<'a>,
    pub(super) events: &'a [Value],
    /// Number of lines that are no events.
    pub(super) unread: usize,
    /// Number of events beyond the limit of a page.
    pub(super) left_out: usize,
}

/// The page as HTML.
pub(super) fn page(content: &Content<'_>) -> String {
    let Content {
        explanation,
        events,
        ..
    } = content;
    let incidents = &explanation.incidents;
    let mut page =
        String::from("<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/>");
    let title = format!("Muster: job {}", names(events, "job").join(", "));
    let _ = write!(
        page,
        "<meta name=\"viewport\" content=\"width=device-width\"/><title>{0}</title><style>{STYLE}</style></head>\
         <body><h1>{0}</h1><p><b>{1}.</b> {2} from {3} in the journals of {4}.",
        escaped(&title),
        content.summary,
        counted(incidents.len(), "incident"),
        counted(events.len(), "event"),
        escaped(&fold(names(events, "node").iter().map(String::as_str)))
    );
    let last_us = incidents.iter().map(|one| one.last_us).max();
    let span = incidents.first().map(|one| one.first_us).zip(last_us);
    if let Some((first_us, last_us)) = span {
        let _ = write!(page, " From {} to {}.", rfc3339(first_us), rfc3339(last_us));
    }
    missing(&mut page, content);
    page.push_str("</p><p class=\"n\">Times come from each node's clock; clocks may differ.</p>");
    let has_days = span.is_some_and(|(first, last)| rfc3339(first)[..10] != rfc3339(last)[..10]);
    if content.zones.is_any() {
        zones(&mut page, &content.zones, has_days);
    }
    timeline::draw(&mut page, explanation);
    table(&mut page, incidents, has_days);
    if !explanation.views.is_empty() {
        views(&mut page, &explanation.views, has_days);
    }
    page.push_str("</body></html>\n");
    page
}

/// Prints what is missing on the page, and why.
fn missing(page: &mut String, content: &Content<'_>) {
    for (count, what) in [
        (
            content.unread,
            "lines could not be read and are missing here.",
        ),
        (
            content.left_out,
            "events are beyond the limit of a page and are missing here.",
        ),
        (
            gaps(content.events),
            "lines are missing in the journals themselves: they could not be written.",
        ),
    ] {
        if count > 0 {
            let _ = write!(page, " <b>{count} {what}</b>");
        }
    }
}

/// A time of day, with the date if the page has several days.
fn moment(at_us: u64, has_days: bool) -> String {
    let whole = rfc3339(at_us);
    let time = whole[11..].trim_end_matches('Z');
    match has_days {
        true => format!("{} {time}", &whole[..10]),
        false => time.to_owned(),
    }
}

/// The distinct values of a key, sorted.
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

fn table(page: &mut String, incidents: &[Incident<'_>], has_days: bool) {
    page.push_str(
        "<table><thead><tr><th>Time (UTC)</th><th>Event</th><th>Member</th><th>How it is known</th>\
        <th>Reported by</th><th>Spread between observers</th></tr></thead><tbody>",
    );
    for incident in incidents.iter().take(ROWS_MAX) {
        let class = if incident.is_failure() {
            " class=\"failure\""
        } else {
            ""
        };
        let spread = (incident.last_us - incident.first_us) as f64 / 1000.0;
        let _ = write!(
            page,
            "<tr{class}><td class=\"t\">{}</td><td class=\"t\">{}</td><td>{}</td><td>{}</td><td>{}</td>\
             <td>{spread:.2} ms</td></tr>",
            moment(incident.first_us, has_days),
            escaped(incident.event),
            escaped(&incident.subject()),
            escaped(&incident.known),
            escaped(&reported_by(incident)),
        );
    }
    page.push_str("</tbody></table>");
    more(page, incidents.len());
}

/// The reporting nodes, as in `n[1-3] (3)`, and the nodes that were cut off and reported later.
fn reported_by(incident: &Incident<'_>) -> String {
    let nodes = fold(incident.nodes.iter().copied());
    let reported = format!("{nodes} ({})", incident.nodes.len());
    match incident.later.is_empty() {
        true => reported,
        false => format!(
            "{reported}; {}, cut off",
            fold(incident.later.iter().copied())
        ),
    }
}

/// The losses of each zone.
fn zones(page: &mut String, zones: &Zones<'_>, has_days: bool) {
    page.push_str("<h2>Losses by zone</h2>");
    if !zones.losses.is_empty() {
        page.push_str(
            "<table><thead><tr><th>Zone</th><th>Failed nodes</th><th>Came back</th><th>Failed ranks</th>\
             <th>First failure (UTC)</th><th>Last failure (UTC)</th></tr></thead><tbody>",
        );
    }
    let text = |nodes: &BTreeSet<&str>| match nodes.len() {
        0 => "-".to_owned(),
        count => format!("{} ({count})", fold(nodes.iter().copied())),
    };
    for one in zones.losses.iter().take(ROWS_MAX) {
        let ranks = match one.ranks.is_empty() {
            true => "-".to_owned(),
            false => ranks_text(&one.ranks),
        };
        let _ = write!(
            page,
            "<tr><td>{}</td><td>{}</td><td>{}</td><td>{ranks}</td><td class=\"t\">{}</td><td class=\"t\">{}</td></tr>",
            escaped(one.zone),
            escaped(&text(&one.failed)),
            escaped(&text(&one.back)),
            moment(one.first_us, has_days),
            moment(one.last_us, has_days),
        );
    }
    if !zones.losses.is_empty() {
        page.push_str("</tbody></table>");
        more(page, zones.losses.len());
    }
    if zones.whole > 0 {
        let _ = write!(
            page,
            "<p>{} without a loss.</p>",
            counted(zones.whole, "zone")
        );
    }
}

fn views(page: &mut String, views: &[View<'_>], has_days: bool) {
    page.push_str(
        "<h2>Reports of nodes while they were cut off</h2><p class=\"n\">Their own view, which is no event of the job. \
         It ends with the reports that they had the others back.</p><table><thead><tr><th>Time (UTC)</th>\
         <th>Node</th><th>Event</th><th>Members</th><th>How it is known</th></tr></thead><tbody>",
    );
    for view in views.iter().take(ROWS_MAX) {
        let _ = write!(
            page,
            "<tr><td class=\"t\">{}</td><td>{}</td><td class=\"t\">{}</td><td>{}</td><td>{}</td></tr>",
            moment(view.first_us, has_days),
            escaped(view.node),
            escaped(view.event),
            escaped(&view.subject()),
            escaped(&view.known),
        );
    }
    page.push_str("</tbody></table>");
    more(page, views.len());
}

fn more(page: &mut String, rows: usize) {
    if rows > ROWS_MAX {
        let _ = write!(page, "<p>{} more are left out.</p>", rows - ROWS_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::super::material::Material;
    use super::*;
    use serde_json::json;

    fn page_of(events: &[Value], unread: usize) -> String {
        let material = Material {
            events: events.to_vec(),
            unread,
            left_out: 0,
        };
        page(&material.content())
    }

    #[test]
    fn names_are_escaped_and_nothing_is_loaded() {
        let event = |node: &str, at: u64| {
            json!({ "event": "node-failed", "node": node, "member": "<script>&\"", "unix_us": at, "job": "j",
                "cause": "silence on every rail", "silent_ms": 60.04, "reporters": ["n1", "?", "n2"], "ranks": [3] })
        };
        let events = [
            event("n1", 1_000_000),
            event("n2", 1_001_500),
            json!({ "event": "journal-gap", "lines": 4 }),
        ];
        let page = page_of(&events, 2);
        for there in [
            "<b>1 node failed with 1 rank.</b> 1 incident from 3 events in the journals of n[1-2].",
            "&lt;script&gt;&amp;&quot; with rank 3",
            "silent for 60.0 ms",
            "1.50 ms",
            "by n[1-2] and 1 unknown",
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

    #[test]
    fn losses_have_a_row_for_each_zone() {
        let event = |member: &str, zone: &str| {
            json!({ "event": "node-failed", "node": "n1", "member": member, "zone": zone, "unix_us": 1_000_000,
                "ranks": [3, 4] })
        };
        let up =
            json!({ "event": "node-up", "node": "n1", "member": "n9", "zone": "z3", "unix_us": 5 });
        let page = page_of(&[event("n4", "row1/<z2>"), up], 0);
        for there in [
            "<h2>Losses by zone</h2>",
            "<td>row1/&lt;z2&gt;</td><td>n4 (1)</td><td>-</td><td>ranks 3-4</td><td class=\"t\">00:00:01.000000</td>",
            "<p>1 zone without a loss.</p>",
        ] {
            assert!(page.contains(there), "{there}: {page}");
        }
        let mut event = event("n4", "");
        event.as_object_mut().expect("an object").remove("zone");
        assert!(!page_of(&[event], 0).contains("Losses by zone"));
    }

    /// Times do not wrap, all other text may: no row is wider than the page.
    #[test]
    fn times_have_a_date_only_if_the_page_has_several_days() {
        let event =
            |at: u64| json!({ "event": "node-up", "node": "n1", "member": "n2", "unix_us": at });
        let day_us = 86_400_000_000;
        let page = page_of(&[event(1), event(1_000_000)], 0);
        assert!(
            page.contains("<td class=\"t\">00:00:01.000000</td>"),
            "{page}"
        );
        assert!(page.contains("overflow-wrap:anywhere") && page.contains(".t{white-space:nowrap}"));
        let page = page_of(&[event(1), event(day_us)], 0);
        assert!(
            page.contains("<td class=\"t\">1970-01-02 00:00:00.000000</td>"),
            "{page}"
        );
    }
}
