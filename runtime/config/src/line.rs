//! A change as a line of text: its form on the control socket and in the log.
//!
//! Words that are separated by single spaces, with `key=value` for named values. A whole document does not fit
//! into a line: its line is the word `import`.

use super::change::{Change, Limit, RuleChoice};
use super::change_error::ChangeError;
use super::rails::{RailEntry, SUBJECTS, subject, switch_word};
use muster_fabric::{Net, NidPattern, Rule, Subject};
use std::fmt;
use std::str::FromStr;

impl fmt::Display for Change {
    /// One line; for a whole document only the word `import`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Change::AddRail(entry) => write!(f, "rails add {}{}", entry.nid, Partitions(entry)),
            Change::RemoveRail(nid) => write!(f, "rails del {nid}"),
            Change::SetRail(entry) => write!(f, "rails set {}{}", entry.nid, Partitions(entry)),
            Change::SetLimits(limits) => {
                f.write_str("limits set")?;
                let mut limits = limits.iter();
                limits.try_for_each(|(limit, value)| write!(f, " {}={value}", limit.word()))
            }
            Change::AddPeers(text) => write!(f, "peers add {text}"),
            Change::RemovePeers(text) => write!(f, "peers del {text}"),
            Change::AddRule(rule) => {
                write!(
                    f,
                    "policy add{} priority={}",
                    About(&rule.subject),
                    rule.priority
                )?;
                rule.messages
                    .map_or(Ok(()), |count| write!(f, " messages={count}"))
            }
            Change::RemoveRule(RuleChoice::Number(number)) => write!(f, "policy del {number}"),
            Change::RemoveRule(RuleChoice::About(subject)) => {
                write!(f, "policy del{}", About(subject))
            }
            Change::SetRelay(on) => write!(f, "policy relay {}", switch_word(*on)),
            Change::Replace(_) => f.write_str("import"),
        }
    }
}

struct Partitions<'a>(&'a RailEntry);

impl fmt::Display for Partitions<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let numbers: Vec<String> = self.0.partitions.iter().map(u32::to_string).collect();
        match numbers.is_empty() {
            true => Ok(()),
            false => write!(f, " partitions={}", numbers.join(",")),
        }
    }
}

struct About<'a>(&'a Subject);

impl fmt::Display for About<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let none: &[NidPattern] = &[];
        let (local, remote) = match self.0 {
            Subject::Net(net) => return write!(f, " net={net}"),
            Subject::Local(local) => (&local[..], none),
            Subject::Pairs { local, remote } => (&local[..], &remote[..]),
        };
        local.iter().try_for_each(|one| write!(f, " local={one}"))?;
        remote.iter().try_for_each(|one| write!(f, " remote={one}"))
    }
}

impl FromStr for Change {
    type Err = ChangeError;

    fn from_str(line: &str) -> Result<Change, ChangeError> {
        let bad = |reason: &str| ChangeError::Line {
            line: line.to_owned(),
            reason: reason.to_owned(),
        };
        let words: Vec<&str> = line.split(' ').collect();
        let (what, given) = words.split_at(words.len().min(2));
        let one = || match given {
            [word] if !word.is_empty() => Ok((*word).to_owned()),
            _ => Err(bad(
                "exactly one argument is required after the first two words",
            )),
        };
        let some = || match given.iter().all(|word| !word.is_empty()) && !given.is_empty() {
            true => Ok(given.join(" ")),
            false => Err(bad(
                "at least one argument is required after the first two words",
            )),
        };
        match what {
            ["rails", "add"] => Ok(Change::AddRail(rail_entry(given, &bad)?)),
            ["rails", "set"] => Ok(Change::SetRail(rail_entry(given, &bad)?)),
            ["rails", "del"] => Ok(Change::RemoveRail(one()?.parse()?)),
            ["limits", "set"] => limits(given, &bad).map(Change::SetLimits),
            ["peers", "add"] => Ok(Change::AddPeers(some()?)),
            ["peers", "del"] => Ok(Change::RemovePeers(some()?)),
            ["policy", "add"] => rule(given, &bad).map(Change::AddRule),
            ["policy", "relay"] => match given {
                ["on"] => Ok(Change::SetRelay(true)),
                ["off"] => Ok(Change::SetRelay(false)),
                _ => Err(bad("it must be on or off")),
            },
            ["policy", "del"] => match given {
                [word] if word.bytes().all(|byte| byte.is_ascii_digit()) => {
                    let number = word.parse().map_err(|_| bad("the number is too large"))?;
                    Ok(Change::RemoveRule(RuleChoice::Number(number)))
                }
                _ => Ok(Change::RemoveRule(RuleChoice::About(
                    rule(given, &bad)?.subject,
                ))),
            },
            _ => Err(bad("it must begin with rails, limits, peers or policy")),
        }
    }
}

type Bad<'a> = &'a dyn Fn(&str) -> ChangeError;

fn rail_entry(words: &[&str], bad: Bad<'_>) -> Result<RailEntry, ChangeError> {
    let (nid, partitions) = match words {
        [nid] => (nid, None),
        [nid, partitions] => (nid, Some(partitions)),
        _ => return Err(bad("a NID is expected, optionally with partitions=0,1")),
    };
    let numbers = match partitions {
        None => Vec::new(),
        Some(word) => {
            let list = word.strip_prefix("partitions=").unwrap_or("");
            let numbers: Result<Vec<u32>, _> = list.split(',').map(str::parse).collect();
            numbers.map_err(|_| bad("partitions are numbers, as in partitions=0,1"))?
        }
    };
    Ok(RailEntry {
        nid: nid.parse()?,
        partitions: numbers,
    })
}

fn limits(words: &[&str], bad: Bad<'_>) -> Result<Vec<(Limit, u64)>, ChangeError> {
    let limit = |word: &&str| {
        let (name, value) = word.split_once('=').unwrap_or((word, ""));
        let limit = Limit::ALL.into_iter().find(|limit| limit.word() == name);
        limit.zip(value.parse().ok())
    };
    let limits: Option<Vec<(Limit, u64)>> = words.iter().map(limit).collect();
    let limits = limits.filter(|limits| !limits.is_empty());
    limits.ok_or_else(|| {
        let names: Vec<&str> = Limit::ALL.iter().map(|limit| limit.word()).collect();
        bad(&format!(
            "NAME=NUMBER is expected, where NAME is one of {}",
            names.join(", ")
        ))
    })
}

fn rule(words: &[&str], bad: Bad<'_>) -> Result<Rule, ChangeError> {
    let (mut net, mut local, mut remote) = (None, Vec::new(), Vec::new());
    let (mut priority, mut messages) = (0, None);
    for word in words {
        let (key, value) = word.split_once('=').unwrap_or((word, ""));
        match key {
            "net" => net = Some(value.parse::<Net>()?),
            "local" => local.push(value.parse::<NidPattern>()?),
            "remote" => remote.push(value.parse::<NidPattern>()?),
            "priority" => priority = value.parse().map_err(|_| bad("a priority is 0 to 255"))?,
            "messages" => {
                let count = value
                    .parse()
                    .map_err(|_| bad("messages must be a number"))?;
                messages = Some(count);
            }
            _ => return Err(bad("use net=, local=, remote=, priority=, messages=")),
        }
    }
    let subject = subject(net, local, remote).ok_or_else(|| bad(SUBJECTS))?;
    Ok(Rule {
        subject,
        priority,
        messages,
    })
}
