//! The agent's socket and its lock: whoever has them is the agent of this place.

use std::collections::VecDeque;
use std::fs::{self, File, Metadata, Permissions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::directory::{AgentDirectory, DirectoryError};
use super::message::{REASON_MAX, RefusalCode, ToClient};
use muster_sys::lock;
use muster_sys::poll::readable;
use muster_sys::socket::{PacketListener, Packets};

/// Most refused clients whose connections are kept until they have heard why.
const TOLD_MAX: usize = 256;
/// How long a predecessor that does not listen any more may take to end.
const SUCCESSION: Duration = Duration::from_secs(2);

/// Why this process cannot be the agent here. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum ListenerError {
    /// The directory cannot be used.
    #[error(transparent)]
    AgentDirectory(#[from] DirectoryError),
    /// There is one already.
    #[error("an agent is running already: it holds {lock}")]
    Running {
        /// The lock it holds.
        lock: PathBuf,
    },
    /// The system refused.
    #[error("cannot listen at {path}: {cause}")]
    System {
        /// The socket.
        path: PathBuf,
        /// The system's answer.
        cause: io::Error,
    },
}

/// A listening socket with its lock. Forked workers share both with their keeper; connections
/// that come while no worker lives wait in the socket's queue. Whoever cleans up under a living agent
/// makes room for another; so each takes away only what is its own.
#[derive(Debug)]
pub struct Listener {
    listener: PacketListener,
    lock: File,
    path: PathBuf,
    /// What it bound: as long as it listens, no other file has the same numbers.
    bound: FileNumbers,
}

impl Listener {
    /// Prepares the directory, takes the lock and listens. A socket that a killed agent left is
    /// replaced; a lock that one left is free, as its holder is gone. One that has taken its
    /// socket away is on its way out: its lock is waited for.
    pub fn open(directory: &AgentDirectory) -> Result<Self, ListenerError> {
        directory.prepare()?;
        let path = directory.socket();
        let system = |cause| ListenerError::System {
            path: directory.socket(),
            cause,
        };
        let until = Instant::now() + SUCCESSION;
        let lock = loop {
            match lock::try_lock(&directory.lock()) {
                // One that its holder has removed meanwhile is nobody's: the next one counts.
                Ok(Some(lock)) if is_own_lock(&lock, directory) => break lock,
                Ok(Some(_)) => directory.prepare()?,
                Ok(None) => {}
                Err(cause) if cause.kind() == io::ErrorKind::NotFound => directory.prepare()?,
                Err(cause) => return Err(system(cause)),
            }
            if Instant::now() >= until || Packets::connect(&path).is_ok() {
                return Err(ListenerError::Running {
                    lock: directory.lock(),
                });
            }
            std::thread::sleep(SUCCESSION / 400);
        };
        // Bound under another name first: a client never finds the path without a listener.
        let fresh = directory.directory().join("sock.new");
        let _ = fs::remove_file(&fresh);
        let listener = PacketListener::bind(&fresh).map_err(system)?;
        fs::set_permissions(&fresh, Permissions::from_mode(0o600)).map_err(system)?;
        let bound = fs::symlink_metadata(&fresh).map_err(system)?;
        fs::rename(&fresh, &path).map_err(system)?;
        Ok(Self {
            listener,
            lock,
            path,
            bound: numbers(&bound),
        })
    }

    /// The same door once more, as a forked worker has it.
    ///
    /// # Errors
    /// The system gives no more descriptors.
    pub fn share(&self) -> io::Result<Self> {
        Ok(Self {
            listener: self.listener.as_fd().try_clone_to_owned()?.into(),
            lock: self.lock.try_clone()?,
            path: self.path.clone(),
            bound: self.bound,
        })
    }

    /// The listening socket.
    pub fn listener(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    /// The lock's file.
    pub fn lock(&self) -> BorrowedFd<'_> {
        self.lock.as_fd()
    }

    /// Takes the socket away, so that the next client starts a new agent. For an agent that ends.
    pub fn close(self) {
        self.take_away();
    }

    /// Takes everything away that this place has, the log too: nobody needs it after an orderly end.
    /// To be called by the last process of an agent; whoever comes meanwhile begins anew. If the lock is
    /// another agent's by now, so is the place. The log stays if somebody is going to read it.
    pub fn clear_away(self, directory: &AgentDirectory, with_log: bool) {
        self.take_away();
        if !is_own_lock(&self.lock, directory) {
            return;
        }
        if with_log {
            let _ = fs::remove_file(directory.log());
        }
        directory.sweep();
    }

    /// Takes the socket away; who is connected stays that.
    pub fn take_away(&self) {
        let found = fs::symlink_metadata(&self.path);
        if found.is_ok_and(|found| numbers(&found) == self.bound) {
            let _ = fs::remove_file(&self.path);
        }
    }

    /// Tells everybody who comes within two seconds why there will be no agent, and takes the
    /// socket away. For an agent that cannot start: its clients would wait in vain.
    pub fn refuse_all(&self, reason: &str) {
        const PATIENCE: Duration = Duration::from_secs(2);
        let mut length = reason.len().min(REASON_MAX);
        while !reason.is_char_boundary(length) {
            length -= 1;
        }
        let reason = reason[..length].to_owned();
        let refusal = ToClient::Refused(RefusalCode::NoAgent, reason).encode();
        let end = Instant::now() + PATIENCE;
        // They hang up when they have heard it; whom we would hang up on might not.
        let mut told = VecDeque::new();
        loop {
            while let Ok(Some(client)) = self.accept() {
                // A client that has gone in the meantime needs no answer.
                let _ = client.send(&refusal, None);
                if told.len() == TOLD_MAX {
                    told.pop_front();
                }
                told.push_back(client);
            }
            let rest = end.saturating_duration_since(Instant::now());
            if rest.is_zero() || readable(&[self.listener()], Some(rest)).is_err() {
                break;
            }
        }
        self.take_away();
    }

    /// Accepts a connection; `None` if none waits.
    ///
    /// # Errors
    /// The system's answer.
    pub fn accept(&self) -> io::Result<Option<Packets>> {
        self.listener.accept()
    }
}

/// Device and inode.
type FileNumbers = (u64, u64);

fn numbers(file: &Metadata) -> FileNumbers {
    (file.dev(), file.ino())
}

/// Whether this open file is the lock at the place.
fn is_own_lock(lock: &File, directory: &AgentDirectory) -> bool {
    match (lock.metadata(), fs::symlink_metadata(directory.lock())) {
        (Ok(ours), Ok(theirs)) => numbers(&ours) == numbers(&theirs),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory(base: &tempfile::TempDir) -> AgentDirectory {
        AgentDirectory::find(Some("door"), Some("n"), Some(base.path())).unwrap()
    }

    /// Somebody cleans up under an agent, and another one comes: the end of the first must not take the
    /// second one's socket, lock and log away.
    #[test]
    fn an_agent_that_ends_leaves_what_is_anothers() {
        let base = tempfile::tempdir().unwrap();
        let directory = directory(&base);
        let open = || Listener::open(&directory).unwrap();
        for orderly in [true, false] {
            let first = open();
            fs::remove_dir_all(directory.directory()).unwrap();
            let second = open();
            fs::write(directory.log(), "of the second").unwrap();
            match orderly {
                true => first.clear_away(&directory, true),
                false => first.close(),
            }
            assert!(Packets::connect(&directory.socket()).is_ok(), "{orderly}");
            assert!(directory.log().exists() && is_own_lock(&second.lock, &directory));
            second.clear_away(&directory, true);
            assert!(!directory.directory().exists(), "its own it takes away");
        }
    }

    #[test]
    fn an_agent_whose_lock_was_taken_away_takes_its_socket_and_no_more() {
        let base = tempfile::tempdir().unwrap();
        let directory = directory(&base);
        let listener = Listener::open(&directory).unwrap();
        fs::remove_file(directory.lock()).unwrap();
        fs::write(directory.log(), "").unwrap();
        listener.clear_away(&directory, true);
        assert!(!directory.socket().exists() && directory.log().exists());
    }
}
