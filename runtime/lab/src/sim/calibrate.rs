//! `muster sim calibrate`: fits the simulated cost of wake-ups and datagrams to this machine, and tests what it
//! predicts.
//!
//! A group of real members on loopback is measured: members leave, are killed and are stopped. The same group is
//! simulated with many costs of a wake-up and of a datagram. The pair that comes closest to the measured times is then
//! used for larger groups, which are measured too: the ratios show how far the simulator can be trusted. All members of
//! a group share the machine's cores, in both.

use super::{Output, cores, new_seed, print_json};
use crate::bench::timed::{Measured, measure, quantile};
use clap::Args;
use muster_sim::{Cpus, Network, Timing, ZoneSetting, study};
use muster_terminal::process::notice_interruption;
use muster_terminal::{CliError, Progress};
use serde::Serialize;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// The faults that are compared, as the simulator names them.
const FAULTS: [&str; 3] = ["leave", "crash", "silence"];
/// The round trip on loopback without the members, in microseconds.
const ROUND_TRIP_US: u64 = 20;
/// The costs of a wake-up that are tried, in microseconds.
const WAKE_US: [u64; 8] = [20, 40, 60, 90, 130, 180, 250, 350];
/// The costs of a datagram at each of its ends that are tried, in microseconds.
const SERVICE_US: [u64; 6] = [2, 5, 10, 15, 20, 30];
/// Simulated courses of each pair, and of each prediction.
const SEEDS_FITTED: u64 = 6;
const SEEDS_PREDICTED: u64 = 20;

/// Options of `muster sim calibrate`.
#[derive(Args)]
pub(crate) struct CalibrateArgs {
    /// Members of the group that the simulator is fitted to.
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(8..=256))]
    members: u32,
    /// Members of the groups that are predicted and measured.
    #[arg(long, value_delimiter = ',', default_value = "64,128",
          value_parser = clap::value_parser!(u32).range(8..=256))]
    predict: Vec<u32>,
    /// Members that leave, are killed, and are stopped, in each group.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=200))]
    faults: u32,
    /// Seed that selects the members and times of the faults, and the courses [default: random].
    #[arg(long)]
    seed: Option<u64>,
    /// Output format.
    #[arg(short, long, default_value = "text")]
    output: Output,
}

/// What the simulator was fitted with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
struct Fit {
    /// A wake-up takes a core.
    wake_us: u64,
    /// A datagram takes a core, at each end.
    service_us: u64,
}

/// When others knew of one fault, in milliseconds. Of several faults: the medians.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct Times {
    /// Half of them knew.
    half: f64,
    /// 99 of 100 knew.
    most: f64,
}

/// One kind of fault in a group.
#[derive(Debug, Serialize)]
struct Row {
    members: u32,
    fault: &'static str,
    measured: Times,
    simulated: Times,
    /// Simulated to measured, of the time until half of the members knew.
    ratio: f64,
}

#[derive(Serialize)]
struct Document {
    seed: u64,
    faults: u32,
    cores: usize,
    fitted_to: u32,
    fit: Fit,
    rows: Vec<Row>,
}

/// Measures, fits, predicts and prints.
pub(super) fn main(args: &CalibrateArgs) -> Result<(), CliError> {
    notice_interruption();
    let seed = args.seed.unwrap_or_else(new_seed);
    let is_text = args.output == Output::Text;
    if is_text {
        println!(
            "{} members on loopback, {} faults of each kind, {} cores, seed {seed}",
            args.members,
            args.faults,
            cores()
        );
    }
    let measured = measure_times(args, args.members, seed)?;
    let fit = fit(args.members, &measured, seed);
    if is_text {
        let Fit {
            wake_us,
            service_us,
        } = fit;
        println!(
            "fitted: a wake-up takes a core for {wake_us} us, a datagram for {service_us} us at each end\n\n\
             | members | fault | measured: half ms | 99 % ms | simulated: half ms | 99 % ms | ratio |\n\
             |---|---|---|---|---|---|---|"
        );
    }
    let mut rows = Vec::new();
    let mut add = |members, measured: [Times; 3]| {
        let simulated = simulate(members, fit, seed, SEEDS_PREDICTED);
        for (place, fault) in FAULTS.into_iter().enumerate() {
            let (measured, simulated) = (measured[place], simulated[place]);
            let ratio = simulated.half / measured.half;
            let row = Row {
                members,
                fault,
                measured,
                simulated,
                ratio,
            };
            if is_text {
                println!("{}", line(&row));
            }
            rows.push(row);
        }
    };
    add(args.members, measured);
    for members in &args.predict {
        add(*members, measure_times(args, *members, seed)?);
    }
    if is_text {
        return Ok(());
    }
    print_json(&Document {
        seed,
        faults: args.faults,
        cores: cores(),
        fitted_to: args.members,
        fit,
        rows,
    })
}

fn line(row: &Row) -> String {
    let Row {
        members,
        fault,
        measured,
        simulated,
        ratio,
    } = row;
    format!(
        "| {members} | {fault} | {:.2} | {:.2} | {:.2} | {:.2} | {ratio:.2} |",
        measured.half, measured.most, simulated.half, simulated.most
    )
}

/// Boots a real group and measures each kind of fault.
fn measure_times(args: &CalibrateArgs, members: u32, seed: u64) -> Result<[Times; 3], CliError> {
    let progress = Progress::default();
    progress.show(format_args!("{members} members are measured"));
    let measured = measure(members, args.faults, seed)?;
    let Measured {
        left,
        killed,
        silent,
        missing,
    } = measured;
    if let Some(first) = missing.first() {
        let why = format!("{members} members: {first}");
        return Err(CliError::new("sim calibrate", why)
            .hint("the machine may be too small for the group: use fewer members"));
    }
    Ok([left, killed, silent].map(|faults| medians(faults.iter().map(|times| of_fault(times)))))
}

/// Of the times of all others, in milliseconds.
fn of_fault(times: &[f64]) -> Times {
    Times {
        half: quantile(times, 0.5),
        most: quantile(times, 0.99),
    }
}

/// The medians over faults.
fn medians(faults: impl Iterator<Item = Times>) -> Times {
    let (half, most): (Vec<f64>, Vec<f64>) = faults.map(|one| (one.half, one.most)).unzip();
    Times {
        half: quantile(&half, 0.5),
        most: quantile(&most, 0.5),
    }
}

/// Simulates a group on a machine with as many cores as this one.
fn simulate(members: u32, fit: Fit, seed: u64, seeds: u64) -> [Times; 3] {
    let setting = ZoneSetting {
        members: members as usize,
        timing: Timing::OURS,
        network: Network::with_round_trip(ROUND_TRIP_US),
        cpus: Cpus {
            service_us: fit.service_us,
            wake_us: fit.wake_us,
            shared_by: (members as usize).div_ceil(cores()),
        },
    };
    let next = AtomicU64::new(0);
    let faults: Mutex<[Vec<Times>; 3]> = Mutex::default();
    let run = || {
        loop {
            let place = next.fetch_add(1, Ordering::Relaxed);
            if place >= seeds {
                return;
            }
            for measured in study(seed.wrapping_add(place), &setting, &[1], |_| {}) {
                let kind = FAULTS.iter().position(|fault| *fault == measured.what);
                if let (Some(kind), Some(_)) = (kind, measured.took_us) {
                    let ms = |us: u64| us as f64 / 1e3;
                    faults.lock().expect("no thread panics")[kind].push(Times {
                        half: ms(measured.half_us),
                        most: ms(measured.most_us),
                    });
                }
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..cores() {
            scope.spawn(run);
        }
    });
    let faults = faults.into_inner().expect("no thread panics");
    faults.map(|faults| medians(faults.into_iter()))
}

/// The pair whose simulated times come closest to the measured ones.
fn fit(members: u32, measured: &[Times; 3], seed: u64) -> Fit {
    let progress = Progress::default();
    let pairs = WAKE_US.iter().flat_map(|wake_us| {
        SERVICE_US.iter().map(|service_us| Fit {
            wake_us: *wake_us,
            service_us: *service_us,
        })
    });
    let count = WAKE_US.len() * SERVICE_US.len();
    let pairs = pairs.enumerate().map(|(place, fit)| {
        progress.show(format_args!("fit {} of {count}", place + 1));
        let simulated = simulate(members, fit, seed, SEEDS_FITTED);
        (distance(measured, &simulated), fit)
    });
    let best = pairs.min_by(|(one, _), (other, _)| one.total_cmp(other));
    best.expect("there are pairs").1
}

/// How far simulated times are from measured ones: the sum of the logarithms of their ratios.
fn distance(measured: &[Times; 3], simulated: &[Times; 3]) -> f64 {
    let pairs = measured.iter().zip(simulated);
    let ratios = pairs.flat_map(|(measured, simulated)| {
        [
            simulated.half / measured.half,
            simulated.most / measured.most,
        ]
    });
    let distances = ratios.map(|ratio| match ratio.is_finite() && ratio > 0.0 {
        true => ratio.ln().abs(),
        // It was not known to all in time: worse than any ratio.
        false => f64::from(u16::MAX),
    });
    distances.sum()
}
