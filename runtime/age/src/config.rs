//! Configuration of a participant of age gossip, and what all participants must have in common.
//!
//! The participants are a list of NIDs, equal for all. Sorted by their text they are the order of the
//! vector. Members compare its SHA-1, the version of the protocol, and the interval. The name of a
//! participant is its first NID, unless it is given another one, which then is part of the list: all must
//! give it the same.

use std::collections::BTreeSet;

use sha1::{Digest, Sha1};

use super::gossip::Rules;
use muster_wire::identity::{ADDRESS_MAX, GROUP_MAX, INCARNATION_MAX, NAME_MAX};
use muster_wire::member_info::MemberInfo;
use muster_wire::settings::{ConfigError, MTU_MAX, MTU_MIN};

/// Least interval, in microseconds, unless faster ones are allowed.
pub const INTERVAL_FLOOR_US: u64 = 200_000;
/// Most participants: their vector of ages fits into one MiB.
pub const PARTICIPANTS_MAX: usize = 1 << 20;

/// A participant.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Participant {
    /// Its first NID: `address@net`.
    pub nid: String,
    /// Its address: all its NIDs, the first one first; otherwise opaque.
    pub address: String,
    /// Its group, the target of local gossip; empty for none.
    pub group: String,
    /// Its name: its first NID, or the name of its host.
    pub name: String,
}

impl Participant {
    /// A participant with these NIDs, separated by commas.
    #[must_use]
    pub fn new(nids: &str) -> Self {
        let nid = nids.split(',').next().unwrap_or_default();
        Self {
            nid: nid.to_owned(),
            address: nids.to_owned(),
            group: String::new(),
            name: nid.to_owned(),
        }
    }

    /// Its name, group and address, as the table has them.
    pub(crate) fn info(&self) -> MemberInfo {
        MemberInfo::new(&self.name, &self.group, self.address.as_bytes())
    }

    /// The net of its first NID.
    fn net(&self) -> &str {
        self.nid.rsplit_once('@').map_or("", |(_, net)| net)
    }
}

/// The choice of ping targets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// Any other participant.
    Uniform,
    /// A part of all pings to the own group, the others to the rest.
    Local {
        /// The local factor L, in thousandths.
        permille: u16,
    },
}

/// The answer to a ping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exchange {
    /// A lazy reply.
    Reply,
    /// None.
    Push,
}

/// Configuration of an age engine.
#[derive(Clone, Debug)]
pub struct AgeConfig {
    /// The first NID of the local participant.
    pub own: String,
    /// All participants, in any order.
    pub participants: Vec<Participant>,
    /// The others are not known yet, and `own` is the only participant: gossip does not begin before a list
    /// replaces this configuration.
    pub is_waiting: bool,
    /// A cycle of gossip, in microseconds.
    pub interval_us: u64,
    /// The estimated round trip of the network, in microseconds.
    pub round_trip_us: u64,
    /// Allows an interval below [`INTERVAL_FLOOR_US`].
    pub allow_fast_interval: bool,
    /// The job's key if it is known; `Input::Key` sets it later.
    pub key: Option<[u8; 32]>,
    /// The incarnation: the launch time in nanoseconds, above every earlier one.
    pub incarnation: u64,
    /// Sequence before the first frame, above those of a predecessor with the same incarnation.
    pub first_sequence: u64,
    /// Seed of all random choices.
    pub random_seed: u64,
    /// Largest datagram, in bytes.
    pub mtu: usize,
    /// A member that is not alive becomes alive when its age is at most this.
    pub up_within: u8,
    /// A member older than this is suspect.
    pub suspect_after: u8,
    /// A member older than this is failed.
    pub dead_after: u8,
    /// When messages are obsolete, how lazy replies are, what a hop adds.
    pub rules: Rules,
    /// The choice of ping targets.
    pub choice: Choice,
    /// Whether failed members are pinged too: they may be back.
    pub pings_dead: bool,
    /// The answer to a ping.
    pub exchange: Exchange,
    /// The piggyback factor P, in thousandths of an interval that must have passed since the last gossip
    /// before a message of the application carries another. `None`: no message does.
    pub piggyback_permille: Option<u16>,
}

/// The logarithm to base 2, rounded up, at least 1.
#[must_use]
pub fn log2(participants: usize) -> u8 {
    participants.max(2).next_power_of_two().trailing_zeros() as u8
}

impl AgeConfig {
    /// A configuration with the defaults for these participants.
    #[must_use]
    pub fn new(own: &str, participants: Vec<Participant>) -> Self {
        let log2 = log2(participants.len());
        Self {
            own: own.to_owned(),
            interval_us: INTERVAL_FLOOR_US,
            round_trip_us: 1_000,
            allow_fast_interval: false,
            key: None,
            incarnation: 1,
            first_sequence: 1,
            random_seed: 0,
            mtu: 1472,
            up_within: log2 + 2,
            suspect_after: 2 * log2 + 4,
            dead_after: 3 * log2 + 4,
            rules: Rules {
                obsolete_after: u64::from(log2) + 4,
                laziness: log2 / 4,
                hop: 1,
            },
            choice: Choice::Uniform,
            pings_dead: true,
            exchange: Exchange::Reply,
            piggyback_permille: None,
            is_waiting: false,
            participants,
        }
    }

    /// Checks every value.
    ///
    /// # Errors
    /// The first value out of bounds. Nothing was changed.
    pub fn check(&self) -> Result<(), ConfigError> {
        self.check_participants()?;
        self.check_interval()?;
        self.check_thresholds()?;
        if self.incarnation == 0 || self.incarnation >= INCARNATION_MAX {
            return refuse(
                "incarnation",
                &self.incarnation,
                "an incarnation lies between 1 and 2^63",
                "use the launch time in nanoseconds",
            );
        }
        if self.first_sequence >= 1 << 63 {
            return refuse(
                "first_sequence",
                &self.first_sequence,
                "sequences start below 2^63 so that they never wrap",
                "use the monotonic clock in microseconds",
            );
        }
        if !(MTU_MIN..=MTU_MAX).contains(&self.mtu) {
            return refuse(
                "mtu",
                &self.mtu,
                "a datagram has 967 to 65000 bytes",
                "use 1472 (Ethernet) or what the fabric reports",
            );
        }
        Ok(())
    }

    /// AG-04: all participants have one net, each is listed once, and the local one is listed.
    fn check_participants(&self) -> Result<(), ConfigError> {
        let count = self.participants.len();
        let least = if self.is_waiting { 1 } else { 2 };
        if !(least..=PARTICIPANTS_MAX).contains(&count) {
            return refuse(
                "participants",
                &count,
                "gossip takes 2 to 1048576 participants",
                "list the NIDs of all members, the own one included",
            );
        }
        let is_word = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic());
        let is_name = |text: &str| (1..=NAME_MAX).contains(&text.len()) && is_word(text);
        let (mut nids, mut names) = (BTreeSet::new(), BTreeSet::new());
        for participant in &self.participants {
            let Participant {
                nid, address, name, ..
            } = participant;
            if !is_name(nid) || !is_name(name) {
                return refuse(
                    "participants",
                    if is_name(nid) { name } else { nid },
                    "a NID or a name has 1 to 63 printable ASCII characters and no space",
                    "write ADDRESS[:PORT]@NET",
                );
            }
            if !address.starts_with(&**nid) || address.len() > ADDRESS_MAX {
                return refuse(
                    "participants",
                    &address,
                    "an address is the participant's NIDs, the first one first, in 255 bytes",
                    "list fewer rails of this participant",
                );
            }
            if participant.group.len() > GROUP_MAX || !is_word(&participant.group) {
                return refuse(
                    "group",
                    &participant.group,
                    "a group has at most 31 printable ASCII characters and no space",
                    "use the name of the rack or the switch, or leave it empty",
                );
            }
            if !nids.insert(&**nid) || !names.insert(&**name) {
                return refuse(
                    "participants",
                    name,
                    "it is listed twice",
                    "list every participant once",
                );
            }
        }
        let net = self.most_common_net();
        let others = self.participants.iter().filter(|other| other.net() != net);
        let others: Vec<&str> = others.map(|other| &*other.nid).collect();
        if !others.is_empty() {
            return refuse(
                "participants",
                &shortened(&others),
                "the first NID of every participant is on one network, these are not",
                "put a NID of the common network first, or leave them out",
            );
        }
        if !nids.contains(&*self.own) {
            return refuse(
                "own NID",
                &self.own,
                "it is not among the participants",
                "add a NID of this node to the list, or correct the rail",
            );
        }
        Ok(())
    }

    /// The net of most participants.
    fn most_common_net(&self) -> &str {
        let mut nets: Vec<&str> = self.participants.iter().map(Participant::net).collect();
        nets.sort_unstable();
        let runs = nets.chunk_by(|first, second| first == second);
        runs.max_by_key(|run| run.len()).map_or("", |run| run[0])
    }

    /// AG-02, AG-03.
    fn check_interval(&self) -> Result<(), ConfigError> {
        if self.interval_us < INTERVAL_FLOOR_US && !self.allow_fast_interval {
            return refuse(
                "interval_us",
                &self.interval_us,
                "below the floor of 200000 (200 ms) delays of network and scheduler look like deaths",
                "raise it, or set allow_fast_interval on a machine that keeps time",
            );
        }
        if self.interval_us == 0 || self.interval_us > 600_000_000 {
            return refuse(
                "interval_us",
                &self.interval_us,
                "an interval has more than 0 and at most 600000000 (10 minutes)",
                "use 200000",
            );
        }
        if self.interval_us.saturating_mul(2) < self.round_trip_us {
            return refuse(
                "interval_us",
                &self.interval_us,
                "it is less than half the estimated round trip: ages would be older than they say",
                "raise the interval, or correct round_trip_us",
            );
        }
        Ok(())
    }

    fn check_thresholds(&self) -> Result<(), ConfigError> {
        let (suspect, dead) = (self.suspect_after, self.dead_after);
        let up = self.up_within;
        if suspect == 0 || up > suspect || dead < suspect || dead == u8::MAX {
            return refuse(
                "dead_after",
                &format!("{dead} (suspect_after {suspect}, up_within {up})"),
                "up_within, suspect_after and dead_after follow each other, from 1 to 254",
                "use the defaults, or raise dead_after",
            );
        }
        let most = (log2(self.participants.len()) / 2).max(2);
        if self.rules.laziness > most {
            return refuse(
                "laziness",
                &self.rules.laziness,
                "replies are lazy by at most half the logarithm of the number of participants",
                "use the default, a quarter of it",
            );
        }
        if self.rules.hop > 1 || self.rules.obsolete_after == 0 {
            return refuse(
                "obsolete_after",
                &self.rules.obsolete_after,
                "a message may be 1 behind, and a hop adds 0 or 1 to an age",
                "use the defaults",
            );
        }
        let permille = match self.choice {
            Choice::Local { permille } => permille,
            Choice::Uniform => 0,
        };
        if permille > 1000 || self.piggyback_permille.is_some_and(|factor| factor > 1000) {
            return refuse(
                "local and piggyback factors",
                &permille.max(self.piggyback_permille.unwrap_or(0)),
                "they are parts of a whole, in thousandths",
                "use 900 and 750",
            );
        }
        Ok(())
    }
}

/// AG-05: the SHA-1 of the NIDs in order, each with an end of line; its name before it, if it has one.
pub(super) fn digest(sorted: &[Participant]) -> [u8; 20] {
    let mut sha1 = Sha1::new();
    for participant in sorted {
        sha1.update(participant.nid.as_bytes());
        if participant.name != participant.nid {
            sha1.update(b" ");
            sha1.update(participant.name.as_bytes());
        }
        sha1.update(b"\n");
    }
    sha1.finalize().into()
}

/// Some of them, and how many more there are.
fn shortened(names: &[&str]) -> String {
    const SHOWN: usize = 16;
    let shown = names[..names.len().min(SHOWN)].join(", ");
    match names.len().checked_sub(SHOWN) {
        Some(more) if more > 0 => format!("{shown} and {more} more"),
        _ => shown,
    }
}

fn refuse(
    name: &'static str,
    value: &dyn ToString,
    reason: &'static str,
    remedy: &'static str,
) -> Result<(), ConfigError> {
    Err(ConfigError {
        name,
        value: value.to_string(),
        reason,
        remedy,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(count: usize) -> AgeConfig {
        let nid = |number| format!("10.0.0.{number}@tcp0");
        let participants = (1..=count).map(|number| Participant::new(&nid(number)));
        AgeConfig::new("10.0.0.1@tcp0", participants.collect())
    }

    fn refused(change: impl FnOnce(&mut AgeConfig)) -> String {
        let mut config = config(20);
        change(&mut config);
        config.check().unwrap_err().to_string()
    }

    /// AG-01: interval, round trip, participants, seed; the defaults hold.
    #[test]
    fn defaults_are_sound_at_every_size() {
        for count in [2, 3, 16, 200] {
            assert_eq!(config(count).check(), Ok(()));
        }
        let most = AgeConfig::new(
            "x",
            (0..PARTICIPANTS_MAX)
                .map(|_| Participant::new("x"))
                .collect(),
        );
        assert!(most.dead_after < u8::MAX && most.suspect_after < most.dead_after);
    }

    /// AG-02: the message names the floor and the switch.
    #[test]
    fn a_fast_interval_needs_the_switch() {
        let error = refused(|config| config.interval_us = 199_999);
        assert!(
            error.contains("200 ms") && error.contains("allow_fast_interval"),
            "{error}"
        );
        let mut config = config(3);
        (config.interval_us, config.allow_fast_interval) = (10_000, true);
        assert_eq!(config.check(), Ok(()));
    }

    /// AG-03: no switch helps.
    #[test]
    fn an_interval_below_half_the_round_trip_is_refused() {
        let error = refused(|config| {
            (config.round_trip_us, config.allow_fast_interval) = (400_001, true);
        });
        assert!(error.contains("half the estimated round trip"), "{error}");
    }

    /// AG-04: the message lists the odd ones; further rails may be on any net.
    #[test]
    fn the_odd_ones_out_are_listed() {
        let error = refused(|config| {
            config.participants[3] = Participant::new("10.0.0.4@o2ib0");
            config.participants[7] = Participant::new("10.0.0.8@udp0");
        });
        assert!(error.contains("10.0.0.4@o2ib0, 10.0.0.8@udp0"), "{error}");
        let mut config = config(3);
        config.participants[1] = Participant::new("10.0.0.2@tcp0,10.1.0.2@o2ib0");
        assert_eq!(config.check(), Ok(()));
    }

    /// AG-01, AG-04: a member that is not listed is no participant, and none is listed twice.
    #[test]
    fn a_list_that_cannot_be_is_refused_with_a_remedy() {
        let error = refused(|config| config.own = "10.0.0.99@tcp0".to_owned());
        assert!(error.contains("10.0.0.99@tcp0: it is not among"), "{error}");
        let error = refused(|config| config.participants[3] = Participant::new("10.0.0.5@tcp0"));
        assert!(error.contains("twice"), "{error}");
        let error = refused(|config| config.participants.truncate(1));
        assert!(error.contains("2 to 1048576"), "{error}");
        let error = refused(|config| config.rules.laziness = 200);
        assert!(error.contains("lazy"), "{error}");
        let error = refused(|config| config.dead_after = 3);
        assert!(error.contains("follow each other"), "{error}");
    }

    /// AG-05: the digest depends on the order, not on how the list was written.
    #[test]
    fn equal_lists_have_equal_digests() {
        let mut one = config(9).participants;
        let mut other = one.clone();
        other.reverse();
        one.sort();
        other.sort();
        assert_eq!(digest(&one), digest(&other));
        "n1".clone_into(&mut other[0].name);
        assert_ne!(digest(&one), digest(&other));
        "n1".clone_into(&mut one[0].name);
        assert_eq!(digest(&one), digest(&other));
        other.pop();
        assert_ne!(digest(&one), digest(&other));
    }

    /// Names are listed once, like NIDs.
    #[test]
    fn two_with_one_name_are_refused() {
        let error = refused(|config| {
            for one in &mut config.participants[3..5] {
                "n3".clone_into(&mut one.name);
            }
        });
        assert!(error.contains("n3") && error.contains("twice"), "{error}");
    }
}
