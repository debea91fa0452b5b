//! `muster bench idle`: what agents and ranks cost that have nothing to do.
//!
//! Idle cost is a feature: a detector that disturbs the application has failed. Figures come
//! from `/proc/PID/schedstat`, summed over threads: time on a CPU, and how often the scheduler
//! put the process there. Two processes of the same run serve as a yardstick: absolute figures
//! mean something only with the machine named.

use crate::board::NodeState;
use crate::cli::CliError;
use crate::cli::process::{self, Process, wait_until};
use crate::client::{self, Client};
use clap::Args;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// How long the measured processes may take to be ready.
const READY_DEADLINE: Duration = Duration::from_secs(60);

/// What a rank says when it sees all nodes.
const READY: &str = "ready";

/// Options of `muster bench idle`.
#[derive(Args)]
pub(crate) struct IdleArgs {
    /// Length of the measurement in seconds.
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
    /// Number of nodes, each with its agent and one rank.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(2..=64))]
    nodes: u32,
    /// Timing profile of the agents.
    #[arg(long, default_value = "standard", value_parser = ["fast", "standard", "quiet"])]
    profile: String,
}

/// Runs the measurement.
pub(super) fn run(args: &IdleArgs) -> Result<(), CliError> {
    let directory = std::env::temp_dir().join(format!("muster-bench-{}", std::process::id()));
    std::fs::create_dir(&directory)
        .map_err(|e| CliError::new(format!("bench: {}", directory.display()), e))?;
    let outcome = measure_idle(args, &directory);
    let _ = std::fs::remove_dir_all(&directory);
    outcome
}

fn measure_idle(args: &IdleArgs, directory: &Path) -> Result<(), CliError> {
    let key = directory.join("key");
    crate::config::standing_key(&key).map_err(|e| CliError::new("bench", e))?;
    let mut ranks: Vec<IdleRank> = Vec::new();
    for node in 1..=args.nodes {
        ranks.push(IdleRank::start(args, directory, node)?);
    }
    for rank in &mut ranks {
        rank.wait_ready()?;
    }
    let agents: Vec<Process> = process::named("musterd")
        .into_iter()
        .filter(|p| {
            p.environment("MUSTER_DIR")
                .is_some_and(|dir| Path::new(&dir) == directory)
        })
        .collect();
    println!(
        "{} nodes, one agent and one rank each, profile {}, {} s; nothing happens",
        args.nodes, args.profile, args.seconds
    );
    let groups = [
        (
            "agent (worker)",
            select(&agents, |process| is_worker(process, &agents)),
        ),
        (
            "agent (keeper)",
            select(&agents, |process| !is_worker(process, &agents)),
        ),
        (
            "rank (libmuster)",
            ranks
                .iter()
                .filter_map(|r| Process::find(r.child.id()))
                .collect(),
        ),
    ];
    let before = sample(&groups);
    std::thread::sleep(Duration::from_secs(args.seconds));
    let after = sample(&groups);
    println!(
        "{:<18}{:>14}{:>14}{:>14}",
        "each", "CPU ms/s", "slices/s", "resident MB"
    );
    for (index, (name, processes)) in groups.iter().enumerate() {
        let count = (processes.len().max(1) as u64 * args.seconds) as f64;
        let (cpu, slices) = (
            after[index].0 - before[index].0,
            after[index].1 - before[index].1,
        );
        let resident: u64 = processes.iter().filter_map(Process::resident).sum();
        println!(
            "{name:<18}{:>14.3}{:>14.1}{:>14.1}",
            cpu as f64 / 1e6 / count,
            slices as f64 / count,
            resident as f64 / 1e6 / processes.len().max(1) as f64
        );
    }
    for rank in ranks {
        rank.end();
    }
    if !wait_until(READY_DEADLINE, || {
        agents.iter().all(|agent| !agent.is_running())
    }) {
        return Err(CliError::timed_out(
            "bench",
            "an agent did not end after its last rank",
        ));
    }
    Ok(())
}

fn select(processes: &[Process], wanted: impl Fn(&Process) -> bool) -> Vec<Process> {
    processes
        .iter()
        .filter(|process| wanted(process))
        .cloned()
        .collect()
}

/// The worker is the child of another agent process, the keeper.
fn is_worker(process: &Process, agents: &[Process]) -> bool {
    process
        .parent()
        .is_some_and(|parent| agents.iter().any(|agent| agent.pid == parent))
}

fn sample(groups: &[(&str, Vec<Process>)]) -> Vec<(u64, u64)> {
    let sum = |processes: &Vec<Process>| {
        let figures = processes.iter().filter_map(Process::schedule);
        figures.fold((0, 0), |sum, figure| (sum.0 + figure.0, sum.1 + figure.1))
    };
    groups.iter().map(|(_, processes)| sum(processes)).collect()
}

/// A process that attaches and then does nothing.
struct IdleRank {
    child: Child,
    node: u32,
}

impl IdleRank {
    fn start(args: &IdleArgs, directory: &Path, node: u32) -> Result<Self, CliError> {
        let own = std::env::current_exe().unwrap_or_else(|_| PathBuf::from("muster"));
        let child = Command::new(own)
            .args(["bench", "idle-rank", &args.nodes.to_string()])
            .env("MUSTER_DIR", directory)
            .env("MUSTER_JOB", "bench-idle")
            .env("MUSTER_RANK", (node - 1).to_string())
            .env("MUSTER_NODE", format!("n{node}"))
            .env(
                "MUSTER_RAILS",
                format!("127.78.0.{node}@udp0,127.78.1.{node}@udp1"),
            )
            .env("MUSTER_SEEDS", "127.78.0.1@udp0,127.78.1.1@udp1")
            .env("MUSTER_KEY_FILE", directory.join("key"))
            .env("MUSTER_PROFILE", &args.profile)
            .env("MUSTER_LINGER_MS", "100")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|e| CliError::new("bench: cannot start a rank", e))?;
        Ok(Self { child, node })
    }

    /// Waits until the rank sees all nodes.
    fn wait_ready(&mut self) -> Result<(), CliError> {
        let mut line = String::new();
        if let Some(output) = self.child.stdout.take() {
            // The end of its output, or its word; it has a deadline of its own.
            let _ = BufReader::new(output).read_line(&mut line);
        }
        if line.trim() == READY {
            return Ok(());
        }
        let what = format!("bench: the rank on n{}", self.node);
        Err(CliError::new(what, "it ended before it saw all nodes"))
    }

    fn end(mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// Attaches, says when it sees all nodes, and waits for the end of its standard input
/// without doing anything.
pub(super) fn rank(nodes: usize) -> Result<(), CliError> {
    let client = Client::attach(client::Options::default())
        .map_err(|error| CliError::new("bench: cannot attach", error))?;
    let alive = || {
        let count = client.node_count().unwrap_or(0);
        let is_alive = |node: &u32| matches!(client.node_state(*node), Ok(NodeState::Alive));
        (0..count).filter(is_alive).count()
    };
    if !wait_until(READY_DEADLINE, || alive() >= nodes) {
        let why = format!("only {} of {nodes} nodes are alive", alive());
        return Err(CliError::timed_out("bench", why));
    }
    println!("{READY}");
    // Sleeps until the parent closes the other end.
    let _ = std::io::stdin().read_line(&mut String::new());
    client
        .finalize(0)
        .map_err(|error| CliError::new("bench: cannot leave", error))
}
