//! The options of `Client::attach`.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::{Error, PmixHooks};

/// How a process attaches. The defaults come from the environment.
#[derive(Clone)]
pub struct Options {
    /// The job; otherwise `MUSTER_JOB`, the PMIx namespace or Slurm's job and step.
    pub job: Option<String>,
    /// This node's name; otherwise `MUSTER_NODE`, Slurm's node name or the host's name.
    pub node: Option<String>,
    /// The base of the agent directories; otherwise `MUSTER_DIR` or /tmp/muster-UID.
    pub directory: Option<PathBuf>,
    /// This process's rank; otherwise `MUSTER_RANK`, `PMIX_RANK` or, under plain Slurm, `SLURM_PROCID`. A process
    /// without a rank can be a client, too.
    pub rank: Option<u32>,
    /// This process is not a rank of the job, whatever its environment states: in a launcher's environment the rank
    /// is that of the launcher.
    pub rankless: bool,
    /// The number of ranks of the job, 0 if not known.
    pub job_size: u32,
    /// Start a library thread, which waits for messages. Without one, restarts of the agent and the hooks are handled
    /// only in `dispatch` and in waits. The end of the attaching thread is no failure then: the process is watched
    /// from then on, and a promise of ticks ends.
    pub thread: bool,
    /// Tell the agent that failures are reported to MPI (a failure is then never taken back).
    pub ulfm: bool,
    /// Start an agent if there is none.
    pub start_agent: bool,
    /// The program to start; otherwise `MUSTER_AGENT`, or a `musterd` beside this library or program, or in PATH.
    pub agent: Option<PathBuf>,
    /// How long attaching may take.
    pub deadline: Duration,
    /// Extension inside this process that is informed of attaching and of events.
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
    /// This process's rank, if it has one. An unusable value of the user is an error; an unusable value of a launcher
    /// is ignored, because the launcher may mean something else by it.
    pub(super) fn own_rank(&self) -> Result<Option<u32>, Error> {
        if self.rankless {
            return Ok(None);
        }
        let value = variable("MUSTER_RANK");
        let rank = match (self.rank, &value) {
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

    /// Checks the variables that `default` reads and cannot refuse.
    pub(super) fn check(&self) -> Result<(), Error> {
        match variable("MUSTER_ULFM").as_deref() {
            None | Some("0" | "1") => Ok(()),
            Some(value) => Err(Error::Setting {
                variable: "MUSTER_ULFM",
                value: value.to_owned(),
                why: "set it to 1 to report failures to MPI, or to 0",
            }),
        }
    }
}

/// The value of a variable; an empty one counts as unset.
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
