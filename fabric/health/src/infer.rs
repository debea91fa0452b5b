//! Inference: finds the place of a fault from the pairs that work and the pairs that do not.
//!
//! A pair is a local rail and a remote NID. A single failing pair does not show where the fault is; the state
//! of the other pairs does. For a pair that does not work, the first row that applies gives the fault:
//!
//! | state of other pairs | the fault |
//! |---|---|
//! | no NID of the peer answers, at least two were tried, over rails that reach other peers | the node |
//! | no pair on the net works, over at least two rails to two peers, while another net works | the net |
//! | no pair of the rail works, to at least two peers; another rail on its net works | the local interface |
//! | no pair of the rail, alone on its net, works; two of its peers answer on other rails | the local interface |
//! | no rail reaches the NID; two tried that reach others; another NID of the peer answers | the remote interface |
//! | the rail fails to several NIDs that other rails reach, and reaches other NIDs | several |
//! | the rail reaches another NID, and another rail reaches this NID | the pair |
//! | otherwise | undecided, with the reason |
//!
//! There is no clock here: the caller reports the pairs of a recent period.

use muster_provider::Net;
use std::collections::{BTreeMap, BTreeSet};

/// The recent state of one pair. A pair that was not tried recently has no report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PairReport {
    /// The local rail.
    pub rail: usize,
    /// The net of both.
    pub net: Net,
    /// The peer, by a number that the caller chooses.
    pub peer: u32,
    /// The remote NID, as its index among the peer's NIDs.
    pub remote: u8,
    /// Whether it works.
    pub works: bool,
}

/// The likely place of a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Finding {
    /// No NID of this peer answers: the node is likely down. The verdict is the membership protocol's.
    Node {
        /// The peer.
        peer: u32,
    },
    /// No pair on this net works.
    Net {
        /// The net.
        net: Net,
    },
    /// No pair of this local rail works.
    Local {
        /// The rail.
        rail: usize,
    },
    /// No rail reaches this NID of the peer.
    Remote {
        /// The peer.
        peer: u32,
        /// The NID's index.
        remote: u8,
    },
    /// This rail fails to several NIDs that other rails reach.
    Several {
        /// The rail.
        rail: usize,
        /// The number of these NIDs.
        count: u32,
    },
    /// This rail does not reach this NID; each works in other pairs.
    Pair {
        /// The rail.
        rail: usize,
        /// The peer.
        peer: u32,
        /// The NID's index.
        remote: u8,
    },
    /// The place cannot be determined.
    Undecided {
        /// The rail.
        rail: usize,
        /// The peer.
        peer: u32,
        /// The NID's index.
        remote: u8,
        /// Why it cannot be determined.
        lacks: Lack,
    },
}

/// Why the place of a fault cannot be determined.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Lack {
    /// No other local rail was tried to this NID.
    OtherRail,
    /// No other remote NID was tried from this rail.
    OtherRemote,
    /// No single cause explains all observations.
    OneCause,
}

impl Lack {
    /// The reason as text.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Lack::OtherRail => "only one local interface was tried to it",
            Lack::OtherRemote => "only one remote interface was tried from it",
            Lack::OneCause => "more than one thing is at fault",
        }
    }
}

/// Pairs that are compared at once, at most: each failing pair is compared with all others.
pub const PAIRS_MAX: usize = 1024;

/// Returns the places of the faults: sorted, each once; empty if every pair works. The time is at most
/// quadratic in the number of pairs: call it on request, not for each message.
#[must_use]
pub fn infer(pairs: &[PairReport]) -> Vec<Finding> {
    let bad = || pairs.iter().filter(|pair| !pair.works);
    let works = pairs.iter().filter(|pair| pair.works);
    let reached: BTreeSet<(u32, u8)> = works.map(|pair| (pair.peer, pair.remote)).collect();
    let mut several = BTreeMap::new();
    for pair in bad().filter(|pair| reached.contains(&(pair.peer, pair.remote))) {
        *several.entry(pair.rail).or_insert(0) += 1;
    }
    let all = All { pairs, several };
    let mut findings: Vec<Finding> = bad().map(|pair| all.cause(pair)).collect();
    findings.sort_unstable();
    findings.dedup();
    findings
}

/// The rails of [`Finding::Local`], in time linear in the number of pairs.
pub fn local_faults(pairs: impl Iterator<Item = PairReport>) -> BTreeSet<usize> {
    struct Rail {
        net: Net,
        works: bool,
        peers: BTreeSet<u32>,
    }
    let mut rails: BTreeMap<usize, Rail> = BTreeMap::new();
    let mut reached: BTreeSet<u32> = BTreeSet::new();
    for pair in pairs {
        let rail = rails.entry(pair.rail).or_insert_with(|| Rail {
            net: pair.net,
            works: false,
            peers: BTreeSet::new(),
        });
        rail.works |= pair.works;
        rail.peers.insert(pair.peer);
        if pair.works {
            reached.insert(pair.peer);
        }
    }
    let is_at_fault = |rail: &Rail| {
        let mut on_net = rails.values().filter(|other| other.net == rail.net);
        let others_work = on_net.clone().any(|other| other.works);
        let is_alone = on_net.nth(1).is_none();
        let reached_otherwise = rail.peers.intersection(&reached).count();
        !rail.works && (others_work && rail.peers.len() > 1 || is_alone && reached_otherwise > 1)
    };
    let at_fault = rails.iter().filter(|(_, rail)| is_at_fault(rail));
    at_fault.map(|(index, _)| *index).collect()
}

/// All pairs, and queries over them.
struct All<'a> {
    pairs: &'a [PairReport],
    /// The number of NIDs that each rail does not reach and another rail does.
    several: BTreeMap<usize, u32>,
}

impl All<'_> {
    fn cause(&self, bad: &PairReport) -> Finding {
        let (rail, peer, remote) = (bad.rail, bad.peer, bad.remote);
        let of_rail = |pair: &PairReport| pair.rail == rail;
        let of_peer = |pair: &PairReport| pair.peer == peer;
        let of_remote = |pair: &PairReport| pair.peer == peer && pair.remote == remote;
        let on_net = |pair: &PairReport| pair.net == bad.net;
        let rails = |pair: &PairReport| pair.rail as u64;
        let peers = |pair: &PairReport| u64::from(pair.peer);
        let remotes = |pair: &PairReport| u64::from(pair.remote);

        if self.none_works(of_peer)
            && self.count(of_peer, remotes) > 1
            && self.all_rails_work_elsewhere(of_peer)
        {
            return Finding::Node { peer };
        }
        if self.none_works(on_net)
            && self.count(on_net, rails) > 1
            && self.count(on_net, peers) > 1
            && self.any_works(|pair| !on_net(pair))
        {
            return Finding::Net { net: bad.net };
        }
        if self.none_works(of_rail)
            && self.count(of_rail, peers) > 1
            && (self.any_works(|pair| on_net(pair) && !of_rail(pair))
                || self.count(on_net, rails) == 1 && self.peers_reached_otherwise(rail) > 1)
        {
            return Finding::Local { rail };
        }
        if self.none_works(of_remote)
            && self.count(of_remote, rails) > 1
            && self.all_rails_work_elsewhere(of_remote)
            && self.any_works(|pair| of_peer(pair) && !of_remote(pair))
        {
            return Finding::Remote { peer, remote };
        }
        if self.any_works(of_rail) && self.any_works(of_remote) {
            return match self.several.get(&rail).copied().unwrap_or(0) {
                1 => Finding::Pair { rail, peer, remote },
                count => Finding::Several { rail, count },
            };
        }
        let lacks = if self.count(of_remote, rails) < 2 {
            Lack::OtherRail
        } else if self.count(of_rail, |pair| peers(pair) << 8 | remotes(pair)) < 2 {
            Lack::OtherRemote
        } else {
            Lack::OneCause
        };
        Finding::Undecided {
            rail,
            peer,
            remote,
            lacks,
        }
    }

    /// The number of this rail's peers that answer on other rails.
    fn peers_reached_otherwise(&self, rail: usize) -> usize {
        let reached = |pair: &PairReport| {
            pair.rail == rail
                && self.any_works(|other| other.rail != rail && other.peer == pair.peer)
        };
        self.count(reached, |pair| u64::from(pair.peer))
    }

    fn any_works(&self, of: impl Fn(&PairReport) -> bool) -> bool {
        self.pairs.iter().any(|pair| pair.works && of(pair))
    }

    fn none_works(&self, of: impl Fn(&PairReport) -> bool) -> bool {
        !self.any_works(of)
    }

    /// The number of different values among these pairs.
    fn count(&self, of: impl Fn(&PairReport) -> bool, value: impl Fn(&PairReport) -> u64) -> usize {
        let mut values: Vec<u64> = self
            .pairs
            .iter()
            .filter(|pair| of(pair))
            .map(value)
            .collect();
        values.sort_unstable();
        values.dedup();
        values.len()
    }

    /// Whether every rail of these pairs reaches a NID outside of them.
    fn all_rails_work_elsewhere(&self, of: impl Fn(&PairReport) -> bool) -> bool {
        let mut pairs = self.pairs.iter().filter(|pair| of(pair));
        pairs.all(|one| self.any_works(|other| other.rail == one.rail && !of(other)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Parses pairs: `r0 p1.0 udp0 +` is rail 0 to NID 0 of peer 1, which works.
    fn pairs(text: &str) -> Vec<PairReport> {
        let number = |text: &str| text.parse::<u8>().unwrap();
        let pair = |line: &str| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let (peer, remote) = fields[1][1..].split_once('.').unwrap();
            PairReport {
                rail: usize::from(number(&fields[0][1..])),
                net: fields[2].parse().unwrap(),
                peer: u32::from(number(peer)),
                remote: number(remote),
                works: fields[3] == "+",
            }
        };
        text.split(',').map(pair).collect()
    }

    const UDP: Net = Net {
        kind: muster_provider::NetKind::Udp,
        number: 0,
    };

    /// RS-04: one case for each row of the table.
    #[test]
    fn each_row_of_the_table() {
        use Finding::{Local, Node, Pair, Remote, Several, Undecided};
        let undecided = |lacks| Undecided {
            rail: 0,
            peer: 1,
            remote: 0,
            lacks,
        };
        let table = [
            ("all pairs work", "r0 p1.0 udp +, r1 p1.1 udp +", vec![]),
            (
                "the pair",
                "r0 p1.0 udp -, r0 p1.1 udp +, r1 p1.0 udp +, r1 p1.1 udp +",
                vec![Pair {
                    rail: 0,
                    peer: 1,
                    remote: 0,
                }],
            ),
            (
                "the remote interface",
                "r0 p1.0 udp -, r1 p1.0 udp -, r0 p1.1 udp +, r1 p1.1 udp +",
                vec![Remote { peer: 1, remote: 0 }],
            ),
            (
                "several",
                "r0 p1.0 udp -, r0 p2.0 udp -, r0 p3.0 udp +, r1 p1.0 udp +, r1 p2.0 udp +",
                vec![Several { rail: 0, count: 2 }],
            ),
            (
                "the local interface",
                "r0 p1.0 udp -, r0 p2.0 udp -, r1 p1.0 udp +, r1 p2.0 udp +",
                vec![Local { rail: 0 }],
            ),
            (
                "the local interface, the only one on its net",
                "r0 p1.0 udp -, r0 p2.0 udp -, r1 p1.1 udp1 +, r1 p2.1 udp1 +",
                vec![Local { rail: 0 }],
            ),
            (
                "the only one on its net, and only one of its peers answers: the other may be down",
                "r0 p1.0 udp -, r0 p2.0 udp -, r1 p1.1 udp1 +, r1 p2.1 udp1 -, r1 p3.1 udp1 +",
                vec![
                    undecided(Lack::OtherRail),
                    Undecided {
                        rail: 0,
                        peer: 2,
                        remote: 0,
                        lacks: Lack::OtherRail,
                    },
                    Undecided {
                        rail: 1,
                        peer: 2,
                        remote: 1,
                        lacks: Lack::OtherRail,
                    },
                ],
            ),
            (
                "the node",
                "r0 p1.0 udp -, r1 p1.1 udp -, r0 p2.0 udp +, r1 p2.1 udp +",
                vec![Node { peer: 1 }],
            ),
            (
                "the net",
                "r0 p1.0 udp -, r1 p1.1 udp -, r0 p2.0 udp -, r1 p2.1 udp -, r2 p1.2 tcp +",
                vec![Finding::Net { net: UDP }],
            ),
            (
                "one interface on each side: undecided",
                "r0 p1.0 udp -",
                vec![undecided(Lack::OtherRail)],
            ),
            (
                "one local interface, and the peer's other NID answers: the pair or the remote",
                "r0 p1.0 udp -, r0 p1.1 udp +",
                vec![undecided(Lack::OtherRail)],
            ),
            (
                "two local interfaces, neither of which reaches anything else",
                "r0 p1.0 udp -, r1 p1.0 udp -",
                vec![
                    undecided(Lack::OtherRemote),
                    Undecided {
                        rail: 1,
                        peer: 1,
                        remote: 0,
                        lacks: Lack::OtherRemote,
                    },
                ],
            ),
        ];
        for (name, text, findings) in table {
            assert_eq!(infer(&pairs(text)), findings, "{name}");
        }
    }

    #[test]
    fn a_failed_node_is_no_fault_of_a_rail_or_net() {
        let findings = infer(&pairs(
            "r0 p1.0 udp -, r1 p1.1 udp -, r0 p2.0 udp +, r1 p2.1 udp +, r0 p3.0 udp +, r1 p3.1 udp +",
        ));
        assert_eq!(findings, [Finding::Node { peer: 1 }]);
    }

    proptest! {
        /// No finding contradicts a pair that works.
        #[test]
        fn no_finding_contradicts_a_working_pair(
            works in proptest::collection::vec(any::<bool>(), 18),
            nets in proptest::collection::vec(0..3u16, 3),
        ) {
            let all: Vec<PairReport> = (0..18)
                .map(|index| PairReport {
                    rail: index % 3,
                    net: Net { number: nets[index % 3], ..UDP },
                    peer: (index / 3 % 3) as u32,
                    remote: (index / 9) as u8,
                    works: works[index],
                })
                .collect();
            let working = |of: &dyn Fn(&PairReport) -> bool| all.iter().any(|one| one.works && of(one));
            let findings = infer(&all);
            prop_assert_eq!(findings.is_empty(), all.iter().all(|pair| pair.works));
            let local: Vec<usize> = findings.iter().filter_map(|finding| match finding {
                Finding::Local { rail } => Some(*rail),
                _ => None,
            }).collect();
            prop_assert!(local_faults(all.iter().copied()).into_iter().eq(local));
            for finding in findings {
                let contradicted = match finding {
                    Finding::Node { peer } => working(&|pair| pair.peer == peer),
                    Finding::Net { net } => working(&|pair| pair.net == net),
                    Finding::Local { rail } => working(&|pair| pair.rail == rail),
                    Finding::Remote { peer, remote } =>
                        working(&|pair| pair.peer == peer && pair.remote == remote),
                    Finding::Pair { rail, peer, remote } => working(&|pair|
                        pair.rail == rail && pair.peer == peer && pair.remote == remote),
                    Finding::Several { rail, count } =>
                        count < 2 || all.iter().filter(|one| one.rail == rail && !one.works).count() < 2,
                    Finding::Undecided { .. } => false,
                };
                prop_assert!(!contradicted, "{finding:?}");
            }
        }
    }
}
