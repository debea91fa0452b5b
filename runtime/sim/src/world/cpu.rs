//! The cost of handling a datagram, in worlds that charge for it.
//!
//! The default is no cost: a world that looks for faults of the protocol does not need it. A world that
//! measures does: a member that boots handles thousands of datagrams. Each datagram keeps a CPU busy for the
//! same time, at its sender and at its receiver. Members that share a CPU use it in turns, for one datagram
//! each; or, where waking up has a cost too, until they sleep again. A datagram waits in one of the node's two
//! bounded sockets, one for beats and one for news.
//!
//! A node works like the agent's loop: it reads a batch of datagrams, beats first; when the sockets are empty
//! it wakes the engine; then it writes a batch; and so on. A datagram is written when the CPU gets to it. Not
//! modelled: caches, interrupts, other processes.

use std::collections::VecDeque;

use muster_protocol::{Class, Input, Instant, MemberId};

use super::queue::{BufferId, Happening};
use super::{INBOX_MAX, NodeIndex, World};
use crate::checker::Violation;

/// Most datagrams read before any is written, and the reverse: as in the agent.
const BATCH_MAX: u32 = 64;
/// After this many batches in a row with more datagrams waiting, the engine is woken all the same.
const BATCHES_READ_MAX: u32 = 4;
/// This many wake-ups in a row that request another immediate one are a violation: what a wake-up makes due
/// may take some more of them.
const RESTLESS_MAX: u32 = 8;

/// The CPUs of a world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cpus {
    /// How long a datagram keeps a CPU busy at each end, in microseconds; 0: no time.
    pub service_us: u64,
    /// How long a member that wakes up keeps a CPU busy before it handles anything, in microseconds. If it is not 0,
    /// heartbeats wake no member: it reads them when it is awake anyway, as agents do.
    pub wake_us: u64,
    /// Number of members that share a CPU.
    pub shared_by: usize,
}

impl Default for Cpus {
    fn default() -> Self {
        Self {
            service_us: 0,
            wake_us: 0,
            shared_by: 1,
        }
    }
}

/// Which nodes wait for which CPU.
#[derive(Debug, Default)]
pub(super) struct Work {
    cpus: Vec<Cpu>,
}

#[derive(Debug, Default)]
struct Cpu {
    waiting: VecDeque<NodeIndex>,
    is_busy: bool,
}

impl Work {
    fn cpu(&mut self, cpu: usize) -> &mut Cpu {
        if self.cpus.len() <= cpu {
            self.cpus.resize_with(cpu + 1, Cpu::default);
        }
        &mut self.cpus[cpu]
    }
}

/// A node's sockets, and the state of its loop.
#[derive(Debug, Default)]
pub(super) struct NodeIo {
    beats: VecDeque<BufferId>,
    news: VecDeque<BufferId>,
    /// Whether it writes; otherwise it reads.
    writes: bool,
    /// Datagrams read or written since it started to.
    batch: u32,
    /// Batches read since the engine was last woken.
    batches_read: u32,
    /// Since when the sockets have not been empty.
    behind_since: Option<Instant>,
    /// Whether it waits for its CPU or uses it.
    is_queued: bool,
    /// Whether it has paid for its wake-up.
    is_awake: bool,
    /// Members that the fabric reports: unreachable, or, if true, ended.
    reports: VecDeque<(MemberId, bool)>,
}

impl NodeIo {
    fn is_empty(&self) -> bool {
        self.beats.is_empty() && self.news.is_empty()
    }

    fn pop(&mut self) -> Option<BufferId> {
        self.beats.pop_front().or_else(|| self.news.pop_front())
    }
}

impl World {
    /// Puts a datagram into a socket of the node, where it waits for the CPU. A full socket drops it.
    pub(super) fn enqueue(&mut self, node: NodeIndex, buffer_id: BufferId, class: Class) {
        let entry = &mut self.nodes[node];
        let socket = match class {
            Class::Beat => &mut entry.io.beats,
            Class::News => &mut entry.io.news,
        };
        let is_full = socket.len() >= INBOX_MAX;
        self.overrun += u64::from(is_full);
        if is_full || entry.drops_input || entry.engine.is_none() {
            return self.drop_datagram(buffer_id);
        }
        socket.push_back(buffer_id);
        if class == Class::News || self.cpus.wake_us == 0 {
            self.queue_for_cpu(node);
        }
    }

    /// The fabric reports to a node that a member is unreachable, or has ended: at once, or when the CPU gets to it.
    pub(crate) fn report(&mut self, node: NodeIndex, member: MemberId, has_ended: bool) {
        let reports = &mut self.nodes[node].io.reports;
        reports.push_back((member, has_ended));
        match self.cpus.service_us {
            0 => _ = self.read_report(node),
            _ => self.queue_for_cpu(node),
        }
    }

    /// Reads one report of the fabric. Returns false if there is none.
    fn read_report(&mut self, node: NodeIndex) -> bool {
        let Some((member, has_ended)) = self.nodes[node].io.reports.pop_front() else {
            return false;
        };
        let input = match has_ended {
            true => Input::Ended(member),
            false => Input::Unreachable(member),
        };
        self.touch(node, input).ok();
        true
    }

    /// Drops the datagrams in the node's sockets.
    pub(super) fn clear_sockets(&mut self, node: NodeIndex) {
        while let Some(buffer_id) = self.nodes[node].io.pop() {
            self.drop_datagram(buffer_id);
        }
    }

    fn drop_datagram(&mut self, buffer_id: BufferId) {
        let bytes = self.queue.take(buffer_id);
        self.queue.recycle(buffer_id, bytes);
    }

    /// Queues the node for its CPU if it is not queued: it may have something to do.
    pub(super) fn queue_for_cpu(&mut self, node: NodeIndex) {
        let io = &mut self.nodes[node].io;
        if core::mem::replace(&mut io.is_queued, true) {
            return;
        }
        let index = node / self.cpus.shared_by.max(1);
        let cpu = self.work.cpu(index);
        cpu.waiting.push_back(node);
        if !core::mem::replace(&mut cpu.is_busy, true) {
            self.queue.push(self.now, Happening::Turn(index as u32));
        }
    }

    /// A CPU is free for the next datagram.
    pub(super) fn take_turn(&mut self, index: usize) {
        while let Some(node) = self.work.cpu(index).waiting.pop_front() {
            let has_woken = core::mem::replace(&mut self.nodes[node].io.is_awake, true);
            if !has_woken && self.cpus.wake_us > 0 {
                self.work.cpu(index).waiting.push_front(node);
                let awake = self.now.after(self.cpus.wake_us);
                return self.queue.push(awake, Happening::Turn(index as u32));
            }
            if self.work_on(node) {
                let waiting = &mut self.work.cpu(index).waiting;
                match self.cpus.wake_us {
                    0 => waiting.push_back(node),
                    // It keeps the CPU until it sleeps.
                    _ => waiting.push_front(node),
                }
                let done = self.now.after(self.cpus.service_us);
                return self.queue.push(done, Happening::Turn(index as u32));
            }
            let io = &mut self.nodes[node].io;
            (io.is_queued, io.is_awake) = (false, false);
            if !self.nodes[node].paused {
                self.check_rest(node, self.nodes[node].clock.own(self.now));
            }
            self.set_alarm(node);
        }
        self.work.cpu(index).is_busy = false;
    }

    /// Reads or writes one datagram. Returns false if there is none.
    fn work_on(&mut self, node: NodeIndex) -> bool {
        loop {
            if self.nodes[node].paused || self.nodes[node].engine.is_none() {
                return false;
            }
            let io = &mut self.nodes[node].io;
            if !io.writes {
                if io.batch < BATCH_MAX
                    && let Some(buffer_id) = io.pop()
                {
                    io.batch += 1;
                    self.arrive(node, buffer_id);
                    return true;
                }
                // An agent reads what has arrived before it looks at its connections.
                if self.read_report(node) {
                    return true;
                }
                self.end_reading(node);
                continue;
            }
            let may_write = io.batch < BATCH_MAX;
            io.batch += 1;
            let own_now = self.nodes[node].clock.own(self.now);
            if may_write && self.write_one(node, own_now) {
                return true;
            }
            let io = &mut self.nodes[node].io;
            (io.writes, io.batch) = (false, 0);
            if may_write && io.is_empty() {
                return false;
            }
        }
    }

    /// Ends a batch of reading: wakes the engine, if that is due and no unread datagram waits.
    fn end_reading(&mut self, node: NodeIndex) {
        let own_now = self.nodes[node].clock.own(self.now);
        let entry = &mut self.nodes[node];
        let io = &mut entry.io;
        (io.writes, io.batch) = (true, 0);
        let more = !io.is_empty();
        let since = *io.behind_since.get_or_insert(own_now);
        if !more {
            io.behind_since = None;
        }
        if let Some(engine) = &mut entry.engine {
            engine.strained(own_now.since(since));
        }
        io.batches_read = match !more || io.batches_read >= BATCHES_READ_MAX {
            true => 0,
            false => io.batches_read + 1,
        };
        let due = |engine: &muster_protocol::Overlay| engine.poll_timeout() <= own_now;
        if io.batches_read == 0 && entry.engine.as_ref().is_some_and(due) {
            self.handle(node, own_now, Input::Wake).ok();
        }
    }

    /// `rest`: after a wake-up and its transmits, an engine must not request an immediate wake-up again and
    /// again. An agent at real-time priority that does so takes a whole core from the ranks it watches.
    pub(super) fn check_rest(&mut self, node: NodeIndex, own_now: Instant) {
        let now = self.now;
        let entry = &mut self.nodes[node];
        let Some(engine) = &entry.engine else {
            return;
        };
        entry.restless = match engine.poll_timeout() <= own_now {
            true => entry.restless + 1,
            false => 0,
        };
        if entry.restless == RESTLESS_MAX {
            self.checker.add(Violation {
                checker: "rest",
                at: now,
                member: Some(engine.id()),
                what: format!("node {node} requested {RESTLESS_MAX} immediate wake-ups in a row"),
            });
        }
    }

    /// Sets the time at which the node next has to act without input.
    pub(super) fn set_alarm(&mut self, node: NodeIndex) {
        let entry = &mut self.nodes[node];
        let Some(engine) = &entry.engine else {
            return;
        };
        let at = engine.poll_timeout();
        if at != Instant::NEVER {
            // An engine that requests the present time again and again would stop the world's clock.
            let at = entry.clock.world(at).max(self.now.after(1));
            self.queue.set(&mut entry.alarm, node, at);
        }
    }
}

#[cfg(test)]
mod tests {
    use muster_protocol::Profile;

    use super::*;

    /// Two members that share a CPU use it in turns: one with a full socket does not keep the other out.
    #[test]
    fn members_that_share_a_cpu_have_it_in_turns() {
        let mut world = World::new(1);
        world.cpus = Cpus {
            service_us: 10,
            shared_by: 2,
            ..Cpus::default()
        };
        for name in ["a", "b"] {
            let mut config = world.config(name, Profile::Standard);
            config.seeds.clear();
            world.add(config);
        }
        let read = |world: &World, node| world.engine(node).counters().datagrams_received;
        for _ in 0..300 {
            let buffer_id = world.queue.store(b"noise");
            world.enqueue(0, buffer_id, Class::News);
        }
        assert_eq!(world.overrun(), 300 - INBOX_MAX as u64);
        for _ in 0..4 {
            let buffer_id = world.queue.store(b"noise");
            world.enqueue(1, buffer_id, Class::News);
        }
        world.run(85);
        assert_eq!((read(&world, 0), read(&world, 1)), (5, 4));
        world.run(1_000);
        assert_eq!(read(&world, 0), 5 + 100);
        world.crash(0);
        world.run(100);
        assert_eq!(world.nodes[0].io.news.len(), 0);
    }
}
