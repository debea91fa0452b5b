//! What survives under Slurm (slurm-2, slurm-4), by launcher and by what is killed: each section of the table in
//! muster-slurm(7) is what a test here has seen. `MUSTER_TABLE=write` puts what this run saw in its place.

use muster_tests::cluster::{Cluster, NODES, Process, Run, signal};
use muster_tests::launch::venv;
use muster_tests::ranks::wait_for_end;
use muster_tests::steps::{
    LIVES_ON, everybody, plugin, service, step, worker, worker_program, workers,
};
use muster_tests::{program, workspace};
use rustix::process::Signal;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Mutex;

const LIVE: &str = "the others live, and all of them are told";
const STEP_ENDS: &str = "Slurm ends the step";
const SHRUNK: &str = "the others live, all of them are told, and MPI goes on without it";
const JOB_ENDS: &str = "mpirun ends the job";
const DOWN: &str = "all live; once Slurm holds the node for down, srun has no more of its workers' input and output";
const NEW_AGENT: &str =
    "its workers start another one, with the same key; all live, may see the node failed and back";
const NODE: &str = "the others live, and all of them are told of the node and of its workers";
const OUTPUT: &str =
    "its workers lose input and output; the others live, and are told of those that end of it";

/// The sections of the table: how the job is started.
const SECTIONS: [&str; 7] = [
    "srun --muster --mpi=none --kill-on-bad-exit=0 --no-kill",
    "srun --muster",
    "srun --muster --kill-on-bad-exit=1",
    "the step of service.sbatch",
    "srun --mpi=pmix, programs that have left PMIx",
    "mpirun --with-ft ulfm (Open MPI 5) in an allocation",
    "mpirun (Open MPI 5) in an allocation",
];

/// One thing that was killed, and what became of the others.
type Row = (&'static str, &'static str);

/// How a section begins in the page, and how the table ends.
fn heading(section: &str) -> String {
    format!(".It {section}\n")
}
const END: &str = ".\\\" End of the table.\n";

fn rendered(section: &str, rows: &[Row]) -> String {
    let mut text = heading(section) + ".Bl -tag -width \"slurmstepd of a node\" -compact\n";
    for (killed, seen) in rows {
        text += &format!(".It {killed}\n{seen}\n");
    }
    text + ".El\n"
}

/// The page says of this section what was seen.
fn settle(section: &str, rows: &[Row]) {
    static PAGE: Mutex<()> = Mutex::new(());
    let _turn = PAGE.lock();
    assert!(SECTIONS.contains(&section), "{section}");
    let path = workspace().join("docs/man/muster-slurm.7");
    let page = fs::read_to_string(&path).expect("the page");
    let seen = rendered(section, rows);
    let start = page.find(&heading(section)).expect(section);
    let rest = &page[start..];
    let length = rest.find("\n.El\n").expect("the section ends") + "\n.El\n".len();
    let written = &rest[..length];
    if std::env::var_os("MUSTER_TABLE").is_some_and(|value| value == "write") {
        fs::write(&path, page.replacen(written, &seen, 1)).expect("the page");
    } else {
        assert_eq!(written, seen, "MUSTER_TABLE=write writes what was seen");
    }
}

#[test]
fn the_table_has_these_sections_and_no_others() {
    let page = fs::read_to_string(workspace().join("docs/man/muster-slurm.7")).expect("the page");
    let table = page.split(END).next().expect("a table");
    let begin = table
        .find(&heading(SECTIONS[0]))
        .expect("its first section");
    let outer = table[begin..]
        .split(".Bl -tag")
        .map(|part| part.lines().next_back());
    let found: Vec<&str> = outer
        .flatten()
        .filter_map(|line| line.strip_prefix(".It "))
        .collect();
    assert_eq!(found, SECTIONS);
}

/// These ranks are told that another one has failed.
fn expect_told(run: &Run, ranks: &[usize], (node, rank): (usize, usize)) {
    for told in ranks {
        run.await_line(&[&format!(
            "{told}: EVENT RankFailed node=n{node} rank={rank} "
        )]);
    }
}

/// These workers answer what they are asked.
fn expect_alive(run: &mut Run, ranks: &[usize]) {
    for rank in ranks {
        let name = format!("{rank}: STATES ");
        let before = run.lines_with(&[&name]).len();
        run.tell("states");
        run.await_lines(before + 1, &[&name]);
    }
}

/// Everything on a node but what stands for its host.
fn all_on(cluster: &Cluster, node: usize) -> Vec<Process> {
    let mut all = cluster.processes();
    all.retain(|process| process.node == Some(node) && process.name != "sleep");
    assert!(all.len() > 4, "{all:?}");
    all
}

fn kill(processes: Vec<Process>) {
    assert!(!processes.is_empty());
    processes
        .into_iter()
        .for_each(|process| signal(&process, Signal::KILL));
}

/// The workers end by themselves, or with their job, and nothing is left of it.
fn end(cluster: &Cluster, run: Run) {
    end_after_loss(cluster, run);
    cluster.await_clean();
}

/// The same where everything of a node was killed: nobody was left there to take its files away.
fn end_after_loss(cluster: &Cluster, mut run: Run) {
    run.tell("leave 0");
    drop(run);
    cluster.recover();
    for name in ["musterd", "muster-test-ran"] {
        let left = (1..=NODES).flat_map(|node| cluster.on_node(node, name));
        left.for_each(|process| wait_for_end(process.pid));
    }
}

#[test]
fn the_plugin_and_a_step_that_lives_on() {
    let Some(cluster) = Cluster::start(&plugin(&program("musterd"))) else {
        return;
    };
    let mut run = step(&cluster, &[&["--muster"], &LIVES_ON[..]].concat());
    run.await_view(0..NODES, &everybody());
    let mut rows: Vec<Row> = Vec::new();
    kill(workers(&cluster, 3));
    expect_told(&run, &[0, 1, 3], (3, 2));
    expect_alive(&mut run, &[0, 1, 3]);
    rows.push(("a worker", LIVE));
    // What the new agent below has never heard of.
    run.await_lines(3, &["EVENT NodeLeft node=n3 "]);
    kill(cluster.on_node(1, "musterd"));
    run.await_line(&["0: EVENT Overflow", "NewAgent"]);
    expect_alive(&mut run, &[0, 1, 3]);
    rows.push(("musterd of a node", NEW_AGENT));
    kill(all_on(&cluster, 4));
    expect_told(&run, &[0, 1], (4, 3));
    run.await_lines(2, &["EVENT NodeFailed node=n4 "]);
    expect_alive(&mut run, &[0, 1]);
    rows.push(("everything of a node", NODE));
    kill(cluster.on_node(2, "slurmd"));
    cluster.await_state(2, "down");
    run.tell("states");
    // What srun has said when the node was down: it has nothing to do with it any more.
    run.await_view(
        [0],
        "n1=Alive n2=Alive n4=Failed 0=Alive 1=Alive 2=Failed 3=Failed",
    );
    assert_eq!(workers(&cluster, 2).len(), 1);
    rows.push(("slurmd of a node", DOWN));
    kill(cluster.on_node(2, "slurmstepd"));
    expect_told(&run, &[0], (2, 1));
    expect_alive(&mut run, &[0]);
    rows.push(("slurmstepd of a node", OUTPUT));
    settle(SECTIONS[0], &rows);
    end_after_loss(&cluster, run);
}

#[test]
fn the_plugin_and_steps_with_other_flags() {
    let Some(cluster) = Cluster::start(&plugin(&program("musterd"))) else {
        return;
    };
    let mut run = step(&cluster, &["--muster"]);
    run.await_view(0..NODES, &everybody());
    kill(workers(&cluster, 3));
    expect_told(&run, &[0, 1, 3], (3, 2));
    expect_alive(&mut run, &[0, 1, 3]);
    settle(SECTIONS[1], &[("a worker", LIVE)]);
    end(&cluster, run);
    let mut run = step(&cluster, &["--muster", "--kill-on-bad-exit=1"]);
    run.await_view(0..NODES, &everybody());
    kill(workers(&cluster, 3));
    assert!(!run.end().success());
    settle(SECTIONS[2], &[("a worker", STEP_ENDS)]);
    cluster.await_clean();
}

#[test]
fn the_service_step() {
    let Some(cluster) = Cluster::start("") else {
        return;
    };
    let mut run = service(&cluster);
    run.await_lines(NODES, &["ATTACHED"]);
    run.await_view(0..NODES, &everybody());
    let mut rows: Vec<Row> = Vec::new();
    kill(vec![worker(&cluster, 3)]);
    expect_told(&run, &[0, 1, 3], (3, 2));
    expect_alive(&mut run, &[0, 1, 3]);
    rows.push(("a worker", LIVE));
    kill(cluster.on_node(1, "musterd"));
    run.await_line(&["0: EVENT Overflow", "NewAgent"]);
    expect_alive(&mut run, &[0, 1, 3]);
    rows.push(("musterd of a node", NEW_AGENT));
    kill(all_on(&cluster, 4));
    expect_told(&run, &[0, 1], (4, 3));
    expect_alive(&mut run, &[0, 1]);
    rows.push(("everything of a node", NODE));
    settle(SECTIONS[3], &rows);
    end_after_loss(&cluster, run);
}

/// A program of PMIx, see there.
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

#[test]
fn pmix_of_slurm() {
    let Some(cluster) = Cluster::start(&plugin(&program("musterd"))) else {
        return;
    };
    let binary = left_pmix(&cluster).display().to_string();
    let mut command = cluster.command("srun");
    command.args(["--nodes=4", "--ntasks=4", "--label", "--muster"]);
    command.args(["--mpi=pmix", "--kill-on-bad-exit=0", "--no-kill"]);
    command.args([&binary, &worker_program()]);
    let mut run = cluster.run(&mut command);
    run.await_view(0..NODES, &everybody());
    kill(workers(&cluster, 3));
    expect_told(&run, &[0, 1, 3], (3, 2));
    expect_alive(&mut run, &[0, 1, 3]);
    settle(SECTIONS[4], &[("a worker", LIVE)]);
    end(&cluster, run);
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
        .arg(workspace().join("target/release/ulfm_survive"))
        .env("SURVIVE_LOG_DIR", cluster.folder())
        .env("TMPDIR", cluster.folder())
        .env("SURVIVE_READY_S", "60")
        .env("SURVIVE_DEADLINE_S", "60")
        .env("MUSTER_ULFM", "1")
        .env("MUSTER_AGENT", workspace().join("target/release/musterd"))
        .env("OMPI_MCA_coll", "^han")
        .env("OMPI_MCA_mpi_yield_when_idle", "1")
        .env("PRTE_ALLOW_RUN_AS_ROOT", "1")
        .env("PRTE_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    cluster.run(&mut command)
}

/// Kills a rank of node 3 when all are there.
fn kill_a_rank(cluster: &Cluster, run: &Run) {
    run.await_lines(8, &[": READY "]);
    kill(cluster.on_node(3, "ulfm_survive").drain(..1).collect());
}

#[test]
fn mpirun_in_an_allocation() {
    let Some(cluster) = Cluster::start("") else {
        return;
    };
    let mut run = allocation(&cluster, &["--with-ft", "ulfm"]);
    kill_a_rank(&cluster, &run);
    for line in run.await_lines(7, &[": SHRUNK "]) {
        let (rank, _) = line.split_once(':').expect("a rank");
        run.await_line(&[&format!("{rank}: TOLD "), " RANK_FAILED "]);
    }
    fs::write(cluster.folder().join("stop"), "").expect("a file");
    let done = run.await_lines(7, &[": DONE "]);
    assert!(done.iter().all(|line| line.contains(" ok ")), "{done:?}");
    run.end();
    settle(SECTIONS[5], &[("a rank", SHRUNK)]);
    fs::remove_file(cluster.folder().join("stop")).expect("it is there");
    cluster.recover();
    let mut run = allocation(&cluster, &[]);
    kill_a_rank(&cluster, &run);
    assert!(!run.end().success());
    settle(SECTIONS[6], &[("a rank", JOB_ENDS)]);
    cluster.recover();
    cluster.await_clean();
}
