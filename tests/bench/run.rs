//! `make bench-run`: the same MPI program and the same faults under three launchers, in a real Slurm of four
//! nodes on this machine: `srun` with `muster run`, Open MPI's `mpirun --with-ft ulfm`, `srun --mpi=pmix`.
//!
//! A run counts as survived if each remaining rank shrank its communicator, continued with right sums and
//! returned from `MPI_Finalize`. Times are the ranks' own, on the machine's single clock. After each run the
//! bench checks what is left of it on the remaining nodes.

mod left;

use clap::{Parser, ValueEnum};
use left::Before;
use muster_tests::cluster::{Cluster, NODES, Process, signal};
use muster_tests::compile::compile;
use muster_tests::job::Job;
use muster_tests::launchers::venv;
use muster_tests::{make_program, program};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rustix::process::Signal;
use rustix::time::{ClockId, clock_gettime};
use std::process::Command;
use std::time::Duration;

const RANKS: usize = 8;
/// A job that is not ready by then counts as not started.
const START: Duration = Duration::from_secs(60);
/// A job whose survivors are not done by then counts as hanging.
const END: Duration = Duration::from_secs(30);

/// The launcher of the ranks.
#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Launcher {
    Muster,
    Mpirun,
    Pmix,
}

/// The fault.
#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Fault {
    None,
    Rank,
    #[value(name = "ranks")]
    RanksOfNode,
    Node,
    Stopped,
    #[value(name = "two")]
    TwoNodes,
}

const LAUNCHERS: [Launcher; 3] = [Launcher::Muster, Launcher::Mpirun, Launcher::Pmix];

const FAULTS: [(Fault, &str); 6] = [
    (Fault::None, "no fault"),
    (Fault::Rank, "one rank killed"),
    (Fault::RanksOfNode, "both ranks of a node killed"),
    (Fault::Node, "all of a node killed, slurmd too"),
    (Fault::Stopped, "all of a node stopped"),
    (Fault::TwoNodes, "all of two nodes killed"),
];

/// Runs one MPI program with the same faults under three launchers, and prints how many runs survive, and how fast.
#[derive(Parser)]
#[command(name = "bench-run")]
struct Options {
    /// Runs of each fault under muster run.
    #[arg(long, default_value_t = 20)]
    rounds: usize,
    /// Runs of each fault under each other launcher.
    #[arg(long, default_value_t = 2)]
    others: usize,
    /// What the affected nodes, ranks and times follow from [default: the clock].
    #[arg(long)]
    seed: Option<u64>,
    /// Run only these launchers.
    #[arg(long, value_enum, value_delimiter = ',')]
    launchers: Vec<Launcher>,
    /// Run only these faults.
    #[arg(long, value_enum, value_delimiter = ',')]
    faults: Vec<Fault>,
}

/// The result of one run.
#[derive(Default)]
struct Outcome {
    started: bool,
    survived: bool,
    /// From the fault until each survivor's MPI had reported it, in ms.
    told_ms: Option<f64>,
    /// From the fault until each survivor had the smaller communicator, in ms.
    shrunk_ms: Option<f64>,
    /// Whether the run left something behind.
    leaves: bool,
}

fn main() {
    let options = Options::parse();
    let (rounds, others) = (options.rounds, options.others);
    let seed = options.seed.unwrap_or_else(drawn_seed);
    let is_wanted =
        |launcher: &Launcher| options.launchers.is_empty() || options.launchers.contains(launcher);
    let launchers: Vec<_> = LAUNCHERS.into_iter().filter(is_wanted).collect();
    println!("{NODES} nodes of a real Slurm on this machine, {RANKS} ranks, seed {seed};");
    println!("{rounds} rounds of muster run, {others} of each other launcher");
    println!("survived runs; those that left something on nodes that were not lost;");
    println!("ms from the fault until all survivors are notified / have shrunk: median (longest)");
    print!("{:<36}", "");
    for launcher in &launchers {
        print!("{:<48}", label(*launcher));
    }
    println!();
    for (fault, label) in FAULTS {
        if !options.faults.is_empty() && !options.faults.contains(&fault) {
            continue;
        }
        print!("{label:<36}");
        for launcher in &launchers {
            // The same seed for each launcher: the same node, the same time.
            let mut chance = ChaCha8Rng::seed_from_u64(seed);
            let rounds = match launcher {
                Launcher::Muster => rounds,
                Launcher::Mpirun | Launcher::Pmix => others,
            };
            let runs: Vec<Outcome> = (1..=rounds)
                .map_while(|round| run_once(*launcher, fault, round == rounds, &mut chance))
                .collect();
            print!("{:<48}", cell(&runs));
        }
        println!();
    }
}

fn label(launcher: Launcher) -> &'static str {
    match launcher {
        Launcher::Muster => "srun muster run",
        Launcher::Mpirun => "mpirun --with-ft ulfm",
        Launcher::Pmix => "srun --mpi=pmix",
    }
}

fn drawn_seed() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(1, |now| now.as_nanos() as u64)
}

fn cell(runs: &[Outcome]) -> String {
    let survived = runs.iter().filter(|run| run.survived).count();
    let mut text = format!("{survived}/{}", runs.len());
    let unstarted = runs.iter().filter(|run| !run.started).count();
    if unstarted > 0 {
        text += &format!(" ({unstarted} did not start)");
    }
    let leaving = runs.iter().filter(|run| run.leaves).count();
    text += &match leaving {
        0 => ", none left".to_owned(),
        some => format!(", {some} left"),
    };
    let of = |time: fn(&Outcome) -> Option<f64>| {
        let mut times: Vec<f64> = runs.iter().filter_map(time).collect();
        times.sort_by(f64::total_cmp);
        let longest = times.last().copied()?;
        Some(format!("{:.0} ({longest:.0})", times[times.len() / 2]))
    };
    let notified = of(|run| run.told_ms.filter(|_| run.survived));
    let shrunk = of(|run| run.shrunk_ms.filter(|_| run.survived));
    if let (Some(notified), Some(shrunk)) = (notified, shrunk) {
        text += &format!("  {notified} / {shrunk}");
    }
    text
}

/// One run in a cluster of its own; `None` without root. After the last run of a kind Slurm gets the time to
/// detect lost nodes.
fn run_once(
    launcher: Launcher,
    fault: Fault,
    is_last: bool,
    chance: &mut ChaCha8Rng,
) -> Option<Outcome> {
    let first = chance.random_range(1..=NODES);
    let second = (first + chance.random_range(0..NODES - 1)) % NODES + 1;
    let wait = Duration::from_millis(chance.random_range(0..200));
    let rank = chance.random_range(0..2);
    let (nodes, lost) = match fault {
        Fault::None => (vec![], 0),
        Fault::Rank => (vec![first], 1),
        Fault::RanksOfNode | Fault::Node | Fault::Stopped => (vec![first], 2),
        Fault::TwoNodes => (vec![first, second], 4),
    };
    let cluster = Cluster::start("")?;
    let binary = compile(
        &venv("venv").join("mpicc"),
        "survive",
        &[],
        cluster.folder(),
    );
    let mut command = command(&cluster, launcher);
    let before = Before::take(&cluster);
    let mut job = Job::start(command.arg(binary).arg(lost.to_string()));
    let mut outcome = Outcome {
        started: job.listen(START, |job| job.count("READY") == RANKS),
        ..Outcome::default()
    };
    if !outcome.started {
        eprintln!("{}: did not start: {:#?}", label(launcher), job.lines);
        return Some(outcome);
    }
    // Each run's fault hits a different step of the computation.
    job.listen_for(wait);
    let mut victims = cluster.processes();
    victims.retain(|one| one.node.is_some_and(|node| nodes.contains(&node)) && one.name != "sleep");
    if matches!(fault, Fault::Rank | Fault::RanksOfNode) {
        victims.retain(|one| one.name == "survive");
    }
    if fault == Fault::Rank {
        victims = victims.into_iter().skip(rank).take(1).collect();
    }
    let what = match fault {
        Fault::Stopped => Signal::STOP,
        _ => Signal::KILL,
    };
    let fault_ns = monotonic_ns();
    victims.iter().for_each(|victim| signal(victim, what));
    let left = RANKS - lost;
    job.listen(END, |job| job.count("DONE") == left);
    outcome.survived = has_survived(&job, left);
    let ms = |ns: i128| (ns - fault_ns) as f64 / 1e6;
    outcome.told_ms = first_times(&job, "TOLD").max().map(ms);
    outcome.shrunk_ms = with(&job, "SHRUNK").filter_map(last_number).max().map(ms);
    let lost = match fault {
        Fault::None | Fault::Rank | Fault::RanksOfNode => Vec::new(),
        Fault::Node | Fault::Stopped | Fault::TwoNodes => nodes,
    };
    victims
        .iter()
        .for_each(|victim| signal(victim, Signal::KILL));
    let left = before.left(&cluster, &lost, is_last);
    outcome.leaves = !left.is_empty();
    if outcome.leaves {
        eprintln!("{}: left: {left:?}", label(launcher));
    }
    Some(outcome)
}

fn monotonic_ns() -> i128 {
    let now = clock_gettime(ClockId::Monotonic);
    i128::from(now.tv_sec) * 1_000_000_000 + i128::from(now.tv_nsec)
}

fn last_number(label: &str) -> Option<i128> {
    label.split_whitespace().last()?.parse().ok()
}

/// The command of a launcher with its options; the program and its arguments are to be added.
fn command(cluster: &Cluster, launcher: Launcher) -> Command {
    let mut command = match launcher {
        Launcher::Muster => {
            let mut command = cluster.command("srun");
            command
                .args(["-N4", "--mpi=none", "--no-kill", "--kill-on-bad-exit=0"])
                .arg(program("muster"))
                .args(["run", "-n", "8", "--"]);
            command
        }
        Launcher::Mpirun => mpirun(cluster),
        Launcher::Pmix => {
            let mut command = cluster.command("srun");
            command
                .args(["-N4", "-n8", "--mpi=pmix"])
                .args(["--no-kill", "--kill-on-bad-exit=0"]);
            command
        }
    };
    if launcher != Launcher::Muster {
        // The settings that `muster run` makes by itself, so that they cause no difference.
        command
            .args(["sh", "-c", "trap '' PIPE; exec \"$@\"", "sh"])
            .env("OMPI_MCA_coll", "^han")
            .env("OMPI_MCA_mpi_ft_enable", "1")
            .env("OMPI_MCA_mpi_yield_when_idle", "1");
    }
    command
        .env("MUSTER_AGENT", program("musterd"))
        .env("TMPDIR", cluster.folder())
        .env("HOME", cluster.folder());
    command
}

/// The remainder of each line that starts with this word.
fn with<'a>(job: &'a Job, word: &'static str) -> impl Iterator<Item = &'a str> {
    let rest = move |line: &'_ String| line.starts_with(word);
    let lines = job.lines.iter().filter(move |line| rest(line));
    lines.map(move |line| line[word.len()..].trim())
}

/// When each rank printed it for the first time.
fn first_times(job: &Job, word: &'static str) -> impl Iterator<Item = i128> {
    let mut first = std::collections::BTreeMap::new();
    for label in with(job, word) {
        let rank = label.split(' ').next().unwrap_or_default().to_owned();
        if let Some(ns) = last_number(label) {
            first.entry(rank).or_insert(ns);
        }
    }
    first.into_values()
}

/// Whether `left` ranks reached the end, with a communicator of that size.
fn has_survived(job: &Job, left: usize) -> bool {
    let size = left.to_string();
    let right = |label: &&str| label.split(' ').nth(1) == Some(size.as_str());
    job.count("WRONG") == 0
        && job.count("DONE") == left
        && with(job, "DONE").filter(right).count() == left
}

/// Open MPI's own launcher on the controller's host. Instead of ssh it enters the nodes' namespaces.
fn mpirun(cluster: &Cluster) -> Command {
    let shell = cluster.folder().join("node-shell");
    let holders = cluster.processes();
    let cases: String = holders
        .iter()
        .filter(|one| one.name == "sleep")
        .filter_map(|one| Some(format!("n{}) pid={} ;;\n", one.node?, inner_pid(one)?)))
        .collect();
    let script = format!(
        "#!/bin/sh\nwhile [ \"${{1#-}}\" != \"$1\" ]; do shift; done\nnode=$1; shift\n\
         case $node in\n{cases}esac\nexec nsenter --target $pid --net --uts sh -c \"$*\"\n"
    );
    make_program(&shell, &script);
    let mut command = cluster.command(venv("venv").join("mpirun"));
    command
        .args(["--prtemca", "plm_ssh_agent"])
        .arg(&shell)
        .args(["--host", "n1:2,n2:2,n3:2,n4:2", "--bind-to", "none"])
        .args(["--allow-run-as-root", "--with-ft", "ulfm", "-n", "8"])
        .env("PRTE_ALLOW_RUN_AS_ROOT", "1")
        .env("PRTE_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    command
}

/// A process's number in the cluster's pid namespace.
fn inner_pid(process: &Process) -> Option<String> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.pid)).ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("NSpid:"))?;
    line.split_whitespace().last().map(str::to_owned)
}
