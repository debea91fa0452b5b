//! A directory that is its maker's as long as he lives, and nobody's afterwards (run-2).
//!
//! Picture a locker with a lock that falls off when its owner dies. Whoever passes by may try the lock: if it holds,
//! the owner lives, wherever he is; if it does not, the locker is emptied. The lock is the kernel's (`flock`), so
//! neither a number that another process has by now nor a process in another namespace is mistaken for the owner. What
//! has no lock, or is another user's, is left alone.
//!
//! So what a launcher leaves that was killed together with its agent is taken away by whoever of its user starts or
//! ends next on the node: a launcher, or an agent.

use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder, File};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::config::draw_key;
use crate::doorman::Place;
use crate::sys::lock::{self, try_lock};
use crate::sys::process::{host_name, user_id};

/// The descriptor of a lock that is handed over to the program that a process becomes, and the directory, behind a
/// colon.
const VARIABLE: &str = "MUSTER_RUN_LOCK";
/// How long a predecessor may take to take its files away.
const SUCCESSION: Duration = Duration::from_secs(2);
/// Where launchers keep what ranks share.
pub(super) const MEMORY: &str = "/dev/shm";

/// A directory of this process, removed with all that is in it when it is dropped.
#[derive(Debug)]
pub(crate) struct Hold {
    path: PathBuf,
    lock: File,
}

impl Hold {
    /// Makes the directory, or takes one that nobody holds any more, emptied.
    ///
    /// # Errors
    /// `ResourceBusy` if a living process has it; else what the system said, or that it is somebody else's.
    pub(crate) fn take(path: &Path) -> io::Result<Self> {
        let until = Instant::now() + SUCCESSION;
        loop {
            match DirBuilder::new().mode(0o700).create(path) {
                Err(cause) if cause.kind() != io::ErrorKind::AlreadyExists => return Err(cause),
                _ => {}
            }
            if !is_own(path) {
                let why =
                    "it is not a directory of yours; remove it, or name another place by TMPDIR";
                return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
            }
            match try_lock(&lock_of(path)) {
                Ok(Some(mut lock)) if is_lock(&lock, path) => {
                    empty(path)?;
                    lock.set_len(0)?;
                    // On a full disk it is held all the same.
                    let _ = lock.write_all(here().as_bytes());
                    let path = path.to_owned();
                    return Ok(Self { path, lock });
                }
                // It has been removed meanwhile.
                Ok(Some(_)) => {}
                Err(cause) if cause.kind() == io::ErrorKind::NotFound => {}
                Err(cause) => return Err(cause),
                Ok(None) => std::thread::sleep(SUCCESSION / 100),
            }
            if Instant::now() > until {
                let why = "another process has it";
                return Err(io::Error::new(io::ErrorKind::ResourceBusy, why));
            }
        }
    }

    /// As [`Hold::take`]; where the name is somebody else's, who may have guessed it, a name beside it.
    ///
    /// # Errors
    /// As those of [`Hold::take`].
    pub(crate) fn take_near(path: &Path) -> io::Result<Self> {
        match Self::take(path) {
            Err(cause) if cause.kind() == io::ErrorKind::PermissionDenied && !is_own(path) => {
                let digits = draw_key();
                let number = u32::from_le_bytes([digits[0], digits[1], digits[2], digits[3]]);
                let mut beside = path.as_os_str().to_owned();
                beside.push(format!("-{number:08x}"));
                Self::take(Path::new(&beside))
            }
            other => other,
        }
    }

    /// Has the program that this process becomes by this command find it held: [`Hold::taken_over`].
    pub(crate) fn hand_over(&self, command: &mut Command) -> io::Result<()> {
        rustix::io::fcntl_setfd(&self.lock, rustix::io::FdFlags::empty())?;
        let mut words = OsString::from(format!("{}:", self.lock.as_raw_fd()));
        words.push(&self.path);
        command.env(VARIABLE, words);
        Ok(())
    }

    /// What the program that this process was has handed over, if it has.
    pub(crate) fn taken_over() -> Option<Self> {
        let words = std::env::var_os(VARIABLE)?.into_vec();
        let colon = words.iter().position(|byte| *byte == b':')?;
        let number = std::str::from_utf8(&words[..colon]).ok()?.parse().ok()?;
        let path = PathBuf::from(OsString::from_vec(words[colon + 1..].to_vec()));
        let lock = lock::inherited(number, &lock_of(&path))?;
        Some(Self { path, lock })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Notes that whoever removes this has to remove what the agent at this place has left, too, if nobody is it any
    /// more.
    pub(crate) fn note_agent(&self, place: &Place) -> io::Result<()> {
        let note = self.path.join(AGENT);
        let _ = fs::remove_file(&note);
        std::os::unix::fs::symlink(place.directory(), note)
    }
}

/// The name of that note.
const AGENT: &str = "agent";

impl Drop for Hold {
    fn drop(&mut self) {
        if is_lock(&self.lock, &self.path) {
            remove(&self.path);
        }
    }
}

/// Takes away what launchers of this user have left on this node that were killed.
pub(crate) fn sweep() {
    let places = [std::env::temp_dir(), PathBuf::from(MEMORY)];
    for place in places {
        let entries = fs::read_dir(place).into_iter().flatten().flatten();
        let is_ours = |name: &OsStr| name.as_encoded_bytes().starts_with(b"muster-");
        for entry in entries.filter(|entry| is_ours(&entry.file_name())) {
            sweep_one(&entry.path());
        }
    }
}

/// This machine, for one who shares its files: this start of it, and its name. One of both is enough: a container has
/// another name, and what was left before the machine was started anew another start.
fn here() -> String {
    let start = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let name = host_name().unwrap_or_default();
    format!("{} {name}", start.trim())
}

fn sweep_one(path: &Path) {
    let lock = lock_of(path);
    // No lock is made where there is none.
    if !is_own(path) || !fs::symlink_metadata(&lock).is_ok_and(|found| found.is_file()) {
        return;
    }
    // On a shared file system a lock may be of its machine alone.
    let text = fs::read_to_string(&lock).unwrap_or_default();
    let has_in_common = |here: &str| here.split(' ').zip(text.split(' ')).any(|(a, b)| a == b);
    if !text.is_empty() && !has_in_common(&here()) {
        return;
    }
    // Its holder may be about to write, elsewhere.
    let age = fs::symlink_metadata(&lock)
        .and_then(|found| found.modified()?.elapsed().map_err(io::Error::other));
    if text.is_empty() && !age.is_ok_and(|age| age > SUCCESSION) {
        return;
    }
    let Ok(Some(lock)) = try_lock(&lock) else {
        return;
    };
    if !is_lock(&lock, path) {
        return;
    }
    if let Ok(agent) = fs::read_link(path.join(AGENT)) {
        Place::sweep_dead(&agent);
    }
    remove(path);
}

/// Under a name of its own first, so that whoever makes it anew meanwhile keeps what he has made.
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

/// Takes away all but the lock.
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
        // Processes of the dead one may be taking their files away as well.
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

/// Whether it is a directory of this user's.
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
    fn what_is_held_stays_and_what_nobody_holds_is_swept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("muster-run-x");
        let held = Hold::take(&path).unwrap();
        fs::write(path.join("key"), "secret").unwrap();
        sweep_one(&path);
        assert!(path.join("key").exists());
        let busy = Hold::take(&path).unwrap_err();
        assert_eq!(busy.kind(), io::ErrorKind::ResourceBusy);
        // As a process that is killed lets go of it.
        lock::unlock(&held.lock);
        let next = Hold::take(&path).unwrap();
        assert!(!path.join("key").exists(), "the next begins anew");
        lock::unlock(&next.lock);
        sweep_one(&path);
        assert!(!path.exists());
        let again = Hold::take(&path).unwrap();
        drop((held, next));
        assert!(path.exists(), "it is another's by now");
        lock::unlock(&again.lock);
        fs::write(lock_of(&path), "another-start another-machine").unwrap();
        sweep_one(&path);
        assert!(path.exists(), "its lock says nothing here");
        drop(again);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn what_has_no_lock_or_leads_elsewhere_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let other = folder.path().join("other");
        fs::create_dir(&other).unwrap();
        fs::write(lock_of(&other), "").unwrap();
        let link = folder.path().join("muster-run-link");
        std::os::unix::fs::symlink(&other, &link).unwrap();
        let lockless = folder.path().join("muster-run-lockless");
        fs::create_dir(&lockless).unwrap();
        for path in [&link, &lockless] {
            sweep_one(path);
            assert!(path.exists());
        }
        assert!(lock_of(&other).exists() && !lock_of(&lockless).exists());
        let refused = Hold::take(&link).unwrap_err();
        assert!(refused.to_string().contains("not a directory of yours"));
        let beside = Hold::take_near(&link).unwrap();
        let name = beside.path().file_name().unwrap().to_string_lossy();
        assert!(name.starts_with("muster-run-link-"), "{name}");
        assert!(lock_of(&other).exists() && lock_of(beside.path()).exists());
    }

    #[test]
    fn the_agent_of_a_dead_launcher_is_swept_with_it_unless_it_lives() {
        let folder = tempfile::tempdir().unwrap();
        let place = Place::find(Some("hold"), Some("n"), Some(folder.path())).unwrap();
        let path = folder.path().join("muster-run-x");
        for lives in [true, false] {
            let held = Hold::take(&path).unwrap();
            held.note_agent(&place).unwrap();
            place.prepare().unwrap();
            fs::write(place.key_file(), "secret").unwrap();
            let agent = try_lock(&place.lock()).unwrap().unwrap();
            if !lives {
                lock::unlock(&agent);
            }
            lock::unlock(&held.lock);
            sweep_one(&path);
            assert_eq!((path.exists(), place.key_file().exists()), (false, lives));
        }
        assert!(!place.directory().exists());
    }
}
