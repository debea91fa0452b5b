//! The journal's file. A file that would grow above its bound is renamed to `.1` first, and replaces the one there.

use super::JournalDirectory;
use muster_sys::process::user_id;
use rustix::fs::OFlags;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The file.
#[derive(Debug)]
pub(super) struct JournalFile {
    place: JournalDirectory,
    /// None: the next append opens it.
    file: Option<File>,
    /// The last line was written in part; the next append ends it first.
    is_torn: bool,
}

impl JournalFile {
    pub(super) fn new(place: JournalDirectory) -> Self {
        Self {
            place,
            file: None,
            is_torn: false,
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.place.path
    }

    /// Appends whole lines. True if the file was rotated before.
    ///
    /// # Errors
    /// The system call's. A part of the lines may be written; the next append begins on a line of its own.
    pub(super) fn append(&mut self, lines: &str) -> io::Result<bool> {
        let mut file = match self.file.take() {
            Some(file) => file,
            None => open(&self.place.path)?,
        };
        let found = file.metadata()?;
        let (length, mut rotated) = (found.len(), false);
        if found.is_file() && length > 0 && length + lines.len() as u64 > self.place.bytes_max {
            fs::rename(&self.place.path, before(&self.place.path))?;
            file = open(&self.place.path)?;
            (self.is_torn, rotated) = (false, true);
        }
        let text = match self.is_torn {
            true => format!("\n{lines}"),
            false => lines.to_owned(),
        };
        match write(&mut file, text.as_bytes()) {
            Ok(()) => self.is_torn = false,
            Err((written, cause)) => {
                self.is_torn |= written > 0;
                return Err(cause);
            }
        }
        self.file = Some(file);
        Ok(rotated)
    }
}

/// The path of the older part.
pub(crate) fn before(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".1");
    name.into()
}

/// Opens for appending, as a worker continues the file of the one before it. In a shared directory the name may be a
/// link, a pipe or a file that another user has made: each is refused.
fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    options.custom_flags(flags.bits().cast_signed());
    let file = options.append(true).create(true).mode(0o640).open(path)?;
    let found = file.metadata()?;
    if found.is_file() && found.uid() != user_id() {
        let why = "the file is another user's; name another directory (MUSTER_JOURNAL)";
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    }
    Ok(file)
}

/// Writes all bytes; the error holds how many were written.
fn write(file: &mut File, bytes: &[u8]) -> Result<(), (usize, io::Error)> {
    let mut written = 0;
    while written < bytes.len() {
        match file.write(&bytes[written..]) {
            Ok(0) => return Err((written, io::ErrorKind::WriteZero.into())),
            Ok(count) => written += count,
            Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
            Err(cause) => return Err((written, cause)),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_parts_and_no_more_than_both_bounds() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("j.jsonl");
        let place = JournalDirectory {
            path: path.clone(),
            bytes_max: 100,
        };
        let mut file = JournalFile::new(place.clone());
        let rotations: usize = (0..20)
            .map(|number| {
                file.append(&format!("{{\"line\":{number:>10}}}\n"))
                    .unwrap()
            })
            .map(usize::from)
            .sum();
        assert_eq!(rotations, 3);
        // Another worker goes on where this one stopped.
        JournalFile::new(place).append("{\"last\":1}\n").unwrap();
        let read = |path: &Path| fs::read_to_string(path).unwrap();
        let (older, newer) = (read(&before(&path)), read(&path));
        assert!(older.len() <= 100 && newer.len() <= 100);
        assert!(newer.ends_with("{\"last\":1}\n"), "{newer}");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 2);
    }
}
