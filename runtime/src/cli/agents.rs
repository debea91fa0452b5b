//! Which agent a command talks to: the one that was named, the one of this job, the only one.

use super::CliError;
use crate::doorman::{Place, PlaceError, base_directory};
use crate::sys::process::user_id;
use crate::sys::stream;
use clap::Args;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long an agent may take to let somebody in, before it counts as there and busy.
const PATIENCE: Duration = Duration::from_millis(200);

/// Chooses an agent of this node.
#[derive(Args)]
pub(crate) struct AgentArgs {
    /// The agent's control socket, or the directory that it is in [default: the agent of this
    /// job, else the only agent of this user on this node].
    #[arg(long, value_name = "PATH", env = "MUSTER_CONTROL")]
    agent: Option<PathBuf>,
}

pub(crate) use crate::client::control::SOCKET;
/// How the control socket of a member without a job ends, under the base directory.
pub(crate) const MEMBER_SUFFIX: &str = ".control";

/// The control socket to use.
pub(crate) fn find(args: &AgentArgs) -> Result<PathBuf, CliError> {
    if let Some(path) = &args.agent {
        return Ok(if path.is_dir() {
            path.join(SOCKET)
        } else {
            path.clone()
        });
    }
    if let Ok(place) = Place::from_environment() {
        // Where somebody else could have put a socket, nobody is spoken to.
        place.inspect().map_err(|error| no_place(&error))?;
        let path = place.directory().join(SOCKET);
        if answers(&path) {
            return Ok(path);
        }
    }
    let base = base_directory().map_err(|error| no_place(&error))?;
    let mut found: Vec<PathBuf> = candidates(&base)
        .into_iter()
        .filter(|p| answers(p))
        .collect();
    found.sort();
    match found.len() {
        0 => {
            let why = format!(
                "none of yours runs on this node (looked in {})",
                base.display()
            );
            let error = no_agent(why);
            Err(match user_id() {
                0 => error.hint(
                    "start one with musterd, or through a job; to ask that of another user, as root may, \
                     name its socket: --agent /tmp/muster-UID/DIRECTORY/control",
                ),
                _ => error,
            })
        }
        1 => Ok(found.remove(0)),
        _ => {
            let list: Vec<_> = found
                .iter()
                .map(|path| path.display().to_string())
                .collect();
            Err(CliError::new(
                "which agent",
                format!("there are several:\n  {}", list.join("\n  ")),
            )
            .hint("choose one with --agent PATH"))
        }
    }
}

/// The error for an agent that is not there: exit code 3.
pub(crate) fn no_agent(why: String) -> CliError {
    CliError::no_agent("no agent", why)
        .hint("start one with musterd, or through a job; see README.md")
}

fn no_place(error: &PlaceError) -> CliError {
    let denied = match error {
        PlaceError::Unsafe { .. } => true,
        PlaceError::System { cause, .. } => cause.kind() == ErrorKind::PermissionDenied,
        _ => false,
    };
    let error = CliError::new("agents", error);
    if denied { error.denied() } else { error }
}

/// The control sockets of all agents of this user on this node that answer, or the one that was named.
pub(crate) fn find_all(args: &AgentArgs) -> Vec<PathBuf> {
    if args.agent.is_some() {
        return find(args).into_iter().collect();
    }
    let mut found: Vec<PathBuf> = base_directory().map_or(Vec::new(), |base| candidates(&base));
    found.retain(|path| answers(path));
    found.sort();
    found
}

pub(crate) fn candidates(base: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(base) else {
        return Vec::new();
    };
    let control = |entry: std::fs::DirEntry| {
        let path = entry.path();
        let is_member = entry.file_name().to_string_lossy().ends_with(MEMBER_SUFFIX);
        if is_member {
            Some(path)
        } else {
            path.is_dir().then(|| path.join(SOCKET))
        }
    };
    entries.flatten().filter_map(control).collect()
}

/// A dead agent's socket is there, but nobody answers.
pub(crate) fn answers(path: &Path) -> bool {
    stream::is_anybody_there(path, PATIENCE)
}
