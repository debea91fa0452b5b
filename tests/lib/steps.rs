//! Steps of a Slurm job with an agent on each node: started by the plugin, or as a step of their own.

use crate::cluster::{Cluster, NODES, Process, Run};
use crate::program;
use crate::rank::{alive, rank_program};
use crate::workspace;
use std::path::Path;
use std::process::Command;

/// Options of a step that must survive a death.
pub const LIVES_ON: [&str; 3] = ["--mpi=none", "--kill-on-bad-exit=0", "--no-kill"];

/// The plugin's line in `plugstack.conf`, with this agent.
///
/// # Panics
/// If it is not built.
pub fn plugin(agent: &Path) -> String {
    let plugin = program("libmuster_spank.so");
    let (plugin, agent) = (plugin.display(), agent.display());
    format!("optional {plugin} agent={agent} rails=eth0@udp0 fastest=standard\n")
}

/// A step with a worker on each node.
pub fn step(cluster: &Cluster, options: &[&str]) -> Run {
    let mut command = cluster.command("srun");
    command.args(["--nodes=4", "--ntasks=4", "--label"]);
    cluster.run(command.args(options).arg(rank_program()))
}

/// Runs the job script of the examples, in an allocation of all nodes, with a worker on each.
///
/// # Panics
/// If the path of `musterd` has no folder.
pub fn service(cluster: &Cluster) -> Run {
    let script = workspace().join("examples/slurm/service.sbatch");
    let mut command: Command = cluster.command("salloc");
    command.arg(format!("--nodes={NODES}")).arg("--no-kill");
    command.arg(script).args(["--label", &rank_program()]);
    let musterd = program("musterd");
    let path = std::env::var("PATH").unwrap_or_default();
    let folder = musterd.parent().expect("it is in a folder").display();
    cluster.run(command.env("PATH", format!("{folder}:{path}")))
}

/// The view of a whole job in which all nodes and ranks are alive.
pub fn all_alive() -> String {
    alive(NODES, NODES as u32)
}

/// The workers on this node.
pub fn workers(cluster: &Cluster, node: usize) -> Vec<Process> {
    cluster.on_node(node, "muster-test-ran")
}

/// The worker on this node.
///
/// # Panics
/// If there is none.
pub fn worker(cluster: &Cluster, node: usize) -> Process {
    let workers = workers(cluster, node);
    workers.into_iter().next().expect("a worker")
}

/// Runs a shell command on the host of this node.
///
/// # Panics
/// If it fails.
pub fn on_host(cluster: &Cluster, node: usize, line: &str) {
    let host = cluster.on_node(node, "sleep")[0].pid.to_string();
    let mut command = Command::new("nsenter");
    command.args(["--target", &host, "--all", "--", "sh", "-ec", line]);
    command
        .env("LAB", cluster.folder())
        .env("SLURM_CONF", cluster.folder().join("slurm.conf"));
    let output = command.output().expect("nsenter can be started");
    assert!(output.status.success(), "{line}: {output:?}");
}
