//! What a run leaves behind on the remaining nodes: processes, files (sockets included), shared memory, Slurm
//! steps. What a lost node had is ignored.

use muster_tests::cluster::{Cluster, DAEMONS};
use rustix::event::poll;
use rustix::time::Timespec;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long a launcher may take to clean up.
const CLEANUP_LIMIT: Duration = Duration::from_secs(20);
/// How long Slurm may take to detect a lost node and end the step.
const SLURM: Duration = Duration::from_secs(60);
/// Processes of a step that remain until Slurm has detected a lost node.
const OF_SLURM: [&str; 2] = ["srun", "slurmstepd"];

/// The state before a run.
pub(crate) struct Before {
    paths: BTreeSet<PathBuf>,
}

impl Before {
    pub(crate) fn take(cluster: &Cluster) -> Self {
        Self {
            paths: paths(cluster),
        }
    }

    /// Returns what is left after the time for cleaning up. If nodes were lost, srun and Slurm's processes of
    /// the step count only with `for_slurm`, which waits long enough.
    pub(crate) fn left(&self, cluster: &Cluster, lost: &[usize], for_slurm: bool) -> Vec<String> {
        let counts_slurm = lost.is_empty() || for_slurm;
        let limit = if counts_slurm && !lost.is_empty() {
            SLURM
        } else {
            CLEANUP_LIMIT
        };
        let until = Instant::now() + limit;
        loop {
            let mut left = self.check(cluster, lost, counts_slurm);
            if left.is_empty() || Instant::now() > until {
                left.sort();
                left.dedup();
                return left;
            }
            // No event announces that the last file is removed.
            let moment = Timespec {
                tv_sec: 0,
                tv_nsec: 200_000_000,
            };
            let _ = poll(&mut [], Some(&moment));
        }
    }

    fn check(&self, cluster: &Cluster, lost: &[usize], counts_slurm: bool) -> Vec<String> {
        let mut left = Vec::new();
        for process in cluster.processes() {
            let name = process.name.as_str();
            let is_lost = process.node.is_some_and(|node| lost.contains(&node));
            let is_slurms = !counts_slurm && OF_SLURM.contains(&name);
            if !is_lost && !is_slurms && !DAEMONS.contains(&name) {
                left.push(format!("process {name}"));
            }
        }
        let now = paths(cluster);
        let mut new: Vec<&PathBuf> = now.difference(&self.paths).collect();
        new.retain(|path| !lost.iter().any(|node| is_of(path, *node)));
        // The name of an agent's directory does not show which node it belongs to.
        let (agents, files): (Vec<&PathBuf>, Vec<_>) = new
            .into_iter()
            .partition(|path| path.starts_with(cluster.muster_dir()));
        let agents = agents.into_iter().skip(lost.len());
        left.extend(agents.chain(files).map(|path| path.display().to_string()));
        // Last and rarely: it is a request to the controller.
        if counts_slurm && left.is_empty() {
            let (_, steps) = cluster.output_of(&["squeue", "--steps", "--noheader"]);
            left.extend(steps.lines().map(|step| format!("step {}", step.trim())));
        }
        left
    }
}

/// Directories of agents, files and directories of jobs, and shared memory, without what Slurm writes.
fn paths(cluster: &Cluster) -> BTreeSet<PathBuf> {
    let entries = |path: &Path| {
        let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
        entries.map(|entry| entry.path())
    };
    let is_ours = |path: &PathBuf| {
        let name = path.to_string_lossy();
        ["muster-", "sm_segment", "vader"]
            .iter()
            .any(|word| name.contains(word))
    };
    let mut all: BTreeSet<PathBuf> = entries(&cluster.muster_dir()).collect();
    all.extend(entries(cluster.folder()));
    all.extend(entries(Path::new("/dev/shm")).filter(is_ours));
    all
}

/// Whether a path is named after this node, or numbered as Slurm numbers it.
fn is_of(path: &Path, node: usize) -> bool {
    let name = format!("n{node}");
    let number = format!("-{}", node - 1);
    path.iter().any(|part| {
        let part = part.to_string_lossy();
        let mut words = part.split(|character: char| !character.is_ascii_alphanumeric());
        words.any(|word| word == name) || part.ends_with(&number)
    })
}
