//! A member of the job, as JSON.

use super::words::{cause_word, rank_word, state_word};
use muster_protocol::{Engine, Instant, MemberId, MemberView, NodeState};
use serde_json::{Value, json};

/// State, cause, reporters and ranks of a member.
pub(super) fn member(engine: &Engine, view: &MemberView<'_>, now: Instant) -> Value {
    let is_self = view.id() == engine.id();
    let heard = view.last_heard();
    let ranks: Vec<Value> = view
        .ranks()
        .map(|fact| json!({ "rank": fact.rank, "state": rank_word(fact.state) }))
        .collect();
    json!({
        "name": view.name(),
        "group": view.group(),
        "state": state_word(view.state()),
        "self": is_self,
        "incarnation": view.version().incarnation,
        "minor": view.version().minor,
        "address": String::from_utf8_lossy(view.address()),
        "ranks": ranks,
        "cause": cause_word(view.cause()),
        "reporters": names(engine, view.reporters().iter()),
        "heard_ms_ago": (!is_self && heard.0 > 0).then(|| now.since(heard) as f64 / 1000.0),
        "deadline_ms": engine.deadline_us(view.id()) as f64 / 1000.0,
        "exit_code": (view.state() == NodeState::Left).then(|| view.exit_code()),
    })
}

fn names(engine: &Engine, ids: impl Iterator<Item = MemberId>) -> Vec<String> {
    ids.map(|id| engine.name_of(id).unwrap_or("?").to_owned())
        .collect()
}
