//! Changes of the rails' configuration: each is a line of text, and turns one document into the next.
//!
//! If a change is refused, the error has the value, the reason and the remedy, and the document is not changed. The
//! agent applies a change to its open rails; this module opens nothing.

use super::SEEDS_MAX;
use super::change_error::ChangeError;
use super::peers::{add_peers, all_peers_of, remove_peers};
use super::rails::{RailEntry, RailsDocument};
use muster_fabric::{NIDS_MAX, Net, Nid, NidList, PORT_DEFAULT, Policy, Rule, Subject};
use std::collections::BTreeSet;

/// A change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Open one more rail.
    AddRail(RailEntry),
    /// Close a rail.
    RemoveRail(Nid),
    /// Change the CPU partitions of a rail; none means all.
    SetRail(RailEntry),
    /// Change limits, each by its name in the document.
    SetLimits(Vec<(Limit, u64)>),
    /// Add peers, written with ranges. Commas separate the NIDs of one peer, spaces separate peers. A list that
    /// has all NIDs of a known peer replaces that peer.
    AddPeers(String),
    /// Remove NIDs of peers, written in the same way; a peer without NIDs is removed.
    RemovePeers(String),
    /// Add a rule to the policy.
    AddRule(Rule),
    /// Remove a rule from the policy.
    RemoveRule(RuleChoice),
    /// Switch relaying through other members on or off.
    SetRelay(bool),
    /// Replace the whole document.
    Replace(Box<RailsDocument>),
}

/// Identifies a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RuleChoice {
    /// By its number in the policy, from 1.
    Number(usize),
    /// By its subject.
    About(Subject),
}

/// A number that can be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// Rails up to this NUMA distance count as near as the nearest.
    NumaRange,
    /// How much an error reduces the health.
    Sensitivity,
    /// How much a success restores it.
    Recovery,
    /// Below this health, healthier ones are preferred.
    ShunBelow,
    /// First pause before a failed path is tried again, microseconds.
    PauseMinUs,
    /// Longest such pause, microseconds.
    PauseMaxUs,
    /// A bulk message without an acknowledgement takes another path after this time, microseconds.
    TransportUs,
    /// A bulk message without progress fails after this time, microseconds.
    RetryUs,
    /// A partly received message is dropped after this time, microseconds.
    ReplyUs,
    /// How long users of the fabric wait for an answer, microseconds; 0: no limit.
    UpperUs,
    /// How often a bulk message without progress is sent again.
    RetriesMax,
}

impl Limit {
    /// All limits, in the order of the document.
    pub const ALL: [Limit; 11] = [
        Limit::NumaRange,
        Limit::Sensitivity,
        Limit::Recovery,
        Limit::ShunBelow,
        Limit::PauseMinUs,
        Limit::PauseMaxUs,
        Limit::TransportUs,
        Limit::RetryUs,
        Limit::ReplyUs,
        Limit::UpperUs,
        Limit::RetriesMax,
    ];

    /// Its name, as in the document.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Limit::NumaRange => "numa_range",
            Limit::Sensitivity => "sensitivity",
            Limit::Recovery => "recovery",
            Limit::ShunBelow => "shun_below",
            Limit::PauseMinUs => "pause_min_us",
            Limit::PauseMaxUs => "pause_max_us",
            Limit::TransportUs => "transport_us",
            Limit::RetryUs => "retry_us",
            Limit::ReplyUs => "reply_us",
            Limit::UpperUs => "upper_us",
            Limit::RetriesMax => "retries_max",
        }
    }
}

impl Change {
    /// The document after the change. `open` are the current NIDs of the document's rails, in its
    /// order: a rail may be named by its configured NID or by its current one.
    ///
    /// # Errors
    /// See [`ChangeError`].
    pub fn onto(
        &self,
        document: &RailsDocument,
        open: &[Nid],
    ) -> Result<RailsDocument, ChangeError> {
        let mut next = document.clone();
        match self {
            Change::AddRail(entry) => {
                if index_of(document, open, &entry.nid).is_some() {
                    let nid = entry.nid.to_string();
                    return Err(ChangeError::RailTwice { nid });
                }
                if next.rails.len() >= NIDS_MAX {
                    return Err(ChangeError::ManyRails);
                }
                next.rails.push(entry.clone());
            }
            Change::RemoveRail(nid) => {
                let place = known_index(document, open, nid)?;
                if next.rails.len() == 1 {
                    let nid = nid.to_string();
                    return Err(ChangeError::LastRail { nid });
                }
                next.rails.remove(place);
            }
            Change::SetRail(entry) => {
                let place = known_index(document, open, &entry.nid)?;
                next.rails[place].partitions.clone_from(&entry.partitions);
            }
            Change::SetLimits(limits) => {
                limits
                    .iter()
                    .try_for_each(|(limit, value)| set(&mut next, *limit, *value))?;
                if let Some(fault) = next.health.fault().or_else(|| next.timeouts.fault()) {
                    return Err(ChangeError::Limit(fault));
                }
            }
            Change::AddPeers(text) => add_peers(&mut next, all_peers_of(text)?)?,
            Change::RemovePeers(text) => remove_peers(&mut next, &all_peers_of(text)?)?,
            Change::AddRule(rule) => {
                let mut rules = next.policy.rules().to_vec();
                rules.push(rule.clone());
                next.policy = Policy::new(rules)?;
            }
            Change::RemoveRule(choice) => {
                let mut rules = next.policy.rules().to_vec();
                let count = rules.len();
                let (place, rule) = match choice {
                    RuleChoice::Number(number) => (number.checked_sub(1), format!("rule {number}")),
                    RuleChoice::About(subject) => (
                        rules.iter().position(|rule| rule.subject == *subject),
                        format!("a rule about {subject}"),
                    ),
                };
                let place = place.filter(|place| *place < count);
                rules.remove(place.ok_or(ChangeError::NoSuchRule { rule, count })?);
                next.policy = Policy::new(rules)?;
            }
            Change::SetRelay(on) => next.relay = *on,
            Change::Replace(document) => next = (**document).clone(),
        }
        if next.rails.is_empty() {
            return Err(ChangeError::NoRail);
        }
        let count = next.peers.len();
        if count > SEEDS_MAX && count > document.peers.len() {
            return Err(ChangeError::ManyPeers { count });
        }
        next.group_by_net();
        let known: BTreeSet<&NidList> = document.peers.iter().collect();
        let is_lost = |peer: &&NidList| !is_reachable(&next, peer) && !known.contains(*peer);
        match next.peers.iter().find(is_lost) {
            None => self.readable(next),
            Some(peer) => Err(ChangeError::NoCommonNet {
                peer: peer.to_string(),
                nets: nets_of(&next),
            }),
        }
    }

    /// The document, if it can be read back. An imported one can.
    fn readable(&self, next: RailsDocument) -> Result<RailsDocument, ChangeError> {
        if matches!(self, Change::Replace(_)) {
            return Ok(next);
        }
        next.check().map_err(ChangeError::Unreadable)?;
        Ok(next)
    }
}

fn is_reachable(document: &RailsDocument, peer: &NidList) -> bool {
    let has = |net: Net| document.rails.iter().any(|rail| rail.nid.net == net);
    peer.iter().any(|nid| has(nid.net))
}

fn nets_of(document: &RailsDocument) -> String {
    let mut nets: Vec<String> = document
        .rails
        .iter()
        .map(|rail| rail.nid.net.to_string())
        .collect();
    nets.dedup();
    nets.join(", ")
}

/// The index of a rail in the document. A NID without a port matches any port: an address is one rail.
fn index_of(document: &RailsDocument, open: &[Nid], nid: &Nid) -> Option<usize> {
    let same = |one: &Nid| {
        one.address == nid.address
            && one.net == nid.net
            && (one.port == nid.port || nid.port == PORT_DEFAULT)
    };
    let configured = document.rails.iter().position(|entry| same(&entry.nid));
    configured.or_else(|| open.iter().position(same))
}

fn known_index(document: &RailsDocument, open: &[Nid], nid: &Nid) -> Result<usize, ChangeError> {
    index_of(document, open, nid).ok_or_else(|| {
        let known: Vec<String> = open.iter().map(Nid::to_string).collect();
        ChangeError::NoSuchRail {
            nid: nid.to_string(),
            known: known.join(", "),
        }
    })
}

fn set(document: &mut RailsDocument, limit: Limit, value: u64) -> Result<(), ChangeError> {
    let (health, times) = (&mut document.health, &mut document.timeouts);
    let large = |most: u64| {
        let word = limit.word();
        ChangeError::Limit(format!(
            "{word} {value} is too large; it may be at most {most}"
        ))
    };
    let small = || u16::try_from(value).map_err(|_| large(u16::MAX.into()));
    let middle = || u32::try_from(value).map_err(|_| large(u32::MAX.into()));
    match limit {
        Limit::NumaRange => document.numa_range = middle()?,
        Limit::Sensitivity => health.sensitivity = small()?,
        Limit::Recovery => health.recovery = small()?,
        Limit::ShunBelow => health.shun_below = small()?,
        Limit::PauseMinUs => health.pause_min_us = value,
        Limit::PauseMaxUs => health.pause_max_us = value,
        Limit::TransportUs => times.transport_us = value,
        Limit::RetryUs => times.retry_us = value,
        Limit::ReplyUs => times.reply_us = value,
        Limit::UpperUs => times.upper_us = (value > 0).then_some(value),
        Limit::RetriesMax => times.retries_max = middle()?,
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document() -> RailsDocument {
        let text = "version: 1\nnets:\n  - net: udp0\n    rails:\n      - nid: 10.0.0.1:0@udp0\n\
                    peers:\n  - nids: [10.0.0.2@udp0, 10.1.0.2@tcp0]\n";
        RailsDocument::import(text).unwrap()
    }

    fn open() -> Vec<Nid> {
        vec!["10.0.0.1:4711@udp0".parse().unwrap()]
    }

    fn make(line: &str) -> Result<RailsDocument, ChangeError> {
        line.parse::<Change>()?.onto(&document(), &open())
    }

    /// cfg-060, cfg-070, cfg-160: the document has the change that a line requests.
    #[test]
    fn a_line_changes_the_document() {
        for (line, there) in [
            (
                "rails add eth1@tcp0 partitions=0,3",
                "nid: eth1@tcp0\n        partitions: [0, 3]",
            ),
            (
                "rails set 10.0.0.1:4711@udp0 partitions=1",
                "partitions: [1]",
            ),
            (
                "rails set 10.0.0.1@udp0 partitions=1",
                "nid: 10.0.0.1:0@udp0\n        partitions",
            ),
            ("limits set numa_range=21 sensitivity=7", "sensitivity: 7"),
            (
                "peers add 10.0.0.[3-4]@udp0,10.1.0.[3-4]@tcp0",
                "[10.0.0.4@udp0, 10.1.0.4@tcp0]",
            ),
            (
                "peers add 10.0.0.2@udp0,10.1.0.2@tcp0,10.2.0.2@udp1",
                "10.1.0.2@tcp0, 10.2.0.2@udp1]",
            ),
            ("peers del 10.1.0.2@tcp0", "- nids: [10.0.0.2@udp0]"),
            ("peers del 10.0.0.2@udp0,10.1.0.2@tcp0", "peers: []"),
            ("policy relay off", "relay: off"),
            ("policy relay on", "relay: on"),
            (
                "policy add net=udp0 priority=3 messages=9",
                "- net: udp0\n    priority: 3\n    messages: 9",
            ),
            (
                "policy add local=10.0.0.[1,3]@udp0 remote=*@udp0",
                "remote: [\"*@udp0\"]\n    priority: 0",
            ),
        ] {
            let document = make(line).unwrap_or_else(|error| panic!("{line}: {error}"));
            let text = document.export();
            assert!(text.contains(there), "{line}:\n{text}");
        }
    }

    /// The text of each change is parsed to the same change.
    #[test]
    fn a_change_round_trips() {
        for line in [
            "rails add eth1@tcp0 partitions=0,3",
            "rails del 10.0.0.1:4711@udp0",
            "rails set eth1@tcp0",
            "limits set numa_range=21 pause_max_us=7",
            "peers add 10.0.0.[3-4]@udp0",
            "peers add 10.0.0.3@udp0 10.0.0.4@udp0,10.1.0.4@tcp0",
            "peers del 10.0.0.2@udp0",
            "policy add local=10.0.0.[1,3]@udp0 local=eth0@udp0 remote=*@udp0 priority=3 messages=9",
            "policy del 2",
            "policy del net=o2ib3",
            "policy relay off",
            "policy relay on",
        ] {
            assert_eq!(line.parse::<Change>().unwrap().to_string(), line);
        }
    }

    /// Value, reason, remedy; cfg-080, and the last rail. AG-11: a range with too many names.
    #[test]
    fn a_refused_change_has_the_reason() {
        for (line, expected) in [
            ("dance", "must begin with"),
            ("rails add", "a NID is expected"),
            ("rails add nonsense", "nonsense"),
            (
                "rails add 10.0.0.1@udp0 partitions=x",
                "partitions are numbers",
            ),
            ("rails add 10.0.0.1@udp0", "a rail of this node already"),
            ("rails add 10.0.0.1@tcp0", "name each interface once"),
            ("rails add 10.0.0.1:9@udp0", "name each interface once"),
            (
                &format!("rails set 10.0.0.1@udp0 partitions={}1", "0,".repeat(1024)),
                "at most 1024 partitions",
            ),
            (
                "rails del 10.0.0.9@udp0",
                "its rails are 10.0.0.1:4711@udp0",
            ),
            (
                "rails del 10.0.0.1@udp0",
                "the last rail of this node; add another",
            ),
            ("limits set speed=3", "numa_range, sensitivity"),
            ("limits set sensitivity=1001", "give 0 to 1000"),
            ("limits set sensitivity=70000", "at most 65535"),
            ("peers add eth0@udp0", "needs an address"),
            (
                "peers add 10.0.0.7@o2ib0",
                "none of the nets of this node's rails, which are udp0",
            ),
            (
                "peers add 10.0.0.2@udp0",
                "belongs to the peer 10.0.0.2@udp0,10.1.0.2@tcp0",
            ),
            (
                "peers add 10.0.[0-255].[0-255]@udp0",
                "stands for 65536 names; at most 1024",
            ),
            (
                "peers add 10.0.0.[3-4]@udp0,10.1.0.3@udp1",
                "stands for 2 NIDs",
            ),
            ("peers del 10.0.0.9@udp0", "not of a configured peer"),
            ("policy add priority=1", "about a net, about local"),
            (
                "policy add net=udp0 local=*@udp0",
                "about a net, about local",
            ),
            ("policy relay", "on or off"),
            ("policy relay maybe", "on or off"),
            ("policy add net=quantum0", "quantum0"),
            ("policy add net=udp0 colour=red", "use net="),
            ("policy add local=10.0.0.1", "it has no net"),
            (
                "policy del 1",
                "rule 1 is not in the policy; it has 0 rules",
            ),
        ] {
            let error = make(line)
                .map(|document| document.export())
                .expect_err(line);
            assert!(error.to_string().contains(expected), "{line}: {error}");
        }
        let one = make("policy add net=udp0 priority=1").unwrap();
        let change: Change = "policy add net=udp0 priority=2".parse().unwrap();
        let error = change.onto(&one, &open()).unwrap_err().to_string();
        assert!(
            error.contains("two rules are about \"net udp0\""),
            "{error}"
        );
        let empty = Change::Replace(Box::default());
        let error = empty.onto(&one, &open()).unwrap_err().to_string();
        assert!(error.contains("names no rail"), "{error}");
    }

    /// A line names at most as many peers as an agent supports, in any number of lists.
    #[test]
    fn peers_are_counted_before_ranges_are_expanded() {
        let line = |count: usize| {
            let lists = (1..=count).map(|one| format!("10.{one}.[0-1].[0-255]@udp0"));
            format!("peers add {}", lists.collect::<Vec<_>>().join(" "))
        };
        assert_eq!(make(&line(3)).unwrap_err(), ChangeError::ManyAtOnce);
        assert_eq!(make(&line(300)).unwrap_err(), ChangeError::ManyAtOnce);
        // One of them is known already.
        let many = make(&line(2)).unwrap_err();
        assert_eq!(many, ChangeError::ManyPeers { count: 1025 });
        let all = make("peers add 10.1.[0-3].[0-255]@udp0").unwrap_err();
        assert_eq!(all, many);
        let all = make("peers add 10.1.[0-2].[0-255]@udp0 10.1.3.[1-255]@udp0").unwrap();
        assert_eq!(all.peers.len(), 1024);
        let less: Change = "peers del 10.1.[0-2].[0-255]@udp0".parse().unwrap();
        assert_eq!(less.onto(&all, &open()).unwrap().peers.len(), 256);
    }

    /// Rails are grouped by net, so that an exported document is imported in the same order.
    #[test]
    fn rails_are_kept_in_the_order_of_the_document() {
        let two = make("rails add 10.1.0.1@tcp0").unwrap();
        let third: Change = "rails add 10.0.0.7@udp0".parse().unwrap();
        let three = third.onto(&two, &[]).unwrap();
        assert_eq!(RailsDocument::import(&three.export()).unwrap(), three);
    }
}
