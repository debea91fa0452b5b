//! What is to happen, earliest first; of two at the same time, what was caused first.
//!
//! The heap holds a few words for each; the bytes of datagrams lie beside it and their room is
//! used again. A node has one alarm, which it sets anew nearly each time it is touched: only one
//! entry stands for it in the heap, at the earliest time asked for, and is put back when it comes
//! up too early.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use muster_protocol::{Class, Instant};

use super::NodeIndex;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Happening {
    Alarm(u32),
    Arrival(u32, Parcel, Class),
    /// A CPU is free for the next datagram.
    Turn(u32),
    Continue(u32),
    /// A slow or busy node gets to a wake-up.
    LateWake(u32),
    /// The outsider plays a frame.
    Play,
}

/// Where the bytes of a datagram lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Parcel(u32);

/// Buffers kept for later datagrams, at most; a storm may need more, but not for ever.
const BUFFERS_MAX: usize = 4096;

/// A place in time: when, and how many were caused before.
type Place = (Instant, u64);

/// A node's alarm: what it was set to last, and the entry that stands for it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Alarm {
    set: Place,
    entry: Option<Place>,
}

impl Default for Alarm {
    fn default() -> Self {
        Self {
            set: (Instant::NEVER, 0),
            entry: None,
        }
    }
}

impl Alarm {
    /// It will not ring.
    pub(super) fn stop(&mut self) {
        self.set = (Instant::NEVER, 0);
    }
}

#[derive(Debug, Default)]
pub(super) struct Queue {
    heap: BinaryHeap<Reverse<(Instant, u64, Happening)>>,
    order: u64,
    parcels: Vec<Vec<u8>>,
    free: Vec<Parcel>,
}

impl Queue {
    pub(super) fn next_at(&self) -> Option<Instant> {
        self.heap.peek().map(|Reverse((at, _, _))| *at)
    }

    pub(super) fn pop(&mut self) -> Option<(Instant, u64, Happening)> {
        self.heap.pop().map(|Reverse(next)| next)
    }

    pub(super) fn push(&mut self, at: Instant, happening: Happening) {
        self.order += 1;
        self.heap.push(Reverse((at, self.order, happening)));
    }

    /// Keeps the bytes of a datagram until they are opened.
    pub(super) fn wrap(&mut self, bytes: &[u8]) -> Parcel {
        let parcel = self.free.pop().unwrap_or_else(|| {
            self.parcels.push(Vec::new());
            Parcel(self.parcels.len() as u32 - 1)
        });
        self.parcels[parcel.0 as usize].extend_from_slice(bytes);
        parcel
    }

    /// The bytes of a datagram; give the buffer back when they are read.
    pub(super) fn open(&mut self, parcel: Parcel) -> Vec<u8> {
        core::mem::take(&mut self.parcels[parcel.0 as usize])
    }

    pub(super) fn give_back(&mut self, parcel: Parcel, mut buffer: Vec<u8>) {
        if self.free.len() < BUFFERS_MAX {
            buffer.clear();
            self.parcels[parcel.0 as usize] = buffer;
        }
        self.free.push(parcel);
    }

    /// Sets a node's alarm, in place of what it was set to before.
    pub(super) fn set(&mut self, alarm: &mut Alarm, node: NodeIndex, at: Instant) {
        if alarm.set.0 == at {
            return;
        }
        self.order += 1;
        alarm.set = (at, self.order);
        if alarm.entry.is_none_or(|entry| entry > alarm.set) {
            self.stand_for(alarm, node);
        }
    }

    /// An entry of a node's alarm came up: whether it rings.
    pub(super) fn rings(&mut self, alarm: &mut Alarm, node: NodeIndex, entry: Place) -> bool {
        if alarm.entry != Some(entry) {
            return false;
        }
        alarm.entry = None;
        if alarm.set > entry && alarm.set.0 != Instant::NEVER {
            self.stand_for(alarm, node);
        }
        alarm.set == entry
    }

    fn stand_for(&mut self, alarm: &mut Alarm, node: NodeIndex) {
        let (at, order) = alarm.set;
        alarm.entry = Some(alarm.set);
        let happening = Happening::Alarm(node as u32);
        self.heap.push(Reverse((at, order, happening)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// However often it is set, it rings once for the last time it was set to.
    #[test]
    fn an_alarm_rings_at_the_last_time_it_was_set_to() {
        let (mut queue, mut alarm) = (Queue::default(), Alarm::default());
        for at in [50, 70, 30, 90, 60] {
            queue.set(&mut alarm, 7, Instant(at));
        }
        let mut rang = Vec::new();
        while let Some((at, order, happening)) = queue.pop() {
            assert_eq!(happening, Happening::Alarm(7));
            if queue.rings(&mut alarm, 7, (at, order)) {
                rang.push(at);
            }
        }
        assert_eq!(rang, [Instant(60)]);
    }

    #[test]
    fn a_parcel_is_opened_as_it_was_wrapped_and_its_room_used_again() {
        let mut queue = Queue::default();
        let first = queue.wrap(b"first");
        let second = queue.wrap(b"second");
        let bytes = queue.open(first);
        assert_eq!(bytes, b"first");
        queue.give_back(first, bytes);
        assert_eq!(queue.wrap(b"third"), first);
        assert_eq!(queue.open(second), b"second");
    }
}
