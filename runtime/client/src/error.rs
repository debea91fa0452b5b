//! What can go wrong for a client, each with what it did to the state and what to do about it.

use std::io;
use std::path::PathBuf;

use muster_ipc::{DirectoryError, RefusalCode};
use muster_shm::TableError;

/// Why a call of the client failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no place to meet an agent. Not attached.
    #[error(transparent)]
    AgentDirectory(#[from] DirectoryError),
    /// A setting that cannot be used. Not attached.
    #[error("{variable} is {value:?}: {why}")]
    Setting {
        /// The variable, or the option of that meaning.
        variable: &'static str,
        /// What it holds.
        value: String,
        /// What is wrong with it, and what is right.
        why: &'static str,
    },
    /// The agent's board cannot be used. Not attached, or still on the earlier board.
    #[error(transparent)]
    StateTable(#[from] TableError),
    /// The agent does not let us in. Not attached.
    #[error("the agent refuses this process: {reason}")]
    Refused {
        /// Why, for a program.
        code: RefusalCode,
        /// Why, for a person.
        reason: String,
    },
    /// There is no `musterd` to start. Not attached.
    #[error(
        "no agent is running at {socket} and no musterd was found to start one (looked at \
         {searched}); set MUSTER_AGENT to its path"
    )]
    AgentMissing {
        /// Where an agent would listen.
        socket: PathBuf,
        /// Where a program was looked for.
        searched: String,
    },
    /// `srun --muster` should have started an agent, and could not. Not attached.
    #[error(
        "no agent is running at {socket}: srun was told --muster, and Slurm has not loaded the plugin on this \
         node; put its line into plugstack.conf on all nodes, with a plugin that was built for their Slurm \
         (slurmd's log says what was left out)"
    )]
    PluginMissing {
        /// Where an agent would listen.
        socket: PathBuf,
    },
    /// `musterd` could not be started, or ended at once. Not attached.
    #[error("cannot start the agent {path}: {reason}")]
    AgentStart {
        /// The program.
        path: PathBuf,
        /// What happened.
        reason: String,
    },
    /// No agent answered in time. Not attached, or still without an agent.
    #[error("no agent answered at {socket} within {waited_ms} ms (last: {last})")]
    Deadline {
        /// Where it should listen.
        socket: PathBuf,
        /// How long it was waited for.
        waited_ms: u64,
        /// What the last attempt said.
        last: String,
    },
    /// The agent is gone and none came in its place. States stay readable as they were last;
    /// `dispatch` tries again.
    #[error(
        "the agent is lost after {attempts} attempts to find or start another (last: {reason}); the \
         states are those of the moment it was lost, dispatch tries again"
    )]
    AgentLost {
        /// How often another was tried to be found or started.
        attempts: u64,
        /// What the last attempt said.
        reason: String,
    },
    /// The agent of this node gave no answer, or half of one: it has just gone, or has too much to do.
    /// What was asked for may have been done.
    #[error("no answer from the agent of this node: {0}; ask again")]
    Unanswered(String),
    /// This process has no rank in its job. Nothing was done.
    #[error("this process has no rank; give it one (MUSTER_RANK, or the option of that name)")]
    NoRank,
    /// A card that no process has written. Nothing was handed over.
    #[error(
        "{0}; each process brings one of MUSTER_BOOTSTRAP_RECORD_SIZE bytes, as muster_bootstrap_record wrote it"
    )]
    BootstrapRecord(String),
    /// The agent has put this process out: it was ended on purpose, or cannot go on. No other is
    /// started for that. States stay readable as they were last; `dispatch` looks for another.
    #[error(
        "the agent of this node has put this process out: {reason}; no other is started, the \
         states are those of that moment, dispatch looks whether there is one again"
    )]
    Dismissed {
        /// Its words.
        reason: String,
    },
    /// A key, a value or all of them together are too long, or too many. Nothing was done.
    #[error("{0}")]
    Limit(String),
    /// The agent refused what it was asked for at its control socket. Nothing was done.
    #[error("the agent says: {0}")]
    Declined(String),
    /// There is no node with that index. Nothing was done.
    #[error("no node with the index {index} is known; {known} are")]
    NoSuchNode {
        /// The index.
        index: u32,
        /// How many nodes are known.
        known: u32,
    },
    /// A key that only the agent may write. Nothing was done.
    #[error("key {0:?} begins with \"muster.\", as Muster's own do; choose another")]
    Reserved(String),
    /// The other nodes declared this one failed, or its agent has left: it speaks for nobody.
    /// Nothing was done.
    #[error("this node is no member any more; its attributes cannot be changed")]
    Outcast,
    /// `finalize` was called before. Nothing was done.
    #[error("this client has left; attach again before any other call")]
    Finalized,
    /// This process is a forked child of the one that attached. Nothing was done.
    #[error(
        "this process was forked from the one that attached; only its parent may use the client"
    )]
    Forked,
    /// The other side does not speak the protocol. The connection was closed.
    #[error("the agent answered with {found} where {expected} was expected")]
    Protocol {
        /// What came.
        found: String,
        /// What should have come.
        expected: &'static str,
    },
    /// The system refused.
    #[error("cannot {what}: {cause}")]
    System {
        /// What was tried.
        what: &'static str,
        /// The system's answer.
        cause: io::Error,
    },
}

impl Error {
    pub(super) fn system(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |cause| Self::System { what, cause }
    }
}
