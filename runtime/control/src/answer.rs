//! The answers: what the engine and the fabric know, as JSON with a named schema.

use super::Question;
use super::member::member;
use super::sources::Sources;
use super::words::cause_word;
use super::{explanation, metrics, rails, rank, unreachable, zones};
use muster_protocol::{Engine, Instant, MemberId, Observation, ObservationKind, Phase};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Answers a question.
pub fn answer(question: &Question, known: &Sources<'_>) -> Value {
    let (engine, fabric, now) = (known.engine(), known.fabric, known.now);
    match question {
        Question::Members => members(known),
        Question::Zones => zones::zones(known.tree),
        Question::Zone(path) => zones::zone(known.tree, path),
        Question::Why(name) => {
            let elsewhere = || zones::why(known.tree, name);
            let own = why(engine, name, now).map(|mut value| {
                value["zone"] = zones::own(known.tree).into();
                value
            });
            own.or_else(elsewhere).unwrap_or_else(|| unknown(name))
        }
        Question::Rails => rails::rails(fabric, known.rail_retry, known.choice),
        Question::Rail { net, index } => rails::one(fabric, *net, *index),
        Question::Nets => rails::nets(fabric),
        Question::Peers { most, behind } => rails::peers(engine, fabric, *most, *behind),
        Question::Policy => rails::policy(known.document),
        Question::Relays => rails::relays(engine, fabric),
        Question::Explain { from, to } => rails::explain(engine, fabric, from.as_deref(), to),
        Question::Export => {
            json!({ "schema": "muster/export/v1", "yaml": known.document.export() })
        }
        Question::Stats => stats(known),
        Question::Attributes(name) => attributes(engine, name.as_deref()),
        Question::Metrics => {
            json!({ "schema": "muster/metrics/v1", "text": metrics::text(known) })
        }
        // The agent answers these without a look at the engine.
        Question::About | Question::Config | Question::Gossip => {
            json!({ "error": "not to be asked here" })
        }
    }
}

/// The answer to a change that was made, or why it was not.
pub fn done(result: Result<String, String>) -> Value {
    match result {
        Ok(done) => json!({ "schema": "muster/change/v1", "done": done }),
        Err(why) => json!({ "error": why }),
    }
}

fn members(known: &Sources<'_>) -> Value {
    let (engine, now) = (known.engine(), known.now);
    let members: Vec<Value> = engine
        .members()
        .map(|view| member(engine, &view, now))
        .collect();
    json!({
        "schema": "muster/members/v1",
        "self": engine.name_of(engine.id()),
        "zone": zones::own(known.tree),
        "alive": engine.live(),
        "outcast": is_outcast(engine),
        "members": members,
        "outside": zones::outside(known.tree),
        "unreachable": unreachable::value(engine, known.unauthenticated),
    })
}

/// The others have given this node up, and it does not come back: what it knows of them is old.
fn is_outcast(engine: &Engine) -> bool {
    engine.phase() == Phase::Stopped && engine.counters().outcasts > 0
}

/// What is known of a member, or of a rank and its node, and how. Who is named like a rank goes before it.
fn why(engine: &Engine, name: &str, now: Instant) -> Option<Value> {
    let id = MemberId::of(name);
    let found = match (engine.member(id), name.parse()) {
        (Some(view), _) => Some((id, member(engine, &view, now))),
        (None, Ok(number)) => rank::find(engine, number, now),
        (None, Err(_)) => None,
    };
    let (id, mut value) = found?;
    let evidence: Vec<Value> = engine
        .why(id)
        .map(|observation| evidence(engine, observation, now))
        .collect();
    value["schema"] = "muster/why/v1".into();
    value["evidence"] = evidence.into();
    value["explanation"] = explanation::explain(&value).into();
    Some(value)
}

fn unknown(name: &str) -> Value {
    let what = match name.parse::<u32>() {
        Ok(_) => "member or rank",
        Err(_) => "member",
    };
    json!({ "error": format!("no {what} named {name} is known; see muster members") })
}

fn evidence(engine: &Engine, observation: &Observation, now: Instant) -> Value {
    let (what, cause) = match observation.kind {
        ObservationKind::Joined => ("joined", None),
        ObservationKind::Probed => ("was silent and probed", None),
        ObservationKind::Vouched => ("was found alive by an indirect probe", None),
        ObservationKind::FoundSilent => ("was found silent by an indirect probe", None),
        ObservationKind::Reported(cause) => ("was reported", Some(cause)),
        ObservationKind::Refuted => ("refuted the reports", None),
        ObservationKind::Failed(cause) => ("was declared failed", Some(cause)),
        ObservationKind::Left => ("said goodbye", None),
        ObservationKind::Degraded => ("lost a rail", None),
        ObservationKind::Recovered => ("has all its rails", None),
        ObservationKind::Unreachable => ("could not be reached", None),
        ObservationKind::Ended => ("has ended: its node refuses connections", None),
    };
    json!({
        "ms_ago": now.since(observation.at) as f64 / 1000.0,
        "what": what,
        "cause": cause.map(cause_word),
        "by": engine.name_of(observation.by),
        "incarnation": observation.version.incarnation,
        "minor": observation.version.minor,
    })
}

/// What nodes have published: values that are texts as such, others in hexadecimal.
fn attributes(engine: &Engine, name: Option<&str>) -> Value {
    if let Some(name) = name.filter(|name| engine.member(MemberId::of(name)).is_none()) {
        return json!({ "error": format!("no member named {name} is known; see muster members") });
    }
    let printable = |bytes: &[u8]| {
        let text = str::from_utf8(bytes).ok()?;
        (!text.chars().any(char::is_control)).then(|| text.to_owned())
    };
    let hex = |bytes: &[u8]| {
        bytes
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect::<String>()
    };
    let mut all = Vec::new();
    for view in engine
        .members()
        .filter(|view| name.is_none_or(|name| name == view.name()))
    {
        for (key, value, version) in engine.attributes(view.id()) {
            all.push(json!({
                "node": view.name(),
                "key": printable(key).unwrap_or_else(|| format!("0x{}", hex(key))),
                "value": printable(value),
                "value_hex": printable(value).is_none().then(|| hex(value)),
                "version": version,
            }));
        }
    }
    json!({ "schema": "muster/attributes/v1", "attributes": all })
}

fn stats(known: &Sources<'_>) -> Value {
    json!({
        "schema": "muster/stats/v1",
        "lateness_ms": known.engine().lateness_us() as f64 / 1000.0,
        "counters": known.counters(),
        "agent": known.agent.iter().copied().collect::<BTreeMap<_, _>>(),
        "fabric": rails::totals(known.fabric),
    })
}
