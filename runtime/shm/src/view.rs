//! The reader's side of the board.

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

/// How often states are copied anew because they change meanwhile.
const COPIES: u32 = 64;
/// How often the epoch is read anew because a change is under way.
const LOOKS: u32 = 256;

/// A board to look at. Cheap to clone; the mapping lives as long as any of the clones.
#[derive(Debug, Clone)]
pub struct TableView(pub(super) Arc<StateTable>, pub(super) Arc<Ends>);

/// How ranks ended of which only an earlier board of this process has heard.
pub(super) type Ends = BTreeMap<u32, RankState>;

impl TableView {
    /// Maps a board whose halves were received, the agent's for reading. Checks seals, magic, version and sizes
    /// before it trusts anything; on error nothing stays mapped.
    pub fn attach(halves: [BorrowedFd<'_>; 2]) -> Result<Self, TableError> {
        StateTable::attach(halves).map(|table| Self(Arc::new(table), Arc::default()))
    }

    /// The same, of an agent that never heard of ranks whose ends the one before it had told: of a rank without
    /// a node here, these ends hold. Who was told of a death must not find it undone.
    pub fn after(self, earlier: &Self) -> Self {
        let is_end = |state: &RankState| matches!(state, RankState::Failed | RankState::Left);
        let ranks = (0..earlier.rank_count()).map(|rank| (rank, earlier.rank_state(rank)));
        let ends: Ends = ranks.filter(|(_, state)| is_end(state)).collect();
        Self(self.0, Arc::new(ends))
    }

    /// The number that tells this board from every other.
    pub fn identity(&self) -> u64 {
        self.0.identity
    }

    /// What it has room for.
    pub fn limits(&self) -> TableLimits {
        self.0.layout.limits
    }

    /// Counts the agent processes that wrote on it, from 1.
    pub fn generation(&self) -> u32 {
        self.0
            .header_field(header::GENERATION)
            .load(Ordering::Acquire)
    }

    /// Grows with every change of a state, over the boards of this node too. Between two reads that
    /// answer the same, no state was seen to change: while some change it waits, for microseconds. (A
    /// number that is odd is that of a writer which died; its successor goes on.)
    pub fn epoch(&self) -> u64 {
        for _ in 0..LOOKS {
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

    /// How many nodes were ever known; their indices are below it.
    pub fn node_count(&self) -> u32 {
        self.0.node_count()
    }

    /// How many ranks the job has, as far as known; their numbers are below it.
    pub fn rank_count(&self) -> u32 {
        let ended = self.1.last_key_value().map_or(0, |(rank, _)| rank + 1);
        self.0.rank_count().max(ended.min(self.limits().ranks))
    }

    /// Sleeps until `look` finds something, or `until`. Looks again after every change of a state, and
    /// at `until` at the latest. What made it find something is over when this returns.
    pub fn await_change<T>(
        &self,
        until: Instant,
        mut look: impl FnMut(&Self) -> Option<T>,
    ) -> Option<T> {
        let changed = self.0.changed();
        loop {
            let seen = changed.load(Ordering::SeqCst);
            if let Some(found) = look(self) {
                // All of the change is there then, and the event that tells of it.
                self.epoch();
                return Some(found);
            }
            let left = until.saturating_duration_since(Instant::now());
            // A wait that the kernel refuses ends as one that took too long.
            if left.is_zero() || futex::wait_for(changed, seen, left).is_err() {
                return None;
            }
        }
    }

    /// Makes all who sleep in [`TableView::await_change`] look again, here and in other processes.
    pub fn wake_sleepers(&self) {
        let changed = self.0.changed();
        // Who is about to sleep finds the word changed.
        changed.fetch_add(1, Ordering::SeqCst);
        futex::wake(changed);
    }

    /// Copies the states of the nodes from index 0 on, as bytes, as they all were at one epoch, with 0
    /// beyond them; answers how many nodes were known and the epoch. `None` if the view changed faster
    /// than it could be copied; then `states` is not to be relied on.
    pub fn copy_node_states(&self, states: &mut [u8]) -> Option<(u32, u64)> {
        self.copy_states(states, Self::node_count, |node| self.node_state(node) as u8)
    }

    /// As [`TableView::copy_node_states`], of the ranks.
    pub fn copy_rank_states(&self, states: &mut [u8]) -> Option<(u32, u64)> {
        self.copy_states(states, Self::rank_count, |rank| self.rank_state(rank) as u8)
    }

    fn copy_states(
        &self,
        states: &mut [u8],
        count: impl Fn(&Self) -> u32,
        state: impl Fn(u32) -> u8,
    ) -> Option<(u32, u64)> {
        for _ in 0..COPIES {
            let epoch = self.epoch();
            let known = count(self);
            let (of_known, beyond) = states.split_at_mut(states.len().min(known as usize));
            for (index, place) in (0..).zip(of_known) {
                *place = state(index);
            }
            // The states are read before the epoch is read again: each read acquires.
            if epoch.is_multiple_of(2) && self.raw_epoch() == epoch {
                beyond.fill(0);
                return Some((known, epoch));
            }
        }
        None
    }

    /// Index of this node, once the agent has said it.
    pub fn own_node(&self) -> Option<u32> {
        self.0
            .header_field(header::OWN_NODE)
            .load(Ordering::Acquire)
            .checked_sub(1)
    }

    /// A node's state; `Unknown` for an index that is not on the board.
    #[inline]
    pub fn node_state(&self, node: u32) -> NodeState {
        let byte = self
            .0
            .node_state(node)
            .map_or(0, |byte| byte.load(Ordering::Acquire));
        NodeState::from(byte)
    }

    /// A rank's state; `Unknown` for a rank that is not on the board.
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

    /// How a rank of which this board has not heard ended before it.
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

    /// A node's name; `None` for an index that is not on the board yet.
    pub fn node_name(&self, node: u32) -> Option<String> {
        if node >= self.node_count() {
            return None;
        }
        self.0.name_fields(node).map(read_text::<NAME_SIZE>)
    }

    /// How many nodes are in a state.
    pub fn nodes_in_state(&self, state: NodeState) -> u32 {
        let nodes = 0..self.node_count();
        nodes.filter(|node| self.node_state(*node) == state).count() as u32
    }

    /// How many ranks are in a state.
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

    /// What a node shares with those that may fail together with it, empty if nothing was said;
    /// `None` for an index that is not on the board yet.
    pub fn node_group(&self, node: u32) -> Option<String> {
        if node >= self.node_count() {
            return None;
        }
        self.0.group_futexes(node).map(read_text::<GROUP_SIZE>)
    }

    /// The nodes an event is about: those on the list of a failed group (as long as no later one
    /// lists them), else the one it names.
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

    /// A cursor that sees the events from now on.
    pub fn cursor(&self) -> Cursor {
        Cursor::at_head(&self.0)
    }

    /// A cursor that sees all events that are still there.
    pub fn first_cursor(&self) -> Cursor {
        Cursor::at_start()
    }

    /// The next event, an overflow if the cursor was lapped, `None` if there is none.
    pub fn next_event(&self, cursor: &mut Cursor) -> Option<Event> {
        cursor.next(&self.0)
    }

    /// A slot; `None` beyond the last.
    pub fn slot(&self, slot: u32) -> Option<Slot<'_>> {
        self.0.slot(slot)
    }

    /// Advances a client's tick by one. One writer per slot; a slot that does not exist is no
    /// error.
    pub fn tick(&self, slot: u32) {
        if slot < self.0.slot_count() {
            let tick = self.0.tick(slot);
            tick.store(
                tick.load(Ordering::Relaxed).wrapping_add(1),
                Ordering::Release,
            );
        }
    }

    /// How often a client has ticked.
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

/// A text with zeros behind it.
fn read_text<'a, const SIZE: usize>(names: impl Iterator<Item = &'a AtomicU64>) -> String {
    let mut bytes = [0; SIZE];
    for (part, word) in bytes.chunks_exact_mut(8).zip(names) {
        part.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
    }
    let length = bytes.iter().position(|byte| *byte == 0).unwrap_or(SIZE);
    String::from_utf8_lossy(&bytes[..length]).into_owned()
}
