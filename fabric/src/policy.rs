//! Policy: rules by which an administrator prefers some rails, NIDs and pairs to others.
//!
//! A policy is a list of rules; the system has one policy. A rule names a net, local interfaces, or pairs of local
//! interfaces and remote NIDs (1:1, 1:N, N:1 and N:N). It gives a priority (0 is the highest and the default) and the
//! number of messages that are sent in a row before another path takes its turn. Whatever no rule of a kind names
//! comes after everything that a rule of that kind names. So a failover is one rule: "net o2ib0" prefers o2ib0 to all
//! other nets while it works.
//!
//! When a path or the policy changes, the rules are converted into a few numbers for each path ([`Ranks`]). The
//! selection compares those. A policy does not decide which paths work: it chooses among working ones.

use crate::error::PolicyError;
use crate::limits::{MESSAGES_MAX, PATTERNS_MAX, RULES_MAX};
use muster_hostlist::{RangeError, Span};
use muster_provider::{Address, Net, Nid};
use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

/// The rank of whatever no rule names. It is behind every priority.
const UNNAMED: u16 = 256;

/// A pattern of NIDs: `10.0.[0-3].*@udp0`, `eth[0-1]@udp0`, `*@o2ib0`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NidPattern {
    text: String,
    address: AddressPattern,
    net: Net,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum AddressPattern {
    Any,
    /// The spans of each byte of an address.
    Ip([Vec<Span>; 4]),
    Interfaces(Vec<String>),
}

impl NidPattern {
    /// Whether the pattern matches this NID. `interface` is that of a local rail, if known.
    #[must_use]
    pub fn matches(&self, nid: &Nid, interface: Option<&str>) -> bool {
        self.net == nid.net
            && match (&self.address, &nid.address) {
                (AddressPattern::Any, _) => true,
                (AddressPattern::Ip(bytes), Address::Ip(ip)) => {
                    let within = |(spans, byte): (&Vec<Span>, u8)| {
                        spans.iter().any(|span| span.contains(u64::from(byte)))
                    };
                    bytes.iter().zip(ip.octets()).all(within)
                }
                (AddressPattern::Ip(_), Address::Interface(_)) => false,
                (AddressPattern::Interfaces(names), _) => {
                    interface.is_some_and(|name| names.iter().any(|one| one == name))
                }
            }
    }
}

/// Whether two patterns match the same NIDs, whatever their text.
fn same_pattern(one: &NidPattern, other: &NidPattern) -> bool {
    let same_byte = |(one, other): (&Vec<Span>, &Vec<Span>)| {
        let has = |spans: &[Span], byte| spans.iter().any(|span| span.contains(byte));
        (0..=u64::from(u8::MAX)).all(|byte| has(one, byte) == has(other, byte))
    };
    one.net == other.net
        && match (&one.address, &other.address) {
            (AddressPattern::Any, AddressPattern::Any) => true,
            (AddressPattern::Ip(one), AddressPattern::Ip(other)) => {
                one.iter().zip(other).all(same_byte)
            }
            (AddressPattern::Interfaces(one), AddressPattern::Interfaces(other)) => {
                let names = |names: &[String]| names.iter().cloned().collect::<BTreeSet<_>>();
                names(one) == names(other)
            }
            _ => false,
        }
}

/// Whether two sides of a rule match the same NIDs, in any order.
fn same_side(one: &[NidPattern], other: &[NidPattern]) -> bool {
    let within = |one: &[NidPattern], other: &[NidPattern]| {
        one.iter()
            .all(|one| other.iter().any(|other| same_pattern(one, other)))
    };
    within(one, other) && within(other, one)
}

impl FromStr for NidPattern {
    type Err = PolicyError;

    fn from_str(text: &str) -> Result<NidPattern, PolicyError> {
        let bad = |reason: String| PolicyError::Pattern {
            pattern: text.to_owned(),
            reason,
        };
        let (address, net) = text
            .rsplit_once('@')
            .ok_or_else(|| bad("it has no net; write 10.0.0.[1-4]@udp0 or *@udp0".to_owned()))?;
        let net: Net = net.parse().map_err(|error| bad(format!("{error}")))?;
        let range = |error: RangeError| bad(error.to_string());
        let address = if address == "*" {
            AddressPattern::Any
        } else if let Some(bytes) = address_bytes(address) {
            let spans = |byte: &str| -> Result<Vec<Span>, PolicyError> {
                match byte {
                    "*" => muster_hostlist::spans(text, "0-255").map_err(range),
                    _ => muster_hostlist::spans(text, byte.trim_matches(['[', ']'])).map_err(range),
                }
            };
            let [a, b, c, d] = bytes;
            AddressPattern::Ip([spans(a)?, spans(b)?, spans(c)?, spans(d)?])
        } else {
            let names = muster_hostlist::expand(address, PATTERNS_MAX).map_err(range)?;
            let plausible = |name: &String| {
                let named = name.bytes().any(|byte| byte.is_ascii_alphabetic());
                named
                    && name
                        .bytes()
                        .all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
            };
            if !names.iter().all(plausible) {
                let reason = "the text before the net is neither *, nor an address of four parts, \
                              nor the name of an interface";
                return Err(bad(reason.to_owned()));
            }
            AddressPattern::Interfaces(names)
        };
        Ok(NidPattern {
            text: text.to_owned(),
            address,
            net,
        })
    }
}

/// The four parts of an address, each a number, `*` or a bracket.
fn address_bytes(address: &str) -> Option<[&str; 4]> {
    let is_part = |part: &&str| {
        let inner = part
            .strip_prefix('[')
            .and_then(|rest| rest.strip_suffix(']'));
        let digits = inner.unwrap_or(part);
        *part == "*"
            || (!digits.is_empty() && digits.bytes().all(|byte| b"0123456789-,/".contains(&byte)))
    };
    let parts: Vec<&str> = address.split('.').collect();
    let parts: [&str; 4] = parts.try_into().ok()?;
    parts.iter().all(is_part).then_some(parts)
}

impl fmt::Display for NidPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// The subject of a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Subject {
    /// All rails on a net.
    Net(Net),
    /// Local interfaces.
    Local(Vec<NidPattern>),
    /// Pairs of any of these local interfaces and any of these remote NIDs.
    Pairs {
        /// The local side.
        local: Vec<NidPattern>,
        /// The remote side.
        remote: Vec<NidPattern>,
    },
}

impl Subject {
    /// Whether the subject includes a local interface, with at least some remote NIDs.
    #[must_use]
    pub fn concerns(&self, local: &Nid, interface: Option<&str>) -> bool {
        match self {
            Subject::Net(net) => *net == local.net,
            Subject::Local(patterns)
            | Subject::Pairs {
                local: patterns, ..
            } => patterns.iter().any(|one| one.matches(local, interface)),
        }
    }

    /// Whether the other subject is the same, whatever its text.
    fn is_same(&self, other: &Subject) -> bool {
        match (self, other) {
            (Subject::Net(one), Subject::Net(other)) => one == other,
            (Subject::Local(one), Subject::Local(other)) => same_side(one, other),
            (
                Subject::Pairs { local, remote },
                Subject::Pairs {
                    local: other_local,
                    remote: other_remote,
                },
            ) => same_side(local, other_local) && same_side(remote, other_remote),
            _ => false,
        }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |patterns: &[NidPattern]| -> String {
            let texts: Vec<&str> = patterns.iter().map(|one| one.text.as_str()).collect();
            texts.join(" ")
        };
        match self {
            Subject::Net(net) => write!(f, "net {net}"),
            Subject::Local(local) => write!(f, "local {}", list(local)),
            Subject::Pairs { local, remote } => {
                write!(f, "pairs {} -> {}", list(local), list(remote))
            }
        }
    }
}

/// One rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// The subject.
    pub subject: Subject,
    /// How strongly the rule prefers the subject; 0 is the strongest.
    pub priority: u8,
    /// Messages in a row before another path takes its turn; none means 1.
    pub messages: Option<u32>,
}

impl Rule {
    /// A rule of the highest priority.
    #[must_use]
    pub fn new(subject: Subject) -> Rule {
        Rule {
            subject,
            priority: 0,
            messages: None,
        }
    }
}

/// The rules of the system. The default has none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Policy {
    rules: Vec<Rule>,
}

impl Policy {
    /// Makes a policy.
    ///
    /// # Errors
    /// Too many rules or patterns, a side without patterns, a count of messages that is 0 or too large, or two rules
    /// about one subject.
    pub fn new(rules: Vec<Rule>) -> Result<Policy, PolicyError> {
        if rules.len() > RULES_MAX {
            return Err(PolicyError::ManyRules { given: rules.len() });
        }
        for (index, rule) in rules.iter().enumerate() {
            let subject = || rule.subject.to_string();
            let sides: Vec<&Vec<NidPattern>> = match &rule.subject {
                Subject::Net(_) => Vec::new(),
                Subject::Local(local) => vec![local],
                Subject::Pairs { local, remote } => vec![local, remote],
            };
            if sides.iter().any(|side| side.is_empty()) {
                return Err(PolicyError::EmptySide { rule: subject() });
            }
            if let Some(side) = sides.iter().find(|side| side.len() > PATTERNS_MAX) {
                return Err(PolicyError::ManyPatterns {
                    rule: subject(),
                    given: side.len(),
                });
            }
            if let Some(given) = rule
                .messages
                .filter(|count| !(1..=MESSAGES_MAX).contains(count))
            {
                return Err(PolicyError::Messages {
                    rule: subject(),
                    given,
                });
            }
            if rules[..index]
                .iter()
                .any(|one| one.subject.is_same(&rule.subject))
            {
                return Err(PolicyError::Contradiction { rule: subject() });
            }
        }
        Ok(Policy { rules })
    }

    /// The rules, in the order in which they were given.
    #[must_use]
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// The ranks of one path by the rules.
    #[must_use]
    pub fn ranks(&self, local: &Nid, interface: Option<&str>, remote: &Nid) -> Ranks {
        let of_local =
            |patterns: &[NidPattern]| patterns.iter().any(|one| one.matches(local, interface));
        let of_remote =
            |patterns: &[NidPattern]| patterns.iter().any(|one| one.matches(remote, None));
        let mut ranks = Ranks::default();
        // The count of the most specific kind of rule applies; within a kind, that of the highest priority.
        let mut counts: [Option<(u16, u32)>; 3] = [None; 3];
        for rule in &self.rules {
            let (rank, kind) = match &rule.subject {
                Subject::Net(net) if *net == local.net => (&mut ranks.net, 2),
                Subject::Local(patterns) if of_local(patterns) => (&mut ranks.local, 1),
                Subject::Pairs { local, remote } if of_local(local) && of_remote(remote) => {
                    (&mut ranks.pair, 0)
                }
                _ => continue,
            };
            let priority = u16::from(rule.priority);
            *rank = (*rank).min(priority);
            if let Some(messages) = rule.messages
                && counts[kind].is_none_or(|(other, _)| priority < other)
            {
                counts[kind] = Some((priority, messages));
            }
        }
        let count = counts.into_iter().flatten().next();
        ranks.messages = count.map_or(1, |(_, messages)| messages);
        ranks
    }
}

/// The policy's view of one path in numbers. Lower is preferred.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ranks {
    /// By the rules about nets.
    pub net: u16,
    /// By the rules about local interfaces.
    pub local: u16,
    /// By the rules about pairs.
    pub pair: u16,
    /// Messages in a row.
    pub messages: u32,
}

impl Default for Ranks {
    fn default() -> Ranks {
        Ranks {
            net: UNNAMED,
            local: UNNAMED,
            pair: UNNAMED,
            messages: 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nid(text: &str) -> Nid {
        text.parse().unwrap()
    }

    fn patterns(texts: &[&str]) -> Vec<NidPattern> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn matches(pattern: &str, text: &str) -> bool {
        pattern
            .parse::<NidPattern>()
            .unwrap()
            .matches(&nid(text), Some("eth0"))
    }

    #[test]
    fn a_pattern_matches_addresses_interfaces_or_all_nids_of_a_net() {
        assert!(matches("*@udp", "10.0.0.1@udp0") && !matches("*@udp", "10.0.0.1@udp1"));
        assert!(matches("10.0.[0-3].*@udp", "10.0.3.200@udp"));
        assert!(!matches("10.0.[0-3].*@udp", "10.0.4.200@udp"));
        assert!(matches("10.0.0.[1-9/2,20]@udp", "10.0.0.20@udp"));
        assert!(!matches("10.0.0.[1-9/2,20]@udp", "10.0.0.2@udp"));
        assert!(matches("10.0.0.1@udp", "10.0.0.1:99@udp"), "at any port");
        assert!(matches("eth[0-1]@udp", "10.0.0.1@udp") && !matches("eth1@udp", "10.0.0.1@udp"));
    }

    #[test]
    fn an_invalid_pattern_is_refused_with_the_reason() {
        for (text, reason) in [
            ("10.0.0.1", "no net"),
            ("10.0.0.1@ethernet", "no net; nets are"),
            ("10.0.0@udp", "four parts"),
            ("10.0.0.[5-1]@udp", "below its start"),
            ("10.0.0.!@udp", "four parts"),
            ("eth[0-999]@udp", "at most 64"),
        ] {
            let error = text.parse::<NidPattern>().unwrap_err().to_string();
            assert!(
                error.contains(reason) && error.contains(text),
                "{text}: {error}"
            );
        }
    }

    fn rule(subject: Subject, priority: u8, messages: Option<u32>) -> Rule {
        Rule {
            subject,
            priority,
            messages,
        }
    }

    fn pairs(local: &[&str], remote: &[&str]) -> Subject {
        Subject::Pairs {
            local: patterns(local),
            remote: patterns(remote),
        }
    }

    /// cfg-120, cfg-130, cfg-135, cfg-140: the four forms of pairs.
    #[test]
    fn a_rule_about_pairs_matches_one_or_many_on_either_side() {
        let table = [
            (pairs(&["1.0.0.1@udp"], &["2.0.0.1@udp"]), [1, 0, 0, 0]),
            (pairs(&["1.0.0.1@udp"], &["2.0.0.*@udp"]), [1, 1, 0, 0]),
            (pairs(&["1.0.0.*@udp"], &["2.0.0.1@udp"]), [1, 0, 1, 0]),
            (
                pairs(
                    &["1.0.0.1@udp", "1.0.0.2@udp"],
                    &["2.0.0.1@udp", "2.0.0.2@udp"],
                ),
                [1, 1, 1, 1],
            ),
        ];
        for (subject, named) in table {
            let policy = Policy::new(vec![Rule::new(subject)]).unwrap();
            let mut index = 0;
            for local in ["1.0.0.1@udp", "1.0.0.2@udp"] {
                for remote in ["2.0.0.1@udp", "2.0.0.2@udp"] {
                    let rank = policy.ranks(&nid(local), None, &nid(remote)).pair;
                    assert_eq!(rank, if named[index] == 1 { 0 } else { UNNAMED });
                    index += 1;
                }
            }
        }
    }

    /// cfg-110, cfg-115, cfg-125, cfg-145, cfg-150, cfg-155.
    #[test]
    fn the_highest_priority_of_a_kind_applies_and_the_most_specific_count() {
        assert_eq!(Rule::new(Subject::Net(nid("x@udp").net)).priority, 0);
        let policy = Policy::new(vec![
            rule(Subject::Net(nid("x@udp").net), 7, Some(100)),
            rule(Subject::Local(patterns(&["*@udp"])), 9, Some(10)),
            rule(Subject::Local(patterns(&["1.0.0.1@udp"])), 3, Some(20)),
            rule(pairs(&["1.0.0.1@udp"], &["2.0.0.2@udp"]), 1, Some(5)),
        ])
        .unwrap();
        let ranks = |local, remote| policy.ranks(&nid(local), None, &nid(remote));
        let expected = |local, pair, messages| Ranks {
            net: 7,
            local,
            pair,
            messages,
        };
        assert_eq!(ranks("1.0.0.1@udp", "2.0.0.2@udp"), expected(3, 1, 5));
        assert_eq!(
            ranks("1.0.0.1@udp", "2.0.0.1@udp"),
            expected(3, UNNAMED, 20)
        );
        assert_eq!(
            ranks("1.0.0.9@udp", "2.0.0.1@udp"),
            expected(9, UNNAMED, 10)
        );
        assert_eq!(ranks("1.0.0.9@tcp", "2.0.0.1@tcp"), Ranks::default());
    }

    #[test]
    fn contradictory_and_excessive_rules_are_refused() {
        let udp = || Subject::Net(nid("x@udp").net);
        let refusal = |rules| Policy::new(rules).unwrap_err().to_string();
        let twice = refusal(vec![rule(udp(), 1, None), rule(udp(), 2, None)]);
        assert_eq!(
            twice,
            "two rules are about \"net udp0\"; a policy has one rule for each subject: leave one of them out"
        );
        // The same subject in another text.
        let texts = [
            (
                pairs(&["10.0.0.[1-2]@udp"], &["*@udp", "*@tcp"]),
                pairs(&["10.0.0.[1,2]@udp0"], &["*@tcp0", "*@udp0"]),
            ),
            (
                Subject::Local(patterns(&["eth[0-1]@udp"])),
                Subject::Local(patterns(&["eth[1,0]@udp0"])),
            ),
            (
                Subject::Local(patterns(&["10.0.[0-255].1@udp"])),
                Subject::Local(patterns(&["10.0.*.1@udp"])),
            ),
        ];
        for (one, other) in texts {
            let text = refusal(vec![rule(one, 1, None), rule(other.clone(), 2, None)]);
            assert!(
                text.contains("two rules") && text.contains(&other.to_string()),
                "{text}"
            );
        }
        let narrower = Subject::Local(patterns(&["10.0.0.1@udp"]));
        let wider = Subject::Local(patterns(&["10.0.0.[1-2]@udp"]));
        let both = vec![rule(narrower, 1, None), rule(wider, 2, None)];
        assert!(Policy::new(both).is_ok());
        assert!(refusal(vec![rule(udp(), 0, Some(0))]).contains("0 messages"));
        assert!(refusal(vec![Rule::new(pairs(&[], &["*@udp"]))]).contains("no pattern"));
        let numbers = 0..=u16::try_from(RULES_MAX).unwrap();
        let net = |number| Net {
            kind: muster_provider::NetKind::Udp,
            number,
        };
        let many = numbers
            .map(|number| Rule::new(Subject::Net(net(number))))
            .collect();
        assert!(refusal(many).contains("65 rules"));
    }
}
