//! `muster bench client`: what an application pays for its library.
//!
//! A question about a state beside a plain load from memory, attaching to an agent that is up beside a
//! plain exchange over a Unix socket, and how often the library's thread wakes up while nothing happens.

use super::figures::quantile;
use super::group::interrupted;
use super::job::{EventRankArgs, Job, RankProcess, await_ready};
use super::machine;
use clap::Args;
use muster_client::Client;
use muster_terminal::CliError;
use muster_terminal::Format;
use muster_terminal::process::{is_interrupted, notice_interruption, wait_until};
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

/// Questions in one run, and runs.
const QUERIES: u32 = 1_000_000;
const RUNS: usize = 20;

/// Options of `muster bench client`.
#[derive(Args)]
pub(crate) struct ClientArgs {
    /// How often it attaches.
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    attaches: u32,
    /// Seconds in which nothing happens.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
    /// How to print it.
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    output: Format,
}

/// What was measured.
struct Costs {
    query_ns: Vec<f64>,
    load_ns: Vec<f64>,
    attach_ms: Vec<f64>,
    exchange_ms: Vec<f64>,
    /// Threads of the library, and how often they were put on a CPU while nothing happened.
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
    // Another rank keeps the agent up.
    let (sender, heard) = channel();
    let args_of_rank = EventRankArgs {
        resident_mb: 0,
        ranks: 1,
    };
    let other = RankProcess::start(&job, (1, 0), args_of_rank, 0, &sender)?;
    await_ready(&heard, 1)?;
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
    wait_until(Duration::from_secs(args.seconds), || false);
    let wakeups = count(threads()) - begun;
    if is_interrupted() {
        return Err(interrupted());
    }
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

/// Nanoseconds of a question about a rank's state, and of a load from memory; one value a run.
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

/// Milliseconds of connecting to a thread that sleeps, saying a word and hearing one.
fn exchanges(directory: &Path, count: u32) -> std::io::Result<Vec<f64>> {
    let path = directory.join("exchange");
    let listener = UnixListener::bind(&path)?;
    let server = std::thread::spawn(move || -> std::io::Result<()> {
        for _ in 0..count {
            let (mut stream, _) = listener.accept()?;
            let mut word = [0; 64];
            stream.read_exact(&mut word)?;
            stream.write_all(&word)?;
        }
        Ok(())
    });
    let mut costs = Vec::new();
    for _ in 0..count {
        let begun = Instant::now();
        let mut stream = UnixStream::connect(&path)?;
        let mut word = [0; 64];
        stream.write_all(&word)?;
        stream.read_exact(&mut word)?;
        costs.push(begun.elapsed().as_secs_f64() * 1e3);
    }
    server
        .join()
        .map_err(|_| std::io::Error::other("the other side panicked"))??;
    Ok(costs)
}

/// The threads of this process, and how often each was put on a CPU.
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
        (
            "query",
            "a rank's state is asked for",
            "ns",
            &costs.query_ns,
        ),
        (
            "load",
            "beside it: a load from memory",
            "ns",
            &costs.load_ns,
        ),
        (
            "attach",
            "attached to an agent that is up",
            "ms",
            &costs.attach_ms,
        ),
        (
            "exchange",
            "beside it: a word each way over a socket",
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
        for (_, words, unit, values) in pair {
            let [p50, p99, max] = [0.5, 0.99, 1.0].map(|share| quantile(values, share));
            let ratio = p50 / quantile(pair[1].3, 0.5);
            let cell = format!("{p50:.3} / {p99:.3} / {max:.3}");
            println!(
                "{words:<44}{unit:>5}{cell:>28}{:>10}",
                format!("{ratio:.1}x")
            );
        }
    }
    println!(
        "wake-ups of the library's {} thread(s) in {} s without news: {}",
        costs.threads, args.seconds, costs.wakeups
    );
}
