//! `muster bench idle`: measures the costs of idle agents and ranks.
//!
//! Low idle cost is a requirement: a detector must not disturb the application. The values come from
//! `/proc/PID/schedstat`, summed over threads: CPU time, and how often the scheduler ran the process. Absolute values
//! are meaningful only together with the machine. So a raw loop runs in the same measurement for comparison: it makes
//! the system calls of an idle agent, with as many rails, wake-ups and datagrams, and has no protocol. Its cost is the
//! minimum on this machine for what an agent does. The ratio of both is printed.

use super::group::interrupted;
use super::job::{Job, READY_DEADLINE};
use super::{launch, machine};
use clap::Args;
use muster_client::Client;
use muster_protocol::Profile;
use muster_shm::NodeState;
use muster_sys::clock::monotonic_ns;
use muster_sys::poll::Epoll;
use muster_sys::schedule::ask_real_time;
use muster_terminal::CliError;
use muster_terminal::process::{Process, is_interrupted, notice_interruption, wait_until};
use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

/// Quiet time before the measurement.
const SETTLE: Duration = Duration::from_secs(2);

/// Rails of each node.
const RAILS: usize = 2;

/// Line that a rank prints when it sees all nodes.
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

impl IdleArgs {
    /// Time between two beats of an agent in microseconds.
    fn beat_us(&self) -> u64 {
        let profile = match self.profile.as_str() {
            "fast" => Profile::Fast,
            "quiet" => Profile::Quiet,
            _ => Profile::Standard,
        };
        profile.heartbeat_us()
    }
}

/// Runs the measurement.
pub(super) fn run(args: &IdleArgs) -> Result<(), CliError> {
    notice_interruption();
    let directory = machine::scratch()?;
    println!("{}", machine::text(&machine::describe()));
    measure_idle(args, directory.path())
}

fn measure_idle(args: &IdleArgs, directory: &Path) -> Result<(), CliError> {
    let job = Job {
        name: "bench-idle",
        net: 78,
        rails: RAILS,
        profile: args.profile.clone(),
        directory: directory.to_owned(),
    };
    job.prepare()?;
    let mut ranks: Vec<IdleRank> = Vec::new();
    for node in 1..=args.nodes {
        ranks.push(IdleRank::start(args, &job, node)?);
    }
    for rank in &mut ranks {
        rank.wait_ready()?;
    }
    let raw_loops: Result<Vec<RawLoop>, CliError> = (1..=args.nodes)
        .map(|index| RawLoop::start(args, index))
        .collect();
    let raw_loops = raw_loops?;
    // By then the raw loops reach each other, and the agents are idle.
    wait_until(SETTLE, || false);
    let agents = job.agents();
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
            "agent (supervisor)",
            select(&agents, |process| !is_worker(process, &agents)),
        ),
        (
            "rank (libmuster)",
            ranks
                .iter()
                .filter_map(|r| Process::find(r.child.id()))
                .collect(),
        ),
        (
            "raw loop",
            raw_loops
                .iter()
                .filter_map(|b| Process::find(b.0.id()))
                .collect(),
        ),
    ];
    let before = sample(&groups);
    wait_until(Duration::from_secs(args.seconds), || false);
    let after = sample(&groups);
    if is_interrupted() {
        return Err(interrupted());
    }
    println!(
        "{:<18}{:>14}{:>14}{:>14}{:>14}",
        "each", "CPU ms/s", "wake-ups/s", "us a wake-up", "private kB"
    );
    let mut cpu_ms = Vec::new();
    for (index, (name, processes)) in groups.iter().enumerate() {
        let count = (processes.len().max(1) as u64 * args.seconds) as f64;
        let (cpu, slices) = (
            after[index].0 - before[index].0,
            after[index].1 - before[index].1,
        );
        let private: u64 = processes.iter().filter_map(Process::private_kb).sum();
        cpu_ms.push(cpu as f64 / 1e6 / count);
        println!(
            "{name:<18}{:>14.3}{:>14.1}{:>14.1}{:>14.0}",
            cpu as f64 / 1e6 / count,
            slices as f64 / count,
            cpu as f64 / 1e3 / slices.max(1) as f64,
            private as f64 / processes.len().max(1) as f64
        );
    }
    if let [worker, supervisor, .., raw_loop] = cpu_ms[..] {
        println!(
            "an agent takes {:.2} times the CPU time of a raw loop, which makes the same system calls",
            (worker + supervisor) / raw_loop
        );
    }
    for rank in ranks {
        rank.end();
    }
    job.await_end()
}

fn select(processes: &[Process], wanted: impl Fn(&Process) -> bool) -> Vec<Process> {
    processes
        .iter()
        .filter(|process| wanted(process))
        .cloned()
        .collect()
}

/// Whether this process is a worker: the child of another agent process, which is its supervisor.
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

/// A process that attaches and then is idle.
struct IdleRank {
    child: Child,
    node: u32,
}

impl IdleRank {
    fn start(args: &IdleArgs, job: &Job, node: u32) -> Result<Self, CliError> {
        let nodes = args.nodes.to_string();
        let child = job
            .command(node, node - 1, &["idle-rank", &nodes])
            .spawn()
            .map_err(|e| CliError::new("bench: cannot start a rank", e))?;
        Ok(Self { child, node })
    }

    /// Waits until the rank sees all nodes.
    fn wait_ready(&mut self) -> Result<(), CliError> {
        let mut line = String::new();
        if let Some(output) = self.child.stdout.take() {
            // Returns with the line, or at the end of the output. The rank has a time limit.
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
        // The rank ends within a time limit; dropping kills it.
        wait_until(READY_DEADLINE, || {
            !matches!(self.child.try_wait(), Ok(None))
        });
    }
}

impl Drop for IdleRank {
    fn drop(&mut self) {
        // The agent ends by itself after the rank.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The rank: attaches, reports when it sees all nodes, and waits for the end of its standard input without any other
/// activity.
pub(super) fn rank(nodes: usize) -> Result<(), CliError> {
    let client = Client::attach(muster_client::Options::default())
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
    // Sleeps until the parent closes the pipe.
    let _ = std::io::stdin().read_line(&mut String::new());
    client
        .finalize(0)
        .map_err(|error| CliError::new("bench: cannot leave", error))
}

/// Options of `muster bench raw-loop`.
#[derive(Args)]
pub(crate) struct RawLoopArgs {
    /// Number of raw loops.
    count: u32,
    /// Index of this one, from 1.
    index: u32,
    /// Time between two rounds in microseconds.
    beat_us: u64,
}

/// Size of an agent's beat with its frame, in bytes.
const BEAT_BYTES: usize = muster_protocol::BEAT_AHEAD_MAX;
/// Addresses of the raw loops: 127.78.NET.INDEX, one net for each rail.
const RAW_LOOP_NET: u8 = 9;
const RAW_LOOP_PORT: u16 = 7741;
/// Maximum number of rounds of a raw loop that is not ended. It is longer than any measurement.
const RAW_LOOP_ROUNDS: u64 = 400_000;

/// Makes the system calls of an idle agent: in each round it sleeps, reads the socket of each rail until that is empty,
/// and sends a datagram to the next two raw loops, on one rail after the other.
pub(super) fn raw_loop(args: &RawLoopArgs) -> Result<(), CliError> {
    let failed = |error: std::io::Error| CliError::new("bench: raw loop", error);
    let address = |rail: usize, index: u32| {
        let net = RAW_LOOP_NET + rail as u8;
        SocketAddr::from((
            [127, 78, net, (index % args.count + 1) as u8],
            RAW_LOOP_PORT,
        ))
    };
    let mut rails = Vec::new();
    for rail in 0..RAILS {
        let socket = UdpSocket::bind(address(rail, args.index - 1)).map_err(failed)?;
        socket.set_nonblocking(true).map_err(failed)?;
        let next = [args.index, args.index + 1].map(|index| address(rail, index));
        rails.push((socket, next));
    }
    let epoll = Epoll::new().map_err(failed)?;
    // As an agent does. If this process is not permitted to, an agent is not either.
    let _ = ask_real_time(50_000);
    let mut buffer = [0; 2048];
    let mut ready = Vec::new();
    let start_ns = monotonic_ns();
    for round in 1..RAW_LOOP_ROUNDS {
        let due_ns = start_ns + round * args.beat_us * 1000;
        let sleep = Duration::from_nanos(due_ns.saturating_sub(monotonic_ns()));
        epoll.wait(&mut ready, Some(sleep)).map_err(failed)?;
        for (socket, _) in &rails {
            while socket.recv_from(&mut buffer).is_ok() {}
        }
        let (socket, next) = &rails[round as usize % rails.len()];
        for next in next {
            // The other loop may not have started, or may have ended.
            let _ = socket.send_to(&buffer[..BEAT_BYTES], next);
        }
    }
    Ok(())
}

/// A running raw loop, which ends when this is dropped.
struct RawLoop(Child);

impl RawLoop {
    fn start(args: &IdleArgs, index: u32) -> Result<Self, CliError> {
        let numbers =
            [u64::from(args.nodes), u64::from(index), args.beat_us()].map(|n| n.to_string());
        let own = std::env::current_exe().unwrap_or_else(|_| PathBuf::from("muster"));
        launch::command(false, false)
            .arg("--")
            .arg(own)
            .args(["bench", "raw-loop"])
            .args(numbers)
            .stdin(Stdio::null())
            .spawn()
            .map(Self)
            .map_err(|e| CliError::new("bench: cannot start a raw loop", e))
    }
}

impl Drop for RawLoop {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
