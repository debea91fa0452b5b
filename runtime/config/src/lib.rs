//! The configuration of an agent at its start: names, rails, seeds, timing, key.
//!
//! Values come from the command line of `musterd` and from `MUSTER_*` variables (an option
//! overrides its variable). Everything is checked once, here; later code relies on that.

mod change;
mod change_error;
mod gossip;
mod group;
mod hosts;
mod key;
mod line;
mod peers;
mod profile;
mod rails;
mod unknown;
mod yaml;
mod zones;

pub use change::{Change, Limit, RuleChoice};
pub use change_error::ChangeError;
pub use gossip::{GossipConfig, ParticipantEntry, Teller};
pub use gossip::{LIST_MAX, read_written, written};
pub use group::{GroupName, parse_minority};
pub use hosts::{participants_of_hosts, seeds_of_hosts};
pub use key::{
    KeyError, KeySource, draw_key, draw_seed, leave_key, read_key, read_key_file, standing_key,
};
pub use muster_protocol::{Minority, Profile};
pub use peers::peers_of;
pub use profile::{ProfileError, parse_profile};
pub use rails::{RailEntry, RailsDocument, SUBJECTS, subject, switch_word};
pub use unknown::{check_log, strange_settings, unknown_settings};
pub use yaml::{DOCUMENT_MAX, YamlError};
pub use zones::{
    JobZones, NodeList, Topology, ZoneSourceError, ZoneSources, nodes_of_step, parse_topology,
    parse_zones, refuse_zones,
};

use muster_fabric::{Nid, NidError, NidList};
use muster_sys::file::{read_text, text_of};
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use thiserror::Error;

/// The maximum length of a member name, in bytes.
pub const NAME_BYTES_MAX: usize = 63;
/// The maximum number of rails of one agent.
pub const RAILS_MAX: usize = muster_fabric::NIDS_MAX;
/// The maximum number of seed addresses.
pub const SEEDS_MAX: usize = 1024;

/// The maximum number of peers in one change: as many as an agent supports.
pub const PEERS_AT_ONCE_MAX: usize = SEEDS_MAX;

/// The longest linger time in milliseconds: one day.
pub const LINGER_MS_MAX: u64 = 86_400_000;

/// Bounds of the size of a journal file, in KiB.
pub const JOURNAL_KB: std::ops::RangeInclusive<u64> = 4..=1 << 20;

/// The highest DSCP, which has six bits.
const DSCP_MAX: u8 = 63;

/// The configuration that an agent requires to start.
#[derive(Clone, Debug)]
pub struct AgentConfig {
    /// The member's name, unique among the members of its job.
    pub name: MemberName,
    /// Its failure group: what it shares with nodes that may fail together with it.
    pub group: GroupName,
    /// What it does on the smaller side of a split.
    pub minority: Minority,
    /// The DSCP of its datagrams on udp rails; 0 for none.
    pub dscp: u8,
    /// Its rails (if empty, see [`muster_fabric::DefaultRails`]), peers, policy and limits.
    pub rails: RailsDocument,
    /// Addresses of members to join, one entry a member.
    pub seeds: Vec<NidList>,
    /// The zones of the job; none if it is one zone.
    pub zones: Option<JobZones>,
    /// Addresses of nodes of a job with zones, by the names of the nodes.
    pub contacts: Vec<(String, NidList)>,
    /// Heartbeat and deadline.
    pub profile: Profile,
    /// The configuration of age gossip, if it runs instead of the overlay.
    pub gossip: Option<GossipConfig>,
    /// The file that the state of age gossip is written to, if any.
    pub gossip_state: Option<PathBuf>,
    /// The source of the job key.
    pub key: KeySource,
    /// How long an agent without clients continues to run.
    pub linger: Duration,
    /// When an agent without clients ends.
    pub stay: Stay,
    /// The port of rails without a port.
    pub port: u16,
    /// Whether a rail without a port takes the next free port if its own is taken. This is possible if the other agents
    /// learn the port from PMIx or MPI, and expect none.
    pub port_may_move: bool,
    /// The incarnation of a lost agent that this agent replaces: it asks the other members for that one's state.
    pub former: Option<u64>,
    /// Seed of all random choices of this agent; printed in its log.
    pub random_seed: u64,
    /// The journal of its events, if any.
    pub journal: Option<JournalConfig>,
    /// The directory of the socket for other users, if any.
    pub readable_in: Option<PathBuf>,
    /// All settings as they were given, for `muster config show`.
    pub settings: Vec<Setting>,
}

/// Where the journal is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalConfig {
    /// The directory of the files, one for each job and node, with its predecessor.
    pub directory: PathBuf,
    /// The maximum size of each file, in KiB.
    pub kilobytes_max: u64,
}

/// One setting and its origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// The name of its option.
    pub key: String,
    /// Its value as text.
    pub value: String,
    /// An option, a variable, a file, or the default.
    pub origin: String,
}

/// When an agent of a job without clients ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stay {
    /// After its linger time: clients start a new one when they need it.
    Lingering,
    /// When its standard input is closed and the last client has gone.
    WithInput,
    /// When it is requested to end.
    UntilAsked,
}

/// A checked member name: 1 to 63 printable ASCII characters without spaces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberName(String);

impl MemberName {
    /// Checks a name.
    ///
    /// # Errors
    /// Refuses a name that is empty, too long, or contains anything but printable ASCII.
    pub fn new(name: &str) -> Result<Self, ConfigError> {
        let name = name.to_owned();
        match flaw_of_name(&name) {
            Some(why) => Err(ConfigError::Name { name, why }),
            None => Ok(Self(name)),
        }
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for MemberName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The reason why a text is not a valid member name, if it is not.
pub fn flaw_of_name(name: &str) -> Option<&'static str> {
    match name {
        "" => Some("it is empty"),
        _ if name.len() > NAME_BYTES_MAX => Some("it is longer than 63 bytes"),
        _ if !name.bytes().all(|b| b.is_ascii_graphic()) => {
            Some("only printable ASCII without spaces is allowed")
        }
        _ => None,
    }
}

/// The reason why a configuration is refused. Nothing was started.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// An invalid member name.
    #[error("name {name:?}: {why}; give another one with --name or MUSTER_NODE")]
    Name {
        /// The name as given.
        name: String,
        /// The reason.
        why: &'static str,
    },
    /// An invalid group.
    #[error("group {name:?}: {why}; give another one with --group or MUSTER_GROUP, or none")]
    Group {
        /// The name as given.
        name: String,
        /// The reason.
        why: &'static str,
    },
    /// An unknown policy for minorities.
    #[error(
        "minority {text:?} does not exist; choose continue or hold (--minority, MUSTER_MINORITY)"
    )]
    Minority {
        /// The policy as given.
        text: String,
    },
    /// An invalid DSCP.
    #[error("DSCP {text:?}: give a number from 0 (no mark) to 63 with --dscp or MUSTER_DSCP")]
    Dscp {
        /// The number as given.
        text: String,
    },
    /// An invalid rail.
    #[error(
        "rail {text:?}: {source} (--rail, MUSTER_RAILS: ADDRESS[:PORT]@NET or INTERFACE[:PORT]@NET, such as \
         10.0.0.1@udp0)"
    )]
    Rail {
        /// The rail as given.
        text: String,
        /// The parser's error.
        source: NidError,
    },
    /// An invalid seed.
    #[error(
        "seed {text:?}: {source} (--seed, MUSTER_SEEDS: [NODE=]ADDRESS[:PORT]@NET[,ADDRESS[:PORT]@NET...])"
    )]
    Seed {
        /// The seed as given.
        text: String,
        /// The parser's error.
        source: NidError,
    },
    /// Unusable zones.
    #[error("zones {text:?}: {why} (--zones, MUSTER_ZONES)")]
    Zones {
        /// The setting as given.
        text: String,
        /// The reason and the remedy.
        why: String,
    },
    /// An unusable list of the job's nodes.
    #[error("nodes {text:?}: {why} (--nodes, MUSTER_NODES)")]
    Nodes {
        /// The list as given.
        text: String,
        /// The reason and the remedy.
        why: String,
    },
    /// Unusable hosts.
    #[error("hosts {text:?}: {why} (--hosts, MUSTER_HOSTS)")]
    Hosts {
        /// The hosts as given.
        text: String,
        /// The reason and the remedy.
        why: String,
    },
    /// The agent is to serve a job, but no job is set.
    #[error(
        "there is no job to serve; export MUSTER_JOB=NAME to this agent and to the ranks, for example \
         MUSTER_JOB=$SLURM_JOB_ID"
    )]
    NoJob,
    /// More of something than an agent supports.
    #[error("{count} {what} were given, but at most {limit} are possible; leave some out")]
    TooMany {
        /// The kind of thing.
        what: &'static str,
        /// How many there were.
        count: usize,
        /// The maximum number.
        limit: usize,
    },
    /// An invalid linger time.
    #[error(
        "linger time {text:?}: it must be 0 to {LINGER_MS_MAX} milliseconds (--linger-ms, MUSTER_LINGER_MS)"
    )]
    Linger {
        /// The time as given.
        text: String,
    },
    /// An invalid size of the journal.
    #[error(
        "journal bound {text:?}: it must be {} to {} KiB (--journal-kb, MUSTER_JOURNAL_KB)",
        JOURNAL_KB.start(), JOURNAL_KB.end()
    )]
    JournalBound {
        /// The bound as given.
        text: String,
    },
    /// An unreadable file of rails, peers and policy.
    #[error("config {path}: {source}; name a readable file with --config or MUSTER_CONFIG")]
    File {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// An invalid file of rails, peers and policy.
    #[error("config {path}, {source}; muster-config(5) has every key (--config, MUSTER_CONFIG)")]
    Document {
        /// The file.
        path: PathBuf,
        /// The error and its position.
        source: YamlError,
    },
    /// Rails that contradict each other.
    #[error("rails: {0}; give others with --rail or MUSTER_RAILS")]
    Rails(String),
    /// An invalid parameter of age gossip.
    #[error("gossip, {text:?}: {why} ({place})")]
    Gossip {
        /// The option and the variable.
        place: &'static str,
        /// The text as given.
        text: String,
        /// The reason.
        why: String,
    },
    /// An unknown profile.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// An unusable job key.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// An unusable directory of keys and sockets.
    #[error("{0}")]
    Directory(String),
}

/// Parses a DSCP.
///
/// # Errors
/// If it is no number from 0 to 63.
pub fn parse_dscp(text: &str) -> Result<u8, ConfigError> {
    let dscp = text.parse().ok().filter(|dscp| *dscp <= DSCP_MAX);
    dscp.ok_or_else(|| ConfigError::Dscp {
        text: text.to_owned(),
    })
}

/// Parses rails; each entry may itself be a comma-separated list.
///
/// # Errors
/// The first invalid rail, or too many rails.
pub fn parse_rails(texts: &[String]) -> Result<Vec<Nid>, ConfigError> {
    let mut rails = Vec::new();
    for text in texts.iter().flat_map(|text| text.split(',')).map(str::trim) {
        let nid = text.parse().map_err(|source| ConfigError::Rail {
            text: text.to_owned(),
            source,
        })?;
        rails.push(nid);
    }
    limit("rails", rails.len(), RAILS_MAX)?;
    Ok(rails)
}

/// Reads a document of rails, peers and policy; `-` is standard input.
///
/// # Errors
/// A file that cannot be read, or the first error in it, with line and column.
pub fn read_document(path: &Path) -> Result<RailsDocument, ConfigError> {
    let read = match path == Path::new("-") {
        true => text_of(std::io::stdin(), DOCUMENT_MAX),
        false => read_text(path, DOCUMENT_MAX),
    };
    let text = read.map_err(|source| ConfigError::File {
        path: path.to_owned(),
        source,
    })?;
    RailsDocument::import(&text).map_err(|source| {
        let path = path.to_owned();
        ConfigError::Document { path, source }
    })
}

/// A member to join.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeedEntry {
    /// The name of its node, if it is given.
    pub node: Option<String>,
    /// Its NIDs.
    pub nids: NidList,
}

/// Parses seeds, separated by white space; each is one member's list of NIDs, behind `NODE=` if its node is named.
///
/// # Errors
/// The first invalid seed, or too many seeds.
pub fn parse_seeds(texts: &[String]) -> Result<Vec<SeedEntry>, ConfigError> {
    let parse = |text: &str| -> Result<SeedEntry, ConfigError> {
        let (node, list) = match text.split_once('=') {
            Some((node, list)) => (Some(node.to_owned()), list),
            None => (None, text),
        };
        let nids = list.parse().map_err(|source| ConfigError::Seed {
            text: text.to_owned(),
            source,
        })?;
        Ok(SeedEntry { node, nids })
    };
    let texts = texts.iter().flat_map(|text| text.split_whitespace());
    let seeds: Vec<SeedEntry> = texts.map(parse).collect::<Result<_, _>>()?;
    limit("seeds", seeds.len(), SEEDS_MAX)?;
    Ok(seeds)
}

/// Parses a linger time in milliseconds.
///
/// # Errors
/// Anything but a whole number up to [`LINGER_MS_MAX`].
pub fn parse_linger(text: &str) -> Result<Duration, ConfigError> {
    let number = text.parse().ok().filter(|ms| *ms <= LINGER_MS_MAX);
    number
        .map(Duration::from_millis)
        .ok_or_else(|| ConfigError::Linger {
            text: text.to_owned(),
        })
}

/// Parses the bound of a journal's file.
///
/// # Errors
/// Anything but a whole number within [`JOURNAL_KB`].
pub fn parse_journal_kb(text: &str) -> Result<u64, ConfigError> {
    let number = text.parse().ok().filter(|kb| JOURNAL_KB.contains(kb));
    number.ok_or_else(|| ConfigError::JournalBound {
        text: text.to_owned(),
    })
}

fn limit(what: &'static str, count: usize, limit: usize) -> Result<(), ConfigError> {
    if count > limit {
        Err(ConfigError::TooMany { what, count, limit })
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_name_is_refused_with_the_reason() {
        for (name, why) in [("", "empty"), ("a b", "printable"), ("\u{e4}", "printable")] {
            let error = MemberName::new(name).unwrap_err().to_string();
            assert!(error.contains(why) && error.contains("--name"), "{error}");
        }
        assert!(
            MemberName::new(&"x".repeat(64))
                .unwrap_err()
                .to_string()
                .contains("63")
        );
        assert_eq!(MemberName::new("n1").unwrap().as_str(), "n1");
    }

    #[test]
    fn a_bad_rail_or_seed_is_named_in_the_error() {
        let error = parse_rails(&["127.0.0.1@udp0,nonsense".into()])
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("nonsense") && error.contains("@udp0"),
            "{error}"
        );
        let error = parse_seeds(&["127.0.0.1:99999@udp0".into()])
            .unwrap_err()
            .to_string();
        assert!(error.contains("99999"), "{error}");
        let many = vec!["127.0.0.1@udp0".to_owned(); 9];
        assert!(parse_rails(&many).unwrap_err().to_string().contains("8"));
    }

    #[test]
    fn a_journals_bound_has_a_range() {
        assert_eq!(parse_journal_kb("4").unwrap(), 4);
        for text in ["", "3", "1M", "9999999"] {
            let error = parse_journal_kb(text).unwrap_err().to_string();
            assert!(error.contains("4 to 1048576 KiB"), "{error}");
        }
    }

    #[test]
    fn a_linger_time_has_a_unit_and_a_limit() {
        assert_eq!(parse_linger("100").unwrap(), Duration::from_millis(100));
        for text in ["", "soon", "-1", "86400001", "18446744073709551615"] {
            let error = parse_linger(text).unwrap_err().to_string();
            assert!(
                error.contains(text) && error.contains("MUSTER_LINGER_MS"),
                "{error}"
            );
        }
    }
}
