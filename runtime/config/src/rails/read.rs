//! Reads the document, and checks it.

use super::super::yaml::{self, Key, Node, Place, Value, YamlError};
use super::{RailEntry, RailsDocument, SUBJECTS, VERSION, subject};
use muster_fabric::{
    Address, HealthConfig, NIDS_MAX, Net, NetKind, Nid, NidList, NidPattern, Policy, Rule, Timeouts,
};
use std::collections::BTreeMap;

/// The maximum number of peers in a document.
const PEERS_MAX: usize = 65_536;

/// The maximum number of CPU partitions of one rail.
const PARTITIONS_MAX: usize = 1024;

impl RailsDocument {
    /// Parses a document. Missing keys have their defaults.
    ///
    /// # Errors
    /// The first error, with its line and column.
    pub fn import(text: &str) -> Result<RailsDocument, YamlError> {
        let root = yaml::parse(text)?;
        let mut document = RailsDocument::default();
        let mut version = None;
        for (key, node) in map(&root)? {
            match key.name.as_str() {
                "version" => version = Some(number::<u32>(node)?),
                "nets" => document.rails = nets(node)?,
                "peers" => document.peers = peers(node)?,
                "numa_range" => document.numa_range = number(node)?,
                "relay" => document.relay = switch(node)?,
                "health" => document.health = health(node)?,
                "policy" => document.policy = policy(node)?,
                "timeouts" => document.timeouts = timeouts(node)?,
                _ => {
                    let known = "version, nets, peers, numa_range, relay, health, policy, timeouts";
                    return Err(unknown(key, known));
                }
            }
        }
        match version {
            Some(VERSION) => Ok(document),
            Some(other) => {
                let reason = format!(
                    "version {other} is not supported; this program reads version {VERSION}"
                );
                Err(root.place.error(reason))
            }
            None => Err(root.place.error(format!(
                "the key version is missing; write version: {VERSION}"
            ))),
        }
    }
}

fn unknown(key: &Key, known: &str) -> YamlError {
    key.place.error(format!(
        "the key {:?} is not known here; known are {known}",
        key.name
    ))
}

fn map(node: &Node) -> Result<&[(Key, Node)], YamlError> {
    match &node.value {
        Value::Map(entries) => Ok(entries),
        _ => Err(node.place.error("keys and values are expected here")),
    }
}

fn items(node: &Node) -> Result<&[Node], YamlError> {
    match &node.value {
        Value::List(items) => Ok(items),
        _ => Err(node.place.error("a list is expected here, as in [a, b]")),
    }
}

fn text(node: &Node) -> Result<&str, YamlError> {
    match &node.value {
        Value::Text(text) => Ok(text),
        _ => Err(node.place.error("a single value is expected here")),
    }
}

fn number<T: std::str::FromStr>(node: &Node) -> Result<T, YamlError> {
    let digits = text(node)?;
    let plain = digits.bytes().all(|byte| byte.is_ascii_digit());
    let parsed = digits.parse().ok().filter(|_| plain);
    parsed.ok_or_else(|| {
        node.place.error(format!(
            "{digits:?} is not a number from 0 to {}",
            u64::MAX >> (u64::BITS - 8 * size_of::<T>() as u32)
        ))
    })
}

fn switch(node: &Node) -> Result<bool, YamlError> {
    match text(node)? {
        "on" => Ok(true),
        "off" => Ok(false),
        other => Err(node.place.error(format!("{other:?} is neither on nor off"))),
    }
}

/// A value that its type parses.
fn parsed<T>(node: &Node) -> Result<T, YamlError>
where
    T: std::str::FromStr,
    T::Err: std::fmt::Display,
{
    text(node)?
        .parse()
        .map_err(|error: T::Err| node.place.error(error.to_string()))
}

/// The value of a required key.
fn needed<T>(value: Option<T>, name: &str, place: Place) -> Result<T, YamlError> {
    value.ok_or_else(|| place.error(format!("the key {name} is missing here")))
}

/// Whether two rails are of one interface.
fn is_same(one: &Nid, other: &Nid) -> bool {
    one.address == other.address && one.net.kind.shares_devices(other.net.kind)
}

/// Why agents have no psm rails. The times are those of libfabric's psm providers.
const NO_PSM: &str = "agents have no psm rails, since a send to a lost node blocks for up to 10 s and then ends the \
     process; use udp, tcp or o2ib on the same adapter";

fn nets(node: &Node) -> Result<Vec<RailEntry>, YamlError> {
    let mut all: Vec<RailEntry> = Vec::new();
    for entry in items(node)? {
        let (mut net, mut rails): (Option<Net>, Option<&Node>) = (None, None);
        for (key, node) in map(entry)? {
            match key.name.as_str() {
                "net" => net = Some(parsed(node)?),
                "rails" => rails = Some(node),
                _ => return Err(unknown(key, "net, rails")),
            }
        }
        let net = needed(net, "net", entry.place)?;
        for item in items(needed(rails, "rails", entry.place)?)? {
            let rail = rail(item)?;
            if rail.nid.net != net {
                let reason = format!(
                    "{} is listed under the net {net}, but is on another",
                    rail.nid
                );
                return Err(item.place.error(reason));
            }
            if net.kind == NetKind::Psm {
                return Err(item.place.error(format!("{}: {NO_PSM}", rail.nid)));
            }
            if let Some(other) = all.iter().find(|other| is_same(&other.nid, &rail.nid)) {
                let problem = match other.nid == rail.nid {
                    true => format!("{} is listed twice", rail.nid),
                    false => format!("{} is the same interface as {}", rail.nid, other.nid),
                };
                let reason = format!("{problem}; name each interface once");
                return Err(item.place.error(reason));
            }
            if all.len() >= NIDS_MAX {
                return Err(item
                    .place
                    .error(format!("at most {NIDS_MAX} rails are allowed")));
            }
            all.push(rail);
        }
    }
    Ok(all)
}

fn rail(node: &Node) -> Result<RailEntry, YamlError> {
    let (mut nid, mut partitions) = (None, Vec::new());
    for (key, node) in map(node)? {
        match key.name.as_str() {
            "nid" => nid = Some(parsed(node)?),
            "partitions" => {
                let given = items(node)?;
                if given.len() > PARTITIONS_MAX {
                    return Err(node
                        .place
                        .error(format!("at most {PARTITIONS_MAX} partitions are allowed")));
                }
                partitions = given.iter().map(number).collect::<Result<Vec<u32>, _>>()?;
            }
            _ => return Err(unknown(key, "nid, partitions")),
        }
    }
    Ok(RailEntry {
        nid: needed(nid, "nid", node.place)?,
        partitions,
    })
}

fn peers(node: &Node) -> Result<Vec<NidList>, YamlError> {
    let mut peers = Vec::new();
    let mut seen: BTreeMap<Nid, usize> = BTreeMap::new();
    for entry in items(node)? {
        let mut nids = None;
        for (key, node) in map(entry)? {
            match key.name.as_str() {
                "nids" => nids = Some(node),
                _ => return Err(unknown(key, "nids")),
            }
        }
        let node = needed(nids, "nids", entry.place)?;
        let mut list: Vec<Nid> = Vec::new();
        for item in items(node)? {
            let nid: Nid = parsed(item)?;
            if matches!(nid.address, Address::Interface(_)) {
                let reason =
                    format!("{nid} names an interface of this node; a peer's NID needs an address");
                return Err(item.place.error(reason));
            }
            if let Some(line) = seen.insert(nid.clone(), item.place.line) {
                let reason = format!(
                    "{nid} belongs to the peer in line {line} already; a NID has one owner"
                );
                return Err(item.place.error(reason));
            }
            list.push(nid);
        }
        peers.push(NidList::new(list).map_err(|error| node.place.error(error.to_string()))?);
        if peers.len() > PEERS_MAX {
            return Err(entry
                .place
                .error(format!("at most {PEERS_MAX} peers are allowed")));
        }
    }
    Ok(peers)
}

fn health(node: &Node) -> Result<HealthConfig, YamlError> {
    let mut health = HealthConfig::default();
    for (key, node) in map(node)? {
        match key.name.as_str() {
            "sensitivity" => health.sensitivity = number(node)?,
            "recovery" => health.recovery = number(node)?,
            "shun_below" => health.shun_below = number(node)?,
            "pause_min_us" => health.pause_min_us = number(node)?,
            "pause_max_us" => health.pause_max_us = number(node)?,
            _ => {
                let known = "sensitivity, recovery, shun_below, pause_min_us, pause_max_us";
                return Err(unknown(key, known));
            }
        }
    }
    match health.fault() {
        None => Ok(health),
        Some(reason) => Err(node.place.error(reason)),
    }
}

fn timeouts(node: &Node) -> Result<Timeouts, YamlError> {
    let mut times = Timeouts::default();
    for (key, node) in map(node)? {
        match key.name.as_str() {
            "transport_us" => times.transport_us = number(node)?,
            "retry_us" => times.retry_us = number(node)?,
            "reply_us" => times.reply_us = number(node)?,
            // 0 means no limit, as everywhere.
            "upper_us" => times.upper_us = Some(number(node)?).filter(|upper_us| *upper_us > 0),
            "retries_max" => times.retries_max = number(node)?,
            _ => {
                let known = "transport_us, retry_us, reply_us, upper_us, retries_max";
                return Err(unknown(key, known));
            }
        }
    }
    match times.fault() {
        None => Ok(times),
        Some(reason) => Err(node.place.error(reason)),
    }
}

fn policy(node: &Node) -> Result<Policy, YamlError> {
    let rules: Result<Vec<Rule>, YamlError> = items(node)?.iter().map(rule).collect();
    Policy::new(rules?).map_err(|error| node.place.error(error.to_string()))
}

fn rule(node: &Node) -> Result<Rule, YamlError> {
    let (mut net, mut local, mut remote) = (None, Vec::new(), Vec::new());
    let (mut priority, mut messages) = (0, None);
    let patterns = |node: &Node| -> Result<Vec<NidPattern>, YamlError> {
        items(node)?.iter().map(parsed).collect()
    };
    for (key, node) in map(node)? {
        match key.name.as_str() {
            "net" => net = Some(parsed(node)?),
            "local" => local = patterns(node)?,
            "remote" => remote = patterns(node)?,
            "priority" => priority = number(node)?,
            "messages" => messages = Some(number(node)?),
            _ => return Err(unknown(key, "net, local, remote, priority, messages")),
        }
    }
    let subject = subject(net, local, remote).ok_or_else(|| node.place.error(SUBJECTS))?;
    Ok(Rule {
        subject,
        priority,
        messages,
    })
}
