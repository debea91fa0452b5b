//! Users' launchers: whichever one starts the job, every survivor is notified of a killed rank, and the
//! launcher behaves and ends as it does without Muster.

use muster_tests::cluster::{Cluster, Run, signal};
use muster_tests::compile::{compile, libmuster};
use muster_tests::death::{Death, await_written, request_death, run_with_death, written};
use muster_tests::job::{Job, job};
use muster_tests::launchers::{open_mpi_4, open_mpi_5, open_mpi_5_on_two_nodes, venv};
use muster_tests::workspace;
use rustix::process::Signal;
use std::net::UdpSocket;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// A job of four ranks whose last one dies; every survivor is notified. `held`: until they are, their
/// launcher is stopped, since it would end them.
fn job_with_death(launcher: &mut Command, folder: &Path, held: bool) -> Job {
    let death = Death {
        when: ("READY", 4),
        written: ("told", 3),
        held,
    };
    let outcome = run_with_death(launcher, folder, &death);
    let lines = outcome.text();
    assert_eq!(outcome.count("FAIL"), 0, "{lines}");
    assert_eq!(outcome.count("READY"), 4, "{lines}");
    expect_told(folder, "rank 3 on ");
    outcome
}

/// Asserts that three survivors were notified of this rank, with the kernel as evidence.
fn expect_told(folder: &Path, victim: &str) {
    for rank in 0..3 {
        let event = written(folder, "told", rank).unwrap_or_default();
        assert!(
            event.contains(victim) && is_from_kernel(&event),
            "{rank}: {event}"
        );
    }
}

/// The kernel reports the signal until the launcher has waited for the process, which may be before the
/// signal could be read.
fn is_from_kernel(event: &str) -> bool {
    ["killed by signal 9", "its process died"]
        .iter()
        .any(|how| event.contains(&format!("FAILED: {how} (kernel futex)")))
}

fn compile_told(compiler: &Path, folder: &Path) -> PathBuf {
    compile(compiler, "told", &[], folder)
}

/// Addresses of each test's own: the agents of another one may still run.
fn net() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let number = std::process::id() * 4 + COUNT.fetch_add(1, Ordering::Relaxed);
    format!("{}.{}", 91 + number / 250 % 100, 1 + number % 250)
}

/// MPICH's launcher uses PMI-1; an allgather connects the agents of two nodes. On the first node another
/// process has the default port of rails: its agent takes another one, and the other node's agent learns it.
#[test]
fn mpich_without_pmix() {
    job(|folder| {
        let program = compile_told(&venv("mpich").join("mpicc"), folder);
        let mut launcher = Command::new(venv("mpich").join("mpiexec"));
        launcher
            .args(["-disable-auto-cleanup", "-n", "4"])
            .arg(&program)
            .arg("records");
        let net = net();
        let _taken = UdpSocket::bind(format!("127.{net}.1:7741")).expect("a free port");
        launcher.env("TOLD_NET", net);
        // As soon as one rank has ended, the launcher ends the others.
        let mut outcome = job_with_death(&mut launcher, folder, true);
        expect_told(folder, "rank 3 on n1 ");
        outcome.expect_end();
    });
}

/// `muster_mpi_init` also does this where PMIx exists, which then names the job, and sees one node where
/// there are two.
#[test]
fn open_mpi_5_by_an_allgather() {
    job(|folder| {
        let program = compile_told(&venv("venv").join("mpicc"), folder);
        let mut launcher = open_mpi_5();
        launcher
            .args(["--with-ft", "ulfm", "-n", "4"])
            .arg(&program)
            .arg("records")
            .env("TOLD_NET", net());
        let mut outcome = job_with_death(&mut launcher, folder, false);
        expect_told(folder, "rank 3 on n1 ");
        outcome.expect_end();
    });
}

/// Compiles a program of `tests/programs` in Fortran, with both modules, for Debian's Open MPI: those of PyPI
/// have no Fortran.
fn in_fortran(name: &str, folder: &Path) -> PathBuf {
    let modules = ["muster", "muster_mpi"].map(|name| format!("bindings-c/fortran/{name}.f90"));
    let program = format!("tests/programs/{name}.f90");
    let library = libmuster().join("lib");
    let binary = folder.join(name);
    let output = Command::new("mpifort.openmpi")
        .args(["-std=f2018", "-Wall", "-Wextra", "-Werror"])
        .args(modules.iter().map(|path| workspace().join(path)))
        .arg(workspace().join(program))
        .arg("-o")
        .arg(&binary)
        .arg(format!("-L{}", library.display()))
        .arg(format!("-Wl,-rpath,{}", library.display()))
        .arg("-lmuster")
        .current_dir(folder)
        .output()
        .expect("mpifort");
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words}");
    binary
}

/// `muster_mpi.f90` does what `muster_mpi.h` does: agents of two nodes meet, and groups of dead ranks are
/// created.
#[test]
fn fortran_by_an_allgather() {
    job(|folder| {
        let program = in_fortran("bootstrap", folder);
        let mut launcher = open_mpi_4();
        launcher
            .args(["--enable-recovery", "-n", "4"])
            .arg(&program)
            .env("TOLD_NET", net());
        // With recovery mpirun does not always end by itself.
        let mut outcome = Job::launch(&mut launcher, folder);
        outcome.read_until(|job| job.count("FAIL") > 0 || job.count("DONE") == 3);
        outcome.stop();
        let counts = ["FAIL", "DONE"].map(|word| outcome.count(word));
        assert_eq!(counts, [0, 3], "{}", outcome.text());
    });
}

/// Debian's Open MPI 4.1 kills the job when a rank dies. It ends as it does without Muster, and before that
/// all ranks are notified.
#[test]
fn open_mpi_4_by_default() {
    job(|folder| {
        let program = compile_told(Path::new("mpicc.openmpi"), folder);
        let mut launcher = open_mpi_4();
        let mut outcome = job_with_death(launcher.args(["-n", "4"]).arg(&program), folder, true);
        assert!(!outcome.expect_end().success());
    });
}

/// With recovery it lets the survivors continue; then its mpirun does not always end by itself, with Muster
/// or without.
#[test]
fn open_mpi_4_with_recovery() {
    job(|folder| {
        let program = compile_told(Path::new("mpicc.openmpi"), folder);
        let mut launcher = open_mpi_4();
        launcher
            .args(["--enable-recovery", "-n", "4"])
            .arg(&program);
        job_with_death(&mut launcher, folder, false);
    });
}

/// PRRTE, the launcher of Open MPI 5, by default: it ends the job.
#[test]
fn open_mpi_5_by_default() {
    job(|folder| {
        let program = compile_told(&venv("venv").join("mpicc"), folder);
        let mut launcher = open_mpi_5();
        let mut outcome = job_with_death(launcher.args(["-n", "4"]).arg(&program), folder, true);
        assert!(!outcome.expect_end().success());
    });
}

/// PRRTE with fault tolerance: the survivors end by themselves.
#[test]
fn open_mpi_5_with_fault_tolerance() {
    job(|folder| {
        let program = compile_told(&venv("venv").join("mpicc"), folder);
        let mut launcher = open_mpi_5();
        launcher
            .args(["--with-ft", "ulfm", "-n", "4"])
            .arg(&program);
        let mut outcome = job_with_death(&mut launcher, folder, false);
        outcome.expect_end();
    });
}

/// Muster may attach before MPI, which connects the agents of two nodes then.
#[test]
fn muster_before_open_mpi_5() {
    job(|folder| {
        let program = compile_told(&venv("venv").join("mpicc"), folder);
        let mut launcher = open_mpi_5_on_two_nodes(folder);
        launcher
            .args(["--with-ft", "ulfm", "-n", "4"])
            .arg(&program)
            .arg("early")
            .envs([("MUSTER_ULFM", "1"), ("MUSTER_PROFILE", "quiet")]);
        let mut outcome = job_with_death(&mut launcher, folder, false);
        expect_told(folder, "rank 3 on n2 ");
        outcome.expect_end();
    });
}

/// On one node it may also attach after MPI is finalized.
#[test]
fn muster_after_open_mpi_5() {
    job(|folder| {
        let program = compile_told(&venv("venv").join("mpicc"), folder);
        let mut launcher = open_mpi_5();
        launcher
            .args(["--with-ft", "ulfm", "-n", "4"])
            .arg(&program)
            .arg("late")
            .env("MUSTER_ULFM", "1");
        let mut outcome = job_with_death(&mut launcher, folder, false);
        outcome.expect_end();
    });
}

/// Before and after an MPI without fault tolerance.
#[test]
fn muster_before_and_after_open_mpi_4() {
    for how in ["early", "late"] {
        job(|folder| {
            let program = compile_told(Path::new("mpicc.openmpi"), folder);
            let mut launcher = open_mpi_4();
            launcher
                .args(["--enable-recovery", "-n", "4"])
                .arg(&program)
                .arg(how);
            job_with_death(&mut launcher, folder, false);
        });
    }
}

/// The processes of `MPI_Comm_spawn` are a job of their own on the same nodes: its ranks are notified of each
/// other, and its failures do not affect its parents. Both jobs get the same rail, without a port.
#[test]
fn spawned_children_are_a_job_of_their_own() {
    job(|folder| {
        let program = compile_told(&venv("venv").join("mpicc"), folder);
        let mut launcher = open_mpi_5();
        launcher.args(["--with-ft", "ulfm", "-n", "2"]);
        launcher.env("MUSTER_RAILS", format!("127.{}.1@udp0", net()));
        let death = Death {
            when: ("READY", 4),
            written: ("told", 1),
            held: false,
        };
        let mut outcome = run_with_death(launcher.arg(&program).arg("spawn"), folder, &death);
        let ends = ["FAIL", "READY", "SPAWNED"].map(|word| outcome.count(word));
        assert_eq!(ends, [0, 4, 2], "{}", outcome.text());
        let event = written(folder, "told", 0).unwrap_or_default();
        assert!(
            event.contains("rank 1 on ") && is_from_kernel(&event),
            "{event}"
        );
        outcome.expect_end();
    });
}

/// Without a launcher, a process is a job of its own.
#[test]
fn a_singleton() {
    job(|folder| {
        let program = compile_told(&venv("venv").join("mpicc"), folder);
        let mut command = Command::new(&program);
        command
            .env("MUSTER_JOB", "singleton")
            .env("MUSTER_RANK", "0")
            .env("MUSTER_RAILS", "127.0.0.1:0@udp0");
        let mut outcome = Job::run(&mut command, folder);
        assert_eq!((outcome.count("READY"), outcome.count("FAIL")), (1, 0));
        let status = outcome.expect_end();
        assert!(status.success(), "{status}, signal {:?}", status.signal());
    });
}

/// Runs a test with a Slurm of its own, in which nothing may be left.
fn in_slurm(test: impl FnOnce(&Cluster)) {
    job(|_| {
        if let Some(cluster) = Cluster::start("") {
            test(&cluster);
            cluster.await_clean();
        }
    });
}

/// Debian's Open MPI 4.1 on two nodes of a Slurm, started by `srun --mpi=pmix`.
fn srun(cluster: &Cluster, how: &str) -> Run {
    let program = compile_told(Path::new("mpicc.openmpi"), cluster.folder());
    let mut command = cluster.mpi("-N2 --ntasks-per-node=2");
    cluster.run(command.arg(program).arg(how))
}

/// Slurm's PMIx plugin ends a step whose rank was killed before it had finalized MPI: with Muster, after
/// every survivor was notified; without Muster it does the same. Its request is sent to the controller, which
/// is held until then.
#[test]
fn srun_with_pmix_ends_the_step() {
    for (how, event) in [("stay", true), ("bare", false)] {
        in_slurm(|cluster| {
            let mut run = srun(cluster, how);
            run.await_lines(4, &["READY"]);
            let controller = cluster.hold_controller();
            request_death(cluster.folder());
            if event {
                assert!(await_written(cluster.folder(), ("told", 3)));
                expect_told(cluster.folder(), "rank 3 on n2 ");
            }
            drop(controller);
            assert!(!run.end().success());
            assert!(cluster.has_logged("Error handler invoked: status = -61"));
        });
    }
}

/// With one rank per node the survivors are notified as well. What Slurm does then is not tested: the
/// slurmstepd that would end the step ends with its last rank, and the others were seen to continue.
#[test]
fn srun_with_pmix_and_one_rank_a_node() {
    in_slurm(|cluster| {
        let program = compile_told(Path::new("mpicc.openmpi"), cluster.folder());
        let mut command = cluster.mpi("-N4 --ntasks-per-node=1");
        let mut run = cluster.run(command.arg(program).arg("stay"));
        run.await_lines(4, &["READY"]);
        let controller = cluster.hold_controller();
        request_death(cluster.folder());
        assert!(await_written(cluster.folder(), ("told", 3)));
        expect_told(cluster.folder(), "rank 3 on n4 ");
        drop(controller);
        for node in 1..=3 {
            for process in cluster.on_node(node, "told") {
                signal(&process, Signal::KILL);
            }
        }
        run.end();
    });
}

/// Ranks that have finalized MPI are not affected: the survivors are notified and end by themselves.
#[test]
fn srun_with_pmix_after_mpi_finalize() {
    in_slurm(|cluster| {
        let mut run = srun(cluster, "finalized");
        run.await_lines(4, &["READY"]);
        request_death(cluster.folder());
        assert!(await_written(cluster.folder(), ("told", 3)));
        expect_told(cluster.folder(), "rank 3 on n2 ");
        let status = run.end();
        assert_eq!(status.code(), Some(128 + 9), "{:?}", run.errors());
    });
}

/// Without a death Slurm is not affected by Muster.
#[test]
fn srun_with_pmix_without_a_death() {
    in_slurm(|cluster| {
        let mut run = srun(cluster, "joined");
        run.await_lines(4, &["READY"]);
        assert!(run.end().success(), "{:?}", run.errors());
    });
}

/// A launcher whose own daemons did not start is started again, and its job runs once.
#[test]
fn a_launcher_that_did_not_start_is_started_again() {
    job(|folder| {
        let script = "if mkdir tried; then echo A daemon failed to report back after being spawned; exit 213; fi; \
                      echo READY";
        let mut outcome = Job::run(Command::new("sh").args(["-c", script]), folder);
        assert_eq!(outcome.lines, ["READY"]);
        assert!(outcome.expect_end().success());
    });
}
