//! `muster bench saved`: measures how many heartbeats messages of the application save, and the effect on detection.
//!
//! Two nodes have one rail. A rank on each sends the other a message at an interval, over its own socket, and reports
//! what it sends and receives to its agent. The agents count the beats that they send and omit. Then the second node
//! falls silent: its agent is stopped and its rank stops sending. The bench measures when the first node knows. Turns
//! run without messages and with different intervals.

use super::figures::quantile;
use super::group::interrupted;
use super::job::{EventRankArgs, Job, READY_DEADLINE, RankProcess, await_ready};
use super::machine;
use clap::Args;
use muster_client::Client;
use muster_shm::{EventKind, NodeState};
use muster_terminal::process::{is_interrupted, monotonic_ns, notice_interruption, wait_until};
use muster_terminal::{CliError, Format, Progress};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::net::{Ipv4Addr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

/// Time after which a silence counts as not detected.
const VERDICT_DEADLINE: Duration = Duration::from_secs(10);
/// Time of the exchange before the counting starts: replies to earlier requests have arrived by then.
const SETTLE: Duration = Duration::from_millis(1000);
/// Counters of the agents, summed over both.
const COUNTERS: [&str; 3] = ["beats_sent", "beats_left_out", "beats_stood_in"];

/// Options of `muster bench saved`.
#[derive(Args)]
pub(crate) struct SavedArgs {
    /// Milliseconds between messages, each way; one row of the table for each value, and one without messages.
    #[arg(long, value_delimiter = ',', default_value = "10,1")]
    every_ms: Vec<u64>,
    /// Seconds in which beats are counted, in each turn.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: u64,
    /// Number of turns of each row, each with one silence.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Timing profile of the agents.
    #[arg(long, default_value = "standard", value_parser = ["fast", "standard", "quiet"])]
    profile: String,
    /// Output format.
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    output: Format,
}

/// Results for one message interval.
struct Row {
    every_ms: Option<u64>,
    /// Per second and node, by turn, in the order of `COUNTERS`.
    rates: [Vec<f64>; COUNTERS.len()],
    /// From the silence to the verdict of the other node's agent, in milliseconds.
    silent_ms: Vec<f64>,
    missing: usize,
}

/// The job: the ranks of nodes 1 and 2 that exchange messages, and the idle ranks that keep the agents running.
struct TestJob {
    job: Job,
    talkers: [Client; 2],
    sockets: [UdpSocket; 2],
    idle_ranks: Vec<RankProcess>,
}

/// Runs the measurement.
pub(super) fn run(args: &SavedArgs) -> Result<(), CliError> {
    notice_interruption();
    let machine = machine::describe();
    let scratch = machine::scratch()?;
    let job = Job {
        name: "bench-saved",
        net: 77,
        // With two rails, each is watched by its own traffic, and no beat is omitted.
        rails: 1,
        profile: args.profile.clone(),
        directory: scratch.path().to_owned(),
    };
    job.prepare()?;
    let test_job = TestJob::open(job)?;
    let intervals = std::iter::once(None).chain(args.every_ms.iter().copied().map(Some));
    let mut rows: Vec<Row> = intervals.map(Row::new).collect();
    let progress = Progress::default();
    for round in 1..=args.rounds {
        progress.show(format_args!("round {round} of {}", args.rounds));
        for row in &mut rows {
            test_job.turn(row, Duration::from_secs(args.seconds))?;
        }
    }
    drop(progress);
    test_job.close()?;
    report(args, &machine, &rows);
    Ok(())
}

impl Row {
    fn new(every_ms: Option<u64>) -> Self {
        Self {
            every_ms,
            rates: Default::default(),
            silent_ms: Vec::new(),
            missing: 0,
        }
    }
}

fn failed(error: impl std::fmt::Display) -> CliError {
    CliError::new("bench: saved", error)
}

impl TestJob {
    fn open(job: Job) -> Result<Self, CliError> {
        let (sender, reports) = channel();
        let mut idle_ranks = Vec::new();
        for index in 0..2 {
            let args = EventRankArgs {
                resident_mb: 0,
                ranks: 2,
            };
            let node_and_rank = (index + 1, index);
            idle_ranks.push(RankProcess::start(
                &job,
                node_and_rank,
                args,
                index as usize,
                &sender,
            )?);
        }
        await_ready(&reports, 2)?;
        let attach = |node| Client::attach(job.options(node, node + 1)).map_err(failed);
        let bind = || UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).map_err(failed);
        let test_job = Self {
            talkers: [attach(1)?, attach(2)?],
            sockets: [bind()?, bind()?],
            idle_ranks,
            job,
        };
        for (socket, other) in [(0, 1), (1, 0)] {
            let address = test_job.sockets[other].local_addr().map_err(failed)?;
            test_job.sockets[socket].connect(address).map_err(failed)?;
        }
        test_job.await_alive()?;
        Ok(test_job)
    }

    /// Waits until each talker sees the node and the rank of the other alive.
    fn await_alive(&self) -> Result<(), CliError> {
        let sees = |own: usize, rank: u32| {
            let client = &self.talkers[own];
            let is_there = |node| matches!(client.node_state(node), Ok(NodeState::Alive));
            matches!(client.rank_node(rank), Ok(Some(node)) if is_there(node))
        };
        if wait_until(READY_DEADLINE, || sees(0, 3) && sees(1, 2)) {
            return Ok(());
        }
        Err(match is_interrupted() {
            true => interrupted(),
            false => CliError::timed_out("bench", "the nodes do not see each other"),
        })
    }

    /// Runs one turn: exchanges messages, counts, falls silent, and returns.
    fn turn(&self, row: &mut Row, length: Duration) -> Result<(), CliError> {
        let (is_over, is_mute) = (AtomicBool::new(false), AtomicBool::new(false));
        std::thread::scope(|scope| {
            if let Some(every_ms) = row.every_ms {
                let every = Duration::from_millis(every_ms.max(1));
                for own in 0..2 {
                    let (is_over, is_mute) = (&is_over, &is_mute);
                    scope.spawn(move || self.exchange(own, every, is_over, is_mute));
                }
            }
            let measured = self.measure(row, length, &is_mute);
            is_over.store(true, Ordering::Relaxed);
            measured
        })?;
        self.await_alive()
    }

    fn measure(
        &self,
        row: &mut Row,
        length: Duration,
        is_mute: &AtomicBool,
    ) -> Result<(), CliError> {
        wait_until(SETTLE, || false);
        let (before, begun) = (self.counters()?, Instant::now());
        wait_until(length, || false);
        let (after, lasted) = (self.counters()?, begun.elapsed().as_secs_f64());
        for (rates, (before, after)) in row.rates.iter_mut().zip(before.into_iter().zip(after)) {
            rates.push((after - before) as f64 / lasted / 2.0);
        }
        if is_interrupted() {
            return Err(interrupted());
        }
        match self.silence(is_mute)? {
            Some(silent_ms) => row.silent_ms.push(silent_ms),
            None => row.missing += 1,
        }
        Ok(())
    }

    /// Stops the second node until the first has declared it failed, or until the deadline.
    fn silence(&self, is_mute: &AtomicBool) -> Result<Option<f64>, CliError> {
        let first = &self.talkers[0];
        let node = first.rank_node(3).map_err(failed)?;
        while first.next_event().map_err(failed)?.is_some() {}
        let mut agents = self.job.agents();
        agents.retain(|agent| agent.environment("MUSTER_NODE").as_deref() == Some("n2"));
        is_mute.store(true, Ordering::Relaxed);
        let begun_ns = monotonic_ns();
        agents.iter().for_each(|agent| agent.signal(Signal::STOP));
        let mut known_ns = None;
        let found = wait_until(VERDICT_DEADLINE, || {
            while let Ok(Some(event)) = first.next_event() {
                if event.kind == EventKind::NodeFailed && Some(event.node) == node {
                    known_ns = Some(event.at_ns);
                }
            }
            known_ns.is_some()
        });
        agents.iter().for_each(|agent| agent.signal(Signal::CONT));
        if !found && is_interrupted() {
            return Err(interrupted());
        }
        Ok(known_ns.map(|known_ns| known_ns.saturating_sub(begun_ns) as f64 / 1e6))
    }

    /// One end of the exchange, until it is over. A silent node neither sends nor receives.
    fn exchange(&self, own: usize, every: Duration, is_over: &AtomicBool, is_mute: &AtomicBool) {
        let (client, socket) = (&self.talkers[own], &self.sockets[own]);
        let partner = 3 - own as u32;
        let mut message = [0; 64];
        let mut next = Instant::now();
        while !is_over.load(Ordering::Relaxed) {
            let is_silent = own == 1 && is_mute.load(Ordering::Relaxed);
            let now = Instant::now();
            if now >= next && !is_silent {
                next = now + every;
                if socket.send(&message).is_ok() {
                    let _ = client.sent_to(partner);
                }
            }
            let left = next.saturating_duration_since(Instant::now());
            let _ = socket.set_read_timeout(Some(left.max(Duration::from_millis(1))));
            if socket.recv(&mut message).is_ok() && !is_silent {
                let _ = client.heard_from(partner);
            }
        }
    }

    fn counters(&self) -> Result<[u64; COUNTERS.len()], CliError> {
        let mut sums = [0; COUNTERS.len()];
        for client in &self.talkers {
            let answer = client.control("stats").map_err(failed)?;
            let answer: Value = serde_json::from_str(&answer).map_err(failed)?;
            for (sum, name) in sums.iter_mut().zip(COUNTERS) {
                *sum += find(&answer, name)
                    .ok_or_else(|| failed(format!("the agent's answer has no counter {name}")))?;
            }
        }
        Ok(sums)
    }

    fn close(self) -> Result<(), CliError> {
        for client in &self.talkers {
            client.finalize(0).map_err(failed)?;
        }
        self.idle_ranks.into_iter().for_each(RankProcess::end);
        self.job.await_end()
    }
}

/// The counter of this name, at any level of the answer.
fn find(value: &Value, name: &str) -> Option<u64> {
    match value {
        Value::Object(members) => {
            let own = members.get(name).and_then(Value::as_u64);
            own.or_else(|| members.values().find_map(|value| find(value, name)))
        }
        Value::Array(values) => values.iter().find_map(|value| find(value, name)),
        _ => None,
    }
}

fn report(args: &SavedArgs, machine: &Value, rows: &[Row]) {
    if matches!(args.output, Format::Json) {
        let rows: Vec<Value> = rows.iter().map(row_json).collect();
        let value = json!({
            "schema": "muster/bench-saved/v1",
            "machine": machine,
            "profile": args.profile,
            "rows": rows,
        });
        println!("{value:#}");
        return;
    }
    println!("{}", machine::text(machine));
    println!(
        "two nodes, one rail, profile {}; {} turns of {} s each, median; beats per second and node",
        args.profile, args.rounds, args.seconds
    );
    println!(
        "{:<16}{:>8}{:>10}{:>10}    SIGSTOP -> the other node's agent knows, ms",
        "message interval", "sent", "left out", "stood in"
    );
    for row in rows {
        let every = row
            .every_ms
            .map_or_else(|| "none".to_owned(), |ms| format!("{ms} ms"));
        let [sent, left_out, stood_in] = row.rates.each_ref().map(|rates| quantile(rates, 0.5));
        println!(
            "{every:<16}{sent:>8.1}{left_out:>10.1}{stood_in:>10.1}    p50 {:.1}, max {:.1}, n {}, missing {}",
            quantile(&row.silent_ms, 0.5),
            quantile(&row.silent_ms, 1.0),
            row.silent_ms.len(),
            row.missing
        );
    }
}

fn row_json(row: &Row) -> Value {
    let [sent, left_out, stood_in] = row.rates.each_ref().map(|rates| quantile(rates, 0.5));
    json!({
        "every_ms": row.every_ms,
        "beats_sent_per_second": sent,
        "beats_left_out_per_second": left_out,
        "beats_stood_in_per_second": stood_in,
        "silent_ms": {
            "p50": quantile(&row.silent_ms, 0.5),
            "max": quantile(&row.silent_ms, 1.0),
            "n": row.silent_ms.len(),
        },
        "missing": row.missing,
    })
}
