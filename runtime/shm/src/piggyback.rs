//! Piggybacks: bytes of the agents that ranks carry to each other in messages of their own (BG-03).
//!
//! Each node has two buffers in the state table. Buffer `To`: the agent puts a beat for that node into it, and the
//! first rank that sends a message there anyway takes the beat along. Buffer `From`: a rank puts into it what a
//! message from that node brought, and the agent collects it. The bytes are authenticated, so no rank has to be
//! trusted with them.
//!
//! ```text
//! a buffer, 128 bytes:  0 state   8 when a rank last wanted a piggyback (buffer `To`)   16 bytes
//! state:                microseconds << 16 | length << 8 | phase
//! ```
//! The state includes the time of its creation, so every state differs from the one before, and a rank that ended
//! while it filled a buffer is detected. No side ever waits: a buffer in an unexpected phase is left as it is, and
//! the bytes that it should have received are lost and counted.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use super::core::StateTable;
use super::{TableView, TableWriter, TrafficStamp};
use muster_sys::clock::monotonic_ns;

/// Bytes of the longest piggyback.
pub const PIGGYBACK_MAX: usize = 112;
const HEADER_SIZE: usize = 16;
const _: () = assert!(HEADER_SIZE + PIGGYBACK_MAX == super::layout::LINE_SIZE);
/// A rank that fills a buffer for longer than this has ended or is stopped.
const FILLING_MAX_NS: u64 = 1_000_000_000;

const EMPTY: u64 = 0;
const FILLING: u64 = 1;
const FULL: u64 = 2;
const TAKEN: u64 = 3;

fn state(phase: u64, length: usize, at_us: u64) -> u64 {
    at_us << 16 | (length as u64) << 8 | phase
}

fn phase(state: u64) -> u64 {
    state & 0xff
}

/// At most the size of the buffer, even if the state is corrupted.
fn length(state: u64) -> usize {
    (state >> 8 & 0xff).min(PIGGYBACK_MAX as u64) as usize
}

fn at_ns(state: u64) -> u64 {
    (state >> 16) * 1000
}

/// A buffer in a state table.
#[derive(Clone, Copy)]
struct PiggybackBuffer<'a> {
    table: &'a StateTable,
    start: usize,
}

impl<'a> PiggybackBuffer<'a> {
    #[inline]
    fn find(table: &'a StateTable, node: u32, way: TrafficStamp) -> Option<Self> {
        let start = table.piggyback(node, way)?;
        Some(Self { table, start })
    }

    fn state(self) -> &'a AtomicU64 {
        self.table.map.long(self.start)
    }

    fn wanted(self) -> &'a AtomicU64 {
        self.table.map.long(self.start + 8)
    }

    fn write(self, bytes: &[u8]) {
        for (index, chunk) in bytes.chunks(8).enumerate() {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            let at = self.start + HEADER_SIZE + index * 8;
            let long = self.table.map.long(at);
            long.store(u64::from_ne_bytes(word), Ordering::Relaxed);
        }
    }

    fn read(self, bytes: &mut [u8]) {
        for (index, chunk) in bytes.chunks_mut(8).enumerate() {
            let at = self.start + HEADER_SIZE + index * 8;
            let word = self.table.map.long(at).load(Ordering::Relaxed);
            chunk.copy_from_slice(&word.to_ne_bytes()[..chunk.len()]);
        }
    }
}

impl TableView {
    /// Takes the piggyback for the node of this rank, if there is one, and notes that the rank wants more. Returns
    /// its number of bytes, 0 if there is none; `None` if the node of the rank is not known.
    pub fn take_piggyback(&self, rank: u32, bytes: &mut [u8; PIGGYBACK_MAX]) -> Option<usize> {
        let piggyback = PiggybackBuffer::find(&self.0, self.rank_node(rank)?, TrafficStamp::To)?;
        piggyback.wanted().store(monotonic_ns(), Ordering::Relaxed);
        let full = piggyback.state().load(Ordering::Acquire);
        if phase(full) != FULL {
            return Some(0);
        }
        let bytes = &mut bytes[..length(full)];
        piggyback.read(bytes);
        // The bytes are whole if the state is unchanged; the exchange then makes them ours alone.
        fence(Ordering::Acquire);
        let taken = full - FULL + TAKEN;
        let swap =
            piggyback
                .state()
                .compare_exchange(full, taken, Ordering::AcqRel, Ordering::Relaxed);
        Some(swap.map_or(0, |_| bytes.len()))
    }

    /// Hands over what a message from this rank brought. `Some(false)` if the last piggyback from its node was not
    /// collected yet, or this one is too long: it is lost and counted. `None` as in [`TableView::take_piggyback`].
    pub fn bring_piggyback(&self, rank: u32, bytes: &[u8]) -> Option<bool> {
        let piggyback = PiggybackBuffer::find(&self.0, self.rank_node(rank)?, TrafficStamp::From)?;
        let empty = piggyback.state().load(Ordering::Relaxed);
        let now_us = monotonic_ns() / 1000;
        let filling = state(FILLING, 0, now_us);
        let order = (Ordering::Acquire, Ordering::Relaxed);
        let exchange = |old, new, (success, failure)| {
            piggyback
                .state()
                .compare_exchange(old, new, success, failure)
                .is_ok()
        };
        let fits = bytes.len() <= PIGGYBACK_MAX && phase(empty) == EMPTY;
        let brought = fits && exchange(empty, filling, order) && {
            piggyback.write(bytes);
            let full = state(FULL, bytes.len(), now_us);
            exchange(filling, full, (Ordering::Release, Ordering::Relaxed))
        };
        if !brought {
            self.0.piggybacks_lost().fetch_add(1, Ordering::Relaxed);
        }
        Some(brought)
    }

    /// When a rank last tried to take a piggyback for this node, in nanoseconds of this node's monotonic clock; 0 if
    /// none ever did.
    pub fn piggyback_wanted_ns(&self, node: u32) -> u64 {
        let piggyback = PiggybackBuffer::find(&self.0, node, TrafficStamp::To);
        piggyback.map_or(0, |piggyback| piggyback.wanted().load(Ordering::Relaxed))
    }

    /// Number of piggybacks that were lost.
    pub fn piggybacks_lost(&self) -> u64 {
        self.0.piggybacks_lost().load(Ordering::Relaxed)
    }
}

impl TableWriter {
    /// Puts a piggyback into the buffer for this node; it replaces the one before. `false` if it is too long or there
    /// is no such node.
    pub fn offer_piggyback(&mut self, node: u32, bytes: &[u8]) -> bool {
        let piggyback = PiggybackBuffer::find(self.table(), node, TrafficStamp::To);
        let Some(piggyback) = piggyback.filter(|_| bytes.len() <= PIGGYBACK_MAX) else {
            return false;
        };
        // Later than the time before, so that no rank takes the new state for the old one.
        let before_us = piggyback.state().load(Ordering::Relaxed) >> 16;
        let now_us = (monotonic_ns() / 1000).max(before_us + 1);
        let filling = state(FILLING, 0, now_us);
        piggyback.state().store(filling, Ordering::Relaxed);
        fence(Ordering::Release);
        piggyback.write(bytes);
        let full = state(FULL, bytes.len(), now_us);
        piggyback.state().store(full, Ordering::Release);
        true
    }

    /// Empties the buffer for this node. Returns whether a rank had taken its content.
    pub fn withdraw_piggyback(&mut self, node: u32) -> bool {
        let Some(piggyback) = PiggybackBuffer::find(self.table(), node, TrafficStamp::To) else {
            return false;
        };
        let at_us = piggyback.state().load(Ordering::Relaxed) >> 16;
        let empty = state(EMPTY, 0, at_us);
        phase(piggyback.state().swap(empty, Ordering::AcqRel)) == TAKEN
    }

    /// Takes what a message from this node brought: the number of bytes, and when they arrived, in nanoseconds of the
    /// monotonic clock.
    pub fn collect_piggyback(
        &mut self,
        node: u32,
        bytes: &mut [u8; PIGGYBACK_MAX],
    ) -> Option<(usize, u64)> {
        let piggyback = PiggybackBuffer::find(self.table(), node, TrafficStamp::From)?;
        let found = piggyback.state().load(Ordering::Acquire);
        if phase(found) == EMPTY {
            return None;
        }
        let now_ns = monotonic_ns();
        let empty = state(EMPTY, 0, now_ns / 1000);
        match phase(found) {
            FILLING if now_ns.saturating_sub(at_ns(found)) < FILLING_MAX_NS => None,
            FULL => {
                piggyback.read(&mut bytes[..length(found)]);
                piggyback.state().store(empty, Ordering::Release);
                Some((length(found), at_ns(found)))
            }
            _ => {
                self.table()
                    .piggybacks_lost()
                    .fetch_add(1, Ordering::Relaxed);
                piggyback.state().store(empty, Ordering::Release);
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TableLimits;
    use std::sync::atomic::AtomicBool;

    fn table() -> (TableWriter, TableView, u32) {
        let mut table = TableWriter::create(TableLimits::default()).unwrap();
        table.add_node("n1").unwrap();
        let other = table.add_node("n2").unwrap();
        table.raise_rank_count(5);
        table.set_rank_node(4, other);
        let view = table.view();
        (table, view, other)
    }

    /// BG-03.
    #[test]
    fn a_piggyback_is_taken_once() {
        let (mut table, view, other) = table();
        let mut bytes = [0; PIGGYBACK_MAX];
        assert_eq!(
            view.take_piggyback(3, &mut bytes),
            None,
            "its node is not known"
        );
        assert_eq!(view.piggyback_wanted_ns(other), 0);
        assert_eq!(view.take_piggyback(4, &mut bytes), Some(0));
        assert!(view.piggyback_wanted_ns(other) > 0);
        assert!(table.offer_piggyback(other, b"a beat of n1"));
        assert_eq!(view.take_piggyback(4, &mut bytes), Some(12));
        assert_eq!(&bytes[..12], b"a beat of n1");
        assert_eq!(view.take_piggyback(4, &mut bytes), Some(0));
        assert!(table.withdraw_piggyback(other));
        assert!(!table.withdraw_piggyback(other));
        assert!(table.offer_piggyback(other, &[7; PIGGYBACK_MAX]));
        assert!(!table.withdraw_piggyback(other), "no rank took it");
        assert_eq!(view.take_piggyback(4, &mut bytes), Some(0));
        assert!(!table.offer_piggyback(other, &[7; PIGGYBACK_MAX + 1]));
        assert!(!table.offer_piggyback(u32::MAX, b"x"));
    }

    #[test]
    fn piggybacks_are_collected_and_losses_are_counted() {
        let (mut table, view, other) = table();
        let mut bytes = [0; PIGGYBACK_MAX];
        assert_eq!(view.bring_piggyback(3, b"x"), None);
        assert_eq!(table.collect_piggyback(other, &mut bytes), None);
        assert_eq!(view.bring_piggyback(4, b"first"), Some(true));
        assert_eq!(view.bring_piggyback(4, b"second"), Some(false));
        assert_eq!(
            view.bring_piggyback(4, &[0; PIGGYBACK_MAX + 1]),
            Some(false)
        );
        let (length, at_ns) = table.collect_piggyback(other, &mut bytes).unwrap();
        assert_eq!(&bytes[..length], b"first");
        assert!(at_ns <= monotonic_ns() && at_ns > 0);
        assert_eq!(table.collect_piggyback(other, &mut bytes), None);
        assert_eq!(view.bring_piggyback(4, &[9; PIGGYBACK_MAX]), Some(true));
        assert_eq!(
            table.collect_piggyback(other, &mut bytes).unwrap().0,
            PIGGYBACK_MAX
        );
        assert_eq!(view.piggybacks_lost(), 2);
    }

    /// A rank was killed while it filled the buffer, or the state was corrupted.
    #[test]
    fn a_buffer_in_an_invalid_state_is_emptied() {
        let (mut table, view, other) = table();
        let mut bytes = [0; PIGGYBACK_MAX];
        let piggyback = PiggybackBuffer::find(view.table(), other, TrafficStamp::From).unwrap();
        piggyback
            .state()
            .store(state(FILLING, 0, 1), Ordering::Relaxed);
        assert_eq!(view.bring_piggyback(4, b"x"), Some(false));
        assert_eq!(table.collect_piggyback(other, &mut bytes), None);
        assert_eq!(view.bring_piggyback(4, b"x"), Some(true));
        piggyback.state().store(u64::MAX, Ordering::Relaxed);
        assert_eq!(table.collect_piggyback(other, &mut bytes), None);
        assert_eq!(view.bring_piggyback(4, b"x"), Some(true));
        piggyback.state().store(0xff << 8 | FULL, Ordering::Relaxed);
        let corrupted = table.collect_piggyback(other, &mut bytes).unwrap();
        assert_eq!(corrupted, (PIGGYBACK_MAX, 0));
    }

    /// Ranks take piggybacks while the agent offers them: each is taken at most once, and whole.
    #[test]
    fn no_piggyback_is_torn_or_taken_twice() {
        let (mut table, view, other) = table();
        let done = AtomicBool::new(false);
        let (done, view) = (&done, &view);
        let taken: u64 = std::thread::scope(|scope| {
            let taker = move || {
                let (mut taken_count, mut last, mut bytes) = (0, 0, [0; PIGGYBACK_MAX]);
                while !done.load(Ordering::Acquire) {
                    if let Some(length @ 1..) = view.take_piggyback(4, &mut bytes) {
                        let first = u64::from_ne_bytes(bytes[..8].try_into().unwrap());
                        let whole = bytes[..length].chunks(8);
                        whole.for_each(|word| assert_eq!(word, first.to_ne_bytes()));
                        assert!(first > last && length == PIGGYBACK_MAX);
                        (taken_count, last) = (taken_count + 1, first);
                    }
                }
                taken_count
            };
            let takers = [(); 3].map(|()| scope.spawn(taker));
            let mut counted = 0;
            for number in 1u64..20_000 {
                let piggyback: Vec<u8> = number.to_ne_bytes().repeat(PIGGYBACK_MAX / 8);
                assert!(table.offer_piggyback(other, &piggyback));
                std::hint::spin_loop();
                counted += u64::from(table.withdraw_piggyback(other));
            }
            done.store(true, Ordering::Release);
            let taken_count: u64 = takers.map(|taker| taker.join().unwrap()).iter().sum();
            assert_eq!(taken_count, counted);
            taken_count
        });
        println!("{taken} were taken");
    }
}
