//! `muster run` in a job with zones: an unmodified ULFM program survives the loss of a node that takes part in the zone
//! above its own.

use muster_tests::compile::compile;
use muster_tests::job::{Job, job};
use muster_tests::launchers::{muster_run, venv};
use muster_tests::process::kill_at_once;

/// ZM-12: eight nodes in four zones of two, one rank on each. In a zone of two both nodes are supervisors.
#[test]
fn a_job_in_four_zones_survives_the_loss_of_a_supervisors_node() {
    job(|folder| {
        let binary = compile(&venv("venv").join("mpicc"), "survive", &[], folder);
        let mut run = Job::start(
            muster_run()
                .env("MUSTER_ZONES", "2")
                .args(["-v", "--nodes", "8", "-n", "8", "--"])
                .arg(binary)
                .arg("1"),
        );
        let ready = run.await_ready();
        assert_eq!(ready[2].node, "n3");
        kill_at_once(&run.processes_of("n3"));
        run.expect_survivors(1);
    });
}
