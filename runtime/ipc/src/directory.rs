//! Where client and agent meet: the key of "this job on this node" and the directory that follows.
//!
//! Key = user id + job + node. The job is `MUSTER_JOB`, else the PMIx namespace, else Slurm's job
//! and step; without any of them the user's processes on this node share one agent (`solo`). The
//! node is `MUSTER_NODE`, else Slurm's node name, else the host name. Several emulated nodes share
//! one /tmp, so the node is part of the key and not only of the machine.
//!
//! The directory's name is a hash of the key (a socket's path has 107 bytes), and every client
//! says its key when it knocks: a collision is refused, never joined.

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

/// How often a directory is made that others take away again and again.
const REMAKES_MAX: u32 = 1000;

/// The variables that say where: each is a text, or it is refused and not passed over.
const VARIABLES: [&str; 6] = [
    "MUSTER_JOB",
    "MUSTER_NODE",
    "PMIX_NAMESPACE",
    "SLURM_JOB_ID",
    "SLURMD_NODENAME",
    "MUSTER_RANK",
];

/// Why there is no place to meet. Nothing but empty directories was created.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryError {
    /// A name that cannot be used.
    #[error("{what} {value:?} (from {from}) has {length} bytes, allowed are 1 to {most}; set {from} to a shorter name",
        length = value.len())]
    Name {
        /// Job or node.
        what: &'static str,
        /// What it is.
        value: String,
        /// Where it came from.
        from: &'static str,
        /// The most bytes allowed.
        most: usize,
    },
    /// A name with a character that it may not have.
    #[error(
        "{what} {value:?} (from {from}) has the character {character:?}; only printable ASCII \
         without spaces and colons is allowed; set {from} to another name"
    )]
    Character {
        /// Job or node.
        what: &'static str,
        /// What it is.
        value: String,
        /// Where it came from.
        from: &'static str,
        /// The first one that is not allowed.
        character: char,
    },
    /// A variable that is no text.
    #[error("{variable} is not UTF-8: {value:?}; set it to a text, or unset it")]
    NoText {
        /// Its name.
        variable: &'static str,
        /// What it holds.
        value: OsString,
    },
    /// The socket's path would be too long.
    #[error(
        "{path}: a socket's path has at most {most} bytes; set MUSTER_DIR to a shorter directory"
    )]
    TooLong {
        /// The path.
        path: PathBuf,
        /// The most bytes allowed.
        most: usize,
    },
    /// Somebody else could change what is in the directory.
    #[error("{path} is not safe: {why}; remove it, or set MUSTER_DIR to a directory of your own")]
    Unsafe {
        /// The directory.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// Nobody outside knows whose process this is.
    #[error(
        "this process is in a user namespace that does not map its user id, so it cannot be told whose \
         agent to meet; map it (unshare --map-user or --map-root-user, or your container's setting for \
         that)"
    )]
    Unmapped,
    /// The system refused.
    #[error(
        "cannot use directory {path}: {cause}; set MUSTER_DIR to a directory that can be written"
    )]
    System {
        /// The directory.
        path: PathBuf,
        /// The system's answer.
        cause: io::Error,
    },
}

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
    /// The place that this process's environment says.
    pub fn from_environment() -> Result<Self, DirectoryError> {
        Self::find(None, None, None)
    }

    /// As the environment says, but for what is given.
    pub fn find(
        job: Option<&str>,
        node: Option<&str>,
        base: Option<&Path>,
    ) -> Result<Self, DirectoryError> {
        variables_are_texts()?;
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
        // As the others of this node know it, whatever it is called in a container.
        let user = process::outer_user_id().ok_or(DirectoryError::Unmapped)?;
        let base =
            base.map(Path::to_owned)
                .unwrap_or_else(|| match std::env::var_os("MUSTER_DIR") {
                    Some(base) if !base.is_empty() => PathBuf::from(base),
                    _ => PathBuf::from(format!("/tmp/muster-{user}")),
                });
        let key = format!("{user}:{job}:{node}");
        // An agent outlives this process's working directory.
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

    /// For an agent that was started with `--job KEY --dir DIRECTORY`: exactly these.
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

    /// Held by the agent while any of its processes lives.
    pub fn lock(&self) -> PathBuf {
        self.directory.join("lock")
    }

    /// What the agent has to say for itself.
    pub fn log(&self) -> PathBuf {
        self.directory.join("log")
    }

    /// The job's key, where it was brought by whoever started the agent.
    pub fn key_file(&self) -> PathBuf {
        self.directory.join("key")
    }

    /// The number of the agent's life, where what becomes of it matters to one that is started in its place.
    pub fn incarnation(&self) -> PathBuf {
        self.directory.join("life")
    }

    /// Takes away what agents that were killed have left here, but for a log. Not while one may live.
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

    /// The same of an agent's directory, with its log, if there is one and no process is the agent there.
    pub fn sweep_dead(directory: &Path) {
        let Ok(directory) = Self::from_key("::dead", directory) else {
            return;
        };
        if directory.inspect().is_err() || !directory.lock().is_file() {
            return;
        }
        // Held until all is gone: who comes meanwhile waits for it.
        if let Ok(Some(_held)) = try_lock(&directory.lock()) {
            let _ = fs::remove_file(directory.log());
            directory.sweep();
        }
    }

    /// Takes the directory away again if there is nothing in it but the lock of who starts an agent.
    pub fn leave(&self) {
        // With an agent's files in it the directory stays, and the lock is made anew when it is wanted.
        let _ = fs::remove_file(self.start_lock());
        let _ = fs::remove_dir(&self.directory);
    }

    /// Held by the client that starts the agent.
    pub fn start_lock(&self) -> PathBuf {
        self.directory.join("start.lock")
    }

    /// Makes the directory if it is missing and checks that nobody else can change it.
    pub fn prepare(&self) -> Result<(), DirectoryError> {
        let user = process::user_id();
        prepare_base(&self.base, user)?;
        // An agent that ends takes the directory away, maybe just now: then it is made again.
        for _ in 1..REMAKES_MAX {
            create(&self.directory)?;
            match metadata(&self.directory) {
                Err(error) if error.is_missing() => {}
                found => return check_own(&self.directory, &found?, user),
            }
        }
        check_own(&self.directory, &metadata(&self.directory)?, user)
    }

    /// Checks, without making anything, that nobody else can have put a socket there. A directory
    /// that does not exist is safe: nobody listens in it.
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

/// The job's name where there is no job.
const SOLO: &str = "solo";

/// The directory under which all places of this user lie, made and checked.
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
    // A directory that everybody may write to (as /tmp) protects ours by its sticky bit.
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

/// A key's last part is the node: what follows its last colon.
fn without_colon(
    what: &'static str,
    value: &str,
    from: &'static str,
) -> Result<(), DirectoryError> {
    let strange = |character: &char| !character.is_ascii_graphic() || *character == ':';
    match value.chars().find(strange) {
        None => Ok(()),
        Some(character) => Err(DirectoryError::Character {
            what,
            value: value.to_owned(),
            from,
            character,
        }),
    }
}

fn variables_are_texts() -> Result<(), DirectoryError> {
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

/// Not through a symbolic link: somebody else may have put it there.
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
        "no directory"
    };
    let why = format!("{kind}, owner {owner} (we are {user}), mode {mode:04o} (must be 0700)");
    DirectoryError::Unsafe {
        path: path.to_owned(),
        why,
    }
}

/// FNV-1a of 128 bits: the same in every release and on both sides, which the standard library's
/// hash does not promise. It needs no strength: the key itself is compared at the door.
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
    fn the_job_is_taken_from_the_most_certain_source() {
        let all = |name: &str| Some(format!("value-of-{name}"));
        assert_eq!(job_of(all).0, "value-of-MUSTER_JOB");
        let slurm = |name: &str| name.starts_with("SLURM_JOB").then(|| "77".to_owned());
        assert_eq!(job_of(slurm).0, "77.batch");
        assert_eq!(job_of(|_| None).0, "solo");
        assert_eq!(node_of(all).0, "value-of-MUSTER_NODE");
    }

    #[test]
    fn different_nodes_of_one_job_meet_in_different_places() {
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
    fn names_and_paths_that_do_not_fit_say_what_to_do() {
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
        // What muster.h promises, and one more.
        let base = |length: usize| PathBuf::from("/").join("d".repeat(length - 1));
        let find = |base: PathBuf| AgentDirectory::find(Some("j"), Some("n"), Some(&base));
        assert!(find(base(78)).is_ok());
        let text = find(base(79)).unwrap_err().to_string();
        assert!(text.contains("MUSTER_DIR"), "{text}");
    }

    /// Agents that end take the directory away while others come.
    #[test]
    fn a_directory_that_is_taken_away_is_made_again() {
        let base = tempfile::tempdir().unwrap();
        let directory = AgentDirectory::find(Some("j"), Some("n"), Some(base.path())).unwrap();
        let over = std::sync::atomic::AtomicBool::new(false);
        let done = || over.load(std::sync::atomic::Ordering::Relaxed);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done() {
                    directory.leave();
                }
            });
            let prepared = (0..2000).try_for_each(|_| directory.prepare());
            over.store(true, std::sync::atomic::Ordering::Relaxed);
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
