//! What there is not under `muster run`: it is said once to people, however often a program asks for it.

use std::collections::BTreeSet;

use super::node::Launcher;

/// What has been said.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    tool: bool,
    ranks: BTreeSet<(u32, &'static str)>,
}

impl Launcher {
    /// A tool has come.
    pub(super) fn note_tool(&mut self) {
        if !std::mem::replace(&mut self.refusals.tool, true) {
            self.say(
                "a PMIx tool has connected; there is nothing for tools under muster run but the job's name and size, \
                 and what else it asks for is refused (PMIX_ERR_NOT_SUPPORTED); muster members and muster events tell \
                 of the job",
            );
        }
    }

    /// A rank has asked for something that there is not.
    pub(super) fn note_refused(&mut self, rank: u32, what: &'static str) {
        if self.refusals.ranks.insert((rank, what)) {
            self.say(&format!(
                "rank {rank} has asked for {what}, which there is not under muster run; start all ranks at once"
            ));
        }
    }
}
