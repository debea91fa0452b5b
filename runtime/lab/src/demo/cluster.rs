//! An MPI job on emulated nodes: `muster run`, which gives each node a launcher, an agent and addresses of its own.

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

/// How long `muster run` may take to end a job that is not to go on.
const FAREWELL: Duration = Duration::from_secs(5);

/// How long a rank waits for one call of MPI: a slow machine is no MPI that hangs.
const DEADLINE_S: &str = "60";

/// A running job and everything that belongs to it.
pub(crate) struct Cluster {
    starter: Child,
    /// Where its agents have their sockets.
    agents: PathBuf,
    /// Pids found so far, to be ended at the end whatever happens.
    known: Vec<Process>,
}

impl Cluster {
    /// Starts the job. Its output goes to `job.log` in `directory`.
    pub(crate) fn start(
        args: &DemoArgs,
        program: &Path,
        directory: &Path,
    ) -> Result<Self, CliError> {
        let starter = command(args, program, directory)?
            .spawn()
            .map_err(|e| CliError::new("demo: muster run", e))?;
        Ok(Self {
            agents: agents_directory(starter.id()),
            starter,
            known: Vec::new(),
        })
    }

    /// Remembers a process for the clean-up.
    pub(crate) fn remember(&mut self, process: &Process) {
        if !self.known.iter().any(|known| known.pid == process.pid) {
            self.known.push(process.clone());
        }
    }

    /// Whether the job has ended already (it should not, before it is told to).
    pub(crate) fn has_ended(&mut self) -> bool {
        matches!(self.starter.try_wait(), Ok(Some(_)))
    }

    /// The agents of this job: (node, process), keeper and worker alike.
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
            self.remember(process);
        }
        agents
    }

    /// Ends the job: first `muster run` by itself, then whatever is left, by recorded pid.
    /// Returns how many processes had to be killed.
    pub(crate) fn end(mut self, patience: Duration) -> usize {
        self.agents();
        wait_until(patience, || self.has_ended());
        // The agents go by themselves when their last client has gone and they have lingered.
        wait_until(patience, || {
            self.known.iter().all(|process| !process.is_running())
        });
        self.kill_all()
    }

    fn kill_all(&mut self) -> usize {
        let mut killed = 0;
        for process in self.known.iter().filter(|process| process.is_running()) {
            process.signal(Signal::KILL);
            killed += 1;
        }
        if !self.has_ended() {
            // Asked first, so that it takes its files with it; its launchers go with it in any case.
            if let Some(starter) = Process::find(self.starter.id()) {
                starter.signal(Signal::TERM);
            }
            wait_until(FAREWELL, || self.has_ended());
            let _ = self.starter.kill();
            killed += 1;
        }
        let _ = self.starter.wait();
        self.known.clear();
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
        // A rank that gives MPI up goes on alone, which is not what is shown here.
        .env("SURVIVE_DEADLINE_S", DEADLINE_S)
        .stdin(Stdio::null())
        .stdout(log)
        .stderr(log_too)
        .process_group(0);
    Ok(command)
}
