//! A file lock that ends with its last holder: `flock`.
//!
//! The lock belongs to the open file, so a forked child shares it, and the lock of a killed process
//! is released. The file itself remains; its existence has no meaning.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

/// Opens (or creates, 0600) the file and takes its lock; `None` if another process has it.
pub fn try_lock(path: &Path) -> io::Result<Option<File>> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC)
        .open(path)?;
    // SAFETY: a plain system call on a descriptor we own.
    let answer = unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) };
    match super::check("flock", i64::from(answer)) {
        Ok(_) => Ok(Some(file)),
        Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(cause) => Err(cause),
    }
}

/// The lock of this file, if this process inherited the descriptor `number` of that open file; from now on it is closed
/// at exec. None if the descriptor is of another file.
pub fn inherited(number: RawFd, path: &Path) -> Option<File> {
    let ours = fs::metadata(format!("/proc/self/fd/{number}")).ok()?;
    let theirs = fs::symlink_metadata(path).ok()?;
    if (ours.dev(), ours.ino()) != (theirs.dev(), theirs.ino()) {
        return None;
    }
    // SAFETY: a plain system call; the descriptor exists, as was just checked.
    let answer = unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) };
    // SAFETY: it is of the lock's file, which nothing in this process has opened: it was inherited, and has no other
    // owner in this process.
    (answer == 0).then(|| unsafe { File::from_raw_fd(number) })
}

/// Releases the lock, even if other processes have the same open file. The lock also ends with the file.
pub fn unlock(file: &File) {
    // SAFETY: a plain system call on a live descriptor.
    unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_UN) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_holder_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        let held = try_lock(&path).unwrap().unwrap();
        assert!(try_lock(&path).unwrap().is_none());
        // As in a forked child.
        let same = held.try_clone().unwrap();
        drop(held);
        assert!(try_lock(&path).unwrap().is_none());
        unlock(&same);
        assert!(try_lock(&path).unwrap().is_some());
    }
}
