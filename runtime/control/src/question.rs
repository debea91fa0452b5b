//! Requests to an agent: questions and changes, each one line of text.

use muster_config::{Change, ChangeError};
use muster_fabric::Net;
use std::fmt;
use std::str::FromStr;
use thiserror::Error;

/// Peers in one answer, if no number is given.
const PEERS_SHOWN: usize = 4096;

/// What is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Tell something.
    Ask(Question),
    /// Change the configuration of the rails.
    Change(Change),
    /// Set all figures of rails and peers to zero.
    Zero,
    /// Drive age gossip.
    Gossip(GossipCommand),
    /// What has happened, and what will.
    Events {
        /// The number of the last event that is known.
        since: u64,
        /// Go on with what comes.
        follow: bool,
    },
}

/// What age gossip is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GossipCommand {
    /// Take these participants and times in place of what there was, and wait.
    Init {
        /// A cycle, in milliseconds.
        interval_ms: String,
        /// The estimated round trip, in milliseconds.
        round_trip_ms: String,
        /// Whether a cycle may be below 200 ms.
        allow_fast_interval: bool,
        /// The part of pings that stay in the own group, if groups matter.
        local: Option<String>,
        /// Lists and ranges of NIDs.
        participants: Vec<String>,
    },
    /// Go on.
    Start,
    /// Stop.
    Stop,
}

impl fmt::Display for GossipCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Start => f.write_str("gossip start"),
            Self::Stop => f.write_str("gossip stop"),
            Self::Init {
                interval_ms,
                round_trip_ms,
                allow_fast_interval,
                local,
                participants,
            } => {
                let local = local.as_deref().unwrap_or("-");
                let fast = if *allow_fast_interval { "fast" } else { "safe" };
                let list = participants.join(" ");
                write!(
                    f,
                    "gossip init {interval_ms} {round_trip_ms} {fast} {local} {list}"
                )
            }
        }
    }
}

/// A question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Question {
    /// All known members, with state, ranks and evidence.
    Members,
    /// The zones of the job.
    Zones,
    /// The nodes of the zone at this path.
    Zone(String),
    /// What is known about one member, and from whom.
    Why(String),
    /// The local rails and what went over them.
    Rails,
    /// One of the rails of a net.
    Rail {
        /// The net.
        net: Net,
        /// Which of its rails, from 0.
        index: usize,
    },
    /// The nets, with the sums of their rails.
    Nets,
    /// The peers and their NIDs, with figures.
    Peers {
        /// At most so many.
        most: usize,
        /// Those behind this many.
        behind: usize,
    },
    /// The rules in force.
    Policy,
    /// What went through other members, and what they have had carried here.
    Relays,
    /// Why a message takes the rail that it takes now.
    Explain {
        /// This node, or one of its NIDs; none is this node.
        from: Option<String>,
        /// A member's name, or one of its NIDs.
        to: String,
    },
    /// The configuration of the rails as a document.
    Export,
    /// The counters.
    Stats,
    /// Age gossip: parameters, clock, ages.
    Gossip,
    /// The attributes of one member, or of all.
    Attributes(Option<String>),
    /// Who the agent is: release, process, scheduling, cores.
    About,
    /// What it was started with, and where each setting came from.
    Config,
    /// All figures, as OpenMetrics has them.
    Metrics,
}

impl Question {
    /// The peers, up to the default number.
    #[must_use]
    pub fn peers() -> Question {
        Question::Peers {
            most: PEERS_SHOWN,
            behind: 0,
        }
    }
}

/// A line that asks nothing.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum RequestError {
    /// It begins like nothing that is known.
    #[error(
        "{0:?} is no question; ask members, zones, zone PATH, why NAME, attrs, events, rails, nets, peers, policy, \
         relays, explain NAME, export, stats, metrics, config or about, or say what to change"
    )]
    Unknown(String),
    /// It begins like a change.
    #[error(transparent)]
    Change(#[from] ChangeError),
}

impl FromStr for Request {
    type Err = RequestError;

    fn from_str(line: &str) -> Result<Self, RequestError> {
        let words: Vec<&str> = line.split(' ').collect();
        let named = |name: &str| !name.is_empty();
        let question = match words[..] {
            ["members"] => Question::Members,
            ["zones"] => Question::Zones,
            ["zone", path] if named(path) => Question::Zone(path.to_owned()),
            ["rails"] => Question::Rails,
            ["nets"] => Question::Nets,
            ["policy"] => Question::Policy,
            ["relays"] => Question::Relays,
            ["export"] => Question::Export,
            ["stats"] => Question::Stats,
            ["about"] => Question::About,
            ["config"] => Question::Config,
            ["metrics"] => Question::Metrics,
            ["attrs"] => Question::Attributes(None),
            ["attrs", name] if named(name) => Question::Attributes(Some(name.to_owned())),
            ["events", ref how @ ..] => {
                let events = events(how);
                return events.ok_or_else(|| RequestError::Unknown(line.to_owned()));
            }
            ["stats", "zero"] => return Ok(Self::Zero),
            ["gossip"] => Question::Gossip,
            ["gossip", "start"] => return Ok(Self::Gossip(GossipCommand::Start)),
            ["gossip", "stop"] => return Ok(Self::Gossip(GossipCommand::Stop)),
            [
                "gossip",
                "init",
                interval,
                round_trip,
                fast @ ("fast" | "safe"),
                local,
                ref list @ ..,
            ] => {
                return Ok(Self::Gossip(GossipCommand::Init {
                    interval_ms: interval.to_owned(),
                    round_trip_ms: round_trip.to_owned(),
                    allow_fast_interval: fast == "fast",
                    local: Some(local).filter(|local| *local != "-").map(str::to_owned),
                    participants: list.iter().map(|word| (*word).to_owned()).collect(),
                }));
            }
            ["peers"] => Question::peers(),
            ["peers", most, behind] if most != "add" && most != "del" => {
                let numbers = most.parse().ok().zip(behind.parse().ok());
                let (most, behind) =
                    numbers.ok_or_else(|| RequestError::Unknown(line.to_owned()))?;
                Question::Peers { most, behind }
            }
            ["rails", net, index] if !["add", "del", "set"].contains(&net) => {
                let rail = net.parse().ok().zip(index.parse().ok());
                let (net, index) = rail.ok_or_else(|| RequestError::Unknown(line.to_owned()))?;
                Question::Rail { net, index }
            }
            ["why", name] if named(name) => Question::Why(name.to_owned()),
            ["explain", to] if named(to) => Question::Explain {
                from: None,
                to: to.to_owned(),
            },
            ["explain", from, to] if named(from) && named(to) => Question::Explain {
                from: Some(from.to_owned()),
                to: to.to_owned(),
            },
            ["rails" | "limits" | "peers" | "policy", ..] => {
                return Ok(Self::Change(line.parse()?));
            }
            _ => return Err(RequestError::Unknown(line.to_owned())),
        };
        Ok(Self::Ask(question))
    }
}

/// `[SINCE] [follow]`.
fn events(how: &[&str]) -> Option<Request> {
    let (how, follow) = match how {
        [before @ .., "follow"] => (before, true),
        how => (how, false),
    };
    let since = match how {
        [] => 0,
        [number] => number.parse().ok()?,
        _ => return None,
    };
    Some(Request::Events { since, follow })
}

impl fmt::Display for Request {
    /// The line; a whole document follows its line, see [`Request::body`].
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ask(question) => question.fmt(f),
            Self::Change(change) => change.fmt(f),
            Self::Zero => f.write_str("stats zero"),
            Self::Gossip(command) => command.fmt(f),
            Self::Events { since, follow } => {
                write!(f, "events {since}{}", if *follow { " follow" } else { "" })
            }
        }
    }
}

impl Request {
    /// Whether users that are not the agent's may ask it, where the site lets them: whatever changes
    /// nothing, but for what applications have written.
    #[must_use]
    pub fn is_for_all(&self) -> bool {
        match self {
            Self::Ask(question) => !matches!(question, Question::Attributes(_)),
            Self::Events { .. } => true,
            Self::Change(_) | Self::Zero | Self::Gossip(_) => false,
        }
    }

    /// What follows the line.
    #[must_use]
    pub fn body(&self) -> Option<String> {
        match self {
            Self::Change(Change::Replace(document)) => Some(document.export()),
            _ => None,
        }
    }
}

impl fmt::Display for Question {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Members => f.write_str("members"),
            Self::Zones => f.write_str("zones"),
            Self::Zone(path) => write!(f, "zone {path}"),
            Self::Why(name) => write!(f, "why {name}"),
            Self::Rails => f.write_str("rails"),
            Self::Rail { net, index } => write!(f, "rails {net} {index}"),
            Self::Nets => f.write_str("nets"),
            Self::Peers { most, behind } => write!(f, "peers {most} {behind}"),
            Self::Policy => f.write_str("policy"),
            Self::Relays => f.write_str("relays"),
            Self::Explain { from: None, to } => write!(f, "explain {to}"),
            Self::Explain {
                from: Some(from),
                to,
            } => write!(f, "explain {from} {to}"),
            Self::Export => f.write_str("export"),
            Self::Stats => f.write_str("stats"),
            Self::Gossip => f.write_str("gossip"),
            Self::Attributes(None) => f.write_str("attrs"),
            Self::Attributes(Some(name)) => write!(f, "attrs {name}"),
            Self::About => f.write_str("about"),
            Self::Config => f.write_str("config"),
            Self::Metrics => f.write_str("metrics"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_round_trip_and_anything_else_is_none() {
        let explain = |from: Option<&str>| Question::Explain {
            from: from.map(str::to_owned),
            to: "n2".into(),
        };
        for question in [
            Question::Members,
            Question::Zones,
            Question::Zone("row1/rack2".into()),
            Question::Why("n1".into()),
            Question::Rails,
            Question::Rail {
                net: "udp1".parse().unwrap(),
                index: 3,
            },
            Question::Nets,
            Question::peers(),
            Question::Peers { most: 3, behind: 7 },
            Question::Policy,
            Question::Relays,
            explain(None),
            explain(Some("n1")),
            Question::Export,
            Question::Stats,
            Question::Gossip,
            Question::Attributes(None),
            Question::Attributes(Some("n2".into())),
            Question::About,
            Question::Config,
            Question::Metrics,
        ] {
            let request = Request::Ask(question);
            assert_eq!(request.to_string().parse(), Ok(request));
        }
        let change = Request::Change("policy del 3".parse().unwrap());
        let events = |since, follow| Request::Events { since, follow };
        let init = GossipCommand::Init {
            interval_ms: "200".into(),
            round_trip_ms: "0.5".into(),
            allow_fast_interval: true,
            local: Some("0.9".into()),
            participants: vec!["10.0.0.[1-4]@udp0".into(), "10.0.1.1@udp0".into()],
        };
        let gossip = [GossipCommand::Start, GossipCommand::Stop, init].map(Request::Gossip);
        for request in [Request::Zero, change, events(0, false), events(7, true)]
            .into_iter()
            .chain(gossip)
        {
            assert_eq!(request.to_string().parse(), Ok(request));
        }
        for line in [
            "",
            "why",
            "why ",
            "why a b",
            "members now",
            "Members",
            "\0",
            "peers 3",
            "peers a b",
            "rails now",
            "rails udp0 x",
            "rails quantum0 1",
            "policy del",
            "explain a b c",
            "events x",
            "events follow 3",
            "events 3 4 follow",
            "attrs a b",
        ] {
            assert!(line.parse::<Request>().is_err(), "{line:?}");
        }
    }
}
