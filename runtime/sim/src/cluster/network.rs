//! BG-06: wormhole routing of messages through the crossbars.
//!
//! A message takes the wires of its route one after the other, each exclusively, and holds all of them until
//! its tail has passed. A taken wire stops the head, and the flits behind it stay where they are, since the
//! buffers between (96 flits, stop at 56) are far smaller than a message. A busy wire in the middle thus
//! blocks wires that have capacity, which makes traffic across the machine slow long before the wires are
//! full.

use std::collections::VecDeque;

use super::topology::Wire;

/// Nanoseconds per byte at 160 MB/s.
const BYTE_NS: f64 = 6.25;
/// Time for a crossbar to let a head through, in nanoseconds. The paper does not give it; assumed.
const CROSSBAR_NS: u64 = 100;
/// Delay of a wire of 5 m at 1.8e8 m/s; the local ones of 1 m take 6 ns.
const WIRE_NS: u64 = 28;
/// Time of a head from one wire to the next.
const HOP_NS: u64 = CROSSBAR_NS + WIRE_NS;

/// A message under way, by its number.
pub(super) type MessageId = usize;

#[derive(Debug)]
pub(super) struct Message {
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) bytes: u64,
    /// The gossip that it carries.
    pub(super) gossip: Option<Box<[u8]>>,
    pub(super) way: Vec<Wire>,
    taken: usize,
}

#[derive(Debug, Default)]
struct Channel {
    is_taken: bool,
    waiting: VecDeque<MessageId>,
}

/// The next step of a message, which the world runs at its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Step {
    /// The head waits for its next wire.
    Head(MessageId),
    /// The tail has passed this wire.
    Release(Wire),
    /// The tail is at its destination.
    Arrived(MessageId),
}

/// All wires and what is on them.
#[derive(Debug)]
pub(super) struct Wires {
    channels: Vec<Channel>,
    messages: Vec<Option<Message>>,
    free: Vec<MessageId>,
}

impl Wires {
    pub(super) fn new(count: usize) -> Self {
        Self {
            channels: (0..count).map(|_| Channel::default()).collect(),
            messages: Vec::new(),
            free: Vec::new(),
        }
    }

    /// Starts a message at its sender.
    pub(super) fn send(
        &mut self,
        (from, to): (usize, usize),
        way: Vec<Wire>,
        bytes: u64,
        gossip: Option<Box<[u8]>>,
    ) -> MessageId {
        let message = Message {
            from,
            to,
            bytes,
            gossip,
            way,
            taken: 0,
        };
        match self.free.pop() {
            Some(id) => {
                self.messages[id] = Some(message);
                id
            }
            None => {
                self.messages.push(Some(message));
                self.messages.len() - 1
            }
        }
    }

    /// Moves the head one step, and schedules what follows.
    pub(super) fn head(&mut self, id: MessageId, mut later: impl FnMut(u64, Step)) {
        let Some(message) = &mut self.messages[id] else {
            return;
        };
        let length = message.way.len();
        if message.taken == length {
            // The whole message follows its head without a stop.
            let tail_ns = (message.bytes as f64 * BYTE_NS) as u64;
            for (place, wire) in message.way.iter().enumerate() {
                let ahead_ns = (length - place) as u64 * HOP_NS;
                later(tail_ns.saturating_sub(ahead_ns), Step::Release(*wire));
            }
            later(tail_ns, Step::Arrived(id));
            return;
        }
        let channel = &mut self.channels[message.way[message.taken] as usize];
        if channel.is_taken {
            channel.waiting.push_back(id);
            return;
        }
        channel.is_taken = true;
        message.taken += 1;
        later(HOP_NS, Step::Head(id));
    }

    /// Frees a wire: the message that has waited longest takes it.
    pub(super) fn release(&mut self, wire: Wire, mut later: impl FnMut(u64, Step)) {
        let channel = &mut self.channels[wire as usize];
        channel.is_taken = false;
        if let Some(id) = channel.waiting.pop_front() {
            later(0, Step::Head(id));
        }
    }

    /// Takes an arrived message off the wires.
    pub(super) fn arrived(&mut self, id: MessageId) -> Option<Message> {
        let message = self.messages[id].take()?;
        self.free.push(id);
        Some(message)
    }

    /// Number of messages that have not arrived.
    pub(super) fn under_way(&self) -> usize {
        self.messages.len() - self.free.len()
    }
}
