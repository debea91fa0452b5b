//! The launchers that users have, for real: whoever starts the job, every survivor is told of a killed
//! rank, and the launcher does what it does without us and ends.
//!
//! The programs that are tested are the release ones of `make build`, compiled with each MPI's own
//! compiler.

use muster_tests::{DEADLINE, workspace};
use std::io::{BufRead, BufReader};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::sync::mpsc::channel;
use std::time::Instant;

/// Jobs one at a time: each keeps both cores of a small machine busy.
static TURN: Mutex<()> = Mutex::new(());

/// What a job said, and how its launcher ended; none if it had to be ended.
struct Outcome {
    lines: Vec<String>,
    status: Option<ExitStatus>,
}

impl Outcome {
    fn count(&self, beginning: &str) -> usize {
        self.lines
            .iter()
            .filter(|line| line.starts_with(beginning))
            .count()
    }

    /// All were there, every survivor was told by the kernel's word, and nobody complained.
    fn expect_told(&self, ranks: usize) {
        let lines = self.lines.join("\n");
        assert_eq!(self.count("FAIL"), 0, "{lines}");
        assert_eq!(self.count("READY"), ranks, "{lines}");
        assert_eq!(self.count("TOLD"), ranks - 1, "{lines}");
        let victim = format!("rank {} on ", ranks - 1);
        for told in self.lines.iter().filter(|line| line.starts_with("TOLD")) {
            assert!(
                told.contains(&victim) && told.contains("killed by signal 9"),
                "{told}"
            );
        }
    }

    /// The launcher ended by itself: nothing of ours held it.
    fn expect_end(&self) -> ExitStatus {
        self.status
            .unwrap_or_else(|| panic!("the launcher hangs:\n{}", self.lines.join("\n")))
    }
}

/// `told` compiled with this compiler.
fn compile(compiler: &Path, folder: &Path) -> PathBuf {
    let tree = workspace().join("target/release/c");
    assert!(
        tree.join("lib/libmuster.so").is_file(),
        "run `make build` first"
    );
    let binary = folder.join("told");
    let output = Command::new(compiler)
        .args(["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-I"])
        .arg(tree.join("include"))
        .arg(workspace().join("tests/programs/told.c"))
        .arg("-o")
        .arg(&binary)
        .arg(format!("-L{}", tree.join("lib").display()))
        .arg(format!("-Wl,-rpath,{}", tree.join("lib").display()))
        .args(["-lmuster", "-lpthread"])
        .output()
        .unwrap_or_else(|error| panic!("{}: {error}", compiler.display()));
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {words}", compiler.display());
    binary
}

/// Runs a launcher with its job, in a process group of its own, until it ends or the deadline.
fn run(launcher: &mut Command, folder: &Path) -> Outcome {
    let mut child = launcher
        .env("MUSTER_DIR", folder)
        .env("MUSTER_AGENT", workspace().join("target/release/musterd"))
        .env("MUSTER_LINGER_MS", "300")
        .current_dir(folder)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .process_group(0)
        .spawn()
        .unwrap_or_else(|error| panic!("{launcher:?}: {error}"));
    let output = BufReader::new(child.stdout.take().expect("piped"));
    let (sender, said) = channel();
    std::thread::spawn(move || {
        output
            .lines()
            .map_while(Result::ok)
            .try_for_each(|l| sender.send(l))
    });
    let until = Instant::now() + DEADLINE;
    let mut lines = Vec::new();
    // The output ends with the launcher and all that it started.
    let ended = loop {
        match said.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(line) => lines.push(line),
            Err(cause) => break cause == std::sync::mpsc::RecvTimeoutError::Disconnected,
        }
    };
    if !ended {
        let group = rustix::process::Pid::from_raw(child.id() as i32).expect("a pid");
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
    }
    let status = child.wait().expect("a child");
    Outcome {
        lines,
        status: ended.then_some(status),
    }
}

fn venv(name: &str) -> PathBuf {
    workspace().join("target").join(name).join("bin")
}

/// One at a time, each in a folder of its own.
fn job(test: impl FnOnce(&Path)) {
    let _turn = TURN
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    let folder = tempfile::tempdir().expect("a folder");
    test(folder.path());
}

/// MPICH's launcher speaks PMI-1; the agents of two nodes are brought together by an allgather.
#[test]
fn mpich_without_pmix() {
    job(|folder| {
        let program = compile(&venv("mpich").join("mpicc"), folder);
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
        outcome.expect_told(4);
        let text = outcome.lines.join("\n");
        assert!(text.contains("rank 3 on n1 FAILED"), "{text}");
        outcome.expect_end();
    });
}

/// Debian's Open MPI 4.1 kills the job when a rank dies; it ends as it does without us, and before
/// that everybody is told.
#[test]
fn open_mpi_4_as_it_comes() {
    job(|folder| {
        let program = compile(Path::new("mpicc.openmpi"), folder);
        let outcome = run(open_mpi_4().args(["-n", "4"]).arg(&program), folder);
        outcome.expect_told(4);
        assert!(!outcome.expect_end().success());
    });
}

/// With recovery it lets the survivors live; then its mpirun does not always end by itself, with us or
/// without.
#[test]
fn open_mpi_4_with_recovery() {
    job(|folder| {
        let program = compile(Path::new("mpicc.openmpi"), folder);
        let mut launcher = open_mpi_4();
        let outcome = run(
            launcher
                .args(["--enable-recovery", "-n", "4"])
                .arg(&program),
            folder,
        );
        outcome.expect_told(4);
    });
}

fn open_mpi_4() -> Command {
    let mut launcher = Command::new("mpirun.openmpi");
    launcher
        .args([
            "--oversubscribe",
            "--mca",
            "btl",
            "self,vader",
            "--mca",
            "pml",
            "ob1",
        ])
        .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
        .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
        .env("MUSTER_RAILS", "127.0.0.1:0@udp0");
    launcher
}

/// PRRTE, the launcher of Open MPI 5, as it comes: it ends the job.
#[test]
fn open_mpi_5_as_it_comes() {
    job(|folder| {
        let program = compile(&venv("venv").join("mpicc"), folder);
        let outcome = run(open_mpi_5().args(["-n", "4"]).arg(&program), folder);
        outcome.expect_told(4);
        assert!(!outcome.expect_end().success());
    });
}

/// PRRTE with fault tolerance: the survivors end when they want to.
#[test]
fn open_mpi_5_with_fault_tolerance() {
    job(|folder| {
        let program = compile(&venv("venv").join("mpicc"), folder);
        let mut launcher = open_mpi_5();
        let outcome = run(
            launcher
                .args(["--with-ft", "ulfm", "-n", "4"])
                .arg(&program),
            folder,
        );
        outcome.expect_told(4);
        outcome.expect_end();
    });
}

/// Without a launcher, a process is a job of its own.
#[test]
fn a_singleton() {
    job(|folder| {
        let program = compile(&venv("venv").join("mpicc"), folder);
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

fn open_mpi_5() -> Command {
    let mut launcher = Command::new(venv("venv").join("mpirun"));
    launcher
        .args(["--map-by", ":OVERSUBSCRIBE", "--allow-run-as-root"])
        .env("OMPI_MCA_coll", "^han")
        .env("MUSTER_RAILS", "127.0.0.1:0@udp0");
    launcher
}
