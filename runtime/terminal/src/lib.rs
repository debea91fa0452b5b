//! What the command lines `muster`, `muster-lab` and `muster run` share: output that survives a reader that
//! has gone, errors with a remedy and an exit code, processes that are found and ended by pid, colours.
//!
//! This crate does not know any command.
#![forbid(unsafe_code)]

/// Replaces `println!` of the standard library: a closed pipe (`muster members | head`) or a full disk does not panic;
/// see [`print_out`].
#[macro_export]
macro_rules! println {
    ($($part:tt)*) => { $crate::print_out(format_args!($($part)*), "\n") };
}

/// [`println!`] without the end of the line.
#[macro_export]
macro_rules! print {
    ($($part:tt)*) => { $crate::print_out(format_args!($($part)*), "") };
}

mod command_line;
pub mod paint;
pub mod process;
mod progress;
mod refusal;

pub use command_line::refusal;
pub use progress::Progress;
pub use refusal::Refusal;

use clap::{Command, ValueEnum};
use muster_config::strange_settings;
use std::ffi::OsString;
use std::fmt;
use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::OnceLock;

/// The format of a command's output.
#[derive(Clone, Copy, ValueEnum)]
pub enum Format {
    /// For people.
    Table,
    /// For programs; with the name of a schema.
    Json,
}

/// Warns of environment variables of Muster that are misspelt, or that no component reads.
pub fn warn_of_strange_settings() {
    for strange in strange_settings() {
        print_error(format_args!("muster: {strange}"));
    }
}

/// The command of this process as it was typed, such as `muster rails add`.
static COMMAND: OnceLock<String> = OnceLock::new();

/// Sets the command that errors name, from the command line of this process.
pub fn set_command(command: Command, words: &[OsString]) {
    let _ = COMMAND.set(command_line::typed(command, words));
}

/// Prints an error with its command and returns its exit code.
pub fn print_cli_error(error: &CliError) -> ExitCode {
    if !error.is_silent() {
        let command = COMMAND.get().map_or("muster", String::as_str);
        print_error(format_args!("{}", error.of_command(command)));
    }
    ExitCode::from(error.code)
}

/// Prints why a command line was refused and returns the exit code of wrong usage.
pub fn print_refusal(refusal: &Refusal) -> ExitCode {
    print_error(format_args!("{refusal}"));
    ExitCode::from(EXIT_USAGE)
}

/// The exit code of wrong usage.
const EXIT_USAGE: u8 = 2;

/// Writes a line to standard error with a single write, so that lines of several launchers do not mix.
pub fn print_error(text: fmt::Arguments<'_>) {
    let line = format!("{text}\n");
    // The reader may have gone; that must not panic.
    let _ = io::stderr().write_all(line.as_bytes());
}

/// The first error of standard output.
static OUTPUT_FAILED: OnceLock<io::Error> = OnceLock::new();

/// Writes to standard output. After the first failure nothing more is written. The command continues to its end, since
/// it may have processes to end.
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

/// Whether writing to standard output has failed. A command that would run without end returns then.
pub fn is_output_over() -> bool {
    OUTPUT_FAILED.get().is_some()
}

/// The exit code of a command that succeeded: failure if its output could not be written. A closed pipe is no failure.
pub fn end_of_output() -> ExitCode {
    match OUTPUT_FAILED.get() {
        Some(cause) if cause.kind() != io::ErrorKind::BrokenPipe => {
            print_error(format_args!(
                "muster: standard output cannot be written: {cause}"
            ));
            ExitCode::FAILURE
        }
        _ => ExitCode::SUCCESS,
    }
}

/// An error of a command: what failed, why, a remedy, and the exit code.
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

    /// An error that prints nothing, since the output has the details already.
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

    /// Sets the exit code for a denial: the agent of another user, or a directory that other users can change.
    pub fn denied(self) -> Self {
        self.exit_code(6)
    }

    /// An error in the arguments that the parser cannot find.
    pub fn usage(what: impl Into<String>, why: impl fmt::Display) -> Self {
        Self::new(what, why).exit_code(EXIT_USAGE)
    }

    /// The error as a text that begins with the command. Words of the command at the start of the error are not
    /// repeated.
    fn of_command(&self, command: &str) -> String {
        let text = self.to_string();
        let mut rest = &text[..];
        for word in command.split(' ').skip(1) {
            let after = rest.strip_prefix(word);
            match after.filter(|after| after.starts_with([' ', ':'])) {
                Some(after) => rest = after.strip_prefix(' ').unwrap_or(after),
                None => break,
            }
        }
        match rest.starts_with(':') || rest.len() == text.len() {
            true => format!("{command}: {}", rest.trim_start_matches(": ")),
            false => format!("{command} {rest}"),
        }
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

#[cfg(test)]
mod tests {
    use super::CliError;

    #[test]
    fn an_error_names_its_command_once() {
        for (command, what, text) in [
            ("muster", "no agent", "muster: no agent: why"),
            (
                "muster members",
                "no agent",
                "muster members: no agent: why",
            ),
            ("muster run", "run", "muster run: why"),
            ("muster run", "run: signals", "muster run: signals: why"),
            ("muster bench killed", "bench", "muster bench killed: why"),
            (
                "muster gossip init",
                "gossip init: f",
                "muster gossip init: f: why",
            ),
            ("muster stats", "stats --rate", "muster stats --rate: why"),
            ("muster run", "running", "muster run: running: why"),
        ] {
            assert_eq!(CliError::new(what, "why").of_command(command), text);
        }
    }
}
