//! `Cluster` is an MPI job on emulated nodes. `muster run` gives each node a launcher, an agent and addresses.

use super::DemoArgs;
use muster_launch::command::emulate::agents_directory;
use muster_terminal::CliError;
use muster_terminal::process::{self, Process, wait_until};
use rustix::process::Signal;
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Time in which `muster run` must end a job that is given up.
const EXIT_TIME: Duration = Duration::from_secs(5);

/// Time limit of a rank for one call of MPI. It is long: a slow machine must not look like a hanging MPI.
const DEADLINE_S: &str = "60";

/// A running job and all its processes.
pub(crate) struct Cluster {
    parent: Child,
    /// Directory of the agents' sockets.
    agents: PathBuf,
    /// Processes found so far, which are ended in any case.
    processes: Vec<Process>,
}

impl Cluster {
    /// Starts the job. Its output goes to `job.log` in `directory`.
    pub(crate) fn start(
        args: &DemoArgs,
        program: &Path,
        directory: &Path,
    ) -> Result<Self, CliError> {
        let parent = command(args, program, directory)?
            .spawn()
            .map_err(|e| CliError::new("demo: muster run", e))?;
        Ok(Self {
            agents: agents_directory(parent.id()),
            parent,
            processes: Vec::new(),
        })
    }

    /// Records a process for the clean-up.
    pub(crate) fn record(&mut self, process: &Process) {
        if !self.processes.iter().any(|one| one.pid == process.pid) {
            self.processes.push(process.clone());
        }
    }

    /// Whether the job has ended; it must not end before it is told to.
    pub(crate) fn has_ended(&mut self) -> bool {
        matches!(self.parent.try_wait(), Ok(Some(_)))
    }

    /// The agents of this job as (node, process), supervisors and workers.
    pub(crate) fn agents(&mut self) -> Vec<(String, Process)> {
        let agents: Vec<_> = process::named("musterd")
            .into_iter()
            .filter(|p| {
                p.environment("MUSTER_DIR")
                    .is_some_and(|dir| Path::new(&dir) == self.agents)
            })
            .filter_map(|p| Some((p.environment("MUSTER_NODE")?, p)))
            .collect();
        for (_, process) in &agents {
            self.record(process);
        }
        agents
    }

    /// Ends the job: waits until `muster run` and the agents end, then kills the remaining processes by recorded pid.
    /// Returns the number of processes that had to be killed.
    pub(crate) fn end(mut self, timeout: Duration) -> usize {
        self.agents();
        wait_until(timeout, || self.has_ended());
        // An agent ends by itself after its last client, when its linger time is over.
        wait_until(timeout, || {
            self.processes.iter().all(|process| !process.is_running())
        });
        self.kill_all()
    }

    fn kill_all(&mut self) -> usize {
        let mut killed = 0;
        for process in self.processes.iter().filter(|process| process.is_running()) {
            process.signal(Signal::KILL);
            killed += 1;
        }
        if !self.has_ended() {
            // SIGTERM first, so that it removes its files. Its launchers end with it in any case.
            if let Some(parent) = Process::find(self.parent.id()) {
                parent.signal(Signal::TERM);
            }
            wait_until(EXIT_TIME, || self.has_ended());
            let _ = self.parent.kill();
            killed += 1;
        }
        let _ = self.parent.wait();
        self.processes.clear();
        killed
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.agents();
        self.kill_all();
    }
}

fn command(args: &DemoArgs, program: &Path, directory: &Path) -> Result<Command, CliError> {
    let log =
        File::create(directory.join("job.log")).map_err(|e| CliError::new("demo: job.log", e))?;
    let log_too = log
        .try_clone()
        .map_err(|e| CliError::new("demo: job.log", e))?;
    let muster = super::beside_executable("muster");
    let mut command = Command::new(muster);
    command
        .args(["run", "-v", "--nodes", &args.nodes.to_string()])
        .args(["--rails", &args.rails.to_string()])
        .args(["-n", &args.ranks.to_string(), "--"])
        .arg(program)
        .env("MUSTER_PROFILE", &args.profile)
        .env("SURVIVE_LOG_DIR", directory.join("logs"))
        // A rank that gives up MPI would continue alone, which is not what the demo shows.
        .env("SURVIVE_DEADLINE_S", DEADLINE_S)
        .stdin(Stdio::null())
        .stdout(log)
        .stderr(log_too)
        .process_group(0);
    Ok(command)
}
