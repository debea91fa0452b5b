//! `muster bench noise`: measures the effect of agents on an application that computes on every core.
//!
//! The method is fixed work quanta: each core repeats the same piece of work of about a millisecond. A piece that takes
//! longer than the median of its turn was disturbed. The machine has noise of its own, which varies, so the bench
//! measures many short turns, without a job and with an idle one. The result is the difference between the two turns of
//! a round: the median over all rounds, since a single disturbed round has no meaning, with its 95 % confidence
//! interval. If the interval contains zero, no noise was found. The agents of all nodes run on this machine; a node of
//! a cluster has one.

use super::figures::quantile;
use super::group::interrupted;
use super::job::{EventRankArgs, Job, RankProcess, await_ready};
use super::machine;
use clap::Args;
use muster_terminal::process::{is_interrupted, notice_interruption, wait_until};
use muster_terminal::{CliError, Format, Progress};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde_json::{Value, json};
use std::hint::black_box;
use std::sync::Barrier;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

/// Length of a piece of work.
const QUANTUM: Duration = Duration::from_millis(1);
/// Number of calibration runs.
const CALIBRATIONS: usize = 200;
/// Pause after a job has started or ended.
const SETTLE: Duration = Duration::from_millis(1500);

/// Options of `muster bench noise`.
#[derive(Args)]
pub(crate) struct NoiseArgs {
    /// Nodes of the job, each with its agent and one idle rank.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=64))]
    nodes: u32,
    /// Seconds of each turn.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: u64,
    /// Number of turns with a job, and of turns without; an interval requires six.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Timing profile of the agents.
    #[arg(long, default_value = "standard", value_parser = ["fast", "standard", "quiet"])]
    profile: String,
    /// Output format.
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    output: Format,
}

/// Times of the pieces of one core, in microseconds, by turn.
#[derive(Default)]
struct Core {
    number: usize,
    without: Vec<Vec<f64>>,
    with: Vec<Vec<f64>>,
}

/// A statistic of a turn.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Measure {
    /// The median piece, in microseconds: an effect on every piece, which the other measures do not show.
    Median,
    /// The mean excess over the median, in percent.
    Mean,
    /// The mean excess of pieces below twice the median, in percent. In longer pieces another process had the core for
    /// a whole time slice, which hides every other effect on a busy machine.
    Short,
    /// The excess of the 99.9 % quantile, in microseconds.
    Detour,
    /// The excess of the longest piece, in microseconds.
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

    /// Label in the table, and name in JSON.
    fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::Median => ("median, us", "median_us"),
            Self::Mean => ("mean, %", "mean_percent"),
            Self::Short => ("mean below 2x, %", "short_mean_percent"),
            Self::Detour => ("99.9 % detour, us", "p999_us"),
            Self::Longest => ("longest, us", "max_us"),
        }
    }

    /// The statistic, relative to the median of the turn: the clock of the core may change between turns, and the
    /// effects of agents are short and rare. (The shortest piece would be one whose neighbour on the same physical core
    /// was idle.)
    fn of(self, turn: &[f64]) -> f64 {
        let median = quantile(turn, 0.5);
        let longer = |below: f64| {
            let values = turn.iter().filter(|value| **value < below);
            let (count, sum) = values.fold((0, 0.0_f64), |(count, sum), value| {
                (count + 1_u32, sum + value)
            });
            // Without such a piece, there is no excess.
            match count {
                0 => 0.0,
                count => (sum / f64::from(count) / median - 1.0) * 100.0,
            }
        };
        match self {
            Self::Median => median,
            Self::Mean => longer(f64::INFINITY),
            Self::Short => longer(2.0 * median),
            Self::Detour => quantile(turn, 0.999) - median,
            Self::Longest => quantile(turn, 1.0) - median,
        }
    }
}

/// The effect of agents on one statistic.
struct Shift {
    /// Medians over the turns.
    without: f64,
    with: f64,
    /// The median of the differences, and its 95 % interval; none for too few rounds.
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
            interval: interval_start(differences.len())
                .map(|at| [differences[at], differences[differences.len() - 1 - at]]),
        }
    }
}

/// Index of the lower end of the 95 % confidence interval of the median of `count` sorted values. The upper end is as
/// far from the other side. The true median is below it with a probability of at most 2.5 %. None for fewer than six
/// values.
fn interval_start(count: usize) -> Option<usize> {
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
    let progress = Progress::default();
    for round in 0..args.rounds {
        progress.show(format_args!("round {} of {}", round + 1, args.rounds));
        // The order alternates, so that a drift of the machine does not look like an effect.
        for with in [round % 2 == 0, round % 2 != 0] {
            let ranks = if with {
                start_idle_job(args, &job)?
            } else {
                Vec::new()
            };
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
    drop(progress);
    report(args, &machine, &cores);
    Ok(())
}

/// Starts an idle job.
fn start_idle_job(args: &NoiseArgs, job: &Job) -> Result<Vec<RankProcess>, CliError> {
    let (sender, reports) = channel();
    let mut ranks = Vec::new();
    let each = EventRankArgs {
        resident_mb: 0,
        ranks: args.nodes,
    };
    for index in 0..args.nodes {
        let node_and_rank = (index + 1, index);
        ranks.push(RankProcess::start(
            job,
            node_and_rank,
            each,
            index as usize,
            &sender,
        )?);
    }
    await_ready(&reports, ranks.len())?;
    Ok(ranks)
}

/// The amount of work in a quantum, on an undisturbed core.
fn calibrated() -> u64 {
    let mut work = 100_000;
    for _ in 0..CALIBRATIONS {
        let begun = Instant::now();
        piece(work);
        let share = QUANTUM.as_nanos() as f64 / begun.elapsed().as_nanos().max(1) as f64;
        // Only increases: a piece that took too long was disturbed.
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

/// Computes on all cores in parallel for this time. Returns the time of each piece, in microseconds.
fn compute(cores: &[Core], work: u64, length: Duration) -> Vec<Vec<f64>> {
    let start = Barrier::new(cores.len());
    std::thread::scope(|scope| {
        let run = |number: usize| {
            let start = &start;
            move || {
                let mut own = CpuSet::new();
                own.set(number);
                // If the thread cannot be bound, the results are those of the whole machine.
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
    fn noise_is_the_excess_over_the_median() {
        let mut turn = vec![1000.0; 99];
        turn.push(1100.0);
        assert!((Measure::Mean.of(&turn) - 0.1).abs() < 1e-9);
        assert_eq!(Measure::Detour.of(&turn), 100.0);
        // A time slice of another process is in the mean, but not in the mean of short pieces.
        turn[0] = 25_000.0;
        assert!(Measure::Mean.of(&turn) > 20.0);
        assert!(Measure::Short.of(&turn) < 0.11);
        assert_eq!(Measure::Short.of(&[1.0, 1.0, 5.0]), 0.0);
        turn[0] = 1000.0;
        assert_eq!(Measure::Longest.of(&turn), 100.0);
    }

    /// From tables of the binomial distribution: of 6 values all, of 20 the sixth to the fifteenth.
    #[test]
    fn the_interval_has_95_percent_confidence() {
        let found = [0, 5, 6, 8, 9, 12, 20].map(interval_start);
        let wanted = [None, None, Some(0), Some(0), Some(1), Some(2), Some(5)];
        assert_eq!(found, wanted);
    }

    /// Two of ten rounds were disturbed by other processes, one in each of its turns. That is not attributed to agents.
    /// An effect in every round is found although the machine's own noise is larger.
    #[test]
    fn noise_of_other_processes_is_not_attributed_to_agents() {
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
