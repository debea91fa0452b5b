//! `muster bench noise`: what agents do to an application that computes on every core.
//!
//! Fixed work quanta: each core does the same piece of work again and again, about a millisecond of it,
//! and a piece that takes longer than the median of its turn was disturbed. The machine has noise of its own,
//! which comes and goes, so it is measured in many short turns, without a job and with one that is at rest. What
//! counts is the
//! difference of the two turns of a round: the median of all rounds, since a round that something else has disturbed
//! says nothing, with the interval in which the true one lies in 95 of 100 measurements. If zero is inside, no
//! noise was found. The agents of all nodes run on this machine: a node of a cluster has one of them.

use super::figures::quantile;
use super::group::interrupted;
use super::job::{EventRankArgs, Job, RankProcess, await_ready};
use super::machine;
use clap::Args;
use muster_terminal::CliError;
use muster_terminal::Format;
use muster_terminal::process::{is_interrupted, notice_interruption, wait_until};
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
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: u64,
    /// Turns with, and turns without; six at least for an interval.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Timing profile of the agents.
    #[arg(long, default_value = "standard", value_parser = ["fast", "standard", "quiet"])]
    profile: String,
    /// How to print it.
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    output: Format,
}

/// How long the pieces of one core took, in microseconds, turn by turn.
#[derive(Default)]
struct Core {
    number: usize,
    without: Vec<Vec<f64>>,
    with: Vec<Vec<f64>>,
}

/// What is looked at in a turn.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Measure {
    /// The median piece, in microseconds: what every piece took longer, and the others do not see.
    Median,
    /// What a piece took longer on average, in percent.
    Mean,
    /// The same of those that took less than twice as long: from the others somebody took the core for a whole
    /// slice of time, which on a busy machine hides everything else.
    Short,
    /// What 99.9 % of the pieces took longer at most, in microseconds.
    Detour,
    /// What the longest took longer.
    Longest,
}

impl Measure {
    const ALL: [Self; 5] = [
        Self::Median,
        Self::Mean,
        Self::Short,
        Self::Detour,
        Self::Longest,
    ];

    /// For people, and for programs.
    fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::Median => ("median, us", "median_us"),
            Self::Mean => ("mean, %", "mean_percent"),
            Self::Short => ("mean below 2x, %", "short_mean_percent"),
            Self::Detour => ("99.9 % detour, us", "p999_us"),
            Self::Longest => ("longest, us", "max_us"),
        }
    }

    /// Against what a piece usually takes in this turn, its median: the core's clock may change from turn to turn,
    /// and what agents do is short and seldom. (The shortest piece would be one whose neighbour on the same
    /// physical core was not computing.)
    fn of(self, turn: &[f64]) -> f64 {
        let usual = quantile(turn, 0.5);
        let longer = |below: f64| {
            let values = turn.iter().filter(|value| **value < below);
            let (count, sum) = values.fold((0, 0.0_f64), |(count, sum), value| {
                (count + 1_u32, sum + value)
            });
            // A turn without such a piece says nothing.
            match count {
                0 => 0.0,
                count => (sum / f64::from(count) / usual - 1.0) * 100.0,
            }
        };
        match self {
            Self::Median => usual,
            Self::Mean => longer(f64::INFINITY),
            Self::Short => longer(2.0 * usual),
            Self::Detour => quantile(turn, 0.999) - usual,
            Self::Longest => quantile(turn, 1.0) - usual,
        }
    }
}

/// What agents change.
struct Shift {
    /// The medians of the turns.
    without: f64,
    with: f64,
    /// The median of the differences, and its 95 % interval; none of too few.
    difference: f64,
    interval: Option<[f64; 2]>,
}

impl Core {
    fn shift(&self, measure: Measure) -> Shift {
        let each = |turns: &[Vec<f64>]| -> Vec<f64> {
            let values = turns.iter().map(|turn| measure.of(turn));
            values.collect()
        };
        let (without, with) = (each(&self.without), each(&self.with));
        let pairs = without.iter().zip(&with);
        let mut differences: Vec<f64> = pairs.map(|(without, with)| with - without).collect();
        differences.sort_by(f64::total_cmp);
        Shift {
            without: quantile(&without, 0.5),
            with: quantile(&with, 0.5),
            difference: quantile(&differences, 0.5),
            interval: outermost(differences.len())
                .map(|at| [differences[at], differences[differences.len() - 1 - at]]),
        }
    }
}

/// Of so many values in order, the index of the first one of the 95 % interval of their median (the last one is
/// as far from the end): below it lies the true median in 2.5 of 100 measurements at most. None of fewer than six.
fn outermost(count: usize) -> Option<usize> {
    let mut chance = 0.5_f64.powi(count as i32);
    let (mut below, mut index) = (chance, None);
    for at in 0..count {
        if below > 0.025 {
            break;
        }
        index = Some(at);
        chance *= (count - at) as f64 / (at + 1) as f64;
        below += chance;
    }
    index
}

/// Runs the measurement.
pub(super) fn run(args: &NoiseArgs) -> Result<(), CliError> {
    notice_interruption();
    let machine = machine::describe();
    let scratch = machine::scratch()?;
    let job = Job {
        name: "bench-noise",
        net: 77,
        rails: 2,
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
                .push(taken);
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
    if matches!(args.output, Format::Json) {
        let value = json!({
            "schema": "muster/bench-noise/v3",
            "machine": machine,
            "agents": args.nodes,
            "rounds": args.rounds,
            "cores": cores.iter().map(core_json).collect::<Vec<Value>>(),
        });
        println!("{value:#}");
        return;
    }
    println!("{}", machine::text(machine));
    println!(
        "work quanta on every core, {} rounds of a turn of {} s without and one with {} agents here, profile {}",
        args.rounds, args.seconds, args.nodes, args.profile
    );
    println!(
        "{:<6}{:<20}{:>12}{:>12}{:>12}  95 % interval",
        "core", "", "without", "with", "difference"
    );
    for core in cores {
        for measure in Measure::ALL {
            let shift = core.shift(measure);
            let is_mean = matches!(measure, Measure::Mean | Measure::Short);
            let digits = if is_mean { 3 } else { 1 };
            let interval = shift.interval.map_or_else(
                || "too few rounds".to_owned(),
                |[low, high]| format!("{low:+.digits$} to {high:+.digits$}"),
            );
            println!(
                "{:<6}{:<20}{:>12.digits$}{:>12.digits$}{:>+12.digits$}  {interval}",
                core.number,
                measure.names().0,
                shift.without,
                shift.with,
                shift.difference
            );
        }
    }
}

fn core_json(core: &Core) -> Value {
    let count = |turns: &[Vec<f64>]| turns.iter().map(Vec::len).sum::<usize>();
    let mut value = json!({
        "core": core.number,
        "n": [count(&core.without), count(&core.with)],
    });
    for measure in Measure::ALL {
        let shift = core.shift(measure);
        value[measure.names().1] = json!({
            "without": shift.without,
            "with": shift.with,
            "difference": shift.difference,
            "interval": shift.interval,
        });
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noise_is_what_a_piece_took_longer_than_usual() {
        let mut turn = vec![1000.0; 99];
        turn.push(1100.0);
        assert!((Measure::Mean.of(&turn) - 0.1).abs() < 1e-9);
        assert_eq!(Measure::Detour.of(&turn), 100.0);
        // A slice of somebody else's is in the mean, and in no mean of short ones.
        turn[0] = 25_000.0;
        assert!(Measure::Mean.of(&turn) > 20.0);
        assert!(Measure::Short.of(&turn) < 0.11);
        assert_eq!(Measure::Short.of(&[1.0, 1.0, 5.0]), 0.0);
        turn[0] = 1000.0;
        assert_eq!(Measure::Longest.of(&turn), 100.0);
    }

    /// From tables of the binomial distribution: of 6 values all, of 20 the sixth to the fifteenth.
    #[test]
    fn the_interval_is_of_95_percent() {
        let found = [0, 5, 6, 8, 9, 12, 20].map(outermost);
        let wanted = [None, None, Some(0), Some(0), Some(1), Some(2), Some(5)];
        assert_eq!(found, wanted);
    }

    /// Of ten rounds two were disturbed by something else, one in each of its turns: that is not taken for
    /// our noise, and what is in every round is found though the machine's own noise is larger.
    #[test]
    fn what_others_do_is_not_taken_for_ours() {
        let turn = |longer: f64| vec![1000.0, 1000.0, 1000.0 + longer];
        let own = [0.0, 9.0, 2.0, 5.0, 1.0, 7.0, 0.0, 0.0, 3.0, 0.0];
        let mut core = Core {
            number: 0,
            without: own.map(turn).to_vec(),
            with: own.map(|own| turn(own + 1.0)).to_vec(),
        };
        core.without[4] = turn(500.0);
        core.with[7] = turn(500.0);
        let shift = core.shift(Measure::Longest);
        assert_eq!(shift.difference, 1.0);
        assert_eq!(shift.interval, Some([1.0, 1.0]));
    }
}
