//! PMIx in both directions, with real MPIs and launchers: the events of Muster that a process receives from
//! its own PMIx, and the events of the launcher that Muster receives.

use muster_tests::cluster::Cluster;
use muster_tests::compile::{compile, compile_file};
use muster_tests::death::{Death, await_files, request_death, run_with_death, written};
use muster_tests::job::{Job, job, processes_of};
use muster_tests::launchers::{
    open_mpi_4, open_mpi_5, open_mpi_5_on_two_nodes, open_mpi_5_on_two_rails, second_rail, venv,
};
use muster_tests::process::signal_all;
use muster_tests::workspace;
use rustix::process::{Pid, Signal};
use std::path::{Path, PathBuf};
use std::process::Command;

const SUSPECT: i32 = -3701;
const DEGRADED: i32 = -3702;
const HUNG: i32 = -3703;
const NODE_FAILED: i32 = -3704;
const RANK_FAILED: i32 = -3705;
const BACK: i32 = -3706;

fn build(compiler: &Path, folder: &Path) -> PathBuf {
    let headers = Command::new("pkg-config")
        .args(["--cflags", "pmix"])
        .output()
        .expect("pkg-config");
    let flags = String::from_utf8_lossy(&headers.stdout).into_owned();
    let flags: Vec<&str> = flags.split_whitespace().collect();
    compile(compiler, "pmix_events", &flags, folder)
}

fn expect_no_complaint(outcome: &Job, ready: usize) {
    let text = outcome.text();
    assert_eq!(outcome.count("FAIL"), 0, "{text}");
    assert_eq!(outcome.count("READY"), ready, "{text}");
}

fn expect_done(outcome: &Job, done: usize) {
    assert_eq!(outcome.count("DONE"), done, "{}", outcome.text());
}

/// The events that this rank of the job in this folder has received, in order: (code, rank concerned).
fn received(folder: &Path, rank: usize) -> Vec<(i32, u32)> {
    let text = written(folder, "heard", rank).unwrap_or_default();
    let words = text.lines().filter_map(|line| {
        let (code, about) = line.split_once(' ')?;
        Some((code.parse().ok()?, about.parse().ok()?))
    });
    words.collect()
}

/// The events that each survivor receives about a rank that is stopped, continues and is killed.
const EVENTS: [(i32, u32); 3] = [(HUNG, 3), (BACK, 3), (RANK_FAILED, 3)];

/// What a launcher does when a rank of its job is killed.
#[derive(Clone, Copy)]
enum Ends {
    /// It ends the job, perhaps before all survivors have left.
    Job,
    /// It ends when the survivors have ended.
    WithTheLast,
    /// It lets them continue, and then does not always end by itself, with Muster or without.
    Perhaps,
}

/// The last of four ranks is stopped, continues and is killed. Each survivor receives exactly these events
/// from its own process. Default handlers, which would end the job, receive nothing.
fn expect_events(launcher: &mut Command, compiler: &Path, ends: Ends) {
    job(|folder| {
        let program = build(compiler, folder);
        let death = Death {
            when: ("ASKS", 1),
            written: ("heard", 3),
            held: matches!(ends, Ends::Job),
        };
        launcher.args(["-n", "4"]).arg(&program).arg("hung");
        let mut outcome = run_with_death(launcher, folder, &death);
        expect_no_complaint(&outcome, 4);
        match ends {
            Ends::Job => assert!(!outcome.expect_end().success()),
            Ends::WithTheLast => {
                expect_done(&outcome, 3);
                outcome.expect_end();
            }
            Ends::Perhaps => expect_done(&outcome, 3),
        }
        for rank in 0..3 {
            assert_eq!(received(folder, rank), EVENTS, "{}", outcome.text());
        }
    });
}

#[test]
fn events_under_open_mpi_4() {
    expect_events(&mut open_mpi_4(), Path::new("mpicc.openmpi"), Ends::Job);
}

#[test]
fn events_under_open_mpi_4_with_recovery() {
    let mut launcher = open_mpi_4();
    launcher.arg("--enable-recovery");
    expect_events(&mut launcher, Path::new("mpicc.openmpi"), Ends::Perhaps);
}

#[test]
fn events_under_open_mpi_5() {
    expect_events(&mut open_mpi_5(), &venv("venv").join("mpicc"), Ends::Job);
}

#[test]
fn events_under_open_mpi_5_with_fault_tolerance() {
    let mut launcher = open_mpi_5();
    launcher.args(["--with-ft", "ulfm"]);
    expect_events(
        &mut launcher,
        &venv("venv").join("mpicc"),
        Ends::WithTheLast,
    );
}

/// Slurm receives the events that its ranks send and does not end the step: each survivor receives the events
/// of a rank that is stopped, continues and is killed. The kill makes Slurm's own PMIx plugin end the step by
/// a request to the controller, which is held until all have received the event.
#[test]
fn events_under_srun_with_pmix() {
    job(|_| {
        let Some(cluster) = Cluster::start("") else {
            return;
        };
        let program = build(Path::new("mpicc.openmpi"), cluster.folder());
        let mut command = cluster.mpi("-N1 --ntasks=4");
        let mut run = cluster.run(command.arg(&program).arg("hung"));
        run.await_line(&["ASKS"]);
        let controller = cluster.hold_controller();
        request_death(cluster.folder());
        run.await_lines(3, &["DONE"]);
        assert_eq!(run.lines_with(&["FAIL"]), [""; 0]);
        for rank in 0..3 {
            assert_eq!(received(cluster.folder(), rank), EVENTS);
        }
        drop(controller);
        assert!(!run.end().success());
        cluster.await_clean();
    });
}

/// A rank that never attached is killed: only the launcher can report that.
fn launcher_report(launcher: &mut Command, compiler: &Path, limit_ms: u32) -> Job {
    let mut printed = None;
    job(|folder| {
        let program = build(compiler, folder);
        let launcher = launcher
            .args(["-n", "4"])
            .arg(&program)
            .arg("launcher_report");
        let outcome = Job::run(launcher.arg(limit_ms.to_string()), folder);
        let text = outcome.text();
        assert_eq!(
            (outcome.count("FAIL"), outcome.count("READY")),
            (0, 4),
            "{text}"
        );
        printed = Some(outcome);
    });
    printed.expect("the job was run")
}

/// PRRTE with fault tolerance notifies every survivor, and Muster reports the source.
#[test]
fn open_mpi_5_with_fault_tolerance_reports_a_death() {
    let mut launcher = open_mpi_5();
    launcher.args(["--with-ft", "ulfm"]);
    let mut outcome = launcher_report(&mut launcher, &venv("venv").join("mpicc"), 60_000);
    let events_of_rank = outcome.lines.iter().filter(|line| line.starts_with("TOLD"));
    let words: Vec<&String> = events_of_rank.collect();
    assert_eq!(words.len(), 3, "{}", outcome.text());
    for line in words {
        assert!(
            line.contains("rank 3 on ") && line.contains("FAILED: told"),
            "{line}"
        );
    }
    expect_done(&outcome, 3);
    outcome.expect_end();
}

/// PRRTE with default options ends the job and reports no reason.
#[test]
fn open_mpi_5_by_default_reports_no_death() {
    let mut outcome = launcher_report(&mut open_mpi_5(), &venv("venv").join("mpicc"), 60_000);
    assert_eq!(
        (outcome.count("TOLD"), outcome.count("DONE")),
        (0, 0),
        "{}",
        outcome.text()
    );
    assert!(!outcome.expect_end().success());
}

/// So does Debian's Open MPI 4.1 with default options.
#[test]
fn open_mpi_4_by_default_reports_no_death() {
    let mut outcome = launcher_report(&mut open_mpi_4(), Path::new("mpicc.openmpi"), 60_000);
    assert_eq!(
        (outcome.count("TOLD"), outcome.count("DONE")),
        (0, 0),
        "{}",
        outcome.text()
    );
    assert!(!outcome.expect_end().success());
}

/// With recovery it lets the survivors continue and reports nothing.
#[test]
fn open_mpi_4_with_recovery_reports_no_death() {
    let mut launcher = open_mpi_4();
    launcher.arg("--enable-recovery");
    let outcome = launcher_report(&mut launcher, Path::new("mpicc.openmpi"), 2_000);
    let ends = ["TOLD", "UNTOLD", "DONE"].map(|word| outcome.count(word));
    assert_eq!(ends, [0, 3, 3], "{}", outcome.text());
}

/// Slurm's PMIx reports nothing either: its plugin ends the step by a request to the controller, which is
/// held until the survivors have waited.
#[test]
fn srun_with_pmix_reports_no_death() {
    for where_to in ["-N1 --ntasks=4", "-N2 --ntasks-per-node=2"] {
        job(|_| {
            let Some(cluster) = Cluster::start("") else {
                return;
            };
            let program = build(Path::new("mpicc.openmpi"), cluster.folder());
            let mut command = cluster.mpi(where_to);
            command
                .arg(&program)
                .args(["launcher_report", "2000", "asks"]);
            let mut run = cluster.run(&mut command);
            run.await_line(&["ASKS"]);
            let controller = cluster.hold_controller();
            request_death(cluster.folder());
            run.await_lines(3, &["UNTOLD"]);
            for word in ["FAIL", " TOLD"] {
                assert_eq!(run.lines_with(&[word]), [""; 0]);
            }
            drop(controller);
            run.end();
            cluster.await_clean();
        });
    }
}

/// A process that finalizes PMIx before Muster still gets Muster's notifications; events that PMIx refused
/// are counted.
#[test]
fn a_finalized_pmix_is_counted() {
    for with_ulfm in ["0", "1"] {
        job(|folder| {
            let program = build(&venv("venv").join("mpicc"), folder);
            let mut launcher = open_mpi_5();
            launcher
                .args(["--with-ft", "ulfm", "-n", "4"])
                .arg(&program)
                .arg("gone")
                .env("MUSTER_ULFM", with_ulfm);
            let mut outcome = Job::run(&mut launcher, folder);
            expect_no_complaint(&outcome, 4);
            expect_done(&outcome, 3);
            outcome.expect_end();
        });
    }
}

/// One of two rails of a node becomes silent and works again. Its peer is reached over as few, so the ranks
/// of both nodes are reported as degraded, and then as recovered.
#[test]
fn a_silent_rail_and_its_return_are_reported() {
    if !rustix::process::getuid().is_root() {
        muster_tests::skipped("root", "only root can remove a rail of a host");
        return;
    }
    if !muster_tests::can("namespaces", &["unshare", "--net"]) {
        return;
    }
    job(|folder| {
        let program = build(&venv("venv").join("mpicc"), folder);
        let mut launcher = open_mpi_5_on_two_rails(folder);
        launcher
            .args(["--with-ft", "ulfm", "-n", "4"])
            .arg(&program)
            .arg("rails");
        let mut outcome = Job::launch(&mut launcher, folder);
        outcome.read_until(|job| job.count("READY") == 4);
        let there = processes_of("n2", folder).first().copied();
        let there = there.expect("a process of n2");
        second_rail(there, "del");
        let mut told = 0;
        let has_news = |job: &Job, told| job.count("FAIL") > 0 || job.count("DEGRADED") > told;
        while outcome.read_until(|job| has_news(job, told)) && outcome.count("FAIL") == 0 {
            told = outcome.count("DEGRADED");
            second_rail(there, "add");
        }
        expect_no_complaint(&outcome, 4);
        expect_done(&outcome, 4);
        let events_of_rank = received(folder, 0);
        for rank in 0..4 {
            let about = events_of_rank.iter().filter(|(_, about)| *about == rank);
            let codes: Vec<i32> = about.map(|(code, _)| *code).collect();
            let is_near = rank < 2 && codes.is_empty();
            // The machine may be so busy that the rail appears to fail once more.
            let mut turns = codes.chunks(2);
            let is_told = !codes.is_empty() && turns.all(|turn| turn == [DEGRADED, BACK]);
            assert!(is_near || is_told, "{}", outcome.text());
        }
        assert!(outcome.expect_end().success());
    });
}

/// A node is suspected, and answers. With two nodes and the policy `hold` neither can declare the other one
/// failed, so the suspicion lasts until the stopped agent continues.
#[test]
fn a_suspicion_and_its_end_are_reported() {
    job(|folder| {
        let program = build(&venv("venv").join("mpicc"), folder);
        let mut launcher = open_mpi_5_on_two_nodes(folder);
        launcher
            .args(["--with-ft", "ulfm", "-n", "4"])
            .arg(&program)
            .arg("suspected")
            .envs([("MUSTER_MINORITY", "hold"), ("MUSTER_PROFILE", "quiet")]);
        let mut outcome = Job::launch(&mut launcher, folder);
        outcome.read_until(|job| job.count("READY") == 4);
        let mut agent = processes_of("n2", folder);
        agent.retain(is_agent);
        signal_all(&agent, Signal::STOP);
        outcome.read_until(|job| job.count("FAIL") + job.count("SUSPECTED") > 0);
        signal_all(&agent, Signal::CONT);
        outcome.read_to_end();
        assert_eq!(agent.len(), 2, "supervisor and worker");
        expect_no_complaint(&outcome, 4);
        expect_done(&outcome, 4);
        let events_of_rank = received(folder, 0);
        for rank in [2, 3] {
            let about = events_of_rank.iter().filter(|(_, about)| *about == rank);
            let codes: Vec<i32> = about.map(|(code, _)| *code).collect();
            // On a busy machine the node may be suspected more than once.
            let turns = codes.chunks(2).all(|turn| turn == [SUSPECT, BACK]);
            assert!(!codes.is_empty() && turns, "{codes:?} {}", outcome.text());
        }
        assert!(outcome.expect_end().success());
    });
}

fn is_agent(pid: &Pid) -> bool {
    let line = std::fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero()));
    line.is_ok_and(|line| line.starts_with(b"musterd\0"))
}

/// A whole node becomes silent, which Open MPI by itself never detects: all of its ranks are failed for MPI,
/// also the one that never attached, and also in a process that attached only after the failure.
#[test]
fn a_silent_node_is_reported_to_mpi_rank_by_rank() {
    report_a_silent_node(true);
}

/// The same if each process connects without the feed first, as with libmuster-pmpi.so, and requests it in a
/// second call.
#[test]
fn a_late_request_for_the_feed_works() {
    report_a_silent_node(false);
}

fn report_a_silent_node(by_environment: bool) {
    job(|folder| {
        let program = build(&venv("venv").join("mpicc"), folder);
        let mut launcher = open_mpi_5_on_two_nodes(folder);
        launcher
            .args(["--with-ft", "ulfm", "-n", "4"])
            .arg(&program)
            .arg("node");
        match by_environment {
            true => launcher.env("MUSTER_ULFM", "1"),
            false => launcher.arg("asks"),
        };
        let mut outcome = Job::launch(&mut launcher, folder);
        outcome.read_until(|job| job.count("READY") == 4);
        let stopped = processes_of("n2", folder);
        signal_all(&stopped, Signal::STOP);
        outcome.read_until(|job| job.count("FAIL") > 0 || job.count("DONE") == 2);
        outcome.stop();
        assert!(
            stopped.len() >= 4,
            "two ranks and an agent of two processes: {stopped:?}"
        );
        expect_no_complaint(&outcome, 4);
        expect_done(&outcome, 2);
        // The failure of each rank of the node, and at most the suspicion before that: with one node to
        // confirm it there is hardly time for that report.
        let events_of_rank = received(folder, 0);
        for rank in [2, 3] {
            let about = events_of_rank.iter().filter(|(_, about)| *about == rank);
            let codes: Vec<i32> = about.map(|(code, _)| *code).collect();
            let text = outcome.text();
            assert!(
                matches!(codes[..], [NODE_FAILED] | [SUSPECT, NODE_FAILED]),
                "{text}"
            );
        }
        assert!(
            events_of_rank
                .iter()
                .all(|(_, about)| [2, 3].contains(about)),
            "{}",
            outcome.text()
        );
    });
}

/// The log of a rank of `examples/ulfm_survive.c` in this folder; empty if there is none yet.
fn logged(folder: &Path, rank: usize) -> String {
    std::fs::read_to_string(folder.join(format!("rank-{rank}.log"))).unwrap_or_default()
}

/// Whether MPI continued with the two ranks of a node and the rank computes again.
fn has_survived(log: &str) -> bool {
    let ends_with_two = |line: &str| line.starts_with("SHRUNK ") && line.ends_with(" 2");
    let mut lines = log.lines().skip_while(|line| !ends_with_two(line));
    lines.any(|line| line.starts_with("RESUMED "))
}

/// A whole node becomes silent during a computation. The ranks of the other one shrink MPI to themselves,
/// continue, and end with the result of a serial run. All facts come from the logs: the test does not wait
/// until the launcher ends a lost node.
#[test]
fn a_computation_survives_a_silent_node() {
    job(|folder| {
        let source = workspace().join("examples/ulfm_survive.c");
        let program = compile_file(
            &venv("venv").join("mpicc"),
            &source,
            &["-D_GNU_SOURCE"],
            folder,
        );
        let mut launcher = open_mpi_5_on_two_nodes(folder);
        launcher
            .args(["--with-ft", "ulfm", "-n", "4"])
            .arg(&program)
            .arg("--feed")
            .env("SURVIVE_LOG_DIR", folder)
            // A rank that hangs for longer than the test waits is a failure of the test.
            .envs([("SURVIVE_READY_S", "600"), ("SURVIVE_DEADLINE_S", "600")])
            .env("MUSTER_PROFILE", "quiet");
        let logs_show = |ranks: usize, is_shown: &dyn Fn(&str) -> bool| {
            (0..ranks).all(|rank| is_shown(&logged(folder, rank)))
        };
        let mut outcome = Job::launch(&mut launcher, folder);
        outcome.read_until(|_| logs_show(4, &|log| log.contains("READY ")));
        let stopped = processes_of("n2", folder);
        signal_all(&stopped, Signal::STOP);
        if await_files(|| logs_show(2, &has_survived)) {
            std::fs::write(folder.join("stop"), "").expect("a file");
            await_files(|| logs_show(2, &|log| log.contains("DONE ")));
        }
        outcome.stop();
        assert!(stopped.len() >= 4, "{}", outcome.text());
        for rank in 0..2 {
            let log = logged(folder, rank);
            let all = outcome.text();
            assert!(has_survived(&log), "rank {rank}: {log}\n{all}");
            assert!(!log.contains("NOSHRINK"), "rank {rank}: {log}\n{all}");
            let done = log.lines().find(|line| line.starts_with("DONE "));
            assert!(
                done.is_some_and(|line| line.contains(" ok ")),
                "rank {rank}: {log}\n{all}"
            );
        }
    });
}
