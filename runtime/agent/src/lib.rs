//! The agent `musterd`: runs the engine on a node's rails, and serves the node's ranks.
//!
//! One loop (`event_loop`) runs in one of two ways: in the foreground as a member without a job, or in the worker of
//! a supervisor that serves a job's ranks. The agent only moves data between engine, fabric, ranks and operators; it
//! declares no member failed itself. The engine does that.
//!
//! A module uses only modules of lower layers. From bottom to top:
//!
//! 1. Facts and mechanisms: `ending`, `slice`, `line_queue`, `resume`, `incarnation`, `descriptors`, `rail_retry`,
//!    `job_key`, `job_size`, `rank_map`, `parent_pipe`, `publisher`, `peers`, `status`, `priority` and others.
//! 2. Parts with threads: `watch`, `ipc_server`, `journal`, `log`, `participant_discovery`.
//! 3. What the loop drives: `rails`, `pending_change`, `rank_service`, `piggyback`, `admin_endpoint`.
//! 4. `event_loop`: its steps, each in a module below it.
//! 5. `worker`: opens the rails, starts the engine and runs the loop on the `inherited_state`.
//! 6. `supervisor`: holds that state and forks workers.
//! 7. This page: the command line (`args`) and the choice between both ways.

#![forbid(unsafe_code)]

mod admin_endpoint;
mod args;
mod cpu_placement;
mod descriptors;
mod difference;
mod drops;
mod ending;
mod event_loop;
mod gossip_files;
mod incarnation;
mod inherited_state;
pub mod ipc_server;
mod job_key;
mod job_size;
mod journal;
mod journal_record;
mod line_queue;
mod log;
mod log_writer;
mod origin;
mod parent_pipe;
mod participant_discovery;
mod peers;
mod pending_change;
mod piggyback;
mod printer;
mod priority;
mod publisher;
mod rail_retry;
mod rails;
mod rank_facts;
mod rank_map;
mod rank_service;
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
use muster_ipc::{AgentDirectory, DirectoryError, ListenerError};
use muster_terminal::{print_error, refusal};
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

/// Exit code for a configuration that was refused.
const EXIT_CONFIG: u8 = 7;
/// Exit code for a command line without effect.
const EXIT_USAGE: u8 = 2;

/// Retries `open` until it succeeds. A process that another test has just forked may hold the lock or port for a
/// moment.
#[cfg(test)]
fn await_free<T, E: std::fmt::Display>(mut open: impl FnMut() -> Result<T, E>) -> T {
    let start = std::time::Instant::now();
    loop {
        match open() {
            Ok(opened) => return opened,
            // Sufficient on any machine.
            Err(error) => assert!(start.elapsed().as_secs() < 60, "{error}"),
        }
        std::thread::yield_now();
    }
}

/// Runs `musterd` and returns its exit code.
pub fn main() -> ExitCode {
    muster_sys::process::forget_empty_settings();
    let arguments: Vec<_> = std::env::args_os().collect();
    let parsed = command().try_get_matches_from(&arguments);
    let parsed = parsed.and_then(|matches| Ok((Args::from_arg_matches(&matches)?, matches)));
    let (mut args, matches) = match parsed {
        Ok(parsed) => parsed,
        Err(error) => {
            let Some(refusal) = refusal(&error, command(), &arguments) else {
                error.exit();
            };
            print_error(format_args!("{refusal}"));
            return ExitCode::from(EXIT_USAGE);
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
        // The parent waits for the agent's end, so an agent that runs already is an error.
        Mode::Serve { agent_directory } => match supervisor::run(&agent_directory, &config) {
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
    let agent_directory = AgentDirectory::from_key(key, directory)
        .map_err(|error: DirectoryError| error.to_string())?;
    if !supervisor::detach().map_err(|error| format!("cannot detach: {error}"))? {
        // The process that the client waits for. Its child is the supervisor.
        return Ok(());
    }
    match supervisor::run(&agent_directory, config) {
        // Another client was faster. Its agent serves this client too.
        Err(supervisor::SupervisorError::Listener(ListenerError::Running { .. })) => Ok(()),
        Err(error) => {
            tracing::error!(%error, "the agent ends");
            Err(error.to_string())
        }
        Ok(()) => Ok(()),
    }
}

fn refuse(why: &str, code: u8) -> ExitCode {
    // In a job standard error is not visible; the clients were informed through the socket.
    let line = format!("musterd: {why}\n");
    let _ = std::io::stderr().write_all(line.as_bytes());
    ExitCode::from(code)
}
