//! The view as a whole: states of all, and who is where.

use super::{Client, Error, PMIX_COUNTERS};
use muster_shm::{Event, NodeState, RankState, TableView};
use std::time::Duration;

/// The states of all, by index, as they all were at one epoch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot<T> {
    /// The states.
    pub states: Vec<T>,
    /// The epoch.
    pub epoch: u64,
}

impl Client {
    /// The states of all nodes. `None` if the view changed faster than it could be copied.
    pub fn node_states(&self) -> Result<Option<Snapshot<NodeState>>, Error> {
        self.table()
            .map(|table| snapshot(table, TableView::node_count, TableView::copy_node_states))
    }

    /// The states of all ranks. `None` if the view changed faster than it could be copied.
    pub fn rank_states(&self) -> Result<Option<Snapshot<RankState>>, Error> {
        self.table()
            .map(|table| snapshot(table, TableView::rank_count, TableView::copy_rank_states))
    }

    /// How many nodes are in a state.
    pub fn nodes_in_state(&self, state: NodeState) -> Result<u32, Error> {
        self.table().map(|table| table.nodes_in_state(state))
    }

    /// How many ranks are in a state.
    pub fn ranks_in_state(&self, state: RankState) -> Result<u32, Error> {
        self.table().map(|table| table.ranks_in_state(state))
    }

    /// The index of the node of this name.
    pub fn node_find(&self, name: &str) -> Result<Option<u32>, Error> {
        self.table().map(|table| table.node_find(name))
    }

    /// The ranks that run on a node, in order. None for an index that is not on the board.
    pub fn node_ranks(&self, node: u32) -> Result<Vec<u32>, Error> {
        self.table().map(|table| table.node_ranks(node).collect())
    }

    /// Takes up to `most` events, and waits for the first at most so long. See [`Client::wait_event`].
    pub fn poll_events(&self, most: usize, deadline: Duration) -> Result<Vec<Event>, Error> {
        let mut taken = Vec::new();
        if most == 0 {
            return Ok(taken);
        }
        let mut next = self.wait_event(deadline)?;
        while let Some(event) = next {
            taken.push(event);
            // What goes wrong from now on is said by the next call.
            let wanted = taken.len() < most;
            next = match wanted {
                true => self.next_event().unwrap_or(None),
                false => None,
            };
        }
        Ok(taken)
    }

    /// A counter of this process's side by its name. `None` if none has that name.
    pub fn counter(&self, name: &str) -> Option<u64> {
        let all = self.counters();
        let found = all.iter().find(|(known, _)| *known == name);
        let of_pmix = PMIX_COUNTERS.contains(&name);
        // Not started by PMIx: there was nothing to count.
        found
            .map(|(_, count)| *count)
            .or_else(|| of_pmix.then_some(0))
    }

    /// Leaves in order, with the exit code that the process will end with: another word for
    /// [`Client::finalize`], the one that the C API has.
    pub fn leave(&self, exit_code: i32) -> Result<(), Error> {
        self.finalize(exit_code)
    }
}

fn snapshot<T: From<u8>>(
    table: &TableView,
    count: impl Fn(&TableView) -> u32,
    copy: impl Fn(&TableView, &mut [u8]) -> Option<(u32, u64)>,
) -> Option<Snapshot<T>> {
    // Some may come between the count and the copy: again with room for them.
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
