//! `Figures` are the results of one system: values by metric, and counts.

use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// A measured quantity, in the order of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Metric {
    Load,
    Boot,
    Joined,
    Left,
    Killed,
    SupervisorsKilled,
    ZoneKilled,
    Silent,
    Resumed,
    Paused,
    Cut,
    Healed,
    Cpu,
    Wakeups,
    SentCounted,
    SentOnWire,
    Memory,
}

impl Metric {
    pub(super) const ALL: [Self; 17] = [
        Self::Load,
        Self::Boot,
        Self::Joined,
        Self::Left,
        Self::Killed,
        Self::SupervisorsKilled,
        Self::ZoneKilled,
        Self::Silent,
        Self::Resumed,
        Self::Paused,
        Self::Cut,
        Self::Healed,
        Self::Cpu,
        Self::Wakeups,
        Self::SentCounted,
        Self::SentOnWire,
        Self::Memory,
    ];

    /// Name in JSON, label and unit in the table.
    pub(super) fn labels(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::Load => ("load", "process started -> member ready", "ms"),
            Self::Boot => ("boot", "last member ready -> all views full", "ms"),
            Self::Joined => ("join", "member ready -> known to each", "ms"),
            Self::Left => ("left", "SIGTERM -> each other knows", "ms"),
            Self::Killed => ("killed", "SIGKILL -> each survivor knows", "ms"),
            Self::SupervisorsKilled => (
                "supervisors_killed",
                "two supervisors of a zone killed",
                "ms",
            ),
            Self::ZoneKilled => ("zone_killed", "all members of a zone killed", "ms"),
            Self::Silent => ("silent", "SIGSTOP -> each survivor knows", "ms"),
            Self::Resumed => ("resumed", "SIGCONT at once -> alive to each", "ms"),
            Self::Paused => ("paused", "SIGCONT after 5 s -> alive to each", "ms"),
            Self::Cut => ("cut", "all rails cut -> each survivor knows", "ms"),
            Self::Healed => ("healed", "rails healed -> alive to each", "ms"),
            Self::Cpu => ("idle_cpu", "idle CPU of a member", "ms/s"),
            Self::Wakeups => ("idle_wakeups", "idle wake-ups of a member", "1/s"),
            Self::SentCounted => ("sent_counted", "idle, sent: own counters, with IP", "B/s"),
            Self::SentOnWire => ("sent_on_wire", "idle, sent: interfaces, Ethernet", "B/s"),
            Self::Memory => ("memory", "private memory of a member", "kB"),
        }
    }
}

/// A counted event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Count {
    Faults,
    Missing,
    NotBack,
    FalseDowns,
    Suspected,
    VersionKept,
    Demoted,
    Failures,
}

impl Count {
    pub(super) const ALL: [Self; 8] = [
        Self::Faults,
        Self::Missing,
        Self::NotBack,
        Self::FalseDowns,
        Self::Suspected,
        Self::VersionKept,
        Self::Demoted,
        Self::Failures,
    ];

    pub(super) fn labels(self) -> (&'static str, &'static str) {
        match self {
            Self::Faults => ("faults", "faults injected"),
            Self::Missing => ("missing", "verdicts that are missing"),
            Self::NotBack => ("not_back", "returns that were never reported"),
            Self::FalseDowns => ("false_downs", "DOWN of an alive member"),
            Self::Suspected => ("suspected", "SUSPECT of an alive member"),
            Self::VersionKept => ("version_kept", "paused, no higher version"),
            Self::Demoted => ("demoted", "lost its real-time priority"),
            Self::Failures => ("failures", "phases that failed"),
        }
    }
}

/// The results of one system.
#[derive(Clone, Debug, Default)]
pub(super) struct Figures {
    values: BTreeMap<Metric, Vec<f64>>,
    counts: BTreeMap<Count, usize>,
}

impl Figures {
    pub(super) fn add(&mut self, metric: Metric, value: f64) {
        self.values.entry(metric).or_default().push(value);
    }

    /// Adds the time between two moments, in milliseconds; 0 if the second is not later.
    pub(super) fn add_ns(&mut self, metric: Metric, from_ns: u64, to_ns: u64) {
        self.add(metric, to_ns.saturating_sub(from_ns) as f64 / 1e6);
    }

    pub(super) fn count(&mut self, count: Count, more: usize) {
        *self.counts.entry(count).or_default() += more;
    }

    pub(super) fn counted(&self, count: Count) -> usize {
        self.counts.get(&count).copied().unwrap_or(0)
    }

    pub(super) fn values(&self, metric: Metric) -> &[f64] {
        self.values.get(&metric).map_or(&[], Vec::as_slice)
    }

    pub(super) fn merge(&mut self, other: Self) {
        for (metric, values) in other.values {
            self.values.entry(metric).or_default().extend(values);
        }
        for (count, more) in other.counts {
            self.count(count, more);
        }
    }

    /// All results as JSON.
    pub(super) fn json(&self) -> Value {
        let mut metrics = Map::new();
        for metric in Metric::ALL {
            let values = self.values(metric);
            if values.is_empty() {
                continue;
            }
            let (name, _, unit) = metric.labels();
            let value = json!({
                "unit": unit,
                "n": values.len(),
                "p50": quantile(values, 0.5),
                "p99": quantile(values, 0.99),
                "max": quantile(values, 1.0),
            });
            metrics.insert(name.to_owned(), value);
        }
        let mut counts = Map::new();
        for count in Count::ALL {
            counts.insert(count.labels().0.to_owned(), self.counted(count).into());
        }
        json!({ "metrics": metrics, "counts": counts })
    }
}

/// The quantile of the values; NaN if there are none.
pub(crate) fn quantile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len().saturating_sub(1);
    sorted
        .get((share * last as f64).round() as usize)
        .copied()
        .unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_measured_values() {
        let values = [5.0, 1.0, 3.0, 2.0, 4.0];
        assert_eq!(quantile(&values, 0.5), 3.0);
        assert_eq!(quantile(&values, 1.0), 5.0);
        assert_eq!(quantile(&values, 0.0), 1.0);
        assert!(quantile(&[], 0.5).is_nan());
    }

    #[test]
    fn merged_figures_have_the_values_and_failures_of_both() {
        let mut first = Figures::default();
        first.add(Metric::Cut, 60.0);
        first.count(Count::Missing, 1);
        let mut second = Figures::default();
        second.add_ns(Metric::Cut, 1_000_000, 71_000_000);
        second.count(Count::Missing, 2);
        first.merge(second);
        assert_eq!(first.values(Metric::Cut), [60.0, 70.0]);
        assert_eq!(first.json()["counts"]["missing"], 3);
        assert_eq!(first.json()["metrics"]["cut"]["max"], 70.0);
        assert!(first.json()["metrics"]["boot"].is_null());
    }
}
