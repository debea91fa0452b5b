//! `muster sim figures`: measures whole zones and draws the results. All figures are simulated.
//!
//! Each combination of timing, size and seed is a world of its own. Worlds run in parallel; the result does not depend
//! on the number of threads.

use super::plot::{self, Axis, Scale, Series};
use super::study::{Memory, PAPER_BOOT, PAPER_MONITOR_MS, Study, ZoneFigures};
use super::{Output, burns, cores, markdown, print_json};
use clap::{Args, ValueEnum};
use muster_sim::{Cpus, Measured, Network, Scenario, Timing, ZoneSetting, engine_memory, study};
use muster_terminal::{CliError, print_error};
use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Instant;

/// Output format of the study.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Form {
    /// One JSON document.
    Json,
    /// Tables for a document.
    Markdown,
}

/// Options of `muster sim figures`.
#[derive(Args)]
pub(crate) struct FiguresArgs {
    /// Sizes of the zone.
    #[arg(long, value_delimiter = ',', default_value = "128,256,512,1024,2048",
          value_parser = clap::value_parser!(u32).range(4..=4096))]
    members: Vec<u32>,
    /// Numbers of members that leave, join, crash or fall silent at once; 0 measures only the boot.
    #[arg(long, value_delimiter = ',', default_value = "1,4,16",
          value_parser = clap::value_parser!(u32).range(0..=512))]
    counts: Vec<u32>,
    /// The first seed.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Number of seeds; the output has medians, for the boot also the extremes.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1000))]
    seeds: u64,
    /// Round trip of the simulated network, in microseconds, with a tenth of jitter.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(10..=1_000_000))]
    round_trip_us: u64,
    /// Time that a datagram occupies a CPU at its sender and at its receiver, in microseconds.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=100_000))]
    service_us: u64,
    /// Number of members that share a CPU.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=64))]
    shared_by: u32,
    /// Only one of the two timings: ours, or the plain algorithm with the parameters of the paper.
    #[arg(long, value_parser = ["ours", "paper"])]
    timing: Option<String>,
    /// Zones that run in parallel [default: one per core]. A zone of 2048 takes gigabytes.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=64))]
    threads: Option<u32>,
    /// Output format.
    #[arg(short, long, default_value = "json")]
    output: Form,
    /// Draw the boot times into this SVG file.
    #[arg(long)]
    plot: Option<PathBuf>,
    /// Create the figures of the gossip simulation paper instead, in this directory: plots and a table.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Runs of each point of these figures.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    runs: u64,
    /// Measure only the heap that the engine of one member uses, in zones of these sizes.
    #[arg(long)]
    memory: bool,
}

/// Measures, prints and draws.
pub(crate) fn main(args: &FiguresArgs) -> Result<(), CliError> {
    if let Some(directory) = &args.out {
        let threads = args.threads.map_or_else(cores, |threads| threads as usize);
        return burns::main(directory, args.runs, args.seed, threads);
    }
    let counts = args.counts.iter().map(|count| *count as usize);
    let counts: Vec<usize> = counts.filter(|count| *count > 0).collect();
    let network = Network::with_round_trip(args.round_trip_us);
    let cpus = Cpus {
        service_us: args.service_us,
        shared_by: args.shared_by as usize,
        ..Cpus::default()
    };
    let wanted = |timing: &Timing| {
        args.timing
            .as_deref()
            .is_none_or(|only| only == timing.name)
    };
    let timings = [Timing::OURS, Timing::PAPER].into_iter().filter(wanted);
    let settings: Vec<ZoneSetting> = timings
        .flat_map(|timing| args.members.iter().map(move |members| (timing, *members)))
        .map(|(timing, members)| ZoneSetting {
            members: members as usize,
            timing,
            network: network.clone(),
            cpus,
        })
        .collect();
    if args.memory {
        return memory(args, &settings);
    }
    let ended = counts.iter().sum::<usize>() * 3;
    if let Some(few) = args.members.iter().find(|few| (**few as usize) < ended + 2) {
        let list: Vec<String> = counts.iter().map(ToString::to_string).collect();
        let list = list.join(",");
        let why = format!("--counts {list} would end {ended} members of a zone of {few}");
        return Err(CliError::usage("sim figures", why).hint("use larger zones or smaller counts"));
    }
    let threads = args.threads.map_or_else(cores, |threads| threads as usize);
    let seeds: Vec<u64> = (0..args.seeds)
        .map(|more| args.seed.wrapping_add(more))
        .collect();
    let study = Study {
        simulated: true,
        seed: args.seed,
        seeds: args.seeds,
        round_trip_us: args.round_trip_us,
        service_us: args.service_us,
        members_per_cpu: cpus.shared_by,
        paper_boot_2048_ms: PAPER_BOOT.1,
        paper_monitor_ms: PAPER_MONITOR_MS,
        zones: measure(&settings, &seeds, &counts, threads),
        counts,
    };
    match args.output {
        Form::Json => print_json(&study)?,
        Form::Markdown => print!("{}", markdown::study(&study)),
    }
    match &args.plot {
        Some(path) => draw_boot(&study, path)
            .map_err(|error| CliError::new(format!("sim: {}", path.display()), error)),
        None => Ok(()),
    }
}

/// Draws the boot times and the paper's value.
fn draw_boot(study: &Study, path: &Path) -> Result<(), Box<dyn Error>> {
    let title = format!(
        "Boot of one zone until all views are right (simulated, {} us a datagram)",
        study.service_us
    );
    let timings = [
        ("ours", "ours: 20/60 ms, tau 1 ms, two observers"),
        ("paper", "the plain algorithm, tau 200 ms, one observer"),
    ];
    let mut series: Vec<Series> = timings
        .into_iter()
        .map(|(timing, label)| {
            let boots = boots(study, timing);
            let points = boots.iter().map(|(x, y, _)| (*x, *y)).collect();
            let spans = boots.into_iter().map(|(x, _, span)| (x, span));
            Series {
                spans: spans.collect(),
                ..Series::marked(label, points)
            }
        })
        .collect();
    // The paper's machine ran the plain algorithm: its point has that line's colour.
    if let Some(plain) = series.last_mut() {
        plain.crosses = vec![(PAPER_BOOT.0 as f64, PAPER_BOOT.1 / 1e3)];
    }
    let axis = |label, scale, span| Axis { label, scale, span };
    let x = axis("members", Scale::Log2, (64.0, 3072.0));
    let y = axis("seconds", Scale::Log10, (0.01, 10.0));
    let crosses = Some("measured by the paper");
    plot::draw(path, &title, (&x, &y), &series, crosses)
}

/// Members, seconds, minimum and maximum seconds.
fn boots(study: &Study, timing: &str) -> Vec<(f64, f64, (f64, f64))> {
    let zones = study.zones.iter().filter(|zone| zone.timing == timing);
    zones
        .filter_map(|zone| {
            let boot = zone.measured.iter().find(|figure| figure.what == "boot")?;
            let (low, high) = boot.range_ms?;
            let right_s = boot.all_views_right_ms? / 1e3;
            Some((zone.members as f64, right_s, (low / 1e3, high / 1e3)))
        })
        .collect()
}

/// Runs a scenario with a study plan: one size, one seed.
pub(super) fn run_plan(scenario: &Scenario, seed: u64, output: Output) -> Result<(), CliError> {
    let drawn = scenario.draw(seed);
    let Some(plan) = &drawn.study else {
        return Ok(());
    };
    let network = drawn.network.network();
    let setting = |timing| ZoneSetting {
        members: usize::try_from(drawn.zone.members.low).unwrap_or(2),
        timing,
        network: network.clone(),
        cpus: plan.cpus(),
    };
    let settings: Vec<ZoneSetting> = plan.timings().map(setting).collect();
    let study = Study {
        simulated: true,
        seed,
        seeds: 1,
        round_trip_us: network.delay_min_us + network.delay_max_us,
        service_us: plan.service_us,
        members_per_cpu: plan.shared_by,
        counts: plan.counts.clone(),
        paper_boot_2048_ms: PAPER_BOOT.1,
        paper_monitor_ms: PAPER_MONITOR_MS,
        zones: measure(&settings, &[seed], &plan.counts, cores()),
    };
    match output {
        Output::Json => print_json(&study)?,
        Output::Text => print!("{}", markdown::study(&study)),
    }
    let figures = study.zones.iter().flat_map(|zone| &zone.measured);
    for figure in figures.filter(|figure| figure.what != "idle") {
        let late = figure.all_views_right_ms.is_none();
        if late || figure.false_failures > 0 {
            let (kind, code) = if late {
                ("liveness", 21)
            } else {
                ("correctness", 20)
            };
            let why = format!(
                "{} of {}: a view was not correct",
                figure.what, figure.at_once
            );
            return Err(CliError::new(format!("sim: {kind}"), why).exit_code(code));
        }
    }
    Ok(())
}

/// Measures all zones with all seeds, the largest zones first. The result is in the order of the settings.
fn measure(
    settings: &[ZoneSetting],
    seeds: &[u64],
    counts: &[usize],
    threads: usize,
) -> Vec<ZoneFigures> {
    let mut jobs: Vec<(usize, u64)> = (0..settings.len())
        .flat_map(|index| seeds.iter().map(move |seed| (index, *seed)))
        .collect();
    jobs.sort_by_key(|(index, _)| usize::MAX - settings[*index].members);
    let (next, jobs) = (AtomicUsize::new(0), &jobs);
    let (done, results) = mpsc::channel();
    let mut measured: Vec<Vec<(u64, Vec<Measured>)>> =
        settings.iter().map(|_| Vec::new()).collect();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            let (done, next) = (done.clone(), &next);
            scope.spawn(move || {
                while let Some((index, seed)) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let measured = measure_one(&settings[*index], *seed, counts);
                    done.send((*index, *seed, measured)).ok();
                }
            });
        }
        drop(done);
        for (index, seed, one) in results {
            measured[index].push((seed, one));
        }
    });
    let zones = settings.iter().zip(measured);
    zones
        .map(|(setting, mut seeds)| {
            seeds.sort_by_key(|(seed, _)| *seed);
            let seeds: Vec<_> = seeds.into_iter().map(|(_, measured)| measured).collect();
            ZoneFigures::of(setting, &seeds)
        })
        .collect()
}

/// Measures one zone with one seed. Progress is printed to standard error.
fn measure_one(setting: &ZoneSetting, seed: u64, counts: &[usize]) -> Vec<Measured> {
    let mut since = Instant::now();
    let (timing, members) = (setting.timing.name, setting.members);
    study(seed, setting, counts, |one| {
        let right = one
            .took_us
            .map_or_else(String::new, |us| format!(" {} ms,", us as f64 / 1e3));
        print_error(format_args!(
            "{timing} {members} seed {seed}: {} {}:{right} took {:.1} s to simulate",
            one.what,
            one.count,
            since.elapsed().as_secs_f64()
        ));
        since = Instant::now();
    })
}

fn memory(args: &FiguresArgs, settings: &[ZoneSetting]) -> Result<(), CliError> {
    let heap = muster_sys::heap::in_use;
    if heap().is_none() {
        let why = "the C library of this machine does not count the heap in use";
        return Err(CliError::new("sim figures: --memory", why).hint("use a machine with glibc"));
    }
    let ours = settings
        .iter()
        .filter(|setting| setting.timing == Timing::OURS);
    let taken: Vec<Memory> = ours
        .map(|setting| {
            let engine_bytes = engine_memory(args.seed, setting, || heap().unwrap_or(0));
            Memory {
                members: setting.members,
                engine_bytes,
                bytes_per_member: engine_bytes / setting.members as u64,
            }
        })
        .collect();
    match args.output {
        Form::Json => print_json(&taken),
        Form::Markdown => {
            print!("{}", markdown::memory(&taken));
            Ok(())
        }
    }
}
