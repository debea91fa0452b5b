//! Signals to a `muster run` step, in a real Slurm of four nodes: whichever process sends them, each rank
//! gets one (run-4).

use muster_tests::cluster::{Cluster, Run};
use muster_tests::compile::compile;
use muster_tests::program;
use std::path::Path;

const RANKS: usize = 4;

fn start(cluster: &Cluster) -> Run {
    let binary = compile(Path::new("cc"), "tally", &[], cluster.folder());
    let mut command = cluster.command("srun");
    command
        .args([
            "-N2",
            "--mpi=none",
            "--no-kill",
            "--kill-on-bad-exit=0",
            "--label",
        ])
        .arg(program("muster"))
        .args(["run", "-n", "4", "--label", "--"])
        .arg(binary)
        .env("MUSTER_AGENT", program("musterd"))
        .env("TMPDIR", cluster.folder())
        .env("HOME", cluster.folder());
    cluster.run(&mut command)
}

/// The running step.
fn step(cluster: &Cluster) -> String {
    let (status, printed) = cluster.output_of(&["squeue", "--steps", "-h", "-o", "%i"]);
    let steps: Vec<&str> = printed
        .lines()
        .filter(|line| line.ends_with(".0"))
        .collect();
    assert!(status.success() && steps.len() == 1, "{printed}");
    steps[0].trim().to_owned()
}

/// run-4.
#[test]
fn each_rank_gets_a_signal_to_the_step_once() {
    let Some(cluster) = Cluster::start("") else {
        return;
    };
    let mut run = start(&cluster);
    run.await_lines(RANKS, &["UP"]);
    let step = step(&cluster);
    for (name, number) in [("USR1", 10), ("USR2", 12), ("TERM", 15)] {
        let (status, printed) = cluster.output_of(&["scancel", &format!("--signal={name}"), &step]);
        assert!(status.success(), "{printed}");
        run.await_lines(RANKS, &[&format!("GOT {number} ")]);
    }
    // The exit status is that of the signal; earlier output has arrived by then.
    let _ = run.end();
    // A rank may get a second SIGTERM: from its launcher, which has been notified of the end by another node
    // first.
    for number in [10, 12] {
        let got = run.lines_with(&[&format!("GOT {number} ")]);
        assert_eq!(got.len(), RANKS, "{got:?}");
    }
    cluster.await_clean();
}
