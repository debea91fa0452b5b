//! The zones of the job in the state table: a name for each base zone, and the zone of each node.
//!
//! The agent writes them before a process can attach, and they do not change. A job that is not divided has no zones
//! in the table; a reader finds one zone with all nodes, named [`ONE_ZONE`], so that no program needs a case for it.

use std::sync::atomic::Ordering;

use super::layout::{ZONE_SIZE, header};
use super::view::read_text;
use super::writer::write_text;
use super::{NodeState, TableView, TableWriter, ZONE_NAME_MAX};

/// The name of the zone of a job that is not divided.
const ONE_ZONE: &str = "/";

impl TableWriter {
    /// Writes the name of a zone, of 1..=191 bytes. Zones are written in the order of their numbers. Returns `false`
    /// and changes nothing for a name that does not fit and for a number beyond the limit.
    pub fn set_zone(&mut self, zone: u32, name: &str) -> bool {
        match self.table().zone_fields(zone) {
            Some(fields) if (1..=ZONE_NAME_MAX).contains(&name.len()) => {
                write_text::<ZONE_SIZE>(fields, name);
            }
            _ => return false,
        }
        // A reader that sees the count sees the name.
        let count = self.table().header_field(header::ZONE_COUNT);
        count.fetch_max(zone + 1, Ordering::AcqRel);
        true
    }

    /// Writes the zone of a node. Returns `false` and changes nothing for an index beyond the limit.
    pub fn set_node_zone(&mut self, node: u32, zone: u32) -> bool {
        let Some(field) = self.table().node_zone(node) else {
            return false;
        };
        field.store(zone.wrapping_add(1), Ordering::Release);
        true
    }
}

impl TableView {
    /// Number of zones in the table: 0 if the job is not divided.
    fn zones_written(&self) -> u32 {
        let count = self.table().header_field(header::ZONE_COUNT);
        let count = count.load(Ordering::Acquire);
        count.min(self.limits().zones())
    }

    /// Number of base zones of the job, at least 1; their numbers are below it, and the same on all nodes.
    pub fn zone_count(&self) -> u32 {
        self.zones_written().max(1)
    }

    /// The name of a zone: its path, `row1/rack3`. `/` in a job that is not divided. `None` for a number that is not
    /// in the state table.
    pub fn zone_name(&self, zone: u32) -> Option<String> {
        match self.zones_written() {
            0 => (zone == 0).then(|| ONE_ZONE.to_owned()),
            zones if zone < zones => self.table().zone_fields(zone).map(read_text::<ZONE_SIZE>),
            _ => None,
        }
    }

    /// The zone of a node. `None` for an index that is not in the state table, and for a node that is not in the
    /// job's list of nodes.
    pub fn node_zone(&self, node: u32) -> Option<u32> {
        if node >= self.node_count() {
            return None;
        }
        let zones = self.zones_written();
        if zones == 0 {
            return Some(0);
        }
        let field = self.table().node_zone(node)?.load(Ordering::Acquire);
        field.checked_sub(1).filter(|zone| *zone < zones)
    }

    /// The zone of the node that a rank runs on, if known.
    pub fn rank_zone(&self, rank: u32) -> Option<u32> {
        self.node_zone(self.rank_node(rank)?)
    }

    /// The nodes of a zone, in order.
    pub fn zone_nodes(&self, zone: u32) -> impl Iterator<Item = u32> + '_ {
        (0..self.node_count()).filter(move |node| self.node_zone(*node) == Some(zone))
    }

    /// Number of nodes of a zone in a state.
    pub fn zone_nodes_in_state(&self, zone: u32, state: NodeState) -> u32 {
        let nodes = self.zone_nodes(zone);
        nodes.filter(|node| self.node_state(*node) == state).count() as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TableLimits;

    fn table() -> TableWriter {
        let limits = TableLimits {
            nodes: 5,
            ranks: 1,
            slots: 1,
            events: 16,
        };
        let mut writer = TableWriter::create(limits).unwrap();
        for node in ["n1", "n2", "n3", "n4"] {
            writer.add_node(node);
        }
        writer
    }

    #[test]
    fn a_job_that_is_not_divided_is_one_zone_with_all_nodes() {
        let view = table().view();
        assert_eq!(view.zone_count(), 1);
        assert_eq!(view.zone_name(0).as_deref(), Some("/"));
        assert_eq!(view.zone_name(1), None);
        assert_eq!((view.node_zone(3), view.node_zone(4)), (Some(0), None));
        assert_eq!((view.zone_nodes(0).count(), view.rank_zone(0)), (4, None));
        assert_eq!(view.zone_nodes(1).count(), 0);
    }

    #[test]
    fn zones_and_their_nodes_are_read_back() {
        let mut writer = table();
        let view = TableView::attach(writer.descriptors()).unwrap();
        let long = ["r"; 3].map(|part| part.repeat(63)).join("/");
        assert_eq!(long.len(), ZONE_NAME_MAX);
        assert!(writer.set_zone(0, "row1/rack1") && writer.set_zone(1, &long));
        for (node, zone) in [(0, 0), (1, 1), (2, 0)] {
            assert!(writer.set_node_zone(node, zone));
        }
        writer.set_node_state(2, NodeState::Failed);
        assert_eq!(view.zone_count(), 2);
        assert_eq!(view.zone_name(0).as_deref(), Some("row1/rack1"));
        assert_eq!(view.zone_name(1), Some(long));
        assert_eq!(view.zone_name(2), None);
        // The fourth node is not in the job's list.
        let zones = [0, 1, 2, 3, 4].map(|node| view.node_zone(node));
        assert_eq!(zones, [Some(0), Some(1), Some(0), None, None]);
        assert_eq!(view.zone_nodes(0).collect::<Vec<_>>(), [0, 2]);
        let counts =
            [NodeState::Failed, NodeState::Unknown].map(|s| view.zone_nodes_in_state(0, s));
        assert_eq!(counts, [1, 1]);
        writer.set_rank_node(0, 1);
        assert_eq!((view.rank_zone(0), view.rank_zone(1)), (Some(1), None));
        // A later worker writes the same again.
        assert!(writer.set_zone(0, "row1/rack1"));
        assert_eq!(view.zone_count(), 2);
    }

    #[test]
    fn what_does_not_fit_is_refused_and_changes_nothing() {
        let mut writer = table();
        let view = writer.view();
        // Five nodes form at most three zones.
        assert!(!writer.set_zone(3, "z4") && !writer.set_zone(u32::MAX, "z"));
        assert!(!writer.set_zone(0, "") && !writer.set_zone(0, &"z".repeat(ZONE_NAME_MAX + 1)));
        assert!(!writer.set_node_zone(5, 0));
        assert_eq!(
            (view.zone_count(), view.zone_name(0).as_deref()),
            (1, Some("/"))
        );
        // A number beyond the zones is that of no zone.
        writer.set_zone(0, "z1");
        for zone in [1, u32::MAX - 1, u32::MAX] {
            writer.set_node_zone(0, zone);
            assert_eq!(view.node_zone(0), None);
        }
    }
}
