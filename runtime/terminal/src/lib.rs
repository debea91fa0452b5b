//! What the command lines `muster`, `muster-lab` and `muster run` share: output that survives a reader that
//! has gone, errors with a remedy and an exit code, processes that are found and ended by pid, colours.
//!
//! This crate does not know any command.
#![forbid(unsafe_code)]

pub mod paint;
pub mod process;

use clap::ValueEnum;
use muster_config::strange_settings;
use std::fmt;
use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::OnceLock;

/// How a command prints what it found.
#[derive(Clone, Copy, ValueEnum)]
pub enum Format {
    /// For people.
    Table,
    /// For programs; with the name of a schema.
    Json,
}

/// Says which variables of the environment are misspelt, or are obeyed by nobody.
pub fn warn_of_strange_settings() {
    for strange in strange_settings() {
        print_error(format_args!("muster: {strange}"));
    }
}

/// Prints an error and returns its exit code.
pub fn complain(error: &CliError) -> ExitCode {
    if !error.is_silent() {
        print_error(format_args!("muster: {error}"));
    }
    ExitCode::from(error.code)
}

/// Writes a line to standard error, at once: of several launchers that speak each is to be understood.
pub fn print_error(text: fmt::Arguments<'_>) {
    let line = format!("{text}\n");
    // Nobody may be reading, which is no reason to panic.
    let _ = io::stderr().write_all(line.as_bytes());
}

/// Why standard output takes nothing any more.
static OUTPUT_FAILED: OnceLock<io::Error> = OnceLock::new();

/// Writes to standard output. After the first failure nothing more is written and the command goes
/// on to its end: it may have processes to end.
pub fn print_out(text: fmt::Arguments<'_>, end: &str) {
    if OUTPUT_FAILED.get().is_some() {
        return;
    }
    let mut output = io::stdout().lock();
    let written = write!(output, "{text}{end}").and_then(|()| output.flush());
    if let Err(cause) = written {
        let _ = OUTPUT_FAILED.set(cause);
    }
}

/// Whether nobody takes what is printed: a command without an end ends then.
pub fn is_output_over() -> bool {
    OUTPUT_FAILED.get().is_some()
}

/// What a command that did its work returns: a reader that had enough is no failure.
pub fn end_of_output() -> ExitCode {
    match OUTPUT_FAILED.get() {
        Some(cause) if cause.kind() != io::ErrorKind::BrokenPipe => {
            eprintln!("muster: standard output cannot be written: {cause}");
            ExitCode::FAILURE
        }
        _ => ExitCode::SUCCESS,
    }
}

/// Why a command failed: what, why, and what to do about it.
#[derive(Debug)]
pub struct CliError {
    what: String,
    why: String,
    hint: Option<String>,
    /// The exit code.
    pub code: u8,
}

impl CliError {
    /// A failure, with exit code 1.
    pub fn new(what: impl Into<String>, why: impl fmt::Display) -> Self {
        Self {
            what: what.into(),
            why: why.to_string(),
            hint: None,
            code: 1,
        }
    }

    /// What was printed says it all.
    pub fn silent(code: u8) -> Self {
        Self::new("", "").exit_code(code)
    }

    fn is_silent(&self) -> bool {
        self.what.is_empty()
    }

    /// No agent answers: exit code 3.
    pub fn no_agent(what: impl Into<String>, why: impl fmt::Display) -> Self {
        Self {
            code: 3,
            ..Self::new(what, why)
        }
    }

    /// A deadline passed: exit code 5.
    pub fn timed_out(what: impl Into<String>, why: impl fmt::Display) -> Self {
        Self {
            code: 5,
            ..Self::new(what, why)
        }
    }

    /// Somebody else's agent, or a place that others can change.
    pub fn denied(self) -> Self {
        self.exit_code(6)
    }

    /// The command line is right, what it names is not.
    pub fn usage(what: impl Into<String>, why: impl fmt::Display) -> Self {
        Self::new(what, why).exit_code(2)
    }

    /// The same error with another exit code.
    pub fn exit_code(self, code: u8) -> Self {
        Self { code, ..self }
    }

    /// The same error with its remedy.
    pub fn hint(self, hint: impl Into<String>) -> Self {
        Self {
            hint: Some(hint.into()),
            ..self
        }
    }
}

impl fmt::Display for CliError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, self.why)?;
        match &self.hint {
            Some(hint) => write!(f, "\nhint: {hint}"),
            None => Ok(()),
        }
    }
}
