//! A member under measurement: any program that prints `READY`, `UP` and `DOWN NAME NS`.
//!
//! The contract is that of `musterd --print-events plain`: options `--name`, `--rail`, `--seed`,
//! `--profile`, one line a change of view, NS in CLOCK_MONOTONIC. Everything else is the
//! driver's, so that no program reports on itself. A member ends with the driver, even if that
//! one is killed (see `launch`), and with it the network namespace that it lives in.

use super::launch;
use muster_terminal::CliError;
use muster_terminal::process::{Process, monotonic_ns};
use rustix::process::Signal;
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

/// What is measured: a name for the table and the program.
#[derive(Clone, Debug)]
pub(crate) struct System {
    pub(super) name: String,
    pub(super) program: PathBuf,
}

/// Where and how the members of a group run.
#[derive(Clone, Debug)]
pub(super) struct Terms {
    pub(super) members: u32,
    pub(super) rails: u32,
    pub(super) profile: String,
    pub(super) directory: PathBuf,
    pub(super) home: Home,
    /// Without the right to real-time scheduling.
    pub(super) unprivileged: bool,
}

/// What a member's addresses belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Home {
    /// 127.NET.*, the same interface for all.
    Loopback(u8),
    /// A network namespace of its own, 10.77.*.
    Namespace,
}

impl Terms {
    /// Address of a member (from 1) on a rail (from 0), without the net.
    pub(super) fn address(&self, index: u32, rail: u32) -> String {
        match self.home {
            Home::Loopback(net) => format!("127.{net}.{rail}.{index}"),
            Home::Namespace => format!("10.77.{rail}.{index}"),
        }
    }

    fn nid(&self, index: u32, rail: u32) -> String {
        format!("{}@udp{rail}", self.address(index, rail))
    }
}

/// A line that a member printed.
#[derive(Clone, Debug)]
pub(super) struct Line {
    pub(super) word: String,
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
    /// Held until the member may go on; see [`Member::go`].
    gate: Option<ChildStdin>,
    process: Option<Process>,
    lines: Lines,
}

impl Member {
    /// Starts member `index` (from 1). One that lives in a namespace waits for its network.
    pub(super) fn start(system: &System, terms: &Terms, index: u32) -> Result<Self, CliError> {
        let mut command = launch::command(terms.home == Home::Namespace, terms.unprivileged);
        if terms.home == Home::Namespace {
            command.arg("--network").arg(network_file(terms, index));
        }
        command.arg("--").arg(&system.program);
        let name = format!("n{index}");
        command.args(["--name", &name, "--print-events", "plain"]);
        for rail in 0..terms.rails {
            command.args(["--rail", &terms.nid(index, rail)]);
        }
        let seed: Vec<String> = (0..terms.rails).map(|rail| terms.nid(1, rail)).collect();
        command.args(["--seed", &seed.join(","), "--profile", &terms.profile]);
        let started_ns = monotonic_ns();
        let mut child = spawn(&mut command, terms)
            .map_err(|e| CliError::new(format!("bench: {}", system.program.display()), e))?;
        let lines = Lines::default();
        if let Some(output) = child.stdout.take() {
            let lines = Arc::clone(&lines);
            std::thread::spawn(move || {
                for line in BufReader::new(output).lines().map_while(Result::ok) {
                    if let Some(line) = parse(&line) {
                        held(&lines).push(line);
                    }
                }
            });
        }
        Ok(Self {
            name,
            index,
            started_ns,
            gate: child.stdin.take(),
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

    /// Lets a member that waits for its network go on.
    pub(super) fn go(&mut self) {
        if let Some(mut gate) = self.gate.take() {
            // One that has ended meanwhile is found out by what it does not say.
            let _ = writeln!(gate, "go");
        }
    }

    /// Everything it has printed and will print.
    pub(super) fn lines(&self) -> Lines {
        Arc::clone(&self.lines)
    }

    /// When it first said `word` of `name` at or after `from_ns`.
    pub(super) fn told(&self, word: &str, name: &str, from_ns: u64) -> Option<u64> {
        let lines = held(&self.lines);
        let mut found = lines.iter().filter(|line| line.at_ns >= from_ns);
        found
            .find(|line| line.name == name && line.word == word)
            .map(|line| line.at_ns)
    }

    /// The last that it said of this member: UP, DOWN or LEFT.
    pub(super) fn last_word(&self, name: &str) -> Option<String> {
        let lines = held(&self.lines);
        let mut words = lines.iter().rev().filter(|line| line.name == name);
        words
            .find(|line| matches!(line.word.as_str(), "UP" | "DOWN" | "LEFT"))
            .map(|line| line.word.clone())
    }

    /// When it was ready, by its own word.
    pub(super) fn ready_ns(&self) -> Option<u64> {
        self.told("READY", &self.name, 0)
    }

    /// When it had seen so many others.
    pub(super) fn full_ns(&self, others: usize) -> Option<u64> {
        let lines = held(&self.lines);
        // Asked again and again while a group boots: not to be felt there.
        if lines.len() < others {
            return None;
        }
        let mut seen = BTreeSet::new();
        let mut up = lines.iter().filter(|line| line.word == "UP");
        up.find(|line| seen.insert(&line.name) && seen.len() == others)
            .map(|line| line.at_ns)
    }

    pub(super) fn signal(&self, signal: Signal) {
        if let Some(process) = &self.process {
            process.signal(signal);
        }
    }

    /// Kills it and waits for its end.
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

/// The lines, whatever happened to a thread that held them.
pub(super) fn held(lines: &Lines) -> std::sync::MutexGuard<'_, Vec<Line>> {
    lines.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What `ip -batch` is to do in a member's namespace.
pub(super) fn network_file(terms: &Terms, index: u32) -> PathBuf {
    terms.directory.join(format!("network-{index}"))
}

fn spawn(command: &mut Command, terms: &Terms) -> std::io::Result<Child> {
    let stdin = match terms.home {
        Home::Namespace => Stdio::piped(),
        Home::Loopback(_) => Stdio::null(),
    };
    let log = log_file(&terms.directory)?;
    command
        .env("MUSTER_DIR", &terms.directory)
        .env("MUSTER_BENCH_MEMBERS", terms.members.to_string())
        .env_remove("MUSTER_RAILS")
        .env_remove("MUSTER_SEEDS")
        .env_remove("MUSTER_KEY_FILE")
        .stdin(stdin)
        .stdout(Stdio::piped())
        .stderr(log)
        .spawn()
}

/// What members say on standard error, all of them in one file.
fn log_file(directory: &Path) -> std::io::Result<Stdio> {
    let path = directory.join("log");
    let log = std::fs::File::options()
        .append(true)
        .create(true)
        .open(path)?;
    Ok(log.into())
}

fn parse(line: &str) -> Option<Line> {
    let mut words = line.split(' ');
    let (word, name) = (words.next()?.to_owned(), words.next()?.to_owned());
    Some(Line {
        word,
        name,
        at_ns: words.next()?.parse().ok()?,
    })
}
