//! `muster bench killed`: a rank is killed; when is each of the others told?
//!
//! A victim of each size in turn joins a job, on a node by lot, and is killed once everybody knows it.
//! Every other rank notes when its own thread, asleep until then, had the event in its hands. Beside
//! them stand the two signals that others go by, of the same deaths: the pidfd becomes readable, and the
//! pipe ends. The kernel gives those after it has torn down the memory.

use super::calm::Busy;
use super::figures::quantile;
use super::group::interrupted;
use super::job::{EventRankArgs, Job, READY_DEADLINE, RankProcess, Said, await_ready};
use super::machine;
use clap::Args;
use muster_terminal::CliError;
use muster_terminal::Format;
use muster_terminal::process::{is_interrupted, monotonic_ns, notice_interruption, wait_until};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

/// A verdict that has not come by then is missing.
const VERDICT_DEADLINE: Duration = Duration::from_secs(10);
/// Between the last word of a joining and the kill, so that timers are not in phase.
const BEFORE_MS: std::ops::Range<u64> = 20..120;

/// Options of `muster bench killed`.
#[derive(Args)]
pub(crate) struct KilledArgs {
    /// Nodes, each with its agent and one rank that is told.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(2..=128))]
    nodes: u32,
    /// Memory of the victims in MiB, sizes that are taken in turn.
    #[arg(long, value_delimiter = ',', default_value = "0,2048")]
    resident_mb: Vec<u32>,
    /// Victims of each size.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Busy loops on each core meanwhile.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=16))]
    busy_per_core: u32,
    /// Timing profile of the agents.
    #[arg(long, default_value = "standard", value_parser = ["fast", "standard", "quiet"])]
    profile: String,
    /// Which nodes are hit, and when, follows from this number; drawn if not given.
    #[arg(long)]
    seed: Option<u64>,
    /// How to print it.
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    output: Format,
}

/// Rows of the table.
const ROWS: usize = 6;

/// What was measured of victims of one size, in milliseconds since the kill.
#[derive(Default)]
struct Deaths {
    /// The agent of its node knows.
    agent: Vec<f64>,
    /// The agent of another node knows.
    agents: Vec<f64>,
    /// A rank of the same node is told.
    near: Vec<f64>,
    /// A rank of another node is told.
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
            ("near", "SIGKILL -> a rank of its node is told", &self.near),
            ("far", "SIGKILL -> each rank elsewhere is told", &self.far),
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
    let (sender, heard) = channel();
    let mut stage = Stage::open(args, job, sender, heard)?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let busy = Busy::start(args.busy_per_core as usize * cores)?;
    let mut dice = ChaCha8Rng::seed_from_u64(seed);
    let mut deaths: Vec<Deaths> = args.resident_mb.iter().map(|_| Deaths::default()).collect();
    for _ in 0..args.rounds {
        for (size, deaths) in args.resident_mb.iter().zip(&mut deaths) {
            stage.kill_one(*size, &mut dice, deaths)?;
        }
    }
    drop(busy);
    stage.close()?;
    report(args, &machine, seed, &deaths);
    Ok(())
}

/// The job and those who are told.
struct Stage {
    job: Job,
    ranks: Vec<RankProcess>,
    sender: Sender<(usize, Said)>,
    heard: Receiver<(usize, Said)>,
    next_rank: u32,
}

impl Stage {
    fn open(
        args: &KilledArgs,
        job: Job,
        sender: Sender<(usize, Said)>,
        heard: Receiver<(usize, Said)>,
    ) -> Result<Self, CliError> {
        let mut stage = Self {
            job,
            ranks: Vec::new(),
            sender,
            heard,
            next_rank: args.nodes,
        };
        let observer = EventRankArgs {
            resident_mb: 0,
            ranks: args.nodes,
        };
        for index in 0..args.nodes {
            let place = (index + 1, index);
            let rank =
                RankProcess::start(&stage.job, place, observer, index as usize, &stage.sender)?;
            stage.ranks.push(rank);
        }
        await_ready(&stage.heard, stage.ranks.len())?;
        Ok(stage)
    }

    /// Takes what is said until `enough`. Says whether it was in time.
    fn listen(
        &self,
        patience: Duration,
        mut enough: impl FnMut(usize, Said) -> bool,
    ) -> Result<bool, CliError> {
        let end = Instant::now() + patience;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if is_interrupted() {
                return Err(interrupted());
            }
            match self
                .heard
                .recv_timeout(left.min(Duration::from_millis(200)))
            {
                Ok((index, Said::Ended(_))) if index < self.ranks.len() => {
                    let why = format!("the rank on n{} ended", index + 1);
                    return Err(CliError::new("bench", why));
                }
                Ok((index, said)) if enough(index, said) => return Ok(true),
                Err(_) if left.is_zero() => return Ok(false),
                _ => {}
            }
        }
    }

    fn kill_one(
        &mut self,
        size: u32,
        dice: &mut ChaCha8Rng,
        deaths: &mut Deaths,
    ) -> Result<(), CliError> {
        let (count, rank) = (self.ranks.len(), self.next_rank);
        self.next_rank += 1;
        let home = dice.random_range(0..count);
        let place = (home as u32 + 1, rank);
        let args = EventRankArgs {
            resident_mb: size as usize,
            ranks: 0,
        };
        let mut victim = RankProcess::start(&self.job, place, args, count, &self.sender)?;
        let mut missing: BTreeSet<usize> = (0..count).collect();
        let in_time = self.listen(READY_DEADLINE, |index, said| {
            if matches!(said, Said::Up(up, _) if up == rank) {
                missing.remove(&index);
            }
            missing.is_empty()
        })?;
        if !in_time {
            return Err(CliError::timed_out(
                "bench",
                "a victim was not known to all",
            ));
        }
        wait_until(Duration::from_millis(dice.random_range(BEFORE_MS)), || {
            false
        });
        let pidfd = pidfd_of(&victim)?;
        let killed_ns = monotonic_ns();
        pidfd_send_signal(&pidfd, Signal::KILL).map_err(|e| CliError::new("bench: kill", e))?;
        let waiter = std::thread::spawn(move || {
            let mut ends = [PollFd::new(&pidfd, PollFlags::IN)];
            poll(&mut ends, None).map(|_| monotonic_ns()).unwrap_or(0)
        });
        let mut told = vec![None; count];
        let mut pipe_ns = None;
        self.listen(VERDICT_DEADLINE, |index, said| {
            match said {
                Said::Down(down, at_ns, known_ns) if down == rank && index < count => {
                    told[index] = Some((at_ns, known_ns));
                }
                Said::Ended(at_ns) if index == count => pipe_ns = Some(at_ns),
                _ => {}
            }
            pipe_ns.is_some() && told.iter().all(Option::is_some)
        })?;
        let _ = victim.child.wait();
        let ms = |at_ns: u64| at_ns.saturating_sub(killed_ns) as f64 / 1e6;
        for (index, at_ns) in told.iter().enumerate() {
            match at_ns {
                Some((at_ns, known_ns)) if index == home => {
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
    for (row, words) in [(4, "pidfd"), (5, "pipe")] {
        print!(
            "{:<44}",
            format!("{words}, p50 as a multiple of the first row's")
        );
        for deaths in deaths {
            let of = |row: usize| quantile(deaths.rows()[row].2, 0.5);
            print!("{:>30}", format!("{:.1}x", of(row) / of(0)));
        }
        println!("");
    }
    print!("{:<44}", "verdicts that never came");
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
