//! What handling a datagram takes, where a world charges for it.
//!
//! By default nothing: a world that looks for faults of the protocol needs no costs. A world that
//! measures does: a member that boots handles thousands of datagrams. Each of them keeps a CPU
//! busy for the same time, at its sender and at its receiver. Members that share a CPU have it in
//! turns, a datagram each. What waits for its reader lies in one of the node's two sockets, that
//! for beats and that for the rest, each of which holds so many and no more.
//!
//! A node does what the agent's loop does: it reads so many datagrams, the beats first; when the
//! sockets are empty it lets the engine judge; then it writes so many; and so on. What it writes
//! is written when its CPU gets to it, not before. Not here: caches, interrupts, other processes.

use std::collections::VecDeque;

use muster_protocol::{Class, Input, Instant};

use super::queue::{Happening, Parcel};
use super::{INBOX_MAX, NodeIndex, World};
use crate::checker::Violation;

/// Most datagrams read before any is written, and written before any is read: as in the agent.
const BATCH_MAX: u32 = 64;
/// So many batches in a row with more behind them, and the engine judges all the same.
const UNJUDGED_MAX: u32 = 4;
/// So many wake-ups in a row that ask for another one at once are too many: what a wake-up makes due may
/// take some more.
const RESTLESS_MAX: u32 = 8;

/// What the CPUs of a world are like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cpus {
    /// How long a datagram keeps a CPU busy, at each end, in microseconds; 0: not at all.
    pub service_us: u64,
    /// How many members share a CPU.
    pub shared_by: usize,
}

impl Default for Cpus {
    fn default() -> Self {
        Self {
            service_us: 0,
            shared_by: 1,
        }
    }
}

/// Who waits for which CPU.
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

/// A node's place of work: its sockets, and how far it is in its round.
#[derive(Debug, Default)]
pub(super) struct Desk {
    beats: VecDeque<Parcel>,
    news: VecDeque<Parcel>,
    /// It writes; else it reads.
    writes: bool,
    /// Datagrams read or written since it began to.
    batch: u32,
    /// Batches read since the engine last judged.
    unjudged: u32,
    /// Since when the sockets were not found empty.
    behind_since: Option<Instant>,
    /// It waits for its CPU, or has it.
    is_lined_up: bool,
}

impl Desk {
    fn is_empty(&self) -> bool {
        self.beats.is_empty() && self.news.is_empty()
    }

    fn pop(&mut self) -> Option<Parcel> {
        self.beats.pop_front().or_else(|| self.news.pop_front())
    }
}

impl World {
    /// A datagram waits for the node's CPU, in a socket that may be full.
    pub(super) fn take_in(&mut self, node: NodeIndex, parcel: Parcel, class: Class) {
        let entry = &mut self.nodes[node];
        let socket = match class {
            Class::Beat => &mut entry.desk.beats,
            Class::News => &mut entry.desk.news,
        };
        let is_full = socket.len() >= INBOX_MAX;
        self.overrun += u64::from(is_full);
        if is_full || entry.deaf || entry.engine.is_none() {
            return self.throw_away(parcel);
        }
        socket.push_back(parcel);
        self.line_up(node);
    }

    /// What lies in the node's sockets is lost.
    pub(super) fn clear_desk(&mut self, node: NodeIndex) {
        while let Some(parcel) = self.nodes[node].desk.pop() {
            self.throw_away(parcel);
        }
    }

    fn throw_away(&mut self, parcel: Parcel) {
        let bytes = self.queue.open(parcel);
        self.queue.give_back(parcel, bytes);
    }

    /// The node has something to do, perhaps: it gets its turn.
    pub(super) fn line_up(&mut self, node: NodeIndex) {
        let desk = &mut self.nodes[node].desk;
        if core::mem::replace(&mut desk.is_lined_up, true) {
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
            if self.work_on(node) {
                self.work.cpu(index).waiting.push_back(node);
                let done = self.now.after(self.cpus.service_us);
                return self.queue.push(done, Happening::Turn(index as u32));
            }
            self.nodes[node].desk.is_lined_up = false;
            if !self.nodes[node].paused {
                self.check_rest(node, self.nodes[node].clock.own(self.now));
            }
            self.set_alarm(node);
        }
        self.work.cpu(index).is_busy = false;
    }

    /// Reads or writes one datagram; false if there is none.
    fn work_on(&mut self, node: NodeIndex) -> bool {
        loop {
            if self.nodes[node].paused || self.nodes[node].engine.is_none() {
                return false;
            }
            let desk = &mut self.nodes[node].desk;
            if !desk.writes {
                if desk.batch < BATCH_MAX
                    && let Some(parcel) = desk.pop()
                {
                    desk.batch += 1;
                    self.arrive(node, parcel);
                    return true;
                }
                self.judge(node);
                continue;
            }
            let may_write = desk.batch < BATCH_MAX;
            desk.batch += 1;
            let own_now = self.nodes[node].clock.own(self.now);
            if may_write && self.write_one(node, own_now) {
                return true;
            }
            let desk = &mut self.nodes[node].desk;
            (desk.writes, desk.batch) = (false, 0);
            if may_write && desk.is_empty() {
                return false;
            }
        }
    }

    /// Enough is read: the engine is woken, if it asked for it and nothing it did not see waits.
    fn judge(&mut self, node: NodeIndex) {
        let own_now = self.nodes[node].clock.own(self.now);
        let entry = &mut self.nodes[node];
        let desk = &mut entry.desk;
        (desk.writes, desk.batch) = (true, 0);
        let more = !desk.is_empty();
        let since = *desk.behind_since.get_or_insert(own_now);
        if !more {
            desk.behind_since = None;
        }
        if let Some(engine) = &mut entry.engine {
            engine.strained(own_now.since(since));
        }
        desk.unjudged = match !more || desk.unjudged >= UNJUDGED_MAX {
            true => 0,
            false => desk.unjudged + 1,
        };
        let due = |engine: &muster_protocol::Overlay| engine.poll_timeout() <= own_now;
        if desk.unjudged == 0 && entry.engine.as_ref().is_some_and(due) {
            self.handle(node, own_now, Input::Wake).ok();
        }
    }

    /// `rest`: who was woken, and has sent what it had, wants to sleep. An agent at real-time priority
    /// that does not takes a whole core from those it watches.
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
                what: format!("node {node} asked for {RESTLESS_MAX} wake-ups in a row at once"),
            });
        }
    }

    /// When the node next has something to do by itself.
    pub(super) fn set_alarm(&mut self, node: NodeIndex) {
        let entry = &mut self.nodes[node];
        let Some(engine) = &entry.engine else {
            return;
        };
        let at = engine.poll_timeout();
        if at != Instant::NEVER {
            // An engine that asks for now again and again would stop the world's clock.
            let at = entry.clock.world(at).max(self.now.after(1));
            self.queue.set(&mut entry.alarm, node, at);
        }
    }
}

#[cfg(test)]
mod tests {
    use muster_protocol::Profile;

    use super::*;

    /// Two that share a CPU have it in turns: the one with a full socket does not keep the other out.
    #[test]
    fn members_that_share_a_cpu_have_it_in_turns() {
        let mut world = World::new(1);
        world.cpus = Cpus {
            service_us: 10,
            shared_by: 2,
        };
        for name in ["a", "b"] {
            let mut config = world.config(name, Profile::Standard);
            config.seeds.clear();
            world.add(config);
        }
        let read = |world: &World, node| world.engine(node).counters().datagrams_received;
        for _ in 0..300 {
            let parcel = world.queue.wrap(b"noise");
            world.take_in(0, parcel, Class::News);
        }
        assert_eq!(world.overrun(), 300 - INBOX_MAX as u64);
        for _ in 0..4 {
            let parcel = world.queue.wrap(b"noise");
            world.take_in(1, parcel, Class::News);
        }
        world.run(85);
        assert_eq!((read(&world, 0), read(&world, 1)), (5, 4));
        world.run(1_000);
        assert_eq!(read(&world, 0), 5 + 100);
        world.crash(0);
        world.run(100);
        assert_eq!(world.nodes[0].desk.news.len(), 0);
    }
}
