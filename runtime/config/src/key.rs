//! The job key: 256 secret bits that all members of a job share.
//!
//! It comes from a file or from PMIx (through a client), or the agent of the first rank generates it. A member
//! without a job uses a standing key of its user, which is generated at the first start and kept in a file that only
//! that user can read.

use muster_sys::file::TimedFile;
use muster_sys::process::user_id;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use thiserror::Error;

/// The source of an agent's job key.
#[derive(Clone, Debug)]
pub enum KeySource {
    /// The key is known.
    Given([u8; 32]),
    /// A client sends it, or the agent generates it for the job's first rank.
    FromClients,
}

/// A key file that cannot be used. Nothing was changed.
#[derive(Debug, Error)]
pub enum KeyError {
    /// It cannot be read or created.
    #[error("key file {path}: {source}; name a usable one with --key-file or MUSTER_KEY_FILE")]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Other users can read it.
    #[error(
        "key file {path}: its mode is {mode:04o}, so other users can read the key; chmod 600 {path}"
    )]
    Mode {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// It belongs to another user.
    #[error(
        "key file {path}: it belongs to uid {owner}, not to you (uid {own}); use a file of your own"
    )]
    Owner {
        /// The file.
        path: PathBuf,
        /// The file's user.
        owner: u32,
        /// This process's user.
        own: u32,
    },
    /// It does not contain a key.
    #[error("key file {path}: {why}; it must contain 64 hexadecimal digits (openssl rand -hex 32)")]
    Content {
        /// The file.
        path: PathBuf,
        /// The reason.
        why: &'static str,
    },
}

/// Reads a key from a file of 64 hexadecimal digits that belongs to this user, with mode 0600 or stricter.
///
/// # Errors
/// See [`KeyError`].
pub fn read_key_file(path: &Path) -> Result<[u8; 32], KeyError> {
    let io_error = |source| KeyError::Io {
        path: path.to_owned(),
        source,
    };
    let source = TimedFile::open(path).map_err(io_error)?;
    let metadata = source.file.metadata().map_err(io_error)?;
    let own = user_id();
    if metadata.uid() != own {
        return Err(KeyError::Owner {
            path: path.to_owned(),
            owner: metadata.uid(),
            own,
        });
    }
    let mode = metadata.mode() & 0o7777;
    if mode & 0o077 != 0 {
        return Err(KeyError::Mode {
            path: path.to_owned(),
            mode,
        });
    }
    read_key(source, path)
}

/// Reads a key from the first line of an open source, which `path` names. It does not wait for the end: standard input
/// may stay open.
///
/// # Errors
/// See [`KeyError`].
pub fn read_key(source: impl Read, path: &Path) -> Result<[u8; 32], KeyError> {
    let mut text = String::new();
    let read = BufReader::new(source.take(256)).read_line(&mut text);
    read.map_err(|source| KeyError::Io {
        path: path.to_owned(),
        source,
    })?;
    parse_key(text.trim()).map_err(|why| KeyError::Content {
        path: path.to_owned(),
        why,
    })
}

/// Writes the key to a file, for the next agent of this agent directory.
///
/// # Errors
/// If the file cannot be written.
pub fn leave_key(path: &Path, key: &[u8; 32]) -> Result<(), KeyError> {
    let io_error = |source: io::Error| KeyError::Io {
        path: path.to_owned(),
        source,
    };
    let _ = std::fs::remove_file(path);
    let mut file = create(path).map_err(io_error)?;
    writeln!(file, "{}", key_text(key)).map_err(io_error)
}

/// Creates a file that only this user can read.
fn create(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.write(true).create_new(true).mode(0o600).open(path)
}

/// The standing key of this user: read from `path`, which is created first if it is missing.
///
/// # Errors
/// See [`KeyError`].
pub fn standing_key(path: &Path) -> Result<[u8; 32], KeyError> {
    let io_error = |source| KeyError::Io {
        path: path.to_owned(),
        source,
    };
    if !path.exists() {
        // Written under another name and linked, so that no process reads a partial key, and
        // exactly one of several first starts succeeds.
        let draft = path.with_extension(format!("draft-{}", std::process::id()));
        let mut file = create(&draft).map_err(io_error)?;
        let written = writeln!(file, "{}", key_text(&draw_key()));
        let linked = written.and_then(|()| match std::fs::hard_link(&draft, path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => Ok(()),
        });
        let removed = std::fs::remove_file(&draft);
        linked.and(removed).map_err(io_error)?;
    }
    read_key_file(path)
}

/// A new key from the system's entropy.
pub fn draw_key() -> [u8; 32] {
    let mut key = [0; 32];
    muster_sys::random::fill(&mut key);
    key
}

/// A seed for the random choices of an agent or a demo, from the system's entropy.
pub fn draw_seed() -> u64 {
    draw_key()[..8]
        .iter()
        .fold(0, |seed, byte| seed << 8 | u64::from(*byte))
}

fn key_text(key: &[u8; 32]) -> String {
    key.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn parse_key(text: &str) -> Result<[u8; 32], &'static str> {
    if text.len() != 64 {
        return Err("it does not contain exactly 64 characters");
    }
    let mut key = [0; 32];
    for (byte, digits) in key.iter_mut().zip(text.as_bytes().chunks(2)) {
        let digits = std::str::from_utf8(digits).map_err(|_| "it contains other characters")?;
        *byte = u8::from_str_radix(digits, 16).map_err(|_| "it contains other characters")?;
    }
    Ok(key)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_standing_key_is_made_once_and_private() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("key");
        let key = standing_key(&path).unwrap();
        assert_eq!(standing_key(&path).unwrap(), key);
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_readable_or_invalid_key_file_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("key");
        fs::write(&path, key_text(&[7; 32])).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        assert!(
            read_key_file(&path)
                .unwrap_err()
                .to_string()
                .contains("chmod 600")
        );
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        assert_eq!(read_key_file(&path).unwrap(), [7; 32]);
        fs::write(&path, "abc").unwrap();
        assert!(read_key_file(&path).unwrap_err().to_string().contains("64"));
        fs::write(&path, "zz".repeat(32)).unwrap();
        assert!(matches!(
            read_key_file(&path),
            Err(KeyError::Content { .. })
        ));
        let missing = directory.path().join("missing");
        assert!(
            read_key_file(&missing)
                .unwrap_err()
                .to_string()
                .contains("missing")
        );
    }

    #[test]
    fn generated_keys_differ() {
        assert_ne!(draw_key(), draw_key());
    }
}
