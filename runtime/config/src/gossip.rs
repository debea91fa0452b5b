//! The configuration of age gossip: participants, interval, round trip.

use super::{ConfigError, GroupName};
use muster_fabric::{Nid, NidList};
use muster_hostlist::expand;
use muster_protocol::AgeConfig;
use muster_protocol::age::config::PARTICIPANTS_MAX;
use muster_protocol::age::{Choice, Participant};
use muster_sys::file::read_text;
use std::path::Path;

/// The parameters of age gossip.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GossipConfig {
    /// All participants, in any order. Empty until they are learned.
    pub participants: Vec<ParticipantEntry>,
    /// How the participants are learned, if they are not listed.
    pub told_by: Option<Teller>,
    /// This node's group, if the participants are learned.
    pub own_group: GroupName,
    /// Its name in that group.
    pub own_name: Option<String>,
    /// A cycle, in microseconds.
    pub interval_us: u64,
    /// The estimated round trip of the network, in microseconds.
    pub round_trip_us: u64,
    /// Whether an interval below 200 ms is permitted.
    pub allow_fast_interval: bool,
    /// The part of pings within the own group, in thousandths; none: groups are ignored.
    pub local_permille: Option<u16>,
}

/// How a node learns the participants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Teller {
    /// A gossip server, at HOST:PORT.
    Server(String),
    /// Seeds: the total number of nodes, whose addresses come from PMIx, MPI or the command line.
    Seeds(usize),
}

/// The maximum number of nodes that can be learned from seeds.
const BY_SEEDS_MAX: usize = 1024;

/// A participant of age gossip.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParticipantEntry {
    /// Its NIDs.
    pub nids: NidList,
    /// The group within which it gossips most; may be empty.
    pub group: GroupName,
    /// The name of its host; none: its NID is its name.
    pub name: Option<String>,
}

/// BG-12: the part of a cycle after which a message of the application may carry the next ping, in thousandths.
const PIGGYBACK_PERMILLE: u16 = 750;
/// No group, or no name, in a line of [`written`].
const NONE: &str = "-";
/// The maximum size of a list of participants, in bytes.
pub const LIST_MAX: usize = 64 << 20;

impl GossipConfig {
    /// Parses participants (NIDs or ranges of them, separated by commas or white space; `GROUP=` before
    /// them sets their group; `file:PATH` is the content of a file; `server:HOST:PORT` or `seeds:N` alone
    /// states how they are learned), times in milliseconds, and the local factor.
    ///
    /// # Errors
    /// The first invalid part.
    pub fn parse(
        lists: &[String],
        interval_ms: &str,
        round_trip_ms: &str,
        allow_fast_interval: bool,
        local: Option<&str>,
    ) -> Result<Self, ConfigError> {
        let mut participants = Vec::new();
        let mut told_by = None;
        for list in lists {
            let teller = Teller::parse(list)?;
            if teller.is_some() && lists.len() > 1 {
                let why = "server: and seeds: must be alone, without a list";
                return Err(refuse(list, &why));
            }
            told_by = told_by.or(teller);
        }
        for list in lists.iter().filter(|_| told_by.is_none()) {
            match list.strip_prefix("file:") {
                Some(path) => read_list(&file(Path::new(path))?, &mut participants)?,
                None => read_list(list, &mut participants)?,
            }
        }
        let local_permille = local.map(local_factor).transpose()?;
        let is_grouped = participants
            .iter()
            .any(|one: &ParticipantEntry| !one.group.as_str().is_empty());
        let may_be_grouped = is_grouped || matches!(told_by, Some(Teller::Server(_)));
        if let (Some(local), false) = (local, may_be_grouped) {
            let why = "a local factor requires groups: write the participants as GROUP=NIDS";
            return Err(refuse_at(LOCAL, local, &why));
        }
        Ok(Self {
            participants,
            told_by,
            own_group: GroupName::default(),
            own_name: None,
            local_permille,
            interval_us: milliseconds(interval_ms, INTERVAL)?,
            round_trip_us: milliseconds(round_trip_ms, ROUND_TRIP)?,
            allow_fast_interval,
        })
    }

    /// The engine's configuration on a node with these rails.
    ///
    /// # Errors
    /// None of the rails is a participant, or several are.
    pub fn engine(&self, local: &NidList) -> Result<AgeConfig, String> {
        let alone = [ParticipantEntry {
            nids: local.clone(),
            group: self.own_group.clone(),
            // Seeds have no names.
            name: match self.told_by {
                Some(Teller::Server(_)) => self.own_name.clone(),
                _ => None,
            },
        }];
        let (participants, is_waiting) = match self.told_by {
            Some(_) => (&alone[..], true),
            None => (&self.participants[..], false),
        };
        let is_local = |one: &&ParticipantEntry| {
            let mut nids = one.nids.iter();
            nids.any(|nid| local.iter().any(|own| own == nid))
        };
        if participants.is_empty() {
            return Err(
                "age gossip has no participants: name them (--participants, MUSTER_PARTICIPANTS), or the hosts of the \
                 job (--hosts, MUSTER_HOSTS)"
                    .into(),
            );
        }
        let own: Vec<&ParticipantEntry> = participants.iter().filter(is_local).collect();
        let [own] = own[..] else {
            return Err(format!(
                "{} of the participants are rails of this node, but exactly one is required; its rails are {local}: \
                 list one of them (--participants, MUSTER_PARTICIPANTS; else --hosts, MUSTER_HOSTS)",
                own.len()
            ));
        };
        let (own, participants) = (&own.nids.as_slice()[0], participants.iter());
        let participants = participants.map(|one| {
            let mut participant = Participant::new(&one.nids.to_string());
            participant.group = one.group.as_str().to_owned();
            if let Some(name) = &one.name {
                participant.name.clone_from(name);
            }
            participant
        });
        let mut config = AgeConfig::new(&own.to_string(), participants.collect());
        config.is_waiting = is_waiting;
        config.interval_us = self.interval_us;
        config.round_trip_us = self.round_trip_us;
        config.allow_fast_interval = self.allow_fast_interval;
        if let Some(permille) = self.local_permille {
            config.choice = Choice::Local { permille };
        }
        config.piggyback_permille = Some(PIGGYBACK_PERMILLE);
        Ok(config)
    }
}

/// Participants as lines of NIDs, group and name, for the next worker.
pub fn written(participants: &[ParticipantEntry]) -> String {
    let or_none = |text: &str| if text.is_empty() { NONE } else { text }.to_owned();
    let line = |one: &ParticipantEntry| {
        let (group, name) = (one.group.as_str(), one.name.as_deref());
        let (group, name) = (or_none(group), or_none(name.unwrap_or("")));
        format!("{} {group} {name}\n", one.nids)
    };
    participants.iter().map(line).collect()
}

/// Parses the output of [`written`]; `None` if it is invalid.
pub fn read_written(text: &str) -> Option<Vec<ParticipantEntry>> {
    let read = |line: &str| {
        let fields: Vec<&str> = line.split(' ').collect();
        let [nids, group, name] = fields[..] else {
            return None;
        };
        let group = if group == NONE { "" } else { group };
        Some(ParticipantEntry {
            nids: nids.parse().ok()?,
            group: GroupName::new(group).ok()?,
            name: (name != NONE).then(|| name.to_owned()),
        })
    };
    text.lines().map(read).collect()
}

impl Teller {
    /// The teller in this text, if it is one.
    fn parse(text: &str) -> Result<Option<Self>, ConfigError> {
        if let Some(server) = text.strip_prefix("server:") {
            let port = server.rsplit_once(':').map(|(_, port)| port.parse::<u16>());
            return match port {
                Some(Ok(1..)) => Ok(Some(Self::Server(server.to_owned()))),
                _ => Err(refuse(
                    text,
                    &"a gossip server is server:HOST:PORT, as in server:head:7740",
                )),
            };
        }
        let Some(count) = text.strip_prefix("seeds:") else {
            return Ok(None);
        };
        match count.parse() {
            Ok(count @ 2..=BY_SEEDS_MAX) => Ok(Some(Self::Seeds(count))),
            _ => Err(refuse(
                text,
                &"seeds:N has the number of nodes, 2 to 1024; for more nodes use a gossip server",
            )),
        }
    }
}

/// The options and variables of these parameters.
const PARTICIPANTS: &str = "--participants, MUSTER_PARTICIPANTS";
const INTERVAL: &str = "--interval-ms, MUSTER_INTERVAL_MS";
const ROUND_TRIP: &str = "--round-trip-ms, MUSTER_ROUND_TRIP_MS";
const LOCAL: &str = "--local, MUSTER_LOCAL";

fn refuse(text: &str, why: &dyn ToString) -> ConfigError {
    refuse_at(PARTICIPANTS, text, why)
}

fn refuse_at(place: &'static str, text: &str, why: &dyn ToString) -> ConfigError {
    ConfigError::Gossip {
        place,
        text: text.chars().take(200).collect(),
        why: why.to_string(),
    }
}

fn file(path: &Path) -> Result<String, ConfigError> {
    let failed = |cause: std::io::Error| {
        let why = format!("{cause}; name a readable list of NIDs");
        refuse(&format!("file:{}", path.display()), &why)
    };
    read_text(path, LIST_MAX).map_err(failed)
}

fn read_list(text: &str, participants: &mut Vec<ParticipantEntry>) -> Result<(), ConfigError> {
    for word in text.split_whitespace() {
        let (group, nids) = word.split_once('=').unwrap_or(("", word));
        let group = GroupName::new(group).map_err(|error| refuse(word, &error))?;
        let room = PARTICIPANTS_MAX - participants.len();
        for name in expand(nids, room).map_err(|error| refuse(word, &error))? {
            let nid: Nid = name.parse().map_err(|error| refuse(&name, &error))?;
            let nids = NidList::new(vec![nid]).map_err(|error| refuse(&name, &error))?;
            participants.push(ParticipantEntry {
                nids,
                group: group.clone(),
                name: None,
            });
        }
    }
    Ok(())
}

/// A part of a whole, in thousandths.
fn local_factor(text: &str) -> Result<u16, ConfigError> {
    let part = text.parse::<f64>().ok();
    let part = part.filter(|part| (0.0..=1.0).contains(part));
    let part =
        part.ok_or_else(|| refuse_at(LOCAL, text, &"a local factor is between 0 and 1; use 0.9"))?;
    Ok((part * 1e3).round() as u16)
}

/// Milliseconds with a fraction, in microseconds.
fn milliseconds(text: &str, place: &'static str) -> Result<u64, ConfigError> {
    let number = text.parse::<f64>().ok();
    let number = number.filter(|ms| (0.0..=600_000.0).contains(ms));
    let number =
        number.ok_or_else(|| refuse_at(place, text, &"it must be 0 to 600000 milliseconds"))?;
    Ok((number * 1e3).round() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(list: &str) -> Result<GossipConfig, ConfigError> {
        GossipConfig::parse(&[list.to_owned()], "200", "1.5", false, None)
    }

    /// AG-01, AG-11, BG-04: a list, ranges, both, and a file.
    #[test]
    fn participants_are_lists_ranges_or_a_file() {
        let mixed = parse("10.0.[1-2].[1-8/2]@udp0,10.9.9.9@udp0 10.9.9.8@udp0").unwrap();
        assert_eq!(mixed.participants.len(), 10);
        assert_eq!((mixed.interval_us, mixed.round_trip_us), (200_000, 1_500));
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("list");
        std::fs::write(
            &path,
            "10.0.[1-2].[1-8/2]@udp0\n10.9.9.9@udp0\n10.9.9.8@udp0\n",
        )
        .unwrap();
        assert_eq!(parse(&format!("file:{}", path.display())).unwrap(), mixed);
        let config = mixed.engine(&"10.9.9.9@udp0".parse().unwrap()).unwrap();
        assert_eq!(config.check(), Ok(()));
        assert_eq!(config.own, "10.9.9.9@udp0");
    }

    /// AG-11: empty and too large ranges, and a node that is not in the list.
    #[test]
    fn an_error_names_the_remedy() {
        let error = parse("10.[0-999].[0-999].[0-999]@udp0")
            .unwrap_err()
            .to_string();
        assert!(error.contains("10.[0-999]"), "{error}");
        for text in ["10.0.0.[]@udp0", "10.0.0.[9-1]@udp0", "nonsense"] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains("MUSTER_PARTICIPANTS"), "{error}");
        }
        let error = parse("10.0.0.[1-4]@udp0")
            .unwrap()
            .engine(&"10.0.0.9@udp0".parse().unwrap());
        assert!(error.unwrap_err().contains("its rails are 10.0.0.9@udp0"));
        assert!(GossipConfig::parse(&[], "soon", "1", false, None).is_err());
        let error = parse("").unwrap().engine(&"10.0.0.9@udp0".parse().unwrap());
        assert!(error.unwrap_err().contains("has no participants"));
        for path in ["/nonexistent/list", "/proc/self/exe"] {
            let error = parse(&format!("file:{path}")).unwrap_err().to_string();
            assert!(
                error.contains(path) && error.contains("MUSTER_PARTICIPANTS"),
                "{error}"
            );
        }
    }

    /// The next worker reads the list that a worker has written.
    #[test]
    fn learned_participants_are_kept() {
        let list = "a=10.0.0.[1-2]@udp0 10.0.1.1:7000@udp0";
        let mut participants = parse(list).unwrap().participants;
        participants[1].name = Some("n2".into());
        participants[2].nids = "10.0.1.1:7000@udp0,10.1.1.1@udp1".parse().unwrap();
        let text = written(&participants);
        assert_eq!(read_written(&text), Some(participants));
        assert_eq!(read_written(""), Some(Vec::new()));
        for text in ["10.0.0.1@udp0 -", "nonsense - n1", "10.0.0.1@udp0 - n1 x"] {
            assert_eq!(read_written(text), None, "{text}");
        }
    }

    /// BG-04: a server or seeds stand alone, and the node first has only itself.
    #[test]
    fn participants_come_from_a_server_or_seeds() {
        let gossip = parse("server:head:7740").unwrap();
        assert_eq!(gossip.told_by, Some(Teller::Server("head:7740".into())));
        let config = gossip.engine(&"10.0.0.9@udp0,10.1.0.9@udp1".parse().unwrap());
        let config = config.unwrap();
        assert_eq!((config.check(), config.is_waiting), (Ok(()), true));
        assert_eq!(config.own, "10.0.0.9@udp0");
        assert_eq!(
            config.participants[0].address,
            "10.0.0.9@udp0,10.1.0.9@udp1"
        );
        assert_eq!(parse("seeds:4").unwrap().told_by, Some(Teller::Seeds(4)));
        for text in [
            "server:head",
            "server:head:0",
            "seeds:1",
            "seeds:many",
            "seeds:4 10.0.0.1@udp0",
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains("MUSTER_PARTICIPANTS"), "{error}");
        }
    }

    /// BG-02: a group comes before its NIDs; a local factor requires groups, and is between 0 and 1.
    #[test]
    fn groups_and_the_local_factor() {
        let parse = |list: &str, local| {
            GossipConfig::parse(&[list.to_owned()], "200", "1", false, Some(local))
        };
        let list = "a=10.0.0.[1-2]@udp0 b=10.0.1.1@udp0,10.0.1.2@udp0 10.0.2.1@udp0";
        let gossip = parse(list, "0.9").unwrap();
        let config = gossip.engine(&"10.0.1.2@udp0".parse().unwrap()).unwrap();
        let groups: Vec<&str> = config.participants.iter().map(|one| &*one.group).collect();
        assert_eq!(groups, ["a", "a", "b", "b", ""]);
        assert_eq!(config.choice, Choice::Local { permille: 900 });
        assert_eq!(config.check(), Ok(()));
        for (list, local, expected) in [
            (list, "1.1", "between 0 and 1"),
            (list, "much", "between 0 and 1"),
            ("10.0.0.[1-2]@udp0", "0.9", "GROUP=NIDS"),
        ] {
            let error = parse(list, local).unwrap_err().to_string();
            assert!(
                error.contains(expected) && error.contains("MUSTER_LOCAL"),
                "{error}"
            );
        }
        let long = format!("{}=10.0.0.1@udp0", "x".repeat(32));
        assert!(parse(&long, "0.9").unwrap_err().to_string().contains("31"));
    }
}
