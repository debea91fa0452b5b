//! Requests that are not supported under `muster run`: each is reported once, however often a program makes it.

use std::collections::BTreeSet;

/// The text about PMIx tools.
const TOOL: &str = "a PMIx tool has connected; muster run supports only queries of the job's name and size, and \
     refuses its other requests (PMIX_ERR_NOT_SUPPORTED); use muster members and muster events";

/// The requests that were reported.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    tool: bool,
    ranks: BTreeSet<(u32, &'static str)>,
}

impl Refusals {
    /// A PMIx tool has connected. Returns what to print.
    pub(super) fn note_tool(&mut self) -> Option<&'static str> {
        (!std::mem::replace(&mut self.tool, true)).then_some(TOOL)
    }

    /// A rank has made a request that is not supported. Returns what to print.
    pub(super) fn note(&mut self, rank: u32, what: &'static str) -> Option<String> {
        self.ranks.insert((rank, what)).then(|| {
            format!(
                "rank {rank} has asked for {what}, which muster run does not support; start all ranks at once"
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_reported_once() {
        let mut refusals = Refusals::default();
        assert_eq!(refusals.note_tool(), Some(TOOL));
        assert_eq!(refusals.note_tool(), None);
        let text = refusals.note(3, "MPI_Comm_spawn").unwrap();
        assert!(text.starts_with("rank 3 has asked for MPI_Comm_spawn, "));
        assert_eq!(refusals.note(3, "MPI_Comm_spawn"), None);
        assert!(refusals.note(4, "MPI_Comm_spawn").is_some());
    }
}
