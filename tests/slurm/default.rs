//! A site whose plugin gives every step an agent by default: launchers with agents or ranks of their own, and
//! jobs that the user has named, work as without the plugin (slurm-1, run-2).

use muster_tests::cluster::{Cluster, NODES, Process, Run, signal};
use muster_tests::launchers::venv;
use muster_tests::program;
use muster_tests::rank::rank_program;
use muster_tests::steps::{LIVES_ON, all_alive, plugin, service, step, worker};
use rustix::process::Signal;
use std::fs;
use std::io::Write;

/// A cluster of such a site.
fn cluster() -> Option<Cluster> {
    let line = plugin(&program("musterd"));
    Cluster::start(&(line.trim_end().to_owned() + " default=on\n"))
}

/// A process's value of this variable.
fn variable(process: &Process, name: &str) -> Option<String> {
    let bytes = fs::read(format!("/proc/{}/environ", process.pid)).expect("the process runs");
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let mut lines = text.split('\0');
    lines.find_map(|line| Some(line.strip_prefix(name)?.strip_prefix('=')?.to_owned()))
}

/// Starts a launcher per node with two ranks, behind these arguments.
fn muster_run(cluster: &Cluster, before: &[&str]) -> Run {
    let mut command = cluster.command("srun");
    command
        .args(["--nodes=4", "--ntasks=4"])
        .args(LIVES_ON)
        .args(before)
        .arg(program("muster"))
        .args(["run", "-n", "8", "--", "sh", "-c"])
        .arg("echo RAN $MUSTER_JOB; read -r line <\"$LAB/gate\"; echo OVER")
        .env("MUSTER_AGENT", program("musterd"))
        .env("TMPDIR", cluster.folder())
        .env("HOME", cluster.folder());
    cluster.run(&mut command)
}

/// `muster run` brings its own agents. A plugin that detects it starts none; one that does not, because
/// `muster run` is behind a shell, has its agents beside them (slurm-1).
#[test]
fn muster_run_has_its_own_agents() {
    let Some(cluster) = cluster() else {
        return;
    };
    let gate = cluster.folder().join("gate").display().to_string();
    assert!(cluster.output_of(&["mkfifo", &gate]).0.success());
    for (before, agents) in [(&[][..], 1), (&["sh", "-c", "\"$0\" \"$@\""], 2)] {
        let mut run = muster_run(&cluster, before);
        let ran = run.await_lines(2 * NODES, &["RAN "]);
        assert!(ran.iter().all(|line| !line.contains("slurm-")), "{ran:?}");
        for node in 1..=NODES {
            // A supervisor and a worker each.
            let found = cluster.on_node(node, "musterd");
            assert_eq!(found.len(), 2 * agents, "{before:?}, n{node}: {found:?}");
        }
        // One line for each of them, whichever process reads which byte.
        let mut open = fs::OpenOptions::new();
        let mut open = open.read(true).write(true).open(&gate).expect("a pipe");
        open.write_all(&[b'\n'; 2 * NODES]).expect("there is room");
        run.await_lines(2 * NODES, &["OVER"]);
        assert!(run.end().success(), "{:?}", run.errors());
        cluster.await_clean();
    }
}

/// The same for a job on emulated nodes that a shell of such a step starts: it uses neither the name nor the
/// hosts nor the ports of the step's own agents (slurm-1).
#[test]
fn jobs_that_a_shell_of_a_step_starts_are_separate() {
    let Some(cluster) = cluster() else {
        return;
    };
    let muster = program("muster").display().to_string();
    let rank = rank_program();
    let line = format!(
        "\"$@\" sh -c 'echo RAN $MUSTER_JOB $MUSTER_NODE; printf \"states\\nleave 0\\n\" | {rank}'"
    );
    for (how, nodes) in [(&[][..], ["n1"; 2]), (&["--nodes", "2"], ["n1", "n2"])] {
        let mut command = cluster.command("srun");
        command.args(["--nodelist=n1", "--ntasks=1"]).args(LIVES_ON);
        command.args(["sh", "-c", &line, "sh", &muster, "run"]);
        command.args(how).args(["-n", "2", "--"]);
        command
            .env("MUSTER_AGENT", program("musterd"))
            .env("TMPDIR", cluster.folder())
            .env("HOME", cluster.folder());
        let output = command.output().expect("nsenter can be started");
        let printed = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{how:?}: {output:?}");
        let mut ran: Vec<&str> = printed
            .lines()
            .filter(|line| line.contains("RAN "))
            .collect();
        ran.sort_unstable();
        assert!(ran.iter().all(|line| !line.contains("slurm-")), "{printed}");
        let places: Vec<&str> = ran
            .iter()
            .filter_map(|line| line.split(' ').next_back())
            .collect();
        assert_eq!(places, nodes, "{printed}");
        let left = printed.lines().filter(|line| line.contains("LEFT true"));
        assert_eq!(left.count(), 2, "{printed}");
        cluster.await_clean();
    }
}

/// The example's agents and workers meet under the name that the script sets (slurm-1).
#[test]
fn the_step_of_the_example_uses_its_own_agents() {
    let Some(cluster) = cluster() else {
        return;
    };
    let mut run = service(&cluster);
    run.await_view(0..NODES, &all_alive());
    for node in 1..=NODES {
        assert_eq!(cluster.on_node(node, "musterd").len(), 2, "n{node}");
        let job = variable(&worker(&cluster, node), "MUSTER_JOB").expect("a job name");
        assert!(!job.starts_with("slurm-"), "{job}");
    }
    run.send("leave 0");
    assert!(run.end().success());
    let printed = run.errors().join("\n");
    assert!(!printed.contains("muster"), "{printed}");
    // All other steps use the plugin's.
    let mut run = step(&cluster, &LIVES_ON);
    run.await_view(0..NODES, &all_alive());
    let job = variable(&worker(&cluster, 1), "MUSTER_JOB").expect("a job name");
    assert!(job.starts_with("slurm-"), "{job}");
    run.send("leave 0");
    run.end();
    cluster.await_clean();
}

/// A batch script's `mpirun` forks the ranks of its own node, and starts its daemons on the other nodes with
/// srun.
const BATCH: &str = r#"#!/bin/bash
exec "$MPIRUN" --allow-run-as-root --bind-to none --with-ft ulfm -n 4 \
	-x MUSTER_AGENT -x MUSTER_DIR -x MUSTER_LINGER_MS -x MUSTER_ULFM \
	-x SURVIVE_LOG_DIR -x SURVIVE_READY_S -x SURVIVE_DEADLINE_S "$SURVIVE" >"$LAB/out" 2>&1
"#;

/// They are one job: the ranks on mpirun's node are notified of a death on another node (slurm-1).
#[test]
fn ranks_of_mpirun_in_a_batch_script_are_one_job() {
    let Some(cluster) = cluster() else {
        return;
    };
    let path = |name: &str| cluster.folder().join(name).display().to_string();
    fs::write(path("batch"), BATCH).expect("a file");
    assert!(cluster.output_of(&["mkfifo", &path("out")]).0.success());
    let line = "sbatch --nodes=2 --ntasks-per-node=2 --output=\"$LAB/printed\" \"$LAB/batch\"; \
                exec cat \"$LAB/out\"";
    let mut command = cluster.command("sh");
    command
        .args(["-c", line])
        .env("MPIRUN", venv("venv").join("mpirun"))
        .env("SURVIVE", program("ulfm_survive"))
        .env("SURVIVE_LOG_DIR", cluster.folder())
        .env("SURVIVE_READY_S", "60")
        .env("SURVIVE_DEADLINE_S", "60")
        .env("TMPDIR", cluster.folder())
        .env("MUSTER_ULFM", "1")
        .env("MUSTER_AGENT", program("musterd"))
        .env("OMPI_MCA_coll", "^han")
        .env("OMPI_MCA_mpi_yield_when_idle", "1")
        .env("PRTE_ALLOW_RUN_AS_ROOT", "1")
        .env("PRTE_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    let mut run = cluster.run(&mut command);
    run.await_lines(4, &[": READY "]);
    let ranks = |node| cluster.on_node(node, "ulfm_survive");
    for rank in ranks(1).into_iter().chain(ranks(2)) {
        assert_eq!(variable(&rank, "MUSTER_JOB"), None, "{rank:?}");
    }
    signal(&ranks(2)[0], Signal::KILL);
    for line in run.await_lines(3, &[": SHRUNK "]) {
        let (rank, _) = line.split_once(':').expect("a rank");
        run.await_line(&[&format!("{rank}: TOLD "), " RANK_FAILED "]);
    }
    fs::write(path("stop"), "").expect("a file");
    run.await_lines(3, &[": DONE ", " ok "]);
    run.end();
    cluster.recover();
    cluster.await_clean();
}
