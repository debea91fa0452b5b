//! The PMIx server of a launcher, for the ranks that it starts on its node.
//!
//! The ranks of one node connect to it to register, to take part in collectives with ranks of all nodes (fences), to
//! report that they are done, and to be notified of failures. The server handles its own node only: whatever concerns
//! other nodes is passed to the launcher as an [`Upcall`], which the launcher answers later.
//!
//! libpmix runs a thread. Upcalls arrive on it, are put into a queue and raise a descriptor; nothing is decided
//! there. A process has one server at most, which is never restarted: ranks do not reconnect.

mod answer;
mod arguments;
mod callbacks;
mod collective;
mod control;
mod ffi;
mod infos;
mod log_message;
mod modex;
mod name_service;
mod queue;
mod tool;
mod upcall;

use std::ffi::{CString, OsString};
use std::path::{Path, PathBuf};
use std::sync::mpsc::Receiver;
use std::time::Duration;

use muster_sys::descriptor::EventFd;

pub use answer::Done;
pub use collective::{Collective, Contribution};
pub use control::Signalling;
pub use log_message::{LogMessage, Stream};
pub use modex::{Found, Want};
pub use name_service::{Lookup, Publishing, Query, Value};
pub use upcall::Upcall;

/// How long the library may take to stop.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// Why there is no server, or why it refused a call.
#[derive(Debug)]
pub enum ServerError {
    /// libpmix was not found where it should be.
    Library(String),
    /// The library is not a suitable libpmix.
    TooOld {
        /// The library.
        path: String,
        /// The missing function.
        function: &'static str,
    },
    /// The library is of an earlier release.
    OldVersion {
        /// The library.
        path: String,
        /// Its version text.
        version: String,
    },
    /// The library returned an error.
    Refused {
        /// The function.
        call: &'static str,
        /// The status that it returned.
        status: i32,
    },
    /// A name with a NUL byte.
    BadText(String),
    /// There is no eventfd, or another server in this process.
    System(String),
}

impl std::fmt::Display for ServerError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Library(text) => write!(
                f,
                "libpmix cannot be opened: {text}; set MUSTER_LIBPMIX to its path"
            ),
            Self::TooOld { path, function } => write!(
                f,
                "{path} has no function {function}; PMIx 4 or later is needed"
            ),
            Self::OldVersion { path, version } => write!(
                f,
                "{path} is {version}; PMIx 4 or later is needed, set MUSTER_LIBPMIX to its path"
            ),
            Self::Refused { call, status } => write!(f, "{call} failed with PMIx status {status}"),
            Self::BadText(text) => {
                write!(f, "{text:?} cannot be passed to PMIx: it has a NUL byte")
            }
            Self::System(text) => write!(f, "{text}"),
        }
    }
}

impl std::error::Error for ServerError {}

/// The job data of the ranks.
#[derive(Debug, Clone)]
pub struct JobFacts {
    /// The namespace of the job.
    pub namespace: String,
    /// The nodes' names, in order.
    pub nodes: Vec<String>,
    /// The ranks of each node.
    pub ranks: Vec<Vec<u32>>,
    /// The number of ranks of each program.
    pub programs: Vec<u32>,
    /// This node's index in the lists.
    pub own: usize,
    /// The binding of each rank of this node; empty if they are not bound.
    pub bindings: Vec<Binding>,
    /// The directory for files of ranks and server; the caller removes it.
    pub directory: PathBuf,
}

/// The binding of a rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Binding {
    /// The processors, by the system's numbers.
    pub processors: Vec<usize>,
    /// The same in PMIx's notation: `hwloc:0-3`.
    pub cpuset: String,
    /// The parts of the machine that these belong to, from NUMA nodes down; empty if that is not known.
    pub locality: String,
}

/// The server of this node's ranks.
#[derive(Debug)]
pub struct Server {
    library: ffi::Library,
    namespace: CString,
    /// The library's version text.
    pub version: String,
}

impl Server {
    /// Opens the library, starts the server and registers the job and this node's ranks.
    /// `wake` is raised whenever there is an upcall in the queue.
    ///
    /// # Errors
    /// See [`ServerError`]; there is no server then.
    pub fn start(
        path: &Path,
        facts: &JobFacts,
        wake: EventFd,
    ) -> Result<(Self, Receiver<Upcall>), ServerError> {
        let library = ffi::Library::open(path)?;
        let version = library.version();
        if ffi::release(&version).is_some_and(|release| release < ffi::RELEASE_MIN) {
            let path = path.display().to_string();
            return Err(ServerError::OldVersion { path, version });
        }
        let namespace = text(&facts.namespace)?;
        let upcalls = queue::open(wake, namespace.clone())?;
        library.init(&infos::of_server(facts)?)?;
        let server = Self {
            library,
            namespace,
            version,
        };
        server.register(facts)?;
        Ok((server, upcalls))
    }

    fn register(&self, facts: &JobFacts) -> Result<(), ServerError> {
        let own: &[u32] = facts.ranks.get(facts.own).map_or(&[], Vec::as_slice);
        let nodes = self.library.regex(&text(&facts.nodes.join(","))?)?;
        let lists: Vec<String> = facts.ranks.iter().map(|ranks| joined(ranks)).collect();
        let ranks = self.library.ppn(&text(&lists.join(";"))?)?;
        let infos = infos::of_job(facts, nodes, ranks)?;
        self.library
            .register_namespace(&self.namespace, own.len(), &infos)?;
        for rank in own {
            self.library.register_client(&self.namespace, *rank)?;
        }
        Ok(())
    }

    /// The variables that a rank needs in its environment to find this server.
    ///
    /// # Errors
    /// [`ServerError::Refused`].
    pub fn environment(&self, rank: u32) -> Result<Vec<(OsString, OsString)>, ServerError> {
        self.library.setup_fork(&self.namespace, rank)
    }

    /// Notifies the ranks of this node that `rank` failed.
    ///
    /// # Errors
    /// [`ServerError::Refused`].
    pub fn tell_death(&self, rank: u32) -> Result<(), ServerError> {
        self.library.notify_death(&self.namespace, rank)
    }

    /// Requests the data that a rank of this node has put for others; the answer is [`Upcall::Found`], as soon as it
    /// has put some.
    ///
    /// # Errors
    /// [`ServerError::Refused`].
    pub fn ask_for(&self, rank: u32) -> Result<(), ServerError> {
        self.library.request(&self.namespace, rank)
    }

    /// Number of requests of ranks that were refused because the queue was full.
    #[must_use]
    pub fn lost(&self) -> u64 {
        queue::lost()
    }

    /// Stops the server. Ranks that still run lose it, and abort.
    ///
    /// libpmix 4.2.2 waits for ever if a rank was killed while it connected. After a time-out, this does not wait for
    /// it: the process ends.
    pub fn stop(self) {
        queue::close();
        let (ended, end) = std::sync::mpsc::channel();
        let library = self.library;
        let ending = move || {
            library.finalize();
            let _ = ended.send(());
        };
        if std::thread::Builder::new().spawn(ending).is_ok() {
            let _ = end.recv_timeout(STOP_TIMEOUT);
        }
    }
}

fn joined(ranks: &[u32]) -> String {
    let numbers: Vec<String> = ranks.iter().map(u32::to_string).collect();
    numbers.join(",")
}

fn text(string: &str) -> Result<CString, ServerError> {
    CString::new(string).map_err(|_| ServerError::BadText(string.to_owned()))
}
