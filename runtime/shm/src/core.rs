//! The mapped state table and bounds-checked access to each of its fields. Writer, view and process watch share it.

use std::hash::{BuildHasher, RandomState};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use super::layout::{
    ENTRY_SIZE, GROUP_SIZE, LINE_SIZE, Layout, MAGIC, NAME_SIZE, PIGGYBACKS_SIZE, STAMPS_SIZE,
    ZONE_SIZE, clients, header,
};
use super::{LAYOUT_VERSION, TableError, TableLimits, TrafficStamp};
use muster_sys::memory::{self, Access, SharedMap};

/// A mapping whose layout was checked.
#[derive(Debug)]
pub struct StateTable {
    pub(super) map: SharedMap,
    pub(super) layout: Layout,
    /// Tells one state table from another.
    pub(super) identity: u64,
    /// Hash keys for the marks of clients. Only the agent has them; its workers inherit them.
    marks: Option<RandomState>,
}

impl StateTable {
    /// Maps the agent's half for reading, and the clients' half. The caller received the descriptors from another
    /// process, so seals, magic, version and sizes are checked first.
    pub(super) fn attach(halves: [BorrowedFd<'_>; 2]) -> Result<Self, TableError> {
        let not = |why: String| TableError::NotATable { why };
        let mut size = 0;
        for half in halves {
            let seals = memory::seals(half);
            let seals = seals.map_err(|cause| not(format!("the memory is not sealed: {cause}")))?;
            if seals & memory::REQUIRED_SEALS != memory::REQUIRED_SEALS {
                return Err(not("its size is not sealed".into()));
            }
            let bytes = memory::size(half).map_err(system("read the size of the state table"))?;
            if bytes < 4096 || bytes > isize::MAX as u64 / 2 {
                return Err(not(format!("it has {bytes} bytes")));
            }
            size += bytes;
        }
        let [fd, clients] = halves;
        // Maps the header alone first: nothing else is read before the header is checked.
        let head = SharedMap::map(fd, 4096, Access::Read).map_err(system("map the state table"))?;
        if head.long(header::MAGIC).load(Ordering::Acquire) != MAGIC {
            return Err(not("it does not begin with the magic number".into()));
        }
        let found = head.word(header::VERSION).load(Ordering::Relaxed);
        if found != LAYOUT_VERSION {
            return Err(TableError::Version {
                found,
                known: LAYOUT_VERSION,
            });
        }
        let read = |offset: usize| head.word(offset).load(Ordering::Relaxed);
        let layout = Layout::new(TableLimits {
            nodes: read(header::NODES),
            ranks: read(header::RANKS),
            slots: read(header::SLOTS),
            events: read(header::EVENTS),
        })
        .map_err(|cause| not(cause.to_string()))?;
        let stated_size = head.long(header::SIZE).load(Ordering::Relaxed);
        let own_size = memory::size(fd).map_err(system("read the size of the state table"))?;
        if layout.size as u64 != size || stated_size != size || own_size != layout.clients as u64 {
            return Err(not(format!(
                "it has {size} bytes where its limits require {}",
                layout.size
            )));
        }
        let identity = head.long(header::IDENTITY).load(Ordering::Relaxed);
        let map = map_halves([fd, clients], &layout, Access::Read)?;
        Ok(Self {
            map,
            layout,
            identity,
            marks: None,
        })
    }

    /// Maps fresh, zeroed memory of the layout's halves and writes the header, magic last.
    pub(super) fn create(
        halves: [BorrowedFd<'_>; 2],
        layout: Layout,
        identity: u64,
    ) -> Result<Self, TableError> {
        let map = map_halves(halves, &layout, Access::Write)?;
        let write = |offset: usize, value: u32| map.word(offset).store(value, Ordering::Relaxed);
        write(header::VERSION, LAYOUT_VERSION);
        write(header::NODES, layout.limits.nodes);
        write(header::RANKS, layout.limits.ranks);
        write(header::SLOTS, layout.limits.slots);
        write(header::EVENTS, layout.limits.events);
        map.long(header::SIZE)
            .store(layout.size as u64, Ordering::Relaxed);
        map.long(header::IDENTITY)
            .store(identity, Ordering::Relaxed);
        map.long(header::MAGIC).store(MAGIC, Ordering::Release);
        Ok(Self {
            map,
            layout,
            identity,
            marks: Some(RandomState::new()),
        })
    }

    /// The mark of the client in a slot: a number that only the agent and that client know. The client combines its
    /// statements with it, so that no other process writes a valid statement by mistake. 0 in a client's process.
    pub(super) fn mark(&self, slot: u32, generation: u32) -> u64 {
        let number = |marks: &RandomState| marks.hash_one((slot, generation));
        // A statement combined with this mark is neither all zeros nor all ones.
        self.marks
            .as_ref()
            .map_or(0, |marks| number(marks) & !(3 << 62) | 1 << 63)
    }

    /// The futex on which processes wait for a change of a state.
    pub(super) fn changed(&self) -> &AtomicU32 {
        self.map.word(self.layout.clients + clients::CHANGED)
    }

    pub(super) fn header_field(&self, offset: usize) -> &AtomicU32 {
        self.map.word(offset)
    }

    pub(super) fn header_long(&self, offset: usize) -> &AtomicU64 {
        self.map.long(offset)
    }

    /// Number of nodes with an index, at most the limit.
    #[inline]
    pub(super) fn node_count(&self) -> u32 {
        let count = self.map.word(header::NODE_COUNT).load(Ordering::Acquire);
        count.min(self.layout.limits.nodes)
    }

    /// Number of ranks, at most the limit.
    #[inline]
    pub(super) fn rank_count(&self) -> u32 {
        let count = self.map.word(header::RANK_COUNT).load(Ordering::Acquire);
        count.min(self.layout.limits.ranks)
    }

    #[inline]
    pub(super) fn node_state(&self, node: u32) -> Option<&AtomicU8> {
        let inside = node < self.layout.limits.nodes;
        inside.then(|| self.map.byte(self.layout.node_states + node as usize))
    }

    #[inline]
    pub(super) fn rank_state(&self, rank: u32) -> Option<&AtomicU8> {
        let inside = rank < self.layout.limits.ranks;
        inside.then(|| self.map.byte(self.layout.rank_states + rank as usize))
    }

    /// The rank's node index plus one; zero means not known.
    #[inline]
    pub(super) fn rank_node(&self, rank: u32) -> Option<&AtomicU32> {
        let inside = rank < self.layout.limits.ranks;
        inside.then(|| self.map.word(self.layout.rank_nodes + rank as usize * 4))
    }

    /// The eight 64-bit fields of a node's name.
    pub(super) fn name_fields(&self, node: u32) -> Option<impl Iterator<Item = &AtomicU64>> {
        let start = self.layout.names + node as usize * NAME_SIZE;
        let inside = node < self.layout.limits.nodes;
        inside.then(|| (0..NAME_SIZE / 8).map(move |field| self.map.long(start + field * 8)))
    }

    /// The four 64-bit fields of the name of a node's group.
    pub(super) fn group_fields(&self, node: u32) -> Option<impl Iterator<Item = &AtomicU64>> {
        let start = self.layout.groups + node as usize * GROUP_SIZE;
        let inside = node < self.layout.limits.nodes;
        inside.then(|| (0..GROUP_SIZE / 8).map(move |field| self.map.long(start + field * 8)))
    }

    /// The 64-bit fields of the name of a zone.
    pub(super) fn zone_fields(&self, zone: u32) -> Option<impl Iterator<Item = &AtomicU64>> {
        let start = self.layout.zone_names + zone as usize * ZONE_SIZE;
        let inside = zone < self.layout.limits.zones();
        inside.then(|| (0..ZONE_SIZE / 8).map(move |field| self.map.long(start + field * 8)))
    }

    /// The node's zone number plus one; zero means not known.
    pub(super) fn node_zone(&self, node: u32) -> Option<&AtomicU32> {
        let inside = node < self.layout.limits.nodes;
        inside.then(|| self.map.word(self.layout.node_zones + node as usize * 4))
    }

    /// Number plus one of the last event that listed the node; zero if there was none.
    pub(super) fn group_event(&self, node: u32) -> Option<&AtomicU64> {
        let inside = node < self.layout.limits.nodes;
        inside.then(|| self.map.long(self.layout.group_events + node as usize * 8))
    }

    /// The stamp of this event's entry in the ring, and the offset of the event's fields.
    #[inline]
    pub(super) fn entry(&self, sequence: u64) -> (&AtomicU64, usize) {
        let place = (sequence & u64::from(self.layout.limits.events - 1)) as usize;
        let start = self.layout.event_ring + place * ENTRY_SIZE;
        (self.map.long(start), start + 8)
    }

    #[inline]
    pub(super) fn head(&self) -> &AtomicU64 {
        self.map.long(header::HEAD)
    }

    /// When ranks of this node last received a message from a node, or sent one there. `None` beyond the limit of
    /// nodes.
    #[inline]
    pub(super) fn traffic(&self, node: u32, traffic: TrafficStamp) -> Option<&AtomicU64> {
        let start = self.layout.traffic + node as usize * STAMPS_SIZE;
        (node < self.layout.limits.nodes).then(|| self.map.long(start + traffic as usize * 8))
    }

    /// Number of piggybacks that were lost: their buffer was full or not usable.
    pub(super) fn piggybacks_lost(&self) -> &AtomicU64 {
        self.map.long(self.layout.piggybacks)
    }

    /// Offset of a node's piggyback buffer for one direction.
    #[inline]
    pub(super) fn piggyback(&self, node: u32, way: TrafficStamp) -> Option<usize> {
        let buffers = self.layout.piggybacks + LINE_SIZE;
        let start = buffers + node as usize * PIGGYBACKS_SIZE + way as usize * LINE_SIZE;
        (node < self.layout.limits.nodes).then_some(start)
    }

    /// The tick line of a slot that exists.
    pub fn tick(&self, slot: u32) -> &AtomicU64 {
        self.map.long(self.layout.ticks + slot as usize * LINE_SIZE)
    }
}

fn map_halves(
    [agent, clients]: [BorrowedFd<'_>; 2],
    layout: &Layout,
    access: Access,
) -> Result<SharedMap, TableError> {
    let agent = (agent, layout.clients, access);
    let clients = (clients, layout.size - layout.clients);
    SharedMap::map_in_a_row(agent, clients).map_err(system("map the state table"))
}

pub(super) fn system(what: &'static str) -> impl FnOnce(std::io::Error) -> TableError {
    move |cause| TableError::System { what, cause }
}
