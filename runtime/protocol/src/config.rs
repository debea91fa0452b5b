//! Configuration of an engine, checked once.
//!
//! A value out of bounds is rejected with its name, the reason and the remedy. After `check` the engine
//! relies on every field.

use crate::identity::{ADDRESS_MAX, GROUP_MAX, INCARNATION_MAX, NAME_MAX};
use crate::member_info::MemberInfo;
use crate::parameters::Parameters;
use crate::reporters::REPORTERS_MAX;
pub(crate) use muster_wire::settings::{ConfigError, MTU_MAX, MTU_MIN, Policy};

/// Most seeds of one engine.
pub const SEEDS_MAX: usize = 1024;

/// A heartbeat and a deadline that fit each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// 10 ms and 40 ms: for reserved cores.
    Fast,
    /// 20 ms and 60 ms: the default.
    Standard,
    /// 200 ms and 1 s: for shared machines and wide nets.
    Quiet,
}

impl Profile {
    /// Time between two beats, in microseconds.
    #[must_use]
    pub const fn heartbeat_us(self) -> u64 {
        match self {
            Self::Fast => 10_000,
            Self::Standard => 20_000,
            Self::Quiet => 200_000,
        }
    }

    /// Silence after which an observer reports, in microseconds.
    #[must_use]
    pub const fn deadline_us(self) -> u64 {
        match self {
            Self::Fast => 40_000,
            Self::Standard => 60_000,
            Self::Quiet => 1_000_000,
        }
    }
}

/// Policy of the smaller side of a split. Equal for all members of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Minority {
    /// Report it, and go on: the other side is failed.
    Continue,
    /// Report it, and hold: the other side stays suspect until more than half of all members answer again,
    /// or a launcher or an administrator says that they have failed.
    Hold,
}

/// Rules of dissemination and judgement. Equal for all members of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The default: the first change after a quiet time is sent at once, later ones wait until `tau_us`
    /// after it, and all additions listed in the module `overlay` apply.
    Prompt {
        /// Least time between two updates on one link, in microseconds.
        tau_us: u64,
    },
    /// The plain algorithm of the paper, see the module `paper`.
    Paper {
        /// Time from the first change to the update that carries it, in microseconds.
        tau_us: u64,
    },
}

impl Mode {
    /// The interval of aggregation, in microseconds.
    #[must_use]
    pub const fn tau_us(self) -> u64 {
        match self {
            Self::Prompt { tau_us } | Self::Paper { tau_us } => tau_us,
        }
    }

    /// Whether this is paper mode.
    #[must_use]
    pub const fn is_paper(self) -> bool {
        matches!(self, Self::Paper { .. })
    }
}

/// The zone of an engine. The default is that of a job with one zone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ZoneConfig {
    /// The number of the zone. Only frames with the same number are accepted.
    pub number: u32,
    /// Digest of the job's zones. Equal for all members of a job.
    pub map_digest: u64,
    /// Most entries of the ledger; further ones are rejected and counted.
    pub ledger_entries_max: usize,
}

/// Configuration of an engine.
#[derive(Clone, Debug)]
pub struct Config {
    /// Name of the node, unique in the job: 1 to 63 bytes of printable ASCII without spaces.
    pub name: String,
    /// Name of its group, whose members may fail together (a rack, a switch): up to 31 bytes of printable
    /// ASCII without spaces; empty for none.
    pub group: String,
    /// Address for peers; opaque, 1 to 255 bytes.
    pub address: Vec<u8>,
    /// Addresses to send join requests to while they are not in the view. `Input::Seed` adds more.
    pub seeds: Vec<Vec<u8>>,
    /// The job's key if it is known; `Input::Key` sets it later.
    pub key: Option<[u8; 32]>,
    /// The incarnation: the launch time in nanoseconds, above every earlier one.
    pub incarnation: u64,
    /// The previous incarnation, if it broke off and its fate matters to the ranks still served: the engine
    /// asks the others for it before its own incarnation begins (restart inquiry). Not in paper mode.
    pub previous_incarnation: Option<u64>,
    /// Sequence before the first frame. A worker that takes over must start above its predecessor: use the
    /// monotonic clock in microseconds.
    pub first_sequence: u64,
    /// Seed of all random choices.
    pub random_seed: u64,
    /// Time between two beats, in microseconds.
    pub heartbeat_us: u64,
    /// Silence after which an observer reports, in microseconds; at least twice the heartbeat.
    pub deadline_us: u64,
    /// Most that is added to the deadline of a neighbour with irregular beats, in microseconds; 0 for a
    /// fixed deadline. The default is three deadlines, at most one second.
    pub deadline_slack_us: u64,
    /// Distinct reporters that remove a member (the paper's Theta).
    pub theta: usize,
    /// Ring successors each member observes (the paper's K_s); at least `theta`.
    pub successors: usize,
    /// Random neighbours each member keeps (the paper's K_r).
    pub neighbours: usize,
    /// Largest datagram, in bytes.
    pub mtu: usize,
    /// Policy when declared failed.
    pub policy: Policy,
    /// Policy on the smaller side of a split.
    pub minority: Minority,
    /// Most members in the view; further ones are rejected and counted.
    pub members_max: usize,
    /// Rules of dissemination and judgement.
    pub mode: Mode,
    /// Most removed members remembered; the oldest are dropped first.
    pub history_max: usize,
    /// The zone, if the job has several.
    pub zone: ZoneConfig,
    /// Most memory for the attributes of all members, in bytes; further ones are rejected and counted. At
    /// least 4 MiB.
    pub attribute_bytes_max: usize,
}

impl Config {
    /// What it has to have in common with all members of the job.
    pub(crate) fn parameters(&self) -> Parameters {
        Parameters {
            // Both are at most ten minutes, by the checks.
            heartbeat_us: self.heartbeat_us as u32,
            deadline_us: self.deadline_us as u32,
            theta: self.theta as u8,
            is_paper: self.mode.is_paper(),
            holds: self.minority == Minority::Hold,
            zones: self.zone.map_digest,
        }
    }

    /// The configuration of the node `name` at `address` with the defaults of `profile`.
    #[must_use]
    pub fn new(name: &str, address: &[u8], profile: Profile) -> Self {
        Self {
            name: name.to_owned(),
            group: String::new(),
            address: address.to_vec(),
            seeds: Vec::new(),
            key: None,
            incarnation: 1,
            previous_incarnation: None,
            first_sequence: 1,
            random_seed: 0,
            heartbeat_us: profile.heartbeat_us(),
            deadline_us: profile.deadline_us(),
            deadline_slack_us: if profile.deadline_us() < 333_333 {
                3 * profile.deadline_us()
            } else {
                1_000_000
            },
            theta: 2,
            successors: 2,
            neighbours: 3,
            mtu: 1472,
            policy: Policy::Rejoin,
            minority: Minority::Continue,
            members_max: 4096,
            history_max: 4096,
            zone: ZoneConfig::default(),
            attribute_bytes_max: 64 << 20,
            mode: Mode::Prompt { tau_us: 1_000 },
        }
    }

    /// The name, group and address of the local member.
    pub(crate) fn info(&self) -> MemberInfo {
        MemberInfo::new(&self.name, &self.group, &self.address)
    }

    /// Checks every value.
    ///
    /// # Errors
    /// The first value out of bounds. Nothing was changed.
    pub fn check(&self) -> Result<(), ConfigError> {
        let printable = self.name.bytes().all(|byte| byte.is_ascii_graphic());
        if self.name.is_empty() || self.name.len() > NAME_MAX || !printable {
            return refuse(
                "name",
                &self.name,
                "a name has 1 to 63 printable ASCII characters and no space",
                "use the host name, or set MUSTER_NODE",
            );
        }
        let printable = self.group.bytes().all(|byte| byte.is_ascii_graphic());
        if self.group.len() > GROUP_MAX || !printable {
            return refuse(
                "group",
                &self.group,
                "a group has at most 31 printable ASCII characters and no space",
                "use the name of the rack or the switch, or leave it empty",
            );
        }
        if self.minority == Minority::Hold && self.mode.is_paper() {
            return refuse(
                "minority",
                "hold",
                "paper mode has no majority rule",
                "use continue, or the default mode",
            );
        }
        if self.address.is_empty() || self.address.len() > ADDRESS_MAX {
            return refuse_number(
                "address length",
                &self.address.len(),
                "an address has 1 to 255 bytes",
                "give at least one rail, and fewer than fit into 255 bytes of text",
            );
        }
        self.check_seeds()?;
        if self.incarnation == 0 || self.incarnation >= INCARNATION_MAX {
            return refuse_number(
                "incarnation",
                &self.incarnation,
                "an incarnation lies between 1 and 2^63",
                "use the launch time in nanoseconds",
            );
        }
        if self.first_sequence >= 1 << 63 {
            return refuse_number(
                "first_sequence",
                &self.first_sequence,
                "sequences start below 2^63 so that they never wrap",
                "use the monotonic clock in microseconds",
            );
        }
        self.check_timing()?;
        self.check_sizes()
    }

    fn check_seeds(&self) -> Result<(), ConfigError> {
        if self.seeds.len() > SEEDS_MAX {
            return refuse_number(
                "seeds",
                &self.seeds.len(),
                "an engine keeps at most 1024 seeds",
                "give a sample of the nodes; one that answers is enough",
            );
        }
        match self
            .seeds
            .iter()
            .find(|seed| seed.is_empty() || seed.len() > ADDRESS_MAX)
        {
            Some(seed) => refuse_number(
                "seed length",
                &seed.len(),
                "an address has 1 to 255 bytes",
                "check the seed list",
            ),
            None => Ok(()),
        }
    }

    fn check_timing(&self) -> Result<(), ConfigError> {
        if self.heartbeat_us < 1_000 || self.heartbeat_us > 60_000_000 {
            return refuse_number(
                "heartbeat_us",
                &self.heartbeat_us,
                "a heartbeat lies between 1 ms and 60 s",
                "choose a profile: fast, standard or quiet",
            );
        }
        if self.deadline_us < 2 * self.heartbeat_us || self.deadline_us > 600_000_000 {
            return refuse_number(
                "deadline_us",
                &self.deadline_us,
                "a deadline is at least twice the heartbeat (a probe needs time) and at most 10 min",
                "use three to five times the heartbeat",
            );
        }
        if self.deadline_slack_us > 600_000_000 {
            return refuse_number(
                "deadline_slack_us",
                &self.deadline_slack_us,
                "a deadline is widened by at most 10 min",
                "use three times the deadline, or 0 for a fixed one",
            );
        }
        if self.mode.tau_us() > 10_000_000 {
            return refuse_number(
                "tau_us",
                &self.mode.tau_us(),
                "news waits at most 10 s",
                "use 2 ms, or 200 ms in paper mode",
            );
        }
        Ok(())
    }

    fn check_sizes(&self) -> Result<(), ConfigError> {
        if self.theta == 0 || self.theta > REPORTERS_MAX {
            return refuse_number(
                "theta",
                &self.theta,
                "a failure takes 1 to 4 distinct reporters",
                "use 2",
            );
        }
        if self.successors < self.theta || self.successors > 8 {
            return refuse_number(
                "successors",
                &self.successors,
                "completeness needs as many observers as reporters (K_s >= Theta), at most 8",
                "raise successors or lower theta",
            );
        }
        if self.neighbours > 16 {
            return refuse_number(
                "neighbours",
                &self.neighbours,
                "at most 16 random neighbours",
                "use 3",
            );
        }
        if !(MTU_MIN..=MTU_MAX).contains(&self.mtu) {
            return refuse_number(
                "mtu",
                &self.mtu,
                "a datagram has 967 to 65000 bytes",
                "use 1472 (Ethernet) or what the fabric reports",
            );
        }
        if self.members_max < 2 || self.members_max > 1 << 20 {
            return refuse_number(
                "members_max",
                &self.members_max,
                "a zone has 2 to 1048576 members",
                "use 4096, or split the job into zones",
            );
        }
        if self.attribute_bytes_max < 4 * crate::attributes::MAP_BYTES_MAX {
            return refuse_number(
                "attribute_bytes_max",
                &self.attribute_bytes_max,
                "the local attributes and those of one other member in transfer need 4 MiB",
                "use 67108864",
            );
        }
        if self.history_max == 0 || self.history_max > 1 << 20 {
            return refuse_number(
                "history_max",
                &self.history_max,
                "the history holds 1 to 1048576 members: without it failed members come back",
                "use 4096",
            );
        }
        Ok(())
    }
}

fn refuse(
    name: &'static str,
    value: &str,
    reason: &'static str,
    remedy: &'static str,
) -> Result<(), ConfigError> {
    Err(ConfigError {
        name,
        value: value.to_owned(),
        reason,
        remedy,
    })
}

fn refuse_number(
    name: &'static str,
    value: &dyn ToString,
    reason: &'static str,
    remedy: &'static str,
) -> Result<(), ConfigError> {
    refuse(name, &value.to_string(), reason, remedy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_that_is_no_word_is_refused_with_a_remedy() {
        let mut config = Config::new("n", b"a", Profile::Standard);
        for group in ["a b", "\u{e4}", &"x".repeat(32), "a\n"] {
            config.group = group.to_owned();
            let error = config.check().unwrap_err();
            assert_eq!((error.name, &*error.value), ("group", group));
            assert!(error.remedy.contains("rack"));
        }
        for group in ["", "rack3", &"x".repeat(31)] {
            config.group = group.to_owned();
            assert_eq!(config.check(), Ok(()));
        }
        (config.minority, config.mode) = (Minority::Hold, Mode::Paper { tau_us: 1 });
        assert_eq!(config.check().unwrap_err().name, "minority");
    }

    /// ZM-06: as many observers as reporters, or no engine.
    #[test]
    fn fewer_observers_than_reporters_is_refused_with_a_remedy() {
        let mut config = Config::new("n0", b"a", Profile::Standard);
        assert_eq!(config.check(), Ok(()));
        config.theta = 3;
        let error = config.check().unwrap_err();
        assert_eq!(error.name, "successors");
        assert!(error.to_string().contains("raise successors"), "{error}");
    }

    #[test]
    fn a_name_with_a_space_is_refused() {
        let config = Config::new("node 0", b"a", Profile::Standard);
        assert_eq!(config.check().unwrap_err().name, "name");
    }
}
