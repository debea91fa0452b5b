//! Inference: from pairs that work and pairs that do not, where the fault is.
//!
//! A pair is a local rail and a remote NID. One silent pair alone says nothing; what else works says
//! where the fault is likely to be. The table, first row that fits, for a pair that does not work:
//!
//! | what else is seen | the fault |
//! |---|---|
//! | nothing of the peer answers, though tried at two of its NIDs, over rails that reach others | the node |
//! | nothing on the net works, over two rails and to two peers, while another net works | the net |
//! | nothing works on the rail, to two peers, while others of its net work | the local interface |
//! | nothing works on the rail, alone on its net; two of its peers answer on others | the local interface |
//! | nobody reaches the NID, over two rails that reach others, while the peer's others answer | the remote interface |
//! | the rail fails to several NIDs that other rails reach, and reaches others | several |
//! | the rail reaches another, another reaches the NID | the pair |
//! | less than that | cannot be told, and why |
//!
//! Not here: time. Whoever asks says which pairs worked *lately*.

use crate::net::Net;
use std::collections::{BTreeMap, BTreeSet};

/// What is known about one pair lately. A pair that was not tried lately is left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PairReport {
    /// The local rail.
    pub rail: usize,
    /// The net that both are on.
    pub net: Net,
    /// The peer, by a number of the caller's.
    pub peer: u32,
    /// The remote NID, by its index among the peer's.
    pub remote: u8,
    /// Whether it works.
    pub works: bool,
}

/// Where a fault is likely to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Finding {
    /// Nothing of this peer answers: the node is likely down, which is for others to judge.
    Node {
        /// The peer.
        peer: u32,
    },
    /// Nothing on this net works.
    Net {
        /// The net.
        net: Net,
    },
    /// Nothing works on this local rail.
    Local {
        /// The rail.
        rail: usize,
    },
    /// Nobody reaches this NID of the peer.
    Remote {
        /// The peer.
        peer: u32,
        /// The NID's index.
        remote: u8,
    },
    /// This rail fails to so many NIDs that others reach.
    Several {
        /// The rail.
        rail: usize,
        /// How many.
        count: u32,
    },
    /// This rail and this NID do not get on; each works with others.
    Pair {
        /// The rail.
        rail: usize,
        /// The peer.
        peer: u32,
        /// The NID's index.
        remote: u8,
    },
    /// It cannot be told.
    Undecided {
        /// The rail.
        rail: usize,
        /// The peer.
        peer: u32,
        /// The NID's index.
        remote: u8,
        /// What is missing to tell.
        lacks: Lack,
    },
}

/// Why it cannot be told where a fault is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Lack {
    /// No other local rail was tried to this NID.
    OtherRail,
    /// No other remote NID was tried from this rail.
    OtherRemote,
    /// What was tried contradicts every single cause.
    OneCause,
}

impl Lack {
    /// The reason as words.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Lack::OtherRail => "only one local interface was tried to it",
            Lack::OtherRemote => "only one remote interface was tried from it",
            Lack::OneCause => "more than one thing is at fault",
        }
    }
}

/// Pairs that are looked at together, at most: one pair at a time is compared with all others.
pub(crate) const PAIRS_MAX: usize = 1024;

/// Says where the faults are: sorted, each once; none if every pair works. At most quadratic in the
/// number of pairs: for who asks, not for each message.
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

/// The rails of [`Finding::Local`], in a time that grows with the number of pairs and no faster.
pub(crate) fn local_faults(pairs: impl Iterator<Item = PairReport>) -> BTreeSet<usize> {
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

/// All pairs, and questions about them.
struct All<'a> {
    pairs: &'a [PairReport],
    /// How many NIDs each rail fails to that another rail reaches.
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

    /// How many peers of a rail work on other rails.
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

    /// How many different values these pairs have.
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

    /// Whether every rail of these pairs works to somebody else.
    fn all_rails_work_elsewhere(&self, of: impl Fn(&PairReport) -> bool) -> bool {
        let mut pairs = self.pairs.iter().filter(|pair| of(pair));
        pairs.all(|one| self.any_works(|other| other.rail == one.rail && !of(other)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Pairs from a drawing: `r0 p1.0 udp0 +` is rail 0 to NID 0 of peer 1, which works.
    fn pairs(drawing: &str) -> Vec<PairReport> {
        let number = |text: &str| text.parse::<u8>().unwrap();
        let pair = |line: &str| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let (peer, remote) = words[1][1..].split_once('.').unwrap();
            PairReport {
                rail: usize::from(number(&words[0][1..])),
                net: words[2].parse().unwrap(),
                peer: u32::from(number(peer)),
                remote: number(remote),
                works: words[3] == "+",
            }
        };
        drawing.split(',').map(pair).collect()
    }

    const UDP: Net = Net {
        kind: crate::net::NetKind::Udp,
        number: 0,
    };

    /// RS-04, row by row.
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
            ("all is well", "r0 p1.0 udp +, r1 p1.1 udp +", vec![]),
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
                "the only one on its net, while only one of its peers answers: the other may be down",
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
                "one interface on each side: it cannot be told",
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
        for (name, drawing, findings) in table {
            assert_eq!(infer(&pairs(drawing)), findings, "{name}");
        }
    }

    #[test]
    fn a_dead_node_accuses_neither_rail_nor_net() {
        let findings = infer(&pairs(
            "r0 p1.0 udp -, r1 p1.1 udp -, r0 p2.0 udp +, r1 p2.1 udp +, r0 p3.0 udp +, r1 p3.1 udp +",
        ));
        assert_eq!(findings, [Finding::Node { peer: 1 }]);
    }

    proptest! {
        /// No cause is named that something working contradicts.
        #[test]
        fn nothing_that_works_is_accused(
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
