//! The agent's side of the state table: the only process that writes states, names and events.
//!
//! There is one writer at a time. When a worker ends, its successor continues with the same memory, which it has
//! inherited mapped; no other process can map the agent's half for writing. A write that the old worker did not
//! complete is either not yet visible or a plain value.

use std::hash::{BuildHasher, Hasher};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use super::core::{StateTable, system};
use super::layout::{GROUP_SIZE, LINE_SIZE, Layout, NAME_SIZE, header};
use super::{
    Claim, ClaimError, Event, Leave, NODE_NAME_MAX, NodeState, Occupancy, RankState, TableError,
    TableLimits, TableView,
};
use muster_sys::{clock, futex, memory};

/// The state table, for writing.
#[derive(Debug)]
pub struct TableWriter {
    table: Arc<StateTable>,
    /// The agent's half and the clients' half.
    halves: Arc<[OwnedFd; 2]>,
    change: Change,
}

/// The progress of a change of states.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
    /// None is in progress.
    None,
    /// One is in progress; no state has changed yet.
    Begun,
    /// A state has changed: the epoch is odd.
    Made,
}

impl TableWriter {
    /// Creates a new, empty state table.
    pub fn create(limits: TableLimits) -> Result<Self, TableError> {
        let layout = Layout::new(limits)?;
        let [own_size, clients_size] = [layout.clients, layout.size - layout.clients];
        let create = system("create the memory of the state table");
        let halves = memory::create_unsealed(c"muster-table", own_size).and_then(|own| {
            let clients = memory::create_sealed(c"muster-table-clients", clients_size)?;
            Ok([own, clients])
        });
        let halves = Arc::new(halves.map_err(create)?);
        let descriptors = halves.each_ref().map(AsFd::as_fd);
        let table = Arc::new(StateTable::create(descriptors, layout, random())?);
        memory::seal_for_readers(halves[0].as_fd()).map_err(system("seal the state table"))?;
        // Above that of every earlier state table of this node: none changes more than once a microsecond.
        let first = clock::monotonic_ns() / 1000 * 2;
        table
            .header_long(header::EPOCH)
            .store(first, Ordering::Release);
        let writer = Self {
            table,
            halves,
            change: Change::None,
        };
        writer.count_generation();
        Ok(writer)
    }

    /// Takes over the state table of a worker that has ended, with every state, slot and event in it. `kept` is the
    /// copy that the supervisor keeps. The caller ensures that no other writer runs.
    pub fn adopt(kept: &Self) -> Self {
        let table = Arc::clone(&kept.table);
        // A worker that ended during a change left the epoch odd.
        table.header_long(header::EPOCH).fetch_add(
            table.header_long(header::EPOCH).load(Ordering::Acquire) & 1,
            Ordering::AcqRel,
        );
        let writer = Self {
            table,
            halves: Arc::clone(&kept.halves),
            change: Change::None,
        };
        writer.count_generation();
        writer
    }

    /// The same state table, to be kept for a later worker that [adopts](Self::adopt) it. It is not used for writing.
    pub fn share(&self) -> Self {
        Self {
            table: Arc::clone(&self.table),
            halves: Arc::clone(&self.halves),
            change: Change::None,
        }
    }

    /// The descriptors for clients: the agent's half and the clients' half.
    pub fn descriptors(&self) -> [BorrowedFd<'_>; 2] {
        self.halves.each_ref().map(AsFd::as_fd)
    }

    /// The mark that the client in a slot combines its statements with.
    pub fn mark(&self, slot: u32) -> u64 {
        self.table.slot(slot).map_or(0, |slot| slot.mark())
    }

    pub(super) fn table(&self) -> &StateTable {
        &self.table
    }

    /// The same state table, for reading.
    pub fn view(&self) -> TableView {
        TableView(Arc::clone(&self.table), Arc::default())
    }

    /// Gives the next node index to a name of 1..=63 bytes. `None` if the name does not fit or the state table is
    /// full; nothing was changed then.
    pub fn add_node(&mut self, name: &str) -> Option<u32> {
        if name.is_empty() || name.len() > NODE_NAME_MAX {
            return None;
        }
        let node = self.table.node_count();
        write_text::<NAME_SIZE>(self.table.name_fields(node)?, name);
        // A reader that sees the count sees the name.
        self.table
            .header_field(header::NODE_COUNT)
            .store(node + 1, Ordering::Release);
        Some(node)
    }

    /// Writes the group of a node, of at most 31 bytes. Returns `false` and changes nothing for a longer one and for
    /// an index beyond the limit.
    pub fn set_node_group(&mut self, node: u32, group: &str) -> bool {
        match self.table.group_fields(node) {
            Some(fields) if group.len() < GROUP_SIZE => write_text::<GROUP_SIZE>(fields, group),
            _ => return false,
        }
        true
    }

    /// Sets the index of this node.
    pub fn set_own_node(&mut self, node: u32) {
        self.table
            .header_field(header::OWN_NODE)
            .store(node.wrapping_add(1), Ordering::Release);
    }

    /// Notes that the job has at least `count` ranks. The count never decreases and is at most the limit of the state
    /// table.
    pub fn raise_rank_count(&mut self, count: u32) {
        let count = count.min(self.table.layout.limits.ranks);
        self.table
            .header_field(header::RANK_COUNT)
            .fetch_max(count, Ordering::AcqRel);
    }

    /// Writes a node's state. Returns `false` and changes nothing for an index beyond the limit.
    pub fn set_node_state(&mut self, node: u32, state: NodeState) -> bool {
        self.together(|writer| {
            let table = Arc::clone(&writer.table);
            let Some(byte) = table.node_state(node) else {
                return false;
            };
            writer.set_state(byte, state as u8);
            true
        })
    }

    /// Writes a rank's state. Returns `false` and changes nothing for a rank beyond the limit.
    pub fn set_rank_state(&mut self, rank: u32, state: RankState) -> bool {
        self.together(|writer| {
            let table = Arc::clone(&writer.table);
            let Some(byte) = table.rank_state(rank) else {
                return false;
            };
            writer.raise_rank_count(rank + 1);
            writer.set_state(byte, state as u8);
            true
        })
    }

    /// Changes several states as one: a process that copies the states or waits for one gets all of the change or
    /// nothing. May be nested.
    pub fn together<T>(&mut self, change: impl FnOnce(&mut Self) -> T) -> T {
        let outermost = self.change == Change::None;
        if outermost {
            self.change = Change::Begun;
        }
        let answer = change(self);
        if outermost {
            if self.change == Change::Made {
                self.end_change();
            }
            self.change = Change::None;
        }
        answer
    }

    fn set_state(&mut self, byte: &AtomicU8, state: u8) {
        if byte.load(Ordering::Relaxed) == state {
            return;
        }
        if self.change != Change::Made {
            self.change = Change::Made;
            self.count_epoch();
        }
        byte.store(state, Ordering::Release);
    }

    /// Makes the change visible to all readers and wakes those that wait for it.
    fn end_change(&self) {
        self.count_epoch();
        let changed = self.table.changed();
        changed.fetch_add(1, Ordering::SeqCst);
        // Always wakes: a record of whether a process waits could only be kept by clients, each on behalf of all.
        futex::wake(changed);
    }

    /// Writes the node that a rank runs on. Returns `false` for a rank beyond the limit.
    pub fn set_rank_node(&mut self, rank: u32, node: u32) -> bool {
        let Some(field) = self.table.rank_node(rank) else {
            return false;
        };
        field.store(node.wrapping_add(1), Ordering::Release);
        self.raise_rank_count(rank + 1);
        true
    }

    /// Writes an event and returns its number. The states that it reports must be written first.
    pub fn push_event(&mut self, event: &Event) -> u64 {
        self.table.push(event)
    }

    /// Writes an event that lists several nodes, and returns its number.
    pub fn push_event_about(&mut self, event: &Event, nodes: &[u32]) -> u64 {
        let number = self.table.head().load(Ordering::Relaxed).wrapping_add(1);
        for listed in nodes
            .iter()
            .filter_map(|node| self.table.group_event(*node))
        {
            listed.store(number, Ordering::Relaxed);
        }
        self.table.push(event)
    }

    /// Gives a slot to a process: the one that it has already if it is a new image of the same process (an exec),
    /// otherwise a free one. Returns the slot and its generation.
    ///
    /// `is_alive` returns whether the process of that pid and start time is still alive; it is called for slots that
    /// prevent the claim.
    pub fn claim_slot(
        &mut self,
        claim: &Claim,
        is_alive: &dyn Fn(u32, u64) -> bool,
    ) -> Result<(u32, u32), ClaimError> {
        let limits = self.table.layout.limits;
        if let Some(rank) = claim.rank.filter(|rank| *rank >= limits.ranks) {
            return Err(ClaimError::RankTooLarge {
                rank,
                ranks: limits.ranks,
            });
        }
        let mut claim = *claim;
        let mut chosen = None;
        for index in 0..limits.slots {
            let Some(slot) = self.table.slot(index) else {
                break;
            };
            let facts = slot.facts();
            let same = facts.pid == claim.pid && facts.start_ticks == claim.start_ticks;
            match facts.occupancy {
                Occupancy::Free => chosen = chosen.or(Some(index)),
                Occupancy::Taken if same && !slot.is_released() => {
                    return Err(ClaimError::AlreadyAttached { pid: claim.pid });
                }
                Occupancy::Taken if same => {
                    claim.rank = claim.rank.or(facts.rank);
                    chosen = Some(index);
                    break;
                }
                Occupancy::Taken => {
                    let rival = facts.rank.filter(|rank| Some(*rank) == claim.rank);
                    if let Some(rank) = rival.filter(|_| is_alive(facts.pid, facts.start_ticks)) {
                        return Err(ClaimError::RankTaken {
                            rank,
                            pid: facts.pid,
                        });
                    }
                }
                Occupancy::Quarantined => {
                    if chosen.is_none() && !is_alive(facts.pid, facts.start_ticks) {
                        chosen = Some(index);
                    }
                }
            }
        }
        let index = chosen.ok_or(ClaimError::Full {
            slots: limits.slots,
        })?;
        let slot = self.table.slot(index).ok_or(ClaimError::Full {
            slots: limits.slots,
        })?;
        self.table.tick(index).store(0, Ordering::Relaxed);
        Ok((index, slot.take(&claim)))
    }

    /// Takes a slot back after the end of its process was reported. The slot of a client that left while one of its
    /// threads is still linked to it is quarantined until the process has ended.
    pub fn release_slot(&mut self, slot: u32) {
        let Some(slot) = self.table.slot(slot) else {
            return;
        };
        let linked = slot.leave().0 == Leave::StillLinked && !slot.is_released();
        slot.set_occupancy(if linked {
            Occupancy::Quarantined
        } else {
            Occupancy::Free
        });
    }

    /// The epoch is odd while states change, even otherwise.
    fn count_epoch(&self) {
        self.table
            .header_long(header::EPOCH)
            .fetch_add(1, Ordering::AcqRel);
    }

    fn count_generation(&self) {
        self.table
            .header_field(header::GENERATION)
            .fetch_add(1, Ordering::AcqRel);
    }
}

/// Writes a text that fits, padded with zeros.
pub(super) fn write_text<'a, const SIZE: usize>(
    fields: impl Iterator<Item = &'a AtomicU64>,
    text: &str,
) {
    let mut bytes = [0; SIZE];
    bytes[..text.len()].copy_from_slice(text.as_bytes());
    for (field, part) in fields.zip(bytes.chunks_exact(8)) {
        let part = part.try_into().expect("chunks of eight");
        field.store(u64::from_ne_bytes(part), Ordering::Relaxed);
    }
}

const _: () = assert!(header::HEAD + 8 <= header::GENERATION + 2 * LINE_SIZE);

/// A number that differs between state tables: the standard library seeds its hash keys from the system's random
/// numbers.
fn random() -> u64 {
    let mut hasher = std::hash::RandomState::new().build_hasher();
    hasher.write_u64(clock::monotonic_ns());
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Hold;
    use crate::LAYOUT_VERSION;
    use muster_sys::memory::create_sealed;
    use proptest::prelude::*;

    fn table() -> TableWriter {
        let limits = TableLimits {
            nodes: 8,
            ranks: 8,
            slots: 2,
            events: 16,
        };
        TableWriter::create(limits).unwrap()
    }

    fn claim(pid: u32, rank: Option<u32>) -> Claim {
        Claim {
            pid,
            start_ticks: 1,
            rank,
            hold: Hold::Thread,
        }
    }

    #[test]
    fn values_are_read_back_and_out_of_range_is_refused() {
        let mut writer = table();
        let view = TableView::attach(writer.descriptors()).unwrap();
        let first = view.epoch();
        assert_eq!(writer.add_node("node0"), Some(0));
        assert_eq!(writer.add_node(&"n".repeat(64)), None);
        writer.set_own_node(0);
        assert!(writer.set_node_state(0, NodeState::Alive));
        assert!(!writer.set_node_state(8, NodeState::Alive));
        assert!(writer.set_rank_state(7, RankState::Hung) && writer.set_rank_node(7, 0));
        assert!(!writer.set_rank_state(8, RankState::Hung));
        assert_eq!((view.node_count(), view.rank_count()), (1, 8));
        // One change each of a node and a rank.
        assert_eq!(view.epoch(), first + 4);
        assert_eq!(
            (view.node_name(0).as_deref(), view.node_name(1)),
            (Some("node0"), None)
        );
        assert_eq!(
            (view.node_state(0), view.node_state(9)),
            (NodeState::Alive, NodeState::Unknown)
        );
        assert_eq!(
            (view.rank_state(7), view.rank_node(7)),
            (RankState::Hung, Some(0))
        );
        assert_eq!((view.own_node(), view.rank_node(3)), (Some(0), None));
    }

    /// Final states of an earlier state table apply in one that has no report of these ranks yet, and no longer.
    #[test]
    fn final_states_of_an_earlier_table_apply_until_the_rank_is_reported() {
        use RankState::{Alive, Failed, Left, Unknown};
        let (mut first, mut second) = (table(), table());
        for (rank, state) in [(0, Alive), (1, Left), (2, Failed), (5, Failed)] {
            first.set_rank_state(rank, state);
        }
        let view = second.view().after(&first.view());
        let states =
            |view: &TableView| (0..7).map(|rank| view.rank_state(rank)).collect::<Vec<_>>();
        let ends = [Unknown, Left, Failed, Unknown, Unknown, Failed, Unknown];
        assert_eq!((view.rank_count(), states(&view)), (6, ends.to_vec()));
        let mut copy = [9; 8];
        assert_eq!(view.copy_rank_states(&mut copy), Some((6, view.epoch())));
        assert_eq!(copy[1..3], [Left as u8, Failed as u8]);
        // They are passed on to the next state table.
        let third = table().view().after(&view);
        assert_eq!(states(&third), ends);
        // The rank is back, and later no longer observed.
        second.set_rank_node(2, 0);
        second.set_rank_state(2, Alive);
        assert_eq!(view.rank_state(2), Alive);
        second.set_rank_state(2, Unknown);
        assert_eq!(view.rank_state(2), Unknown);
    }

    /// Nodes that fail together are one event, which lists them; the next event has its own list.
    #[test]
    fn an_event_about_several_nodes_lists_them() {
        use crate::Cause;
        use crate::EventKind;
        let mut writer = table();
        let view = writer.view();
        for node in ["a", "b", "c", "d"] {
            writer.add_node(node);
        }
        assert!(writer.set_node_group(1, &"r".repeat(31)));
        assert!(!writer.set_node_group(1, &"r".repeat(32)) && !writer.set_node_group(8, "r"));
        assert_eq!(view.node_group(1), Some("r".repeat(31)));
        assert_eq!(
            (view.node_group(0).as_deref(), view.node_group(4)),
            (Some(""), None)
        );
        let mut cursor = view.cursor();
        let mut event = Event::new(EventKind::GroupFailed, Cause::Silence);
        (event.node, event.count, event.total) = (1, 2, 3);
        writer.push_event_about(&event, &[1, 3]);
        let reported = view.next_event(&mut cursor).unwrap();
        assert_eq!((reported.count, reported.total), (2, 3));
        assert_eq!(view.event_nodes(&reported), [1, 3]);
        writer.push_event_about(&event, &[0, 2]);
        let later = view.next_event(&mut cursor).unwrap();
        assert_eq!(
            (view.event_nodes(&reported), view.event_nodes(&later)),
            (vec![1, 3], vec![0, 2])
        );
        let single = Event::new(EventKind::NodeUp, Cause::Joined);
        assert_eq!(view.event_nodes(&Event { node: 2, ..single }), [2]);
        assert_eq!(view.event_nodes(&single), [0; 0]);
    }

    /// All ranks always change at once, so a copy has the same state for all of them.
    #[test]
    fn a_copy_has_all_of_a_change_or_nothing() {
        let mut writer = table();
        let view = writer.view();
        writer.raise_rank_count(8);
        let done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let (mut copies, mut states) = (0, [0; 8]);
                while !done.load(Ordering::Acquire) || copies == 0 {
                    if let Some((8, epoch)) = view.copy_rank_states(&mut states) {
                        assert!(epoch.is_multiple_of(2));
                        assert_eq!(states, [states[0]; 8]);
                        copies += 1;
                    }
                }
            });
            for turn in 0..20_000 {
                let state = if turn % 2 == 0 {
                    RankState::Alive
                } else {
                    RankState::Hung
                };
                writer.together(|writer| {
                    for rank in 0..8 {
                        writer.set_rank_state(rank, state);
                    }
                });
            }
            done.store(true, Ordering::Release);
        });
        // Writing the same state is no change. The successor of a failed writer completes its change.
        let epoch = view.epoch();
        writer.together(|writer| writer.set_rank_state(0, RankState::Hung));
        assert_eq!(view.epoch(), epoch);
        writer.count_epoch();
        assert_eq!(view.copy_rank_states(&mut [0; 8]), None);
        let _next = TableWriter::adopt(&writer);
        let mut states = [9; 10];
        assert_eq!(view.copy_rank_states(&mut states), Some((8, epoch + 2)));
        assert_eq!(states[7..], [RankState::Hung as u8, 0, 0]);
    }

    #[test]
    fn a_new_worker_finds_the_table_unchanged() {
        let mut first = table();
        first.add_node("node0");
        first.set_node_state(0, NodeState::Suspect);
        let slot = first.claim_slot(&claim(5, Some(3)), &|_, _| true).unwrap();
        let kept = first.share();
        drop(first);
        let second = TableWriter::adopt(&kept);
        let view = second.view();
        assert_eq!(
            (view.generation(), view.node_state(0)),
            (2, NodeState::Suspect)
        );
        let facts = view.slot(slot.0).unwrap().facts();
        assert_eq!((facts.pid, facts.rank, facts.generation), (5, Some(3), 1));
    }

    #[test]
    fn a_slot_is_given_to_the_process_that_it_belongs_to() {
        let (mut writer, alive) = (table(), |_, _| true);
        assert_eq!(writer.claim_slot(&claim(5, Some(3)), &alive), Ok((0, 1)));
        // The same process again, its futex released: it was an exec. It keeps slot and rank.
        assert_eq!(writer.claim_slot(&claim(5, None), &alive), Ok((0, 2)));
        let rank = writer.view().slot(0).unwrap().facts().rank;
        assert_eq!(rank, Some(3));
        // Held by the same process: a second copy of the library.
        writer
            .view()
            .slot(0)
            .unwrap()
            .futex()
            .store(77, Ordering::Release);
        let again = writer.claim_slot(&claim(5, None), &alive);
        assert_eq!(again, Err(ClaimError::AlreadyAttached { pid: 5 }));
        let rival = writer.claim_slot(&claim(6, Some(3)), &alive);
        assert_eq!(rival, Err(ClaimError::RankTaken { rank: 3, pid: 5 }));
        let beyond = writer.claim_slot(&claim(6, Some(8)), &alive);
        assert_eq!(beyond, Err(ClaimError::RankTooLarge { rank: 8, ranks: 8 }));
        assert_eq!(writer.claim_slot(&claim(6, None), &alive), Ok((1, 1)));
        let full = writer.claim_slot(&claim(7, None), &alive);
        assert_eq!(full, Err(ClaimError::Full { slots: 2 }));
        writer.release_slot(1);
        assert_eq!(writer.claim_slot(&claim(7, None), &alive), Ok((1, 2)));
    }

    #[test]
    fn a_slot_that_is_still_linked_waits_for_the_end_of_its_process() {
        let mut writer = table();
        writer.claim_slot(&claim(5, None), &|_, _| true).unwrap();
        let view = writer.view();
        view.slot(0).unwrap().futex().store(77, Ordering::Release);
        let mark = writer.mark(0);
        view.slot(0).unwrap().announce_leave(mark, true, 0);
        writer.release_slot(0);
        assert_eq!(writer.claim_slot(&claim(6, None), &|_, _| true), Ok((1, 1)));
        assert_eq!(
            writer.claim_slot(&claim(7, None), &|_, _| true),
            Err(ClaimError::Full { slots: 2 })
        );
        assert_eq!(
            writer.claim_slot(&claim(7, None), &|_, _| false),
            Ok((0, 2))
        );
    }

    #[test]
    fn a_table_of_another_version_is_refused_with_the_remedy() {
        let writer = table();
        writer
            .view()
            .table()
            .header_field(header::VERSION)
            .store(9, Ordering::Release);
        let cause = TableView::attach(writer.descriptors()).unwrap_err();
        let text = cause.to_string();
        assert!(matches!(
            cause,
            TableError::Version {
                found: 9,
                known: LAYOUT_VERSION
            }
        ));
        assert!(
            text.contains("layout 9") && text.contains("MUSTER_AGENT"),
            "{text}"
        );
    }

    #[test]
    fn memory_that_is_not_a_table_is_refused() {
        let empty = create_sealed(c"muster-test", 1 << 16).unwrap();
        assert!(matches!(
            TableView::attach([empty.as_fd(); 2]),
            Err(TableError::NotATable { .. })
        ));
        let file = tempfile::tempfile().unwrap();
        assert!(matches!(
            TableView::attach([file.as_fd(); 2]),
            Err(TableError::NotATable { .. })
        ));
    }

    proptest! {
        /// A corrupted header is refused or harmless: no panic and no read outside of the mapping.
        #[test]
        fn garbage_in_the_table_never_panics(
            header in prop::collection::vec((0usize..12, any::<u32>()), 1..6),
            body in prop::collection::vec((0usize..16384, any::<u64>()), 0..300),
        ) {
            let writer = table();
            let map = &writer.table.map;
            for (index, value) in header {
                map.word(index * 4).store(value, Ordering::Relaxed);
            }
            for (index, value) in body {
                // Past the first line, of which the view keeps checked copies.
                let offset = 128 + index * 8;
                if offset + 8 <= writer.table.layout.size {
                    map.long(offset).store(value, Ordering::Relaxed);
                }
            }
            // A view that trusts its header, and one that has just checked it.
            for view in [Some(writer.view()), TableView::attach(writer.descriptors()).ok()] {
                let Some(view) = view else { continue };
                let mut cursor = view.cursor();
                for index in 0..view.node_count().min(10) + 1 {
                    let _ = (view.node_state(index), view.node_name(index));
                    let _ = (view.rank_state(index), view.rank_node(index), view.ticks(index));
                    let _ = (view.node_zone(index), view.zone_name(index));
                    let _ = view.zone_nodes(index).count();
                    let _ = view.slot(index).map(|slot| (slot.facts(), slot.leave()));
                }
                for _ in 0..40 {
                    let _ = view.next_event(&mut cursor);
                }
            }
        }
    }
}
