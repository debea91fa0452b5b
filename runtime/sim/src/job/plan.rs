//! `JobScenario` is a job with zones and what happens in it, written in TOML.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::scenario::{ScenarioError, Span, refused, within};
use crate::study::Timing;
use crate::zones::ZonedSetting;

/// Most nodes of a job.
const NODES_MAX: usize = 1 << 20;
/// Most nodes of a zone.
const ZONE_MAX: usize = 1024;
/// Fewest base zones: each change is about another one.
pub(super) const ZONES_MIN: usize = 16;

/// What happens to a job, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Change {
    /// A rank exits, and the agent of its node says so.
    Rank,
    /// A node falls silent.
    Silent,
    /// An agent is killed: the fabric reports a broken connection to those who observe it.
    Agent,
    /// 16 nodes of different zones fall silent at once.
    Several,
    /// 64 nodes that follow each other fall silent at once.
    Rack,
    /// All supervisors of a zone fall silent at once.
    Supervisors,
    /// All nodes of a zone fall silent at once.
    Zone,
}

impl Change {
    /// Its name in scenarios and in the report.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rank => "rank",
            Self::Silent => "silent",
            Self::Agent => "agent",
            Self::Several => "several",
            Self::Rack => "rack",
            Self::Supervisors => "supervisors",
            Self::Zone => "zone",
        }
    }
}

/// The size of a job, and what happens in it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct JobPlan {
    /// Nodes.
    pub nodes: usize,
    /// Nodes of a base zone.
    pub zone: usize,
    /// Most members of a zone above, which decides on the number of levels.
    pub above: usize,
    /// `ours` or `paper`.
    #[serde(default = "ours")]
    pub timing: String,
    /// The delay of a datagram, in microseconds, drawn for each.
    pub delay_us: Span,
    /// What happens, in this order; each at most once.
    pub changes: Vec<Change>,
}

fn ours() -> String {
    Timing::OURS.name.to_owned()
}

/// A job and what happens in it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct JobScenario {
    /// Its name.
    pub name: String,
    /// What it guards against, in a sentence.
    pub guards: String,
    /// The seed that is used if none is given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// The job.
    pub job: JobPlan,
}

impl JobScenario {
    /// Whether a scenario file is about a job with zones, not about one zone: it has the table `job`.
    #[must_use]
    pub fn is_one(text: &str) -> bool {
        let table: Result<toml::Table, _> = text.parse();
        table.is_ok_and(|table| table.contains_key("job"))
    }

    /// Reads and checks a scenario file.
    ///
    /// # Errors
    /// The file is malformed, or a value is out of bounds.
    pub fn read(text: &str) -> Result<Self, ScenarioError> {
        let scenario: Self =
            toml::from_str(text).map_err(|error| ScenarioError::Written(error.to_string()))?;
        let checked = scenario.job.check();
        checked.map_err(|error| error.in_text(text, None))?;
        Ok(scenario)
    }
}

impl JobPlan {
    /// The zones, and the parameters of the engines.
    pub(super) fn setting(&self) -> ZonedSetting {
        ZonedSetting {
            nodes: self.nodes,
            zone: self.zone,
            above_max: self.above,
            timing: Timing::of(&self.timing).unwrap_or(Timing::OURS),
            loss_permille: 0,
            start_us: 0,
            faults: 0,
            has_cuts: false,
            stops_outcasts: false,
        }
    }

    fn check(&self) -> Result<(), ScenarioError> {
        let number = |value: usize| Span::just(value as i64);
        within("job.nodes", number(self.nodes), 8, NODES_MAX as i64)?;
        within("job.zone", number(self.zone), 2, ZONE_MAX as i64)?;
        within("job.above", number(self.above), 4, ZONE_MAX as i64)?;
        within("job.delay_us", self.delay_us, 1, 1_000_000)?;
        if Timing::of(&self.timing).is_none() {
            let (reason, remedy) = ("there is no such timing", "use \"ours\" or \"paper\"");
            return Err(refused("job.timing", &self.timing, reason, remedy));
        }
        let map = self.setting().map();
        let map = map.map_err(|error| {
            let remedy = "use other values of job.zone and job.above";
            refused("job.nodes", &self.nodes, &error.to_string(), remedy)
        })?;
        let zones = map.zones_at(0).count();
        if zones < ZONES_MIN {
            let (reason, remedy) = ("fewer than 16 base zones", "lower job.zone");
            return Err(refused("job.zone", &self.zone, reason, remedy));
        }
        let mut seen = BTreeSet::new();
        if let Some(twice) = self.changes.iter().find(|change| !seen.insert(**change)) {
            let (reason, remedy) = ("it occurs twice", "name each change once");
            return Err(refused("job.changes", &twice.name(), reason, remedy));
        }
        Ok(())
    }
}
