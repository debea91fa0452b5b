//! Queries over all nodes, ranks and zones: states, which rank runs where, and which node is in which zone.

use super::{Client, Error, PMIX_COUNTERS};
use muster_shm::{Event, NodeState, RankState, TableView};
use std::time::Duration;

/// The states of all nodes or ranks, by index, of one epoch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot<T> {
    /// The states.
    pub states: Vec<T>,
    /// The epoch.
    pub epoch: u64,
}

impl Client {
    /// The states of all nodes. `None` if they changed faster than they could be copied.
    pub fn node_states(&self) -> Result<Option<Snapshot<NodeState>>, Error> {
        self.table()
            .map(|table| snapshot(table, TableView::node_count, TableView::copy_node_states))
    }

    /// The states of all ranks. `None` if they changed faster than they could be copied.
    pub fn rank_states(&self) -> Result<Option<Snapshot<RankState>>, Error> {
        self.table()
            .map(|table| snapshot(table, TableView::rank_count, TableView::copy_rank_states))
    }

    /// Number of nodes in a state.
    pub fn nodes_in_state(&self, state: NodeState) -> Result<u32, Error> {
        self.table().map(|table| table.nodes_in_state(state))
    }

    /// Number of ranks in a state.
    pub fn ranks_in_state(&self, state: RankState) -> Result<u32, Error> {
        self.table().map(|table| table.ranks_in_state(state))
    }

    /// The index of the node of this name.
    pub fn node_find(&self, name: &str) -> Result<Option<u32>, Error> {
        self.table().map(|table| table.node_find(name))
    }

    /// The ranks that run on a node, in order. Empty for an index that is not in the state table.
    pub fn node_ranks(&self, node: u32) -> Result<Vec<u32>, Error> {
        self.table().map(|table| table.node_ranks(node).collect())
    }

    /// Number of zones of the job: 1 if it is not divided. Their numbers are below it, and the same in all processes.
    pub fn zone_count(&self) -> Result<u32, Error> {
        self.table().map(TableView::zone_count)
    }

    /// The zone of a node. `None` for an index that is not known, and for a node that is not in the job's list of
    /// nodes.
    pub fn node_zone(&self, node: u32) -> Result<Option<u32>, Error> {
        self.table().map(|table| table.node_zone(node))
    }

    /// The zone of the node that a rank runs on, if known.
    pub fn rank_zone(&self, rank: u32) -> Result<Option<u32>, Error> {
        self.table().map(|table| table.rank_zone(rank))
    }

    /// The name of a zone, its path: `row1/rack3`. `/` if the job is not divided. `None` for a number that is not
    /// known.
    pub fn zone_name(&self, zone: u32) -> Result<Option<String>, Error> {
        self.table().map(|table| table.zone_name(zone))
    }

    /// The nodes of a zone, in order. Empty for a number that is not known.
    pub fn zone_nodes(&self, zone: u32) -> Result<Vec<u32>, Error> {
        self.table().map(|table| table.zone_nodes(zone).collect())
    }

    /// Number of nodes of a zone in a state.
    pub fn zone_nodes_in_state(&self, zone: u32, state: NodeState) -> Result<u32, Error> {
        self.table()
            .map(|table| table.zone_nodes_in_state(zone, state))
    }

    /// Takes up to `events_max` events, and waits up to `deadline` for the first one. See [`Client::wait_event`].
    pub fn poll_events(&self, events_max: usize, deadline: Duration) -> Result<Vec<Event>, Error> {
        let mut taken = Vec::new();
        if events_max == 0 {
            return Ok(taken);
        }
        let mut next = self.wait_event(deadline)?;
        while let Some(event) = next {
            taken.push(event);
            // The next call reports an error that occurs from now on.
            let wanted = taken.len() < events_max;
            next = match wanted {
                true => self.next_event().unwrap_or(None),
                false => None,
            };
        }
        Ok(taken)
    }

    /// A counter of this process by its name. `None` if there is no counter of that name.
    pub fn counter(&self, name: &str) -> Option<u64> {
        let all = self.counters();
        let found = all.iter().find(|(known, _)| *known == name);
        let of_pmix = PMIX_COUNTERS.contains(&name);
        // A process without PMIx has no PMIx counters: they are zero.
        found
            .map(|(_, count)| *count)
            .or_else(|| of_pmix.then_some(0))
    }

    /// Detaches, with the exit code that the process will end with: another name of [`Client::finalize`], the one of
    /// the C API.
    pub fn leave(&self, exit_code: i32) -> Result<(), Error> {
        self.finalize(exit_code)
    }
}

fn snapshot<T: From<u8>>(
    table: &TableView,
    count: impl Fn(&TableView) -> u32,
    copy: impl Fn(&TableView, &mut [u8]) -> Option<(u32, u64)>,
) -> Option<Snapshot<T>> {
    // The number may grow between the count and the copy: then copy again with more room.
    let mut bytes = vec![0; count(table) as usize];
    loop {
        let (known, epoch) = copy(table, &mut bytes)?;
        if known as usize <= bytes.len() {
            bytes.truncate(known as usize);
            let states = bytes.into_iter().map(T::from).collect();
            return Some(Snapshot { states, epoch });
        }
        bytes.resize(known as usize, 0);
    }
}
