//! Requests that are not supported under `muster run`: each is reported once, however often a program makes it.

use std::collections::BTreeSet;

use super::node::Launcher;

/// The requests that were reported.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    tool: bool,
    ranks: BTreeSet<(u32, &'static str)>,
}

impl Launcher {
    /// A PMIx tool has connected.
    pub(super) fn note_tool(&mut self) {
        if !std::mem::replace(&mut self.refusals.tool, true) {
            self.print(
                "a PMIx tool has connected; muster run supports only queries of the job's name and size, and \
                 refuses its other requests (PMIX_ERR_NOT_SUPPORTED); use muster members and muster events",
            );
        }
    }

    /// A rank has made a request that is not supported.
    pub(super) fn note_refused(&mut self, rank: u32, what: &'static str) {
        if self.refusals.ranks.insert((rank, what)) {
            self.print(&format!(
                "rank {rank} has asked for {what}, which muster run does not support; start all ranks at once"
            ));
        }
    }
}
