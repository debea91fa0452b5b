//! Finds the control sockets of agents on this node.

use muster_ipc::control_socket::{MEMBER_SUFFIX, SOCKET};
use muster_launch::command::emulate::{AGENTS as RUN_AGENTS, PREFIX as RUN_PREFIX};
use muster_sys::process::user_id;
use muster_sys::stream;
use muster_terminal::CliError;
use std::fs::DirEntry;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Time in which an agent must accept a connection. An agent that takes longer counts as running and busy.
const ACCEPT_TIMEOUT: Duration = Duration::from_millis(200);

/// The error if no agent runs: exit code 3.
pub(crate) fn no_agent(why: String) -> CliError {
    CliError::no_agent("no agent", why)
        .hint("start one with musterd, or through a job; see muster(7)")
}

/// The socket itself, or the sockets in a directory: of an agent, of a job, or of a `muster run`.
pub(crate) fn within(path: &Path) -> Vec<PathBuf> {
    let own = path.join(SOCKET);
    if !path.is_dir() {
        return vec![path.to_owned()];
    }
    if own.exists() {
        return vec![own];
    }
    let mut found = candidates(path);
    found.extend(candidates(&path.join(RUN_AGENTS)));
    found.retain(|path| answers(path));
    found.sort();
    found
}

/// The sockets that answer: in `base` and, unless MUSTER_DIR is set, in the directories of `muster run`.
pub(crate) fn answering_sockets(base: &Path) -> Vec<PathBuf> {
    let mut found = candidates(base);
    if std::env::var_os("MUSTER_DIR").is_none_or(|named| named.is_empty()) {
        found.extend(of_runs(&std::env::temp_dir()));
    }
    found.retain(|path| answers(path));
    found.sort();
    found
}

/// Sockets of agents that `muster run` started for emulated nodes. They are in a directory per run, which is removed
/// with the job. Only directories that no other user can change are searched.
fn of_runs(base: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(base).into_iter().flatten().flatten();
    let is_own = |entry: &DirEntry| {
        let name = entry.file_name();
        let is_run = name.as_encoded_bytes().starts_with(RUN_PREFIX.as_bytes());
        is_run
            && entry.path().symlink_metadata().is_ok_and(|found| {
                found.is_dir() && found.uid() == user_id() && found.mode() & 0o077 == 0
            })
    };
    entries
        .filter(is_own)
        .flat_map(|entry| candidates(&entry.path().join(RUN_AGENTS)))
        .collect()
}

/// The directory of the `muster run` to which the agent of this socket belongs.
pub(crate) fn run_of(socket: &Path) -> Option<&Path> {
    let agents = socket.parent()?.parent()?;
    let run = agents.parent()?;
    let name = run.file_name()?.as_encoded_bytes();
    let is_run = agents.ends_with(RUN_AGENTS) && name.starts_with(RUN_PREFIX.as_bytes());
    is_run.then_some(run)
}

/// The places of control sockets in this directory, whether or not there is a socket.
pub(crate) fn candidates(base: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(base) else {
        return Vec::new();
    };
    let control = |entry: DirEntry| {
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

/// Whether an agent answers at this socket. The socket of an agent that was killed exists, but does not accept.
pub(crate) fn answers(path: &Path) -> bool {
    stream::is_anybody_there(path, ACCEPT_TIMEOUT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    /// run-2.
    #[test]
    fn agents_of_a_run_are_found_only_in_private_directories() {
        let place = tempfile::tempdir().unwrap();
        let make = |run: &str, mode: u32| {
            let agents = place.path().join(run).join(RUN_AGENTS);
            for node in ["a", "b"] {
                fs::create_dir_all(agents.join(node)).unwrap();
            }
            fs::set_permissions(place.path().join(run), Permissions::from_mode(mode)).unwrap();
            ["a", "b"].map(|node| agents.join(node).join(SOCKET))
        };
        let own = make("muster-run-7", 0o700);
        make("muster-run-8", 0o755);
        make("other-9", 0o700);
        let mut found = of_runs(place.path());
        found.sort();
        assert_eq!(found, own);
        let run = place.path().join("muster-run-7");
        assert!(found.iter().all(|socket| run_of(socket) == Some(&run)));
        assert_eq!(run_of(&place.path().join("key/control")), None);
    }
}
