//! The errors of a client. Each states its effect and the remedy.

use std::io;
use std::path::PathBuf;

use muster_ipc::{DirectoryError, RefusalCode};
use muster_shm::TableError;

/// Why a call of the client failed.
#[derive(Debug)]
pub enum Error {
    /// The agent directory cannot be used. Not attached.
    AgentDirectory(DirectoryError),
    /// A setting that cannot be used. Not attached.
    Setting {
        /// The variable, or the name of the option with the same meaning.
        variable: &'static str,
        /// Its value.
        value: String,
        /// What is wrong with it, and what is allowed.
        why: &'static str,
    },
    /// The agent's state table cannot be used. Not attached, or still attached to the earlier state table.
    StateTable(TableError),
    /// The agent refuses this process. Not attached.
    Refused {
        /// The reason, for a program.
        code: RefusalCode,
        /// The reason, for a person.
        reason: String,
    },
    /// No agent is running and no `musterd` was found. Not attached.
    AgentMissing {
        /// The socket of an agent.
        socket: PathBuf,
        /// The paths that were searched.
        searched: String,
    },
    /// `srun --muster` should have started an agent, but the plugin is not loaded. Not attached.
    PluginMissing {
        /// The socket of an agent.
        socket: PathBuf,
    },
    /// `musterd` could not be started, or ended at once. Not attached.
    AgentStart {
        /// The program.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// No agent answered in time. Not attached, or still without an agent.
    Deadline {
        /// The socket of the agent.
        socket: PathBuf,
        /// How long this process waited, in milliseconds.
        waited_ms: u64,
        /// The result of the last attempt.
        last: String,
    },
    /// The agent is lost and was not replaced. The states stay readable as they were; `dispatch` tries again.
    AgentLost {
        /// Number of attempts to find or start another agent.
        attempts: u64,
        /// The result of the last attempt.
        reason: String,
    },
    /// The agent of this node gave no answer, or an incomplete one: it has just ended, or has too many queries. The
    /// request may have been carried out.
    Unanswered(String),
    /// This process has no rank in its job. Nothing was done.
    NoRank,
    /// The job has more nodes than one zone can have, and no zones. Its agents do not connect to each other.
    OneZone {
        /// The nodes of the job.
        nodes: usize,
        /// Most nodes of a zone.
        most: usize,
    },
    /// Bytes that are not a bootstrap record. Nothing was passed on.
    BootstrapRecord(String),
    /// The agent has dismissed this process: it was ended on request, or cannot continue. No other agent is started
    /// for that reason. The states stay readable as they were; `dispatch` searches for another agent.
    Dismissed {
        /// The agent's text.
        reason: String,
    },
    /// A key, a value or all of them together exceed a limit. Nothing was done.
    Limit(String),
    /// The agent declined a request at its control socket. Nothing was done.
    Declined(String),
    /// There is no node with that index. Nothing was done.
    NoSuchNode {
        /// The index.
        index: u32,
        /// How many nodes are known.
        known: u32,
    },
    /// A key that only the agent may write. Nothing was done.
    Reserved(String),
    /// The other nodes declared this one failed, or its agent has left: it is not a member. Nothing was done.
    Outcast,
    /// `finalize` was called before. Nothing was done.
    Finalized,
    /// This process is a forked child of the one that attached. Nothing was done.
    Forked,
    /// The agent's message does not follow the protocol. The connection was closed.
    Protocol {
        /// What was received.
        found: String,
        /// What was expected.
        expected: &'static str,
    },
    /// A system call failed.
    System {
        /// The operation.
        what: &'static str,
        /// The error of the system call.
        cause: io::Error,
    },
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::AgentDirectory(error) => error.fmt(f),
            Self::Setting { variable, value, why } => write!(f, "{variable} is {value:?}: {why}"),
            Self::StateTable(error) => error.fmt(f),
            Self::Refused { reason, .. } => write!(f, "the agent refuses this process: {reason}"),
            Self::AgentMissing { socket, searched } => write!(
                f,
                "no agent is running at {socket} and no musterd was found to start one (looked at \
                 {searched}); set MUSTER_AGENT to its path",
                socket = socket.display()
            ),
            Self::PluginMissing { socket } => write!(
                f,
                "no agent is running at {socket}: srun was given --muster, but Slurm has not loaded the \
                 plugin on this node; put its line into plugstack.conf on all nodes, with a plugin that was \
                 built for their Slurm (slurmd's log states the reason)",
                socket = socket.display()
            ),
            Self::AgentStart { path, reason } => write!(
                f,
                "cannot start the agent {path}: {reason}",
                path = path.display()
            ),
            Self::Deadline { socket, waited_ms, last } => write!(
                f,
                "no agent answered at {socket} within {waited_ms} ms (last: {last})",
                socket = socket.display()
            ),
            Self::AgentLost { attempts, reason } => write!(
                f,
                "the agent is lost after {attempts} attempts to find or start another (last: {reason}); the \
                 states are those of the moment it was lost, dispatch tries again"
            ),
            Self::Unanswered(text) => write!(f, "no answer from the agent of this node: {text}; try again"),
            Self::NoRank => f.write_str(
                "this process has no rank; give it one (MUSTER_RANK, or the option of that name)",
            ),
            Self::OneZone { nodes, most } => write!(
                f,
                "the job has {nodes} nodes and no zones, and one zone has at most {most} members, which know all \
                 of each other: the agents of the nodes do not connect; list the nodes with MUSTER_NODES for all \
                 processes, so that zones are formed"
            ),
            Self::BootstrapRecord(text) => write!(
                f,
                "{text}; pass one record of MUSTER_BOOTSTRAP_RECORD_SIZE bytes per process, as \
                 muster_bootstrap_record wrote it"
            ),
            Self::Dismissed { reason } => write!(
                f,
                "the agent of this node has dismissed this process: {reason}; no other agent is started, the \
                 states are those of that moment, dispatch searches for another agent"
            ),
            Self::Limit(text) => write!(f, "{text}"),
            Self::Declined(text) => write!(f, "the agent declined the request: {text}"),
            Self::NoSuchNode { index, known } => write!(
                f,
                "there is no node with index {index}; {known} nodes are known"
            ),
            Self::Reserved(text) => write!(
                f,
                "key {text:?} begins with \"muster.\", which is reserved for Muster's own keys; choose \
                 another"
            ),
            Self::Outcast => f.write_str("this node is not a member any more; its attributes cannot be changed"),
            Self::Finalized => f.write_str("this client has left; attach again before any other call"),
            Self::Forked => f.write_str(
                "this process was forked from the one that attached; only the parent process may use the \
                 client",
            ),
            Self::Protocol { found, expected } => write!(
                f,
                "the agent sent {found} where {expected} was expected; use the musterd and the libmuster of \
                 one release"
            ),
            Self::System { what, cause } => write!(f, "cannot {what}: {cause}"),
        }
    }
}

impl std::error::Error for Error {}

impl From<DirectoryError> for Error {
    fn from(error: DirectoryError) -> Self {
        Self::AgentDirectory(error)
    }
}

impl From<TableError> for Error {
    fn from(error: TableError) -> Self {
        Self::StateTable(error)
    }
}

impl Error {
    pub(super) fn system(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |cause| Self::System { what, cause }
    }
}
