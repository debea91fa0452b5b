//! All figures as OpenMetrics text, for Prometheus and other readers of that format.
//!
//! One exposition is one agent: every sample carries its node and its job. Families stand together,
//! counters end with `_total`, and the text ends with `# EOF`, as the format has it.

use super::protocol::RELEASE;
use super::rails;
use super::sources::Sources;
use super::words::{rank_word, state_word};
use super::zones;
use muster_protocol::{NodeState, RankState};
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// The reasons of refused frames are one family.
const REJECTED: &str = "rejected_";

/// The exposition.
pub(super) fn text(known: &Sources<'_>) -> String {
    let mut text = Exposition::of(known);
    text.family("muster_agent", "info", "The agent that tells.");
    text.sample("muster_agent_info", &[("release", RELEASE)], 1.0);
    members(&mut text, known);
    let engine = known.engine();
    let others = engine.members().filter(|view| view.id() != engine.id());
    let deadline_us = others.map(|view| engine.deadline_us(view.id())).max();
    let seconds = |us: u64| us as f64 / 1e6;
    text.gauge(
        "muster_lateness_seconds",
        "How late the agent's own timers fire.",
        seconds(engine.lateness_us()),
    );
    text.gauge(
        "muster_deadline_seconds",
        "Effective deadline of the member that gets the longest one; 0 without others.",
        seconds(deadline_us.unwrap_or(0)),
    );
    rail_figures(&mut text, known);
    counters(&mut text, known);
    text.end()
}

fn members(text: &mut Exposition, known: &Sources<'_>) {
    let states = [
        NodeState::Unknown,
        NodeState::Alive,
        NodeState::Degraded,
        NodeState::Suspect,
        NodeState::Failed,
        NodeState::Left,
    ];
    let ranks = [
        RankState::Unknown,
        RankState::Alive,
        RankState::Hung,
        RankState::Failed,
        RankState::Left,
    ];
    let mut of_nodes: BTreeMap<&str, u64> = states.map(|state| (state_word(state), 0)).into();
    let mut of_ranks: BTreeMap<&str, u64> = ranks.map(|state| (rank_word(state), 0)).into();
    for view in known.engine().members() {
        *of_nodes.entry(state_word(view.state())).or_default() += 1;
        for fact in view.ranks() {
            *of_ranks.entry(rank_word(fact.state)).or_default() += 1;
        }
    }
    let outside = zones::outside(known.tree).unwrap_or_default();
    for (state, count) in outside["counts"].as_object().into_iter().flatten() {
        if let Some(of_nodes) = of_nodes.get_mut(state.as_str()) {
            *of_nodes += count.as_u64().unwrap_or_default();
        }
    }
    for entry in known.engine().ledger() {
        if let Some((_, fact)) = entry.rank_fact() {
            *of_ranks.entry(rank_word(fact.state)).or_default() += 1;
        }
    }
    for (name, help, counts) in [
        (
            "muster_members",
            "Members that the agent knows, by state.",
            of_nodes,
        ),
        (
            "muster_ranks",
            "Ranks that the agent knows, by what their node stated.",
            of_ranks,
        ),
    ] {
        text.family(name, "gauge", help);
        for (state, count) in counts {
            text.sample(name, &[("state", state)], count as f64);
        }
    }
}

fn rail_figures(text: &mut Exposition, known: &Sources<'_>) {
    let answer = rails::rails(known.fabric, known.rail_retry, known.choice);
    let rails = answer["rails"].as_array().map_or(&[][..], Vec::as_slice);
    let figures = [
        ("health", "gauge", "Health of a rail, 0 to 1000."),
        ("sends", "counter", "Messages sent over a rail."),
        ("send_bytes", "counter", "Bytes sent over a rail."),
        ("receives", "counter", "Messages received over a rail."),
        ("receive_bytes", "counter", "Bytes received over a rail."),
        (
            "timeouts",
            "counter",
            "Messages over a rail that were not answered in time.",
        ),
    ];
    for (key, kind, help) in figures {
        let family = format!("muster_rail_{key}");
        text.family(&family, kind, help);
        let suffix = if kind == "counter" { "_total" } else { "" };
        for rail in rails {
            let labels =
                ["nid", "net", "interface"].map(|key| (key, rail[key].as_str().unwrap_or("")));
            let labels =
                labels.map(|(key, value)| (if key == "nid" { "rail" } else { key }, value));
            // A rail that could not be opened has no figures, but is not up.
            if let Some(figure) = rail[key].as_f64() {
                text.sample(&format!("{family}{suffix}"), &labels, figure);
            }
        }
    }
    text.family("muster_rail_up", "gauge", "1 if a rail is active.");
    for rail in rails {
        let nid = rail["nid"].as_str().unwrap_or("");
        let is_up = f64::from(u8::from(rail["state"] == "active"));
        text.sample("muster_rail_up", &[("rail", nid)], is_up);
    }
}

/// What protocol, agent and fabric count, under their own names.
fn counters(text: &mut Exposition, known: &Sources<'_>) {
    let mut rejected = Vec::new();
    for (name, value) in known.counters() {
        match name.strip_prefix(REJECTED) {
            Some(reason) => rejected.push((reason.to_owned(), value)),
            None => text.counter("protocol", &name, value),
        }
    }
    let name = "muster_protocol_rejected";
    text.family(
        name,
        "counter",
        "Inputs that the protocol refused, by reason.",
    );
    for (reason, count) in rejected {
        text.sample(
            &format!("{name}_total"),
            &[("reason", &reason)],
            count as f64,
        );
    }
    for (name, value) in known.agent {
        text.counter("agent", name, *value);
    }
    let totals = rails::totals(known.fabric);
    for (name, value) in totals.as_object().into_iter().flatten() {
        text.counter("fabric", name, value.as_u64().unwrap_or(0));
    }
}

/// A text under way.
struct Exposition {
    text: String,
    /// The labels of every sample.
    common: String,
}

impl Exposition {
    fn of(known: &Sources<'_>) -> Self {
        let (node, job) = (escaped(known.node), escaped(known.job));
        Self {
            text: String::new(),
            common: format!("node=\"{node}\",job_id=\"{job}\""),
        }
    }

    fn family(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.text, "# TYPE {name} {kind}\n# HELP {name} {help}");
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: f64) {
        let _ = write!(self.text, "{name}{{{}", self.common);
        for (key, value) in labels {
            let _ = write!(self.text, ",{key}=\"{}\"", escaped(value));
        }
        let _ = writeln!(self.text, "}} {value}");
    }

    fn gauge(&mut self, name: &str, help: &str, value: f64) {
        self.family(name, "gauge", help);
        self.sample(name, &[], value);
    }

    fn counter(&mut self, room: &str, name: &str, value: u64) {
        let family = format!("muster_{room}_{name}");
        self.family(
            &family,
            "counter",
            &format!("Counter {name} of the {room}."),
        );
        self.sample(&format!("{family}_total"), &[], value as f64);
    }

    fn end(mut self) -> String {
        self.text.push_str("# EOF\n");
        self.text
    }
}

fn escaped(value: &str) -> String {
    value
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}
