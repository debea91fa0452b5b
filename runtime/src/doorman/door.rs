//! The agent's socket and its lock: whoever has them is the agent of this place.

use std::collections::VecDeque;
use std::fs::{self, File, Permissions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::message::{REASON_MAX, RefusalCode, ToClient};
use super::place::{Place, PlaceError};
use crate::sys::lock;
use crate::sys::poll::readable;
use crate::sys::socket::{Listener, Packets};

/// Most refused clients whose connections are kept until they have heard why.
const TOLD_MAX: usize = 256;
/// How long a predecessor that does not listen any more may take to end.
const SUCCESSION: Duration = Duration::from_secs(2);

/// Whether this open file is the one at the path.
fn is_at(file: &File, path: &Path) -> bool {
    let same = |ours: fs::Metadata, theirs: fs::Metadata| {
        (ours.dev(), ours.ino()) == (theirs.dev(), theirs.ino())
    };
    match (file.metadata(), fs::metadata(path)) {
        (Ok(ours), Ok(theirs)) => same(ours, theirs),
        _ => false,
    }
}

/// Why this process cannot be the agent here. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum DoorError {
    /// The directory cannot be used.
    #[error(transparent)]
    Place(#[from] PlaceError),
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
/// that come while no worker lives wait in the socket's queue.
#[derive(Debug)]
pub struct Door {
    listener: Listener,
    lock: File,
    path: PathBuf,
}

impl Door {
    /// Prepares the directory, takes the lock and listens. A socket that a killed agent left is
    /// replaced; a lock that one left is free, as its holder is gone. One that has taken its
    /// socket away is on its way out: its lock is waited for.
    pub fn open(place: &Place) -> Result<Self, DoorError> {
        place.prepare()?;
        let path = place.socket();
        let system = |cause| DoorError::System {
            path: place.socket(),
            cause,
        };
        let until = Instant::now() + SUCCESSION;
        let lock = loop {
            match lock::try_lock(&place.lock()) {
                // One that its holder has removed meanwhile is nobody's: the next one counts.
                Ok(Some(lock)) if is_at(&lock, &place.lock()) => break lock,
                Ok(Some(_)) => place.prepare()?,
                Ok(None) => {}
                Err(cause) if cause.kind() == io::ErrorKind::NotFound => place.prepare()?,
                Err(cause) => return Err(system(cause)),
            }
            if Instant::now() >= until || Packets::connect(&path).is_ok() {
                return Err(DoorError::Running { lock: place.lock() });
            }
            std::thread::sleep(SUCCESSION / 400);
        };
        // Bound under another name first: a client never finds the path without a listener.
        let fresh = place.directory().join("sock.new");
        let _ = fs::remove_file(&fresh);
        let listener = Listener::bind(&fresh).map_err(system)?;
        fs::set_permissions(&fresh, Permissions::from_mode(0o600)).map_err(system)?;
        fs::rename(&fresh, &path).map_err(system)?;
        Ok(Self {
            listener,
            lock,
            path,
        })
    }

    /// For a worker that was executed afresh and got the descriptors by number.
    pub fn from_descriptors(listener: OwnedFd, lock: OwnedFd, place: &Place) -> Self {
        Self {
            listener: listener.into(),
            lock: lock.into(),
            path: place.socket(),
        }
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
    /// To be called by the last process of an agent; whoever comes meanwhile begins anew.
    pub fn clear_away(self, place: &Place) {
        self.take_away();
        for file in [place.log(), place.start_lock(), place.lock()] {
            let _ = fs::remove_file(file);
        }
        let _ = fs::remove_dir(place.directory());
    }

    /// Takes the socket away; who is connected stays that.
    pub(super) fn take_away(&self) {
        let _ = fs::remove_file(&self.path);
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

    pub(super) fn accept(&self) -> io::Result<Option<Packets>> {
        self.listener.accept()
    }
}
