//! Answers about the zones of a job: counts by zone, the nodes of one zone, and a node or rank of another zone.

use super::rank::tell_rank;
use super::words::{cause_word, state_word};
use muster_protocol::{CauseKind, LedgerEntry, LedgerKey, NodeState};
use muster_zones::{NodeIndex, Tree, ZoneId};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Most nodes of other zones in the answer about members.
const OUTSIDE_MAX: usize = 1024;

/// The states of nodes, in the order of the counts.
const STATES: [NodeState; 6] = [
    NodeState::Alive,
    NodeState::Degraded,
    NodeState::Suspect,
    NodeState::Failed,
    NodeState::Left,
    NodeState::Unknown,
];

/// All zones of the job, with the number of their nodes in each state, as this node knows them.
pub(super) fn zones(tree: &Tree) -> Value {
    if !tree.has_zones() {
        return json!({ "error": "the job is one zone; musterd --zones (MUSTER_ZONES) divides it" });
    }
    let map = tree.map();
    let own = map.zones_of(tree.node()).collect::<Vec<_>>();
    let zone = |zone: ZoneId| {
        let mut line = json!({
            "level": zone.level,
            "zone": map.path(zone),
            "parent": map.parent(zone).map(|parent| map.path(parent)),
            "nodes": map.nodes_below(zone),
            "own": own.contains(&zone),
            "supervisors": supervisors(tree, zone),
        });
        let counts = counts(tree, zone);
        for (key, count) in counts {
            line[key] = count;
        }
        line
    };
    let taking_part = tree.memberships().skip(1);
    json!({
        "schema": "muster/zones/v1",
        "self": tree.base().name_of(tree.base().id()),
        "zone": own.first().map(|zone| map.path(*zone)),
        "nodes": map.directory().len(),
        "levels": map.levels(),
        "digest": format!("{:016x}", map.digest()),
        "member_of": taking_part.map(|(zone, _)| map.path(zone)).collect::<Vec<_>>(),
        "zones": map.zones().map(zone).collect::<Vec<_>>(),
    })
}

fn counts(tree: &Tree, zone: ZoneId) -> Map<String, Value> {
    let nodes = tree.map().nodes_of(zone);
    let states: Vec<NodeState> = nodes
        .iter()
        .filter_map(|node| tree.node_state(*node))
        .collect();
    let count = |state: NodeState| states.iter().filter(|one| **one == state).count();
    let counts = STATES
        .iter()
        .map(|state| (state_word(*state).to_owned(), count(*state).into()));
    counts.collect()
}

/// The nodes of a zone that take part in the zone above, where this node is a member of that; else nothing.
fn supervisors(tree: &Tree, zone: ZoneId) -> Option<Vec<String>> {
    let map = tree.map();
    let above = map.parent(zone)?;
    let (_, engine) = tree.memberships().find(|(of, _)| *of == above)?;
    let is_of_zone = |name: &str| {
        let node = map.directory().find(name);
        node.is_some_and(|node| map.zones_of(node).any(|of| of == zone))
    };
    let members = engine.members().filter(|member| member.state().in_view());
    let names = members.map(|member| member.name().to_owned());
    Some(names.filter(|name| is_of_zone(name)).collect())
}

/// The nodes of the zone at this path, with their states as this node knows them.
pub(super) fn zone(tree: &Tree, path: &str) -> Value {
    let map = tree.map();
    let Some(zone) = map
        .zones()
        .find(|zone| tree.has_zones() && map.path(*zone) == path)
    else {
        return json!({ "error": format!("no zone {path} is known; see muster zones") });
    };
    let nodes = map.nodes_of(zone);
    let ranks = ranks(tree);
    json!({
        "schema": "muster/zone/v1",
        "self": tree.base().name_of(tree.base().id()),
        "zone": path,
        "nodes": nodes.into_iter().filter_map(|node| line(tree, node, &ranks)).collect::<Vec<_>>(),
    })
}

/// The zone of the answering node. `None` in a job of one zone.
pub(super) fn own(tree: &Tree) -> Option<&str> {
    let own = tree.map().base_zone(tree.node());
    own.filter(|_| tree.has_zones())
        .map(|zone| tree.map().path(zone))
}

/// The nodes of other zones, as part of the answer about members: their number in each state, and those that are
/// neither alive nor unknown or have a failed or hung rank, at most [`OUTSIDE_MAX`]. `None` in a job of one zone.
pub(super) fn outside(tree: &Tree) -> Option<Value> {
    let map = tree.map();
    let own = map.base_zone(tree.node()).filter(|_| tree.has_zones())?;
    let reported = ranks(tree);
    let is_lost = |rank: &Value| rank["state"] == "failed" || rank["state"] == "hung";
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    let (mut nodes, mut not_listed) = (Vec::new(), 0u64);
    let all = (0..map.directory().len() as u32).map(NodeIndex);
    for node in all.filter(|node| map.base_zone(*node) != Some(own)) {
        let Some(state) = tree.node_state(node) else {
            continue;
        };
        *counts.entry(state_word(state)).or_default() += 1;
        let mut ranks = reported.get(&node.0).into_iter().flatten();
        let is_well = matches!(state, NodeState::Alive | NodeState::Unknown);
        match is_well && !ranks.any(is_lost) {
            true => {}
            false if nodes.len() == OUTSIDE_MAX => not_listed += 1,
            false => nodes.extend(line(tree, node, &reported)),
        }
    }
    Some(json!({ "counts": counts, "nodes": nodes, "not_listed": not_listed }))
}

/// What is known of a node: its state, and why.
fn line(tree: &Tree, node: NodeIndex, ranks: &Ranks) -> Option<Value> {
    let name = tree.map().directory().name(node)?;
    let zone = tree.map().base_zone(node)?;
    let entry = tree.base().ledger_entry(LedgerKey::Node(node.0));
    let state = tree.node_state(node)?;
    let cause = match state {
        // No entry says so: the node itself does, in an attribute.
        NodeState::Degraded => Some(CauseKind::Rails),
        _ => entry.and_then(LedgerEntry::cause),
    };
    Some(json!({
        "name": name,
        "zone": tree.map().path(zone),
        "state": state_word(state),
        "cause": cause.map(cause_word),
        "exit_code": entry.filter(|_| state == NodeState::Left).map(LedgerEntry::exit_code),
        "ranks": ranks.get(&node.0).map_or(&[][..], Vec::as_slice),
    }))
}

/// The ranks of other zones whose state was reported, by node.
type Ranks = BTreeMap<u32, Vec<Value>>;

fn ranks(tree: &Tree) -> Ranks {
    let mut ranks = Ranks::new();
    for entry in tree.base().ledger() {
        if let Some((_, fact)) = entry.rank_fact() {
            let mut line = json!({});
            tell_rank(&mut line, &fact);
            ranks.entry(entry.about_node()).or_default().push(line);
        }
    }
    ranks
}

/// What is known of a node of another zone, or of a rank there, by its name or number. `None` if there is none.
pub(super) fn why(tree: &Tree, name: &str) -> Option<Value> {
    let node = tree.map().directory().find(name);
    let of_rank = |rank: u32| {
        let entry = tree.base().ledger_entry(LedgerKey::Rank(rank))?;
        Some(NodeIndex(entry.about_node()))
    };
    let number = name.parse().ok();
    let node = node.or_else(|| number.and_then(of_rank))?;
    let mut value = line(tree, node, &ranks(tree))?;
    value["schema"] = "muster/why/v1".into();
    value["evidence"] = Value::Array(Vec::new());
    value["explanation"] = explanation(&value, name).into();
    Some(value)
}

fn explanation(node: &Value, asked: &str) -> String {
    let text = |value: &Value, key: &str| value[key].as_str().unwrap_or("-").to_owned();
    let mut lines = String::new();
    for rank in node["ranks"].as_array().into_iter().flatten() {
        if rank["rank"].as_u64() == asked.parse().ok() {
            let (state, cause) = (text(rank, "state"), text(rank, "cause"));
            let _ = writeln!(
                lines,
                "rank {asked} on {} is {state}: {cause}",
                text(node, "name")
            );
        }
    }
    let known = match (text(node, "state").as_str(), node["cause"].as_str()) {
        ("alive", _) => "no failure was reported".to_owned(),
        ("degraded", _) => "it reports that a rail of it has failed".to_owned(),
        ("failed", None) => "its whole zone was declared failed".to_owned(),
        (_, cause) => cause.unwrap_or("-").to_owned(),
    };
    let (name, zone, state) = (text(node, "name"), text(node, "zone"), text(node, "state"));
    let _ = writeln!(
        lines,
        "{name} is {state}: {known}; as reported by its zone {zone}, where muster why tells more"
    );
    lines
}
