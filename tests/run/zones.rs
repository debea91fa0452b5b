//! `muster run` in a job with zones: an unmodified ULFM program survives the loss of a node that takes part in the zone
//! above its own.

use muster_tests::launch::{compile, job, processes_of, signal_all, venv};
use muster_tests::running::{Running, command};
use rustix::process::Signal;

/// ZM-12: eight nodes in four zones of two, one rank on each. In a zone of two both nodes are supervisors.
#[test]
fn a_job_in_four_zones_survives_the_loss_of_a_supervisors_node() {
    job(|folder| {
        let binary = compile(&venv("venv").join("mpicc"), "survive", &[], folder);
        let mut run = Running::command(
            command()
                .env("MUSTER_ZONES", "2")
                .args(["-v", "--nodes", "8", "-n", "8", "--"])
                .arg(binary)
                .arg("1"),
        );
        let ready = run.await_ready();
        assert_eq!(ready[2].node, "n3");
        let everything = processes_of("n3", &run.directory().join("m"));
        signal_all(&everything, Signal::STOP);
        signal_all(&everything, Signal::KILL);
        run.expect_survivors(1);
    });
}
