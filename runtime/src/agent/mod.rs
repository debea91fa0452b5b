//! The agent: hosts the protocol on a node's rails, and speaks for the node's ranks.
//!
//! One loop (`host`), two ways to run it: in the foreground as a member without a job, or as
//! the worker of a keeper that serves a job's ranks. The agent moves bytes and facts between
//! rooms; it never finds a verdict itself.

mod args;
mod attributes;
mod changes;
mod drops;
mod hearing;
mod host;
mod job;
mod keeper;
mod log;
mod outbox;
mod printer;
mod publisher;
mod rails;
mod resume;
mod seat;
mod signals;
mod status;
mod worker;

use crate::doorman::{DoorError, Place, PlaceError};
use args::{Args, Mode};
use clap::{CommandFactory, Parser};
use std::path::Path;
use std::process::ExitCode;

/// Exit code for a configuration that was refused.
const EXIT_CONFIG: u8 = 7;

/// Runs `musterd` and returns its exit code.
pub fn main() -> ExitCode {
    crate::sys::process::forget_empty_settings();
    let (config, mode) = match Args::parse().resolve() {
        Ok(resolved) => resolved,
        Err(error) => return refuse(&error.to_string(), EXIT_CONFIG),
    };
    match mode {
        Mode::Foreground => {
            log::to_stderr();
            match worker::run_alone(&config) {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => refuse(&error, 1),
            }
        }
        Mode::Job { key, directory } => match serve_job(&key, &directory, &config) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => refuse(&error, 1),
        },
    }
}

/// The command line of `musterd`, for its manual page and its completions.
pub(crate) fn command() -> clap::Command {
    Args::command()
}

fn serve_job(
    key: &str,
    directory: &Path,
    config: &crate::config::AgentConfig,
) -> Result<(), String> {
    let place = Place::from_key(key, directory).map_err(|error: PlaceError| error.to_string())?;
    if !keeper::detach().map_err(|error| format!("cannot detach: {error}"))? {
        // The process that the client waits for; its child is the keeper.
        return Ok(());
    }
    match keeper::run(&place, config) {
        // Another client was faster: its agent serves this one too.
        Err(keeper::KeeperError::Door(DoorError::Running { .. })) => Ok(()),
        Err(error) => {
            tracing::error!(%error, "the agent ends");
            Err(error.to_string())
        }
        Ok(()) => Ok(()),
    }
}

fn refuse(why: &str, code: u8) -> ExitCode {
    // In a job standard error leads nowhere; the clients have been told then.
    eprintln!("musterd: {why}");
    ExitCode::from(code)
}
