//! `muster run` on a single node, whose fences libpmix does not report (run-1), and command lines that could
//! be misunderstood (run-2).

use muster_tests::compile::compile;
use muster_tests::job::{Job, job};
use muster_tests::launchers::{muster_run, venv};
use muster_tests::process::signal_all;
use muster_tests::{program, until};
use rustix::process::{Pid, Signal};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Longer than the time for which MPI_Init is assumed to go on after its first fence.
const AFTER_INIT: Duration = Duration::from_secs(6);

/// The MPI program does not use Muster, and Muster knows how its rank ended.
/// run-1.
#[test]
fn a_killed_rank_is_survived_on_one_node() {
    job(|folder| {
        let binary = compile(&venv("venv").join("mpicc"), "survive", &[], folder);
        let gate = folder.join("gate");
        let mut job = muster_run();
        job.args(["-n", "3", "--"]).arg(&binary).arg("1");
        let mut run = Job::start(job.env("SURVIVE_UNTIL", &gate));
        run.await_lines("READY", 3);
        run.listen_for(AFTER_INIT);
        let victim = run.lines.iter().find_map(|line| {
            let mut words = line.strip_prefix("READY 1 ")?.split(' ');
            Pid::from_raw(words.next()?.parse().ok()?)
        });
        signal_all(&[victim.expect("a pid")], Signal::KILL);
        let agents = run.agents();
        let why = || {
            let mut muster = Command::new(program("muster"));
            let answer = muster.args(["why", "1", "--agent"]).arg(&agents).output();
            String::from_utf8_lossy(&answer.expect("muster").stdout).into_owned()
        };
        let words = "rank 1 on n1 is failed: told by the launcher, signal 9";
        until(why, || why().contains(words).then_some(()));
        std::fs::write(&gate, "").expect("a file");
        let status = run.expect_end();
        let text = run.text();
        assert!(
            status.success() && run.count("DONE") == 2,
            "{status}: {text}"
        );
        let words = format!(
            "rank 1 (pid {}) was killed by signal 9 (SIGKILL)",
            victim.expect("a pid")
        );
        assert_eq!(text.matches(&words).count(), 1, "{text}");
    });
}

/// A rank that is lost before the end of MPI_Init is a failed launch, and one that does not reach it is
/// named, with MPI or without.
/// run-1.
#[test]
fn ranks_that_do_not_reach_mpi_init_are_named_on_one_node() {
    job(|folder| {
        let binary = compile(&venv("venv").join("mpicc"), "survive", &[], folder);
        let binary = binary.to_str().expect("a path in UTF-8");
        // The agent must start within it, too.
        let options = ["-n", "3", "--start-timeout", "20"];
        for (other, code, words) in [
            (
                "exec sleep 1000",
                1,
                "ranks 1-2 have not entered MPI_Init within",
            ),
            (
                "exit 3",
                3,
                "ended with status 3 before the end of MPI_Init",
            ),
        ] {
            let script = format!("case $PMIX_RANK in 1|2) {other};; esac; exec {binary} 0");
            let mut run = Job::of(&options, Path::new("sh"), &["-c", &script]);
            let status = run.expect_end();
            let text = run.text();
            assert_eq!(status.code(), Some(code), "{text}");
            assert!(text.contains(words), "{text}");
        }
    });
}

/// The first rank that ends with a status other than 0 is reported, so that the job does not end with a status that
/// nobody explains.
#[test]
fn the_first_status_other_than_0_is_reported() {
    let mut run = Job::of(&["-n", "3"], Path::new("sh"), &["-c", "exit $PMIX_RANK"]);
    let status = run.expect_end();
    let text = run.text();
    assert_eq!(status.code(), Some(2), "the worst of the survivors: {text}");
    assert_eq!(text.matches("ended with status").count(), 1, "{text}");
    let lines = ["rank 1 ended with status 1", "rank 2 ended with status 2"];
    assert!(
        lines.iter().any(|line| text.trim_end().ends_with(line)),
        "{text}"
    );
}

/// Where no process waits for another, a job may take longer than the time-out.
/// run-1.
#[test]
fn ranks_that_never_enter_mpi_init_may_run_longer_than_the_time_out() {
    let options = ["-n", "2", "--start-timeout", "20"];
    let mut run = Job::of(&options, Path::new("sleep"), &["23"]);
    assert!(run.expect_end().success(), "{}", run.text());
}

/// run-2.
#[test]
fn options_are_not_taken_for_the_program() {
    for (words, code, printed) in [
        (&["-np", "2", "sh", "-c", "echo RAN"][..], 0, "RAN"),
        (&["-n2", "sh", "-c", "echo RAN"], 0, "RAN"),
        (
            &["-n", "2", "sh", "-c", "echo RAN", ":", "-np", "1", "true"],
            0,
            "RAN",
        ),
        (&["--host", "a,b", "true"], 2, "--hosts"),
        (&["--labell", "true"], 2, "--label"),
        (&["--bind-to", "core", "true"], 2, "--bind core binds"),
        (
            &["-n", "2", "--mca", "btl", "tcp", "true"],
            2,
            "-x OMPI_MCA_",
        ),
        (&["-n", "-1", "true"], 2, "-n \"-1\": it is below 1"),
        (
            &["-n", "1", "true", ":", "-n1", "true"],
            2,
            "-n1 after a : is unknown",
        ),
    ] {
        let mut run = Job::start(muster_run().args(words));
        let status = run.expect_end();
        let text = run.text();
        assert_eq!(status.code(), Some(code), "{words:?}: {text}");
        assert!(text.contains(printed), "{words:?}: {text}");
        assert!(code != 0 || run.count("RAN") == 2, "{words:?}: {text}");
    }
}

/// An earlier version of such a launcher took itself for the parent, and started the next one.
#[test]
fn a_launcher_with_a_wrong_environment_starts_nothing() {
    for (name, value, printed) in [
        (
            "TMPDIR",
            &b"/tmp/\xff"[..],
            "not UTF-8; name another directory with TMPDIR",
        ),
        (
            "TMPDIR",
            b"/tmp/aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
            "bytes; name another directory with TMPDIR",
        ),
        (
            "TMPDIR",
            b"/tmp/nowhere/at/all",
            "No such file or directory (os error 2); name another directory with TMPDIR",
        ),
        (
            "MUSTER_RUN_EMULATED",
            b"0:1:/tmp/\xff",
            "does not name an emulated node",
        ),
        (
            "MUSTER_RUN_EMULATED",
            b"x",
            "does not name an emulated node",
        ),
        ("MUSTER_RUN_HOST", b"9:job:a,b", "does not name a host"),
        ("MUSTER_RUN_HOST", b"\xff", "does not name a host"),
    ] {
        let value = OsStr::from_bytes(value);
        let mut run = Job::start(muster_run().args(["--", "true"]).env(name, value));
        let status = run.expect_end();
        let text = run.text();
        assert!(
            !status.success() && text.contains(printed),
            "{status}: {text}"
        );
    }
}
