//! `muster bench killed`: measures when each rank is notified that another rank was killed.
//!
//! A victim of each size in turn joins the job on a random node, and is killed when all ranks know it. Every other rank
//! records when its thread, which sleeps until then, received the event. Two other signals of the same deaths are
//! measured for comparison: the pidfd becomes readable, and the pipe ends. The kernel gives these two after it has
//! freed the memory.

use super::calm::Busy;
use super::figures::quantile;
use super::group::interrupted;
use super::job::{EventRankArgs, Job, READY_DEADLINE, RankProcess, RankReport, await_ready};
use super::machine;
use clap::Args;
use muster_terminal::process::{is_interrupted, monotonic_ns, notice_interruption, wait_until};
use muster_terminal::{CliError, Format, Progress};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

/// A verdict that has not been received by then is missing.
const VERDICT_DEADLINE: Duration = Duration::from_secs(10);
/// Time between the last report of the join and the kill; random, so that timers are not in phase.
const BEFORE_MS: std::ops::Range<u64> = 20..120;

/// Options of `muster bench killed`.
#[derive(Args)]
pub(crate) struct KilledArgs {
    /// Nodes, each with its agent and one rank that is notified.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(2..=128))]
    nodes: u32,
    /// Memory of the victims in MiB; the sizes are used in turn.
    #[arg(long, value_delimiter = ',', default_value = "0,2048")]
    resident_mb: Vec<u32>,
    /// Victims of each size.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Busy loops on each core during the measurement.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=16))]
    busy_per_core: u32,
    /// Timing profile of the agents.
    #[arg(long, default_value = "standard", value_parser = ["fast", "standard", "quiet"])]
    profile: String,
    /// Seed that selects the nodes and times [default: random].
    #[arg(long)]
    seed: Option<u64>,
    /// Output format.
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    output: Format,
}

/// Rows of the table.
const ROWS: usize = 6;

/// Results for victims of one size, in milliseconds since the kill.
#[derive(Default)]
struct Deaths {
    /// The agent of the victim's node knows.
    agent: Vec<f64>,
    /// The agent of another node knows.
    agents: Vec<f64>,
    /// A rank of the same node is notified.
    near: Vec<f64>,
    /// A rank of another node is notified.
    far: Vec<f64>,
    pidfd: Vec<f64>,
    pipe: Vec<f64>,
    missing: usize,
}

impl Deaths {
    fn rows(&self) -> [(&'static str, &'static str, &[f64]); ROWS] {
        [
            (
                "agent",
                "SIGKILL -> the agent of its node knows",
                &self.agent,
            ),
            (
                "agents",
                "SIGKILL -> each agent elsewhere knows",
                &self.agents,
            ),
            (
                "near",
                "SIGKILL -> a rank of its node is notified",
                &self.near,
            ),
            (
                "far",
                "SIGKILL -> each rank elsewhere is notified",
                &self.far,
            ),
            ("pidfd", "SIGKILL -> its pidfd is readable", &self.pidfd),
            ("pipe", "SIGKILL -> its pipe ends", &self.pipe),
        ]
    }
}

/// Runs the measurement.
pub(super) fn run(args: &KilledArgs) -> Result<(), CliError> {
    notice_interruption();
    let machine = machine::describe();
    let scratch = machine::scratch()?;
    let seed = args.seed.unwrap_or_else(muster_config::draw_seed);
    let job = Job {
        name: "bench-killed",
        net: 77,
        rails: 2,
        profile: args.profile.clone(),
        directory: scratch.path().to_owned(),
    };
    job.prepare()?;
    let (sender, reports) = channel();
    let mut test_job = TestJob::open(args, job, sender, reports)?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let busy = Busy::start(args.busy_per_core as usize * cores)?;
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut deaths: Vec<Deaths> = args.resident_mb.iter().map(|_| Deaths::default()).collect();
    let progress = Progress::default();
    for round in 1..=args.rounds {
        progress.show(format_args!("round {round} of {}", args.rounds));
        for (size, deaths) in args.resident_mb.iter().zip(&mut deaths) {
            test_job.kill_one(*size, &mut random, deaths)?;
        }
    }
    drop((busy, progress));
    test_job.close()?;
    report(args, &machine, seed, &deaths);
    Ok(())
}

/// The job and the observing ranks.
struct TestJob {
    job: Job,
    ranks: Vec<RankProcess>,
    sender: Sender<(usize, RankReport)>,
    reports: Receiver<(usize, RankReport)>,
    next_rank: u32,
}

impl TestJob {
    fn open(
        args: &KilledArgs,
        job: Job,
        sender: Sender<(usize, RankReport)>,
        reports: Receiver<(usize, RankReport)>,
    ) -> Result<Self, CliError> {
        let mut test_job = Self {
            job,
            ranks: Vec::new(),
            sender,
            reports,
            next_rank: args.nodes,
        };
        let observer = EventRankArgs {
            resident_mb: 0,
            ranks: args.nodes,
        };
        for index in 0..args.nodes {
            let node_and_rank = (index + 1, index);
            let rank = RankProcess::start(
                &test_job.job,
                node_and_rank,
                observer,
                index as usize,
                &test_job.sender,
            )?;
            test_job.ranks.push(rank);
        }
        await_ready(&test_job.reports, test_job.ranks.len())?;
        Ok(test_job)
    }

    /// Receives reports until `enough` returns true. Returns whether that was in time.
    fn listen(
        &self,
        timeout: Duration,
        mut enough: impl FnMut(usize, RankReport) -> bool,
    ) -> Result<bool, CliError> {
        let end = Instant::now() + timeout;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if is_interrupted() {
                return Err(interrupted());
            }
            match self
                .reports
                .recv_timeout(left.min(Duration::from_millis(200)))
            {
                Ok((index, RankReport::Ended(_))) if index < self.ranks.len() => {
                    let why = format!("the rank on n{} ended", index + 1);
                    return Err(CliError::new("bench", why));
                }
                Ok((index, report)) if enough(index, report) => return Ok(true),
                Err(_) if left.is_zero() => return Ok(false),
                _ => {}
            }
        }
    }

    fn kill_one(
        &mut self,
        size: u32,
        random: &mut ChaCha8Rng,
        deaths: &mut Deaths,
    ) -> Result<(), CliError> {
        let (count, rank) = (self.ranks.len(), self.next_rank);
        self.next_rank += 1;
        let victim_node = random.random_range(0..count);
        let node_and_rank = (victim_node as u32 + 1, rank);
        let args = EventRankArgs {
            resident_mb: size as usize,
            ranks: 0,
        };
        let mut victim = RankProcess::start(&self.job, node_and_rank, args, count, &self.sender)?;
        let mut missing: BTreeSet<usize> = (0..count).collect();
        let is_in_time = self.listen(READY_DEADLINE, |index, report| {
            if matches!(report, RankReport::Up(up, _) if up == rank) {
                missing.remove(&index);
            }
            missing.is_empty()
        })?;
        if !is_in_time {
            return Err(CliError::timed_out("bench", "not all ranks saw the victim"));
        }
        wait_until(
            Duration::from_millis(random.random_range(BEFORE_MS)),
            || false,
        );
        let pidfd = pidfd_of(&victim)?;
        let killed_ns = monotonic_ns();
        pidfd_send_signal(&pidfd, Signal::KILL).map_err(|e| CliError::new("bench: kill", e))?;
        let waiter = std::thread::spawn(move || {
            let mut ends = [PollFd::new(&pidfd, PollFlags::IN)];
            poll(&mut ends, None).map(|_| monotonic_ns()).unwrap_or(0)
        });
        let mut notified = vec![None; count];
        let mut pipe_ns = None;
        self.listen(VERDICT_DEADLINE, |index, report| {
            match report {
                RankReport::Down(down, at_ns, known_ns) if down == rank && index < count => {
                    notified[index] = Some((at_ns, known_ns));
                }
                RankReport::Ended(at_ns) if index == count => pipe_ns = Some(at_ns),
                _ => {}
            }
            pipe_ns.is_some() && notified.iter().all(Option::is_some)
        })?;
        let _ = victim.child.wait();
        let ms = |at_ns: u64| at_ns.saturating_sub(killed_ns) as f64 / 1e6;
        for (index, at_ns) in notified.iter().enumerate() {
            match at_ns {
                Some((at_ns, known_ns)) if index == victim_node => {
                    deaths.agent.push(ms(*known_ns));
                    deaths.near.push(ms(*at_ns));
                }
                Some((at_ns, known_ns)) => {
                    deaths.agents.push(ms(*known_ns));
                    deaths.far.push(ms(*at_ns));
                }
                None => deaths.missing += 1,
            }
        }
        deaths.pidfd.extend(waiter.join().ok().map(ms));
        deaths.pipe.extend(pipe_ns.map(ms));
        Ok(())
    }

    fn close(self) -> Result<(), CliError> {
        self.ranks.into_iter().for_each(RankProcess::end);
        self.job.await_end()
    }
}

fn pidfd_of(rank: &RankProcess) -> Result<OwnedFd, CliError> {
    let pid = Pid::from_raw(rank.child.id() as i32);
    let pid = pid.ok_or_else(|| CliError::new("bench", "a rank without a pid"))?;
    pidfd_open(pid, PidfdFlags::empty()).map_err(|e| CliError::new("bench: pidfd", e))
}

fn report(args: &KilledArgs, machine: &Value, seed: u64, deaths: &[Deaths]) {
    if matches!(args.output, Format::Json) {
        let sizes: Vec<Value> = (args.resident_mb.iter().zip(deaths))
            .map(|(size, deaths)| as_json(*size, deaths))
            .collect();
        let value = json!({
            "schema": "muster/bench-killed/v1",
            "machine": machine,
            "nodes": args.nodes,
            "busy_per_core": args.busy_per_core,
            "seed": seed,
            "sizes": sizes,
        });
        println!("{value:#}");
        return;
    }
    println!("{}", machine::text(machine));
    println!(
        "{} nodes, one rank each, {} victims of each size, {} busy loops a core, profile {}, seed {seed}",
        args.nodes, args.rounds, args.busy_per_core, args.profile
    );
    print!("{:<44}", "ms, p50 / p99 / max");
    for size in &args.resident_mb {
        print!("{:>30}", format!("{size} MiB"));
    }
    println!("");
    for row in 0..ROWS {
        print!("{:<44}", deaths[0].rows()[row].1);
        for deaths in deaths {
            let values = deaths.rows()[row].2;
            let [p50, p99, max] = [0.5, 0.99, 1.0].map(|share| quantile(values, share));
            print!("{:>30}", format!("{p50:.2} / {p99:.2} / {max:.2}"));
        }
        println!("");
    }
    for (row, label) in [(4, "pidfd"), (5, "pipe")] {
        print!(
            "{:<44}",
            format!("{label}, p50 as a multiple of the first row's")
        );
        for deaths in deaths {
            let of = |row: usize| quantile(deaths.rows()[row].2, 0.5);
            print!("{:>30}", format!("{:.1}x", of(row) / of(0)));
        }
        println!("");
    }
    print!("{:<44}", "verdicts that are missing");
    deaths
        .iter()
        .for_each(|deaths| print!("{:>30}", deaths.missing));
    println!("");
}

fn as_json(size: u32, deaths: &Deaths) -> Value {
    let mut metrics = Map::new();
    for (name, _, values) in deaths.rows() {
        let value = json!({
            "unit": "ms",
            "n": values.len(),
            "p50": quantile(values, 0.5),
            "p99": quantile(values, 0.99),
            "max": quantile(values, 1.0),
        });
        metrics.insert(name.to_owned(), value);
    }
    json!({ "resident_mb": size, "metrics": metrics, "missing": deaths.missing })
}
