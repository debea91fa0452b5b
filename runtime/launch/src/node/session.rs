//! The files of a node's ranks.

use std::path::{Path, PathBuf};

use crate::{Error, Plan};
use muster_ipc::locked_directory::{LockedDirectory, SHARED_MEMORY};

/// The files of this node's ranks, removed at the end.
pub(super) struct Session {
    pub(super) directory: PathBuf,
    pub(super) memory: Option<LockedDirectory>,
}

impl Session {
    pub(super) fn open(plan: &Plan, base: &Path, node: &str) -> Result<Self, Error> {
        use std::os::unix::fs::DirBuilderExt;
        let refused = |path: &Path| Error::system(path.display().to_string());
        let directory = session_directory(base, node);
        let memory = memory_directory(&plan.job, node);
        let memory = memory.map(|path| LockedDirectory::take_near(&path).map_err(refused(&path)));
        let memory = memory.transpose()?;
        let made = std::fs::DirBuilder::new()
            .mode(0o700)
            .recursive(true)
            .create(&directory);
        made.map_err(refused(&directory))?;
        Ok(Self { directory, memory })
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// The directory of a node's launcher: files of its PMIx server and its ranks, removed at the end.
fn session_directory(base: &Path, node: &str) -> PathBuf {
    base.join(format!("s-{node}"))
}

/// The directory for the shared memory of a node's ranks, if the system has a place for it.
fn memory_directory(job: &str, node: &str) -> Option<PathBuf> {
    let place = Path::new(SHARED_MEMORY);
    place
        .is_dir()
        .then(|| place.join(format!("muster-{job}-{node}")))
}
