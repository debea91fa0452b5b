//! Answers about rails: which are open, which peers they reach, the policy, and why a path is selected.

use muster_config::{RailsDocument, switch_word};
use muster_fabric::{
    Counters, Credits, DropReason, Fabric, HealthState, Net, Nid, NidList, PathView, PeerHandle,
    PeerNidView, PeerView, RailView, Subject, Tally, Through, Transport, Why,
};
use muster_protocol::{Engine, MemberId};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// The local rails, each with its figures; where a fault is, as far as it can be told; and how they were chosen.
pub(super) fn rails(fabric: &Fabric, rail_retry: &[(Nid, String)], choice: &[String]) -> Value {
    let mut rails: Vec<Value> = fabric.rails().iter().map(rail).collect();
    rails.extend(rail_retry.iter().map(missing_rail));
    let mut findings = fabric.findings_in_words();
    let tried =
        |(nid, why): &(Nid, String)| format!("{nid} is not open, and is tried again: {why}");
    findings.extend(rail_retry.iter().map(tried));
    json!({ "schema": "muster/rails/v1", "rails": rails, "findings": findings, "choice": choice })
}

/// The rail at this place among those of a net.
pub(super) fn one(fabric: &Fabric, net: Net, index: usize) -> Value {
    let rails = fabric.rails();
    let of_net: Vec<&RailView> = rails.iter().filter(|rail| rail.nid.net == net).collect();
    match of_net.get(index) {
        Some(view) => json!({ "schema": "muster/rails/v1", "rails": [rail(view)] }),
        None => {
            let why = format!(
                "the net {net} has {} rails here, numbered from 0, so none has number {index}; see \
                 muster rails",
                of_net.len()
            );
            json!({ "error": why })
        }
    }
}

/// The nets: their rails, and the sums of their figures.
pub(super) fn nets(fabric: &Fabric) -> Value {
    let net = |net: &muster_fabric::NetView| {
        let nids: Vec<String> = net.rails.iter().map(|rail| rail.nid.to_string()).collect();
        let mut value = counters(&net.counters);
        value["net"] = net.net.to_string().into();
        value["rails"] = nids.into();
        value
    };
    let nets: Vec<Value> = fabric.nets().iter().map(net).collect();
    json!({ "schema": "muster/nets/v1", "nets": nets })
}

/// Sums over all rails, and what belongs to none.
pub(super) fn totals(fabric: &Fabric) -> Value {
    let mut sums: BTreeMap<&str, u64> = BTreeMap::new();
    let mut add = |name, value| *sums.entry(name).or_default() += value;
    for rail in fabric.rails() {
        let of_rail = &rail.counters;
        add("rail_sends", of_rail.sends);
        add("rail_send_bytes", of_rail.send_bytes);
        add("rail_receives", of_rail.receives);
        add("rail_receive_bytes", of_rail.receive_bytes);
        add("rail_timeouts", of_rail.timeouts);
        add("rail_drops", of_rail.dropped_in_all());
    }
    let relayed = fabric.relayed();
    // Of peers that are known no more, and pairs beyond the limit, it is not known any more which way.
    add("relay_others", relayed.others.messages);
    add("relay_other_bytes", relayed.others.bytes);
    for ([from, _, to], tally) in relayed.pairs {
        let Tally { messages, bytes } = tally;
        let (count, sum) = match (from, to) {
            (None, _) => ("relay_sends", "relay_send_bytes"),
            (_, None) => ("relay_receives", "relay_receive_bytes"),
            _ => ("relay_carried", "relay_carried_bytes"),
        };
        add(count, messages);
        add(sum, bytes);
    }
    add("unknown_peer_drops", fabric.unknown_peer_drops());
    add("no_path_drops", fabric.no_path_drops());
    add("under_way_drops", fabric.under_way_drops());
    add("rail_events_dropped", fabric.events_dropped());
    add("bulk_unfinished", fabric.bulk_unfinished());
    json!(sums)
}

/// So many peers behind so many others, with their NIDs and figures.
pub(super) fn peers(engine: &Engine, fabric: &Fabric, most: usize, behind: usize) -> Value {
    let names = names(engine);
    let all = fabric.peers(None, usize::MAX);
    let some = all.iter().skip(behind).take(most);
    let peers: Vec<Value> = some
        .filter_map(|peer| describe_peer(fabric, &names, *peer))
        .collect();
    json!({
        "schema": "muster/peers/v1",
        "behind": behind,
        "known": all.len(),
        "peers": peers,
    })
}

/// The rules in force, in their order.
pub(super) fn policy(document: &RailsDocument) -> Value {
    let patterns = |patterns: &[muster_fabric::NidPattern]| -> Vec<String> {
        patterns.iter().map(ToString::to_string).collect()
    };
    let rules = (1..).zip(document.policy.rules()).map(|(number, rule)| {
        let mut value = json!({
            "number": number,
            "about": rule.subject.to_string(),
            "priority": rule.priority,
            "messages": rule.messages,
        });
        match &rule.subject {
            Subject::Net(net) => value["net"] = net.to_string().into(),
            Subject::Local(local) => value["local"] = patterns(local).into(),
            Subject::Pairs { local, remote } => {
                value["local"] = patterns(local).into();
                value["remote"] = patterns(remote).into();
            }
        }
        value
    });
    json!({
        "schema": "muster/policy/v1",
        "numa_range": document.numa_range,
        "relay": switch_word(document.relay),
        "rules": rules.collect::<Vec<_>>(),
    })
}

/// Why a message from here to a peer takes the pair that it takes now.
pub(super) fn explain(engine: &Engine, fabric: &Fabric, from: Option<&str>, to: &str) -> Value {
    let own = engine.name_of(engine.id()).unwrap_or_default();
    let (local, (peer, remote)) =
        match (local_end(fabric, own, from), remote_end(engine, fabric, to)) {
            (Ok(local), Ok(remote)) => (local, remote),
            (Err(why), _) | (_, Err(why)) => return json!({ "error": why }),
        };
    let why = fabric.why(peer);
    let views = (fabric.rails(), fabric.paths(peer));
    let taken = why.taken.as_ref();
    let rail_of_taken = |(local, _): &(Nid, Nid)| views.0.iter().find(|rail| rail.nid == *local);
    let taken_rail = taken.and_then(rail_of_taken).map(|rail| rail.index);
    let locals = why.rails.iter().map(|(nid, lost)| {
        let view = views.0.iter().find(|rail| rail.nid == *nid);
        let figures = view.map(|rail| {
            (
                rail.state.word(),
                rail.health,
                rail.credits,
                rail.queued_bytes,
            )
        });
        let mut value = candidate(nid, *lost, figures);
        value["numa_node"] = view.and_then(|rail| rail.numa_node).into();
        value["traffic_class"] = view.map(|rail| rail.class.to_string()).into();
        value
    });
    let remotes = why.remotes.iter().map(|(nid, lost)| {
        let of_pair = |path: &&PathView| Some(path.rail) == taken_rail && path.nid == *nid;
        let view = views.1.iter().find(of_pair);
        let figures = view.map(|path| {
            (
                path.state.word(),
                path.health,
                path.credits,
                path.queued_bytes,
            )
        });
        candidate(nid, *lost, figures)
    });
    let names = names(engine);
    json!({
        "schema": "muster/explain/v1",
        "from": own,
        "to": fabric.nids(peer).and_then(|nids| name_of(&names, &nids)),
        "nids": texts(fabric.nids(peer).iter().flatten()),
        "taken": taken.map(|(local, remote)| json!({ "local": local.to_string(), "remote": remote.to_string() })),
        "pair": asked_pair(&why, local.as_ref(), remote.as_ref()),
        "rails": locals.collect::<Vec<_>>(),
        "remotes": remotes.collect::<Vec<_>>(),
        "relay": why.relay.as_ref().map(|through| relay(&names, through)),
    })
}

/// Through whom messages to a peer go as well, and why.
fn relay(names: &BTreeMap<Nid, String>, through: &Through) -> Value {
    let member = |(nid, lost): &(Nid, Option<&'static str>)| {
        json!({
            "name": names.get(nid),
            "nid": nid.to_string(),
            "taken": lost.is_none(),
            "why": lost,
        })
    };
    let members: Vec<Value> = through.members.iter().map(member).collect();
    json!({ "because": through.because, "off": through.off, "members": members })
}

/// What went through whom: by others for this node, and by this node for others.
pub(super) fn relays(engine: &Engine, fabric: &Fabric) -> Value {
    let own = engine.name_of(engine.id()).unwrap_or_default();
    let names = names(engine);
    let name = |nid: &Option<Nid>| match nid {
        None => own.to_owned(),
        Some(nid) => names.get(nid).cloned().unwrap_or_else(|| nid.to_string()),
    };
    let view = fabric.relayed();
    let pairs = view.pairs.iter().map(|([from, through, to], tally)| {
        json!({
            "from": name(from),
            "through": name(through),
            "to": name(to),
            "messages": tally.messages,
            "bytes": tally.bytes,
        })
    });
    json!({
        "schema": "muster/relays/v1",
        "relay": switch_word(view.on),
        "pairs": pairs.collect::<Vec<_>>(),
        "others": { "messages": view.others.messages, "bytes": view.others.bytes },
    })
}

/// The local end that was asked about: a rail, or any.
fn local_end(fabric: &Fabric, own: &str, from: Option<&str>) -> Result<Option<Nid>, String> {
    let Some(from) = from.filter(|from| *from != own) else {
        return Ok(None);
    };
    let nids = fabric.local_nids();
    let found = from
        .parse()
        .ok()
        .filter(|nid| nids.iter().any(|one| one == nid));
    found.map(Some).ok_or_else(|| {
        format!(
            "{from} is neither the name of this node ({own}) nor one of its rails ({nids}); what \
             another node sends is known there: ask its agent with --agent"
        )
    })
}

/// The peer that was asked about, and which of its NIDs, if it was named by one.
fn remote_end(
    engine: &Engine,
    fabric: &Fabric,
    to: &str,
) -> Result<(PeerHandle, Option<Nid>), String> {
    if engine.name_of(engine.id()) == Some(to) {
        return Err(format!("{to} is this node itself; no rail leads there"));
    }
    let member = engine.member(MemberId::of(to));
    let nids: Option<NidList> = match &member {
        Some(member) => String::from_utf8_lossy(member.address()).parse().ok(),
        None => to.parse().ok(),
    };
    let has = |handle: &PeerHandle| {
        let list = fabric.nids(*handle);
        let wanted = nids.iter().flatten();
        list.is_some_and(|list| wanted.clone().any(|nid| list.iter().any(|one| one == nid)))
    };
    let found = fabric.peers(None, usize::MAX).into_iter().find(has);
    let handle = found.ok_or_else(|| match member {
        Some(_) => {
            format!("{to} is a member, but no rail of this node leads to it; see muster rails")
        }
        None => format!("no member and no NID {to} is known; see muster peers"),
    })?;
    let named_by_nid = member.is_none().then(|| to.parse().ok()).flatten();
    Ok((handle, named_by_nid))
}

/// What became of the pair that was asked about, where one or both ends are NIDs.
fn asked_pair(why: &Why, local: Option<&Nid>, remote: Option<&Nid>) -> Value {
    if local.is_none() && remote.is_none() {
        return Value::Null;
    }
    let lost = |side: &[(Nid, Option<&'static str>)], nid: &Nid| {
        side.iter()
            .find(|(one, _)| one == nid)
            .map(|(_, lost)| *lost)
    };
    let reason = match (local, remote) {
        (Some(local), Some(remote)) if local.net != remote.net => {
            Some("the two are not on one net")
        }
        _ => {
            let of_local = local
                .map(|nid| lost(&why.rails, nid).unwrap_or(Some("it does not lead to this peer")));
            let of_remote = remote.map(|nid| {
                lost(&why.remotes, nid)
                    .unwrap_or(Some("the rail that is taken does not lead there"))
            });
            of_local.flatten().or(of_remote.flatten())
        }
    };
    json!({
        "local": local.map(Nid::to_string),
        "remote": remote.map(Nid::to_string),
        "taken": reason.is_none() && why.taken.is_some(),
        "why": reason,
    })
}

type Figures = (&'static str, u16, Credits, u64);

fn candidate(nid: &Nid, lost: Option<&'static str>, figures: Option<Figures>) -> Value {
    json!({
        "nid": nid.to_string(),
        "net": nid.net.to_string(),
        "taken": lost.is_none(),
        "why": lost,
        "state": figures.map(|figures| figures.0),
        "health": figures.map(|figures| figures.1),
        "credits": figures.map(|figures| credits(figures.2)),
        "queued_bytes": figures.map(|figures| figures.3),
    })
}

fn rail(rail: &RailView) -> Value {
    let mut value = counters(&rail.counters);
    let own = json!({
        "nid": rail.nid.to_string(),
        "net": rail.nid.net.to_string(),
        "interface": rail.interface,
        "provider": rail.provider,
        "traffic_class": rail.class.to_string(),
        "state": rail.state.word(),
        "health": rail.health,
        "mtu": rail.mtu,
        "credits": credits(rail.credits),
        "queued_bytes": rail.queued_bytes,
        "numa_node": rail.numa_node,
        "partitions": rail.partitions,
        "usage": rail.usage,
    });
    merge(&mut value, own);
    value
}

/// A rail that is configured and not open: nothing goes by it.
fn missing_rail((nid, reason): &(Nid, String)) -> Value {
    let mut value = counters(&Counters::default());
    let own = json!({
        "nid": nid.to_string(),
        "net": nid.net.to_string(),
        "state": HealthState::Failed.word(),
        "reason": reason,
        "health": 0,
        "usage": 0,
    });
    merge(&mut value, own);
    value
}

fn describe_peer(
    fabric: &Fabric,
    names: &BTreeMap<Nid, String>,
    peer: PeerHandle,
) -> Option<Value> {
    let nids = fabric.nids(peer)?;
    let paths = fabric.paths(peer);
    let rails = fabric.rails();
    let view = PeerView::of(&paths);
    let mut value = path_counters(&view.counters);
    value["name"] = name_of(names, &nids).into();
    value["nids"] = nids
        .iter()
        .map(|nid| match view.nids.iter().find(|one| one.nid == *nid) {
            Some(view) => peer_nid(&rails, &paths, view),
            // On a net that this node is not on, or paired with none of its rails so far.
            None => json!({ "nid": nid.to_string(), "state": "unused", "rails": [] }),
        })
        .collect();
    Some(value)
}

fn peer_nid(rails: &[RailView], paths: &[PathView], view: &PeerNidView) -> Value {
    let local = |index: &usize| rails.iter().find(|rail| rail.index == *index);
    let health = paths.iter().filter(|path| path.nid == view.nid);
    let mut value = path_counters(&view.counters);
    let own = json!({
        "nid": view.nid.to_string(),
        "state": view.state.word(),
        "health": health.map(|path| path.health).max(),
        "rails": texts(view.rails.iter().filter_map(local).map(|rail| &rail.nid)),
        "credits": credits(view.credits),
        "queued_bytes": view.queued_bytes,
        "usage": view.usage,
    });
    merge(&mut value, own);
    value
}

fn counters(counters: &Counters) -> Value {
    let drops: Map<String, Value> = DropReason::ALL
        .into_iter()
        .map(|reason| (reason.word().to_owned(), counters.dropped(reason).into()))
        .collect();
    json!({
        "sends": counters.sends,
        "send_bytes": counters.send_bytes,
        "receives": counters.receives,
        "receive_bytes": counters.receive_bytes,
        "timeouts": counters.timeouts,
        "drops": drops,
    })
}

/// Of a peer or one of its NIDs, of which the fabric does not keep how many bytes came.
fn path_counters(of: &Counters) -> Value {
    let mut value = counters(of);
    value["receive_bytes"] = Value::Null;
    value
}

fn credits(credits: Credits) -> Value {
    json!({ "now": credits.now, "least": credits.least, "most": credits.most })
}

fn merge(value: &mut Value, other: Value) {
    if let (Value::Object(value), Value::Object(other)) = (value, other) {
        value.extend(other);
    }
}

fn texts<'a>(nids: impl Iterator<Item = &'a Nid>) -> Vec<String> {
    nids.map(Nid::to_string).collect()
}

/// Whose each NID is, by what members say.
fn names(engine: &Engine) -> BTreeMap<Nid, String> {
    let mut names = BTreeMap::new();
    for member in engine.members() {
        let nids = String::from_utf8_lossy(member.address()).parse::<NidList>();
        for nid in nids.iter().flatten() {
            names.insert(nid.clone(), member.name().to_owned());
        }
    }
    names
}

fn name_of(names: &BTreeMap<Nid, String>, nids: &NidList) -> Option<String> {
    nids.iter().find_map(|nid| names.get(nid).cloned())
}
