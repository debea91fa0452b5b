//! A reader's place among the events, over all boards that a client sees.

use super::tables::Boards;
use muster_shm::{Cause, Cursor, Event, EventKind, TableView};

/// Where a reader is.
#[derive(Debug)]
pub(super) struct Reader {
    cursor: Cursor,
    /// The number of the board that it belongs to.
    table: usize,
    /// What another agent had told before this reader came to its board, and must not be missed.
    before: Option<Event>,
}

impl Reader {
    /// One that sees what is written from now on, on the first board.
    pub(super) fn new(table: &TableView) -> Self {
        Self {
            cursor: table.cursor(),
            table: 0,
            before: None,
        }
    }

    /// The next event. Another board is an overflow with nothing lost: what was told there before is in its
    /// states, but for the verdict of the others on this node, of which no state speaks.
    pub(super) fn next(&mut self, tables: &Boards) -> Option<Event> {
        let (index, table) = tables.latest();
        if self.table == index {
            return self
                .before
                .take()
                .or_else(|| table.next_event(&mut self.cursor));
        }
        self.table = index;
        self.cursor = table.first_cursor();
        let told = std::iter::from_fn(|| table.next_event(&mut self.cursor));
        self.before = told
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

    /// The agent was told that its node was buried before its first client was there.
    #[test]
    fn a_verdict_on_the_node_is_not_missed_with_another_board() {
        let limits = TableLimits {
            nodes: 4,
            ranks: 8,
            slots: 4,
            events: 16,
        };
        let [mut first, mut second] = [0; 2].map(|_| TableWriter::create(limits).unwrap());
        let tables = Boards::new(first.view());
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
