//! `muster run`: the launcher of a node, and of emulated nodes on one machine.
//!
//! A launcher starts the ranks of its node and is their PMIx server. It communicates with the other launchers
//! through Muster's agents, which also detect the failure of nodes. It reports every death, on whatever node, to
//! its own ranks, so an MPI with ULFM continues.
//!
//! A launcher's state is an attribute of its node (`node_status`), which the agents carry over Muster's rails under the
//! job's key. Only data of ranks that is too large for attributes goes from launcher to launcher
//! (`node::data_server`). It is a process beside `musterd`, since a PMIx server must
//! never restart and brings a thread.
//!
//! `layout` maps ranks to nodes. `core` decides: a pure state machine, which a simulator tests with lost launchers at
//! every step. `node` is its driver: the loop, the agent's client, the PMIx server, the processes. `command` parses the
//! command line and starts launchers: here, over ssh, or as emulated nodes.
//!
//! Not supported: `MPI_Comm_spawn`, PMIx tools; both are refused.
#![forbid(unsafe_code)]

pub mod command;
mod core;
mod hosts;
mod layout;
pub mod node;
mod programs;
mod slurm;
mod slurm_conf;

use std::ffi::OsString;
use std::time::Duration;

pub use core::messages::StartError;
pub use core::mpi::OnLoss;
pub use core::policy::ExitPolicy;
pub use hosts::Hosts;
pub use layout::{Layout, LayoutError};
use muster_pmix::server;
pub use node::binding::Bind;
pub use node::output::Output;
pub use programs::{Program, programs};
pub use slurm::Step;
pub(crate) use slurm::is_of_the_plugin;
pub use slurm_conf::SlurmConf;

/// A job to run; the same on every node.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The job's name, the same on every node.
    pub job: String,
    /// Which rank runs where.
    pub layout: Layout,
    /// The programs; all their ranks form one job.
    pub programs: Vec<Program>,
    /// Which ranks' exit status counts.
    pub policy: ExitPolicy,
    /// The effect of the loss of a rank or node; `None`: it depends on the MPI.
    pub on_loss: Option<OnLoss>,
    /// Variables that the ranks get besides the launcher's environment.
    pub export: Vec<(OsString, OsString)>,
    /// Where the ranks' output goes.
    pub output: Output,
    /// How long the launchers of all nodes, and then their ranks, may take to start; and how long a rank
    /// without a limit of its own waits for another rank's data.
    pub timeout: Duration,
    /// How long ranks may take to end on request.
    pub grace: Duration,
    /// The configuration of the Slurm whose step this is.
    pub slurm: Option<SlurmConf>,
    /// Which cores each rank may use.
    pub bind: Bind,
    /// Number of nodes that are this one machine, and share its cores.
    pub neighbours: usize,
    /// The first rank reads the launcher's standard input.
    pub stdin: bool,
    /// Print what is done.
    pub verbose: bool,
}

impl Plan {
    /// The program that a rank runs, by its number.
    fn program_of(&self, rank: u32) -> usize {
        let ends = self.programs.iter().scan(0, |end, program| {
            *end += program.ranks;
            Some(*end)
        });
        let past = ends.take_while(|end| *end <= rank).count();
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
        /// The name as it was given.
        program: String,
        /// The node, or all nodes with this error.
        node: String,
        /// Why not.
        why: String,
    },
    /// The launchers did not come together.
    #[error(transparent)]
    Start(#[from] StartError),
    /// Another launcher has the node, and continues.
    #[error(
        "process {pid} launches job {job} on {node} already; give each muster run a MUSTER_JOB of its own"
    )]
    Taken {
        /// Its process.
        pid: u32,
        /// The job.
        job: String,
        /// The node.
        node: String,
    },
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
    /// A value is too large for the node's attributes.
    #[error(
        "{what} takes {size} bytes, and at most {most} can be carried; use fewer groups and published names at a time"
    )]
    TooMuch {
        /// The value.
        what: &'static str,
        /// Its size.
        size: usize,
        /// The bound.
        most: usize,
    },
    /// An error of the agent.
    #[error("agent: {0}")]
    Agent(#[from] muster_client::Error),
    /// The agent was lost with all that it knew.
    #[error("agent: it was lost, and a new one has replaced it")]
    NewAgent,
    /// Large data cannot be exchanged.
    #[error("large data of ranks cannot be exchanged: {0}")]
    DataServer(String),
    /// An error of the PMIx server.
    #[error("PMIx server: {0}")]
    Pmix(#[from] server::ServerError),
    /// An error of the system.
    #[error("{what}: {cause}")]
    System {
        /// What was tried.
        what: String,
        /// The system's error.
        cause: std::io::Error,
    },
}

impl Error {
    /// The exit status for this error.
    pub fn status(&self) -> u8 {
        match self {
            Self::Layout(_)
            | Self::Taken { .. }
            | Self::Start(StartError::Conflict(_))
            | Self::Cores { .. } => 2,
            Self::Agent(_) | Self::NewAgent => 3,
            Self::Start(_) => 5,
            Self::Program { .. } => 127,
            Self::TooMuch { .. } | Self::DataServer(_) | Self::Pmix(_) | Self::System { .. } => 1,
        }
    }

    /// Whether this launcher has lost its agent, and with it the other launchers: an agent that hangs, or that
    /// has lost its state, is lost to them as well. A value that is too large for the agent is no loss.
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

/// The name of the directory of a launcher's files.
pub(crate) fn files_name(job: &str, node: usize) -> String {
    format!("muster-run-{job}-{node}")
}
