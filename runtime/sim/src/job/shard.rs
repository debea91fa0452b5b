//! `Shard` is a part of the nodes of a job, with what will happen to them. One thread runs it.
//!
//! A datagram takes at least the shortest delay, so all shards may run for that long before they exchange datagrams.
//! What happens to a node happens in the order of time, sender and the sender's sequence. So the course does not depend
//! on how the nodes are divided.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use muster_protocol::{Input, Instant, MemberId};

use super::checks::{Facts, Told, Wrong};
use super::node::JobNode;
use crate::study::REFUSAL_US;

/// Most of what was wrong that a shard lists.
const WRONG_MAX: usize = 20;
/// The sender of wake-ups: they come after the datagrams of the same time.
const NOBODY: u32 = u32::MAX;

/// Something that will happen to a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Arrival {
    pub(super) at: Instant,
    from: u32,
    sequence: u32,
    pub(super) to: u32,
    what: What,
}

impl Arrival {
    /// Its place in the queue: the order of time, sender, sequence, receiver. Nothing else has the same one.
    const fn key(&self) -> (u64, u64, u32) {
        let sender = ((self.from as u64) << 32) | self.sequence as u64;
        (self.at.0, sender, self.to)
    }
}

impl Ord for Arrival {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key().cmp(&other.key())
    }
}

impl PartialOrd for Arrival {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum What {
    Alarm,
    Datagram(Box<[u8]>),
    /// The fabric reports that a member cannot be reached.
    Unreachable(MemberId),
    /// The fabric reports that the process of a member has ended.
    Ended(MemberId),
}

/// What a shard has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Work {
    pub(super) inputs: u64,
    pub(super) datagrams: u64,
    pub(super) bytes: u64,
}

/// A part of the nodes.
#[derive(Debug)]
pub(super) struct Shard {
    /// The number of its first node.
    pub(super) first: usize,
    pub(super) nodes: Vec<JobNode>,
    queue: BinaryHeap<Reverse<Arrival>>,
    /// For nodes of other shards.
    pub(super) leaving: Vec<Arrival>,
    /// Shortest and longest delay of a datagram.
    delay_us: (u64, u64),
    buffer: Vec<u8>,
    pub(super) work: Work,
    pub(super) wrong: Vec<Wrong>,
    /// How many of its nodes know of the present change.
    pub(super) knowing: usize,
}

impl Shard {
    pub(super) fn new(first: usize, nodes: Vec<JobNode>, delay_us: (u64, u64)) -> Self {
        Self {
            first,
            nodes,
            queue: BinaryHeap::new(),
            leaving: Vec::new(),
            delay_us,
            buffer: vec![0; 65_536],
            work: Work::default(),
            wrong: Vec::new(),
            knowing: 0,
        }
    }

    pub(super) fn has(&self, node: usize) -> bool {
        (self.first..self.first + self.nodes.len()).contains(&node)
    }

    /// When something happens next.
    pub(super) fn next_at(&self) -> Instant {
        let next = self.queue.peek();
        next.map_or(Instant::NEVER, |Reverse(arrival)| arrival.at)
    }

    pub(super) fn take(&mut self, arrival: Arrival) {
        self.queue.push(Reverse(arrival));
    }

    /// Lets everything happen that happens before a time.
    pub(super) fn run(&mut self, until: Instant, facts: &Facts) {
        while self.next_at() < until {
            let Some(Reverse(arrival)) = self.queue.pop() else {
                return;
            };
            let (at, node) = (arrival.at, arrival.to as usize);
            match arrival.what {
                What::Alarm => {
                    let entry = &mut self.nodes[node - self.first];
                    if entry.alarm == at {
                        entry.alarm = Instant::NEVER;
                        self.input(at, node, Input::Wake, facts);
                    }
                }
                What::Datagram(bytes) => {
                    self.input(at, node, Input::Datagram { bytes: &bytes }, facts);
                }
                What::Unreachable(member) => {
                    self.input(at, node, Input::Unreachable(member), facts);
                }
                What::Ended(member) => self.input(at, node, Input::Ended(member), facts),
            }
        }
    }

    /// Those of its nodes that observe a member.
    pub(super) fn observers_of(&self, member: MemberId) -> Vec<usize> {
        let nodes = self.nodes.iter().zip(self.first..);
        let observe = |(node, _): &(&JobNode, usize)| {
            let tree = node.tree.as_ref();
            tree.is_some_and(|tree| tree.observing().any(|id| id == member))
        };
        nodes.filter(observe).map(|(_, number)| number).collect()
    }

    /// The fabric reports to a node at a time that a member cannot be reached, and then that its process has ended.
    pub(super) fn report_end(&mut self, at: Instant, node: usize, member: MemberId) {
        let ended_at = at.after(REFUSAL_US);
        let reports = [
            (at, What::Unreachable(member)),
            (ended_at, What::Ended(member)),
        ];
        for (at, what) in reports {
            self.take(Arrival {
                at,
                from: NOBODY,
                // Before a wake-up of the same time.
                sequence: 0,
                to: node as u32,
                what,
            });
        }
    }

    /// Handles one input of a node, and what follows from it.
    pub(super) fn input(&mut self, at: Instant, node: usize, input: Input<'_>, facts: &Facts) {
        let entry = &mut self.nodes[node - self.first];
        let Some(tree) = &mut entry.tree else {
            return;
        };
        self.work.inputs += 1;
        // A rejected frame changes nothing.
        let _ = tree.handle(at, input);
        self.send(at, node);
        self.take_events(at, node, facts);
        let entry = &mut self.nodes[node - self.first];
        let timeout = entry.tree.as_ref().map(|tree| tree.poll_timeout());
        let timeout = timeout.unwrap_or(Instant::NEVER).max(at.after(1));
        if timeout < entry.alarm {
            entry.alarm = timeout;
            self.take(Arrival {
                at: timeout,
                from: NOBODY,
                sequence: 1,
                to: node as u32,
                what: What::Alarm,
            });
        }
    }

    fn send(&mut self, at: Instant, node: usize) {
        let (low, high) = self.delay_us;
        loop {
            let entry = &mut self.nodes[node - self.first];
            let Some(tree) = &mut entry.tree else {
                return;
            };
            let Some((level, transmit)) = tree.poll_transmit(at, &mut self.buffer) else {
                return;
            };
            let address = tree.address_of(level, transmit.target);
            let address = address.and_then(|address| address.try_into().ok());
            let Some(to) = address.map(u32::from_le_bytes) else {
                continue;
            };
            let bytes = &self.buffer[..transmit.size];
            self.work.datagrams += 1;
            self.work.bytes += bytes.len() as u64;
            entry.sequence += 1;
            let arrival = Arrival {
                at: at.after(entry.draw.between(low, high)),
                from: node as u32,
                sequence: entry.sequence,
                to,
                what: What::Datagram(bytes.into()),
            };
            entry.note(at, u64::from(to) << 32 | bytes.len() as u64);
            match self.has(to as usize) {
                true => self.take(arrival),
                false => self.leaving.push(arrival),
            }
        }
    }

    fn take_events(&mut self, at: Instant, node: usize, facts: &Facts) {
        let entry = &mut self.nodes[node - self.first];
        let Some(tree) = &mut entry.tree else {
            return;
        };
        let mut all: Vec<Told> = Vec::new();
        while let Some(event) = tree.poll_event() {
            all.extend(facts.told(tree, event));
        }
        for told in all {
            entry.note(at, told.number());
            match facts.bits(told) {
                Some(bits) => entry.known |= bits,
                None if self.wrong.len() < WRONG_MAX => self.wrong.push(Wrong { at, node, told }),
                None => {}
            }
        }
        if entry.knew_at.is_none() && entry.known == facts.all_bits() && entry.known != 0 {
            entry.knew_at = Some(at);
            self.knowing += 1;
        }
    }
}
