//! A figure of the gossip simulation paper as a file: the varied parameter, the lines, the paper's points.

use serde::Deserialize;

use super::{Agreement, ClusterSetting, Gossiping, Start, run_cluster};

/// The parameter on the horizontal axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Axis {
    /// Tgossip, in milliseconds.
    IntervalMs,
    /// Tcleanup, in milliseconds.
    CleanupMs,
    /// The local factor L.
    Local,
    /// The piggyback factor P.
    Piggyback,
    /// Nodes.
    Nodes,
    /// Clusters that are cut off.
    Partitions,
    /// Bytes of a gossip for each member; the paper does not give this number.
    MemberBytes,
}

impl Axis {
    /// Its label on a plot.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::IntervalMs => "Tgossip (ms)",
            Self::CleanupMs => "Tcleanup (ms)",
            Self::Local => "local factor L",
            Self::Piggyback => "piggyback factor P",
            Self::Nodes => "nodes",
            Self::Partitions => "clusters cut off",
            Self::MemberBytes => "bytes a member",
        }
    }
}

/// One line of a figure.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Line {
    /// Its name.
    pub label: String,
    /// `basic`, `hierarchical`, `piggyback`, or one of the paper's proposals for future work: `broadcast`,
    /// `buddies`.
    protocol: Protocol,
    /// Probability that a wire damages a message.
    #[serde(default)]
    wire_fault: f64,
    /// Probability that a processor damages a message.
    #[serde(default)]
    processor_fault: f64,
    /// Probability that a node stops for good in a cycle; the next field limits how many do.
    #[serde(default)]
    processor_death: f64,
    #[serde(default)]
    processor_deaths_max: usize,
    /// How long the machine has gossiped before the start, in milliseconds.
    warm_ms: Option<f64>,
    /// Bytes of a gossip for each member, if they differ from the figure's default.
    bytes_per_member: Option<u64>,
    /// Wires from each cluster up, if they differ from the default.
    uplinks: Option<usize>,
    /// Number of broken local ports, and of broken global ports.
    #[serde(default)]
    broken_ports: usize,
    /// Whether no watchdog detects a broken port.
    #[serde(default)]
    unwatched: bool,
    /// Whether no background traffic is sent.
    #[serde(default)]
    quiet: bool,
    /// Whether each node gossips at times of its own.
    #[serde(default)]
    out_of_step: bool,
    /// Whether gossips queue at their sender's port.
    #[serde(default)]
    lines_up: bool,
    /// Whether gossips that find no message to piggyback on use the local factor, instead of any receiver.
    #[serde(default)]
    hierarchical_alone: bool,
    /// Whether a node dies instead of being repaired.
    #[serde(default)]
    death: bool,
    /// The paper's points: x, milliseconds, and the number of gossips if the paper gives it.
    #[serde(default)]
    pub paper: Vec<PaperPoint>,
}

/// A point of the paper.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PaperPoint {
    /// The value of x.
    pub x: f64,
    /// Milliseconds to agreement.
    pub ms: f64,
    /// Undamaged gossips received by then.
    pub gossips: Option<f64>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Protocol {
    Basic,
    Hierarchical,
    Piggyback,
    Broadcast,
    Buddies,
}

/// One figure.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClusterFigure {
    /// The name of its file.
    pub name: String,
    /// What it shows.
    pub title: String,
    /// What is varied.
    pub axis: Axis,
    /// Its values.
    pub xs: Vec<f64>,
    /// The lines.
    pub line: Vec<Line>,
}

impl ClusterFigure {
    /// Reads a file.
    ///
    /// # Errors
    /// Returns what is wrong in it, and where.
    pub fn read(text: &str) -> Result<Self, String> {
        toml::from_str(text).map_err(|error| error.to_string())
    }

    /// The setting of the machine for one point.
    #[must_use]
    pub fn setting(&self, line: &Line, x: f64) -> ClusterSetting {
        let (mut local, mut factor, mut nodes) = (0.9, 0.75, 96);
        match self.axis {
            Axis::Local => local = x,
            Axis::Piggyback => factor = x,
            Axis::Nodes => nodes = x as usize,
            Axis::IntervalMs | Axis::CleanupMs | Axis::Partitions | Axis::MemberBytes => {}
        }
        let gossiping = match line.protocol {
            Protocol::Basic => Gossiping::Basic,
            Protocol::Hierarchical => Gossiping::Hierarchical(local),
            Protocol::Piggyback => Gossiping::Piggyback {
                factor,
                local: line.hierarchical_alone.then_some(local),
            },
            Protocol::Broadcast => Gossiping::Broadcast,
            Protocol::Buddies => Gossiping::Buddies(local),
        };
        let mut setting = ClusterSetting::new(nodes, gossiping);
        setting.wire_fault = line.wire_fault;
        (setting.processor_fault, setting.processor_death) =
            (line.processor_fault, line.processor_death);
        if line.processor_deaths_max > 0 {
            // Until the last stopped node is off all lists.
            setting.processor_deaths_max = line.processor_deaths_max;
            setting.limit_us += 2 * setting.cleanup_us;
        }
        setting.warm_us = line.warm_ms.map(|ms| (ms * 1e3) as u64);
        if let Some(bytes) = line.bytes_per_member {
            setting.gossip_bytes.1 = bytes;
        }
        if let Some(uplinks) = line.uplinks {
            setting.uplinks = uplinks;
        }
        if line.quiet {
            // Then ports receive too little for a watchdog.
            setting.traffic_bytes = 0;
            setting.watchdog_us = None;
        }
        if line.unwatched {
            setting.watchdog_us = None;
        }
        setting.broken_ports = line.broken_ports;
        setting.in_step = !line.out_of_step;
        setting.waits = !line.lines_up;
        if line.death {
            setting.start = Start::Death;
            setting.limit_us += setting.cleanup_us;
        }
        match self.axis {
            Axis::IntervalMs => setting.interval_us = (x * 1e3) as u64,
            Axis::CleanupMs => setting.cleanup_us = (x * 1e3) as u64,
            Axis::Partitions => setting.partitions = x as usize,
            Axis::MemberBytes => setting.gossip_bytes.1 = x as u64,
            _ => {}
        }
        setting
    }
}

/// Runs of one point.
#[derive(Clone, Debug, Default)]
pub struct PointFound {
    /// How many there were.
    pub runs: u64,
    /// Times of agreement of the runs that agreed, in milliseconds, sorted.
    pub agreed_ms: Vec<f64>,
    /// Mean number of gossips received, over those runs; the next two are means too.
    pub received: f64,
    /// Gossips sent.
    pub sent: f64,
    /// Bytes of gossip sent.
    pub bytes: f64,
    /// Running members taken off lists, in all runs.
    pub false_detections: u64,
}

impl PointFound {
    /// Runs one point with these seeds.
    #[must_use]
    pub fn of(setting: &ClusterSetting, seeds: impl IntoIterator<Item = u64>) -> Self {
        let mut found = Self::default();
        for seed in seeds {
            let Agreement {
                agreed_ms,
                received,
                sent,
                bytes,
                false_detections,
                ..
            } = run_cluster(setting, seed);
            found.runs += 1;
            found.false_detections += false_detections;
            if let Some(ms) = agreed_ms {
                found.agreed_ms.push(ms);
                found.received += received as f64;
                found.sent += sent as f64;
                found.bytes += bytes as f64;
            }
        }
        let agreed = found.agreed_ms.len().max(1) as f64;
        for sum in [&mut found.received, &mut found.sent, &mut found.bytes] {
            *sum /= agreed;
        }
        found.agreed_ms.sort_by(f64::total_cmp);
        found
    }

    /// The mean time of agreement; `None` unless every run agreed.
    #[must_use]
    pub fn mean_ms(&self) -> Option<f64> {
        let agreed = self.agreed_ms.len();
        let all = agreed > 0 && agreed as u64 == self.runs;
        all.then(|| self.agreed_ms.iter().sum::<f64>() / agreed as f64)
    }

    /// The time by which this part of the runs had agreed.
    #[must_use]
    pub fn quantile_ms(&self, part: f64) -> Option<f64> {
        let last = self.agreed_ms.len().checked_sub(1)?;
        self.agreed_ms
            .get((last as f64 * part).round() as usize)
            .copied()
    }
}
