//! The state tables that a client has used: one, unless an agent was lost together with its supervisor.
//!
//! Reading a state must stay one load while another thread may change to a new state table. State tables are
//! therefore only added, and an index states which one is current; an old one stays mapped, because a thread may be
//! reading it. An agent is rarely lost for good, and the list is bounded.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use muster_shm::TableView;

/// Most state tables, and so agents, that one process can use.
const TABLES_MAX: usize = 64;

#[derive(Debug)]
pub(super) struct StateTables {
    seen: [OnceLock<TableView>; TABLES_MAX],
    current: AtomicUsize,
}

impl StateTables {
    pub(super) fn new(first: TableView) -> Self {
        let tables = Self {
            seen: [const { OnceLock::new() }; TABLES_MAX],
            current: AtomicUsize::new(0),
        };
        tables.seen[0].get_or_init(|| first);
        tables
    }

    /// The current state table.
    #[inline]
    pub(super) fn current(&self) -> &TableView {
        self.latest().1
    }

    /// The current state table and its index, from one load: another thread may change it between two loads.
    #[inline]
    pub(super) fn latest(&self) -> (usize, &TableView) {
        let current = self.current.load(Ordering::Acquire);
        let table = self.seen[current].get();
        (
            current,
            table.expect("the state table is set before the index"),
        )
    }

    /// Changes to another state table; `false` if there were too many. One caller at a time. Final states of ranks
    /// that were reported stay.
    pub(super) fn replace(&self, table: TableView) -> bool {
        let (current, before) = self.latest();
        let (next, table) = (current + 1, table.after(before));
        let Some(entry) = self.seen.get(next) else {
            return false;
        };
        if entry.set(table).is_err() {
            return false;
        }
        self.current.store(next, Ordering::Release);
        true
    }
}
