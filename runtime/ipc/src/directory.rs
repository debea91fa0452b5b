//! `AgentDirectory` is the key of one job on one node and the directory that follows from it, in which clients find
//! their agent.
//!
//! Key = user id + job + node. The job is `MUSTER_JOB`, otherwise the PMIx namespace, otherwise Slurm's job and step;
//! without any of them the user's processes on this node share one agent (`solo`). The node is `MUSTER_NODE`,
//! otherwise Slurm's node name, otherwise the host name. The node is part of the key because several emulated nodes
//! may share one /tmp.
//!
//! The directory's name is a hash of the key (a socket's path has at most 107 bytes). Every client states its key
//! when it attaches, so two keys with one hash are never mixed: the client is refused.

use std::env::VarError;
use std::ffi::OsString;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use muster_shm::NODE_NAME_MAX;
use muster_sys::lock::try_lock;
use muster_sys::{process, socket};

/// The longest job name, in bytes: PMIx allows namespaces of 255.
pub const JOB_MAX: usize = 255;
/// The longest key: user id, job and node with two colons.
pub const KEY_MAX: usize = 10 + 1 + JOB_MAX + 1 + NODE_NAME_MAX;

/// How often a directory is created again that other processes keep removing.
const CREATE_TRIES_MAX: u32 = 1000;

/// The variables that the directory depends on. A value that is not UTF-8 is refused, not ignored.
const VARIABLES: [&str; 6] = [
    "MUSTER_JOB",
    "MUSTER_NODE",
    "PMIX_NAMESPACE",
    "SLURM_JOB_ID",
    "SLURMD_NODENAME",
    "MUSTER_RANK",
];

/// Why there is no usable directory. At most empty directories were created.
#[derive(Debug)]
pub enum DirectoryError {
    /// A name that cannot be used.
    Name {
        /// Job or node.
        what: &'static str,
        /// The name.
        value: String,
        /// The variable or option that it came from.
        from: &'static str,
        /// The most bytes allowed.
        most: usize,
    },
    /// A name with a character that it may not have.
    Character {
        /// Job or node.
        what: &'static str,
        /// The name.
        value: String,
        /// The variable or option that it came from.
        from: &'static str,
        /// The first character that is not allowed.
        character: char,
    },
    /// A variable that is not UTF-8.
    NoText {
        /// Its name.
        variable: &'static str,
        /// Its value.
        value: OsString,
    },
    /// The socket's path would be too long.
    TooLong {
        /// The path.
        path: PathBuf,
        /// The most bytes allowed.
        most: usize,
    },
    /// Another user could change the content of the directory.
    Unsafe {
        /// The directory.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// The user id of this process outside of its user namespace is not known.
    Unmapped,
    /// A system call failed.
    System {
        /// The directory.
        path: PathBuf,
        /// The error of the system call.
        cause: io::Error,
    },
}

impl std::fmt::Display for DirectoryError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Name { what, value, from, most } => write!(
                f,
                "{what} {value:?} (from {from}) has {length} bytes, allowed are 1 to {most}; set {from} to a \
                 shorter name",
                length = value.len()
            ),
            Self::Character { what, value, from, character } => write!(
                f,
                "{what} {value:?} (from {from}) has the character {character:?}; only printable ASCII without \
                 spaces and colons is allowed; set {from} to another name"
            ),
            Self::NoText { variable, value } => write!(
                f,
                "{variable} is not UTF-8: {value:?}; set it to a text, or unset it"
            ),
            Self::TooLong { path, most } => write!(
                f,
                "{path}: a socket's path has at most {most} bytes; set MUSTER_DIR to a shorter directory",
                path = path.display()
            ),
            Self::Unsafe { path, why } => write!(
                f,
                "{path} is not safe: {why}; remove it, or set MUSTER_DIR to a directory of your own",
                path = path.display()
            ),
            Self::Unmapped => f.write_str(
                "this process is in a user namespace that does not map its user id, so the user whose agent \
                 it should attach to is not known; map it (unshare --map-user or --map-root-user, or your \
                 container's setting for that)",
            ),
            Self::System { path, cause } => write!(
                f,
                "cannot use directory {path}: {cause}; set MUSTER_DIR to a directory that can be written",
                path = path.display()
            ),
        }
    }
}

impl std::error::Error for DirectoryError {}

impl DirectoryError {
    fn is_missing(&self) -> bool {
        matches!(self, Self::System { cause, .. } if cause.kind() == io::ErrorKind::NotFound)
    }
}

/// A key and its directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentDirectory {
    key: String,
    node: String,
    base: PathBuf,
    directory: PathBuf,
}

impl AgentDirectory {
    /// The directory that follows from this process's environment.
    pub fn from_environment() -> Result<Self, DirectoryError> {
        Self::find(None, None, None)
    }

    /// The directory that follows from the environment and the given values, which take precedence.
    pub fn find(
        job: Option<&str>,
        node: Option<&str>,
        base: Option<&Path>,
    ) -> Result<Self, DirectoryError> {
        check_variables()?;
        let (job, job_from) = match job {
            Some(job) => (job.to_owned(), "MUSTER_JOB"),
            None => job_of(variable),
        };
        let (node, node_from) = match node {
            Some(node) => (node.to_owned(), "MUSTER_NODE"),
            None => node_of(variable),
        };
        checked("job name", &job, job_from, JOB_MAX)?;
        checked("node name", &node, node_from, NODE_NAME_MAX)?;
        without_colon("node name", &node, node_from)?;
        // The user id as other processes of this node see it, whatever it is in a container.
        let user = process::outer_user_id().ok_or(DirectoryError::Unmapped)?;
        let base =
            base.map(Path::to_owned)
                .unwrap_or_else(|| match std::env::var_os("MUSTER_DIR") {
                    Some(base) if !base.is_empty() => PathBuf::from(base),
                    _ => PathBuf::from(format!("/tmp/muster-{user}")),
                });
        let key = format!("{user}:{job}:{node}");
        // An agent may run on after this process's working directory is removed.
        let base = absolute(&base)?;
        let directory = base.join(hash(&key));
        Self {
            key,
            node,
            base,
            directory,
        }
        .with_fitting_path()
    }

    /// For an agent that was started with `--job KEY --dir DIRECTORY`: exactly these values.
    pub fn from_key(key: &str, directory: &Path) -> Result<Self, DirectoryError> {
        checked("key", key, "--job", KEY_MAX)?;
        let node = key.rsplit(':').next().unwrap_or_default().to_owned();
        checked("node name", &node, "--job", NODE_NAME_MAX)?;
        let directory = absolute(directory)?;
        let base = directory.parent().unwrap_or(&directory).to_owned();
        Self {
            key: key.to_owned(),
            node,
            base,
            directory,
        }
        .with_fitting_path()
    }

    /// `UID:JOB:NODE`.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// The name of this node.
    pub fn node(&self) -> &str {
        &self.node
    }

    /// The directory that belongs to this key.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The agent's socket.
    pub fn socket(&self) -> PathBuf {
        self.directory.join("sock")
    }

    /// Held by the agent while any of its processes runs.
    pub fn lock(&self) -> PathBuf {
        self.directory.join("lock")
    }

    /// The agent's log.
    pub fn log(&self) -> PathBuf {
        self.directory.join("log")
    }

    /// The job's key, if the process that started the agent passed it on.
    pub fn key_file(&self) -> PathBuf {
        self.directory.join("key")
    }

    /// The file with the agent's incarnation, for an agent that has to continue with a higher one after a restart.
    pub fn incarnation(&self) -> PathBuf {
        self.directory.join("life")
    }

    /// Removes the files that killed agents have left here, except for a log. Not while an agent may run.
    pub fn sweep(&self) {
        let socket = self.socket();
        for file in [
            &socket,
            &socket.with_extension("new"),
            &self.directory.join("control"),
            &self.key_file(),
            &self.incarnation(),
            &self.incarnation().with_extension("new"),
            &self.start_lock(),
            &self.lock(),
        ] {
            let _ = fs::remove_file(file);
        }
        let _ = fs::remove_dir(&self.directory);
    }

    /// Removes an agent directory with its log, if it is one and no agent runs there.
    pub fn sweep_dead(directory: &Path) {
        let Ok(directory) = Self::from_key("::dead", directory) else {
            return;
        };
        if directory.inspect().is_err() || !directory.lock().is_file() {
            return;
        }
        // Held until all files are removed: a process that starts an agent meanwhile waits for it.
        if let Ok(Some(_held)) = try_lock(&directory.lock()) {
            let _ = fs::remove_file(directory.log());
            directory.sweep();
        }
    }

    /// Removes the directory if it holds nothing but the lock of the process that starts an agent.
    pub fn leave(&self) {
        // With an agent's files in it the directory stays; the next process that needs the lock creates it again.
        let _ = fs::remove_file(self.start_lock());
        let _ = fs::remove_dir(&self.directory);
    }

    /// Held by the client that starts the agent.
    pub fn start_lock(&self) -> PathBuf {
        self.directory.join("start.lock")
    }

    /// Creates the directory if it is missing and checks that no other user can change it.
    pub fn prepare(&self) -> Result<(), DirectoryError> {
        let user = process::user_id();
        prepare_base(&self.base, user)?;
        // An agent that ends removes the directory, perhaps at this moment: then it is created again.
        for _ in 1..CREATE_TRIES_MAX {
            create(&self.directory)?;
            match metadata(&self.directory) {
                Err(error) if error.is_missing() => {}
                found => return check_own(&self.directory, &found?, user),
            }
        }
        check_own(&self.directory, &metadata(&self.directory)?, user)
    }

    /// Checks, without creating anything, that no other user can have put a socket there. A directory that does not
    /// exist is safe, because no process listens in it.
    pub fn inspect(&self) -> Result<(), DirectoryError> {
        let user = process::user_id();
        for (path, check) in [
            (&self.base, check_base as fn(&Path, &fs::Metadata, u32) -> _),
            (&self.directory, check_own),
        ] {
            match fs::symlink_metadata(path) {
                Ok(found) => check(path, &found, user)?,
                Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(()),
                Err(cause) => {
                    return Err(DirectoryError::System {
                        path: path.clone(),
                        cause,
                    });
                }
            }
        }
        Ok(())
    }

    /// Whether there is no job: the user's processes on this node share the agent.
    pub fn is_solo(&self) -> bool {
        let without_user = self.key.split_once(':').map(|(_, rest)| rest);
        let job = without_user.and_then(|rest| rest.strip_suffix(&format!(":{}", self.node)));
        job == Some(SOLO)
    }

    fn with_fitting_path(self) -> Result<Self, DirectoryError> {
        let path = self.socket();
        // The agent binds at temporary names first; `control.new` is seven bytes longer.
        let most = socket::PATH_MAX - 7;
        if path.as_os_str().as_bytes().len() > most {
            return Err(DirectoryError::TooLong { path, most });
        }
        Ok(self)
    }
}

/// The job's name outside of a job.
const SOLO: &str = "solo";

/// The directory that contains all agent directories of this user, created and checked.
pub fn base_directory() -> Result<PathBuf, DirectoryError> {
    let directory = AgentDirectory::find(Some(SOLO), Some("base"), None)?;
    prepare_base(&directory.base, process::user_id())?;
    Ok(directory.base)
}

fn prepare_base(path: &Path, user: u32) -> Result<(), DirectoryError> {
    create(path)?;
    check_base(path, &metadata(path)?, user)
}

fn check_own(path: &Path, own: &fs::Metadata, user: u32) -> Result<(), DirectoryError> {
    if own.uid() != user || own.mode() & 0o077 != 0 || !own.is_dir() {
        return Err(not_safe(path, own, user));
    }
    Ok(())
}

fn check_base(path: &Path, base: &fs::Metadata, user: u32) -> Result<(), DirectoryError> {
    // In a directory that all users may write to (as /tmp), the sticky bit protects this user's files.
    let writable_by_others = base.mode() & 0o022 != 0 && base.mode() & 0o1000 == 0;
    if ![user, 0].contains(&base.uid()) || writable_by_others || !base.is_dir() {
        return Err(not_safe(path, base, user));
    }
    Ok(())
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

fn job_of(variable: impl Fn(&str) -> Option<String>) -> (String, &'static str) {
    if let Some(job) = variable("MUSTER_JOB") {
        return (job, "MUSTER_JOB");
    }
    if let Some(namespace) = variable("PMIX_NAMESPACE") {
        return (namespace, "PMIX_NAMESPACE");
    }
    if let Some(job) = variable("SLURM_JOB_ID") {
        let step = variable("SLURM_STEP_ID").or_else(|| variable("SLURM_STEPID"));
        return (
            format!("{job}.{}", step.as_deref().unwrap_or("batch")),
            "SLURM_JOB_ID",
        );
    }
    (SOLO.into(), "no job")
}

fn node_of(variable: impl Fn(&str) -> Option<String>) -> (String, &'static str) {
    if let Some(node) = variable("MUSTER_NODE") {
        return (node, "MUSTER_NODE");
    }
    if let Some(node) = variable("SLURMD_NODENAME") {
        return (node, "SLURMD_NODENAME");
    }
    (process::host_name().unwrap_or_default(), "MUSTER_NODE")
}

fn checked(
    what: &'static str,
    value: &str,
    from: &'static str,
    most: usize,
) -> Result<(), DirectoryError> {
    if (1..=most).contains(&value.len()) {
        return Ok(());
    }
    Err(DirectoryError::Name {
        what,
        value: value.to_owned(),
        from,
        most,
    })
}

/// The last part of a key, after its last colon, is the node.
fn without_colon(
    what: &'static str,
    value: &str,
    from: &'static str,
) -> Result<(), DirectoryError> {
    let is_invalid = |character: &char| !character.is_ascii_graphic() || *character == ':';
    match value.chars().find(is_invalid) {
        None => Ok(()),
        Some(character) => Err(DirectoryError::Character {
            what,
            value: value.to_owned(),
            from,
            character,
        }),
    }
}

fn check_variables() -> Result<(), DirectoryError> {
    for variable in VARIABLES {
        if let Err(VarError::NotUnicode(value)) = std::env::var(variable) {
            return Err(DirectoryError::NoText { variable, value });
        }
    }
    Ok(())
}

fn absolute(path: &Path) -> Result<PathBuf, DirectoryError> {
    std::path::absolute(path).map_err(|cause| DirectoryError::System {
        path: path.to_owned(),
        cause,
    })
}

fn create(path: &Path) -> Result<(), DirectoryError> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(cause) if cause.kind() != io::ErrorKind::AlreadyExists => Err(DirectoryError::System {
            path: path.to_owned(),
            cause,
        }),
        _ => Ok(()),
    }
}

/// Does not follow a symbolic link, which another user may have put there.
fn metadata(path: &Path) -> Result<fs::Metadata, DirectoryError> {
    fs::symlink_metadata(path).map_err(|cause| DirectoryError::System {
        path: path.to_owned(),
        cause,
    })
}

fn not_safe(path: &Path, found: &fs::Metadata, user: u32) -> DirectoryError {
    let (owner, mode) = (found.uid(), found.mode() & 0o7777);
    let kind = if found.is_dir() {
        "directory"
    } else {
        "not a directory"
    };
    let why = format!("{kind}, owner {owner} (must be {user}), mode {mode:04o} (must be 0700)");
    DirectoryError::Unsafe {
        path: path.to_owned(),
        why,
    }
}

/// FNV-1a of 128 bits: the same in every release and on both sides, which the standard library's hash does not
/// guarantee. It need not be strong, because the ipc server compares the key itself.
fn hash(text: &str) -> String {
    let mut state: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    for byte in text.bytes() {
        state = (state ^ u128::from(byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b);
    }
    format!("{:016x}", (state >> 64) as u64 ^ state as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn the_job_name_comes_from_the_most_specific_source() {
        let all = |name: &str| Some(format!("value-of-{name}"));
        assert_eq!(job_of(all).0, "value-of-MUSTER_JOB");
        let slurm = |name: &str| name.starts_with("SLURM_JOB").then(|| "77".to_owned());
        assert_eq!(job_of(slurm).0, "77.batch");
        assert_eq!(job_of(|_| None).0, "solo");
        assert_eq!(node_of(all).0, "value-of-MUSTER_NODE");
    }

    #[test]
    fn nodes_of_one_job_have_different_directories() {
        let base = Path::new("/tmp/x");
        let one = AgentDirectory::find(Some("j"), Some("n1"), Some(base)).unwrap();
        let two = AgentDirectory::find(Some("j"), Some("n2"), Some(base)).unwrap();
        assert_ne!(one.directory(), two.directory());
        assert_eq!(
            AgentDirectory::from_key(one.key(), one.directory()).unwrap(),
            one
        );
    }

    #[test]
    fn a_job_is_solo_only_by_its_whole_name_and_a_directory_is_absolute() {
        let directory =
            |job| AgentDirectory::find(Some(job), Some("n"), Some(Path::new("x"))).unwrap();
        assert!(directory("solo").is_solo());
        assert!(!directory("solo:n").is_solo() && !directory("a:solo").is_solo());
        assert!(directory("a:b").directory().is_absolute());
        let named = AgentDirectory::from_key(directory("a:b").key(), Path::new("x/y")).unwrap();
        assert_eq!((named.node(), named.directory().is_absolute()), ("n", true));
    }

    #[test]
    fn names_and_paths_that_do_not_fit_are_refused_with_the_remedy() {
        let long = "n".repeat(64);
        let text = AgentDirectory::find(Some("j"), Some(&long), None)
            .unwrap_err()
            .to_string();
        assert!(
            text.contains("64 bytes") && text.contains("MUSTER_NODE"),
            "{text}"
        );
        for node in ["a:b", "a b", "n\u{e4}"] {
            let text = AgentDirectory::find(Some("j"), Some(node), None)
                .unwrap_err()
                .to_string();
            assert!(
                text.contains("MUSTER_NODE") && text.contains("printable"),
                "{text}"
            );
        }
        // The maximum that muster.h documents, and one byte more.
        let base = |length: usize| PathBuf::from("/").join("d".repeat(length - 1));
        let find = |base: PathBuf| AgentDirectory::find(Some("j"), Some("n"), Some(&base));
        assert!(find(base(78)).is_ok());
        let text = find(base(79)).unwrap_err().to_string();
        assert!(text.contains("MUSTER_DIR"), "{text}");
    }

    /// Ending agents remove the directory while other processes prepare it.
    #[test]
    fn a_removed_directory_is_created_again() {
        let base = tempfile::tempdir().unwrap();
        let directory = AgentDirectory::find(Some("j"), Some("n"), Some(base.path())).unwrap();
        let is_over = std::sync::atomic::AtomicBool::new(false);
        let done = || is_over.load(std::sync::atomic::Ordering::Relaxed);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done() {
                    directory.leave();
                }
            });
            let prepared = (0..2000).try_for_each(|_| directory.prepare());
            is_over.store(true, std::sync::atomic::Ordering::Relaxed);
            prepared.unwrap();
        });
    }

    #[test]
    fn a_directory_open_to_others_is_refused() {
        let base = tempfile::tempdir().unwrap();
        let directory = AgentDirectory::find(Some("j"), Some("n"), Some(base.path())).unwrap();
        directory.inspect().unwrap();
        assert!(!directory.directory().exists());
        directory.prepare().unwrap();
        directory.prepare().unwrap();
        directory.inspect().unwrap();
        fs::set_permissions(directory.directory(), fs::Permissions::from_mode(0o755)).unwrap();
        let text = directory.prepare().unwrap_err().to_string();
        assert!(
            text.contains("0755") && text.contains("MUSTER_DIR"),
            "{text}"
        );
        assert_eq!(directory.inspect().unwrap_err().to_string(), text);
        fs::remove_dir(directory.directory()).unwrap();
        std::os::unix::fs::symlink("/tmp", directory.directory()).unwrap();
        assert!(matches!(
            directory.prepare(),
            Err(DirectoryError::Unsafe { .. })
        ));
    }
}
