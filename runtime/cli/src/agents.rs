//! Chooses the agent that a command talks to: the named one, the one of this job, or the only one.

use super::jobs;
use super::sockets::{answering_sockets, answers, no_agent, within};
use clap::Args;
use muster_ipc::control_socket::SOCKET;
use muster_ipc::{AgentDirectory, DirectoryError, base_directory};
use muster_sys::process::user_id;
use muster_terminal::CliError;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Chooses an agent of this node.
#[derive(Args)]
pub(crate) struct AgentArgs {
    /// The agent's control socket or its directory [default: by MUSTER_JOB].
    ///
    /// Or the directory of its job, such as /tmp/muster-run-PID. Default: an agent of the job MUSTER_JOB, such as
    /// run-PID, else of the only job of this user on this node.
    #[arg(long, value_name = "PATH", env = "MUSTER_CONTROL")]
    agent: Option<PathBuf>,
}

/// Finds the control socket to use.
pub(crate) fn find(args: &AgentArgs) -> Result<PathBuf, CliError> {
    if let Some(path) = &args.agent {
        let found = within(path);
        return match found.is_empty() {
            true => Ok(path.join(SOCKET)),
            // An explicit path overrides MUSTER_JOB.
            false => jobs::choose(found, ""),
        };
    }
    if let Ok(directory) = AgentDirectory::from_environment() {
        // A directory in which another user could have put a socket is not used.
        directory
            .inspect()
            .map_err(|error| unusable_directory(&error))?;
        let path = directory.directory().join(SOCKET);
        if answers(&path) {
            return Ok(path);
        }
    }
    let base = base_directory().map_err(|error| unusable_directory(&error))?;
    let found = answering_sockets(&base);
    match found.len() {
        0 => {
            let why = format!(
                "none of this user runs on this node (searched {})",
                base.display()
            );
            let error = no_agent(why);
            Err(match user_id() {
                0 => error.hint(
                    "start one with musterd, or through a job; to use the agent of another user, as root may, \
                     name its socket: --agent /tmp/muster-UID/DIRECTORY/control",
                ),
                _ => error,
            })
        }
        _ => jobs::choose(found, &std::env::var("MUSTER_JOB").unwrap_or_default()),
    }
}

/// The error if an agent has ended that answered before, such as at the end of a job that is watched.
pub(crate) fn ended(path: &Path) -> CliError {
    let why = format!("the agent at {} has ended", path.display());
    CliError::no_agent("no agent", why).hint(
        "if the job kept a journal (MUSTER_JOURNAL=DIR), muster report DIR shows what happened to it",
    )
}

fn unusable_directory(error: &DirectoryError) -> CliError {
    let denied = match error {
        DirectoryError::Unsafe { .. } => true,
        DirectoryError::System { cause, .. } => cause.kind() == ErrorKind::PermissionDenied,
        _ => false,
    };
    let error = CliError::new("agents", error);
    if denied { error.denied() } else { error }
}

/// The control sockets of all agents of this user on this node that answer, or the named one.
pub(crate) fn find_all(args: &AgentArgs) -> Vec<PathBuf> {
    if let Some(path) = &args.agent {
        let found = within(path);
        return match found.is_empty() {
            true => vec![path.join(SOCKET)],
            false => found,
        };
    }
    base_directory().map_or(Vec::new(), |base| answering_sockets(&base))
}
