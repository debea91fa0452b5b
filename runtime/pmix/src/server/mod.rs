//! A PMIx server of our own: the launcher of a node is one for the ranks that it starts.
//!
//! Picture the desk of a small post office. The ranks of one node come to it to register, to meet
//! each other and those of other nodes (fences), to say that they are done, and to hear who has
//! died. The clerk knows his own counter only: what concerns other nodes goes through the hatch in
//! his back as an [`Upcall`], and whoever sits there answers when he can.
//!
//! libpmix runs a thread; upcalls come on it, are put into a queue and raise a descriptor. Nothing
//! is decided there. A process holds one server in its life, which is never started again: ranks do
//! not reconnect.

mod collective;
mod control;
mod ffi;
mod infos;
mod log_message;
mod modex;
mod name_service;
mod tool;
mod upcall;

use std::ffi::{CString, OsString};
use std::path::{Path, PathBuf};
use std::sync::mpsc::Receiver;
use std::time::Duration;

use muster_sys::descriptor::EventFd;

pub use collective::{Collective, Contribution, Done};
pub use control::Signalling;
pub use log_message::{LogMessage, Stream};
pub use modex::{Found, Want};
pub use name_service::{Lookup, Publishing, Query, Value};
pub use upcall::Upcall;

/// How long the library may take to end.
const FAREWELL: Duration = Duration::from_secs(5);

/// Why there is no server, or it refused.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No libpmix was found where one should be.
    #[error("libpmix cannot be opened: {0}; give its path by MUSTER_LIBPMIX")]
    Library(String),
    /// The library is not one that this was made for.
    #[error("{path} has no function {function}; PMIx 4 or later is needed")]
    TooOld {
        /// The library.
        path: String,
        /// What it lacks.
        function: &'static str,
    },
    /// The library is of a release before.
    #[error(
        "{path} is {version}; PMIx 4 or later is needed, and MUSTER_LIBPMIX says where there is one"
    )]
    OldVersion {
        /// The library.
        path: String,
        /// As it calls itself.
        version: String,
    },
    /// It refused.
    #[error("{call} failed with PMIx status {status}")]
    Refused {
        /// The function.
        call: &'static str,
        /// What it answered.
        status: i32,
    },
    /// A name with a NUL byte.
    #[error("{0:?} cannot be given to PMIx")]
    BadText(String),
    /// No eventfd, or another server in this process.
    #[error("{0}")]
    System(String),
}

/// What the ranks are told of their job.
#[derive(Debug, Clone)]
pub struct JobFacts {
    /// The job's name to PMIx.
    pub namespace: String,
    /// The nodes' names, in order.
    pub nodes: Vec<String>,
    /// The ranks of each node.
    pub ranks: Vec<Vec<u32>>,
    /// How many ranks each program has.
    pub programs: Vec<u32>,
    /// This node's place in the lists.
    pub own: usize,
    /// What each rank of this node is bound to; empty if they are not bound.
    pub seats: Vec<Binding>,
    /// Where ranks and server may put files; the caller's to remove.
    pub directory: PathBuf,
}

/// What a rank is bound to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Binding {
    /// The processors, by the system's numbers.
    pub processors: Vec<usize>,
    /// The same as PMIx writes it: `hwloc:0-3`.
    pub cpuset: String,
    /// The parts of the machine that these belong to, from NUMA nodes down; empty if that is not known.
    pub locality: String,
}

/// The server of this node's ranks.
#[derive(Debug)]
pub struct Server {
    library: ffi::Library,
    namespace: CString,
    /// Of the library, as it says.
    pub version: String,
}

impl Server {
    /// Opens the library, starts the server and registers the job and this node's ranks.
    /// `wake` is raised whenever there is an upcall in the queue.
    ///
    /// # Errors
    /// See [`Error`]; there is no server then.
    pub fn start(
        path: &Path,
        facts: &JobFacts,
        wake: EventFd,
    ) -> Result<(Self, Receiver<Upcall>), Error> {
        let library = ffi::Library::open(path)?;
        let version = library.version();
        if ffi::release(&version).is_some_and(|release| release < ffi::RELEASE_LEAST) {
            let path = path.display().to_string();
            return Err(Error::OldVersion { path, version });
        }
        let namespace = text(&facts.namespace)?;
        let upcalls = upcall::open(wake, namespace.clone())?;
        library.init(&infos::of_server(facts)?)?;
        let server = Self {
            library,
            namespace,
            version,
        };
        server.register(facts)?;
        Ok((server, upcalls))
    }

    fn register(&self, facts: &JobFacts) -> Result<(), Error> {
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

    /// What a rank needs in its environment to find this server.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn environment(&self, rank: u32) -> Result<Vec<(OsString, OsString)>, Error> {
        self.library.setup_fork(&self.namespace, rank)
    }

    /// Tells the ranks of this node that `rank` died.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn tell_death(&self, rank: u32) -> Result<(), Error> {
        self.library.notify_death(&self.namespace, rank)
    }

    /// Asks for what a rank of this node has put for others; the answer is [`Upcall::Found`], when it has put
    /// something.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn ask_for(&self, rank: u32) -> Result<(), Error> {
        self.library.request(&self.namespace, rank)
    }

    /// How many questions of ranks found no room and were refused for it.
    #[must_use]
    pub fn lost(&self) -> u64 {
        upcall::lost()
    }

    /// Ends the server. Ranks that still run lose it, and abort.
    ///
    /// libpmix 4.2.2 waits for ever where a rank was killed while it connected. It is not waited for: the process ends.
    pub fn stop(self) {
        upcall::close();
        let (ended, end) = std::sync::mpsc::channel();
        let library = self.library;
        let ending = move || {
            library.finalize();
            let _ = ended.send(());
        };
        if std::thread::Builder::new().spawn(ending).is_ok() {
            let _ = end.recv_timeout(FAREWELL);
        }
    }
}

fn joined(ranks: &[u32]) -> String {
    let log_message: Vec<String> = ranks.iter().map(u32::to_string).collect();
    log_message.join(",")
}

fn text(log_message: &str) -> Result<CString, Error> {
    CString::new(log_message).map_err(|_| Error::BadText(log_message.to_owned()))
}
