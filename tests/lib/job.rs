//! A job under its launcher: `muster run` with emulated nodes or hosts, or another MPI's launcher. Its lines are
//! events that a test awaits, and nothing may be left of it.

use crate::DEADLINE;
use crate::launchers::muster_run;
use crate::process::{Process, processes_with, signal_all, wait_for_ends};
use crate::program;
use crate::until;
use rustix::process::{Pid, Signal, kill_process_group};
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

/// What PRRTE prints if one of its own daemons did not start: no part of the job has run then.
const NOT_STARTED: &str = "A daemon failed to report back after being spawned";

/// Time for a job of another launcher: several processes under valgrind on few cores take long.
const LAUNCHED: Duration = DEADLINE.saturating_mul(5);

/// One job at a time, where tests are threads of one process.
static TURN: Mutex<()> = Mutex::new(());

/// The launcher of a job.
enum Launcher {
    /// `muster run`: what it leaves is found by its pid.
    Muster,
    /// Another one, in a process group of its own.
    Other {
        /// Its command, to start it again.
        command: Box<Command>,
        /// How often it may be started again.
        starts_left: u32,
        /// The files of its job.
        folder: PathBuf,
    },
}

/// A job. It is ended when dropped: launchers of other nodes, ranks and agents of a `muster run` end with it.
pub struct Job {
    process: Process,
    launcher: Launcher,
    /// The lines of the launcher and its ranks so far.
    pub lines: Vec<String>,
    deadline: Instant,
    is_stopped: bool,
}

impl Job {
    /// Starts a `muster run` of this program.
    pub fn of(options: &[&str], program: &Path, words: &[&str]) -> Self {
        let mut command = muster_run();
        Self::start(command.args(options).arg("--").arg(program).args(words))
    }

    /// Starts a `muster run` with further words or another environment: see [`muster_run`].
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn start(command: &mut Command) -> Self {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let process = Process::start(command);
        Self::new(process, Launcher::Muster, DEADLINE)
    }

    /// Starts another launcher, whose job has its files in this folder. Only its standard output is read. If its own
    /// daemons do not start, it is started again, at most twice, which is printed to standard error.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn launch(launcher: &mut Command, folder: &Path) -> Self {
        let mut command = std::mem::replace(launcher, Command::new("started"));
        command
            .env("MUSTER_DIR", folder)
            // A launcher fails to start if it finds the folder of a killed one with the same pid.
            .env("TMPDIR", folder)
            .env("MUSTER_AGENT", program("musterd"))
            .env("MUSTER_LINGER_MS", "300")
            .current_dir(folder)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .process_group(0);
        let process = Process::start(&mut command);
        let launcher = Launcher::Other {
            command: Box::new(command),
            starts_left: 2,
            folder: folder.to_owned(),
        };
        Self::new(process, launcher, LAUNCHED)
    }

    /// Runs another launcher with its job to its end, or until the deadline: see [`Job::launch`].
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn run(launcher: &mut Command, folder: &Path) -> Self {
        let mut job = Self::launch(launcher, folder);
        job.read_to_end();
        job
    }

    fn new(process: Process, launcher: Launcher, time: Duration) -> Self {
        Self {
            process,
            launcher,
            lines: Vec::new(),
            deadline: Instant::now() + time,
            is_stopped: false,
        }
    }

    /// The process of its launcher.
    pub fn pid(&self) -> Pid {
        self.process.pid()
    }

    /// Sends its launcher a signal.
    pub fn signal(&self, signal: Signal) {
        self.process.signal(signal);
    }

    /// Whether its launcher has ended.
    pub fn has_ended(&mut self) -> bool {
        self.process.has_ended()
    }

    /// The directory of a `muster run`.
    pub fn directory(&self) -> PathBuf {
        std::env::temp_dir().join(format!("muster-run-{}", self.process.id()))
    }

    /// The directory of its agents.
    pub fn agents(&self) -> PathBuf {
        self.directory().join("m")
    }

    /// The processes of an emulated node of a `muster run`: launcher, agent, ranks.
    pub fn processes_of(&self, node: &str) -> Vec<Pid> {
        processes_of(node, &self.agents())
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

    /// Takes the next line until this time. The output ends with the launcher and all its descendants.
    fn take_line(&mut self, end: Instant) -> Result<(), RecvTimeoutError> {
        let cause = match self.process.line_until(end) {
            Ok(line) => {
                self.lines.push(line);
                return Ok(());
            }
            Err(cause) => cause,
        };
        let is_over = cause == RecvTimeoutError::Disconnected;
        let has_failed = is_over && self.lines.iter().any(|line| line.contains(NOT_STARTED));
        match &mut self.launcher {
            Launcher::Other {
                command,
                starts_left: left @ 1..,
                ..
            } if has_failed => {
                *left -= 1;
                let text = format!("started again: {}\n", self.lines.join("\n"));
                std::io::stderr().write_all(text.as_bytes()).ok();
                self.process = Process::start(command);
                self.deadline = Instant::now() + LAUNCHED;
                self.lines.clear();
                Ok(())
            }
            _ => Err(cause),
        }
    }

    /// Takes lines until this holds of them. Returns `false` if the output ends before. A launcher that reaches the
    /// deadline is killed.
    pub fn read_until(&mut self, is_enough: impl Fn(&Self) -> bool) -> bool {
        while !is_enough(self) {
            if let Err(cause) = self.take_line(self.deadline) {
                if cause == RecvTimeoutError::Timeout {
                    self.stop();
                }
                return false;
            }
        }
        true
    }

    /// Takes lines until the output ends, and waits for the launcher, unless it was stopped.
    pub fn read_to_end(&mut self) {
        self.read_until(|_| false);
        self.process.end();
    }

    /// Takes lines until this many of them start with this text.
    ///
    /// # Panics
    /// If there are not enough in time.
    pub fn await_lines(&mut self, beginning: &str, count: usize) {
        let what = format!("not {count} times {beginning:?}");
        self.await_that(&what, |job| job.count(beginning) >= count);
    }

    /// Takes lines until one contains these words.
    ///
    /// # Panics
    /// If there is none in time.
    pub fn await_text(&mut self, words: &str) {
        let has = |job: &Self| job.lines.iter().any(|line| line.contains(words));
        self.await_that(&format!("no line with {words:?}"), has);
    }

    fn await_that(&mut self, what: &str, is_so: impl Fn(&Self) -> bool) {
        let is_so = self.listen(DEADLINE, is_so);
        assert!(is_so, "{what}:\n{}", self.text());
    }

    /// Takes lines until this holds of them, and returns `false` if the time or the output is over before.
    pub fn listen(&mut self, time: Duration, is_enough: impl Fn(&Self) -> bool) -> bool {
        let end = Instant::now() + time;
        while !is_enough(self) {
            if self.take_line(end).is_err() {
                return false;
            }
        }
        true
    }

    /// Lets the job run for a while.
    pub fn listen_for(&mut self, time: Duration) {
        self.listen(time, |_| false);
    }

    /// Ends the job: its launcher, and all processes of another launcher than `muster run`.
    pub fn stop(&mut self) {
        self.is_stopped = true;
        if let Launcher::Other { folder, .. } = &self.launcher {
            let _ = kill_process_group(self.pid(), Signal::KILL);
            signal_all(&processes_in(folder), Signal::KILL);
        }
        self.process.kill();
    }

    /// Waits until the launcher has ended by itself. Then nothing may be left of a `muster run`: no process, no file,
    /// no shared memory.
    ///
    /// # Panics
    /// If it does not end, or something is left.
    pub fn expect_end(&mut self) -> ExitStatus {
        self.deadline = self.deadline.max(Instant::now() + DEADLINE);
        self.read_to_end();
        assert!(!self.is_stopped, "it does not end:\n{}", self.text());
        if let Launcher::Muster = self.launcher {
            self.expect_nothing_left();
        }
        self.process.end()
    }

    fn expect_nothing_left(&self) {
        // A process that was killed with its launcher may take a moment to die.
        wait_for_ends(&processes_with(&[format!(
            "MUSTER_DIR={}",
            self.agents().display()
        )]));
        assert!(!self.directory().exists());
        let memory = format!("muster-run-{}-", self.process.id());
        // Another job that starts or ends meanwhile may be about to remove it.
        let is_gone = || {
            let entries = std::fs::read_dir("/dev/shm").expect("/dev/shm").flatten();
            let mut names = entries.map(|entry| entry.file_name());
            let is_left = names.any(|name| name.to_string_lossy().starts_with(&memory));
            (!is_left).then_some(())
        };
        until(|| format!("{memory} is left in /dev/shm"), is_gone);
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        if !self.process.has_ended() {
            self.stop();
        }
    }
}

/// Runs a test with a folder of its own, one test at a time. Nothing may be left that uses the folder.
///
/// # Panics
/// If the folder cannot be created, or something is left.
pub fn job(test: impl FnOnce(&Path)) {
    let _turn = TURN
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    let folder = tempfile::tempdir().expect("a folder");
    test(folder.path());
    await_nothing_left(folder.path());
}

/// Waits until the launchers, agents and ranks whose files are in this folder have ended, and their files are removed.
///
/// # Panics
/// If something is left.
pub fn await_nothing_left(folder: &Path) {
    loop {
        let pids = processes_in(folder);
        if pids.is_empty() {
            break;
        }
        wait_for_ends(&pids);
    }
    let entries = std::fs::read_dir(folder).expect("a folder").flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let left: Vec<String> = names
        .filter(|name| name.starts_with("muster-run-"))
        .collect();
    assert_eq!(left, [""; 0]);
}

/// The processes whose files are in this folder.
pub fn processes_in(folder: &Path) -> Vec<Pid> {
    processes_with(&[format!("TMPDIR={}", folder.display())])
}

/// Those of a host.
pub fn processes_on(host: &str, folder: &Path) -> Vec<Pid> {
    let directory = format!("TMPDIR={}", folder.display());
    processes_with(&[format!("MUSTER_NODE={host}"), directory])
}

/// The processes of an emulated node whose agents are in this directory.
pub fn processes_of(node: &str, agents: &Path) -> Vec<Pid> {
    let directory = format!("MUSTER_DIR={}", agents.display());
    processes_with(&[format!("MUSTER_NODE={node}"), directory])
}
