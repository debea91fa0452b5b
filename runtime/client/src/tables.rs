//! The boards a client has seen: one, unless an agent was lost with its keeper.
//!
//! Reading a state must stay one load while another thread may be moving to a new board. So boards
//! are only ever added, and an index says which one counts; an old one stays mapped, as somebody
//! may be reading it. Losing an agent for good is rare, and the list is bounded.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use muster_shm::TableView;

/// How many agents one process can outlive.
const BOARDS_MAX: usize = 64;

#[derive(Debug)]
pub(super) struct Boards {
    seen: [OnceLock<TableView>; BOARDS_MAX],
    current: AtomicUsize,
}

impl Boards {
    pub(super) fn new(first: TableView) -> Self {
        let tables = Self {
            seen: [const { OnceLock::new() }; BOARDS_MAX],
            current: AtomicUsize::new(0),
        };
        tables.seen[0].get_or_init(|| first);
        tables
    }

    /// The board that counts now.
    #[inline]
    pub(super) fn current(&self) -> &TableView {
        self.latest().1
    }

    /// The board that counts now, and its number. Both from one look: another may come in between.
    #[inline]
    pub(super) fn latest(&self) -> (usize, &TableView) {
        let current = self.current.load(Ordering::Acquire);
        let table = self.seen[current].get();
        (current, table.expect("the index follows the board"))
    }

    /// Moves to another board; `false` if there were too many. One caller at a time. Ends of ranks that were
    /// told stay told.
    pub(super) fn replace(&self, table: TableView) -> bool {
        let (current, before) = self.latest();
        let (next, table) = (current + 1, table.after(before));
        let Some(place) = self.seen.get(next) else {
            return false;
        };
        if place.set(table).is_err() {
            return false;
        }
        self.current.store(next, Ordering::Release);
        true
    }
}
