//! What age gossip is told: who takes part, how often, how far away.

use super::ConfigError;
use muster_fabric::{Nid, NidList, expand};
use muster_protocol::AgeConfig;
use muster_protocol::age::Participant;
use muster_protocol::age::config::PARTICIPANTS_MAX;
use std::path::Path;

/// Which engine runs, and what age gossip needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GossipConfig {
    /// The NIDs of all participants, in any order.
    pub participants: Vec<Nid>,
    /// A cycle, in microseconds.
    pub interval_us: u64,
    /// The estimated round trip of the network, in microseconds.
    pub round_trip_us: u64,
    /// Whether an interval below 200 ms is meant.
    pub allow_fast_interval: bool,
}

/// Most bytes of a list of participants.
const LIST_MAX: u64 = 64 << 20;

impl GossipConfig {
    /// Reads participants (NIDs or ranges of them, with commas or white space between; `file:PATH` is
    /// the content of a file) and times in milliseconds.
    ///
    /// # Errors
    /// The first thing that cannot be understood.
    pub fn parse(
        lists: &[String],
        interval_ms: &str,
        round_trip_ms: &str,
        allow_fast_interval: bool,
    ) -> Result<Self, ConfigError> {
        let mut participants = Vec::new();
        for list in lists {
            match list.strip_prefix("file:") {
                Some(path) => read_list(&file(Path::new(path))?, &mut participants)?,
                None => read_list(list, &mut participants)?,
            }
        }
        Ok(Self {
            participants,
            interval_us: milliseconds(interval_ms)?,
            round_trip_us: milliseconds(round_trip_ms)?,
            allow_fast_interval,
        })
    }

    /// The engine's configuration on a node with these rails.
    ///
    /// # Errors
    /// None of the rails is a participant, or two are.
    pub fn engine(&self, local: &NidList) -> Result<AgeConfig, String> {
        let is_local = |nid: &&Nid| local.iter().any(|own| own == *nid);
        let own: Vec<&Nid> = self.participants.iter().filter(is_local).collect();
        let [own] = own[..] else {
            return Err(format!(
                "{} of the participants are rails of this node, and it has to be one; its rails are {local}: \
                 list one of them (--participants, MUSTER_PARTICIPANTS)",
                own.len()
            ));
        };
        let participants = self.participants.iter();
        let participants = participants.map(|nid| Participant::new(&nid.to_string()));
        let mut config = AgeConfig::new(&own.to_string(), participants.collect());
        config.interval_us = self.interval_us;
        config.round_trip_us = self.round_trip_us;
        config.allow_fast_interval = self.allow_fast_interval;
        Ok(config)
    }
}

fn refuse(text: &str, why: &dyn ToString) -> ConfigError {
    ConfigError::Gossip {
        text: text.chars().take(200).collect(),
        why: why.to_string(),
    }
}

fn file(path: &Path) -> Result<String, ConfigError> {
    let failed = |source| ConfigError::File {
        path: path.to_owned(),
        source,
    };
    let size = std::fs::metadata(path).map_err(failed)?.len();
    if size > LIST_MAX {
        return Err(refuse(
            &path.to_string_lossy(),
            &"the file has more than 64 MiB",
        ));
    }
    std::fs::read_to_string(path).map_err(failed)
}

fn read_list(text: &str, participants: &mut Vec<Nid>) -> Result<(), ConfigError> {
    for word in text.split_whitespace() {
        let room = PARTICIPANTS_MAX - participants.len();
        for name in expand(word, room).map_err(|error| refuse(word, &error))? {
            participants.push(name.parse().map_err(|error| refuse(&name, &error))?);
        }
    }
    Ok(())
}

/// Milliseconds with a fraction, as microseconds.
fn milliseconds(text: &str) -> Result<u64, ConfigError> {
    let number = text.parse::<f64>().ok();
    let number = number.filter(|ms| (0.0..=600_000.0).contains(ms));
    let number = number.ok_or_else(|| refuse(text, &"give 0 to 600000 milliseconds"))?;
    Ok((number * 1e3).round() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(list: &str) -> Result<GossipConfig, ConfigError> {
        GossipConfig::parse(&[list.to_owned()], "200", "1.5", false)
    }

    /// AG-01, AG-11: a list, ranges, both, and a file.
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

    /// AG-11: empty and exploding ranges, and a node that is not in the list.
    #[test]
    fn what_is_wrong_is_said_with_the_remedy() {
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
        assert!(GossipConfig::parse(&[], "soon", "1", false).is_err());
    }
}
