//! `journal_record` converts an event to a line of the journal. The line names members instead of ids, because a
//! reader of the journal has no engine.

use crate::difference::words;
use muster_control::{cause_word, tell_rank};
use muster_protocol::{Engine, Event, EventKind, MemberId, RankState as State, Reporters};
use muster_sys::clock::monotonic_ns;
use muster_sys::date::unix_us_now;
use muster_zones::Tree;
use serde_json::{Value, json};

/// The line about an event of the node with this name; none for attributes, which the journal omits because
/// applications may write them often.
pub(super) fn journal_record(tree: &Tree, event: &Event, name: &str) -> Option<Value> {
    let engine = tree.base();
    let name_of = |id: MemberId| engine.name_of(id).unwrap_or("?").to_owned();
    let mut line = json!({
        "event": event_name(&event.kind)?,
        "node": name_of(engine.id()),
        "member": name,
        "cause": cause_word(event.cause.kind),
        "reporters": reporters(engine, &event.cause.reporters),
        "unix_us": unix_us_of(event.at.0),
        "monotonic_us": event.at.0,
    });
    // The deadlines and the ranks of nodes of other zones are not known here.
    let is_of_zone = engine.member(event.member).is_some();
    let zone = tree.has_zones().then(|| zone_of(tree, name));
    if let Some(zone) = zone.flatten() {
        line["zone"] = zone.into();
    }
    if event.cause.silent_us > 0 {
        line["silent_ms"] = (f64::from(event.cause.silent_us) / 1000.0).into();
    }
    match event.kind {
        EventKind::NodeSuspect => line["deadline_ms"] = deadline_ms(engine, event.member).into(),
        EventKind::NodeFailed if is_of_zone => {
            line["ranks"] = ranks_lost(engine, event.member).into();
            line["deadline_ms"] = deadline_ms(engine, event.member).into();
        }
        EventKind::NodeLeft { exit_code } => {
            line["exit_code"] = exit_code.into();
            if is_of_zone {
                line["failed_ranks"] = failed_ranks(engine, event.member).into();
            }
        }
        EventKind::RankChanged { fact } => tell_rank(&mut line, &fact),
        EventKind::GroupFailed { number, failed, of } => {
            let failure = engine.group_failure(number);
            let members = failure.iter().flat_map(|failure| &failure.members);
            line["members"] = members.map(|id| name_of(*id)).collect::<Vec<_>>().into();
            line["group"] = failure.map(|failure| failure.group.clone()).into();
            (line["failed"], line["of"]) = (failed.into(), of.into());
        }
        EventKind::Minority { reached, of, held } => {
            (line["reached"], line["of"], line["held"]) = (reached.into(), of.into(), held.into());
        }
        EventKind::Majority { reached, of } => {
            (line["reached"], line["of"]) = (reached.into(), of.into());
        }
        EventKind::Refused(difference) => {
            let words = words(difference).map(Value::from);
            [line["setting"], line["own"], line["other"]] = words;
        }
        _ => {}
    }
    Some(line)
}

/// The path of a node's zone.
fn zone_of<'a>(tree: &'a Tree, name: &str) -> Option<&'a str> {
    let map = tree.map();
    let zone = map.base_zone(map.directory().find(name)?)?;
    Some(map.path(zone))
}

/// The date of a time of the loop's clock. It assumes that both clocks advanced equally since then.
fn unix_us_of(at_us: u64) -> u64 {
    let ago_us = (monotonic_ns() / 1000).saturating_sub(at_us);
    unix_us_now().saturating_sub(ago_us)
}

fn event_name(kind: &EventKind) -> Option<&'static str> {
    Some(match kind {
        EventKind::NodeUp => "node-up",
        EventKind::NodeDegraded => "node-degraded",
        EventKind::NodeRecovered => "node-recovered",
        EventKind::NodeSuspect => "node-suspect",
        EventKind::NodeFailed => "node-failed",
        EventKind::NodeLeft { .. } => "node-left",
        EventKind::Outcast => "outcast",
        EventKind::GroupFailed { .. } => "group-failed",
        EventKind::Minority { .. } => "minority",
        EventKind::Majority { .. } => "majority",
        EventKind::Refused(_) => "node-refused",
        EventKind::NameTaken => "name-taken",
        EventKind::NameClaimed => "name-claimed",
        EventKind::RankChanged { fact } => match fact.state {
            State::Alive => "rank-up",
            State::Hung => "rank-hung",
            State::Failed => "rank-failed",
            State::Left => "rank-left",
            State::Unknown => return None,
        },
        EventKind::AttributeChanged { .. } => return None,
    })
}

fn reporters(engine: &Engine, reporters: &Reporters) -> Vec<String> {
    let name = |id: MemberId| engine.name_of(id).unwrap_or("?").to_owned();
    reporters.iter().map(name).collect()
}

/// The deadline that this agent gives a member now.
fn deadline_ms(engine: &Engine, member: MemberId) -> f64 {
    engine.deadline_us(member) as f64 / 1000.0
}

/// The ranks of a node that failed before it left.
fn failed_ranks(engine: &Engine, node: MemberId) -> Vec<u32> {
    let member = engine.member(node);
    let facts = member.iter().flat_map(|member| member.ranks());
    let failed = facts.filter(|fact| fact.state == State::Failed);
    let mut failed: Vec<u32> = failed.map(|fact| fact.rank).collect();
    failed.sort_unstable();
    failed
}

/// The ranks that are lost with a node.
fn ranks_lost(engine: &Engine, node: MemberId) -> Vec<u32> {
    let member = engine.member(node);
    let facts = member.iter().flat_map(|member| member.ranks());
    let lost = facts.filter(|fact| matches!(fact.state, State::Alive | State::Hung));
    lost.map(|fact| fact.rank).collect()
}
