//! The drawing: a lane a member, with its state as a band and what happened to it as marks.

use super::Incident;
use super::page::{ROWS_MAX, escaped};
use muster_fabric::by_number;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Lanes; members with failures come first.
const LANES_MAX: usize = 64;
const WIDTH: f64 = 1000.0;
/// Left of it stand the names, right of it the half of the last number.
const LEFT: f64 = 150.0;
const RIGHT: f64 = 40.0;
const LANE: f64 = 22.0;
/// Letters of a name that fit; the whole one is shown under the pointer.
const NAME_MAX: usize = 20;
/// Grid lines, about.
const TICKS: f64 = 6.0;

/// What the colours mean.
const LEGEND: [(&str, &str); 4] = [
    ("up", UP),
    ("suspect, degraded or hung", STRAINED),
    ("failed", LOST),
    ("left, and all else", OTHER),
];
const UP: &str = "#2e7d32";
const STRAINED: &str = "#e69100";
const LOST: &str = "#c62828";
const OTHER: &str = "#5b6675";

/// Where a moment is.
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

    /// Round distances of grid lines: 1, 2 or 5, and zeros, of seconds, and of minutes from there on.
    fn step_us(&self) -> u64 {
        let minute = 60e6;
        let wished = self.span_us as f64 / TICKS;
        if wished > 0.5 * minute {
            let minutes = (wished / minute).max(1.0);
            return (Self::round(minutes) * minute) as u64;
        }
        Self::round(wished.max(1.0)) as u64
    }

    /// The next round number, of one or more.
    fn round(wished: f64) -> f64 {
        let power = 10_f64.powf(wished.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|times| times * power);
        step.into_iter()
            .find(|step| *step >= wished)
            .unwrap_or(wished)
    }
}

/// Draws it.
pub(super) fn draw(page: &mut String, incidents: &[Incident<'_>]) {
    let mut lanes: BTreeMap<&str, Vec<&Incident<'_>>> = BTreeMap::new();
    for incident in incidents {
        lanes.entry(incident.member).or_default().push(incident);
    }
    let mut order: Vec<(&str, Vec<&Incident<'_>>)> = lanes.into_iter().collect();
    order.sort_by(|(one, ones), (other, others)| {
        let is_well = |of: &[&Incident<'_>]| !of.iter().any(|incident| incident.is_failure());
        let by_failure = is_well(ones).cmp(&is_well(others));
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
    for (number, (member, incidents)) in order.iter().enumerate() {
        lane(
            page,
            &scale,
            member,
            incidents,
            LANE * (number as f64 + 1.0),
        );
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
             y=\"{}\" font-size=\"11\" text-anchor=\"middle\">{}</text>",
            height - 2.0 * LANE,
            height - 1.4 * LANE,
            moment(after, step)
        );
    }
}

/// How long after the first event, with as many digits as the grid needs.
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

/// A band in the colour of the state, a mark where the first agent knew, and a line to where the last one did.
fn lane(page: &mut String, scale: &Scale, member: &str, incidents: &[&Incident<'_>], y: f64) {
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
        "<text x=\"8\" y=\"{:.1}\" font-size=\"12\"><title>{}</title>{}</text><line x1=\"{LEFT}\" \
         x2=\"{WIDTH}\" y1=\"{y}\" y2=\"{y}\" stroke=\"#eceff4\"/>",
        y + 4.0,
        escaped(member),
        escaped(&shown)
    );
    let states: Vec<&&Incident<'_>> = incidents.iter().filter(|one| is_state(one)).collect();
    let end = scale.first_us.saturating_add(scale.span_us);
    for (at, incident) in states.iter().enumerate().take(ROWS_MAX) {
        let until = states.get(at + 1).map_or(end, |next| next.first_us);
        let (from, to) = (scale.x(incident.first_us), scale.x(until));
        let _ = write!(
            page,
            "<rect x=\"{from:.1}\" width=\"{:.1}\" y=\"{:.1}\" height=\"6\" fill=\"{}\" opacity=\"0.25\"/>",
            (to - from).max(0.0),
            y - 3.0,
            colour(incident.event)
        );
    }
    for incident in incidents.iter().take(ROWS_MAX) {
        let (from, to) = (scale.x(incident.first_us), scale.x(incident.last_us));
        let what = format!("{} {}: {}", incident.event, incident.whom(), incident.known);
        let colour = colour(incident.event);
        let _ = write!(
            page,
            "<g><title>{}</title><line x1=\"{from:.1}\" x2=\"{to:.1}\" y1=\"{y}\" y2=\"{y}\" stroke=\"{colour}\" \
             stroke-width=\"3\"/><circle cx=\"{from:.1}\" cy=\"{y}\" r=\"{}\" fill=\"{colour}\"/></g>",
            escaped(&what),
            if incident.is_failure() { 6 } else { 4 }
        );
    }
}

/// Whether the member is in another state from here on.
fn is_state(incident: &Incident<'_>) -> bool {
    let event = incident.event;
    let words = [
        "node-up",
        "node-recovered",
        "node-degraded",
        "node-suspect",
        "node-failed",
        "node-left",
        "outcast",
    ];
    incident.rank.is_none() && words.contains(&event)
}

fn legend(page: &mut String, y: f64) {
    let mut x = LEFT;
    for (what, colour) in LEGEND {
        let _ = write!(
            page,
            "<circle cx=\"{x}\" cy=\"{:.1}\" r=\"4\" fill=\"{colour}\"/><text x=\"{}\" y=\"{y}\" \
             font-size=\"11\">{what}</text>",
            y - 4.0,
            x + 9.0
        );
        x += 40.0 + 6.5 * what.len() as f64;
    }
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
    use super::super::gather;
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

    /// One broken line of a journal must not make it endless.
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
    fn the_failed_come_first_and_others_by_their_numbers() {
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
        let mut page = String::new();
        draw(&mut page, &gather(&events));
        let at = |what: &str| page.find(what).unwrap_or_else(|| panic!("{what}: {page}"));
        assert!(at(">n3</text>") < at(">n2</text>") && at(">n2</text>") < at(">n10</text>"));
        assert!(page.contains("+0.4 s") && page.contains(LOST));
    }
}
