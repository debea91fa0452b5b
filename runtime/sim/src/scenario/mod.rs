//! A scenario: the zone, the faults that can occur in it, and what must hold.
//!
//! Scenarios are written in TOML. A range `[low, high]` may stand for every number: each seed draws its own
//! number from it. The drawn scenario, in which every number is fixed and every fault has its time and node,
//! is a scenario file again. It is printed, run, and shrunk.
//!
//! A scenario contains no code. A scenario that needs a condition is a test in `tests/`.

mod error;
mod fault;
mod plan;
mod span;

use muster_protocol::{Config, Minority, Profile};
use serde::{Deserialize, Serialize};

use crate::chance::Chance;
use crate::inspection::Bounds;
use crate::network::Network;

pub use error::ScenarioError;
pub(crate) use error::{refused, within};
pub use fault::{Fault, FaultKind};
pub use plan::Plan;
pub use span::Span;

/// Most members of a scenario.
const MEMBERS_MAX: i64 = 4096;
/// Most faults after drawing.
const FAULTS_MAX: usize = 1000;

/// A zone, its faults, and what must hold.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Its name.
    pub name: String,
    /// What it guards against, in a sentence.
    pub guards: String,
    /// The seed of a drawn scenario. Of any other scenario: the seed that is used if none is given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// The members.
    pub zone: Zone,
    /// The network, the same in all phases.
    #[serde(default)]
    pub network: Ills,
    /// The faults.
    #[serde(default)]
    pub safety: Safety,
    /// If present, the zone is measured, without faults.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub study: Option<Plan>,
    /// The phase of convergence.
    #[serde(default)]
    pub liveness: Liveness,
    /// What else must hold.
    #[serde(default)]
    pub expect: Expect,
}

/// The members and their configuration.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Zone {
    /// Number of members.
    pub members: Span,
    /// `fast`, `standard` or `quiet`.
    #[serde(default = "standard")]
    pub profile: String,
    /// A heartbeat that replaces the profile's, in microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heartbeat_us: Option<Span>,
    /// A deadline that replaces the profile's, in microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_us: Option<Span>,
    /// Number of distinct reporters that make a failure.
    #[serde(default = "two")]
    pub theta: Span,
    /// Number of ring successors that each member observes.
    #[serde(default = "two")]
    pub successors: Span,
    /// Number of random neighbours.
    #[serde(default = "three")]
    pub neighbours: Span,
    /// Number of removed members that are remembered.
    #[serde(default = "history")]
    pub history_max: Span,
    /// Number of rails of every node.
    #[serde(default = "one")]
    pub rails: Span,
    /// Number of groups of members with consecutive numbers, `group-0` and so on; 0: none.
    #[serde(default = "zero")]
    pub groups: Span,
    /// What the smaller side of a split does: `continue` or `hold`.
    #[serde(default = "go_on")]
    pub minority: String,
    /// The time within which the members start, in milliseconds.
    #[serde(default = "zero")]
    pub start_spread_ms: Span,
    /// All views must be right within this time after the start, in milliseconds.
    #[serde(default = "ten_seconds")]
    pub boot_within_ms: Span,
}

/// What the network does to datagrams.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Ills {
    /// Shortest delay, in microseconds.
    pub delay_min_us: Span,
    /// Longest usual delay minus the shortest one, in microseconds.
    pub jitter_us: Span,
    /// Lost datagrams, in thousandths.
    pub loss_permille: Span,
    /// Duplicated datagrams, in thousandths.
    pub duplicate_permille: Span,
    /// Datagrams with one flipped bit, in thousandths.
    pub corrupt_permille: Span,
    /// Datagrams delayed by up to `reorder_us` more, in thousandths.
    pub reorder_permille: Span,
    /// Longest extra delay, in microseconds.
    pub reorder_us: Span,
    /// Datagrams sent again up to `replay_ms` later, in thousandths.
    pub replay_permille: Span,
    /// Longest time until then, in milliseconds.
    pub replay_ms: Span,
}

/// The phase of faults.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Safety {
    /// Its length, in milliseconds.
    pub duration_ms: Span,
    /// The faults.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub fault: Vec<Fault>,
}

/// The phase without faults: cuts are healed, stops end, slow nodes are fast again.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Liveness {
    /// Whether crashed nodes start again.
    pub revive: bool,
    /// All views must be right within this time, in milliseconds.
    pub within_ms: Span,
    /// Then no event may occur for this time, in milliseconds.
    pub calm_ms: Span,
}

/// What must hold in addition to the general guarantees.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Expect {
    /// Bytes that a member may send in a second of calm, on average.
    pub quiet_bytes: Span,
    /// Bytes that a member may send in a second of the phase of faults, on average.
    pub storm_bytes: Span,
    /// How many copies of a piece of news a member may receive in the phase of faults, on average over all
    /// news, in hundredths.
    #[serde(skip_serializing_if = "is_unbounded")]
    pub copies_percent: u32,
    /// Whether no running member may be declared failed, whatever the faults excuse.
    pub no_false_failure: bool,
    /// At most this many members learn that they were declared failed.
    pub outcasts_max: Span,
    /// All running members report a rank's change within this time after the node states it, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub news_within_ms: Option<Span>,
    /// All members report a crash within this time, in milliseconds.
    pub detect_within_ms: Span,
}

fn standard() -> String {
    "standard".to_owned()
}
fn go_on() -> String {
    "continue".to_owned()
}
fn zero() -> Span {
    Span::just(0)
}
fn one() -> Span {
    Span::just(1)
}
fn two() -> Span {
    Span::just(2)
}
fn three() -> Span {
    Span::just(3)
}
fn history() -> Span {
    Span::just(4096)
}
fn ten_seconds() -> Span {
    Span::just(10_000)
}

impl Default for Ills {
    fn default() -> Self {
        Self {
            delay_min_us: Span::just(30),
            jitter_us: Span::just(170),
            loss_permille: zero(),
            duplicate_permille: zero(),
            corrupt_permille: zero(),
            reorder_permille: zero(),
            reorder_us: zero(),
            replay_permille: zero(),
            replay_ms: zero(),
        }
    }
}

impl Default for Safety {
    fn default() -> Self {
        Self {
            duration_ms: Span::just(1000),
            fault: Vec::new(),
        }
    }
}

impl Default for Liveness {
    fn default() -> Self {
        Self {
            revive: false,
            within_ms: Span::just(30_000),
            calm_ms: Span::just(500),
        }
    }
}

/// Whether a bound is the largest number of its type, which means none and is not written.
fn is_unbounded(bound: &u32) -> bool {
    *bound == u32::MAX
}

impl Default for Expect {
    fn default() -> Self {
        let bounds = Bounds::default();
        Self {
            quiet_bytes: Span::just(bounds.quiet_bytes as i64),
            storm_bytes: Span::just(bounds.storm_bytes as i64),
            copies_percent: u32::MAX,
            no_false_failure: false,
            outcasts_max: Span::just(MEMBERS_MAX),
            news_within_ms: None,
            detect_within_ms: Span::just(600_000),
        }
    }
}

impl Scenario {
    /// Reads and checks a scenario file.
    ///
    /// # Errors
    /// Returns the wrong value, its line, the reason and the remedy.
    pub fn read(text: &str) -> Result<Self, ScenarioError> {
        let scenario: Self =
            toml::from_str(text).map_err(|error| ScenarioError::Written(error.to_string()))?;
        scenario.check().map_err(|error| {
            let members = scenario.zone.members.low;
            let mut faults = scenario.safety.fault.iter();
            error.in_text(text, faults.position(|fault| fault.check(members).is_err()))
        })?;
        Ok(scenario)
    }

    /// The scenario as a file.
    ///
    /// # Panics
    /// Never: every scenario can be written.
    #[must_use]
    pub fn write(&self) -> String {
        toml::to_string(self).expect("a scenario has only numbers, strings and tables")
    }

    fn check(&self) -> Result<(), ScenarioError> {
        let zone = &self.zone;
        within("zone.members", zone.members, 1, MEMBERS_MAX)?;
        if !["fast", "standard", "quiet"].contains(&zone.profile.as_str()) {
            let (reason, remedy) = ("no such profile", "use fast, standard or quiet");
            return Err(refused("zone.profile", &zone.profile, reason, remedy));
        }
        if !["continue", "hold"].contains(&zone.minority.as_str()) {
            let (reason, remedy) = ("no such policy", "use continue or hold");
            return Err(refused("zone.minority", &zone.minority, reason, remedy));
        }
        within("zone.rails", zone.rails, 1, 16)?;
        within("zone.groups", zone.groups, 0, MEMBERS_MAX)?;
        within("zone.start_spread_ms", zone.start_spread_ms, 0, 60_000)?;
        within("zone.boot_within_ms", zone.boot_within_ms, 1, 600_000)?;
        within("zone.theta", zone.theta, 1, 4)?;
        within("zone.successors", zone.successors, 1, 8)?;
        within("zone.neighbours", zone.neighbours, 0, 16)?;
        within("zone.history_max", zone.history_max, 1, 1 << 20)?;
        if let Some(news_within_ms) = self.expect.news_within_ms {
            within("expect.news_within_ms", news_within_ms, 1, 600_000)?;
        }
        for span in [zone.heartbeat_us, zone.deadline_us].into_iter().flatten() {
            within("zone.heartbeat_us", span, 1000, 600_000_000)?;
        }
        for high in [true, false] {
            let mut config = Config::new("n", b"a", self.profile());
            self.configure(&mut config, high);
            config
                .check()
                .map_err(|error| refused(error.name, &error.value, error.reason, error.remedy))?;
        }
        self.network.check()?;
        if let Some(plan) = &self.study {
            plan.check(zone.members)?;
            if !self.safety.fault.is_empty() {
                let (reason, remedy) = ("a study has no faults", "leave out one of the two");
                return Err(refused("study", &"with safety.fault", reason, remedy));
            }
        }
        within("safety.duration_ms", self.safety.duration_ms, 0, 600_000)?;
        within("liveness.within_ms", self.liveness.within_ms, 1, 600_000)?;
        within("liveness.calm_ms", self.liveness.calm_ms, 0, 600_000)?;
        within("expect.quiet_bytes", self.expect.quiet_bytes, 1, i64::MAX)?;
        within(
            "expect.outcasts_max",
            self.expect.outcasts_max,
            0,
            MEMBERS_MAX,
        )?;
        let detect_within_ms = self.expect.detect_within_ms;
        within("expect.detect_within_ms", detect_within_ms, 1, 600_000)?;
        within("expect.storm_bytes", self.expect.storm_bytes, 1, i64::MAX)?;
        let copies_percent = Span::just(i64::from(self.expect.copies_percent));
        within("expect.copies_percent", copies_percent, 100, i64::MAX)?;
        let mut most = 0;
        for fault in &self.safety.fault {
            fault.check(self.zone.members.low)?;
            most += fault.count.high as usize;
        }
        if most > FAULTS_MAX {
            let remedy = "lower count";
            return Err(refused(
                "safety.fault",
                &most,
                "at most 1000 faults",
                remedy,
            ));
        }
        Ok(())
    }

    /// Fixes all random choices before the run, by this seed. To draw a drawn scenario again with its own
    /// seed does not change it.
    #[must_use]
    pub fn draw(&self, seed: u64) -> Self {
        let mut chance = Chance::new(seed ^ 0x5eed);
        let mut drawn = self.clone();
        drawn.seed = Some(seed);
        let zone = &mut drawn.zone;
        for span in [
            &mut zone.members,
            &mut zone.theta,
            &mut zone.successors,
            &mut zone.neighbours,
            &mut zone.history_max,
            &mut zone.groups,
            &mut zone.rails,
            &mut zone.start_spread_ms,
            &mut zone.boot_within_ms,
        ] {
            span.draw(&mut chance);
        }
        let others = [
            &mut zone.heartbeat_us,
            &mut zone.deadline_us,
            &mut drawn.expect.news_within_ms,
        ];
        for span in others.into_iter().flatten() {
            span.draw(&mut chance);
        }
        for span in drawn.network.spans() {
            span.1.draw(&mut chance);
        }
        for span in [
            &mut drawn.safety.duration_ms,
            &mut drawn.liveness.within_ms,
            &mut drawn.liveness.calm_ms,
            &mut drawn.expect.quiet_bytes,
            &mut drawn.expect.storm_bytes,
            &mut drawn.expect.outcasts_max,
            &mut drawn.expect.detect_within_ms,
        ] {
            span.draw(&mut chance);
        }
        let members = drawn.zone.members.low;
        let duration_ms = drawn.safety.duration_ms.low;
        let faults = core::mem::take(&mut drawn.safety.fault);
        for fault in faults {
            fault.draw(&mut chance, members, duration_ms, &mut drawn.safety.fault);
        }
        drawn
            .safety
            .fault
            .sort_by_key(|fault| fault.at_ms.map(|at| at.low));
        drawn
    }

    pub(crate) fn profile(&self) -> Profile {
        match self.zone.profile.as_str() {
            "fast" => Profile::Fast,
            "quiet" => Profile::Quiet,
            _ => Profile::Standard,
        }
    }

    /// Applies the scenario's settings to a member's configuration.
    pub(crate) fn configure(&self, config: &mut Config, high: bool) {
        let pick = |span: Span| if high { span.high } else { span.low };
        let zone = &self.zone;
        if let Some(heartbeat_us) = zone.heartbeat_us {
            config.heartbeat_us = pick(heartbeat_us) as u64;
        }
        if let Some(deadline_us) = zone.deadline_us {
            config.deadline_us = pick(deadline_us) as u64;
        }
        config.theta = pick(zone.theta) as usize;
        config.successors = pick(zone.successors) as usize;
        config.neighbours = pick(zone.neighbours) as usize;
        config.history_max = pick(zone.history_max) as usize;
        if zone.minority == "hold" {
            config.minority = Minority::Hold;
        }
    }

    /// The group of the member with this number, in a drawn scenario.
    pub(crate) fn group_of(&self, number: usize) -> String {
        let (groups, members) = (self.zone.groups.value(), self.zone.members.value());
        match groups {
            0 => String::new(),
            _ => format!("group-{}", number as u64 * groups / members.max(1)),
        }
    }
}

impl Ills {
    fn spans(&mut self) -> [(&'static str, &mut Span); 9] {
        [
            ("delay_min_us", &mut self.delay_min_us),
            ("jitter_us", &mut self.jitter_us),
            ("loss_permille", &mut self.loss_permille),
            ("duplicate_permille", &mut self.duplicate_permille),
            ("corrupt_permille", &mut self.corrupt_permille),
            ("reorder_permille", &mut self.reorder_permille),
            ("reorder_us", &mut self.reorder_us),
            ("replay_permille", &mut self.replay_permille),
            ("replay_ms", &mut self.replay_ms),
        ]
    }

    fn check(&self) -> Result<(), ScenarioError> {
        for (name, span) in self.clone().spans() {
            let most = if name.ends_with("permille") {
                1000
            } else {
                60_000_000
            };
            within(&format!("network.{name}"), *span, 0, most)?;
        }
        Ok(())
    }

    /// The network of a drawn scenario.
    #[must_use]
    pub fn network(&self) -> Network {
        let delay_min_us = self.delay_min_us.value();
        Network {
            loss_permille: self.loss_permille.value() as u32,
            duplicate_permille: self.duplicate_permille.value() as u32,
            corrupt_permille: self.corrupt_permille.value() as u32,
            reorder_permille: self.reorder_permille.value() as u32,
            replay_permille: self.replay_permille.value() as u32,
            delay_min_us,
            delay_max_us: delay_min_us + self.jitter_us.value(),
            reorder_us: self.reorder_us.value(),
            replay_us: self.replay_ms.value() * 1000,
            ..Network::default()
        }
    }
}
