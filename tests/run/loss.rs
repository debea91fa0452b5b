//! `muster run`: nodes and ranks that are lost when the loss is hardest to report (run-4).

use muster_tests::compile::{build_pmix, compile};
use muster_tests::job::{Job, job};
use muster_tests::launchers::{muster_run, venv};
use muster_tests::process::{kill_at_once, name_of, signal_all, wait_for_ends};
use muster_tests::{make_program, program};
use rustix::process::{Pid, Signal};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The processes of a node with this name.
fn named(run: &Job, node: &str, name: &str) -> Vec<Pid> {
    let mut all = run.processes_of(node);
    all.retain(|pid| name_of(*pid) == name);
    all
}

/// An agent that starts at once, except while the file `held` exists: then it waits for the file `go`.
fn agent_that_waits(folder: &Path) -> PathBuf {
    let path = folder.join("agent");
    let script = format!(
        "#!/bin/sh\n[ ! -e {0}/held ] || until [ -e {0}/go ]; do sleep 0.02; done\nexec {1} \"$@\"\n",
        folder.display(),
        program("musterd").display()
    );
    make_program(&path, &script);
    path
}

/// The agent of a node is killed. The others give the node up and end. When its next agent has started, no
/// other node is left that could report this (run-4).
#[test]
fn a_node_whose_agent_returns_after_the_job_is_given_up() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str| folder.path().join(name);
    let script = format!(
        "echo UP; [ $PMIX_RANK = 1 ] && exec sleep 1000; until [ -e {} ]; do sleep 0.02; done; exit 3",
        file("end").display()
    );
    let agent = agent_that_waits(folder.path());
    let mut run = Job::start(
        muster_run()
            .env("MUSTER_AGENT", agent)
            .args(["--nodes", "2", "--", "sh", "-c", &script]),
    );
    run.await_lines("UP", 2);
    let other = run.processes_of("n1");
    std::fs::write(file("held"), "").expect("a file");
    let agents = named(&run, "n2", "musterd");
    kill_at_once(&agents);
    std::fs::write(file("end"), "").expect("a file");
    wait_for_ends(&other);
    std::fs::write(file("go"), "").expect("a file");
    let status = run.expect_end();
    let text = run.text();
    assert_eq!(status.code(), Some(3), "{text}");
    let words = "muster run: n2: this node is lost to the other nodes, since its agent is lost; its ranks are ended";
    assert_eq!(run.count(words), 1, "{text}");
}

/// A node without an agent that answers is lost for the others, which continue. Its ranks end, since they
/// could not be notified that they are given up.
fn lose_agent(signal: Signal) {
    job(|folder| {
        // The survivors stay until the node has learned that it is lost.
        let file = folder.join("lost");
        let until = format!("SURVIVE_UNTIL={}", file.display());
        let mut run = Job::survive(&["-v", "-x", &until], folder, &["2"]);
        run.await_ready();
        let agents = named(&run, "n3", "musterd");
        assert!(agents.len() >= 2, "supervisor and worker: {agents:?}");
        // All at once: a supervisor whose worker is killed first starts another one.
        signal_all(&agents, Signal::STOP);
        signal_all(&agents, signal);
        run.await_text("its ranks are ended");
        std::fs::write(file, "").expect("a file");
        run.expect_survivors(2);
    });
}

/// run-4.
#[test]
fn a_killed_agent_takes_its_node_with_it() {
    lose_agent(Signal::KILL);
}

/// run-4.
#[test]
fn an_agent_that_hangs_takes_its_node_with_it() {
    lose_agent(Signal::STOP);
}

/// Kills all processes of n3; the job must end and report it, once.
fn expect_ended_by_node(mut run: Job, why: &str) {
    let everything = run.processes_of("n3");
    assert!(
        everything.len() >= 4,
        "launcher, agent and ranks: {everything:?}"
    );
    kill_at_once(&everything);
    let status = run.expect_end();
    let text = run.text();
    assert_eq!((status.code(), run.count("DONE")), (Some(137), 0), "{text}");
    let words = format!("muster run: n1: the job is ended, since n3 was lost and {why}");
    assert_eq!(run.count(&words), 1, "{text}");
    assert_eq!(text.matches("the job is ended").count(), 1, "{text}");
}

/// If MPI has no fault tolerance, and if it has and the user requests the end (run-4). `run.rs` tests that
/// others continue.
#[test]
fn a_lost_node_ends_a_job_that_cannot_live_without_it() {
    job(|folder| {
        let four = compile("mpicc.openmpi".as_ref(), "waits", &[], folder);
        let mut run = Job::of(&["--nodes", "4", "-n", "4"], &four, &[]);
        run.await_lines("UP ", 4);
        expect_ended_by_node(run, "its MPI is not known to have fault tolerance");
        let gate = format!("SURVIVE_UNTIL={}", folder.join("never").display());
        let options = ["--on-loss=abort", "-x", &gate];
        let mut run = Job::survive(&options, folder, &["2"]);
        run.await_ready();
        expect_ended_by_node(run, "--on-loss=abort");
    });
}

/// A job whose rank 5, on n3, stops before this fence, while all others are in it or about to be.
struct Halted {
    run: Job,
    go: PathBuf,
}

/// Those of Open MPI's four fences in which no rank can leave before the loss is known: libpmix on a node may
/// learn first that the rank is gone, which lets the last fence of the others end.
const FENCES: usize = 3;
/// The complete output when the rank or its node dies.
const RANK_LOST: &str = "muster run: n3: the launch failed: rank 5 on n3 ended with status 137 \
                         before the end of MPI_Init";
const NODE_LOST: [&str; 2] = [
    "muster run: n1: the launch failed: n3 was lost before the end of MPI_Init",
    "muster run: the launcher of n3 was killed",
];

impl Halted {
    fn start(folder: &Path, binary: &Path, words: &[&str], turn: usize) -> Self {
        let go = folder.join(format!("go-{turn}"));
        let preload = build_pmix("halts", &["-shared", "-fPIC", "-Wl,--as-needed"], folder);
        let mut run = Job::start(
            muster_run()
                .args(["--nodes", "4", "-n", "8", "-x"])
                .arg(format!("LD_PRELOAD={}", preload.display()))
                .args(["-x", "HALTS_RANK=5", "-x", &format!("HALTS_TURN={turn}")])
                .args(["-x", &format!("HALTS_FILE={}", go.display()), "--"])
                .arg(binary)
                .args(words),
        );
        run.await_lines("AT 5 ", 1);
        for rank in (0..8).filter(|rank| *rank != 5) {
            run.await_lines(&format!("IN {rank} {turn}"), 1);
        }
        Self { run, go }
    }

    /// Asserts that the launch has failed with exactly this output.
    fn expect_failure(mut self, code: i32, words: &[&str]) {
        let status = self.run.expect_end();
        let text = self.run.text();
        assert_eq!(status.code(), Some(code), "{text}");
        let printed = self.run.lines.iter();
        let mut printed: Vec<&str> = printed
            .filter(|line| line.starts_with("muster"))
            .map(String::as_str)
            .collect();
        printed.sort_unstable();
        assert_eq!(printed, words, "{text}");
        assert_eq!(
            self.run.count("READY") + self.run.count("DONE"),
            0,
            "{text}"
        );
    }
}

/// In each fence of MPI_Init (run-4).
#[test]
fn a_rank_that_dies_within_mpi_init_is_a_failed_launch() {
    job(|folder| {
        let binary = compile(&venv("venv").join("mpicc"), "survive", &[], folder);
        for turn in 1..=FENCES {
            let halted = Halted::start(folder, &binary, &["0"], turn);
            std::fs::write(&halted.go, "").expect("a file");
            halted.expect_failure(137, &[RANK_LOST]);
        }
    });
}

/// Long after the last fence, while the others are in the next one: the start is not over (run-4).
#[test]
fn a_rank_that_dies_late_within_mpi_init_is_a_failed_launch() {
    job(|folder| {
        let binary = compile(&venv("venv").join("mpicc"), "survive", &[], folder);
        let mut halted = Halted::start(folder, &binary, &["0"], 3);
        // Longer than a launcher waits for another fence when it does not know their number.
        halted.run.listen_for(Duration::from_secs(12));
        std::fs::write(&halted.go, "").expect("a file");
        halted.expect_failure(137, &[RANK_LOST]);
    });
}

/// run-4.
#[test]
fn a_node_that_is_lost_within_mpi_init_is_a_failed_launch() {
    job(|folder| {
        let binary = compile(&venv("venv").join("mpicc"), "survive", &[], folder);
        for turn in 1..=FENCES {
            let halted = Halted::start(folder, &binary, &["0"], turn);
            let everything = halted.run.processes_of("n3");
            assert!(
                everything.len() >= 4,
                "launcher, agent and ranks: {everything:?}"
            );
            kill_at_once(&everything);
            halted.expect_failure(1, &NODE_LOST);
        }
    });
}

/// The same with a PMIx program without MPI (run-4).
#[test]
fn a_pmix_program_that_dies_in_its_start_is_a_failed_launch() {
    job(|folder| {
        let binary = build_pmix("fences", &[], folder);
        let halted = Halted::start(folder, &binary, &["not", "10"], 1);
        std::fs::write(&halted.go, "").expect("a file");
        halted.expect_failure(137, &[RANK_LOST]);
    });
}
