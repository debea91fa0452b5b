//! `muster demo`: the complete course of a failure, on one machine.
//!
//! A real MPI job starts on emulated nodes. One rank is stopped until all others were notified that it hangs, and is
//! continued. Another rank is killed. When the survivors have recovered, one whole node (its agent, its launcher and
//! its ranks) is stopped, which Open MPI by itself never notices. The demo shows which rank was notified of which
//! fault, after how many milliseconds and how it was known, and writes the same as JSON. All results are computed here,
//! from the logs of the ranks; the ranks report no results about themselves.

mod cluster;
mod journal;
mod report;

use clap::Args;
use cluster::Cluster;
use journal::{Fact, Journal};
use muster_terminal::CliError;
use muster_terminal::process::{
    Process, is_interrupted, monotonic_ns, notice_interruption, wait_until,
};
use rand::{Rng, SeedableRng};
use report::{Fault, FaultKind, Report, Run};
use rustix::process::Signal;
use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Time limits: of the start of the job, of each later step, and of the end.
const START_DEADLINE: Duration = Duration::from_secs(120);
const STEP_DEADLINE: Duration = Duration::from_secs(120);
const END_DEADLINE: Duration = Duration::from_secs(20);

/// Options of `muster demo`.
#[derive(Args)]
pub(crate) struct DemoArgs {
    /// Number of emulated nodes.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(2..=32))]
    nodes: u32,
    /// Number of MPI ranks, spread evenly over the nodes.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(3..=256))]
    ranks: u32,
    /// Number of rails (network interfaces) of each node.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=8))]
    rails: u32,
    /// Timing profile of the agents.
    #[arg(long, default_value = "standard", value_parser = ["fast", "standard", "quiet"])]
    profile: String,
    /// Seed that selects the ranks and the node of the faults [default: random].
    #[arg(long)]
    seed: Option<u64>,
    /// File for the result as JSON.
    #[arg(long)]
    out: Option<PathBuf>,
    /// The MPI program, of Open MPI 5 or newer with ULFM [default: `ulfm_survive` beside this executable].
    #[arg(long)]
    program: Option<PathBuf>,
}

/// Runs the demo. Returns an error also if a check of the result fails.
pub(crate) fn run(args: &DemoArgs) -> Result<(), CliError> {
    let program = find_program(args)?;
    let seed = args.seed.unwrap_or_else(muster_config::draw_seed);
    println!(
        "muster demo: {} nodes, {} ranks, {} rails, profile {}, seed {seed}",
        args.nodes, args.ranks, args.rails, args.profile
    );
    let directory = std::env::temp_dir().join(format!("muster-demo-{}", std::process::id()));
    // Must be created here: other users may write to the parent directory.
    let made = DirBuilder::new().mode(0o700).create(&directory);
    made.and_then(|()| fs::create_dir(directory.join("logs")))
        .map_err(|e| CliError::new(format!("demo: {}", directory.display()), e))?;
    let with_logs =
        |error: CliError| error.hint(format!("the logs are in {}", directory.display()));

    let report = run_job(args, &program, seed, &directory).map_err(with_logs)?;
    print!("{}", report.timeline());
    if let Some(out) = &args.out {
        fs::write(out, report.json())
            .map_err(|e| CliError::new(format!("demo: {}", out.display()), e))?;
        println!("\nwritten: {}", out.display());
    }
    report
        .verdict()
        .map_err(|why| with_logs(CliError::new("demo", why)))?;
    // The demo succeeded, so the logs are not required any more.
    let _ = fs::remove_dir_all(&directory);
    Ok(())
}

/// A rank of the running job.
struct Rank {
    rank: u32,
    node: String,
    process: Process,
}

/// Starts the job, injects the faults, lets the job finish, and collects the results.
fn run_job(
    args: &DemoArgs,
    program: &Path,
    seed: u64,
    directory: &Path,
) -> Result<Report, CliError> {
    let mut random = rand_chacha::ChaCha8Rng::seed_from_u64(seed);
    let journal = Journal::new(&directory.join("logs"));
    notice_interruption();
    let mut cluster = Cluster::start(args, program, directory)?;
    let ranks = wait_ready(args, &journal, &mut cluster)?;
    let start_ns = monotonic_ns();

    let victim = &ranks[random.random_range(0..ranks.len())];
    let hanging = &ranks[random.random_range(0..ranks.len())];
    let hung = hang_rank(hanging, &ranks, &journal);
    let killed = kill_rank(victim, &ranks, &journal)?;

    let nodes = other_nodes(&ranks, &victim.node);
    let silent = nodes[random.random_range(0..nodes.len())].clone();
    let stopped = stop_node(&silent, &ranks, &mut cluster);
    let survivors: Vec<_> = ranks
        .iter()
        .filter(|r| r.rank != victim.rank && r.node != silent)
        .collect();
    wait_resumed(&survivors, &journal, 2, ("NODE_FAILED", &silent));

    fs::write(directory.join("logs/stop"), b"").map_err(|e| CliError::new("demo: stop file", e))?;
    wait_until(STEP_DEADLINE, || {
        survivors.iter().all(|r| {
            let facts = journal.facts(r.rank);
            // A rank that died cannot finish, so it is not waited for.
            facts.iter().any(|fact| matches!(fact, Fact::Done { .. })) || !r.process.is_running()
        })
    });
    let correct = Fact::Done { correct: true };
    let finished = survivors
        .iter()
        .all(|r| journal.facts(r.rank).contains(&correct));
    let crashed = crashed(&survivors, &journal);
    resume_node(&silent, &ranks, &mut cluster);
    if is_interrupted() {
        return Err(CliError::new("demo", "interrupted"));
    }
    let killed_at_end = cluster.end(END_DEADLINE);
    Ok(Report::new(&Run {
        seed,
        start_ns,
        faults: vec![hung, killed, stopped],
        all: ranks
            .iter()
            .map(|r| (r.rank, journal.facts(r.rank)))
            .collect(),
        survivors: survivors.iter().map(|r| r.rank).collect(),
        crashed,
        finished,
        killed_at_end,
    }))
}

/// Survivors whose process has ended without a result, although no fault was injected into them.
fn crashed(survivors: &[&Rank], journal: &Journal) -> Vec<u32> {
    let is_done = |rank| {
        journal
            .facts(rank)
            .iter()
            .any(|fact| matches!(fact, Fact::Done { .. }))
    };
    survivors
        .iter()
        .filter(|r| !r.process.is_running() && !is_done(r.rank))
        .map(|r| r.rank)
        .collect()
}

fn wait_ready(
    args: &DemoArgs,
    journal: &Journal,
    cluster: &mut Cluster,
) -> Result<Vec<Rank>, CliError> {
    let ready = |rank| {
        journal.facts(rank).into_iter().find_map(|fact| match fact {
            Fact::Ready { pid, node } => Some((pid, node)),
            _ => None,
        })
    };
    let mut ended = false;
    let complete = wait_until(START_DEADLINE, || {
        ended = cluster.has_ended();
        ended || (0..args.ranks).all(|rank| ready(rank).is_some())
    });
    if ended || !complete {
        let missing: Vec<_> = (0..args.ranks)
            .filter(|&rank| ready(rank).is_none())
            .map(|r| r.to_string())
            .collect();
        let why = if ended {
            "muster run ended"
        } else {
            "the job did not start in time"
        };
        return Err(CliError::timed_out(
            "demo: the job did not become ready",
            format!("{why}; ranks that are not ready: {}", missing.join(", ")),
        ));
    }
    let mut ranks = Vec::new();
    for rank in 0..args.ranks {
        let (pid, node) = ready(rank).unwrap_or_default();
        let process = Process::find(pid).ok_or_else(|| {
            CliError::new(
                "demo",
                format!("rank {rank} (pid {pid}) ended before any fault"),
            )
        })?;
        cluster.record(&process);
        ranks.push(Rank {
            rank,
            node,
            process,
        });
    }
    cluster.agents();
    println!(
        "ready: every rank sees all {} ranks on {} nodes alive",
        args.ranks, args.nodes
    );
    Ok(ranks)
}

/// Stops a rank until all others were notified, continues it, and waits until they were notified of that.
fn hang_rank(victim: &Rank, ranks: &[Rank], journal: &Journal) -> Fault {
    println!("fault: SIGSTOP to rank {} on {}", victim.rank, victim.node);
    let others: Vec<_> = ranks
        .iter()
        .map(|r| r.rank)
        .filter(|&rank| rank != victim.rank)
        .collect();
    let target = victim.rank.to_string();
    let wait_notified = |event: &str| {
        wait_until(STEP_DEADLINE, || {
            let notified = |rank: &u32| is_notified(&journal.facts(*rank), event, &target);
            others.iter().all(notified)
        })
    };
    let t0_ns = monotonic_ns();
    victim.process.signal(Signal::STOP);
    wait_notified("RANK_HUNG");
    victim.process.signal(Signal::CONT);
    wait_notified("RANK_RESUMED");
    Fault {
        kind: FaultKind::Hung,
        target,
        lost_ranks: vec![victim.rank],
        t0_ns,
        expected: others,
    }
}

fn kill_rank(victim: &Rank, ranks: &[Rank], journal: &Journal) -> Result<Fault, CliError> {
    println!("fault: SIGKILL to rank {} on {}", victim.rank, victim.node);
    let t0_ns = monotonic_ns();
    victim.process.signal(Signal::KILL);
    let survivors: Vec<_> = ranks.iter().filter(|r| r.rank != victim.rank).collect();
    let target = victim.rank.to_string();
    wait_resumed(&survivors, journal, 1, ("RANK_FAILED", &target));
    Ok(Fault {
        kind: FaultKind::Kill,
        target,
        lost_ranks: vec![victim.rank],
        t0_ns,
        expected: survivors.iter().map(|r| r.rank).collect(),
    })
}

fn stop_node(node: &str, ranks: &[Rank], cluster: &mut Cluster) -> Fault {
    println!("fault: SIGSTOP to all of {node}: its agent, its launcher, its ranks");
    let agents = cluster.agents();
    let launcher = launcher_of(node, ranks);
    if let Some(launcher) = &launcher {
        cluster.record(launcher);
    }
    let t0_ns = monotonic_ns();
    for (_, agent) in agents.iter().filter(|(name, _)| name == node) {
        agent.signal(Signal::STOP);
    }
    let (lost, others): (Vec<_>, Vec<_>) = ranks.iter().partition(|r| r.node == node);
    for rank in &lost {
        rank.process.signal(Signal::STOP);
    }
    if let Some(launcher) = launcher {
        launcher.signal(Signal::STOP);
    }
    Fault {
        kind: FaultKind::Silent,
        target: node.to_owned(),
        lost_ranks: lost.iter().map(|r| r.rank).collect(),
        t0_ns,
        expected: others
            .iter()
            .filter(|r| r.process.is_running())
            .map(|r| r.rank)
            .collect(),
    }
}

/// Lets the job end. The stopped ranks cannot return into MPI and are killed; the launcher and the agent continue.
fn resume_node(node: &str, ranks: &[Rank], cluster: &mut Cluster) {
    let launcher = launcher_of(node, ranks);
    for rank in ranks.iter().filter(|r| r.node == node) {
        rank.process.signal(Signal::KILL);
    }
    if let Some(launcher) = launcher {
        launcher.signal(Signal::CONT);
    }
    for (_, agent) in cluster.agents().iter().filter(|(name, _)| name == node) {
        agent.signal(Signal::CONT);
    }
}

/// The launcher of a node is the parent of the node's ranks.
fn launcher_of(node: &str, ranks: &[Rank]) -> Option<Process> {
    ranks
        .iter()
        .find(|r| r.node == node)
        .and_then(|r| Process::find(r.process.parent()?))
}

fn other_nodes(ranks: &[Rank], excluded: &str) -> Vec<String> {
    let mut nodes: Vec<_> = ranks
        .iter()
        .map(|r| r.node.clone())
        .filter(|node| node != excluded)
        .collect();
    nodes.sort();
    nodes.dedup();
    nodes
}

/// Whether a rank was notified of this event of this subject.
fn is_notified(facts: &[Fact], wanted: &str, subject: &str) -> bool {
    facts.iter().any(|fact| {
        matches!(fact, Fact::Notified { event, target, .. } if event == wanted && target == subject)
    })
}

/// Waits until each survivor has resumed `times` times, with MPI or without it, and has been notified of the reason.
/// MPI learns of the failure from the launcher, the rank from its agent, and either may be first.
fn wait_resumed(survivors: &[&Rank], journal: &Journal, times: usize, why: (&str, &str)) {
    wait_until(STEP_DEADLINE, || {
        survivors.iter().all(|r| {
            let facts = journal.facts(r.rank);
            if !is_notified(&facts, why.0, why.1) {
                return false;
            }
            let alone = facts
                .iter()
                .any(|fact| matches!(fact, Fact::NotShrunk { .. }));
            let resumed = facts
                .iter()
                .filter(|fact| matches!(fact, Fact::Resumed { .. }))
                .count();
            alone || resumed >= times
        })
    });
}

/// The MPI program of the demo.
fn find_program(args: &DemoArgs) -> Result<PathBuf, CliError> {
    let program = match &args.program {
        Some(program) => program.clone(),
        None => beside_executable("ulfm_survive"),
    };
    if program.is_file() {
        return Ok(program);
    }
    let source = beside_executable("../share/doc/muster/examples/ulfm_survive.c");
    let remedy = match source.canonicalize() {
        Ok(source) => format!(
            "an installed muster has no MPI program, since each MPI requires its own build: compile {} with \
             the mpicc of Open MPI 5 (see its first lines), and name it with --program",
            source.display()
        ),
        Err(_) => "run make build, or name another program with --program".to_owned(),
    };
    let what = format!("demo: {}", program.display());
    Err(CliError::new(what, "no such file").hint(remedy))
}

fn beside_executable(name: &str) -> PathBuf {
    std::env::current_exe().map_or_else(|_| name.into(), |exe| exe.with_file_name(name))
}
