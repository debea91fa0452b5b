//! `muster sim zones`: runs many seeds of a job with zones and all faults, on all cores.
//!
//! A seed decides which nodes, supervisors and zones die, leave, start again, stop and are cut off. Checked are: no
//! node that runs is reported failed, unless it was cut off or stopped; the two sides of a split do not both go on as
//! if nothing had happened; a node that has been dead or cut off for 2 s counts as alive nowhere, unless something
//! else happened meanwhile; and in the end every node knows the truth about all nodes.

use clap::Args;
use muster_sim::{STUDY_ZONES_MIN, Timing, ZonedReport, ZonedSetting, run_zoned};
use muster_terminal::process::{is_interrupted, notice_interruption};
use muster_terminal::{CliError, Progress};
use serde::Serialize;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{Output, cores, new_seed, print_json, zones_study};

/// Options of `muster sim zones`.
#[derive(Args)]
pub(crate) struct ZonesArgs {
    /// Nodes of the job.
    #[arg(long, default_value_t = 96, value_parser = clap::value_parser!(u32).range(4..=16_384))]
    nodes: u32,
    /// Nodes of a zone.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(2..=1024))]
    zone: u32,
    /// Most members of a zone above; a larger one is divided, and the job has one more level.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(4..=1024))]
    above: u32,
    /// Faults of each world.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(0..=1000))]
    faults: u32,
    /// Lost datagrams, in thousandths.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(0..=500))]
    loss: u32,
    /// Nodes start one after the other over this time, in milliseconds.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=20_000))]
    start_ms: u32,
    /// Nodes die, leave and start again, but none is cut off or stopped.
    #[arg(long)]
    no_cuts: bool,
    /// Nodes that are outcast stop, as those do whose ranks tell their MPI of failures.
    #[arg(long)]
    stop: bool,
    /// Measure the start and single losses instead, with our parameters and those of the zone membership paper.
    #[arg(long, conflicts_with_all = ["faults", "loss", "no_cuts", "stop", "story", "threads"])]
    study: bool,
    /// Number of seeds [default: 100, with --study 3].
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    seeds: Option<u64>,
    /// The first seed [default: a new one].
    #[arg(long)]
    first: Option<u64>,
    /// Print the faults, and what nodes were told of zones, for each seed.
    #[arg(long)]
    story: bool,
    /// Worlds that run in parallel [default: one per core]. The result does not depend on it.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: Option<u32>,
    /// Output format.
    #[arg(short, long, default_value = "text")]
    output: Output,
}

/// The result as JSON. All figures are simulated.
#[derive(Serialize)]
struct ZonesReport {
    simulated: bool,
    nodes: u32,
    zones: usize,
    levels: usize,
    first: u64,
    runs: usize,
    boot_ms_p50: f64,
    boot_ms_max: f64,
    datagrams: u64,
    bytes: u64,
    failed: Vec<Failed>,
}

/// A seed with violations.
#[derive(Serialize)]
struct Failed {
    seed: u64,
    violations: Vec<String>,
}

/// Runs the command.
pub(super) fn main(args: &ZonesArgs) -> Result<(), CliError> {
    let setting = ZonedSetting {
        nodes: args.nodes as usize,
        zone: args.zone as usize,
        above_max: args.above as usize,
        timing: Timing::OURS,
        loss_permille: args.loss,
        start_us: u64::from(args.start_ms) * 1000,
        faults: args.faults as usize,
        has_cuts: !args.no_cuts,
        stops_outcasts: args.stop,
    };
    let map = setting.map().map_err(|error| {
        let sizes = format!("{} nodes in zones of {}", args.nodes, args.zone);
        CliError::usage(
            format!("sim zones: {sizes}, at most {} above", args.above),
            error,
        )
        .hint("use other values of --nodes, --zone and --above")
    })?;
    let first = args.first.unwrap_or_else(new_seed);
    let seeds = args.seeds.unwrap_or(if args.study { 3 } else { 100 });
    let zones = map.zones_at(0).count();
    if args.study && zones < STUDY_ZONES_MIN {
        let what = format!("sim zones --study: {} nodes in {zones} zones", args.nodes);
        let why = format!(
            "a study takes at least {STUDY_ZONES_MIN} zones, as one dies and one loses its supervisors"
        );
        return Err(CliError::usage(what, why).hint("use a smaller --zone or a larger --nodes"));
    }
    let is_text = args.output == Output::Text;
    if is_text {
        let (nodes, levels) = (args.nodes, map.levels());
        let last = first.saturating_add(seeds - 1);
        println!("{nodes} nodes in {zones} zones, {levels} levels: seeds {first} to {last}");
    }
    if args.study {
        let figures = zones_study::study(setting, first, seeds);
        match is_text {
            true => zones_study::print(&figures),
            false => print_json(&figures)?,
        }
        return Ok(());
    }
    notice_interruption();
    let reports = run_all(args, setting, first, seeds);
    if args.story {
        for report in &reports {
            println!("seed {}\n{}", report.seed, report.story.join("\n"));
        }
    }
    let report = summary(args, (zones, map.levels(), first), &reports);
    match is_text {
        true => print(&report),
        false => print_json(&report)?,
    }
    if is_interrupted() {
        return Err(CliError::new("sim zones", "interrupted").exit_code(130));
    }
    let Some(failed) = report.failed.first() else {
        return Ok(());
    };
    let why = failed.violations.first().cloned().unwrap_or_default();
    let hint = format!(
        "reproduce with muster sim zones --nodes {} --zone {} --above {} --faults {} --loss {} \
         --start-ms {}{}{} --first {} --seeds 1 --story",
        args.nodes,
        args.zone,
        args.above,
        args.faults,
        args.loss,
        args.start_ms,
        if args.no_cuts { " --no-cuts" } else { "" },
        if args.stop { " --stop" } else { "" },
        failed.seed
    );
    let what = format!("sim zones: seed {}", failed.seed);
    Err(CliError::new(what, why).hint(hint).exit_code(20))
}

/// Runs all seeds, and returns what was found in their order.
fn run_all(args: &ZonesArgs, setting: ZonedSetting, first: u64, seeds: u64) -> Vec<ZonedReport> {
    let threads = args.threads.map_or_else(cores, |threads| threads as usize);
    let (next, progress) = (AtomicU64::new(0), Progress::default());
    let found: Mutex<Vec<ZonedReport>> = Mutex::default();
    let work = || {
        while !is_interrupted() {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= seeds {
                break;
            }
            let mut report = run_zoned(setting, first.wrapping_add(number));
            if !args.story {
                report.story = Vec::new();
            }
            let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
            found.push(report);
            progress.show(format_args!("{} of {seeds} seeds", found.len()));
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(work);
        }
    });
    drop(progress);
    let mut found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
    found.sort_by_key(|report| report.seed);
    found
}

fn summary(
    args: &ZonesArgs,
    (zones, levels, first): (usize, usize, u64),
    reports: &[ZonedReport],
) -> ZonesReport {
    let mut boot: Vec<u64> = reports.iter().map(|report| report.boot_us).collect();
    boot.sort_unstable();
    let ms = |us: Option<&u64>| us.map_or(0.0, |us| *us as f64 / 1e3);
    let failed = reports
        .iter()
        .filter(|report| !report.violations.is_empty());
    ZonesReport {
        simulated: true,
        nodes: args.nodes,
        zones,
        levels,
        first,
        runs: reports.len(),
        boot_ms_p50: ms(boot.get(boot.len() / 2)),
        boot_ms_max: ms(boot.last()),
        datagrams: reports.iter().map(|report| report.frames).sum(),
        bytes: reports.iter().map(|report| report.bytes).sum(),
        failed: failed
            .map(|report| Failed {
                seed: report.seed,
                violations: report.violations.clone(),
            })
            .collect(),
    }
}

fn print(report: &ZonesReport) {
    println!(
        "simulated: boot {:.1} ms (p50), at most {:.1} ms; {} datagrams",
        report.boot_ms_p50, report.boot_ms_max, report.datagrams
    );
    println!("{} of {} seeds failed", report.failed.len(), report.runs);
    for failed in &report.failed {
        let first = failed.violations.first().map_or("", String::as_str);
        println!("seed {}: {first}", failed.seed);
    }
}
