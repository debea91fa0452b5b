//! The control sockets in the file system: the one of the agent's user, and the one for other users, in a directory
//! where all users may write.

use muster_sys::process::user_id;
use muster_sys::random;
use std::ffi::OsString;
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

/// How names of sockets for other users begin and end. The user and the agent directory are between them.
const PREFIX: &str = "muster-";
const SUFFIX: &str = ".control";
/// Mode bits of a directory: all users may write; only the owner of a file may remove it.
const FOR_ALL: u32 = 0o002;
const STICKY: u32 = 0o1000;

/// A socket in the file system. Dropping it removes the file.
#[derive(Debug)]
pub(super) struct Socket {
    path: PathBuf,
    /// Device and inode of the socket: by now another one may be at the path.
    identity: (u64, u64),
}

impl Drop for Socket {
    fn drop(&mut self) {
        if identity(&self.path).is_ok_and(|found| found == self.identity) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// The name of this user's socket for all.
pub fn name_for_all(which: &str) -> String {
    format!("{PREFIX}{}-{which}{SUFFIX}", user_id())
}

/// The user in such a name.
pub(super) fn user_in(name: &str) -> Option<u32> {
    let (user, _) = name
        .strip_prefix(PREFIX)?
        .strip_suffix(SUFFIX)?
        .split_once('-')?;
    user.parse().ok()
}

/// Listens at `path`, for the agent's own user and root.
pub(super) fn listen(path: &Path) -> io::Result<(UnixListener, Socket)> {
    bind(path, ".new", 0o600)
}

/// Listens at `path`, for all users. Another user may have taken the name: its file is replaced where the system
/// permits that; where it does not the error says whose it is. A directory in which anybody may replace the
/// socket later is refused.
pub(super) fn listen_for_all(path: &Path) -> io::Result<(UnixListener, Socket)> {
    let directory = path.parent().unwrap_or(Path::new("/"));
    let found = fs::metadata(directory)?;
    if found.mode() & FOR_ALL != 0 && found.mode() & STICKY == 0 {
        let why = format!(
            "all users may replace files in {}: it has mode {:o}; chmod +t it",
            directory.display(),
            found.mode() & 0o7777
        );
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    }
    // The name must be unknown before it is bound: a file that another user made there could not be removed.
    let mut random = [0; 4];
    random::fill(&mut random);
    let ending = format!(".{:08x}", u32::from_ne_bytes(random));
    bind(path, &ending, 0o666).map_err(|cause| match fs::symlink_metadata(path) {
        Ok(there) if there.uid() != user_id() => {
            let why = format!(
                "a file of uid {} is there and cannot be replaced ({cause}); have uid {0} or root remove it and \
                 start the agent anew",
                there.uid()
            );
            io::Error::new(cause.kind(), why)
        }
        _ => cause,
    })
}

/// Binds under another name first, so that the socket never has this name without its mode. A failure leaves no
/// file.
fn bind(path: &Path, ending: &str, mode: u32) -> io::Result<(UnixListener, Socket)> {
    let mut fresh: OsString = path.into();
    fresh.push(ending);
    let fresh = PathBuf::from(fresh);
    let _ = fs::remove_file(&fresh);
    let listener = UnixListener::bind(&fresh)?;
    let mut socket = Socket {
        identity: identity(&fresh)?,
        path: fresh,
    };
    fs::set_permissions(&socket.path, Permissions::from_mode(mode))?;
    fs::rename(&socket.path, path)?;
    path.clone_into(&mut socket.path);
    Ok((listener, socket))
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    fs::symlink_metadata(path).map(|found| (found.dev(), found.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_tells_its_user() {
        assert_eq!(user_in(&name_for_all("n-1")), Some(user_id()));
        assert_eq!(user_in("muster-65534-0a1b.control"), Some(65_534));
        for other in [
            "control",
            "muster-x-1.control",
            "n1.control",
            "muster-7.control",
        ] {
            assert_eq!(user_in(other), None, "{other}");
        }
    }

    #[test]
    fn a_directory_without_the_sticky_bit_is_refused_and_a_failure_leaves_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(name_for_all("n1"));
        let allow = |mode| {
            fs::set_permissions(directory.path(), Permissions::from_mode(mode)).unwrap();
        };
        allow(0o777);
        let why = listen_for_all(&path).unwrap_err().to_string();
        assert!(
            why.contains("mode 777") && why.contains("chmod +t"),
            "{why}"
        );
        allow(0o1777);
        // A name that cannot be had: a directory is there, with something in it.
        fs::create_dir(&path).unwrap();
        fs::write(path.join("file"), "").unwrap();
        assert!(listen_for_all(&path).is_err());
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
        fs::remove_dir_all(&path).unwrap();
        let (_listener, socket) = listen_for_all(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o666);
        drop(socket);
        assert!(!path.exists());
    }
}
