//! The agent: hosts the protocol on a node's rails, and speaks for the node's ranks.
//!
//! One loop (`event_loop`), two ways to run it: in the foreground as a member without a job, or as
//! the worker of a keeper that serves a job's ranks. The agent moves bytes and facts between
//! rooms; it never finds a verdict itself.
#![forbid(unsafe_code)]

mod admin_endpoint;
mod admin_handlers;
mod args;
mod attributes;
mod cpu_placement;
mod descriptors;
mod drops;
mod event_loop;
mod gossip;
mod gossip_files;
mod incarnation;
pub mod ipc_server;
mod job_key;
mod job_size;
pub mod journal;
mod journal_record;
mod log;
mod log_writer;
mod origin;
mod parent_pipe;
mod participant_discovery;
mod peers;
mod piggyback;
mod printer;
mod priority;
mod publisher;
mod rail_liveness;
mod rail_retry;
mod rails;
mod rank_facts;
mod rank_map;
mod rank_service;
pub mod rendezvous;
mod resume;
mod service;
mod signals;
mod slice;
mod spin_detector;
mod status;
mod supervisor;
mod unauthenticated;
pub mod watch;
mod worker;

use args::{Args, Mode};
use clap::{CommandFactory, FromArgMatches};
use muster_config::{forget_values, refusal};
use muster_ipc::{AgentDirectory, DirectoryError, ListenerError};
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

/// Exit code for a configuration that was refused.
const EXIT_CONFIG: u8 = 7;
/// Exit code for a command line that says nothing.
const EXIT_USAGE: u8 = 2;

/// Opens what was somebody's until now: a process that another test has just started has it for a moment, too.
#[cfg(test)]
fn await_free<T, E: std::fmt::Display>(mut open: impl FnMut() -> Result<T, E>) -> T {
    let start = std::time::Instant::now();
    loop {
        match open() {
            Ok(opened) => return opened,
            // Long enough for any machine.
            Err(error) => assert!(start.elapsed().as_secs() < 60, "{error}"),
        }
        std::thread::yield_now();
    }
}

/// Runs `musterd` and returns its exit code.
pub fn main() -> ExitCode {
    muster_sys::process::forget_empty_settings();
    let words: Vec<_> = std::env::args_os().collect();
    let parsed = command().try_get_matches_from(&words);
    let parsed = parsed.and_then(|matches| Ok((Args::from_arg_matches(&matches)?, matches)));
    let (mut args, matches) = match parsed {
        Ok(parsed) => parsed,
        Err(mut error) => {
            forget_values(&mut error);
            match refusal(&error, command(), &words) {
                Some(refusal) => return refuse(&refusal.to_string(), EXIT_USAGE),
                None => error.exit(),
            }
        }
    };
    if !args.serve_if_alone() {
        let _ = command().print_help();
        return ExitCode::from(EXIT_USAGE);
    }
    let (config, mode) = match args.resolve(&matches) {
        Ok(resolved) => resolved,
        Err(error) => return refuse(&error.to_string(), EXIT_CONFIG),
    };
    match mode {
        Mode::Foreground => {
            log::in_foreground();
            let ended = worker::run_alone(&config);
            log::drain();
            match ended {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => refuse(&error, 1),
            }
        }
        Mode::Job { key, directory } => match serve_job(&key, &directory, &config) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => refuse(&error, 1),
        },
        // Whoever started it waits for its end, so one that is there already is an error.
        Mode::Serve { place } => match supervisor::run(&place, &config) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => refuse(&error.to_string(), 1),
        },
    }
}

/// The command line of `musterd`, for its manual page and its completions.
pub fn command() -> clap::Command {
    Args::command()
}

fn serve_job(
    key: &str,
    directory: &Path,
    config: &muster_config::AgentConfig,
) -> Result<(), String> {
    let place = AgentDirectory::from_key(key, directory)
        .map_err(|error: DirectoryError| error.to_string())?;
    if !supervisor::detach().map_err(|error| format!("cannot detach: {error}"))? {
        // The process that the client waits for; its child is the keeper.
        return Ok(());
    }
    match supervisor::run(&place, config) {
        // Another client was faster: its agent serves this one too.
        Err(supervisor::SupervisorError::Listener(ListenerError::Running { .. })) => Ok(()),
        Err(error) => {
            tracing::error!(%error, "the agent ends");
            Err(error.to_string())
        }
        Ok(()) => Ok(()),
    }
}

fn refuse(why: &str, code: u8) -> ExitCode {
    // In a job standard error leads nowhere; the clients have been told then.
    let line = format!("musterd: {why}\n");
    let _ = std::io::stderr().write_all(line.as_bytes());
    ExitCode::from(code)
}
