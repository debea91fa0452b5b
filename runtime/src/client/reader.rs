//! A reader's place among the events, over all boards that a client sees.

use super::boards::Boards;
use crate::board::{BoardView, Cause, Cursor, Event, EventKind};

/// Where a reader is.
#[derive(Debug)]
pub(super) struct Reader {
    cursor: Cursor,
    /// The number of the board that it belongs to.
    board: usize,
    /// What another agent had told before this reader came to its board, and must not be missed.
    before: Option<Event>,
}

impl Reader {
    /// One that sees what is written from now on, on the first board.
    pub(super) fn new(board: &BoardView) -> Self {
        Self {
            cursor: board.cursor(),
            board: 0,
            before: None,
        }
    }

    /// The next event. Another board is an overflow with nothing lost: what was told there before is in its
    /// states, but for the verdict of the others on this node, of which no state speaks.
    pub(super) fn next(&mut self, boards: &Boards) -> Option<Event> {
        let (index, board) = boards.latest();
        if self.board == index {
            return self
                .before
                .take()
                .or_else(|| board.next_event(&mut self.cursor));
        }
        self.board = index;
        self.cursor = board.first_cursor();
        let told = std::iter::from_fn(|| board.next_event(&mut self.cursor));
        self.before = told
            .take(board.limits().events as usize)
            .filter(|event| event.kind == EventKind::Outcast)
            .last();
        Some(Event::new(EventKind::Overflow, Cause::NewAgent))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::board::{BoardLimits, BoardWriter};

    /// The agent was told that its node was buried before its first client was there.
    #[test]
    fn a_verdict_on_the_node_is_not_missed_with_another_board() {
        let limits = BoardLimits {
            nodes: 4,
            ranks: 8,
            slots: 4,
            events: 16,
        };
        let [mut first, mut second] = [0; 2].map(|_| BoardWriter::create(limits).unwrap());
        let boards = Boards::new(first.view());
        let mut reader = Reader::new(&first.view());
        let kinds = |reader: &mut Reader| -> Vec<EventKind> {
            std::iter::from_fn(|| reader.next(&boards))
                .map(|event| event.kind)
                .collect()
        };
        first.push_event(&Event::new(EventKind::NodeUp, Cause::Joined));
        assert_eq!(kinds(&mut reader), [EventKind::NodeUp]);
        for kind in [EventKind::NodeUp, EventKind::Outcast, EventKind::NodeUp] {
            second.push_event(&Event::new(kind, Cause::Unspecified));
        }
        assert!(boards.replace(second.view()));
        assert_eq!(
            kinds(&mut reader),
            [EventKind::Overflow, EventKind::Outcast]
        );
        second.push_event(&Event::new(EventKind::RankUp, Cause::Joined));
        assert_eq!(kinds(&mut reader), [EventKind::RankUp]);
    }
}
