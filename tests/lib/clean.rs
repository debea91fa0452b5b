//! The clean end of a cluster's jobs: nothing of them is left, except the files of nodes that were lost with
//! all their processes; and the output of commands that shows it.

use crate::DEADLINE;
use crate::cluster::{Cluster, DAEMONS, NODES, Process};
use crate::process::wait_for_end;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// What is left of jobs; all empty: nothing.
#[derive(Debug)]
struct Left {
    /// Processes that are not the cluster's own daemons.
    processes: Vec<Process>,
    /// Files below the base directory of agents: sockets, keys, locks, logs.
    files: Vec<PathBuf>,
    /// Slurm's steps, as `squeue --steps` has them.
    steps: String,
    /// Datagram sockets on the nodes' networks, and local ones of agents.
    sockets: Vec<String>,
    /// Shared memory: named by Muster, or System V's.
    memory: Vec<String>,
    /// Keys of `muster run` in the home directory of the tests.
    keys: Vec<PathBuf>,
}

impl Left {
    fn of(cluster: &Cluster) -> Self {
        let mut processes = cluster.processes();
        processes.retain(|process| !DAEMONS.contains(&process.name.as_str()));
        let (_, steps) = cluster.output_of(&["squeue", "--noheader", "--steps"]);
        let hosts = (1..=NODES).flat_map(|node| cluster.on_node(node, "sleep"));
        let (_, memory) = cluster.output_of(&["sh", "-c", "ls /dev/shm; sed 1d /proc/sysvipc/shm"]);
        let is_ours = |line: &&str| line.contains("muster") || line.contains(' ');
        Self {
            processes,
            files: files_in(&cluster.muster_dir()),
            steps: steps.trim().to_owned(),
            sockets: hosts.flat_map(|host| sockets_of(cluster, &host)).collect(),
            memory: memory.lines().filter(is_ours).map(str::to_owned).collect(),
            keys: keys_in(cluster.folder()),
        }
    }

    /// Whether only files of this number of lost nodes are left.
    fn is_of_lost(&self, nodes: usize) -> bool {
        let mut places: Vec<_> = self.files.iter().filter_map(|file| file.parent()).collect();
        places.dedup();
        self.processes.is_empty()
            && places.len() <= nodes
            && self.steps.is_empty()
            && self.sockets.is_empty()
            && self.memory.is_empty()
            && self.keys.is_empty()
    }
}

impl Cluster {
    /// Waits until nothing is left of any job: no process except the daemons', no step, socket, state table,
    /// key or memory.
    ///
    /// # Panics
    /// If something is left at the deadline.
    pub fn await_clean(&self) {
        self.await_clean_but(0);
    }

    /// The same if all processes of `lost` nodes were killed: no process was left there to remove their
    /// files, so these remain.
    ///
    /// # Panics
    /// As [`Cluster::await_clean`].
    pub fn await_clean_but(&self, lost: usize) {
        let end = Instant::now() + DEADLINE;
        loop {
            let left = Left::of(self);
            if left.is_of_lost(lost) {
                return;
            }
            assert!(Instant::now() < end, "left: {left:#?}{}", self.logs());
            let gone = left.processes.iter();
            gone.for_each(|process| wait_for_end(process.pid));
        }
    }

    /// Prints the present state to standard error, as output of the commands that an administrator would use.
    pub fn show_clean(&self, after: &str) {
        let mut text = format!("--- left after {after}\n");
        for line in [
            "scontrol show steps",
            "squeue --noheader",
            "ps -e -o stat=,comm= | sed -n '/^[^Z]/s/.* //p' | sort | uniq -c",
            "ls -A /dev/shm",
            "find \"$MUSTER_DIR\" -type f -o -type s",
        ] {
            let (_, printed) = self.output_of(&["sh", "-c", line]);
            let words: Vec<&str> = printed.split_whitespace().collect();
            text += &format!("$ {line}: {}\n", words.join(" "));
        }
        std::io::stderr().write_all(text.as_bytes()).ok();
    }
}

/// The datagram sockets in a node's network, which are agents', and the local sockets that agents listen at.
fn sockets_of(cluster: &Cluster, host: &Process) -> Vec<String> {
    let read = |name: &str| fs::read_to_string(format!("/proc/{}/net/{name}", host.pid));
    let own = cluster.muster_dir().display().to_string();
    let datagrams = ["udp", "udp6"].map(|name| read(name).unwrap_or_default());
    let mut found: Vec<String> = datagrams
        .iter()
        .flat_map(|text| text.lines().skip(1))
        .map(str::to_owned)
        .collect();
    let local = read("unix").unwrap_or_default();
    let ours = local.lines().filter(|line| line.contains(&own));
    found.extend(ours.map(str::to_owned));
    found
}

fn keys_in(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let is_key = |entry: &fs::DirEntry| {
        let name = entry.file_name();
        name.to_string_lossy().starts_with(".muster-run")
    };
    entries.filter(is_key).map(|entry| entry.path()).collect()
}

fn files_in(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        match path.is_dir() {
            true => files.extend(files_in(&path)),
            false => files.push(path),
        }
    }
    files
}
