//! The event ring: one writer that never waits, and readers that detect when they were lapped.
//!
//! The writer overwrites the oldest entry. A reader sees from the stamp that its entry is gone and reports how many
//! events it lost.
//!
//! A stamp of `2n+1` means "event n is being written", `2n+2` means "event n is complete". The reader loads the
//! fields between two loads of the stamp (a seqlock). The head moves after the entry is complete. A writer that ends
//! during a write therefore leaves nothing that a reader would load, and its successor writes the same number again.
//!
//! A lapped reader continues half a ring behind the writer: far enough not to be lapped again at once, near enough
//! that the latest causes are kept. The states in the state table are written before the events that report them, so
//! a process that reads the states after an overflow has missed nothing.

use std::sync::atomic::{Ordering, fence};

use super::core::StateTable;
use super::event::{Cause, EVENT_FIELDS, Event, EventKind};

impl StateTable {
    /// Writes the next event and returns its number. Only the one writer may call it.
    pub(super) fn push(&self, event: &Event) -> u64 {
        let sequence = self.head().load(Ordering::Relaxed);
        let (stamp, start) = self.entry(sequence);
        stamp.store(sequence.wrapping_mul(2).wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        for (index, field) in event.encode().into_iter().enumerate() {
            self.map
                .long(start + index * 8)
                .store(field, Ordering::Relaxed);
        }
        stamp.store(sequence.wrapping_mul(2).wrapping_add(2), Ordering::Release);
        self.head()
            .store(sequence.wrapping_add(1), Ordering::Release);
        sequence
    }

    /// The fields of event `sequence`, `None` if they are overwritten or being overwritten.
    fn entry_fields(&self, sequence: u64) -> Option<[u64; EVENT_FIELDS]> {
        let (stamp, start) = self.entry(sequence);
        let complete = sequence.wrapping_mul(2).wrapping_add(2);
        if stamp.load(Ordering::Acquire) != complete {
            return None;
        }
        let fields =
            std::array::from_fn(|index| self.map.long(start + index * 8).load(Ordering::Relaxed));
        fence(Ordering::Acquire);
        (stamp.load(Ordering::Relaxed) == complete).then_some(fields)
    }
}

/// A reader's position in the event ring, in the reader's own memory.
#[derive(Debug, Clone)]
pub struct Cursor {
    next: u64,
    lost: u64,
}

impl Cursor {
    /// A cursor for the events that are written from now on.
    pub(super) fn at_head(table: &StateTable) -> Self {
        Self {
            next: table.head().load(Ordering::Acquire),
            lost: 0,
        }
    }

    /// A cursor for all events that are still in the ring.
    pub(super) fn at_start() -> Self {
        Self { next: 0, lost: 0 }
    }

    /// Number of the next event.
    pub fn position(&self) -> u64 {
        self.next
    }

    /// Number of events that this cursor has lost since its creation.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    pub(super) fn next(&mut self, table: &StateTable) -> Option<Event> {
        let head = table.head().load(Ordering::Acquire);
        if self.next == head {
            return None;
        }
        let behind = head.wrapping_sub(self.next);
        if behind > u64::MAX / 2 {
            // The head goes back only if its memory is corrupted: the number of lost events is not known.
            self.next = head;
            return Some(self.overflow(head, 0));
        }
        if behind <= u64::from(table.layout.limits.events)
            && let Some(fields) = table.entry_fields(self.next)
        {
            let sequence = self.next;
            self.next = sequence.wrapping_add(1);
            // Only corruption of the state table makes an entry that is not an event.
            let event = Event::decode(&fields, sequence);
            return Some(event.unwrap_or_else(|| self.overflow(sequence, 1)));
        }
        Some(self.lapped(table))
    }

    /// Continues half a ring behind the writer and returns an event with the number of skipped events.
    fn lapped(&mut self, table: &StateTable) -> Event {
        let head = table.head().load(Ordering::Acquire);
        let kept = u64::from(table.layout.limits.events) / 2;
        let from = self.next;
        // A cursor within the kept half whose entry is unreadable (a corrupted stamp) skips one.
        let oldest = head.wrapping_sub(kept);
        let ahead = oldest.wrapping_sub(from);
        let lost = if ahead == 0 || ahead > u64::MAX / 2 {
            1
        } else {
            ahead
        };
        self.next = from.wrapping_add(lost);
        self.overflow(from, lost)
    }

    fn overflow(&mut self, sequence: u64, lost: u64) -> Event {
        self.lost = self.lost.wrapping_add(lost);
        Event {
            sequence,
            lost,
            ..Event::new(EventKind::Overflow, Cause::Unspecified)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use proptest::prelude::*;

    use super::*;
    use crate::TableLimits;
    use crate::TableView;
    use crate::TableWriter;

    /// An event all of whose fields follow from its number, so that a torn one is detected.
    fn numbered(sequence: u64) -> Event {
        let part = sequence.wrapping_mul(0x9e37_79b9) as u32;
        let mut event = Event::new(EventKind::RankFailed, Cause::KernelFutex);
        (event.node, event.rank, event.code) = (part, part ^ 1, part as i32 ^ 2);
        (event.silent_us, event.reporter_count) = (part ^ 3, part ^ 4);
        event.reporters = [part ^ 5, part ^ 6, part ^ 7];
        (event.at_ns, event.sequence) = (sequence.wrapping_mul(3), sequence);
        event
    }

    fn table(events: u32) -> TableWriter {
        let limits = TableLimits {
            nodes: 4,
            ranks: 4,
            slots: 1,
            events,
        };
        TableWriter::create(limits).unwrap()
    }

    /// Reads all events in the ring. Checks that every event is whole and in order, and that the number of missing
    /// events is reported exactly.
    fn read_all(view: &TableView, cursor: &mut Cursor, expected: &mut u64) -> u64 {
        let mut lost = 0;
        while let Some(event) = view.next_event(cursor) {
            assert_eq!(event.sequence, *expected);
            if event.kind == EventKind::Overflow {
                assert!(event.lost > 0);
                lost += event.lost;
                *expected += event.lost;
            } else {
                assert_eq!(event, numbered(*expected));
                *expected += 1;
            }
            assert_eq!(cursor.position(), *expected);
        }
        lost
    }

    proptest! {
        #[test]
        fn lost_events_are_counted_exactly(bursts in prop::collection::vec(0u64..100, 1..20)) {
            let mut writer = table(16);
            let view = writer.view();
            let (mut cursor, mut expected, mut written) = (view.cursor(), 0, 0);
            for burst in bursts {
                for _ in 0..burst {
                    writer.push_event(&numbered(written));
                    written += 1;
                }
                let lost = read_all(&view, &mut cursor, &mut expected);
                prop_assert_eq!(expected, written);
                prop_assert_eq!(lost, if burst > 16 { burst - 8 } else { 0 });
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(12))]
        #[test]
        fn no_reader_sees_a_torn_or_misplaced_event(
            power in 4u32..8, readers in 1usize..4, total in 1000u64..60_000,
        ) {
            let mut writer = table(1 << power);
            let done = AtomicBool::new(false);
            std::thread::scope(|scope| {
                for _ in 0..readers {
                    let (view, done) = (writer.view(), &done);
                    let mut cursor = view.cursor();
                    scope.spawn(move || {
                        let (mut expected, mut lost) = (0, 0);
                        while !done.load(Ordering::Acquire) {
                            lost += read_all(&view, &mut cursor, &mut expected);
                        }
                        lost += read_all(&view, &mut cursor, &mut expected);
                        assert_eq!((expected, lost), (total, cursor.lost()));
                    });
                }
                (0..total).for_each(|sequence| {
                    writer.push_event(&numbered(sequence));
                });
                done.store(true, Ordering::Release);
            });
        }
    }

    /// The reader reports the corruption once and continues from there.
    #[test]
    fn a_reader_recovers_from_a_corrupted_head() {
        let mut writer = table(16);
        let view = writer.view();
        let mut cursor = view.cursor();
        (0..5).for_each(|sequence| _ = writer.push_event(&numbered(sequence)));
        assert_eq!(
            std::iter::from_fn(|| view.next_event(&mut cursor)).count(),
            5
        );
        view.table().head().store(2, Ordering::Relaxed);
        let overflow = view.next_event(&mut cursor).map(|event| event.kind);
        assert_eq!(overflow, Some(EventKind::Overflow));
        assert_eq!(view.next_event(&mut cursor), None);
        writer.push_event(&numbered(2));
        assert_eq!(view.next_event(&mut cursor), Some(numbered(2)));
    }

    #[test]
    fn a_partly_written_event_is_not_visible() {
        let mut writer = table(16);
        let view = writer.view();
        let mut cursor = view.cursor();
        // A partly written entry: its stamp is odd and the head has not moved.
        view.table().entry(0).0.store(1, Ordering::Relaxed);
        assert_eq!(view.next_event(&mut cursor), None);
        writer.push_event(&numbered(0));
        assert_eq!(view.next_event(&mut cursor), Some(numbered(0)));
    }
}
