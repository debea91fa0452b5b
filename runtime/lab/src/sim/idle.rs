//! `muster sim idle`: CPU time of the engine of an idle member, by the size of the job.
//!
//! The job is simulated, the CPU time is measured. In a simulated job of many members each engine finds the caches
//! filled by the others, so `muster sim compare` cannot tell what an engine itself costs. Here members of the quiet job
//! are recorded and run again, each alone: with warm caches, and with caches that are emptied before each input, as
//! they are on a node whose ranks compute. The figures of one run are ratios to its first size.

use super::{Output, print_json};
use clap::Args;
use muster_protocol::Profile;
use muster_sim::{CompareSetting, Contender, IdleMember, Network, Replayed, record_idle};
use muster_sys::clock::thread_cpu_ns;
use muster_terminal::{CliError, print_error};
use serde::Serialize;
use std::hint::black_box;
use std::time::Instant;

/// Recorded time, in microseconds.
const QUIET_US: u64 = 1_000_000;
/// Bytes that are read to empty the caches: more than the last level of a core's caches has.
const CACHES: usize = 64 << 20;
/// Rounds with warm caches for each round with cold ones, which take longer.
const WARM_ROUNDS: u32 = 10;
/// Bytes of a cache line.
const LINE: usize = 64;

/// Options of `muster sim idle`.
#[derive(Args)]
pub(crate) struct IdleArgs {
    /// Sizes of the job. A job of 2048 takes minutes to boot, and gigabytes.
    #[arg(long, value_delimiter = ',', default_value = "16,256,2048",
          value_parser = clap::value_parser!(u32).range(4..=4096))]
    members: Vec<u32>,
    /// Number of members that are measured.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=256))]
    measured: u32,
    /// Rounds of each measurement, of which the median is printed.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Measure with warm caches only: that takes a moment, the other some 10 ms for each input.
    #[arg(long)]
    warm: bool,
    /// The seed.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Output format; text is Markdown.
    #[arg(short, long, default_value = "text")]
    output: Output,
}

/// CPU time with one state of the caches.
#[derive(Serialize)]
struct Cost {
    /// Of one member in a second.
    us_s: f64,
    /// For each datagram sent or received.
    us_datagram: f64,
    /// To the first size.
    ratio: f64,
}

/// The figures of one size.
#[derive(Serialize)]
struct Row {
    members: u32,
    /// Datagrams sent and received by one member in a second.
    datagrams_s: f64,
    warm: Cost,
    /// `None` if only warm caches were wanted.
    cold: Option<Cost>,
}

/// All rows.
#[derive(Serialize)]
struct Table {
    seed: u64,
    measured: u32,
    rounds: u32,
    rows: Vec<Row>,
}

/// Measures and prints.
pub(crate) fn main(args: &IdleArgs) -> Result<(), CliError> {
    let is_text = args.output == Output::Text;
    if is_text {
        println!(
            "CPU time of the engine of an idle member, {} members of each job alone, seed {}, median of {} rounds. \
             Cold: the caches are emptied before each input.\n\n\
             | members | datagrams/s | warm us/s | us/datagram | ratio | cold us/s | us/datagram | ratio |\n\
             |---|---|---|---|---|---|---|---|",
            args.measured, args.seed, args.rounds
        );
    }
    let mut rows: Vec<Row> = Vec::new();
    for members in &args.members {
        let row = measure(args, *members, rows.first())?;
        if is_text {
            println!("{}", line(&row));
        }
        rows.push(row);
    }
    if is_text {
        return Ok(());
    }
    print_json(&Table {
        seed: args.seed,
        measured: args.measured,
        rounds: args.rounds,
        rows,
    })
}

fn line(row: &Row) -> String {
    let cost = |cost: &Cost| {
        let Cost {
            us_s,
            us_datagram,
            ratio,
        } = cost;
        format!("{us_s:.0} | {us_datagram:.2} | {ratio:.2}")
    };
    let Row {
        members,
        datagrams_s,
        warm,
        cold,
    } = row;
    format!(
        "| {members} | {datagrams_s:.1} | {} | {} |",
        cost(warm),
        cold.as_ref().map_or_else(|| "- | - | -".to_owned(), cost)
    )
}

fn measure(args: &IdleArgs, members: u32, first: Option<&Row>) -> Result<Row, CliError> {
    let setting = CompareSetting {
        members: members as usize,
        contender: Contender::Overlay(Profile::Standard),
        network: Network::with_round_trip(1000),
        quiet_us: QUIET_US,
    };
    let since = Instant::now();
    let recorded = record_idle(&setting, args.seed, args.measured as usize).ok_or_else(|| {
        let why =
            format!("a job of {members} members did not boot in two minutes of simulated time");
        CliError::new("sim idle", why)
    })?;
    let took = since.elapsed().as_secs_f64();
    print_error(format_args!("{members} members: {took:.1} s to simulate"));
    let (mut replayed, warm_ns) = median(WARM_ROUNDS * args.rounds, || replay(&recorded, || {}));
    let cold_ns = (!args.warm).then(|| {
        let mut caches = vec![1_u8; CACHES];
        let (again, cold_ns) = median(args.rounds, || {
            replay(&recorded, || {
                let lines = caches.iter_mut().step_by(LINE);
                lines.for_each(|byte| *byte ^= 1);
                black_box(&mut caches);
            })
        });
        assert_eq!(replayed, again, "an engine does the same again");
        cold_ns
    });
    replayed.sent += replayed.received;
    let (count, seconds) = (recorded.len() as f64, QUIET_US as f64 / 1e6);
    let cost = |ns: u64, first: Option<&Cost>| {
        let us_s = ns as f64 / 1e3 / count / seconds;
        Cost {
            us_s,
            us_datagram: ns as f64 / 1e3 / replayed.sent as f64,
            ratio: us_s / first.map_or(us_s, |first| first.us_s),
        }
    };
    Ok(Row {
        members,
        datagrams_s: replayed.sent as f64 / count / seconds,
        warm: cost(warm_ns, first.map(|row| &row.warm)),
        cold: cold_ns.map(|ns| cost(ns, first.and_then(|row| row.cold.as_ref()))),
    })
}

/// The inputs of all members, each alone, and their CPU time in nanoseconds. `prepare` runs before each input.
fn replay(members: &[IdleMember], mut prepare: impl FnMut()) -> (Replayed, u64) {
    let clock_ns = clock_ns();
    let (mut all, mut cpu_ns) = (Replayed::default(), 0);
    for member in members {
        let replayed = member.replay(|work| {
            prepare();
            let before = thread_cpu_ns();
            work();
            cpu_ns += (thread_cpu_ns() - before).saturating_sub(clock_ns);
        });
        all.sent += replayed.sent;
        all.received += replayed.received;
        all.inputs += replayed.inputs;
    }
    (all, cpu_ns)
}

/// What reading the clock adds to a measurement, in nanoseconds.
fn clock_ns() -> u64 {
    let reads = (0..1000).map(|_| {
        let before = thread_cpu_ns();
        thread_cpu_ns() - before
    });
    reads.min().unwrap_or_default()
}

/// The round with the median time.
fn median(rounds: u32, mut round: impl FnMut() -> (Replayed, u64)) -> (Replayed, u64) {
    let mut all: Vec<(Replayed, u64)> = (0..rounds).map(|_| round()).collect();
    all.sort_by_key(|(_, ns)| *ns);
    all[all.len() / 2]
}
