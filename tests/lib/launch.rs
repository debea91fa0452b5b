//! Real launchers and the jobs that they start.
//!
//! The tested programs are the release ones of `make build`, compiled with each MPI's own compiler.

use crate::DEADLINE;
use crate::make_program;
use crate::workspace;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::sync::mpsc::channel;
use std::time::Instant;

/// One job at a time: each keeps both cores of a small machine busy.
static TURN: Mutex<()> = Mutex::new(());

/// The output of a job, and how its launcher ended.
pub struct Outcome {
    /// Its lines, in order.
    pub lines: Vec<String>,
    /// How the launcher ended; `None` if it had to be killed.
    pub status: Option<ExitStatus>,
}

impl Outcome {
    /// Number of lines that start with this text.
    pub fn count(&self, beginning: &str) -> usize {
        let begins = |line: &&String| line.starts_with(beginning);
        self.lines.iter().filter(begins).count()
    }

    /// The whole output, for a message.
    pub fn text(&self) -> String {
        self.lines.join("\n")
    }

    /// Asserts that the launcher ended by itself: no process of Muster held it.
    ///
    /// # Panics
    /// If it had to be killed.
    pub fn expect_end(&self) -> ExitStatus {
        self.status
            .unwrap_or_else(|| panic!("the launcher hangs:\n{}", self.text()))
    }
}

/// Compiles a program of `tests/programs` with this compiler and these further arguments.
///
/// # Panics
/// If that fails, or `make build` was not run.
pub fn compile(compiler: &Path, name: &str, further: &[&str], folder: &Path) -> PathBuf {
    let source = workspace().join(format!("tests/programs/{name}.c"));
    compile_file(compiler, &source, further, folder)
}

/// As [`compile`], for any source file.
///
/// # Panics
/// As there.
pub fn compile_file(compiler: &Path, source: &Path, further: &[&str], folder: &Path) -> PathBuf {
    let tree = workspace().join("target/release/c");
    assert!(
        tree.join("lib/libmuster.so").is_file(),
        "run `make build` first"
    );
    let binary = folder.join(source.file_stem().expect("a name"));
    let output = Command::new(compiler)
        .args(["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-I"])
        .arg(tree.join("include"))
        .args(further)
        .arg(source)
        .arg("-o")
        .arg(&binary)
        .arg(format!("-L{}", tree.join("lib").display()))
        .arg(format!("-Wl,-rpath,{}", tree.join("lib").display()))
        .args(["-lmuster", "-lpthread", "-ldl"])
        .output()
        .unwrap_or_else(|error| panic!("{}: {error}", compiler.display()));
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {words}", compiler.display());
    binary
}

/// The library between a program and MPI, for the MPI of this compiler.
///
/// # Panics
/// If it cannot be compiled.
pub fn interposer(compiler: &Path, folder: &Path) -> PathBuf {
    let source = workspace().join("bindings-c/pmpi/muster_pmpi.c");
    interposer_of(&source, compiler, folder)
}

/// The same for any source file.
///
/// # Panics
/// As there.
pub fn interposer_of(source: &Path, compiler: &Path, folder: &Path) -> PathBuf {
    let tree = workspace().join("target/release/c");
    let library = folder.join("libmuster-pmpi.so");
    let output = Command::new(compiler)
        .args([
            "-std=gnu11",
            "-O2",
            "-g",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-shared",
            "-fPIC",
            "-I",
        ])
        .arg(tree.join("include"))
        .arg(source)
        .arg("-o")
        .arg(&library)
        .arg(format!("-L{}", tree.join("lib").display()))
        .arg(format!("-Wl,-rpath,{}", tree.join("lib").display()))
        .args(["-lmuster", "-lpthread"])
        .output()
        .expect("a compiler");
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words}");
    library
}

/// Runs a launcher with its job, in a process group of its own, until it ends or until the deadline.
///
/// # Panics
/// If it cannot be started.
pub fn run(launcher: &mut Command, folder: &Path) -> Outcome {
    run_with(launcher, folder, |_| true)
}

/// What PRRTE prints if one of its own daemons did not start: no part of the job has run then.
const NOT_STARTED: &str = "A daemon failed to report back after being spawned";

/// Runs a launcher and passes the lines of its job to `look`; if that returns `false` the launcher is killed.
/// A launcher whose own daemons did not start is started again, at most twice, which is printed to standard
/// error.
///
/// # Panics
/// If it cannot be started.
pub fn run_with(
    launcher: &mut Command,
    folder: &Path,
    mut look: impl FnMut(&[String]) -> bool,
) -> Outcome {
    for _ in 0..2 {
        let outcome = run_once(launcher, folder, &mut look);
        if !outcome.lines.iter().any(|line| line.contains(NOT_STARTED)) {
            return outcome;
        }
        let text = format!("started again: {}\n", outcome.text());
        std::io::stderr().write_all(text.as_bytes()).ok();
    }
    run_once(launcher, folder, &mut look)
}

fn run_once(
    launcher: &mut Command,
    folder: &Path,
    look: &mut impl FnMut(&[String]) -> bool,
) -> Outcome {
    let mut child = launcher
        .env("MUSTER_DIR", folder)
        // A launcher fails to start if it finds the folder of a killed one with the same pid.
        .env("TMPDIR", folder)
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
    // Several processes under valgrind on few cores take long.
    let until = Instant::now() + 5 * DEADLINE;
    let mut lines = Vec::new();
    // The output ends with the launcher and all its descendants.
    let ended = loop {
        match said.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(line) => lines.push(line),
            Err(cause) => break cause == std::sync::mpsc::RecvTimeoutError::Disconnected,
        }
        if !look(&lines) {
            break false;
        }
    };
    if !ended {
        let group = Pid::from_raw(child.id() as i32).expect("a pid");
        let _ = kill_process_group(group, Signal::KILL);
    }
    let status = child.wait().expect("a child");
    Outcome {
        lines,
        status: ended.then_some(status),
    }
}

/// The programs of a Python environment under `target`.
pub fn venv(name: &str) -> PathBuf {
    workspace().join("target").join(name).join("bin")
}

/// Runs a test with a folder of its own, one test at a time.
///
/// # Panics
/// If the folder cannot be created.
pub fn job(test: impl FnOnce(&Path)) {
    let _turn = TURN
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    let folder = tempfile::tempdir().expect("a folder");
    test(folder.path());
}

/// Debian's `mpirun`.
pub fn open_mpi_4() -> Command {
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

/// The `mpirun` of the Open MPI 5 under `target/venv`.
pub fn open_mpi_5() -> Command {
    let mut launcher = Command::new(venv("venv").join("mpirun"));
    launcher
        .args(["--map-by", ":OVERSUBSCRIBE", "--allow-run-as-root"])
        .env("OMPI_MCA_coll", "^han")
        .env("MUSTER_RAILS", "127.0.0.1:0@udp0");
    launcher
}

/// A replacement for ssh: its own host name, rails and PMIx node.
const NODE_SHELL: &str = r#"#!/bin/sh
while [ "${1#-}" != "$1" ]; do shift; done
node=$1; shift
export MUSTER_NODE=$node MUSTER_RAILS=127.88.${node#n}.1:0@udp0
if [ "${TWO_RAILS-}" ]; then MUSTER_RAILS=$MUSTER_RAILS,10.88.${node#n}.1:0@udp1; fi
if [ "$(id -u)" = 0 ]; then flags=--uts; else flags="--user --map-current-user --keep-caps --uts"; fi
exec unshare $flags sh -c 'hostname "$0" && eval "$*"' "$node" "$@"
"#;

/// The `mpirun` of Open MPI 5 with two emulated nodes, `n1` and `n2`, of two ranks each.
///
/// # Panics
/// If the folder cannot be written to.
pub fn open_mpi_5_on_two_nodes(folder: &Path) -> Command {
    let shell = folder.join("node-shell");
    make_program(&shell, NODE_SHELL);
    let mut launcher = Command::new(venv("venv").join("mpirun"));
    launcher
        .args(["--prtemca", "plm_ssh_agent"])
        .arg(&shell)
        .args(["--host", "n1:2,n2:2", "--bind-to", "none"])
        .arg("--allow-run-as-root")
        .env("OMPI_MCA_coll", "^han")
        .env("OMPI_MCA_mpi_yield_when_idle", "1")
        .env("PRTE_ALLOW_RUN_AS_ROOT", "1")
        .env("PRTE_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    launcher
}

/// The commands of an own net: an interface for the launcher, and an address for the second rail of each
/// node.
const OWN_NET: &str = "ip link set lo up && ip link add out type veth peer name in \
    && ip addr add 10.99.0.1/24 dev out && ip link set out up && ip link set in up \
    && ip addr add 10.88.1.1/32 dev lo && ip addr add 10.88.2.1/32 dev lo && exec \"$0\" \"$@\"";

/// As [`open_mpi_5_on_two_nodes`], each node with two rails, in a net of its own: see [`second_rail`].
/// Requires root.
///
/// # Panics
/// As there.
pub fn open_mpi_5_on_two_rails(folder: &Path) -> Command {
    let inner = open_mpi_5_on_two_nodes(folder);
    let mut launcher = Command::new("unshare");
    launcher
        .args(["--net", "sh", "-c", OWN_NET])
        .arg(inner.get_program())
        .args(inner.get_args())
        .env("TWO_RAILS", "1");
    for (name, value) in inner.get_envs() {
        if let Some(value) = value {
            launcher.env(name, value);
        }
    }
    launcher
}

/// Removes the address of the second rail of node `n2` from the net of this process ("del"), or restores it
/// ("add").
///
/// # Panics
/// If that fails.
pub fn second_rail(process: Pid, what: &str) {
    let status = Command::new("nsenter")
        .args(["--target", &process.as_raw_nonzero().to_string(), "--net"])
        .args(["ip", "addr", what, "10.88.2.1/32", "dev", "lo"])
        .status();
    assert!(
        status.is_ok_and(|status| status.success()),
        "ip addr {what}"
    );
}

/// The processes of an emulated node of the job in this folder, by their environment.
///
/// # Panics
/// Without a `/proc`.
pub fn processes_of(node: &str, folder: &Path) -> Vec<Pid> {
    let wanted = format!("MUSTER_NODE={node}").into_bytes();
    processes_in(folder, |_, environment| environment.contains(&wanted))
}

/// The processes of the job in this folder that satisfy `is_wanted`, by pid and environment.
pub(crate) fn processes_in(folder: &Path, is_wanted: impl Fn(Pid, &[Vec<u8>]) -> bool) -> Vec<Pid> {
    let job = format!("MUSTER_DIR={}", folder.display()).into_bytes();
    let processes = std::fs::read_dir("/proc").expect("/proc").flatten();
    let pids = processes.filter_map(|entry| {
        let pid = Pid::from_raw(entry.file_name().to_str()?.parse().ok()?)?;
        let text = std::fs::read(entry.path().join("environ")).ok()?;
        let all: Vec<Vec<u8>> = text.split(|byte| *byte == 0).map(<[u8]>::to_vec).collect();
        (all.contains(&job) && is_wanted(pid, &all)).then_some(pid)
    });
    pids.collect()
}

/// Sends a signal to each process that still exists.
pub fn signal_all(pids: &[Pid], signal: Signal) {
    for pid in pids {
        let _ = kill_process(*pid, signal);
    }
}
