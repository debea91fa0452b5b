//! The job of `tests/programs/survive.c`, an MPI program that survives losses: its ranks, and the check that those
//! that are left continue.

use crate::compile::compile;
use crate::job::Job;
use crate::launchers::venv;
use rustix::process::Pid;
use std::path::Path;

/// Nodes and ranks of [`Job::survive`].
pub const NODES: usize = 4;
/// Two on each node.
pub const RANKS: usize = 8;

/// A rank that is ready.
#[derive(Clone, Debug)]
pub struct Ready {
    /// Its rank.
    pub rank: usize,
    /// Its process.
    pub pid: Pid,
    /// Its node.
    pub node: String,
}

impl Job {
    /// Starts the program that survives losses, on four nodes.
    pub fn survive(options: &[&str], folder: &Path, words: &[&str]) -> Self {
        let binary = compile(&venv("venv").join("mpicc"), "survive", &[], folder);
        let all = [&["--nodes", "4", "-n", "8"], options].concat();
        Self::of(&all, &binary, words)
    }

    /// The ranks of [`Job::survive`], in order, when all are ready.
    pub fn await_ready(&mut self) -> Vec<Ready> {
        self.await_lines("READY", RANKS);
        let ready = self.lines.iter().filter_map(|line| {
            let mut words = line.strip_prefix("READY ")?.split(' ');
            Some(Ready {
                rank: words.next()?.parse().ok()?,
                pid: Pid::from_raw(words.next()?.parse().ok()?)?,
                node: words.next()?.to_owned(),
            })
        });
        let mut ready: Vec<Ready> = ready.collect();
        ready.sort_by_key(|one| one.rank);
        ready
    }

    /// Asserts that the survivors of [`Job::survive`] continued with right sums and reached the end of MPI.
    ///
    /// # Panics
    /// If they did not.
    pub fn expect_survivors(&mut self, lost: usize) {
        let status = self.expect_end();
        let text = self.text();
        assert_eq!(self.count("WRONG"), 0, "{text}");
        assert_eq!(self.count("DONE"), RANKS - lost, "{text}");
        let sizes = self
            .lines
            .iter()
            .filter_map(|line| line.strip_prefix("DONE ")?.split(' ').nth(1)?.parse().ok());
        let sizes: Vec<usize> = sizes.collect();
        assert_eq!(sizes, vec![RANKS - lost; RANKS - lost], "{text}");
        assert!(status.success(), "{status}:\n{text}");
    }
}
