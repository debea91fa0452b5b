//! `muster bench client`: measures the costs of the library for its application.
//!
//! A query of a state is compared with a plain load from memory, attaching to a running agent with a plain exchange
//! over a Unix socket. The bench also counts wake-ups of the library's thread while nothing happens.

use super::figures::quantile;
use super::group::interrupted;
use super::job::{EventRankArgs, Job, RankProcess, await_ready};
use super::machine;
use clap::Args;
use muster_client::Client;
use muster_terminal::process::{is_interrupted, notice_interruption, wait_until};
use muster_terminal::{CliError, Format, Progress};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::hint::black_box;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

/// Number of queries in one run, and number of runs.
const QUERIES: u32 = 1_000_000;
const RUNS: usize = 20;

/// Options of `muster bench client`.
#[derive(Args)]
pub(crate) struct ClientArgs {
    /// Number of attaches.
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    attaches: u32,
    /// Seconds in which nothing happens.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
    /// Output format.
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    output: Format,
}

/// The results.
struct Costs {
    query_ns: Vec<f64>,
    load_ns: Vec<f64>,
    attach_ms: Vec<f64>,
    exchange_ms: Vec<f64>,
    /// Number of the library's threads, and of their wake-ups while nothing happened.
    threads: usize,
    wakeups: u64,
}

/// Runs the measurement.
pub(super) fn run(args: &ClientArgs) -> Result<(), CliError> {
    notice_interruption();
    let machine = machine::describe();
    let scratch = machine::scratch()?;
    let job = Job {
        name: "bench-client",
        net: 77,
        rails: 2,
        profile: "standard".into(),
        directory: scratch.path().to_owned(),
    };
    job.prepare()?;
    // Another rank keeps the agent running.
    let (sender, reports) = channel();
    let args_of_rank = EventRankArgs {
        resident_mb: 0,
        ranks: 1,
    };
    let other = RankProcess::start(&job, (1, 0), args_of_rank, 0, &sender)?;
    await_ready(&reports, 1)?;
    let progress = Progress::default();
    progress.show(format_args!("{} attaches", args.attaches));
    let mut attach_ms = Vec::new();
    for _ in 0..args.attaches {
        let begun = Instant::now();
        let client = attach(&job)?;
        attach_ms.push(begun.elapsed().as_secs_f64() * 1e3);
        leave(&client)?;
    }
    let exchange_ms = exchanges(scratch.path(), args.attaches)
        .map_err(|error| CliError::new("bench: exchange", error))?;
    let before = threads();
    let client = attach(&job)?;
    let (query_ns, load_ns) = queries(&client);
    let ours: Vec<u32> = threads()
        .into_keys()
        .filter(|id| !before.contains_key(id))
        .collect();
    let count = |now: BTreeMap<u32, u64>| ours.iter().filter_map(|id| now.get(id)).sum::<u64>();
    let begun = count(threads());
    progress.show(format_args!("{} s in which nothing happens", args.seconds));
    wait_until(Duration::from_secs(args.seconds), || false);
    let wakeups = count(threads()) - begun;
    if is_interrupted() {
        return Err(interrupted());
    }
    drop(progress);
    leave(&client)?;
    other.end();
    job.await_end()?;
    let costs = Costs {
        query_ns,
        load_ns,
        attach_ms,
        exchange_ms,
        threads: ours.len(),
        wakeups,
    };
    report(args, &machine, &costs);
    Ok(())
}

fn attach(job: &Job) -> Result<Client, CliError> {
    Client::attach(job.options(1, 1)).map_err(|error| CliError::new("bench: cannot attach", error))
}

fn leave(client: &Client) -> Result<(), CliError> {
    let left = client.finalize(0);
    left.map_err(|error| CliError::new("bench: cannot leave", error))
}

/// Nanoseconds of a query of a rank's state, and of a load from memory; one value per run.
fn queries(client: &Client) -> (Vec<f64>, Vec<f64>) {
    let plain = [const { AtomicU8::new(0) }; 64];
    let each = |begun: Instant| begun.elapsed().as_nanos() as f64 / f64::from(QUERIES);
    let mut costs = (Vec::new(), Vec::new());
    for _ in 0..RUNS {
        let begun = Instant::now();
        for _ in 0..QUERIES {
            let _ = black_box(client.rank_state(black_box(0)));
        }
        costs.0.push(each(begun));
        let begun = Instant::now();
        for _ in 0..QUERIES {
            black_box(plain[black_box(0_usize) & 63].load(Ordering::Acquire));
        }
        costs.1.push(each(begun));
    }
    costs
}

/// Milliseconds to connect to a sleeping thread, send a message and receive one.
fn exchanges(directory: &Path, count: u32) -> std::io::Result<Vec<f64>> {
    let path = directory.join("exchange");
    let listener = UnixListener::bind(&path)?;
    let server = std::thread::spawn(move || -> std::io::Result<()> {
        for _ in 0..count {
            let (mut stream, _) = listener.accept()?;
            let mut message = [0; 64];
            stream.read_exact(&mut message)?;
            stream.write_all(&message)?;
        }
        Ok(())
    });
    let mut costs = Vec::new();
    for _ in 0..count {
        let begun = Instant::now();
        let mut stream = UnixStream::connect(&path)?;
        let mut message = [0; 64];
        stream.write_all(&message)?;
        stream.read_exact(&mut message)?;
        costs.push(begun.elapsed().as_secs_f64() * 1e3);
    }
    server
        .join()
        .map_err(|_| std::io::Error::other("the other side panicked"))??;
    Ok(costs)
}

/// The threads of this process, with the number of time slices of each.
fn threads() -> BTreeMap<u32, u64> {
    let tasks = fs::read_dir("/proc/self/task")
        .into_iter()
        .flatten()
        .flatten();
    let count = |task: fs::DirEntry| {
        let id = task.file_name().to_str()?.parse().ok()?;
        let text = fs::read_to_string(task.path().join("schedstat")).ok()?;
        Some((id, text.split_whitespace().nth(2)?.parse().ok()?))
    };
    tasks.filter_map(count).collect()
}

fn report(args: &ClientArgs, machine: &Value, costs: &Costs) {
    let rows = [
        ("query", "query of a rank's state", "ns", &costs.query_ns),
        (
            "load",
            "for comparison: a load from memory",
            "ns",
            &costs.load_ns,
        ),
        (
            "attach",
            "attach to a running agent",
            "ms",
            &costs.attach_ms,
        ),
        (
            "exchange",
            "for comparison: exchange over a socket",
            "ms",
            &costs.exchange_ms,
        ),
    ];
    if matches!(args.output, Format::Json) {
        let mut metrics = serde_json::Map::new();
        for (name, _, unit, values) in rows {
            let value = json!({
                "unit": unit, "n": values.len(), "p50": quantile(values, 0.5),
                "p99": quantile(values, 0.99), "max": quantile(values, 1.0),
            });
            metrics.insert(name.into(), value);
        }
        let value = json!({
            "schema": "muster/bench-client/v1",
            "machine": machine,
            "metrics": metrics,
            "seconds": args.seconds,
            "threads": costs.threads,
            "wakeups": costs.wakeups,
        });
        println!("{value:#}");
        return;
    }
    println!("{}", machine::text(machine));
    println!(
        "{:<44}{:>5}{:>28}{:>10}",
        "p50 / p99 / max", "", "", "ratio"
    );
    for pair in rows.chunks(2) {
        for (_, label, unit, values) in pair {
            let [p50, p99, max] = [0.5, 0.99, 1.0].map(|share| quantile(values, share));
            let ratio = p50 / quantile(pair[1].3, 0.5);
            let cell = format!("{p50:.3} / {p99:.3} / {max:.3}");
            println!(
                "{label:<44}{unit:>5}{cell:>28}{:>10}",
                format!("{ratio:.1}x")
            );
        }
    }
    println!(
        "wake-ups of the library's {} thread(s) in {} s without news: {}",
        costs.threads, args.seconds, costs.wakeups
    );
}
