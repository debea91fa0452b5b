//! What will happen, earliest first; of two at the same time, what was caused first.
//!
//! The heap holds a few integers per entry; the bytes of datagrams are in buffers that are used again. A node
//! has one alarm, which is set anew nearly every time the node handles something. Only one heap entry
//! represents it, at the earliest time requested, and is put back when it comes up too early.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use muster_protocol::{Class, Instant};

use super::NodeIndex;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Happening {
    Alarm(u32),
    Arrival(u32, BufferId, Class),
    /// A CPU is free for the next datagram.
    Turn(u32),
    Continue(u32),
    /// A slow or busy node handles a wake-up.
    LateWake(u32),
    /// The outsider replays a frame.
    Play,
}

/// The buffer of a datagram's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct BufferId(u32);

/// Buffers kept for later datagrams, at most. A storm may need more, but they are not kept.
const BUFFERS_MAX: usize = 4096;

/// A position in time: when, and how many entries were caused before.
type Position = (Instant, u64);

/// A node's alarm: the time it was last set to, and the heap entry that represents it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Alarm {
    set: Position,
    entry: Option<Position>,
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
    /// Disables the alarm.
    pub(super) fn stop(&mut self) {
        self.set = (Instant::NEVER, 0);
    }
}

#[derive(Debug, Default)]
pub(super) struct Queue {
    heap: BinaryHeap<Reverse<(Instant, u64, Happening)>>,
    order: u64,
    buffers: Vec<Vec<u8>>,
    free: Vec<BufferId>,
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

    /// Stores the bytes of a datagram until `take`.
    pub(super) fn store(&mut self, bytes: &[u8]) -> BufferId {
        let buffer_id = self.free.pop().unwrap_or_else(|| {
            self.buffers.push(Vec::new());
            BufferId(self.buffers.len() as u32 - 1)
        });
        self.buffers[buffer_id.0 as usize].extend_from_slice(bytes);
        buffer_id
    }

    /// Takes the bytes of a datagram. Give the buffer back with `recycle` after reading.
    pub(super) fn take(&mut self, buffer_id: BufferId) -> Vec<u8> {
        core::mem::take(&mut self.buffers[buffer_id.0 as usize])
    }

    pub(super) fn recycle(&mut self, buffer_id: BufferId, mut buffer: Vec<u8>) {
        if self.free.len() < BUFFERS_MAX {
            buffer.clear();
            self.buffers[buffer_id.0 as usize] = buffer;
        }
        self.free.push(buffer_id);
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

    /// An entry of a node's alarm came up. Returns whether the alarm fires.
    pub(super) fn fires(&mut self, alarm: &mut Alarm, node: NodeIndex, entry: Position) -> bool {
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

    /// However often it is set, an alarm fires once, at the last time it was set to.
    #[test]
    fn an_alarm_fires_at_the_last_time_it_was_set_to() {
        let (mut queue, mut alarm) = (Queue::default(), Alarm::default());
        for at in [50, 70, 30, 90, 60] {
            queue.set(&mut alarm, 7, Instant(at));
        }
        let mut rang = Vec::new();
        while let Some((at, order, happening)) = queue.pop() {
            assert_eq!(happening, Happening::Alarm(7));
            if queue.fires(&mut alarm, 7, (at, order)) {
                rang.push(at);
            }
        }
        assert_eq!(rang, [Instant(60)]);
    }

    #[test]
    fn a_buffer_returns_what_was_stored_and_is_used_again() {
        let mut queue = Queue::default();
        let first = queue.store(b"first");
        let second = queue.store(b"second");
        let bytes = queue.take(first);
        assert_eq!(bytes, b"first");
        queue.recycle(first, bytes);
        assert_eq!(queue.store(b"third"), first);
        assert_eq!(queue.take(second), b"second");
    }
}
