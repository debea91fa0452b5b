//! A process of a test: its lines as events, its end, and how processes are found and signalled.

use crate::DEADLINE;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, Command, ExitStatus};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Instant;

/// A child and the lines that it prints on the outputs that its command pipes. It is killed when dropped.
pub struct Process {
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
    errors: Receiver<String>,
}

impl Process {
    /// Starts it. Lines of both outputs arrive as one sequence.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn start(command: &mut Command) -> Self {
        let (sender, errors) = channel();
        drop(sender);
        let (sender, lines) = channel();
        Self::spawn(command, [&sender, &sender], lines, errors)
    }

    /// Starts it. Lines of standard error are a sequence of their own.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn start_apart(command: &mut Command) -> Self {
        let ((first, lines), (second, errors)) = (channel(), channel());
        Self::spawn(command, [&first, &second], lines, errors)
    }

    fn spawn(
        command: &mut Command,
        [first, second]: [&Sender<String>; 2],
        lines: Receiver<String>,
        errors: Receiver<String>,
    ) -> Self {
        let child = command.spawn();
        let mut child = child.unwrap_or_else(|error| panic!("{command:?}: {error}"));
        if let Some(output) = child.stdout.take() {
            forward(output, first.clone());
        }
        if let Some(output) = child.stderr.take() {
            forward(output, second.clone());
        }
        Self {
            input: child.stdin.take(),
            child,
            lines,
            errors,
        }
    }

    /// Its number.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The same for system calls.
    ///
    /// # Panics
    /// Never: a child has a number.
    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Waits for the next line until this time.
    ///
    /// # Errors
    /// Returns whether the time or the output is over.
    pub fn line_until(&self, end: Instant) -> Result<String, RecvTimeoutError> {
        let rest = end.saturating_duration_since(Instant::now());
        self.lines.recv_timeout(rest)
    }

    /// As [`Process::line_until`], on a standard error of its own.
    ///
    /// # Errors
    /// As there.
    pub fn error_until(&self, end: Instant) -> Result<String, RecvTimeoutError> {
        let rest = end.saturating_duration_since(Instant::now());
        self.errors.recv_timeout(rest)
    }

    /// The lines that have come and not been taken yet.
    pub fn pending(&self) -> impl Iterator<Item = String> {
        self.lines.try_iter()
    }

    /// The same on a standard error of its own.
    pub fn pending_errors(&self) -> impl Iterator<Item = String> {
        self.errors.try_iter()
    }

    /// Writes a line to its standard input, which must be piped.
    pub fn send(&mut self, line: &str) {
        // If it has ended meanwhile, its missing output shows that.
        if let Some(input) = &mut self.input {
            let _ = writeln!(input, "{line}");
        }
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        let _ = kill_process(self.pid(), signal);
    }

    /// Whether it has ended.
    ///
    /// # Panics
    /// If that is unknown.
    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("a child").is_some()
    }

    /// Waits for its end.
    ///
    /// # Panics
    /// If it does not end before the deadline.
    pub fn end(&mut self) -> ExitStatus {
        if !self.has_ended() {
            wait_for_end(self.id());
        }
        self.child.wait().expect("a child")
    }

    /// Kills it and waits for its end.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Sends the lines of an output, from a thread of its own.
fn forward(output: impl Read + Send + 'static, sender: Sender<String>) {
    std::thread::spawn(move || {
        let mut lines = BufReader::new(output).lines().map_while(Result::ok);
        lines.try_for_each(|line| sender.send(line))
    });
}

/// Sends a signal to a process; one that has ended is no error.
pub fn signal(pid: u32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid as i32) {
        signal_all(&[pid], signal);
    }
}

/// Sends a signal to each process that still exists.
pub fn signal_all(pids: &[Pid], signal: Signal) {
    for pid in pids {
        let _ = kill_process(*pid, signal);
    }
}

/// Kills processes at once. They are stopped first: a supervisor whose worker is killed first starts another one.
pub fn kill_at_once(pids: &[Pid]) {
    signal_all(pids, Signal::STOP);
    signal_all(pids, Signal::KILL);
}

/// Waits until a process has ended, also one that is no child of this process.
///
/// # Panics
/// If it does not end before the deadline.
pub fn wait_for_end(pid: u32) {
    let raw = Pid::from_raw(pid as i32);
    let Some(Ok(descriptor)) = raw.map(|pid| pidfd_open(pid, PidfdFlags::empty())) else {
        return;
    };
    let limit = Timespec::try_from(DEADLINE).expect("a minute");
    let mut waiting = [PollFd::new(&descriptor, PollFlags::IN)];
    let ready = poll(&mut waiting, Some(&limit));
    assert!(ready == Ok(1), "process {pid} does not end: {ready:?}");
}

/// Waits until all these processes have ended.
///
/// # Panics
/// If one does not end before the deadline.
pub fn wait_for_ends(pids: &[Pid]) {
    let raw = |pid: &Pid| pid.as_raw_nonzero().get() as u32;
    pids.iter().map(raw).for_each(wait_for_end);
}

/// The processes whose environment has all of these variables: `NAME=VALUE`.
///
/// # Panics
/// Without a `/proc`.
pub fn processes_with(variables: &[String]) -> Vec<Pid> {
    let processes = std::fs::read_dir("/proc").expect("/proc").flatten();
    let pids = processes.filter_map(|entry| {
        let pid = Pid::from_raw(entry.file_name().to_str()?.parse().ok()?)?;
        let text = std::fs::read(entry.path().join("environ")).ok()?;
        let has = |wanted: &String| {
            text.split(|byte| *byte == 0)
                .any(|one| one == wanted.as_bytes())
        };
        variables.iter().all(has).then_some(pid)
    });
    pids.collect()
}

/// The name of a process's program, as far as the kernel keeps it; empty if it has ended.
pub fn name_of(pid: Pid) -> String {
    let path = format!("/proc/{}/comm", pid.as_raw_nonzero());
    let name = std::fs::read_to_string(path).unwrap_or_default();
    name.trim().to_owned()
}
