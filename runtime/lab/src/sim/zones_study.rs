//! `muster sim zones --study`: what a job with zones needs for its start and for single losses.

use muster_sim::{Timing, ZonedMeasured, ZonedSetting, study_zoned};
use muster_terminal::Progress;
use serde::Serialize;

/// One measurement: medians over the seeds.
#[derive(Serialize)]
pub(super) struct ZonesFigure {
    timing: &'static str,
    what: &'static str,
    nodes: usize,
    /// Until all nodes knew the truth; none if one seed took too long. Of `idle`: how long it was measured.
    all_know_ms: Option<f64>,
    /// Least and most of the seeds.
    range_ms: Option<(f64, f64)>,
    /// Sent in that time by each node.
    datagrams_per_node: u64,
    bytes_per_node: u64,
    false_failures: usize,
}

impl ZonesFigure {
    fn of(timing: Timing, seeds: &[&ZonedMeasured]) -> Self {
        let median = |mut values: Vec<u64>| {
            values.sort_unstable();
            values[values.len() / 2]
        };
        let ms = |us: u64| us as f64 / 1e3;
        let took: Option<Vec<u64>> = seeds.iter().map(|one| one.took_us).collect();
        let extremes = took.as_ref().map(|took| {
            let (least, most) = (took.iter().min(), took.iter().max());
            (ms(*least.unwrap_or(&0)), ms(*most.unwrap_or(&0)))
        });
        let each =
            |of: fn(&ZonedMeasured) -> u64| median(seeds.iter().map(|one| of(one)).collect());
        Self {
            timing: timing.name,
            what: seeds[0].what,
            nodes: seeds[0].count,
            all_know_ms: took.map(|took| ms(median(took))),
            range_ms: extremes,
            datagrams_per_node: each(|one| one.datagrams_each),
            bytes_per_node: each(|one| one.bytes_each),
            false_failures: seeds.iter().map(|one| one.false_failures).sum(),
        }
    }
}

/// Measures a job with our parameters and with the paper's, with each of the seeds.
pub(super) fn study(setting: ZonedSetting, first: u64, seeds: u64) -> Vec<ZonesFigure> {
    let progress = Progress::default();
    let mut figures = Vec::new();
    for timing in [Timing::OURS, Timing::PAPER] {
        let of_seed = |number: u64| {
            progress.show(format_args!(
                "{}, seed {} of {seeds}",
                timing.name,
                number + 1
            ));
            study_zoned(
                ZonedSetting { timing, ..setting },
                first.wrapping_add(number),
            )
        };
        let all: Vec<Vec<ZonedMeasured>> = (0..seeds).map(of_seed).collect();
        figures.extend((0..all[0].len()).map(|place| {
            let same: Vec<&ZonedMeasured> = all.iter().map(|measured| &measured[place]).collect();
            ZonesFigure::of(timing, &same)
        }));
    }
    figures
}

/// Prints the figures as a Markdown table.
pub(super) fn print(figures: &[ZonesFigure]) {
    println!(
        "Medians, from the change until all nodes know of it; sent by each node in that time, without headers.\n\n\
         | timing | change | nodes | all know, ms | least | most | datagrams | kB | false failures |\n\
         |---|---|---|---|---|---|---|---|---|"
    );
    let number = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |ms| format!("{ms:.0}"));
    for figure in figures {
        let (least, most) = figure.range_ms.unzip();
        println!(
            "| {} | {} | {} | {} | {} | {} | {} | {:.1} | {} |",
            figure.timing,
            figure.what,
            figure.nodes,
            number(figure.all_know_ms),
            number(least),
            number(most),
            figure.datagrams_per_node,
            figure.bytes_per_node as f64 / 1e3,
            figure.false_failures
        );
    }
}
