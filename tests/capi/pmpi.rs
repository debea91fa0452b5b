//! libmuster-pmpi.so: how it reports the messages of an MPI program, and how agents meet where no PMIx
//! describes the job.

use muster_tests::compile::{compile, interposer};
use muster_tests::job::{Job, job};
use muster_tests::launchers::{open_mpi_4, open_mpi_5, venv};
use std::path::Path;
use std::process::Command;

/// Each message is reported once for the rank that sent it, however it is received: also after failed tests,
/// after errors, and with several receiving threads. No function is required that the MPI does not have: all
/// names are resolved at the start.
fn expect_credits(launcher: &mut Command, compiler: &Path) {
    job(|folder| {
        let program = compile(compiler, "credits", &["-rdynamic"], folder);
        let library = interposer(compiler, folder);
        let preload = format!("LD_PRELOAD={}", library.display());
        launcher.args([
            "-n",
            "3",
            "env",
            &preload,
            "LD_BIND_NOW=1",
            "MUSTER_JOB=credits",
        ]);
        let mut outcome = Job::run(launcher.arg(&program), folder);
        let text = outcome.text();
        assert_eq!(
            [outcome.count("FAIL"), outcome.count("DONE")],
            [0, 3],
            "{text}"
        );
        assert!(outcome.expect_end().success());
    });
}

#[test]
fn each_message_is_reported_once_under_open_mpi() {
    expect_credits(&mut open_mpi_5(), &venv("venv").join("mpicc"));
}

/// An older MPI, without MPI_Isendrecv.
#[test]
fn each_message_is_reported_once_under_open_mpi_4() {
    expect_credits(&mut open_mpi_4(), Path::new("mpicc.openmpi"));
}

#[test]
fn each_message_is_reported_once_under_mpich() {
    let mut launcher = Command::new(venv("mpich").join("mpiexec"));
    expect_credits(&mut launcher, &venv("mpich").join("mpicc"));
}

/// Two nodes with two ranks each, with addresses per node.
const NODE: &str = "export MUSTER_NODE=n$((PMI_RANK / 2)); \
    export MUSTER_RAILS=127.$TOLD_NET.$((PMI_RANK / 2 + 1))@udp0; LD_PRELOAD=$TOLD_PRELOAD exec \"$0\" joined";

/// MPICH has no PMIx. The program attaches after `MPI_Init`, when the library has attached already: in a job
/// of its own name, and with the agents connected.
#[test]
fn the_agents_meet_without_pmix() {
    job(|folder| {
        let compiler = venv("mpich").join("mpicc");
        let program = compile(&compiler, "told", &[], folder);
        let pid = std::process::id();
        let mut launcher = Command::new(venv("mpich").join("mpiexec"));
        launcher
            .args(["-n", "4", "sh", "-c", NODE])
            .arg(&program)
            .env("TOLD_PRELOAD", interposer(&compiler, folder))
            .env(
                "TOLD_NET",
                format!("{}.{}", 92 + pid / 250 % 100, 1 + pid % 250),
            );
        let mut outcome = Job::run(&mut launcher, folder);
        let text = outcome.text();
        assert_eq!(
            [outcome.count("FAIL"), outcome.count("READY")],
            [0, 4],
            "{text}"
        );
        assert!(outcome.expect_end().success(), "{text}");
    });
}
