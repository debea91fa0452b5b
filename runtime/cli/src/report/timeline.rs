//! The drawing: a lane for each member, with a bar for its state and marks for its events above the bar.

use super::html::{ROWS_MAX, escaped};
use super::incident::{Explanation, Incident, View};
use muster_hostlist::by_number;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Maximum number of lanes; members with failures come first.
const LANES_MAX: usize = 64;
/// Width in units. Text of 13 units is readable on a page of 600 pixels.
const WIDTH: f64 = 800.0;
/// Margins: names are in the left one, half of the last number is in the right one.
const LEFT: f64 = 130.0;
const RIGHT: f64 = 40.0;
const LANE: f64 = 26.0;
/// Offsets in a lane: marks are above its middle and the bar is below, so that neither covers the other.
const MARKS: f64 = -6.0;
const BAR: f64 = 2.0;
const BAR_HEIGHT: f64 = 8.0;
/// Minimum width of a bar, so that a short failure is visible.
const BAR_MIN: f64 = 3.0;
/// Maximum characters of a name; the full name is shown under the pointer.
const NAME_MAX: usize = 15;
/// Approximate number of grid lines.
const TICKS: f64 = 6.0;

/// The meaning of the colours.
const LEGEND: [(&str, &str); 4] = [
    ("up", UP),
    ("suspect, degraded, hung", STRAINED),
    ("failed", LOST),
    ("left, other", OTHER),
];
/// The meaning of a hollow mark.
const HOLLOW: &str = "view of a node that is cut off";
const UP: &str = "#2e7d32";
const STRAINED: &str = "#e69100";
const LOST: &str = "#c62828";
const OTHER: &str = "#5b6675";

/// Maps times to horizontal positions.
struct Scale {
    first_us: u64,
    /// Never 0.
    span_us: u64,
}

impl Scale {
    fn of(incidents: &[Incident<'_>]) -> Self {
        let first_us = incidents.first().map_or(0, |incident| incident.first_us);
        let last = incidents.iter().map(|incident| incident.last_us).max();
        let span_us = last.unwrap_or(first_us).saturating_sub(first_us).max(1);
        Self { first_us, span_us }
    }

    fn x(&self, at_us: u64) -> f64 {
        let part = at_us.saturating_sub(self.first_us) as f64 / self.span_us as f64;
        LEFT + (WIDTH - LEFT - RIGHT) * part
    }

    /// Distance of grid lines, a round number: 1, 2 or 5 times a power of ten, in microseconds, from 30 s on in
    /// minutes.
    fn step_us(&self) -> u64 {
        let minute = 60e6;
        let wished = self.span_us as f64 / TICKS;
        if wished > 0.5 * minute {
            let minutes = (wished / minute).max(1.0);
            return (Self::round(minutes) * minute) as u64;
        }
        Self::round(wished.max(1.0)) as u64
    }

    /// The next round number that is at least `wished`, which is at least 1.
    fn round(wished: f64) -> f64 {
        let power = 10_f64.powf(wished.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|times| times * power);
        step.into_iter()
            .find(|step| *step >= wished)
            .unwrap_or(wished)
    }
}

/// The content of a member's lane.
#[derive(Default)]
struct Lane<'a> {
    incidents: Vec<&'a Incident<'a>>,
    /// Views of the member while it was cut off.
    views: Vec<&'a View<'a>>,
}

/// Draws the timeline.
pub(super) fn draw(page: &mut String, explanation: &Explanation<'_>) {
    let incidents = &explanation.incidents;
    let mut lanes: BTreeMap<&str, Lane<'_>> = BTreeMap::new();
    for incident in incidents {
        lanes
            .entry(incident.member)
            .or_default()
            .incidents
            .push(incident);
    }
    for view in &explanation.views {
        lanes.entry(view.node).or_default().views.push(view);
    }
    let mut order: Vec<(&str, Lane<'_>)> = lanes.into_iter().collect();
    order.sort_by(|(one, its), (other, others)| {
        let is_well = |of: &Lane<'_>| !of.incidents.iter().any(|incident| incident.is_failure());
        let by_failure = is_well(its).cmp(&is_well(others));
        by_failure.then_with(|| by_number(one, other))
    });
    let hidden = order.len().saturating_sub(LANES_MAX);
    order.truncate(LANES_MAX);
    let scale = Scale::of(incidents);
    let height = LANE * (order.len() as f64 + 3.0);
    let _ = write!(
        page,
        "<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"timeline\">"
    );
    grid(page, &scale, height);
    for (number, (member, its)) in order.iter().enumerate() {
        let y = LANE * (number as f64 + 1.0);
        name(page, member, y);
        bars(page, &scale, &its.incidents, y + BAR);
        marks(page, &scale, its, y + MARKS);
    }
    legend(page, height - 8.0);
    page.push_str("</svg>");
    if hidden > 0 {
        let _ = write!(page, "<p>{hidden} more members are in the table only.</p>");
    }
}

fn grid(page: &mut String, scale: &Scale, height: f64) {
    let step = scale.step_us();
    for number in 0..=scale.span_us / step {
        let after = number * step;
        let x = scale.x(scale.first_us.saturating_add(after));
        let _ = write!(
            page,
            "<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"0\" y2=\"{}\" stroke=\"#dde2ea\"/><text x=\"{x:.1}\" \
             y=\"{}\" font-size=\"13\" text-anchor=\"middle\">{}</text>",
            height - 2.0 * LANE,
            height - 1.4 * LANE,
            moment(after, step)
        );
    }
}

/// Time after the first event, with the digits that the grid requires.
fn moment(after_us: u64, step_us: u64) -> String {
    let seconds = after_us as f64 / 1e6;
    match step_us {
        0..1_000 => format!("+{:.3} ms", after_us as f64 / 1e3),
        1_000..100_000 => format!("+{:.0} ms", after_us as f64 / 1e3),
        100_000..1_000_000 => format!("+{seconds:.1} s"),
        1_000_000..60_000_000 => format!("+{seconds:.0} s"),
        _ => format!("+{:.0} min", seconds / 60.0),
    }
}

/// Draws the name of a lane.
fn name(page: &mut String, member: &str, y: f64) {
    let shown: String = match member.chars().count() {
        ..=NAME_MAX => member.to_owned(),
        _ => member
            .chars()
            .take(NAME_MAX - 1)
            .chain(['\u{2026}'])
            .collect(),
    };
    let _ = write!(
        page,
        "<text x=\"8\" y=\"{:.1}\" font-size=\"14\"><title>{}</title>{}</text>",
        y + 5.0,
        escaped(member),
        escaped(&shown)
    );
}

/// Draws a bar in the colour of each state; the worst states are on top.
fn bars(page: &mut String, scale: &Scale, incidents: &[&Incident<'_>], y: f64) {
    let states: Vec<&&Incident<'_>> = incidents.iter().filter(|one| is_state(one)).collect();
    let end = scale.first_us.saturating_add(scale.span_us);
    let until = |at: usize| states.get(at + 1).map_or(end, |next| next.first_us);
    let states = states.iter().enumerate().take(ROWS_MAX);
    let mut bars: Vec<(&str, u64, u64)> = states
        .map(|(at, one)| (colour(one.event), one.first_us, until(at)))
        .collect();
    bars.sort_by_key(|(colour, ..)| {
        [OTHER, UP, STRAINED, LOST]
            .iter()
            .position(|one| one == colour)
    });
    for (colour, from_us, until_us) in bars {
        let (from, to) = (scale.x(from_us), scale.x(until_us));
        let opacity = if colour == UP { 0.35 } else { 0.9 };
        let _ = write!(
            page,
            "<rect x=\"{from:.1}\" width=\"{:.1}\" y=\"{y:.1}\" height=\"{BAR_HEIGHT}\" fill=\"{colour}\" \
             opacity=\"{opacity}\"/>",
            (to - from).max(BAR_MIN)
        );
    }
}

/// Draws a mark at the time of the first report, with a line to the time of the last; a hollow mark for a view.
fn marks(page: &mut String, scale: &Scale, lane: &Lane<'_>, y: f64) {
    for incident in lane.incidents.iter().take(ROWS_MAX) {
        let (from, to) = (scale.x(incident.first_us), scale.x(incident.last_us));
        let what = format!(
            "{} {}: {}",
            incident.event,
            incident.subject(),
            incident.known
        );
        let colour = colour(incident.event);
        let _ = write!(
            page,
            "<g><title>{}</title><line x1=\"{from:.1}\" x2=\"{to:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\" \
             stroke=\"{colour}\" stroke-width=\"2\"/><circle cx=\"{from:.1}\" cy=\"{y:.1}\" r=\"{}\" \
             fill=\"{colour}\"/></g>",
            escaped(&what),
            if incident.is_failure() { 5 } else { 3 }
        );
    }
    for view in lane.views.iter().take(ROWS_MAX) {
        let what = format!(
            "in the view of {}: {} {}",
            view.node,
            view.event,
            view.subject()
        );
        let _ = write!(
            page,
            "<g><title>{}</title><circle cx=\"{:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"#fff\" stroke=\"{}\"/></g>",
            escaped(&what),
            scale.x(view.first_us),
            colour(view.event)
        );
    }
}

/// Whether the event starts another state of the member.
fn is_state(incident: &Incident<'_>) -> bool {
    let event = incident.event;
    let states = [
        "node-up",
        "node-recovered",
        "node-degraded",
        "node-suspect",
        "node-failed",
        "node-left",
    ];
    incident.rank.is_none() && states.contains(&event)
}

fn legend(page: &mut String, y: f64) {
    let mut x = 14.0;
    for (what, colour) in LEGEND {
        let _ = write!(
            page,
            "<circle cx=\"{x}\" cy=\"{:.1}\" r=\"4\" fill=\"{colour}\"/><text x=\"{}\" y=\"{y}\" \
             font-size=\"13\">{what}</text>",
            y - 4.0,
            x + 9.0
        );
        x += 24.0 + 6.8 * what.len() as f64;
    }
    let _ = write!(
        page,
        "<circle cx=\"{x}\" cy=\"{:.1}\" r=\"3\" fill=\"#fff\" stroke=\"{LOST}\"/><text x=\"{}\" y=\"{y}\" \
         font-size=\"13\">{HOLLOW}</text>",
        y - 4.0,
        x + 9.0
    );
}

fn colour(event: &str) -> &'static str {
    match event {
        "node-failed" | "rank-failed" | "group-failed" | "outcast" => LOST,
        "node-suspect" | "node-degraded" | "rank-hung" | "minority" | "node-refused" => STRAINED,
        "node-up" | "node-recovered" | "rank-up" | "majority" => UP,
        _ => OTHER,
    }
}

#[cfg(test)]
mod tests {
    use super::super::apart::Apart;
    use super::super::entry::entries;
    use super::super::incident::merge;
    use super::*;
    use serde_json::json;

    #[test]
    fn grid_lines_are_round_and_few() {
        for (span_us, step_us) in [
            (1, 1),
            (941_000, 200_000),
            (60_000_000, 10_000_000),
            (7_200_000_000, 1_200_000_000),
        ] {
            let scale = Scale {
                first_us: 5,
                span_us,
            };
            assert_eq!(scale.step_us(), step_us, "{span_us}");
            assert_eq!(scale.x(5 + span_us), WIDTH - RIGHT);
        }
        assert_eq!(moment(400_000, 200_000), "+0.4 s");
        assert_eq!(moment(20_000, 5_000), "+20 ms");
        assert_eq!(moment(3_600_000_000, 1_200_000_000), "+60 min");
    }

    /// A broken line of a journal must not make the grid endless.
    #[test]
    fn a_grid_over_all_time_is_drawn() {
        let scale = Scale {
            first_us: u64::MAX - 5,
            span_us: u64::MAX,
        };
        let mut page = String::new();
        grid(&mut page, &scale, 100.0);
        assert!(page.matches("<line").count() < 12, "{page}");
    }

    #[test]
    fn failed_members_come_first_and_others_by_their_numbers() {
        let event = |what: &str, member: &str, at: u64| {
            let node = "n1";
            json!({ "event": what, "node": node, "member": member, "unix_us": at })
        };
        let events = [
            event("node-up", "n10", 1_000_000),
            event("node-up", "n2", 1_000_001),
            event("node-up", "n3", 1_000_002),
            event("node-failed", "n3", 2_000_000),
        ];
        let page = drawn(&events);
        let at = |what: &str| page.find(what).unwrap_or_else(|| panic!("{what}: {page}"));
        assert!(at(">n3</text>") < at(">n2</text>") && at(">n2</text>") < at(">n10</text>"));
        assert!(page.contains("+0.4 s") && page.contains(LOST));
    }

    fn drawn(events: &[serde_json::Value]) -> String {
        let entries = entries(events);
        let mut page = String::new();
        draw(&mut page, &merge(&entries, &Apart::default(), 120_000));
        page
    }

    /// A node that is cut off finds all others silent. That is a hollow mark in its lane, and no state of the others.
    #[test]
    fn the_view_of_a_node_that_is_cut_off_is_a_hollow_mark_in_its_lane() {
        let event = |what: &str, node: &str, member: &str, ms: u64| {
            let unix_us = 1_000_000 + 1_000 * ms;
            json!({ "event": what, "node": node, "member": member, "unix_us": unix_us })
        };
        let mut events: Vec<serde_json::Value> = ["n1", "n2", "n3"]
            .map(|node| event("node-failed", node, "n4", 60))
            .into();
        events.extend(["n1", "n2", "n3"].map(|other| event("node-failed", "n4", other, 70)));
        events.push(event("minority", "n4", "n4", 71));
        let entries = entries(&events);
        let mut page = String::new();
        let apart = Apart::find(&entries, 120_000);
        draw(&mut page, &merge(&entries, &apart, 120_000));
        let failed = format!("fill=\"{LOST}\" opacity");
        assert_eq!(page.matches(&failed).count(), 1, "{page}");
        let (_, view) = page
            .split_once("in the view of n4: node-failed n[1-3]</title>")
            .unwrap_or_else(|| panic!("{page}"));
        let mark = view.split("</g>").next().unwrap_or_default();
        assert!(mark.contains("fill=\"#fff\""), "{mark}");
        assert!(!page.contains(">n1</text>"), "{page}");
    }

    /// A failure of 60 ms in an hour has the minimum width, and is above the states before and after it.
    #[test]
    fn a_short_failure_is_drawn_on_top() {
        let event = |what: &str, at: u64| json!({ "event": what, "node": "n1", "member": "n3", "unix_us": at });
        let events = [
            event("node-up", 1_000_000),
            event("node-failed", 2_000_000),
            event("node-up", 2_060_000),
            event("node-degraded", 3_600_000_000),
        ];
        let page = drawn(&events);
        let bars: Vec<&str> = page.split("<rect ").skip(1).collect();
        assert_eq!(bars.len(), 4, "{page}");
        let last = bars[3];
        assert!(
            last.contains(LOST) && last.contains("width=\"3.0\""),
            "{last}"
        );
    }
}
