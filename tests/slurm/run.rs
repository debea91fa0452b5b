//! `muster run` under plain `srun`, in a real Slurm of four nodes: unmodified programs survive the loss of
//! ranks and of whole nodes, including their Slurm daemons (run-1, run-2, slurm-4).

use muster_tests::cluster::{Cluster, NODES, Process, Run, signal};
use muster_tests::compile::compile;
use muster_tests::launchers::venv;
use muster_tests::process::wait_for_end;
use muster_tests::program;
use muster_tests::table::{NODE, RANK, SHRUNK, Start, observed};
use rand::{Rng, SeedableRng};
use rustix::process::Signal;

const RANKS: usize = 8;
const NODE_SHRUNK: &str =
    "the others continue, all are notified, and MPI continues without its ranks";

/// Runs the user's command, with these arguments for the program that survives.
fn survive(cluster: &Cluster, words: &[&str]) -> Run {
    start(cluster, &[], "survive", words)
}

/// The same for any program, and with these options.
fn start(cluster: &Cluster, options: &[&str], program_name: &str, words: &[&str]) -> Run {
    let compiler = venv("venv").join("mpicc");
    let binary = compile(&compiler, program_name, &[], cluster.folder());
    let mut command = cluster.command("srun");
    command
        .args(["-N4", "--mpi=none", "--no-kill", "--kill-on-bad-exit=0"])
        .arg("--label")
        .arg(program("muster"))
        .args(["run", "-n", "8"])
        .args(options)
        .arg("--")
        .arg(binary)
        .args(words)
        .env("MUSTER_AGENT", program("musterd"))
        // As for emulated nodes, see `running`.
        .env("MUSTER_PROFILE", "quiet")
        .env("TMPDIR", cluster.folder())
        .env("HOME", cluster.folder());
    cluster.run(&mut command)
}

/// Asserts that the survivors continued with right sums and reached the end of MPI.
fn expect_survivors(run: &Run, lost: usize) {
    let left = RANKS - lost;
    let size = format!(" {left}");
    let done = run.await_lines(left, &["DONE"]);
    assert!(
        done.iter().all(|line| line.trim_end().ends_with(&size)),
        "{done:?}"
    );
    assert_eq!((done.len(), run.lines_with(&["WRONG"]).len()), (left, 0));
}

/// Asserts that no key and no session directory is left; the files of lost nodes are ignored.
fn expect_no_files(cluster: &Cluster, lost: &[usize]) {
    let entries = std::fs::read_dir(cluster.folder()).expect("a folder");
    let names = entries
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned());
    let of_lost = |name: &str| {
        lost.iter()
            .any(|node| name.ends_with(&format!("-{}", node - 1)))
    };
    let left: Vec<String> = names
        .filter(|name| name.contains("muster-run") && !of_lost(name))
        .collect();
    assert_eq!(left, [""; 0]);
}

/// The fault of a running step.
#[derive(Clone, Copy, Debug)]
enum Fault {
    /// SIGKILL to both ranks of a node.
    RanksOfNode,
    /// SIGKILL to all processes of a node: ranks, launcher, agent, Slurm's daemons.
    Node,
    /// SIGSTOP to all processes of a node: it becomes silent, and its connections stay open.
    Stopped,
    /// SIGKILL to all processes of two nodes.
    TwoNodes,
}

/// A seed decides which processes the fault affects; it is printed if the test fails.
fn survive_fault(fault: Fault) {
    let seed = std::env::var("MUSTER_TEST_SEED").ok();
    let seed: u64 = seed
        .and_then(|text| text.parse().ok())
        .unwrap_or_else(drawn_seed);
    eprintln!("{fault:?}, MUSTER_TEST_SEED={seed}");
    let mut dice = rand_chacha::ChaCha8Rng::seed_from_u64(seed);
    let Some(cluster) = Cluster::start("") else {
        return;
    };
    let first = dice.random_range(1..=NODES);
    let second = (first + dice.random_range(0..NODES - 1)) % NODES + 1;
    let nodes = match fault {
        Fault::TwoNodes => vec![first, second],
        _ => vec![first],
    };
    let lost = 2 * nodes.len();
    let mut run = survive(&cluster, &[&lost.to_string()]);
    run.await_lines(RANKS, &["READY"]);
    let mut victims = of_nodes(&cluster, &nodes);
    match fault {
        Fault::RanksOfNode => victims.retain(|victim| victim.name == "survive"),
        Fault::Node | Fault::Stopped | Fault::TwoNodes => {
            for name in ["slurmd", "slurmstepd", "muster", "musterd", "survive"] {
                assert!(victims.iter().any(|one| one.name == name), "{victims:?}");
            }
        }
    }
    let what = match fault {
        Fault::Stopped => Signal::STOP,
        _ => Signal::KILL,
    };
    if !matches!(fault, Fault::Stopped) {
        // All at once, however slowly this process continues: Open MPI 5.0.11 may crash
        // (`ompi_comm_revoke_local`) if another rank is lost just after it has shrunk for the first one.
        victims.iter().for_each(|one| signal(one, Signal::STOP));
    }
    victims.iter().for_each(|victim| signal(victim, what));
    expect_survivors(&run, lost);
    if matches!(fault, Fault::Node) {
        observed(Start::MusterRun, NODE, NODE_SHRUNK);
    }
    if matches!(fault, Fault::RanksOfNode) {
        assert!(run.end().success(), "{:?}", run.errors());
        cluster.await_clean();
        expect_no_files(&cluster, &[]);
        return;
    }
    // The processes on the other nodes end by themselves; srun stays until Slurm has detected the lost node.
    let others: Vec<usize> = (1..=NODES).filter(|node| !nodes.contains(node)).collect();
    let is_ours = |one: &Process| ["muster", "musterd", "survive"].contains(&one.name.as_str());
    let left = of_nodes(&cluster, &others).into_iter().filter(is_ours);
    left.for_each(|process| wait_for_end(process.pid));
    victims
        .iter()
        .for_each(|victim| signal(victim, Signal::KILL));
    expect_no_files(&cluster, &nodes);
}

fn drawn_seed() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(1, |now| now.as_nanos() as u64)
}

/// The processes on these nodes, except the one that holds a node's network.
fn of_nodes(cluster: &Cluster, nodes: &[usize]) -> Vec<Process> {
    let mut all = cluster.processes();
    all.retain(|process| {
        process.node.is_some_and(|node| nodes.contains(&node)) && process.name != "sleep"
    });
    all
}

#[test]
fn a_step_without_faults_leaves_nothing() {
    let Some(cluster) = Cluster::start("") else {
        return;
    };
    let mut run = survive(&cluster, &["0"]);
    let ready = run.await_lines(RANKS, &["READY"]);
    for node in 1..=NODES {
        let name = format!(" n{node}");
        let count = ready.iter().filter(|line| line.ends_with(&name)).count();
        assert_eq!(count, 2, "{ready:?}");
    }
    expect_survivors(&run, 0);
    assert!(run.end().success(), "{:?}", run.errors());
    cluster.await_clean();
    expect_no_files(&cluster, &[]);
}

/// run-1.
#[test]
fn a_killed_rank_is_survived() {
    let Some(cluster) = Cluster::start("") else {
        return;
    };
    let mut run = survive(&cluster, &["1"]);
    run.await_lines(RANKS, &["READY"]);
    signal(&cluster.on_node(3, "survive")[0], Signal::KILL);
    expect_survivors(&run, 1);
    assert!(run.end().success(), "{:?}", run.errors());
    observed(Start::MusterRun, RANK, SHRUNK);
    cluster.await_clean();
    cluster.show_clean("a step of muster run that lost a rank");
    expect_no_files(&cluster, &[]);
}

/// If MPI has no fault tolerance, the loss ends the step on all nodes, with the rank's status (run-4).
#[test]
fn a_killed_rank_ends_a_step_that_cannot_live_without_it() {
    let Some(cluster) = Cluster::start("") else {
        return;
    };
    let off = ["-x", "OMPI_MCA_mpi_ft_enable=0"];
    let mut run = start(&cluster, &off, "waits", &["kill"]);
    let code = run.end().code();
    let said = run.errors().join("\n");
    assert_eq!(code, Some(137), "{said}");
    let words = "the job is ended, since rank 7 on n4 ended with status 137";
    assert_eq!(said.matches(words).count(), 1, "{said}");
    cluster.await_clean();
    expect_no_files(&cluster, &[]);
}

#[test]
fn both_ranks_of_a_node_killed_are_survived() {
    survive_fault(Fault::RanksOfNode);
}

/// slurm-4, run-1.
#[test]
fn a_killed_node_is_survived() {
    survive_fault(Fault::Node);
}

#[test]
fn a_stopped_node_is_survived() {
    survive_fault(Fault::Stopped);
}

#[test]
fn two_killed_nodes_are_survived() {
    survive_fault(Fault::TwoNodes);
}

/// Keys of steps in the home directory of the tests.
fn keys(cluster: &Cluster) -> Vec<String> {
    let entries = std::fs::read_dir(cluster.folder())
        .expect("a folder")
        .flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names
        .filter(|name| name.starts_with(".muster-run"))
        .collect()
}

/// The key is removed as soon as all launchers have it, so it is not left when all of them are killed;
/// neither is the shared memory of their ranks.
#[test]
fn killed_launchers_leave_no_key() {
    let Some(cluster) = Cluster::start("") else {
        return;
    };
    let mut run = survive(&cluster, &["1"]);
    run.await_lines(RANKS, &["READY"]);
    assert_eq!(keys(&cluster), [""; 0]);
    let launchers: Vec<Process> = (1..=NODES)
        .flat_map(|node| cluster.on_node(node, "muster"))
        .collect();
    assert_eq!(launchers.len(), NODES, "{launchers:?}");
    launchers
        .iter()
        .for_each(|launcher| signal(launcher, Signal::KILL));
    assert!(!run.end().success(), "{:?}", run.errors());
    // The agents remove what their launchers could not.
    cluster.await_clean();
    expect_no_files(&cluster, &[]);
}

/// If the agent of one node, or of all, cannot be started, the step ends, reports the reason and leaves
/// nothing.
#[test]
fn a_step_without_agents_ends_and_leaves_nothing() {
    let Some(cluster) = Cluster::start("") else {
        return;
    };
    for nodes in ["2", "0123"] {
        let script = format!(
            "case {nodes} in *$SLURM_NODEID*) export MUSTER_AGENT=/nonexistent/musterd;; esac; exec \"$@\""
        );
        let mut command = cluster.command("srun");
        command
            .args([
                "-N4",
                "--mpi=none",
                "--no-kill",
                "--kill-on-bad-exit=0",
                "sh",
                "-c",
            ])
            .args([&script, "sh"])
            .arg(program("muster"))
            .args(["run", "--start-timeout", "5", "--", "true"])
            .env("MUSTER_AGENT", program("musterd"))
            .env("TMPDIR", cluster.folder())
            .env("HOME", cluster.folder());
        let mut run = cluster.run(&mut command);
        assert!(!run.end().success());
        let said = run.errors().join("\n");
        assert!(said.contains("/nonexistent/musterd"), "{said}");
        cluster.await_clean();
        expect_no_files(&cluster, &[]);
    }
}

/// As in an interactive step: each has a name of its own, and with it its key, its ports and its agents
/// (run-2).
#[test]
fn two_at_once_in_one_step_are_two_jobs() {
    let Some(cluster) = Cluster::start("") else {
        return;
    };
    let script = r#"mkfifo "$LAB/gate"
        MUSTER_JOB=one "$0" run -n 1 -- sh -c 'echo ONE >"$LAB/gate"; echo "$MUSTER_JOB ran"' & first=$!
        MUSTER_JOB=two "$0" run -n 1 -- sh -c 'read -r line <"$LAB/gate"; echo "$MUSTER_JOB met $line"'
        wait $first && echo BOTH"#;
    let mut command = cluster.command("srun");
    command
        .args(["-N1", "--mpi=none", "sh", "-ec", script])
        .arg(program("muster"))
        .env("MUSTER_AGENT", program("musterd"))
        .env("TMPDIR", cluster.folder())
        .env("HOME", cluster.folder());
    let mut run = cluster.run(&mut command);
    run.await_line(&["one ran"]);
    run.await_line(&["two met ONE"]);
    run.await_line(&["BOTH"]);
    assert!(run.end().success(), "{:?}", run.errors());
    cluster.await_clean();
    expect_no_files(&cluster, &[]);
}

#[test]
fn a_step_with_wrong_options_is_refused() {
    let Some(cluster) = Cluster::start("") else {
        return;
    };
    let muster = program("muster");
    let muster = muster.to_str().expect("a path in UTF-8");
    for (mpi, tasks, words) in [
        ("--mpi=none", "--ntasks=8", "--ntasks-per-node=1"),
        ("--mpi=pmi2", "--ntasks=4", "--mpi=none"),
        // As with MpiDefault=pmix.
        ("--mpi=pmix", "--ntasks=4", "--mpi=none"),
    ] {
        let (status, said) = cluster.output_of(&["srun", "-N4", mpi, tasks, muster, "run", "true"]);
        assert!(!status.success() && said.contains(words), "{said}");
    }
    cluster.await_clean();
}
