//! A member under measurement: any program that prints `UP NAME NS` and `DOWN NAME NS`.
//!
//! The contract is that of `musterd --print-events plain`: options `--name`, `--rail`,
//! `--seed`, one line a change of view, NS in CLOCK_MONOTONIC. Everything else is the
//! driver's, so that no program reports on itself.

use crate::cli::CliError;
use crate::cli::process::Process;
use rustix::process::Signal;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

/// What is measured: a name for the table and the program.
#[derive(Clone, Debug)]
pub(crate) struct System {
    pub(super) name: String,
    pub(super) program: PathBuf,
}

/// A line that a member printed.
#[derive(Clone, Debug)]
pub(super) struct Line {
    pub(super) word: String,
    pub(super) name: String,
    pub(super) at_ns: u64,
}

/// A running member.
pub(super) struct Member {
    child: Child,
    process: Option<Process>,
    lines: Arc<Mutex<Vec<Line>>>,
}

impl Member {
    /// Starts member `index` (from 1) of a group that lives on `127.net.*`.
    pub(super) fn start(
        system: &System,
        directory: &Path,
        net: u8,
        index: u32,
    ) -> Result<Self, CliError> {
        let address = |index: u32| format!("127.{net}.{}.{}@udp0", index / 250, index % 250 + 1);
        let mut child = Command::new(&system.program)
            .args(["--name", &format!("n{index}"), "--print-events", "plain"])
            .args(["--rail", &address(index), "--seed", &address(1)])
            .env("MUSTER_DIR", directory)
            .env_remove("MUSTER_RAILS")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|e| CliError::new(format!("bench: {}", system.program.display()), e))?;
        let lines = Arc::new(Mutex::new(Vec::new()));
        if let Some(output) = child.stdout.take() {
            let lines = Arc::clone(&lines);
            std::thread::spawn(move || {
                for line in BufReader::new(output).lines().map_while(Result::ok) {
                    if let Some(line) = parse(&line) {
                        lines
                            .lock()
                            .unwrap_or_else(PoisonError::into_inner)
                            .push(line);
                    }
                }
            });
        }
        let process = Process::find(child.id());
        Ok(Self {
            child,
            process,
            lines,
        })
    }

    /// Everything it has printed so far.
    pub(super) fn lines(&self) -> Vec<Line> {
        self.lines
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// When it first said `word` of `name` at or after `from_ns`.
    pub(super) fn told(&self, word: &str, name: &str, from_ns: u64) -> Option<u64> {
        let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        let mut found = lines.iter().filter(|l| l.word == word && l.name == name);
        found.find(|l| l.at_ns >= from_ns).map(|l| l.at_ns)
    }

    pub(super) fn signal(&self, signal: Signal) {
        if let Some(process) = &self.process {
            process.signal(signal);
        }
    }

    /// CPU time in ns and resident bytes.
    pub(super) fn cost(&self) -> (u64, u64) {
        let process = self.process.as_ref();
        let cpu = process
            .and_then(Process::schedule)
            .map_or(0, |figures| figures.0);
        (cpu, process.and_then(Process::resident).unwrap_or(0))
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
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
