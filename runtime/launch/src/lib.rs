//! `muster run`: the launcher of a node, and of emulated nodes on one machine.
//!
//! Picture a warden in each house of a village. He lets the tenants in (starts the ranks), keeps the desk where
//! they meet (is their PMIx server), and talks to the other wardens through the village's watchmen, Muster's
//! agents, who also know when a house has burnt down. What the watchmen say he passes on to his own tenants,
//! so an MPI with ULFM hears of every death, on whatever node, and goes on.
//!
//! A launcher has no socket of its own to other nodes: what it has to say is an attribute of its node
//! (`node_status`), carried by the agents over Muster's rails under the job's key. It is a process of its own beside
//! `musterd`, since a PMIx server must never restart and brings a thread.
//!
//! `layout` says which rank is where; `fence` agrees on who took part in a fence; `ranks` are the processes;
//! `node` is the loop. Emulated nodes, one launcher each, are started by the command (`cli::run`).
//!
//! What is absent: `MPI_Comm_spawn`, and anything for tools of PMIx; both are refused.
#![forbid(unsafe_code)]

mod arrivals;
mod binding;
pub mod command;
mod environment;
mod error_coalescing;
mod exit_handling;
mod fence;
mod fence_data;
mod fence_driver;
mod hosts;
mod layout;
mod library;
mod loss;
mod modex;
mod mpich;
mod name_service;
pub mod node;
mod node_status;
mod output;
mod output_forwarding;
mod peers;
mod policy;
mod programs;
mod ranges;
mod ranks;
mod refusals;
mod signals;
mod slurm;
mod slurm_conf;
pub mod stdin_control;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

pub use binding::Bind;
pub(crate) use exit_handling::ECHO;
pub use hosts::Hosts;
pub use layout::{Layout, LayoutError};
pub use loss::OnLoss;
use muster_ipc::locked_directory::SHARED_MEMORY;
use muster_pmix::server;
pub use output::Output;
pub use policy::ExitPolicy;
pub use programs::{Program, programs};
pub use signals::Signals;
pub use slurm::Step;
pub(crate) use slurm::is_of_the_plugin;
pub use slurm_conf::SlurmHabits;

/// What is to be run, on every node alike.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The job's name, the same on every node.
    pub job: String,
    /// Which rank is where.
    pub layout: Layout,
    /// What is run, by all ranks together.
    pub programs: Vec<Program>,
    /// Whose exit status counts.
    pub policy: ExitPolicy,
    /// What the loss of a rank or node does to the job; if that is not said, what its MPI can live with.
    pub on_loss: Option<OnLoss>,
    /// Variables that the ranks get besides those of their launcher.
    pub export: Vec<(OsString, OsString)>,
    /// Where the ranks' words go.
    pub output: Output,
    /// How long the launchers of all nodes, and then their ranks, may take to come; and how long a rank waits for what
    /// another has not put, if it sets no limit.
    pub patience: Duration,
    /// How long ranks may take to end when they are asked to.
    pub grace: Duration,
    /// The Slurm whose step this is, if it is one.
    pub slurm: Option<SlurmHabits>,
    /// Which cores each rank may use.
    pub bind: Bind,
    /// Nodes that are this one machine, and share its cores.
    pub neighbours: usize,
    /// The first rank reads the launcher's standard input.
    pub stdin: bool,
    /// Say what is done.
    pub verbose: bool,
}

impl Plan {
    /// Which program a rank runs.
    fn program_of(&self, rank: u32) -> usize {
        let exit_handling = self.programs.iter().scan(0, |end, program| {
            *end += program.ranks;
            Some(*end)
        });
        let past = exit_handling.take_while(|end| *end <= rank).count();
        past.min(self.programs.len().saturating_sub(1))
    }
}

/// Why a job did not run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The layout.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// The program cannot be started on this node.
    #[error("{program} cannot be started on {node}: {why}")]
    Program {
        /// As it was given.
        program: String,
        /// The node, or all of which that is to be said.
        node: String,
        /// Why not.
        why: String,
    },
    /// Launchers of some nodes did not come.
    #[error(
        "no launcher has come on {missing} within {waited_s} s; look there, or give more time with --patience"
    )]
    Missing {
        /// Their nodes.
        missing: String,
        /// How long was waited.
        waited_s: u64,
    },
    /// Some came and were lost before the others had come.
    #[error(
        "{lost} was lost before the launchers of all nodes had met; look there, or, if it has more to do than it can, \
         give MUSTER_PROFILE=quiet, which waits longer before it holds a node failed"
    )]
    LostEarly {
        /// Their nodes.
        lost: String,
    },
    /// Launchers of some nodes were not started, as whoever had to start them says.
    #[error(
        "no launcher has come on {missing}, where none could be started; what was said of it stands above"
    )]
    NotStarted {
        /// Their nodes.
        missing: String,
    },
    /// Another launcher has the node, and goes on.
    #[error(
        "process {pid} launches job {job} on {node} already; give each muster run a MUSTER_JOB of its own"
    )]
    Taken {
        /// It.
        pid: u32,
        /// The job.
        job: String,
        /// The node.
        node: String,
    },
    /// Another launcher wants something else.
    #[error("{0}")]
    Conflict(String),
    /// Ranks cannot be bound.
    #[error(
        "{ranks} ranks cannot be bound on {node}, where {cores} cores may be used; start fewer, or leave out --bind"
    )]
    Cores {
        /// The node.
        node: String,
        /// How many ranks.
        ranks: usize,
        /// How many cores.
        cores: usize,
    },
    /// Attributes are bounded.
    #[error(
        "{what} has {size} bytes, and at most {most} can be carried; use fewer groups and published names at a time"
    )]
    TooMuch {
        /// What.
        what: &'static str,
        /// Its size.
        size: usize,
        /// The bound.
        most: usize,
    },
    /// The agent.
    #[error("agent: {0}")]
    Agent(#[from] muster_client::Error),
    /// The agent was lost with all that it knew.
    #[error("agent: it was lost, and another one has come in its place")]
    NewAgent,
    /// The PMIx server.
    #[error("PMIx server: {0}")]
    Pmix(#[from] server::Error),
    /// The system.
    #[error("{what}: {cause}")]
    System {
        /// What was tried.
        what: String,
        /// What the system said.
        cause: std::io::Error,
    },
}

impl Error {
    /// The exit status that says so.
    pub fn status(&self) -> u8 {
        match self {
            Self::Layout(_) | Self::Taken { .. } | Self::Conflict(_) | Self::Cores { .. } => 2,
            Self::Agent(_) | Self::NewAgent => 3,
            Self::Missing { .. } | Self::LostEarly { .. } | Self::NotStarted { .. } => 5,
            Self::Program { .. } => 127,
            Self::TooMuch { .. } | Self::Pmix(_) | Self::System { .. } => 1,
        }
    }

    /// Whether this launcher has lost its agent, and with it the others: one that hangs, or has nothing of what it
    /// knew, is lost to them as well. What was too much for it is not.
    fn is_loss_of_agent(&self) -> bool {
        match self {
            Self::NewAgent => true,
            Self::Agent(cause) => !matches!(cause, muster_client::Error::Limit(_)),
            _ => false,
        }
    }

    pub(crate) fn system(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let what = what.into();
        move |cause| Self::System { what, cause }
    }
}

/// The directory of a node's launcher: sessions of its PMIx server and its ranks, removed at the end.
fn session_directory(base: &std::path::Path, node: &str) -> PathBuf {
    base.join(format!("s-{node}"))
}

/// Where the shared memory of a node's ranks is kept, if the system has a place for it.
fn memory_directory(job: &str, node: &str) -> Option<PathBuf> {
    let place = std::path::Path::new(SHARED_MEMORY);
    place
        .is_dir()
        .then(|| place.join(format!("muster-{job}-{node}")))
}

/// How the directory of a launcher's files is called.
pub(crate) fn files_name(job: &str, node: usize) -> String {
    format!("muster-run-{job}-{node}")
}
