//! `LockedDirectory` is a directory with a lock (`flock`) that its process holds; without the lock it is abandoned
//! (run-2).
//!
//! The kernel releases the lock when the process ends. A reused process number or a process in another pid namespace
//! is therefore never mistaken for the holder. Launchers and agents remove the abandoned directories of their user when
//! they start and end: a launcher that was killed together with its agent leaves nothing. A directory without a lock
//! file, or of another user, is not touched.

use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder, File};
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use super::AgentDirectory;

use muster_sys::descriptor::keep_on_exec;
use muster_sys::lock::{self, try_lock};
use muster_sys::process::{host_name, user_id};
use muster_sys::random;

/// Descriptor number and path, with a colon between them, of a directory that a process hands over to the program
/// that it executes.
const VARIABLE: &str = "MUSTER_RUN_LOCK";
/// How long the removal of a directory may take.
const REMOVAL_WAIT: Duration = Duration::from_secs(2);
/// The file system for memory that the ranks of a node share.
pub const SHARED_MEMORY: &str = "/dev/shm";

/// A directory of this process. Dropping it removes the directory and its content.
#[derive(Debug)]
pub struct LockedDirectory {
    path: PathBuf,
    lock: File,
}

impl LockedDirectory {
    /// Makes the directory, or empties and locks an abandoned one.
    ///
    /// # Errors
    /// `ResourceBusy`: a living process holds it. `PermissionDenied`: it is not a directory of this user. Others: the
    /// system call failed.
    pub fn take(path: &Path) -> io::Result<Self> {
        let until = Instant::now() + REMOVAL_WAIT;
        loop {
            match DirBuilder::new().mode(0o700).create(path) {
                Err(cause) if cause.kind() != io::ErrorKind::AlreadyExists => return Err(cause),
                _ => {}
            }
            if !is_own(path) {
                let why =
                    "it is not a directory of yours; remove it, or set TMPDIR to another directory";
                return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
            }
            match try_lock(&lock_of(path)) {
                Ok(Some(mut lock)) if is_lock(&lock, path) => {
                    empty(path)?;
                    lock.set_len(0)?;
                    // The lock holds on a full disk, too.
                    let _ = lock.write_all(here().as_bytes());
                    let path = path.to_owned();
                    return Ok(Self { path, lock });
                }
                // Another process has removed it meanwhile.
                Ok(Some(_)) => {}
                Err(cause) if cause.kind() == io::ErrorKind::NotFound => {}
                Err(cause) => return Err(cause),
                Ok(None) => std::thread::sleep(REMOVAL_WAIT / 100),
            }
            if Instant::now() > until {
                let why = "another process has it";
                return Err(io::Error::new(io::ErrorKind::ResourceBusy, why));
            }
        }
    }

    /// As [`Self::take`]. If the path belongs to another user, which may have guessed it, a random number is appended
    /// to it.
    ///
    /// # Errors
    /// Those of [`Self::take`].
    pub fn take_near(path: &Path) -> io::Result<Self> {
        match Self::take(path) {
            Err(cause) if cause.kind() == io::ErrorKind::PermissionDenied && !is_own(path) => {
                let mut number = [0; 4];
                random::fill(&mut number);
                let number = u32::from_le_bytes(number);
                let mut beside = path.as_os_str().to_owned();
                beside.push(format!("-{number:08x}"));
                Self::take(Path::new(&beside))
            }
            other => other,
        }
    }

    /// Hands the lock over to the program that this process executes by this command: [`Self::taken_over`].
    pub fn hand_over(&self, command: &mut Command) -> io::Result<()> {
        keep_on_exec(self.lock.as_fd())?;
        let mut handed_over = OsString::from(format!("{}:", self.lock.as_raw_fd()));
        handed_over.push(&self.path);
        command.env(VARIABLE, handed_over);
        Ok(())
    }

    /// The directory that the program before this one in the same process has handed over.
    pub fn taken_over() -> Option<Self> {
        let handed_over = std::env::var_os(VARIABLE)?.into_vec();
        let colon = handed_over.iter().position(|byte| *byte == b':')?;
        let number = std::str::from_utf8(&handed_over[..colon])
            .ok()?
            .parse()
            .ok()?;
        let path = PathBuf::from(OsString::from_vec(handed_over[colon + 1..].to_vec()));
        let lock = lock::inherited(number, &lock_of(&path))?;
        Some(Self { path, lock })
    }

    /// Where the directory is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Notes an agent directory. If its agent does not run, it is removed together with this directory.
    pub fn note_agent(&self, directory: &AgentDirectory) -> io::Result<()> {
        let note = self.path.join(AGENT);
        let _ = fs::remove_file(&note);
        std::os::unix::fs::symlink(directory.directory(), note)
    }
}

/// Name of that note, a symbolic link.
const AGENT: &str = "agent";

impl Drop for LockedDirectory {
    fn drop(&mut self) {
        if is_lock(&self.lock, &self.path) {
            remove(&self.path);
        }
    }
}

/// Removes the abandoned directories of this user on this node.
pub fn remove_abandoned() {
    let parents = [std::env::temp_dir(), PathBuf::from(SHARED_MEMORY)];
    for directory in parents {
        let entries = fs::read_dir(directory).into_iter().flatten().flatten();
        let is_ours = |name: &OsStr| name.as_encoded_bytes().starts_with(b"muster-");
        for entry in entries.filter(|entry| is_ours(&entry.file_name())) {
            remove_if_abandoned(&entry.path());
        }
    }
}

/// Boot id and host name of this machine. Two texts with one part in common are of one machine: a container has
/// another name, and after a reboot the boot id differs.
fn here() -> String {
    let start = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let name = host_name().unwrap_or_default();
    format!("{} {name}", start.trim())
}

fn remove_if_abandoned(path: &Path) {
    let lock = lock_of(path);
    // `try_lock` would make a lock file where there is none.
    if !is_own(path) || !fs::symlink_metadata(&lock).is_ok_and(|found| found.is_file()) {
        return;
    }
    // On a shared file system a lock may be visible on its own machine only.
    let text = fs::read_to_string(&lock).unwrap_or_default();
    let has_in_common = |here: &str| here.split(' ').zip(text.split(' ')).any(|(a, b)| a == b);
    if !text.is_empty() && !has_in_common(&here()) {
        return;
    }
    // Its holder on another machine may be about to write the text.
    let age = fs::symlink_metadata(&lock)
        .and_then(|found| found.modified()?.elapsed().map_err(io::Error::other));
    if text.is_empty() && !age.is_ok_and(|age| age > REMOVAL_WAIT) {
        return;
    }
    let Ok(Some(lock)) = try_lock(&lock) else {
        return;
    };
    if !is_lock(&lock, path) {
        return;
    }
    if let Ok(agent) = fs::read_link(path.join(AGENT)) {
        AgentDirectory::sweep_dead(&agent);
    }
    remove(path);
}

/// Renames the directory first, so that a process that makes it anew meanwhile keeps its own.
fn remove(path: &Path) {
    let mut gone = path.as_os_str().to_owned();
    gone.push(format!(".gone-{}", std::process::id()));
    let from = if fs::rename(path, &gone).is_ok() {
        Path::new(&gone)
    } else {
        path
    };
    let _ = fs::remove_dir_all(from);
}

/// Removes everything but the lock file.
fn empty(path: &Path) -> io::Result<()> {
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        if entry.path() == lock_of(path) {
            continue;
        }
        let removed = if entry.file_type()?.is_dir() {
            fs::remove_dir_all(entry.path())
        } else {
            fs::remove_file(entry.path())
        };
        // Processes of the former holder may be removing their files as well.
        removed.or_else(|cause| match cause.kind() {
            io::ErrorKind::NotFound => Ok(()),
            _ => Err(cause),
        })?;
    }
    Ok(())
}

fn lock_of(path: &Path) -> PathBuf {
    path.join("held")
}

/// Whether it is a directory of this user.
fn is_own(path: &Path) -> bool {
    let found = fs::symlink_metadata(path);
    found.is_ok_and(|found| found.is_dir() && found.uid() == user_id())
}

/// Whether this open file is the lock in this directory.
fn is_lock(lock: &File, path: &Path) -> bool {
    match (lock.metadata(), fs::symlink_metadata(lock_of(path))) {
        (Ok(ours), Ok(theirs)) => (ours.dev(), ours.ino()) == (theirs.dev(), theirs.ino()),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// run-2.
    #[test]
    fn a_held_directory_stays_and_an_abandoned_one_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("muster-run-x");
        let held = LockedDirectory::take(&path).unwrap();
        fs::write(path.join("key"), "secret").unwrap();
        remove_if_abandoned(&path);
        assert!(path.join("key").exists());
        let busy = LockedDirectory::take(&path).unwrap_err();
        assert_eq!(busy.kind(), io::ErrorKind::ResourceBusy);
        // As the kernel does when the process is killed.
        lock::unlock(&held.lock);
        let next = LockedDirectory::take(&path).unwrap();
        assert!(
            !path.join("key").exists(),
            "the next holder gets an empty directory"
        );
        lock::unlock(&next.lock);
        remove_if_abandoned(&path);
        assert!(!path.exists());
        let again = LockedDirectory::take(&path).unwrap();
        drop((held, next));
        assert!(path.exists(), "it belongs to another holder by now");
        lock::unlock(&again.lock);
        fs::write(lock_of(&path), "another-start another-machine").unwrap();
        remove_if_abandoned(&path);
        assert!(
            path.exists(),
            "a lock of another machine has no meaning here"
        );
        drop(again);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_directory_without_a_lock_and_a_symbolic_link_are_not_touched() {
        let folder = tempfile::tempdir().unwrap();
        let other = folder.path().join("other");
        fs::create_dir(&other).unwrap();
        fs::write(lock_of(&other), "").unwrap();
        let link = folder.path().join("muster-run-link");
        std::os::unix::fs::symlink(&other, &link).unwrap();
        let lockless = folder.path().join("muster-run-lockless");
        fs::create_dir(&lockless).unwrap();
        for path in [&link, &lockless] {
            remove_if_abandoned(path);
            assert!(path.exists());
        }
        assert!(lock_of(&other).exists() && !lock_of(&lockless).exists());
        let refused = LockedDirectory::take(&link).unwrap_err();
        assert!(refused.to_string().contains("not a directory of yours"));
        let beside = LockedDirectory::take_near(&link).unwrap();
        let name = beside.path().file_name().unwrap().to_string_lossy();
        assert!(name.starts_with("muster-run-link-"), "{name}");
        assert!(lock_of(&other).exists() && lock_of(beside.path()).exists());
    }

    #[test]
    fn the_agent_directory_of_a_dead_launcher_is_removed_unless_its_agent_runs() {
        let folder = tempfile::tempdir().unwrap();
        let directory = AgentDirectory::find(Some("hold"), Some("n"), Some(folder.path())).unwrap();
        let path = folder.path().join("muster-run-x");
        for runs in [true, false] {
            let held = LockedDirectory::take(&path).unwrap();
            held.note_agent(&directory).unwrap();
            directory.prepare().unwrap();
            fs::write(directory.key_file(), "secret").unwrap();
            let agent = try_lock(&directory.lock()).unwrap().unwrap();
            if !runs {
                lock::unlock(&agent);
            }
            lock::unlock(&held.lock);
            remove_if_abandoned(&path);
            assert_eq!(
                (path.exists(), directory.key_file().exists()),
                (false, runs)
            );
        }
        assert!(!directory.directory().exists());
    }
}
