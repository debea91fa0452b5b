//! Shared by the end-to-end tests: the programs under test, and members on loopback.
//!
//! Every wait here is for an event and has a generous deadline; a test that reaches it prints what it had
//! seen until then.

pub mod admin;
pub mod clean;
pub mod cluster;
pub mod compile;
pub mod death;
pub mod hosts;
pub mod job;
pub mod launchers;
pub mod local_load;
pub mod nodes;
pub mod outsider;
pub mod process;
pub mod rank;
mod skipped;
pub mod steps;
pub mod table;

pub use skipped::skipped;

use process::Process;
use rustix::event::poll;
use rustix::process::Signal;
use std::ffi::OsStr;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

/// No event takes this long: a longer wait is for an event that does not occur.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// Beginning of the first line of a member.
const STARTED: &str = "READY ";

/// The path of a program or library of this workspace. `scripts/test-programs` builds them all; a test builds none.
///
/// # Panics
/// If it is missing, or older than its sources.
pub fn program(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("a test knows its own path");
    let folder = test.ancestors().nth(2).expect("target/debug/deps/test");
    let path = folder.join(name);
    if let Err(why) = is_current(&path) {
        panic!("{}: {why}; run: sh scripts/test-programs", path.display());
    }
    path
}

/// Whether a program is as new as all its sources, which cargo lists in a file beside it. `scripts/test-programs`
/// renews the time of that file, since cargo leaves a program alone that a changed source does not concern.
fn is_current(program: &Path) -> Result<(), String> {
    let time = |path: &Path| path.metadata().and_then(|facts| facts.modified());
    let built = time(program).map_err(|cause| cause.to_string())?;
    let list = program.with_extension("d");
    let Ok(listed) = std::fs::read_to_string(&list) else {
        return Ok(());
    };
    let built = time(&list).map_or(built, |listed| listed.max(built));
    let (_, sources) = listed.split_once(": ").unwrap_or_default();
    // An unpacked archive has other paths.
    let newer = |source: &&str| time(Path::new(source)).is_ok_and(|changed| changed > built);
    match sources.split_whitespace().find(newer) {
        None => Ok(()),
        Some(source) => Err(format!("it is older than {source}")),
    }
}

/// Makes an executable of this text. Another process writes it: children of other threads would hold it open
/// for a moment, and it could not be executed then ("Text file busy").
///
/// # Panics
/// If it cannot be made.
pub fn make_program(path: &Path, text: &str) {
    let draft = path.with_extension("draft");
    std::fs::write(&draft, text).expect("a file");
    std::fs::set_permissions(&draft, Permissions::from_mode(0o755)).expect("its mode");
    let copied = Command::new("cp").arg("-p").args([&draft, path]).status();
    assert!(copied.expect("cp").success(), "{}", path.display());
    std::fs::remove_file(&draft).expect("a draft");
}

/// Polls until `look` returns a value, where no event exists. Between two polls other processes can run.
///
/// # Panics
/// If there is none before the deadline; `what` describes the expected or the present state.
pub fn until<T>(what: impl Fn() -> String, mut look: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + DEADLINE;
    let moment = Duration::from_millis(10).try_into().expect("a moment");
    loop {
        if let Some(seen) = look() {
            return seen;
        }
        assert!(Instant::now() < end, "time-out: {}", what());
        // Polls no descriptor: a signal only shortens the pause.
        let _ = poll(&mut [], Some(&moment));
    }
}

/// Whether a program can be run with these words in front of it; if not, the reason is printed.
pub fn can(part: &str, words: &[&str]) -> bool {
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).arg("true").stdin(Stdio::null());
    let why = match command.output() {
        Ok(output) if output.status.success() => return true,
        Ok(output) => String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        Err(error) => error.to_string(),
    };
    skipped(part, &format!("no {}: {why}", words.join(" ")));
    false
}

/// The Python of `make setup`, if it has this module; if not, that is printed.
pub fn python_with(module: &str) -> Option<PathBuf> {
    let python = workspace().join("target/venv/bin/python");
    let import = format!("import {module}");
    let words = [python.to_str().expect("a path in UTF-8"), "-c", &import];
    can(module, &words).then_some(python)
}

/// The root of the workspace.
pub fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("tests/ is in the workspace")
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
