//! The journal's file: lines are appended, and before it grows over its bound it becomes the part before.

use super::JournalPlace;
use crate::sys::process::user_id;
use rustix::fs::OFlags;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The file.
#[derive(Debug)]
pub(super) struct JournalFile {
    place: JournalPlace,
    /// None: it is to be opened, or opened again.
    file: Option<File>,
    /// A line was written in part, and is to be ended before the next one.
    is_torn: bool,
}

impl JournalFile {
    pub(super) fn new(place: JournalPlace) -> Self {
        Self {
            place,
            file: None,
            is_torn: false,
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.place.path
    }

    /// Appends whole lines; true if the file was begun anew for it. After an error nothing is certain but
    /// that the next lines begin on a line of their own.
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

/// The part before.
pub(crate) fn before(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".1");
    name.into()
}

/// Appending: a worker that follows another one goes on in its file. In a directory that users share another
/// one may have put something of this name there: a link, a pipe, a file of his own.
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

/// All of it, or how much of it and why not more.
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
        let place = JournalPlace {
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
