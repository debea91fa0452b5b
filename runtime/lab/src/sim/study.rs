//! The results of a zone study: medians over the seeds.

use muster_sim::{Measured, ZoneSetting};
use serde::Serialize;

/// The paper's boot of 2048 members in one zone, in milliseconds (two processes per machine, tau 200 ms, Theta 1, Kr 3,
/// Ks 1).
pub(super) const PAPER_BOOT: (usize, f64) = (2048, 5_700.0);
/// The paper's time at the high priority monitor, in milliseconds; approximate, for any size.
pub(super) const PAPER_MONITOR_MS: f64 = 30.0;
/// Bytes that the headers of IPv4 and UDP add to a datagram.
const HEADERS: u64 = 28;

/// The measurements of one zone, over all seeds.
#[derive(Serialize)]
pub(super) struct ZoneFigures {
    pub(super) timing: &'static str,
    pub(super) heartbeat_ms: u64,
    pub(super) deadline_ms: u64,
    pub(super) tau_ms: u64,
    pub(super) theta: usize,
    pub(super) successors: usize,
    pub(super) neighbours: usize,
    pub(super) members: usize,
    pub(super) measured: Vec<Figure>,
}

/// One measurement: medians over the seeds.
#[derive(Serialize)]
pub(super) struct Figure {
    pub(super) what: &'static str,
    pub(super) at_once: usize,
    /// Time until all views were correct; none if one seed took more than two minutes.
    pub(super) all_views_right_ms: Option<f64>,
    /// Minimum and maximum over the seeds.
    pub(super) range_ms: Option<(f64, f64)>,
    pub(super) half_of_views_right_ms: f64,
    pub(super) most_views_right_ms: f64,
    /// Time until the monitor's view was correct.
    pub(super) monitor_ms: Option<f64>,
    pub(super) counted_ms: f64,
    pub(super) datagrams_per_member: u64,
    pub(super) bytes_per_member: u64,
    /// Including the headers of IPv4 and UDP.
    pub(super) wire_bytes_per_member: u64,
    pub(super) copies_per_fact: f64,
    pub(super) false_failures: u64,
    pub(super) datagrams_lost_in_full_sockets: u64,
}

/// The whole study.
#[derive(Serialize)]
pub(super) struct Study {
    pub(super) simulated: bool,
    pub(super) seed: u64,
    pub(super) seeds: u64,
    pub(super) round_trip_us: u64,
    pub(super) service_us: u64,
    pub(super) members_per_cpu: usize,
    pub(super) counts: Vec<usize>,
    pub(super) paper_boot_2048_ms: f64,
    pub(super) paper_monitor_ms: f64,
    pub(super) zones: Vec<ZoneFigures>,
}

/// Heap of one engine.
#[derive(Serialize)]
pub(super) struct Memory {
    pub(super) members: usize,
    pub(super) engine_bytes: u64,
    pub(super) bytes_per_member: u64,
}

impl Figure {
    /// The medians of one measurement over several seeds.
    fn of(seeds: &[&Measured]) -> Self {
        let median = |of: &dyn Fn(&Measured) -> u64| {
            let mut values: Vec<u64> = seeds.iter().map(|one| of(one)).collect();
            values.sort_unstable();
            values[values.len() / 2]
        };
        let ms = |us: u64| us as f64 / 1e3;
        let took: Option<Vec<u64>> = seeds.iter().map(|one| one.took_us).collect();
        let extremes = took.as_deref().map(|took| {
            let (least, most) = (took.iter().min(), took.iter().max());
            (ms(*least.unwrap_or(&0)), ms(*most.unwrap_or(&0)))
        });
        let copies: f64 = seeds.iter().map(|one| one.copies()).sum();
        Self {
            what: seeds[0].what,
            at_once: seeds[0].count,
            all_views_right_ms: took.map(|_| ms(median(&|one| one.took_us.unwrap_or(0)))),
            range_ms: extremes,
            half_of_views_right_ms: ms(median(&|one| one.half_us)),
            most_views_right_ms: ms(median(&|one| one.most_us)),
            monitor_ms: seeds[0]
                .monitor_us
                .map(|_| ms(median(&|one| one.monitor_us.unwrap_or(0)))),
            counted_ms: ms(median(&|one| one.counted_us)),
            datagrams_per_member: median(&|one| one.datagrams_each),
            bytes_per_member: median(&|one| one.bytes_each),
            wire_bytes_per_member: median(&|one| one.bytes_each + HEADERS * one.datagrams_each),
            copies_per_fact: (copies / seeds.len() as f64 * 100.0).round() / 100.0,
            false_failures: seeds.iter().map(|one| one.false_failures).sum(),
            datagrams_lost_in_full_sockets: seeds.iter().map(|one| one.overrun).sum(),
        }
    }
}

impl ZoneFigures {
    /// The medians of a zone's measurements.
    pub(super) fn of(setting: &ZoneSetting, seeds: &[Vec<Measured>]) -> Self {
        let timing = &setting.timing;
        let figures = (0..seeds[0].len()).map(|index| {
            let same: Vec<&Measured> = seeds.iter().map(|measured| &measured[index]).collect();
            Figure::of(&same)
        });
        Self {
            timing: timing.name,
            heartbeat_ms: timing.profile.heartbeat_us() / 1000,
            deadline_ms: timing.profile.deadline_us() / 1000,
            tau_ms: timing.mode.tau_us() / 1000,
            theta: timing.theta,
            successors: timing.successors,
            neighbours: timing.neighbours,
            members: setting.members,
            measured: figures.collect(),
        }
    }
}
