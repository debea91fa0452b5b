//! `Member` is a member under measurement: any program that prints `READY`, `UP` and `DOWN NAME NS`.
//!
//! The contract is that of `musterd --print-events plain`: options `--name`, `--rail`, `--seed`, `--profile`, one line
//! for each change of the view, NS in CLOCK_MONOTONIC. All other data come from the driver, so that no program reports
//! on itself. A member and its network namespace end with the driver, even if the driver is killed (see `launch`).

use super::launch;
use muster_terminal::CliError;
use muster_terminal::process::{Process, monotonic_ns};
use rustix::process::Signal;
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

/// A measured system: its name in the table and its program.
#[derive(Clone, Debug)]
pub(crate) struct System {
    pub(super) name: String,
    pub(super) program: PathBuf,
    /// Members of each zone, for Muster in zones.
    pub(super) zone: Option<u32>,
}

/// The settings that the members of a group share.
#[derive(Clone, Debug)]
pub(super) struct GroupOptions {
    pub(super) members: u32,
    pub(super) rails: u32,
    pub(super) profile: String,
    pub(super) directory: PathBuf,
    pub(super) network: Network,
    /// Without the permission for real-time scheduling.
    pub(super) unprivileged: bool,
}

/// The network of the members' addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Network {
    /// 127.NET.*, one interface for all.
    Loopback(u8),
    /// 10.77.*, each member in its own network namespace.
    Namespace,
}

impl GroupOptions {
    /// Address of a member (from 1) on a rail (from 0), without the net.
    pub(super) fn address(&self, index: u32, rail: u32) -> String {
        // A rail has a network of 1022 hosts.
        let (net, host) = (rail * 4 + (index >> 8), index & 0xff);
        match self.network {
            Network::Loopback(block) => format!("127.{block}.{net}.{host}"),
            Network::Namespace => format!("10.77.{net}.{host}"),
        }
    }

    fn nid(&self, index: u32, rail: u32) -> String {
        format!("{}@udp{rail}", self.address(index, rail))
    }
}

/// A line that a member printed.
#[derive(Clone, Debug)]
pub(super) struct Line {
    pub(super) event: String,
    pub(super) name: String,
    pub(super) at_ns: u64,
}

/// The lines of one process, which may have ended.
pub(super) type Lines = Arc<Mutex<Vec<Line>>>;

/// A running member.
pub(super) struct Member {
    pub(super) name: String,
    pub(super) index: u32,
    pub(super) started_ns: u64,
    child: Child,
    /// Standard input of a member that waits; see [`Member::release`].
    start_pipe: Option<ChildStdin>,
    process: Option<Process>,
    lines: Lines,
}

impl Member {
    /// Starts member `index` (from 1). A member in a namespace waits for its network.
    pub(super) fn start(
        system: &System,
        options: &GroupOptions,
        index: u32,
    ) -> Result<Self, CliError> {
        let mut command =
            launch::command(options.network == Network::Namespace, options.unprivileged);
        if options.network == Network::Namespace {
            command.arg("--network").arg(network_file(options, index));
        }
        command.arg("--").arg(&system.program);
        let name = format!("n{index}");
        command.args(["--name", &name, "--print-events", "plain"]);
        for rail in 0..options.rails {
            command.args(["--rail", &options.nid(index, rail)]);
        }
        let seed = |of: u32| {
            let nids: Vec<String> = (0..options.rails)
                .map(|rail| options.nid(of, rail))
                .collect();
            nids.join(",")
        };
        match system.zone {
            Some(zone) => {
                let nodes = format!("n[1-{}]", options.members);
                command.args(["--zones", &zone.to_string(), "--nodes", &nodes]);
                for other in (1..=options.members).filter(|other| *other != index) {
                    command.args(["--seed", &format!("n{other}={}", seed(other))]);
                }
            }
            None => _ = command.args(["--seed", &seed(1)]),
        }
        command.args(["--profile", &options.profile]);
        let started_ns = monotonic_ns();
        let mut child = spawn(&mut command, options)
            .map_err(|e| CliError::new(format!("bench: {}", system.program.display()), e))?;
        let lines = Lines::default();
        if let Some(output) = child.stdout.take() {
            let lines = Arc::clone(&lines);
            std::thread::spawn(move || {
                for line in BufReader::new(output).lines().map_while(Result::ok) {
                    if let Some(line) = parse(&line) {
                        lock(&lines).push(line);
                    }
                }
            });
        }
        Ok(Self {
            name,
            index,
            started_ns,
            start_pipe: child.stdin.take(),
            process: Process::find(child.id()),
            child,
            lines,
        })
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(super) fn process(&self) -> Option<&Process> {
        self.process.as_ref()
    }

    /// Releases a member that waits for its network.
    pub(super) fn release(&mut self) {
        if let Some(mut start_pipe) = self.start_pipe.take() {
            // A member that has ended meanwhile is noticed by its missing output.
            let _ = writeln!(start_pipe, "go");
        }
    }

    /// All lines of the member, including future ones.
    pub(super) fn lines(&self) -> Lines {
        Arc::clone(&self.lines)
    }

    /// Time at which it first printed this event about `name`, at or after `from_ns`.
    pub(super) fn first_ns(&self, event: &str, name: &str, from_ns: u64) -> Option<u64> {
        let lines = lock(&self.lines);
        let mut found = lines.iter().filter(|line| line.at_ns >= from_ns);
        found
            .find(|line| line.name == name && line.event == event)
            .map(|line| line.at_ns)
    }

    /// The last event that it printed about this member: UP, DOWN or LEFT.
    pub(super) fn last_event(&self, name: &str) -> Option<String> {
        let lines = lock(&self.lines);
        let mut events = lines.iter().rev().filter(|line| line.name == name);
        events
            .find(|line| matches!(line.event.as_str(), "UP" | "DOWN" | "LEFT"))
            .map(|line| line.event.clone())
    }

    /// Time at which it reported that it is ready.
    pub(super) fn ready_ns(&self) -> Option<u64> {
        self.first_ns("READY", &self.name, 0)
    }

    /// Time at which it had seen this many others.
    pub(super) fn full_ns(&self, others: usize) -> Option<u64> {
        let lines = lock(&self.lines);
        // Called repeatedly while a group boots, so it must be cheap.
        if lines.len() < others {
            return None;
        }
        let mut seen = BTreeSet::new();
        let mut up = lines.iter().filter(|line| line.event == "UP");
        up.find(|line| seen.insert(&line.name) && seen.len() == others)
            .map(|line| line.at_ns)
    }

    pub(super) fn signal(&self, signal: Signal) {
        if let Some(process) = &self.process {
            process.signal(signal);
        }
    }

    /// Kills the member and waits for its end.
    pub(super) fn end(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.end();
    }
}

/// Locks the lines, even if a thread panicked while it held the lock.
pub(super) fn lock(lines: &Lines) -> std::sync::MutexGuard<'_, Vec<Line>> {
    lines.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Path of the commands that `ip -batch` executes in a member's namespace.
pub(super) fn network_file(options: &GroupOptions, index: u32) -> PathBuf {
    options.directory.join(format!("network-{index}"))
}

fn spawn(command: &mut Command, options: &GroupOptions) -> std::io::Result<Child> {
    let stdin = match options.network {
        Network::Namespace => Stdio::piped(),
        Network::Loopback(_) => Stdio::null(),
    };
    let log = log_file(&options.directory)?;
    command
        .env("MUSTER_DIR", &options.directory)
        .env("MUSTER_BENCH_MEMBERS", options.members.to_string())
        .env_remove("MUSTER_RAILS")
        .env_remove("MUSTER_SEEDS")
        .env_remove("MUSTER_KEY_FILE")
        .stdin(stdin)
        .stdout(Stdio::piped())
        .stderr(log)
        .spawn()
}

/// The file for the standard error of all members.
fn log_file(directory: &Path) -> std::io::Result<Stdio> {
    let path = directory.join("log");
    let log = std::fs::File::options()
        .append(true)
        .create(true)
        .open(path)?;
    Ok(log.into())
}

fn parse(line: &str) -> Option<Line> {
    let mut fields = line.split(' ');
    let (event, name) = (fields.next()?.to_owned(), fields.next()?.to_owned());
    Some(Line {
        event,
        name,
        at_ns: fields.next()?.parse().ok()?,
    })
}
