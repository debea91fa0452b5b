//! The incarnation of this node: its number, and the file in which it is stored for an agent that replaces this one.
//!
//! It is written only where MPI is notified of failures. The ranks survive the loss of their agent. If the other
//! members declared the node failed meanwhile, their MPI treats its ranks as failed for good. The next agent
//! therefore inquires about the stored incarnation before it begins its own, see `overlay::returning` of
//! muster-protocol.

use rustix::time::{ClockId, clock_gettime};
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use tracing::warn;

/// Maximum length of the number.
const DIGITS_MAX: usize = 20;

/// The path of the file, and the number that was written last.
pub(super) struct IncarnationFile {
    path: PathBuf,
    /// A client has its MPI notified of failures.
    is_needed: bool,
    written: Option<u64>,
}

impl IncarnationFile {
    pub(super) fn new(path: PathBuf) -> Self {
        Self {
            path,
            is_needed: false,
            written: None,
        }
    }

    /// Enables the file.
    pub(super) fn enable(&mut self) {
        self.is_needed = true;
    }

    /// Writes the number if the file is enabled and the number has changed.
    pub(super) fn write(&mut self, incarnation: u64) {
        if !self.is_needed || self.written == Some(incarnation) {
            return;
        }
        self.written = Some(incarnation);
        if let Err(cause) = replace(&self.path, incarnation) {
            let path = self.path.display();
            warn!(%cause, %path, "cannot write the incarnation file; the next agent cannot inquire about this one");
        }
    }
}

/// The number of a new incarnation: the time in nanoseconds.
pub(super) fn next() -> u64 {
    let now = clock_gettime(ClockId::Realtime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// The number that an earlier agent stored; none if the file is missing or invalid.
pub(super) fn read(path: &Path) -> Option<u64> {
    let text = std::fs::read_to_string(path).ok()?;
    let text = text.trim();
    (text.len() <= DIGITS_MAX).then(|| text.parse().ok())?
}

/// Writes atomically: a reader of a partial number would inquire about an incarnation that never existed.
fn replace(path: &Path, incarnation: u64) -> io::Result<()> {
    let draft = path.with_extension("new");
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    writeln!(options.open(&draft)?, "{incarnation}")?;
    std::fs::rename(&draft, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_incarnation_is_written_if_enabled_and_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("incarnation");
        let mut incarnation = IncarnationFile::new(path.clone());
        incarnation.write(7);
        assert_eq!(read(&path), None);
        incarnation.enable();
        for number in [7, 8, 8] {
            incarnation.write(number);
            assert_eq!(read(&path), Some(number));
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
        for text in ["", "seven", "-1", "18446744073709551616", "7 8"] {
            std::fs::write(&path, text).unwrap();
            assert_eq!(read(&path), None, "{text}");
        }
    }
}
