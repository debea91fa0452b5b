//! How a process wants to attach.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::Porch;

/// How a process wants to attach. The default asks the environment for everything.
#[derive(Clone)]
pub struct Options {
    /// The job; else `MUSTER_JOB`, the PMIx namespace or Slurm's job and step.
    pub job: Option<String>,
    /// This node's name; else `MUSTER_NODE`, Slurm's node name or the host's name.
    pub node: Option<String>,
    /// Where sockets live; else `MUSTER_DIR` or /tmp/muster-UID.
    pub directory: Option<PathBuf>,
    /// This process's rank; else `MUSTER_RANK`, `PMIX_RANK` or, under plain Slurm, `SLURM_PROCID`.
    /// A process without a rank is a client all the same.
    pub rank: Option<u32>,
    /// How many ranks the job has, 0 if not known.
    pub job_size: u32,
    /// Have a library thread (asleep until news comes). Without one, restarts of the agent and
    /// the porch are seen to in `dispatch` only, and the end of the attaching thread is taken for
    /// "detached", not for a failure.
    pub thread: bool,
    /// Tell the agent that failures are fed to MPI (then a death is never taken back).
    pub ulfm: bool,
    /// Start an agent if there is none.
    pub start_agent: bool,
    /// The program to start; else `MUSTER_AGENT`, beside this library or program, or in PATH.
    pub agent: Option<PathBuf>,
    /// How long attaching may take.
    pub deadline: Duration,
    /// Who else is told of attaching and of events inside this process.
    pub porch: Option<Arc<dyn Porch>>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            job: None,
            node: None,
            directory: None,
            rank: None,
            job_size: 0,
            thread: true,
            ulfm: std::env::var("MUSTER_ULFM").is_ok_and(|value| value == "1"),
            start_agent: true,
            agent: None,
            deadline: Duration::from_secs(10),
            porch: None,
        }
    }
}

impl std::fmt::Debug for Options {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Options")
            .field("job", &self.job)
            .field("node", &self.node)
            .field("rank", &self.rank)
            .field("thread", &self.thread)
            .field("ulfm", &self.ulfm)
            .field("deadline", &self.deadline)
            .finish_non_exhaustive()
    }
}

impl Options {
    pub(super) fn own_rank(&self) -> Option<u32> {
        let variables = ["MUSTER_RANK", "PMIX_RANK", "SLURM_PROCID"];
        let said = || {
            variables
                .iter()
                .find_map(|name| std::env::var(name).ok()?.parse().ok())
        };
        self.rank.or_else(said)
    }
}
