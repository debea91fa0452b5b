//! `muster run` under plain `srun`, in a real Slurm of four nodes: unmodified programs live through the
//! loss of a rank.

use muster_tests::cluster::{Cluster, NODES, Run, signal};
use muster_tests::launch::{compile, venv};
use muster_tests::program;
use rustix::process::Signal;

const RANKS: usize = 8;

/// What a user types, with these words for the program.
fn survive(cluster: &Cluster, words: &[&str]) -> Run {
    let compiler = venv("venv").join("mpicc");
    let binary = compile(&compiler, "survive", &[], cluster.folder());
    let mut command = cluster.command("srun");
    command
        .args(["-N4", "--mpi=none", "--no-kill", "--kill-on-bad-exit=0"])
        .arg("--label")
        .arg(program("muster"))
        .args(["run", "-n", "8", "--"])
        .arg(binary)
        .args(words)
        .env("MUSTER_AGENT", program("musterd"))
        .env("TMPDIR", cluster.folder())
        .env("HOME", cluster.folder());
    cluster.run(&mut command)
}

/// The survivors went on with right sums and reached the end of MPI.
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

/// No key and no directory of a session is left.
fn expect_no_files(cluster: &Cluster) {
    let entries = std::fs::read_dir(cluster.folder()).expect("a folder");
    let names = entries
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned());
    let left: Vec<String> = names.filter(|name| name.contains("muster-run")).collect();
    assert_eq!(left, [""; 0]);
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
    expect_no_files(&cluster);
}

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
    cluster.await_clean();
    expect_no_files(&cluster);
}

#[test]
fn a_step_that_does_not_fit_is_refused() {
    let Some(cluster) = Cluster::start("") else {
        return;
    };
    let muster = program("muster");
    let muster = muster.to_str().expect("a path in UTF-8");
    for (mpi, tasks, words) in [
        ("--mpi=none", "--ntasks=8", "--ntasks-per-node=1"),
        ("--mpi=pmi2", "--ntasks=4", "--mpi=none"),
    ] {
        let (status, said) = cluster.say(&["srun", "-N4", mpi, tasks, muster, "run", "true"]);
        assert!(!status.success() && said.contains(words), "{said}");
    }
    cluster.await_clean();
}
