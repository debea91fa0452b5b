//! The layout of the state table: one function computes all offsets from the limits, for both sides.
//!
//! No offset is ever read from the state table. The header states the limits of nodes, ranks, slots and events, and
//! all offsets follow from them.

use super::TableError;

/// The number of the layout. Every change of an offset or of a meaning increments it.
pub const LAYOUT_VERSION: u32 = 7;
/// "MUSTERBD", read as a little-endian number.
pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"MUSTERBD");

/// Bytes of a node's name, with the NUL at its end.
pub(super) const NAME_SIZE: usize = 64;
/// The longest node name, in bytes.
pub const NODE_NAME_MAX: usize = NAME_SIZE - 1;
/// Bytes of a group's name, with the NUL at its end.
pub(super) const GROUP_SIZE: usize = 32;
/// Bytes of a zone's name, with the NUL at its end.
pub(super) const ZONE_SIZE: usize = 192;
/// The longest name of a zone, in bytes: a path of three parts of 63 bytes each.
pub const ZONE_NAME_MAX: usize = ZONE_SIZE - 1;
/// Bytes of a ring entry: its stamp and the fields of the event.
pub(super) const ENTRY_SIZE: usize = 64;
/// Bytes of a line that one process writes: two cache lines, since some prefetchers fetch two together. A slot has
/// one line that the agent writes and one that its client writes.
pub(super) const LINE_SIZE: usize = 128;
/// Bytes of a node's traffic stamps: when a message was received from it, and when one was sent to it.
pub(super) const STAMPS_SIZE: usize = 16;
/// Bytes of a node's piggyback buffers: one for bytes to that node, one for bytes from it.
pub(super) const PIGGYBACKS_SIZE: usize = 2 * LINE_SIZE;
const PAGE_SIZE: usize = 4096;
/// Both halves start on a page boundary of any machine, because each is a mapping of its own.
const HALF_ALIGNMENT: usize = 65536;

/// Offsets of the header's fields. The first line never changes after creation.
pub(super) mod header {
    pub(crate) const MAGIC: usize = 0;
    pub(crate) const VERSION: usize = 8;
    pub(crate) const NODES: usize = 12;
    pub(crate) const RANKS: usize = 16;
    pub(crate) const SLOTS: usize = 20;
    pub(crate) const EVENTS: usize = 24;
    pub(crate) const SIZE: usize = 32;
    pub(crate) const IDENTITY: usize = 40;
    // Second line: what the agent changes rarely.
    pub(crate) const GENERATION: usize = 128;
    pub(crate) const NODE_COUNT: usize = 132;
    pub(crate) const RANK_COUNT: usize = 136;
    pub(crate) const OWN_NODE: usize = 140;
    pub(crate) const EPOCH: usize = 144;
    pub(crate) const ZONE_COUNT: usize = 152;
    // Third line: number of events ever written.
    pub(crate) const HEAD: usize = 256;
}

/// The limits of a state table. Unused room takes address space, not memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TableLimits {
    /// Nodes of the job, 1..=2097152.
    pub nodes: u32,
    /// Ranks of the job, 1..=16777216.
    pub ranks: u32,
    /// Processes of this node that are attached at one time, 1..=4096.
    pub slots: u32,
    /// Events that a slow reader may lag behind, a power of two, 16..=65536.
    pub events: u32,
}

impl Default for TableLimits {
    /// Limits for a job of 65536 nodes and 4 million ranks, 1024 of them on this node.
    fn default() -> Self {
        Self {
            nodes: 1 << 16,
            ranks: 1 << 22,
            slots: 1024,
            events: 4096,
        }
    }
}

impl TableLimits {
    /// Most zones. A zone of one node becomes part of another one, so there are at most half as many as nodes.
    pub(super) fn zones(self) -> u32 {
        self.nodes.div_ceil(2)
    }
}

/// Offsets of the fields at the start of the clients' half, from that start.
pub(super) mod clients {
    /// Incremented with the epoch; the futex on which processes wait for a change.
    pub(crate) const CHANGED: usize = 0;
}

/// Offsets of the regions, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(super) limits: TableLimits,
    pub(super) node_states: usize,
    pub(super) rank_states: usize,
    pub(super) rank_nodes: usize,
    pub(super) names: usize,
    pub(super) groups: usize,
    pub(super) group_events: usize,
    pub(super) zone_names: usize,
    pub(super) node_zones: usize,
    pub(super) event_ring: usize,
    /// The agent's lines of the slots.
    pub(super) facts: usize,
    /// Start of the clients' half. Below it, only the agent writes.
    pub(super) clients: usize,
    /// The clients' lines of the slots.
    pub(super) lines: usize,
    pub(super) ticks: usize,
    pub(super) traffic: usize,
    /// A line with the counter of all nodes, then the buffers.
    pub(super) piggybacks: usize,
    pub(super) size: usize,
}

impl Layout {
    pub(super) fn new(limits: TableLimits) -> Result<Self, TableError> {
        within("nodes", limits.nodes, 1, 1 << 21)?;
        within("ranks", limits.ranks, 1, 1 << 24)?;
        within("slots", limits.slots, 1, 4096)?;
        within("events", limits.events, 16, 1 << 16)?;
        if !limits.events.is_power_of_two() {
            let value = u64::from(limits.events);
            let most = value.next_power_of_two();
            return Err(TableError::Limit {
                what: "events (a power of two)",
                value,
                least: most / 2,
                most,
            });
        }
        let mut end = PAGE_SIZE;
        let mut region = |size: usize, alignment: usize| {
            let start = end;
            end = (end + size).next_multiple_of(alignment);
            start
        };
        let [nodes, ranks] = [limits.nodes as usize, limits.ranks as usize];
        let [slots, events] = [limits.slots as usize, limits.events as usize];
        Ok(Self {
            limits,
            node_states: region(nodes, PAGE_SIZE),
            rank_states: region(ranks, PAGE_SIZE),
            rank_nodes: region(ranks * 4, PAGE_SIZE),
            names: region(nodes * NAME_SIZE, PAGE_SIZE),
            groups: region(nodes * GROUP_SIZE, PAGE_SIZE),
            group_events: region(nodes * 8, PAGE_SIZE),
            zone_names: region(limits.zones() as usize * ZONE_SIZE, PAGE_SIZE),
            node_zones: region(nodes * 4, PAGE_SIZE),
            event_ring: region(events * ENTRY_SIZE, PAGE_SIZE),
            facts: region(slots * LINE_SIZE, HALF_ALIGNMENT),
            clients: region(LINE_SIZE, PAGE_SIZE),
            lines: region(slots * LINE_SIZE, PAGE_SIZE),
            ticks: region(slots * LINE_SIZE, PAGE_SIZE),
            traffic: region(nodes * STAMPS_SIZE, PAGE_SIZE),
            piggybacks: region(LINE_SIZE + nodes * PIGGYBACKS_SIZE, HALF_ALIGNMENT),
            size: end,
        })
    }
}

fn within(what: &'static str, value: u32, least: u64, most: u64) -> Result<(), TableError> {
    let value = u64::from(value);
    if (least..=most).contains(&value) {
        return Ok(());
    }
    Err(TableError::Limit {
        what,
        value,
        least,
        most,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_region_shares_a_page_with_another() {
        let layout = Layout::new(TableLimits {
            nodes: 1,
            ranks: 1,
            slots: 1,
            events: 16,
        })
        .unwrap();
        let starts = [
            0,
            layout.node_states,
            layout.rank_states,
            layout.rank_nodes,
            layout.names,
            layout.groups,
            layout.group_events,
            layout.zone_names,
            layout.node_zones,
            layout.event_ring,
            layout.facts,
            layout.clients,
            layout.lines,
            layout.ticks,
            layout.traffic,
            layout.piggybacks,
        ];
        for pair in starts.windows(2) {
            assert!(pair[1] - pair[0] >= PAGE_SIZE && pair[1].is_multiple_of(PAGE_SIZE));
        }
        let halves = [layout.clients, layout.size - layout.clients];
        assert_eq!(halves, [HALF_ALIGNMENT; 2]);
    }

    #[test]
    fn limits_out_of_range_are_refused() {
        let good = TableLimits::default();
        assert!(Layout::new(good).is_ok());
        assert!(Layout::new(TableLimits { slots: 0, ..good }).is_err());
        assert!(Layout::new(TableLimits { events: 48, ..good }).is_err());
        assert!(
            Layout::new(TableLimits {
                ranks: u32::MAX,
                ..good
            })
            .is_err()
        );
    }
}
