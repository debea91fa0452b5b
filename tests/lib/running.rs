//! A `muster run` under test: its output, and the check that nothing is left of it.

use crate::DEADLINE;
use crate::launch::{compile, processes_of, venv};
use crate::lines_of_both;
use crate::program;
use crate::ranks::wait_for_end;
use crate::until;
use crate::workspace;
use rustix::process::Pid;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

/// Four nodes of two ranks.
pub const NODES: usize = 4;
/// Ranks on all nodes.
pub const RANKS: usize = 8;

/// A `muster run` and its output.
pub struct Running {
    /// The process that was started.
    pub child: Child,
    printed: Receiver<String>,
    /// The lines of the launcher and its ranks so far.
    pub lines: Vec<String>,
}

/// A rank that is ready.
#[derive(Clone, Debug)]
pub struct Ready {
    /// Its rank.
    pub rank: usize,
    /// Its process.
    pub pid: Pid,
    /// Its node.
    pub node: String,
}

impl Running {
    /// Starts a `muster run` of this program.
    pub fn start(options: &[&str], binary: &Path, words: &[&str]) -> Self {
        Self::command(command().args(options).arg("--").arg(binary).args(words))
    }

    /// Starts one with further words or another environment.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn command(command: &mut Command) -> Self {
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("muster can be started");
        let printed = lines_of_both(&mut child);
        Self {
            child,
            printed,
            lines: Vec::new(),
        }
    }

    /// Starts the program that survives losses, on four nodes.
    pub fn survive(options: &[&str], folder: &Path, words: &[&str]) -> Self {
        let binary = compile(&venv("venv").join("mpicc"), "survive", &[], folder);
        let all = [&["--nodes", "4", "-n", "8"], options].concat();
        Self::start(&all, &binary, words)
    }

    /// The directory of the job's agents.
    pub fn directory(&self) -> PathBuf {
        std::env::temp_dir().join(format!("muster-run-{}", self.child.id()))
    }

    /// Number of lines that start with this text.
    pub fn count(&self, beginning: &str) -> usize {
        let begins = |line: &&String| line.starts_with(beginning);
        self.lines.iter().filter(begins).count()
    }

    /// The whole output.
    pub fn text(&self) -> String {
        self.lines.join("\n")
    }

    /// Takes lines until this many of them start with this text.
    ///
    /// # Panics
    /// If there are not enough in time.
    pub fn await_lines(&mut self, beginning: &str, count: usize) {
        let until = Instant::now() + DEADLINE;
        while self.count(beginning) < count {
            let left = until.saturating_duration_since(Instant::now());
            match self.printed.recv_timeout(left) {
                Ok(line) => self.lines.push(line),
                Err(_) => panic!("not {count} times {beginning}:\n{}", self.text()),
            }
        }
    }

    /// Takes lines until one contains these words.
    ///
    /// # Panics
    /// If there is none in time.
    pub fn await_text(&mut self, words: &str) {
        let until = Instant::now() + DEADLINE;
        while !self.lines.iter().any(|line| line.contains(words)) {
            let left = until.saturating_duration_since(Instant::now());
            match self.printed.recv_timeout(left) {
                Ok(line) => self.lines.push(line),
                Err(_) => panic!("no line with {words:?}:\n{}", self.text()),
            }
        }
    }

    /// Lets the job run for a while.
    pub fn listen_for(&mut self, time: Duration) {
        let until = Instant::now() + time;
        while let Ok(line) =
            (self.printed).recv_timeout(until.saturating_duration_since(Instant::now()))
        {
            self.lines.push(line);
        }
    }

    /// The ranks, in order, when all are ready.
    pub fn await_ready(&mut self) -> Vec<Ready> {
        self.await_lines("READY", RANKS);
        let ready = self.lines.iter().filter_map(|line| {
            let mut words = line.strip_prefix("READY ")?.split(' ');
            Some(Ready {
                rank: words.next()?.parse().ok()?,
                pid: Pid::from_raw(words.next()?.parse().ok()?)?,
                node: words.next()?.to_owned(),
            })
        });
        let mut ready: Vec<Ready> = ready.collect();
        ready.sort_by_key(|one| one.rank);
        ready
    }

    /// Waits for the end. Then nothing may be left: no process, no file, no shared memory.
    ///
    /// # Panics
    /// If something is left.
    pub fn expect_end(&mut self) -> ExitStatus {
        let end = Instant::now() + DEADLINE;
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("a child") {
                break status;
            }
            assert!(Instant::now() < end, "it does not end:\n{}", self.text());
            let line = self.printed.recv_timeout(Duration::from_millis(20));
            self.lines.extend(line);
        };
        self.lines.extend(self.printed.iter());
        let folder = self.directory().join("m");
        for pid in (1..=NODES).flat_map(|node| processes_of(&format!("n{node}"), &folder)) {
            // A process that was killed with its launcher may take a moment to die.
            wait_for_end(pid.as_raw_nonzero().get() as u32);
        }
        assert!(!self.directory().exists());
        let memory = format!("muster-run-{}-", self.child.id());
        // Another job that starts or ends meanwhile may be about to remove it.
        let is_gone = || {
            let entries = std::fs::read_dir("/dev/shm").expect("/dev/shm").flatten();
            let mut names = entries.map(|entry| entry.file_name());
            let is_left = names.any(|name| name.to_string_lossy().starts_with(&memory));
            (!is_left).then_some(())
        };
        until(|| format!("{memory} is left in /dev/shm"), is_gone);
        status
    }

    /// Asserts that the survivors continued with right sums and reached the end of MPI.
    ///
    /// # Panics
    /// If they did not.
    pub fn expect_survivors(&mut self, lost: usize) {
        let status = self.expect_end();
        let text = self.text();
        assert_eq!(self.count("WRONG"), 0, "{text}");
        assert_eq!(self.count("DONE"), RANKS - lost, "{text}");
        let sizes = self
            .lines
            .iter()
            .filter_map(|line| line.strip_prefix("DONE ")?.split(' ').nth(1)?.parse().ok());
        let sizes: Vec<usize> = sizes.collect();
        assert_eq!(sizes, vec![RANKS - lost; RANKS - lost], "{text}");
        assert!(status.success(), "{status}:\n{text}");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Its launchers, ranks and agents end with it.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Compiles a PMIx program without MPI, with the system's library, or with further arguments.
///
/// # Panics
/// If it cannot be compiled.
pub fn build_pmix(name: &str, further: &[&str], folder: &Path) -> PathBuf {
    let flags = Command::new("pkg-config")
        .args(["--cflags", "--libs", "pmix"])
        .output();
    let flags = String::from_utf8(flags.expect("pkg-config").stdout).expect("flags");
    let binary = folder.join(name);
    let compiled = Command::new("cc")
        .arg(workspace().join(format!("tests/programs/{name}.c")))
        .arg("-o")
        .arg(&binary)
        .args(further)
        .args(flags.split_whitespace())
        .status();
    assert!(compiled.is_ok_and(|status| status.success()), "cc {name}.c");
    binary
}

/// `muster run`, with the programs of this workspace.
pub fn command() -> Command {
    let mut command = Command::new(program("muster"));
    command
        .arg("run")
        .env("MUSTER_AGENT", program("musterd"))
        // These tests do not test how soon a failure is detected: many nodes share few busy cores, and a
        // waiting node is not lost.
        .env("MUSTER_PROFILE", "quiet")
        .env_remove("MUSTER_DIR");
    command
}

/// Waits until launchers and agents have ended after their parent's end, and their files are removed.
///
/// # Panics
/// If something is left.
pub fn await_nothing_left(folder: &Path) {
    loop {
        let pids = processes_in(folder);
        if pids.is_empty() {
            break;
        }
        pids.iter()
            .for_each(|pid| wait_for_end(pid.as_raw_nonzero().get() as u32));
    }
    let entries = std::fs::read_dir(folder).expect("a folder").flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let left: Vec<String> = names
        .filter(|name| name.starts_with("muster-run-"))
        .collect();
    assert_eq!(left, [""; 0]);
}

/// Processes that use the files of this folder.
///
/// # Panics
/// Without /proc.
pub fn processes_in(folder: &Path) -> Vec<Pid> {
    let wanted = format!("TMPDIR={}", folder.display());
    let entries = std::fs::read_dir("/proc").expect("/proc").flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let ours = |pid: &i32| {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment
            .split(|byte| *byte == 0)
            .any(|one| one == wanted.as_bytes())
    };
    pids.filter(ours).filter_map(Pid::from_raw).collect()
}
