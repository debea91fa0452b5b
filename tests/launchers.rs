//! The launchers that users have, for real: whoever starts the job, every survivor is told of a killed
//! rank, and the launcher does what it does without us and ends.

use muster_tests::launch::{Outcome, compile, job, open_mpi_4, open_mpi_5, run, venv};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// As [`expect_right`], and every survivor was told.
fn expect_told(outcome: &Outcome, ranks: usize) {
    expect_right(outcome, ranks);
    assert_eq!(outcome.count("TOLD"), ranks - 1, "{}", outcome.text());
}

/// All were there, whoever was told was told right, by the kernel's word, and nobody complained. A launcher
/// that ends the job races with the news: some may have been killed before they could say it.
fn expect_right(outcome: &Outcome, ranks: usize) {
    let lines = outcome.text();
    assert_eq!(outcome.count("FAIL"), 0, "{lines}");
    assert_eq!(outcome.count("READY"), ranks, "{lines}");
    assert!(outcome.count("TOLD") < ranks, "{lines}");
    let victim = format!("rank {} on ", ranks - 1);
    let told = outcome.lines.iter().filter(|line| line.starts_with("TOLD"));
    for told in told {
        // Before Linux 6.15 nobody can tell the signal when the launcher reaps faster than the agent looks.
        let how = ["killed by signal 9", "its process died"];
        let is_how = how.iter().any(|how| told.contains(how));
        assert!(told.contains(&victim) && is_how, "{told}");
    }
}

fn told(compiler: &Path, folder: &Path) -> PathBuf {
    compile(compiler, "told", &[], folder)
}

/// MPICH's launcher speaks PMI-1; the agents of two nodes are brought together by an allgather.
#[test]
fn mpich_without_pmix() {
    job(|folder| {
        let program = told(&venv("mpich").join("mpicc"), folder);
        let mut launcher = Command::new(venv("mpich").join("mpiexec"));
        launcher
            .args(["-disable-auto-cleanup", "-n", "4"])
            .arg(&program)
            .arg("cards");
        let pid = std::process::id();
        launcher.env(
            "TOLD_NET",
            format!("{}.{}", 91 + pid / 250 % 100, 1 + pid % 250),
        );
        let outcome = run(&mut launcher, folder);
        expect_told(&outcome, 4);
        let text = outcome.lines.join("\n");
        assert!(text.contains("rank 3 on n1 FAILED"), "{text}");
        outcome.expect_end();
    });
}

/// Debian's Open MPI 4.1 kills the job when a rank dies; it ends as it does without us. Who is let live for
/// long enough is told before that.
#[test]
fn open_mpi_4_as_it_comes() {
    job(|folder| {
        let program = told(Path::new("mpicc.openmpi"), folder);
        let outcome = run(open_mpi_4().args(["-n", "4"]).arg(&program), folder);
        expect_right(&outcome, 4);
        assert!(!outcome.expect_end().success());
    });
}

/// With recovery it lets the survivors live; then its mpirun does not always end by itself, with us or
/// without.
#[test]
fn open_mpi_4_with_recovery() {
    job(|folder| {
        let program = told(Path::new("mpicc.openmpi"), folder);
        let mut launcher = open_mpi_4();
        let outcome = run(
            launcher
                .args(["--enable-recovery", "-n", "4"])
                .arg(&program),
            folder,
        );
        expect_told(&outcome, 4);
    });
}

/// PRRTE, the launcher of Open MPI 5, as it comes: it ends the job.
#[test]
fn open_mpi_5_as_it_comes() {
    job(|folder| {
        let program = told(&venv("venv").join("mpicc"), folder);
        let outcome = run(open_mpi_5().args(["-n", "4"]).arg(&program), folder);
        expect_right(&outcome, 4);
        assert!(!outcome.expect_end().success());
    });
}

/// PRRTE with fault tolerance: the survivors end when they want to.
#[test]
fn open_mpi_5_with_fault_tolerance() {
    job(|folder| {
        let program = told(&venv("venv").join("mpicc"), folder);
        let mut launcher = open_mpi_5();
        let outcome = run(
            launcher
                .args(["--with-ft", "ulfm", "-n", "4"])
                .arg(&program),
            folder,
        );
        expect_told(&outcome, 4);
        outcome.expect_end();
    });
}

/// What `MPI_Comm_spawn` starts is a job of its own on the same nodes: its ranks are told of each other, and
/// its deaths are not its parents'.
#[test]
fn spawned_children_are_a_job_of_their_own() {
    job(|folder| {
        let program = told(&venv("venv").join("mpicc"), folder);
        let mut launcher = open_mpi_5();
        launcher.args(["--with-ft", "ulfm", "-n", "2"]);
        let outcome = run(launcher.arg(&program).arg("spawn"), folder);
        let lines = outcome.lines.join("\n");
        let count = |word| outcome.count(word);
        assert_eq!([count("FAIL"), count("READY")], [0, 4], "{lines}");
        assert_eq!([count("TOLD"), count("SPAWNED")], [1, 2], "{lines}");
        outcome.expect_end();
    });
}

/// Without a launcher, a process is a job of its own.
#[test]
fn a_singleton() {
    job(|folder| {
        let program = told(&venv("venv").join("mpicc"), folder);
        let mut command = Command::new(&program);
        command
            .env("MUSTER_JOB", "singleton")
            .env("MUSTER_RANK", "0")
            .env("MUSTER_RAILS", "127.0.0.1:0@udp0");
        let outcome = run(&mut command, folder);
        assert_eq!((outcome.count("READY"), outcome.count("FAIL")), (1, 0));
        let status = outcome.expect_end();
        assert!(status.success(), "{status}, signal {:?}", status.signal());
    });
}
