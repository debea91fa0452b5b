//! The number of this node's life, left for an agent that is started in the place of this one.
//!
//! Only where MPI is told of failures: the ranks live through the loss of their agent, and if the others held
//! the node failed meanwhile their MPI has buried them for good. The agent that comes next asks for that life
//! before it begins its own, see `overlay::returning` of the protocol.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use tracing::warn;

/// Longest number.
const DIGITS_MAX: usize = 20;

/// Where it is left, and what was left there last.
pub(super) struct IncarnationFile {
    path: PathBuf,
    /// A client has its MPI told of failures.
    matters: bool,
    left: Option<u64>,
}

impl IncarnationFile {
    pub(super) fn new(path: PathBuf) -> Self {
        Self {
            path,
            matters: false,
            left: None,
        }
    }

    /// From now on it matters.
    pub(super) fn matters(&mut self) {
        self.matters = true;
    }

    /// Leaves the number if it matters and is another than before.
    pub(super) fn keep(&mut self, incarnation: u64) {
        if !self.matters || self.left == Some(incarnation) {
            return;
        }
        self.left = Some(incarnation);
        if let Err(cause) = write(&self.path, incarnation) {
            let path = self.path.display();
            warn!(%cause, %path, "an agent in the place of this one will not know what became of it");
        }
    }
}

/// What an agent before us has left; none if nothing that can be read.
pub(super) fn read(path: &Path) -> Option<u64> {
    let text = std::fs::read_to_string(path).ok()?;
    let text = text.trim();
    (text.len() <= DIGITS_MAX).then(|| text.parse().ok())?
}

/// At once or not at all: whoever reads half of a number would ask for nobody.
fn write(path: &Path, incarnation: u64) -> io::Result<()> {
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
    fn a_life_is_left_where_it_matters_and_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("life");
        let mut incarnation = IncarnationFile::new(path.clone());
        incarnation.keep(7);
        assert_eq!(read(&path), None);
        incarnation.matters();
        for number in [7, 8, 8] {
            incarnation.keep(number);
            assert_eq!(read(&path), Some(number));
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
        for text in ["", "seven", "-1", "18446744073709551616", "7 8"] {
            std::fs::write(&path, text).unwrap();
            assert_eq!(read(&path), None, "{text}");
        }
    }
}
