//! What survives under Slurm (slurm-2, slurm-4), by launcher and by what is killed: rows of the table in
//! muster-slurm(7); and the check that nothing is left behind (slurm-3).

use muster_tests::cluster::{Cluster, NODES, Run, kill};
use muster_tests::compile::compile;
use muster_tests::launchers::venv;
use muster_tests::process::wait_for_end;
use muster_tests::rank::rank_program;
use muster_tests::steps::{LIVES_ON, all_alive, plugin, service, step, worker, workers};
use muster_tests::table::{
    AGENT, DAEMONS, NODE, RANK, SHRUNK, SILENT, SLURMD, SLURMSTEPD, Start, WORKER, expect_all_rows,
    observed,
};
use muster_tests::{DEADLINE, program, workspace};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

const LIVE: &str = "the others continue, and all are notified";
const STEP_ENDS: &str = "Slurm ends the step";
const PMIX_ENDS: &str = "Slurm's PMIx plugin ends the step, with or without Muster; usually the \
    others are notified before";
const JOB_ENDS: &str = "mpirun ends the job";
const LIVE_ON: &str = "all continue, with SLURM_NO_KILL=set in the environment of mpirun; if a rank on that node is \
    killed later, all are notified, and MPI continues without it";
const SHRUNK_ON: &str = "the others continue, all are notified, and MPI continues without its ranks; mpirun does not \
    end by itself, see above";
const NODE_OR_AGENT: &str = "its ranks start another one; if that does not run within a deadline the node counts \
    as lost: the others continue, are notified, and MPI continues without its ranks";
const DOWN: &str = "all continue; once Slurm marks the node as down, srun no longer passes its workers' input \
    and output";
const NEW_AGENT: &str = "its workers start another one, with the same key; all continue, and may see the node \
    as failed and back";
const NODE_TOLD: &str = "the others continue, and all are notified of the node and of its workers";
const OUTPUT: &str = "its workers lose input and output; the others continue, and are notified of workers \
    that end because of it";

/// slurm-4.
#[test]
fn the_table_has_these_rows_and_no_others() {
    expect_all_rows();
}

/// Waits until these ranks are notified that another one has failed.
fn expect_told(run: &Run, ranks: &[usize], (node, rank): (usize, usize)) {
    for notified in ranks {
        run.await_line(&[&format!(
            "{notified}: EVENT RankFailed node=n{node} rank={rank} "
        )]);
    }
}

/// Waits until the two remaining ranks are notified of the fourth node and of its worker.
fn expect_node_told(run: &Run) {
    expect_told(run, &[0, 1], (4, 3));
    for notified in [0, 1] {
        run.await_line(&[&format!("{notified}: EVENT NodeFailed node=n4 ")]);
    }
}

/// Waits until this worker, which still runs, no longer gets the input of srun; another one does.
fn expect_cut_off(run: &mut Run, rank: usize, other: usize) {
    let answers = |run: &Run| run.lines_with(&[&format!("{rank}: STATES ")]).len();
    let end = Instant::now() + DEADLINE;
    let mut before = answers(run);
    loop {
        // An answer may still be under way when the other worker's answer to the next request has arrived.
        (0..2).for_each(|_| expect_alive(run, &[other]));
        let after = answers(run);
        if after == before {
            return;
        }
        assert!(Instant::now() < end, "rank {rank} still answers");
        before = after;
    }
}

/// Waits until these workers answer a request.
fn expect_alive(run: &mut Run, ranks: &[usize]) {
    for rank in ranks {
        let name = format!("{rank}: STATES ");
        let before = run.lines_with(&[&name]).len();
        run.send("states");
        run.await_lines(before + 1, &[&name]);
    }
}

/// The workers end by themselves, or with their job, and nothing is left except the files of `lost` nodes on
/// which all processes were killed.
fn end(cluster: &Cluster, mut run: Run, lost: usize, start: &str) {
    run.send("leave 0");
    drop(run);
    cluster.recover();
    for name in ["musterd", "muster-test-ran"] {
        let left = (1..=NODES).flat_map(|node| cluster.on_node(node, name));
        left.for_each(|process| wait_for_end(process.pid));
    }
    cluster.await_clean_but(lost);
    cluster.show_clean(start);
}

/// A worker dies, then an agent, then a node with all its processes; each time the others are notified, and
/// continue.
fn lose_a_worker_an_agent_and_a_node(cluster: &Cluster, run: &mut Run, start: Start) {
    kill(&workers(cluster, 3));
    expect_told(run, &[0, 1, 3], (3, 2));
    expect_alive(run, &[0, 1, 3]);
    observed(start, WORKER, LIVE);
    // Only after that a new agent has no news of that node.
    run.await_lines(3, &["EVENT NodeLeft node=n3 "]);
    kill(&cluster.on_node(1, "musterd"));
    run.await_line(&["0: EVENT Overflow", "NewAgent"]);
    expect_alive(run, &[0, 1, 3]);
    observed(start, AGENT, NEW_AGENT);
    run.await_answers(3);
    kill(&cluster.all_on(4));
    expect_node_told(run);
    expect_alive(run, &[0, 1]);
    observed(start, NODE, NODE_TOLD);
}

/// slurm-4.
#[test]
fn the_plugin_and_a_step_that_lives_on() {
    let Some(cluster) = Cluster::start(&plugin(&program("musterd"))) else {
        return;
    };
    let mut run = step(&cluster, &[&["--muster"], &LIVES_ON[..]].concat());
    run.await_view(0..NODES, &all_alive());
    lose_a_worker_an_agent_and_a_node(&cluster, &mut run, Start::LivesOn);
    kill(&cluster.on_node(2, "slurmd"));
    cluster.await_state(2, "down");
    run.send("states");
    // srun's view of the time at which the node was down: it no longer includes that node.
    run.await_view(
        [0],
        "n1=Alive n2=Alive n3=Left n4=Failed 0=Alive 1=Alive 2=Failed 3=Failed",
    );
    expect_cut_off(&mut run, 1, 0);
    assert_eq!(workers(&cluster, 2).len(), 1);
    observed(Start::LivesOn, SLURMD, DOWN);
    kill(&cluster.on_node(2, "slurmstepd"));
    expect_told(&run, &[0], (2, 1));
    expect_alive(&mut run, &[0]);
    observed(Start::LivesOn, SLURMSTEPD, OUTPUT);
    end(
        &cluster,
        run,
        1,
        "a step of the plugin's that lost two nodes",
    );
}

#[test]
fn the_plugin_and_steps_with_other_flags() {
    let Some(cluster) = Cluster::start(&plugin(&program("musterd"))) else {
        return;
    };
    let mut run = step(&cluster, &["--muster"]);
    run.await_view(0..NODES, &all_alive());
    kill(&workers(&cluster, 3));
    expect_told(&run, &[0, 1, 3], (3, 2));
    expect_alive(&mut run, &[0, 1, 3]);
    observed(Start::Plain, WORKER, LIVE);
    end(&cluster, run, 0, "a step of the plugin's");
    let mut run = step(&cluster, &["--muster", "--kill-on-bad-exit=1"]);
    run.await_view(0..NODES, &all_alive());
    kill(&workers(&cluster, 3));
    assert!(!run.end().success());
    observed(Start::KillOnBadExit, WORKER, STEP_ENDS);
    cluster.await_clean();
}

/// slurm-2.
#[test]
fn the_service_step() {
    let Some(cluster) = Cluster::start("") else {
        return;
    };
    let mut run = service(&cluster);
    run.await_lines(NODES, &["ATTACHED"]);
    run.await_view(0..NODES, &all_alive());
    let start = Start::Service;
    kill(&[worker(&cluster, 3)]);
    expect_told(&run, &[0, 1, 3], (3, 2));
    expect_alive(&mut run, &[0, 1, 3]);
    observed(start, WORKER, LIVE);
    kill(&cluster.on_node(1, "musterd"));
    run.await_line(&["0: EVENT Overflow", "NewAgent"]);
    expect_alive(&mut run, &[0, 1, 3]);
    observed(start, AGENT, NEW_AGENT);
    run.await_answers(3);
    kill(&cluster.all_on(4));
    expect_node_told(&run);
    expect_alive(&mut run, &[0, 1]);
    observed(start, NODE, NODE_TOLD);
    end(&cluster, run, 1, "a service step that lost a node");
}

/// Compiles the PMIx program `left_pmix`.
fn left_pmix(cluster: &Cluster) -> PathBuf {
    let flags = Command::new("pkg-config")
        .args(["--cflags", "--libs", "pmix"])
        .output();
    let flags = String::from_utf8(flags.expect("pkg-config").stdout).expect("flags");
    let binary = cluster.folder().join("left_pmix");
    let status = Command::new("cc")
        .arg(workspace().join("tests/programs/left_pmix.c"))
        .arg("-o")
        .arg(&binary)
        .args(flags.split_whitespace())
        .status();
    assert!(
        status.is_ok_and(|status| status.success()),
        "cc left_pmix.c"
    );
    binary
}

/// slurm-3, slurm-4.
#[test]
fn pmix_of_slurm() {
    let Some(cluster) = Cluster::start(&plugin(&program("musterd"))) else {
        return;
    };
    let binary = left_pmix(&cluster).display().to_string();
    let mut command = cluster.command("srun");
    command.args(["--nodes=4", "--ntasks=4", "--label", "--muster"]);
    command.args(["--mpi=pmix", "--kill-on-bad-exit=0", "--no-kill"]);
    command.args([&binary, &rank_program()]);
    let mut run = cluster.run(&mut command);
    run.await_view(0..NODES, &all_alive());
    lose_a_worker_an_agent_and_a_node(&cluster, &mut run, Start::LeftPmix);
    end(&cluster, run, 1, "a step of Slurm's PMIx that lost a node");
}

/// Slurm's own PMIx plugin kills MPI ranks that have not finalized. `launchers.rs` shows that the survivors
/// are notified before, with Slurm's controller held meanwhile.
#[test]
fn ranks_in_the_pmix_of_slurm() {
    let Some(cluster) = Cluster::start("") else {
        return;
    };
    let program = compile(Path::new("mpicc.openmpi"), "told", &[], cluster.folder());
    let mut command = cluster.mpi("-N2 --ntasks-per-node=2");
    let mut run = cluster.run(command.arg(program).arg("stay"));
    run.await_lines(4, &["READY"]);
    kill(&cluster.on_node(2, "told")[..1]);
    assert!(!run.end().success());
    assert!(cluster.has_logged("Error handler invoked: status = -61"));
    observed(Start::InPmix, RANK, PMIX_ENDS);
    cluster.await_clean();
    cluster.show_clean("a step that Slurm's PMIx plugin ended");
}

/// An MPI program in an allocation of all nodes, under `mpirun` of Open MPI 5 with these options.
fn allocation(cluster: &Cluster, options: &[&str]) -> Run {
    let mut command = cluster.command("salloc");
    command.args(["--nodes=4", "--ntasks-per-node=2", "--no-kill"]);
    command.arg(venv("venv").join("mpirun"));
    command.args(["--allow-run-as-root", "--bind-to", "none", "-n", "8"]);
    command.args(options);
    for name in [
        "MUSTER_AGENT",
        "MUSTER_DIR",
        "MUSTER_LINGER_MS",
        "MUSTER_ULFM",
    ] {
        command.args(["-x", name]);
    }
    command
        .args(["-x", "SURVIVE_LOG_DIR", "-x", "SURVIVE_READY_S"])
        .args(["-x", "SURVIVE_DEADLINE_S"])
        .arg(program("ulfm_survive"))
        .env("SURVIVE_LOG_DIR", cluster.folder())
        .env("TMPDIR", cluster.folder())
        .env("SURVIVE_READY_S", "60")
        .env("SURVIVE_DEADLINE_S", "30")
        .env("MUSTER_ULFM", "1")
        .env("MUSTER_AGENT", program("musterd"))
        // For the srun with which mpirun starts its daemons.
        .env("SLURM_NO_KILL", "set")
        .env("OMPI_MCA_coll", "^han")
        .env("OMPI_MCA_mpi_yield_when_idle", "1")
        .env("PRTE_ALLOW_RUN_AS_ROOT", "1")
        .env("PRTE_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    cluster.run(&mut command)
}

/// Kills a rank of a node when all are ready.
fn kill_a_rank(cluster: &Cluster, run: &Run, node: usize) {
    run.await_lines(8, &[": READY "]);
    kill(&cluster.on_node(node, "ulfm_survive")[..1]);
}

/// Waits until MPI continues with this many ranks, each of which Muster has notified of a rank.
fn expect_shrunk(run: &Run, ranks: usize) {
    for line in run.await_lines(ranks, &[": SHRUNK "]) {
        let (rank, _) = line.split_once(':').expect("a rank");
        run.await_line(&[&format!("{rank}: TOLD "), " RANK_FAILED "]);
    }
}

/// How often a job in which MPI may hang is repeated.
const SILENCES_MAX: usize = 8;

/// A job of which a node becomes silent, until MPI has shrunk. MPI may stay in a call although Muster has
/// notified it: the message that revokes a communicator is passed from rank to rank, and ranks of the silent
/// node may have had to forward it. The program prints that, and the job is repeated; this happens about
/// every second time. Returns the job and how often it was repeated.
fn silence_node(cluster: &Cluster, node: usize) -> (Run, usize) {
    for times in 1..=SILENCES_MAX {
        let mut run = allocation(cluster, &["--with-ft", "ulfm"]);
        run.await_lines(8, &[": READY "]);
        cluster.cut(node);
        kill(&cluster.all_on(node));
        run.await_lines(6, &[": TOLD ", " RANK_FAILED 4 "]);
        let is_stuck = |line: &String| line.contains(": NOSHRINK ");
        if !(1..=6).any(|count| run.await_lines(count, &["SHR"]).iter().any(is_stuck)) {
            expect_shrunk(&run, 6);
            return (run, times);
        }
        cluster.await_state(node, "down");
        let (status, printed) = cluster.output_of(&["scancel", "--me"]);
        assert!(status.success(), "{printed}");
        run.end();
        cluster.mend(node);
        cluster.recover();
    }
    panic!("MPI did not return from a call in {SILENCES_MAX} attempts");
}

/// Asserts that all of them get the right result.
fn expect_answers(cluster: &Cluster, run: &Run, ranks: usize) {
    let stop = cluster.folder().join("stop");
    fs::write(&stop, "").expect("a file");
    let done = run.await_lines(ranks, &[": DONE "]);
    assert!(done.iter().all(|line| line.contains(" ok ")), "{done:?}");
    fs::remove_file(&stop).expect("the file exists");
}

/// slurm-4.
#[test]
fn mpirun_in_an_allocation() {
    let Some(cluster) = Cluster::start("") else {
        return;
    };
    let mut run = allocation(&cluster, &["--with-ft", "ulfm"]);
    kill_a_rank(&cluster, &run, 3);
    expect_shrunk(&run, 7);
    observed(Start::Ulfm, RANK, SHRUNK);
    kill(&cluster.on_node(1, "musterd"));
    run.await_lines(2, &[": TOLD ", " OVERFLOW "]);
    expect_answers(&cluster, &run, 7);
    run.end();
    cluster.recover();
    observed(Start::Ulfm, AGENT, NODE_OR_AGENT);
    let mut run = allocation(&cluster, &[]);
    kill_a_rank(&cluster, &run, 3);
    assert!(!run.end().success());
    observed(Start::Mpirun, RANK, JOB_ENDS);
    cluster.recover();
    cluster.await_clean();
    cluster.show_clean("jobs of mpirun that lost a rank");
}

/// slurm-4.
#[test]
fn mpirun_that_loses_a_node() {
    let Some(cluster) = Cluster::start("") else {
        return;
    };
    let mut run = allocation(&cluster, &["--with-ft", "ulfm"]);
    run.await_lines(8, &[": READY "]);
    let mut daemons = cluster.on_node(2, "slurmd");
    daemons.extend(cluster.on_node(2, "slurmstepd"));
    assert!(daemons.len() > 1, "{daemons:?}");
    kill(&daemons);
    cluster.await_state(2, "down");
    kill_a_rank(&cluster, &run, 2);
    expect_shrunk(&run, 7);
    expect_answers(&cluster, &run, 7);
    run.end();
    cluster.recover();
    observed(Start::Ulfm, DAEMONS, LIVE_ON);
    let (mut run, lost) = silence_node(&cluster, 3);
    cluster.await_state(3, "down");
    expect_answers(&cluster, &run, 6);
    cluster.mend(3);
    cluster.recover();
    run.end();
    observed(Start::Ulfm, SILENT, SHRUNK_ON);
    let mut run = allocation(&cluster, &["--with-ft", "ulfm"]);
    run.await_lines(8, &[": READY "]);
    kill(&cluster.all_on(4));
    run.end();
    run.await_error("PRTE has lost communication with a remote daemon");
    observed(Start::Ulfm, NODE, JOB_ENDS);
    cluster.recover();
    cluster.await_clean_but(lost + 1);
    cluster.show_clean("jobs of mpirun, of which two lost a node");
}
