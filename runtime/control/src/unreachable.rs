//! Reasons why two agents never become members of one job.
//!
//! A frame that is not authenticated with the job key is dropped and not answered. So each side reports what it can
//! know: that it rejects frames of a sender, that its join requests are not answered, or that it has no key yet.
//! `muster members` prints these findings below its table, and `muster doctor` among its own.

use muster_fabric::NidList;
use muster_protocol::{Engine, Reject};
use serde_json::{Value, json};
use std::time::Duration;

/// Peers that one sentence names; it counts further ones.
const NAMED_MAX: usize = 4;
/// Seeds in an answer.
const SEEDS_MAX: usize = 64;

/// A sender of frames with another key. Everything but the times is what it states itself, and not verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnauthenticatedSender {
    /// The name that it gives itself.
    pub name: String,
    /// Its NIDs.
    pub address: String,
    /// It was a member, or has an address of the bootstrap list: it should have our key.
    pub expected: bool,
    /// Time since its first rejected frame.
    pub since: Duration,
    /// Time since its last rejected frame.
    pub last: Duration,
}

/// A reason why other agents are not reached, and the remedy.
#[derive(Debug, PartialEq, Eq)]
pub struct Obstacle {
    /// Whether it is an error: an expected member is missing. Else it is a warning.
    pub is_error: bool,
    /// What was found.
    pub found: String,
    /// What to do about it.
    pub remedy: String,
}

/// The findings of this agent as JSON.
pub(super) fn value(engine: &Engine, senders: &[UnauthenticatedSender]) -> Value {
    let peer = |one: &UnauthenticatedSender| {
        json!({
            "name": one.name,
            "address": one.address,
            "expected": one.expected,
            "since_ms_ago": one.since.as_millis() as u64,
            "last_ms_ago": one.last.as_millis() as u64,
        })
    };
    json!({
        "has_key": engine.has_key(),
        "frames_of_another_key": engine.counters().rejected(Reject::Forged),
        "another_key": senders.iter().map(peer).collect::<Vec<_>>(),
        "unanswered": unanswered(engine, senders),
    })
}

/// Addresses that this agent, if it is alone, asks to join and that never answered.
fn unanswered(engine: &Engine, senders: &[UnauthenticatedSender]) -> Vec<String> {
    // Of those whose parameters differ an event says so, and they do answer.
    let is_refused = engine.counters().rejected(Reject::Parameters) > 0;
    if engine.live() > 1 || !engine.has_key() || is_refused {
        return Vec::new();
    }
    let nids = |text: &[u8]| str::from_utf8(text).ok()?.parse::<NidList>().ok();
    let members = engine.members().map(|one| one.address());
    let known: Vec<NidList> = members
        .chain(senders.iter().map(|one| one.address.as_bytes()))
        .filter_map(nids)
        .collect();
    let is_known = |seed: &NidList| {
        let mut known = known.iter().flat_map(NidList::iter);
        known.any(|nid| seed.iter().any(|one| one == nid))
    };
    let seeds = engine.seeds().filter_map(nids);
    let seeds = seeds.filter(|seed| !is_known(seed)).take(SEEDS_MAX);
    seeds.map(|seed| seed.to_string()).collect()
}

/// The same findings as text, from an answer to `members`.
pub fn obstacles(members: &Value) -> Vec<Obstacle> {
    let found = &members["unreachable"];
    let node = members["self"].as_str().unwrap_or("this node");
    // That explains all the rest, and no firewall is to blame.
    if members["outcast"] == true {
        return vec![outcast(node)];
    }
    let senders = found["another_key"]
        .as_array()
        .map_or(&[][..], Vec::as_slice);
    let of = |expected: bool| {
        let of = senders.iter().filter(|one| one["expected"] == expected);
        of.collect::<Vec<_>>()
    };
    let addresses = found["unanswered"].as_array().into_iter().flatten();
    let addresses: Vec<String> = addresses
        .filter_map(Value::as_str)
        .map(str::to_owned)
        .collect();
    let keyless = (found["has_key"] == false).then(|| without_key(node));
    let rejected = [true, false]
        .into_iter()
        .filter_map(|expected| rejected(node, expected, &of(expected)));
    let alone = (!addresses.is_empty()).then(|| alone(node, &addresses));
    keyless.into_iter().chain(rejected).chain(alone).collect()
}

const ONE_KEY: &str = "give both one key (--key-file or MUSTER_KEY_FILE with the same content; where there is none, it \
    is the file key in each one's MUSTER_DIR), and start the one that had the wrong key anew";

fn rejected(node: &str, expected: bool, senders: &[&Value]) -> Option<Obstacle> {
    let text = |one: &Value, key: &str| one[key].as_str().unwrap_or("-").to_owned();
    let names = senders.iter();
    let names = names.map(|one| format!("{} ({})", text(one, "name"), text(one, "address")));
    let names = some_of(&names.collect::<Vec<_>>());
    let last = senders.iter().filter_map(|one| one["last_ms_ago"].as_u64());
    let last_s = last.min()? as f64 / 1000.0;
    let found = format!(
        "frames from {names} are rejected at {node}: they prove another job key; the last came {last_s:.1} s ago"
    );
    Some(match expected {
        true => Obstacle {
            is_error: true,
            found,
            remedy: ONE_KEY.to_owned(),
        },
        false => Obstacle {
            is_error: false,
            found: found + ", and their sender is not expected here",
            remedy: format!(
                "if it is of this job, {ONE_KEY}; if not, take the address of {node} out of its seeds"
            ),
        },
    })
}

fn without_key(node: &str) -> Obstacle {
    Obstacle {
        is_error: false,
        found: format!("{node} has no job key yet, and accepts no frames"),
        remedy: "see whether the job's rank 0 has come to its agent: it brings the key to all; or name a file that has \
                 it, with MUSTER_KEY_FILE"
            .to_owned(),
    }
}

fn outcast(node: &str) -> Obstacle {
    Obstacle {
        is_error: true,
        found: format!("{node}: the others have given this node up (outcast); what its agent knows of them is old"),
        remedy: "ask the agent of another node, and muster why there for the reason; to have this node back, end what \
                 is left of the job on it and start it anew"
            .to_owned(),
    }
}

fn alone(node: &str, addresses: &[String]) -> Obstacle {
    Obstacle {
        is_error: false,
        found: format!("{node} is alone: no answer from {}", some_of(addresses)),
        remedy: "see that an agent runs there; that it has the same key, since one with another gives no answer (its \
                 own muster doctor says so); and that the firewall lets the ports of the rail pass, P and P+1 (7741 \
                 and 7742)"
            .to_owned(),
    }
}

fn some_of(all: &[String]) -> String {
    let named = all[..all.len().min(NAMED_MAX)].join(", ");
    match all.len().saturating_sub(NAMED_MAX) {
        0 => named,
        more => format!("{named} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn members(unreachable: &Value) -> Value {
        json!({ "self": "n1", "unreachable": unreachable })
    }

    fn outsider(number: u64, expected: bool) -> Value {
        json!({ "name": format!("n{number}"), "address": format!("10.0.0.{number}@udp0"), "expected": expected,
            "last_ms_ago": 400 * number })
    }

    #[test]
    fn a_missing_member_is_an_error_and_many_are_one() {
        let all: Vec<Value> = (2..9).map(|number| outsider(number, true)).collect();
        let found = obstacles(&members(&json!({ "has_key": true, "another_key": all })));
        assert_eq!(found.len(), 1);
        assert!(found[0].is_error);
        assert_eq!(
            found[0].found,
            "frames from n2 (10.0.0.2@udp0), n3 (10.0.0.3@udp0), n4 (10.0.0.4@udp0), n5 (10.0.0.5@udp0) and 3 more \
             are rejected at n1: they prove another job key; the last came 0.8 s ago"
        );
        assert!(found[0].remedy.starts_with("give both one key"));
    }

    #[test]
    fn an_unexpected_sender_no_key_and_no_answer_are_warnings() {
        let one = [outsider(7, false)];
        let found = obstacles(&members(
            &json!({ "has_key": false, "another_key": one, "unanswered": ["a@udp0"] }),
        ));
        let found: Vec<(bool, &str)> = found
            .iter()
            .map(|one| (one.is_error, one.found.as_str()))
            .collect();
        assert_eq!(found.len(), 3);
        assert!(found.iter().all(|(is_error, _)| !is_error));
        assert_eq!(found[0].1, "n1 has no job key yet, and accepts no frames");
        assert!(
            found[1].1.ends_with("their sender is not expected here"),
            "{found:?}"
        );
        assert_eq!(found[2].1, "n1 is alone: no answer from a@udp0");
    }

    #[test]
    fn an_outcast_is_told_so_and_not_to_look_at_its_firewall() {
        let unreachable = json!({ "has_key": true, "another_key": [outsider(7, true)], "unanswered": ["a@udp0"] });
        let mut members = members(&unreachable);
        members["outcast"] = true.into();
        let found = obstacles(&members);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(
            found[0].is_error
                && found[0]
                    .found
                    .starts_with("n1: the others have given this node up (outcast)")
        );
        assert!(!found[0].remedy.contains("firewall"));
        members["outcast"] = false.into();
        assert_eq!(obstacles(&members).len(), 2);
    }

    #[test]
    fn an_answer_of_an_older_release_says_nothing() {
        assert_eq!(obstacles(&json!({ "self": "n1" })), []);
        assert_eq!(
            obstacles(&members(
                &json!({ "has_key": true, "another_key": [], "unanswered": [] })
            )),
            []
        );
    }
}
