//! How a process wants to attach.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::{Error, PmixHooks};

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
    /// This process is none of the job's ranks, whatever its environment says: a launcher's describes
    /// the launchers.
    pub rankless: bool,
    /// How many ranks the job has, 0 if not known.
    pub job_size: u32,
    /// Have a library thread (asleep until news comes). Without one, restarts of the agent and
    /// the porch are seen to in `dispatch` and waits only; the end of the attaching thread is no
    /// failure: the process is followed from then on, and a promise of ticks is over.
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
    pub pmix_integration: Option<Arc<dyn PmixHooks>>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            job: None,
            node: None,
            directory: None,
            rank: None,
            rankless: false,
            job_size: 0,
            thread: true,
            ulfm: std::env::var("MUSTER_ULFM").is_ok_and(|value| value == "1"),
            start_agent: true,
            agent: None,
            deadline: Duration::from_secs(10),
            pmix_integration: None,
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
    /// This process's rank, if it has one. What a user set is taken or refused; what launchers set
    /// for themselves may mean something else and is passed over then.
    pub(super) fn own_rank(&self) -> Result<Option<u32>, Error> {
        if self.rankless {
            return Ok(None);
        }
        let said = variable("MUSTER_RANK");
        let rank = match (self.rank, &said) {
            (Some(rank), _) => Some(rank),
            (None, Some(text)) => Some(text.parse().map_err(|_| wrong_rank(text))?),
            (None, None) => ["PMIX_RANK", "SLURM_PROCID"]
                .into_iter()
                .find_map(|name| variable(name)?.parse().ok()),
        };
        match rank {
            Some(u32::MAX) => Err(wrong_rank(&u32::MAX.to_string())),
            rank => Ok(rank),
        }
    }

    /// Refuses what `default` could not.
    pub(super) fn check(&self) -> Result<(), Error> {
        match variable("MUSTER_ULFM").as_deref() {
            None | Some("0" | "1") => Ok(()),
            Some(value) => Err(Error::Setting {
                variable: "MUSTER_ULFM",
                value: value.to_owned(),
                why: "set it to 1 to feed failures to MPI, or to 0",
            }),
        }
    }
}

/// What a variable holds; empty counts as not given.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

fn wrong_rank(value: &str) -> Error {
    Error::Setting {
        variable: "MUSTER_RANK",
        value: value.to_owned(),
        why: "a rank is a whole number from 0; leave it unset if this process has none",
    }
}
