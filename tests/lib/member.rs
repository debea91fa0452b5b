//! Agents without ranks, on loopback, and the events that they print.

use crate::DEADLINE;
use crate::process::Process;
use crate::program;
use rustix::process::Signal;
use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::RecvTimeoutError;
use std::time::Instant;

/// Beginning of the first line of a member.
const STARTED: &str = "READY ";

/// How the members `n1`, `n2` and so on of a test are started: each has one rail on each net, and n1 is the seed.
pub struct Members<'a> {
    directory: &'a Path,
    /// The first three bytes of the addresses on the nets `udp0`, `udp1` and so on: `127.61.0`.
    nets: Vec<String>,
    arguments: Vec<&'a str>,
    variables: &'a [(&'a str, &'a OsStr)],
}

impl<'a> Members<'a> {
    /// Members on these nets. `directory` holds their key.
    pub fn new(directory: &'a Path, nets: &[String]) -> Self {
        Self {
            directory,
            nets: nets.to_vec(),
            arguments: Vec::new(),
            variables: &[],
        }
    }

    /// Adds arguments.
    pub fn with_arguments(mut self, arguments: &[&'a str]) -> Self {
        self.arguments.extend(arguments);
        self
    }

    /// Sets further variables.
    pub fn with_variables(mut self, variables: &'a [(&'a str, &'a OsStr)]) -> Self {
        self.variables = variables;
        self
    }

    /// Starts a member.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn start(&self, index: usize) -> Member {
        let nids = |index| {
            let nets = self.nets.iter().enumerate();
            nets.map(move |(rail, net)| format!("{net}.{index}@udp{rail}"))
        };
        let (rails, seed): (Vec<_>, Vec<_>) = (nids(index).collect(), nids(1).collect());
        let seed = seed.join(",");
        let mut arguments = vec!["--seed", &seed];
        arguments.extend(rails.iter().flat_map(|rail| ["--rail", rail]));
        arguments.extend(&self.arguments);
        let name = format!("n{index}");
        Member::start_with(self.directory, &name, &arguments, self.variables)
    }

    /// Starts the first members.
    ///
    /// # Panics
    /// If one cannot be started.
    pub fn start_all(&self, count: usize) -> Vec<Member> {
        (1..=count).map(|index| self.start(index)).collect()
    }

    /// Starts the first members, and waits until each of them has printed that all others are up.
    ///
    /// # Panics
    /// If one cannot be started, or has not before the deadline.
    pub fn start_up(&self, count: usize) -> Vec<Member> {
        let members = self.start_all(count);
        Member::await_all_up(&members);
        members
    }
}

/// A `musterd --print-events plain`. It is killed when dropped.
pub struct Member {
    process: Process,
    /// Its name.
    pub name: String,
}

impl Member {
    /// Starts a member with the given arguments after its name. `directory` holds its key.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn start(directory: &Path, name: &str, arguments: &[&str]) -> Self {
        Self::start_with(directory, name, arguments, &[])
    }

    /// The same with additional environment variables.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn start_with(
        directory: &Path,
        name: &str,
        arguments: &[&str],
        variables: &[(&str, &OsStr)],
    ) -> Self {
        let log = Stdio::inherit();
        Self::start_logging(directory, name, arguments, variables, log)
    }

    /// The same with its own standard error.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn start_logging(
        directory: &Path,
        name: &str,
        arguments: &[&str],
        variables: &[(&str, &OsStr)],
        log: Stdio,
    ) -> Self {
        let mut command = Command::new(program("musterd"));
        command.envs(variables.iter().copied()).stderr(log);
        Self::start_by(command, directory, name, arguments)
    }

    /// The same with a command of the caller that runs `musterd` with the arguments it gets here.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn start_by(
        mut command: Command,
        directory: &Path,
        name: &str,
        arguments: &[&str],
    ) -> Self {
        command
            .args(["--name", name, "--print-events", "plain"])
            .args(arguments)
            .env("MUSTER_DIR", directory)
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        Self {
            process: Process::start(&mut command),
            name: name.to_owned(),
        }
    }

    /// Waits until each of these members has printed that all others are up. Returns all other lines.
    ///
    /// # Panics
    /// If one has not before the deadline.
    pub fn await_all_up(members: &[Member]) -> Vec<String> {
        let others = |member: &Member| {
            let others = members.iter().filter(|other| other.name != member.name);
            let ups: Vec<String> = others.map(|other| format!("UP {}", other.name)).collect();
            member.wait_for(&ups)
        };
        members.iter().flat_map(others).collect()
    }

    /// Waits for the next line, without its time stamp: `UP n3`.
    ///
    /// # Panics
    /// If none comes before the deadline, or the member has ended.
    pub fn next_line(&self) -> String {
        let line = self.line_until(Instant::now() + DEADLINE);
        line.unwrap_or_else(|cause| panic!("{} prints nothing more: {cause}", self.name))
    }

    /// The first line tells only that it runs.
    fn line_until(&self, end: Instant) -> Result<String, RecvTimeoutError> {
        loop {
            let line = self.process.line_until(end)?;
            if !line.starts_with(STARTED) {
                return Ok(without_stamp(&line));
            }
        }
    }

    /// The lines that have been printed and not been taken yet.
    pub fn pending_lines(&self) -> Vec<String> {
        let lines = self.process.pending();
        let events = lines.filter(|line| !line.starts_with(STARTED));
        events.map(|line| without_stamp(&line)).collect()
    }

    /// Waits until each of `expected` has been printed once, in any order. Returns all other lines.
    ///
    /// # Panics
    /// If not all have come before the deadline.
    pub fn wait_for(&self, expected: &[String]) -> Vec<String> {
        let end = Instant::now() + DEADLINE;
        let mut missing = expected.to_vec();
        let mut others = Vec::new();
        while !missing.is_empty() {
            let Ok(line) = self.line_until(end) else {
                panic!(
                    "{}: still missing {missing:?}; other lines: {others:?}",
                    self.name
                );
            };
            match missing.iter().position(|wanted| *wanted == line) {
                Some(index) => drop(missing.swap_remove(index)),
                None => others.push(line),
            }
        }
        others
    }

    /// Waits until it prints that this member is down. It may print a suspicion before: if one of the
    /// observers is late, the first report arrives alone.
    ///
    /// # Panics
    /// If it prints anything else first, or nothing before the deadline.
    pub fn expect_down(&self, name: &str) {
        let mut others = self.wait_for(&[format!("DOWN {name}")]);
        others.retain(|line| *line != format!("SUSPECT {name}"));
        assert_eq!(others, Vec::<String>::new(), "at {}", self.name);
    }

    /// Sends a signal to it.
    pub fn signal(&self, signal: Signal) {
        self.process.signal(signal);
    }

    /// Kills it and waits for its end.
    pub fn kill(mut self) {
        self.process.kill();
    }

    /// Sends SIGTERM and waits for its end. Returns true if it ended in order.
    ///
    /// # Panics
    /// If it does not end before the deadline.
    pub fn leave(mut self) -> bool {
        self.signal(Signal::TERM);
        self.process.end().success()
    }
}

/// A line without its third word, the time.
fn without_stamp(line: &str) -> String {
    let words = line.split(' ').enumerate().filter(|(at, _)| *at != 2);
    words.map(|(_, word)| word).collect::<Vec<_>>().join(" ")
}
