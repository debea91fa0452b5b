//! `Listener` is the agent's socket and its lock. The process that has them is the agent of its directory.

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

/// Most refused clients whose connections are kept open until they have read the reason.
const REFUSED_MAX: usize = 256;
/// How long a predecessor that does not listen any more may take to end.
const PREDECESSOR_WAIT: Duration = Duration::from_secs(2);

/// Why this process cannot be the agent of this directory. Nothing was changed.
#[derive(Debug)]
pub enum ListenerError {
    /// The directory cannot be used.
    AgentDirectory(DirectoryError),
    /// Another agent is running.
    Running {
        /// The lock that it holds.
        lock: PathBuf,
    },
    /// A system call failed.
    System {
        /// The socket.
        path: PathBuf,
        /// The error of the system call.
        cause: io::Error,
    },
}

impl std::fmt::Display for ListenerError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::AgentDirectory(error) => error.fmt(f),
            Self::Running { lock } => write!(
                f,
                "an agent is running already: it holds {lock}",
                lock = lock.display()
            ),
            Self::System { path, cause } => {
                write!(f, "cannot listen at {path}: {cause}", path = path.display())
            }
        }
    }
}

impl std::error::Error for ListenerError {}

impl From<DirectoryError> for ListenerError {
    fn from(error: DirectoryError) -> Self {
        Self::AgentDirectory(error)
    }
}

/// A listening socket with its lock. Forked workers share both with their supervisor; connections that arrive while
/// no worker runs wait in the socket's queue. Another agent may start when the files of a running one are removed, so
/// each agent removes only its own files.
#[derive(Debug)]
pub struct Listener {
    listener: PacketListener,
    lock: File,
    path: PathBuf,
    /// The socket file that it bound: no other file has the same numbers as long as it listens.
    bound: FileNumbers,
}

impl Listener {
    /// Prepares the directory, takes the lock and listens. The socket of a killed agent is replaced; its lock is
    /// free, as its holder has ended. An agent that has removed its socket is about to end: this waits for its lock.
    pub fn open(directory: &AgentDirectory) -> Result<Self, ListenerError> {
        directory.prepare()?;
        let path = directory.socket();
        let system = |cause| ListenerError::System {
            path: directory.socket(),
            cause,
        };
        let until = Instant::now() + PREDECESSOR_WAIT;
        let lock = loop {
            match lock::try_lock(&directory.lock()) {
                // A lock file that its holder has removed meanwhile does not count: take the next one.
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
            std::thread::sleep(PREDECESSOR_WAIT / 400);
        };
        // Binds under another name first: a client never finds the path without a listener.
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

    /// A copy of this listener, as a forked worker has it.
    ///
    /// # Errors
    /// No descriptor is left.
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

    /// The open lock file.
    pub fn lock(&self) -> BorrowedFd<'_> {
        self.lock.as_fd()
    }

    /// Removes the socket, so that the next client starts a new agent. For an agent that ends.
    pub fn close(self) {
        self.unlink();
    }

    /// Removes all files of the agent directory, after an orderly end. The last process of an agent calls it; a
    /// client that connects meanwhile starts a new agent. If the lock is another agent's by now, the directory is,
    /// too, and only the socket is removed. The log is removed only `with_log`: otherwise it is kept for a reader.
    pub fn clear_away(self, directory: &AgentDirectory, with_log: bool) {
        self.unlink();
        if !is_own_lock(&self.lock, directory) {
            return;
        }
        if with_log {
            let _ = fs::remove_file(directory.log());
        }
        directory.sweep();
    }

    /// Removes the socket; existing connections continue.
    pub fn unlink(&self) {
        let found = fs::symlink_metadata(&self.path);
        if found.is_ok_and(|found| numbers(&found) == self.bound) {
            let _ = fs::remove_file(&self.path);
        }
    }

    /// Sends the reason why no agent starts to all clients that connect within two seconds, and removes the socket.
    /// For an agent that cannot start: its clients would wait in vain.
    pub fn refuse_all(&self, reason: &str) {
        const REFUSE_TIME: Duration = Duration::from_secs(2);
        let mut length = reason.len().min(REASON_MAX);
        while !reason.is_char_boundary(length) {
            length -= 1;
        }
        let reason = reason[..length].to_owned();
        let refusal = ToClient::Refused(RefusalCode::NoAgent, reason).encode();
        let end = Instant::now() + REFUSE_TIME;
        // The clients close the connections when they have read it. If this side did, they might not read it.
        let mut refused = VecDeque::new();
        loop {
            while let Ok(Some(client)) = self.accept() {
                // A client that has gone in the meantime needs no answer.
                let _ = client.send(&refusal, None);
                if refused.len() == REFUSED_MAX {
                    refused.pop_front();
                }
                refused.push_back(client);
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() || readable(&[self.listener()], Some(left)).is_err() {
                break;
            }
        }
        self.unlink();
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

/// Whether this open file is the lock of the directory.
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
        AgentDirectory::find(Some("job"), Some("n"), Some(base.path())).unwrap()
    }

    /// The files of a running agent are removed and another agent starts: the end of the first one must not remove
    /// the socket, lock and log of the second one.
    #[test]
    fn an_ending_agent_keeps_the_files_of_another_agent() {
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
            assert!(!directory.directory().exists(), "it removes its own files");
        }
    }

    #[test]
    fn an_agent_without_its_lock_removes_only_its_socket() {
        let base = tempfile::tempdir().unwrap();
        let directory = directory(&base);
        let listener = Listener::open(&directory).unwrap();
        fs::remove_file(directory.lock()).unwrap();
        fs::write(directory.log(), "").unwrap();
        listener.clear_away(&directory, true);
        assert!(!directory.socket().exists() && directory.log().exists());
    }
}
