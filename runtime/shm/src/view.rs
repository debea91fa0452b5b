//! The reader's side of the state table.

use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use super::core::StateTable;
use super::layout::{GROUP_SIZE, NAME_SIZE, header};
use super::{Cursor, Event, NodeState, RankState, Slot, TableError, TableLimits};
use super::{EventKind, NO_NODE};
use muster_sys::futex;

/// How often states are copied again because they change meanwhile.
const COPY_TRIES_MAX: u32 = 64;
/// How often the epoch is read again because a change is in progress.
const EPOCH_TRIES_MAX: u32 = 256;

/// A state table, for reading. Cheap to clone; the mapping exists as long as any of the clones.
#[derive(Debug, Clone)]
pub struct TableView(pub(super) Arc<StateTable>, pub(super) Arc<Ends>);

/// The final states of ranks that are known only from an earlier state table of this process.
pub(super) type Ends = BTreeMap<u32, RankState>;

impl TableView {
    /// Maps a state table whose halves were received, the agent's half for reading. Checks seals, magic, version and
    /// sizes first; on error nothing stays mapped.
    pub fn attach(halves: [BorrowedFd<'_>; 2]) -> Result<Self, TableError> {
        StateTable::attach(halves).map(|table| Self(Arc::new(table), Arc::default()))
    }

    /// This state table, which a new agent has created, with the final states of ranks from the earlier one. They
    /// apply to ranks that have no node in this table: a failure that was reported once must not disappear.
    pub fn after(self, earlier: &Self) -> Self {
        let is_end = |state: &RankState| matches!(state, RankState::Failed | RankState::Left);
        let ranks = (0..earlier.rank_count()).map(|rank| (rank, earlier.rank_state(rank)));
        let ends: Ends = ranks.filter(|(_, state)| is_end(state)).collect();
        Self(self.0, Arc::new(ends))
    }

    /// The number that tells this state table from every other.
    pub fn identity(&self) -> u64 {
        self.0.identity
    }

    /// Its limits.
    pub fn limits(&self) -> TableLimits {
        self.0.layout.limits
    }

    /// Counts the agent processes that wrote to it, from 1.
    pub fn generation(&self) -> u32 {
        self.0
            .header_field(header::GENERATION)
            .load(Ordering::Acquire)
    }

    /// Incremented with every change of a state, and across the state tables of this node. If two reads return the
    /// same number, no state changed between them. While a change is in progress it waits, for microseconds. An odd
    /// number is that of a writer that ended during a change; its successor completes it.
    pub fn epoch(&self) -> u64 {
        for _ in 0..EPOCH_TRIES_MAX {
            let epoch = self.raw_epoch();
            if epoch.is_multiple_of(2) {
                return epoch;
            }
            std::thread::yield_now();
        }
        self.raw_epoch()
    }

    fn raw_epoch(&self) -> u64 {
        self.0.header_long(header::EPOCH).load(Ordering::Acquire)
    }

    /// Number of nodes that were ever known; their indices are below it.
    pub fn node_count(&self) -> u32 {
        self.0.node_count()
    }

    /// Number of ranks of the job, as far as known; their numbers are below it.
    pub fn rank_count(&self) -> u32 {
        let ended = self.1.last_key_value().map_or(0, |(rank, _)| rank + 1);
        self.0.rank_count().max(ended.min(self.limits().ranks))
    }

    /// Waits until `check` returns a value, at most until `deadline`. Checks again after every change of a state, and
    /// at `deadline` at the latest. The change that `check` found is complete when this returns.
    pub fn await_change<T>(
        &self,
        deadline: Instant,
        mut check: impl FnMut(&Self) -> Option<T>,
    ) -> Option<T> {
        let changed = self.0.changed();
        loop {
            let seen = changed.load(Ordering::SeqCst);
            if let Some(found) = check(self) {
                // Wait for the end of the change and for the event that reports it.
                self.epoch();
                return Some(found);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            // A wait that the kernel refuses counts as timed out.
            if left.is_zero() || futex::wait_for(changed, seen, left).is_err() {
                return None;
            }
        }
    }

    /// Makes all callers of [`TableView::await_change`] check again, in this process and in others.
    pub fn wake_sleepers(&self) {
        let changed = self.0.changed();
        // A thread that is about to wait finds the futex changed.
        changed.fetch_add(1, Ordering::SeqCst);
        futex::wake(changed);
    }

    /// Copies the states of the nodes from index 0 on, as bytes, all of one epoch, with 0 beyond the last node.
    /// Returns how many nodes were known, and the epoch. `None` if the states changed faster than they could be
    /// copied; `states` is not consistent then.
    pub fn copy_node_states(&self, states: &mut [u8]) -> Option<(u32, u64)> {
        self.copy_states(states, Self::node_count, |node| self.node_state(node) as u8)
    }

    /// As [`TableView::copy_node_states`], for the ranks.
    pub fn copy_rank_states(&self, states: &mut [u8]) -> Option<(u32, u64)> {
        self.copy_states(states, Self::rank_count, |rank| self.rank_state(rank) as u8)
    }

    fn copy_states(
        &self,
        states: &mut [u8],
        count: impl Fn(&Self) -> u32,
        state: impl Fn(u32) -> u8,
    ) -> Option<(u32, u64)> {
        for _ in 0..COPY_TRIES_MAX {
            let epoch = self.epoch();
            let known = count(self);
            let (of_known, beyond) = states.split_at_mut(states.len().min(known as usize));
            for (index, byte) in (0..).zip(of_known) {
                *byte = state(index);
            }
            // The states are read before the epoch is read again: each read acquires.
            if epoch.is_multiple_of(2) && self.raw_epoch() == epoch {
                beyond.fill(0);
                return Some((known, epoch));
            }
        }
        None
    }

    /// Index of this node, once the agent has set it.
    pub fn own_node(&self) -> Option<u32> {
        self.0
            .header_field(header::OWN_NODE)
            .load(Ordering::Acquire)
            .checked_sub(1)
    }

    /// A node's state; `Unknown` for an index that is not in the state table.
    #[inline]
    pub fn node_state(&self, node: u32) -> NodeState {
        let byte = self
            .0
            .node_state(node)
            .map_or(0, |byte| byte.load(Ordering::Acquire));
        NodeState::from(byte)
    }

    /// A rank's state; `Unknown` for a rank that is not in the state table.
    #[inline]
    pub fn rank_state(&self, rank: u32) -> RankState {
        let byte = self
            .0
            .rank_state(rank)
            .map_or(0, |byte| byte.load(Ordering::Acquire));
        match RankState::from(byte) {
            RankState::Unknown if !self.1.is_empty() => self.earlier_end(rank),
            state => state,
        }
    }

    /// The final state, in an earlier state table, of a rank that has no node in this one.
    fn earlier_end(&self, rank: u32) -> RankState {
        match self.rank_node(rank) {
            None => self.1.get(&rank).copied().unwrap_or_default(),
            Some(_) => RankState::Unknown,
        }
    }

    /// Index of the node a rank runs on, if known.
    pub fn rank_node(&self, rank: u32) -> Option<u32> {
        self.0
            .rank_node(rank)?
            .load(Ordering::Acquire)
            .checked_sub(1)
    }

    /// A node's name; `None` for an index that is not in the state table yet.
    pub fn node_name(&self, node: u32) -> Option<String> {
        if node >= self.node_count() {
            return None;
        }
        self.0.name_fields(node).map(read_text::<NAME_SIZE>)
    }

    /// Number of nodes in a state.
    pub fn nodes_in_state(&self, state: NodeState) -> u32 {
        let nodes = 0..self.node_count();
        nodes.filter(|node| self.node_state(*node) == state).count() as u32
    }

    /// Number of ranks in a state.
    pub fn ranks_in_state(&self, state: RankState) -> u32 {
        let ranks = 0..self.rank_count();
        ranks.filter(|rank| self.rank_state(*rank) == state).count() as u32
    }

    /// The ranks that run on a node, in order.
    pub fn node_ranks(&self, node: u32) -> impl Iterator<Item = u32> + '_ {
        (0..self.rank_count()).filter(move |rank| self.rank_node(*rank) == Some(node))
    }

    /// Index of the node of this name, if there is one.
    pub fn node_find(&self, name: &str) -> Option<u32> {
        (0..self.node_count()).find(|node| self.node_name(*node).is_some_and(|known| known == name))
    }

    /// The failure group of a node: it may fail together with the other nodes of the group. Empty if it has none;
    /// `None` for an index that is not in the state table yet.
    pub fn node_group(&self, node: u32) -> Option<String> {
        if node >= self.node_count() {
            return None;
        }
        self.0.group_fields(node).map(read_text::<GROUP_SIZE>)
    }

    /// The nodes of an event: those on the list of a failed group (as long as no later event lists them), otherwise
    /// the one that it names.
    pub fn event_nodes(&self, event: &Event) -> Vec<u32> {
        if event.kind != EventKind::GroupFailed {
            return (event.node != NO_NODE)
                .then_some(event.node)
                .into_iter()
                .collect();
        }
        let number = event.sequence.wrapping_add(1);
        let is_listed = |node: &u32| {
            let last = self.0.group_event(*node);
            last.is_some_and(|last| last.load(Ordering::Relaxed) == number)
        };
        (0..self.node_count()).filter(is_listed).collect()
    }

    /// A cursor for the events from now on.
    pub fn cursor(&self) -> Cursor {
        Cursor::at_head(&self.0)
    }

    /// A cursor for all events that are still in the ring.
    pub fn first_cursor(&self) -> Cursor {
        Cursor::at_start()
    }

    /// The next event, an overflow if the cursor was lapped, `None` if there is none.
    pub fn next_event(&self, cursor: &mut Cursor) -> Option<Event> {
        cursor.next(&self.0)
    }

    /// A slot; `None` beyond the last one.
    pub fn slot(&self, slot: u32) -> Option<Slot<'_>> {
        self.0.slot(slot)
    }

    /// Increments a client's tick. There is one writer per slot; a slot that does not exist is ignored.
    pub fn tick(&self, slot: u32) {
        if slot < self.0.slot_count() {
            let tick = self.0.tick(slot);
            tick.store(
                tick.load(Ordering::Relaxed).wrapping_add(1),
                Ordering::Release,
            );
        }
    }

    /// Number of ticks of a client.
    pub fn ticks(&self, slot: u32) -> u64 {
        if slot < self.0.slot_count() {
            self.0.tick(slot).load(Ordering::Acquire)
        } else {
            0
        }
    }

    /// The mapped table.
    pub fn table(&self) -> &Arc<StateTable> {
        &self.0
    }
}

/// Reads a text that is padded with zeros.
pub(super) fn read_text<'a, const SIZE: usize>(
    fields: impl Iterator<Item = &'a AtomicU64>,
) -> String {
    let mut bytes = [0; SIZE];
    for (part, field) in bytes.chunks_exact_mut(8).zip(fields) {
        part.copy_from_slice(&field.load(Ordering::Relaxed).to_ne_bytes());
    }
    let length = bytes.iter().position(|byte| *byte == 0).unwrap_or(SIZE);
    String::from_utf8_lossy(&bytes[..length]).into_owned()
}
