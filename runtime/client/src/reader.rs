//! `Reader` is a position among the events, over all state tables of a client.

use super::tables::StateTables;
use muster_shm::{Cause, Cursor, Event, EventKind, TableView};

/// The position of a reader.
#[derive(Debug)]
pub(super) struct Reader {
    cursor: Cursor,
    /// The index of the state table that the cursor belongs to.
    table: usize,
    /// An `Outcast` event from before this reader came to its state table, which must be returned.
    before: Option<Event>,
}

impl Reader {
    /// A reader of the events that are written from now on, in the first state table.
    pub(super) fn new(table: &TableView) -> Self {
        Self {
            cursor: table.cursor(),
            table: 0,
            before: None,
        }
    }

    /// The next event. Another state table is an overflow with no lost events: its states include the events before.
    /// Only the verdict of the other nodes on this one (`Outcast`) is in no state, so it is returned afterwards.
    pub(super) fn next(&mut self, tables: &StateTables) -> Option<Event> {
        let (index, table) = tables.latest();
        if self.table == index {
            return self
                .before
                .take()
                .or_else(|| table.next_event(&mut self.cursor));
        }
        self.table = index;
        self.cursor = table.first_cursor();
        let earlier = std::iter::from_fn(|| table.next_event(&mut self.cursor));
        self.before = earlier
            .take(table.limits().events as usize)
            .filter(|event| event.kind == EventKind::Outcast)
            .last();
        Some(Event::new(EventKind::Overflow, Cause::NewAgent))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_shm::{TableLimits, TableWriter};

    /// The agent learned that its node was declared failed before its first client attached.
    #[test]
    fn an_outcast_event_is_kept_when_the_state_table_changes() {
        let limits = TableLimits {
            nodes: 4,
            ranks: 8,
            slots: 4,
            events: 16,
        };
        let [mut first, mut second] = [0; 2].map(|_| TableWriter::create(limits).unwrap());
        let tables = StateTables::new(first.view());
        let mut reader = Reader::new(&first.view());
        let kinds = |reader: &mut Reader| -> Vec<EventKind> {
            std::iter::from_fn(|| reader.next(&tables))
                .map(|event| event.kind)
                .collect()
        };
        first.push_event(&Event::new(EventKind::NodeUp, Cause::Joined));
        assert_eq!(kinds(&mut reader), [EventKind::NodeUp]);
        for kind in [EventKind::NodeUp, EventKind::Outcast, EventKind::NodeUp] {
            second.push_event(&Event::new(kind, Cause::Unspecified));
        }
        assert!(tables.replace(second.view()));
        assert_eq!(
            kinds(&mut reader),
            [EventKind::Overflow, EventKind::Outcast]
        );
        second.push_event(&Event::new(EventKind::RankUp, Cause::Joined));
        assert_eq!(kinds(&mut reader), [EventKind::RankUp]);
    }
}
