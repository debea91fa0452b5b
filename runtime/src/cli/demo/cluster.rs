//! An MPI job on emulated nodes: real `mpirun`, real daemons, one host name a node.
//!
//! Open MPI's launcher starts its daemon on a node through a program that looks like ssh.
//! Ours starts it on this machine in a UTS namespace of its own, so that every layer above
//! sees as many hosts as it was promised; each node gets loopback addresses of its own.

use super::DemoArgs;
use crate::cli::CliError;
use crate::cli::process::{self, Process, wait_until};
use rustix::process::Signal;
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// The stand-in for ssh: `shell [options] HOST command...`.
const NODE_SHELL: &str = r#"#!/bin/sh
# Runs a command as if on another node: own host name, own rails.
while [ "${1#-}" != "$1" ]; do shift; done
node=$1; shift
MUSTER_NODE=$node
MUSTER_RAILS=$(sed -n "s/^$node //p" "$MUSTER_DEMO_RAILS")
export MUSTER_NODE MUSTER_RAILS
if [ "$(id -u)" = 0 ]; then flags=--uts; else flags="--user --map-current-user --keep-caps --uts"; fi
exec unshare $flags sh -c 'hostname "$0" && eval "$*"' "$node" "$@"
"#;

/// A running job and everything that belongs to it.
pub(crate) struct Cluster {
    mpirun: Child,
    directory: PathBuf,
    /// Pids found so far, to be ended at the end whatever happens.
    known: Vec<Process>,
}

impl Cluster {
    /// Starts the job. Its output goes to `job.log` in `directory`.
    pub(crate) fn start(args: &DemoArgs, directory: &Path) -> Result<Self, CliError> {
        let shell = directory.join("node-shell");
        let rails = directory.join("rails");
        let write = |path: &Path, text: &str| {
            fs::write(path, text).map_err(|e| CliError::new(format!("demo: {}", path.display()), e))
        };
        write(&shell, NODE_SHELL)?;
        write(&rails, &rail_table(args))?;
        fs::set_permissions(&shell, fs::Permissions::from_mode(0o700))
            .map_err(|e| CliError::new(format!("demo: {}", shell.display()), e))?;
        let mpirun = command(args, directory, &shell, &rails)?
            .spawn()
            .map_err(|e| {
                CliError::new(format!("demo: {}", args.mpirun.display()), e).hint("make setup")
            })?;
        Ok(Self {
            mpirun,
            directory: directory.to_owned(),
            known: Vec::new(),
        })
    }

    /// Remembers a process for the clean-up.
    pub(crate) fn remember(&mut self, process: &Process) {
        if !self.known.iter().any(|known| known.pid == process.pid) {
            self.known.push(process.clone());
        }
    }

    /// Whether `mpirun` has ended already (it should not, before it is told to).
    pub(crate) fn has_ended(&mut self) -> bool {
        matches!(self.mpirun.try_wait(), Ok(Some(_)))
    }

    /// The agents of this job: (node, process), keeper and worker alike.
    pub(crate) fn agents(&mut self) -> Vec<(String, Process)> {
        let ours = self.directory.join("m");
        let agents: Vec<_> = process::named("musterd")
            .into_iter()
            .filter(|p| {
                p.environment("MUSTER_DIR")
                    .is_some_and(|dir| Path::new(&dir) == ours)
            })
            .filter_map(|p| Some((p.environment("MUSTER_NODE")?, p)))
            .collect();
        for (_, process) in &agents {
            self.remember(process);
        }
        agents
    }

    /// Ends the job: first `mpirun` by itself, then whatever is left, by recorded pid.
    /// Returns how many processes had to be killed.
    pub(crate) fn end(mut self, patience: Duration) -> usize {
        self.agents();
        wait_until(patience, || matches!(self.mpirun.try_wait(), Ok(Some(_))));
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
        if self.mpirun.try_wait().is_ok_and(|status| status.is_none()) {
            // mpirun leads a process group of its own: its helpers go with it.
            let _ = self.mpirun.kill();
            killed += 1;
        }
        let _ = self.mpirun.wait();
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

/// Each node's rails: `n2 127.77.2.1@udp0,127.77.2.2@udp1`.
fn rail_table(args: &DemoArgs) -> String {
    let mut table = String::new();
    for node in 1..=args.nodes {
        let rails: Vec<_> = (1..=args.rails)
            .map(|rail| format!("127.77.{node}.{rail}:0@udp{}", rail - 1))
            .collect();
        table.push_str(&format!("n{node} {}\n", rails.join(",")));
    }
    table
}

fn command(
    args: &DemoArgs,
    directory: &Path,
    shell: &Path,
    rails: &Path,
) -> Result<Command, CliError> {
    let log =
        File::create(directory.join("job.log")).map_err(|e| CliError::new("demo: job.log", e))?;
    let log_too = log
        .try_clone()
        .map_err(|e| CliError::new("demo: job.log", e))?;
    let per_node = args.ranks.div_ceil(args.nodes);
    let hosts: Vec<_> = (1..=args.nodes)
        .map(|node| format!("n{node}:{per_node}"))
        .collect();
    let mut command = Command::new(&args.mpirun);
    command
        .args(["--prtemca", "plm_ssh_agent"])
        .arg(shell)
        .args([
            "--host",
            &hosts.join(","),
            "--with-ft",
            "ulfm",
            "--bind-to",
            "none",
        ])
        .args(["-n", &args.ranks.to_string()])
        .arg(&args.program)
        .env("MUSTER_DEMO_RAILS", rails)
        .env("MUSTER_DIR", directory.join("m"))
        .env("MUSTER_PROFILE", &args.profile)
        .env("MUSTER_ULFM", "1")
        .env("SURVIVE_LOG_DIR", directory.join("logs"))
        // Without these two Open MPI 5.0.11 does not live through a killed rank reliably, or
        // crawls when there are more ranks than cores.
        .env("OMPI_MCA_coll", "^han")
        .env("OMPI_MCA_mpi_yield_when_idle", "1")
        .env_remove("MUSTER_JOB")
        .stdin(Stdio::null())
        .stdout(log)
        .stderr(log_too)
        .process_group(0);
    for name in ["OMPI", "PRTE"] {
        command.env(format!("{name}_ALLOW_RUN_AS_ROOT"), "1");
        command.env(format!("{name}_ALLOW_RUN_AS_ROOT_CONFIRM"), "1");
    }
    Ok(command)
}
