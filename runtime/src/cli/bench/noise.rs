//! `muster bench noise`: what agents do to an application that computes on every core.
//!
//! Fixed work quanta: each core does the same piece of work again and again, about a millisecond of it,
//! and a piece that takes longer than usual was disturbed. The machine has noise of its own, so it is measured
//! in turns, without a job and with one that is at rest, and what counts is the difference. The agents
//! of all nodes run on this machine: a node of a cluster has one of them.

use super::figures::quantile;
use super::group::interrupted;
use super::job::{EventRankArgs, Job, RankProcess, await_ready};
use super::machine;
use crate::cli::CliError;
use crate::cli::process::{is_interrupted, notice_interruption, wait_until};
use crate::cli::show::Format;
use clap::Args;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde_json::{Value, json};
use std::hint::black_box;
use std::sync::Barrier;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

/// The length of a piece of work.
const QUANTUM: Duration = Duration::from_millis(1);
/// How often the length is looked for.
const CALIBRATIONS: usize = 200;
/// Rest after a job has come or gone.
const SETTLE: Duration = Duration::from_millis(1500);

/// Options of `muster bench noise`.
#[derive(Args)]
pub(crate) struct NoiseArgs {
    /// Nodes of the job, each with its agent and one rank at rest.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=64))]
    nodes: u32,
    /// Seconds of each turn.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: u64,
    /// Turns with, and turns without.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Timing profile of the agents.
    #[arg(long, default_value = "standard", value_parser = ["fast", "standard", "quiet"])]
    profile: String,
    /// How to print it.
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    output: Format,
}

/// How long the pieces of one core took, in microseconds.
#[derive(Default)]
struct Core {
    number: usize,
    without: Vec<f64>,
    with: Vec<f64>,
}

impl Core {
    /// What a piece takes with nobody but the other cores' pieces around: the median without agents. The
    /// shortest of all would be one whose neighbour on the same physical core was not computing.
    fn usual(&self) -> f64 {
        quantile(&self.without, 0.5)
    }

    /// Of either kind of turn: what a piece took longer on average, in percent, and detours in
    /// microseconds (99.9 % are shorter; the longest).
    fn noise(&self, values: &[f64]) -> [f64; 3] {
        let usual = self.usual();
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let detour = |share| quantile(values, share) - usual;
        [(mean / usual - 1.0) * 100.0, detour(0.999), detour(1.0)]
    }
}

/// Runs the measurement.
pub(super) fn run(args: &NoiseArgs) -> Result<(), CliError> {
    notice_interruption();
    let machine = machine::describe();
    let scratch = machine::scratch()?;
    let job = Job {
        name: "bench-noise",
        net: 77,
        profile: args.profile.clone(),
        directory: scratch.path().to_owned(),
    };
    job.prepare()?;
    let allowed = sched_getaffinity(None).map_err(|e| CliError::new("bench: affinity", e))?;
    let mut cores: Vec<Core> = (0..CpuSet::MAX_CPU)
        .filter(|core| allowed.is_set(*core))
        .map(|number| Core {
            number,
            ..Core::default()
        })
        .collect();
    let work = calibrated();
    for round in 0..args.rounds {
        // Which comes first changes, so that no drift of the machine is taken for one of them.
        for with in [round % 2 == 0, round % 2 != 0] {
            let ranks = if with { rest(args, &job)? } else { Vec::new() };
            wait_until(SETTLE, || false);
            let taken = compute(&cores, work, Duration::from_secs(args.seconds));
            for (core, taken) in cores.iter_mut().zip(taken) {
                if with {
                    &mut core.with
                } else {
                    &mut core.without
                }
                .extend(taken);
            }
            ranks.into_iter().for_each(RankProcess::end);
            job.await_end()?;
            if is_interrupted() {
                return Err(interrupted());
            }
        }
    }
    report(args, &machine, &cores);
    Ok(())
}

/// A job at rest.
fn rest(args: &NoiseArgs, job: &Job) -> Result<Vec<RankProcess>, CliError> {
    let (sender, heard) = channel();
    let mut ranks = Vec::new();
    let each = EventRankArgs {
        resident_mb: 0,
        ranks: args.nodes,
    };
    for index in 0..args.nodes {
        let place = (index + 1, index);
        ranks.push(RankProcess::start(
            job,
            place,
            each,
            index as usize,
            &sender,
        )?);
    }
    await_ready(&heard, ranks.len())?;
    Ok(ranks)
}

/// How much work is a quantum, when nothing disturbs.
fn calibrated() -> u64 {
    let mut work = 100_000;
    for _ in 0..CALIBRATIONS {
        let begun = Instant::now();
        piece(work);
        let share = QUANTUM.as_nanos() as f64 / begun.elapsed().as_nanos().max(1) as f64;
        // Only upwards: whoever took too long was disturbed.
        if share > 1.0 {
            work = (work as f64 * share.min(4.0)) as u64;
        }
    }
    work
}

fn piece(work: u64) {
    let mut state = 1_u64;
    for _ in 0..work {
        state = black_box(
            state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1),
        );
    }
}

/// Computes on all cores at once for so long; how long each piece took, in microseconds.
fn compute(cores: &[Core], work: u64, length: Duration) -> Vec<Vec<f64>> {
    let start = Barrier::new(cores.len());
    std::thread::scope(|scope| {
        let run = |number: usize| {
            let start = &start;
            move || {
                let mut own = CpuSet::new();
                own.set(number);
                // Where it may not be bound the figures are those of the whole machine.
                let _ = sched_setaffinity(None, &own);
                let mut taken = Vec::with_capacity(length.as_millis() as usize * 2);
                start.wait();
                let begun = Instant::now();
                let mut last = begun;
                while last.duration_since(begun) < length {
                    piece(work);
                    let now = Instant::now();
                    taken.push(now.duration_since(last).as_nanos() as f64 / 1e3);
                    last = now;
                }
                taken
            }
        };
        let threads: Vec<_> = cores
            .iter()
            .map(|core| scope.spawn(run(core.number)))
            .collect();
        let taken = threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_default());
        taken.collect()
    })
}

fn report(args: &NoiseArgs, machine: &Value, cores: &[Core]) {
    const NAMES: [&str; 3] = ["mean_percent", "p999_us", "max_us"];
    let noises = cores
        .iter()
        .map(|core| (core, core.noise(&core.without), core.noise(&core.with)));
    if matches!(args.output, Format::Json) {
        let cores: Vec<Value> = noises
            .map(|(core, without, with)| {
                let named = |values: [f64; 3]| -> Value {
                    NAMES
                        .iter()
                        .zip(values)
                        .map(|(name, value)| ((*name).to_owned(), json!(value)))
                        .collect()
                };
                json!({
                    "core": core.number,
                    "quantum_us": core.usual(),
                    "n": [core.without.len(), core.with.len()],
                    "without": named(without),
                    "with": named(with),
                })
            })
            .collect();
        let value = json!({
            "schema": "muster/bench-noise/v1",
            "machine": machine,
            "agents": args.nodes,
            "cores": cores,
        });
        println!("{value:#}");
        return;
    }
    println!("{}", machine::text(machine));
    println!(
        "work quanta on every core, {} turns of {} s without and with {} agents here, profile {}",
        args.rounds, args.seconds, args.nodes, args.profile
    );
    println!(
        "{:<6}{:>10}{:>32}{:>32}{:>28}",
        "core", "quantum", "mean %", "99.9 % detour, us", "longest, us"
    );
    println!(
        "{:<6}{:>10}{:>32}{:>32}{:>28}",
        "", "us", "without, with, difference", "without, with, difference", "without, with"
    );
    for (core, without, with) in noises {
        let triple = |at: usize, digits: usize| {
            let (a, b) = (without[at], with[at]);
            format!("{a:.digits$}  {b:.digits$}  {:+.digits$}", b - a)
        };
        println!(
            "{:<6}{:>10.1}{:>32}{:>32}{:>28}",
            core.number,
            core.usual(),
            triple(0, 3),
            triple(1, 1),
            format!("{:.1}  {:.1}", without[2], with[2])
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noise_is_what_a_piece_took_longer_than_usual() {
        let mut core = Core {
            without: vec![1000.0; 99],
            ..Core::default()
        };
        core.without.push(1100.0);
        core.with = vec![1000.0, 1200.0];
        assert_eq!(core.usual(), 1000.0);
        let [mean, p999, max] = core.noise(&core.without);
        assert!((mean - 0.1).abs() < 1e-9, "{mean}");
        assert_eq!((p999, max), (100.0, 100.0));
        assert!((core.noise(&core.with)[0] - 10.0).abs() < 1e-9);
    }
}
