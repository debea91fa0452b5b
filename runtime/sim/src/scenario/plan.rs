//! A scenario that is measured, without faults: see `study`.

use serde::{Deserialize, Serialize};

use super::{ScenarioError, Span, refused, within};
use crate::study::Timing;
use crate::world::Cpus;

/// Most members that leave, join, crash or stop at once.
const AT_ONCE_MAX: i64 = 512;

/// The measurements of the zone: its boot, and changes of many members at once.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// How many members leave, join, crash or stop at once, one measurement after the other.
    pub counts: Vec<usize>,
    /// `ours` or `paper`: the parameter sets, one after the other.
    pub timings: Vec<String>,
    /// How long a datagram keeps a CPU busy at each end, in microseconds.
    #[serde(default)]
    pub service_us: u64,
    /// Number of members that share a CPU.
    #[serde(default = "one")]
    pub shared_by: usize,
}

fn one() -> usize {
    1
}

impl Plan {
    /// The CPUs of the zone.
    #[must_use]
    pub fn cpus(&self) -> Cpus {
        Cpus {
            service_us: self.service_us,
            shared_by: self.shared_by,
            ..Cpus::default()
        }
    }

    /// The timings, in order. Unknown names are left out.
    pub fn timings(&self) -> impl Iterator<Item = Timing> {
        self.timings.iter().filter_map(|name| Timing::of(name))
    }

    pub(super) fn check(&self, members: Span) -> Result<(), ScenarioError> {
        for count in &self.counts {
            let count = i64::try_from(*count).unwrap_or(i64::MAX);
            within("study.counts", Span::just(count), 1, AT_ONCE_MAX)?;
        }
        if let Some(name) = self.timings.iter().find(|name| Timing::of(name).is_none()) {
            let (reason, remedy) = ("no such timing", "use ours or paper");
            return Err(refused("study.timings", name, reason, remedy));
        }
        let ended = 3 * self.counts.iter().sum::<usize>();
        if ended as i64 + 2 > members.low {
            let reason = format!("they end {ended} members; at least two must remain");
            let counts = format!("{:?}", self.counts);
            let remedy = "larger zones or smaller counts";
            return Err(refused("study.counts", &counts, &reason, remedy));
        }
        let service_us = i64::try_from(self.service_us).unwrap_or(i64::MAX);
        within("study.service_us", Span::just(service_us), 0, 1_000_000)?;
        let shared_by = i64::try_from(self.shared_by).unwrap_or(i64::MAX);
        within("study.shared_by", Span::just(shared_by), 1, 64)
    }
}
