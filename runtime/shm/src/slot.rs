//! `Slot` is the entry of one attached process in the state table; the process and the agent exchange statements
//! through it.
//!
//! ```text
//! client's line   0..96  robust futex and its list entry (see sys::robust)
//!                    96  leave (8)   104 promised period of ticks (8)
//! agent's line     0 occupancy     4 pid     8 start time (8)   16 rank + 1
//!                 20 generation   24 armed  28 hold
//! ```
//! The agent relies on its own line, which only it can write, and not on the client's. From the client's line it
//! takes only the futex, which it classifies, and two statements of the client: that it leaves, and how often it
//! ticks. Any client can write to the lines of all clients, so a statement is combined (XOR) with the client's mark:
//! 32 bits of content and 2 bits for the kind of statement; the other bits are those of a number that only this
//! client received. What another process writes there is therefore not a valid statement and has no effect.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::core::StateTable;
use super::layout::LINE_SIZE;
use muster_sys::{futex, robust};

const LEAVE: usize = 96;
const TICK_PERIOD: usize = 104;
const OCCUPANCY: usize = 0;
const PID: usize = 4;
const START: usize = 8;
const RANK: usize = 16;
const GENERATION: usize = 20;
const ARMED: usize = 24;
const HOLD: usize = 28;

/// The kinds of statements of a client.
const LEAVES: u64 = 1;
const LEAVES_LINKED: u64 = 2;
const TICKS: u64 = 3;

fn statement(mark: u64, what: u64, value: u32) -> u64 {
    mark ^ (what << 32 | u64::from(value))
}

/// Kind and content of a statement; `None` if it was not made with this mark.
fn stated(mark: u64, bits: u64) -> Option<(u64, u32)> {
    let content = mark ^ bits;
    (content >> 34 == 0).then_some((content >> 32, content as u32))
}

const _: () = assert!(robust::LINE_USED <= LEAVE);

/// Whether a slot is in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Occupancy {
    /// No process has it.
    Free,
    /// A process has it.
    Taken,
    /// Its process left but one of its threads is still linked to it: not to be used while that process is alive.
    Quarantined,
}

/// How a client holds its futex.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hold {
    /// A thread of the library holds it, by its own robust list.
    Thread,
    /// The application's thread that attached holds it, by a robust mutex.
    Mutex,
}

/// Whether a client has announced that it leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leave {
    /// It has not.
    No,
    /// It leaves, and has released the futex or does so next.
    Announced,
    /// It leaves but cannot release the futex: the slot stays linked to one of its threads.
    StillLinked,
}

/// What the agent wrote about a slot's process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotFacts {
    /// Whether the slot is in use.
    pub occupancy: Occupancy,
    /// The process.
    pub pid: u32,
    /// When it started, in the kernel's ticks since boot: guards against reuse of the pid.
    pub start_ticks: u64,
    /// Its rank, if it has one.
    pub rank: Option<u32>,
    /// Counts the program images that had this slot: an exec increments it.
    pub generation: u32,
    /// Whether the client has reported that it holds the futex.
    pub armed: bool,
    /// How it holds the futex.
    pub hold: Hold,
}

/// A process that requests a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claim {
    /// The process.
    pub pid: u32,
    /// When it started, in the kernel's ticks since boot.
    pub start_ticks: u64,
    /// Its rank, if it has one.
    pub rank: Option<u32>,
    /// How it will hold the futex.
    pub hold: Hold,
}

/// Why a process gets no slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClaimError {
    /// Every slot is in use.
    Full {
        /// Number of slots.
        slots: u32,
    },
    /// The process holds a slot through another copy of the library.
    AlreadyAttached {
        /// The process.
        pid: u32,
    },
    /// Another process has that rank.
    RankTaken {
        /// The rank.
        rank: u32,
        /// The process that has it.
        pid: u32,
    },
    /// The rank is beyond the limit of the state table.
    RankTooLarge {
        /// The rank.
        rank: u32,
        /// The limit.
        ranks: u32,
    },
}

impl std::fmt::Display for ClaimError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Full { slots } => {
                write!(f, "all {slots} slots of this node's state table are taken")
            }
            Self::AlreadyAttached { pid } => write!(
                f,
                "process {pid} is attached already, through another copy of the library"
            ),
            Self::RankTaken { rank, pid } => write!(
                f,
                "rank {rank} is taken by process {pid}, which is attached; give every process a rank of \
         its own (MUSTER_RANK)"
            ),
            Self::RankTooLarge { rank, ranks } => write!(
                f,
                "rank {rank} is beyond the {ranks} ranks that this state table has room for"
            ),
        }
    }
}

impl std::error::Error for ClaimError {}

/// A slot of a state table, by its number.
#[derive(Debug, Clone, Copy)]
pub struct Slot<'a> {
    table: &'a StateTable,
    number: u32,
    /// Offset of the client's line.
    line: usize,
    /// Offset of the agent's line.
    facts: usize,
}

impl StateTable {
    /// `None` beyond the last slot.
    pub fn slot(&self, slot: u32) -> Option<Slot<'_>> {
        let inside = slot < self.layout.limits.slots;
        let start = slot as usize * LINE_SIZE;
        inside.then_some(Slot {
            table: self,
            number: slot,
            line: self.layout.lines + start,
            facts: self.layout.facts + start,
        })
    }

    /// The robust futex of a slot that exists.
    pub fn futex(&self, slot: u32) -> &AtomicU32 {
        self.map.word(self.layout.lines + slot as usize * LINE_SIZE)
    }

    /// How many client slots the table has.
    pub fn slot_count(&self) -> u32 {
        self.layout.limits.slots
    }
}

impl Slot<'_> {
    /// The robust futex, which the kernel marks when its holder ends.
    pub fn futex(&self) -> &AtomicU32 {
        self.table.map.word(self.line)
    }

    /// Whether no thread holds the futex: never taken, released, or its holder ended.
    pub fn is_released(&self) -> bool {
        self.futex().load(Ordering::Acquire) & futex::OWNER == 0
    }

    /// For the agent: what the client stated about leaving, and its exit code.
    pub fn leave(&self) -> (Leave, i32) {
        self.leave_marked(self.mark())
    }

    /// The same, for the client that has this mark.
    pub fn leave_marked(&self, mark: u64) -> (Leave, i32) {
        match stated(mark, self.statement(LEAVE).load(Ordering::Acquire)) {
            Some((LEAVES, code)) => (Leave::Announced, code as i32),
            Some((LEAVES_LINKED, code)) => (Leave::StillLinked, code as i32),
            _ => (Leave::No, 0),
        }
    }

    /// For the agent: the mark of the client.
    pub(super) fn mark(&self) -> u64 {
        let generation = self.field(GENERATION).load(Ordering::Relaxed);
        self.table.mark(self.number, generation)
    }

    /// What the agent wrote.
    pub fn facts(&self) -> SlotFacts {
        SlotFacts {
            occupancy: match self.field(OCCUPANCY).load(Ordering::Acquire) {
                1 => Occupancy::Taken,
                2 => Occupancy::Quarantined,
                _ => Occupancy::Free,
            },
            pid: self.field(PID).load(Ordering::Relaxed),
            start_ticks: self
                .table
                .map
                .long(self.facts + START)
                .load(Ordering::Relaxed),
            rank: self.field(RANK).load(Ordering::Relaxed).checked_sub(1),
            generation: self.field(GENERATION).load(Ordering::Relaxed),
            armed: self.field(ARMED).load(Ordering::Relaxed) == 1,
            hold: match self.field(HOLD).load(Ordering::Relaxed) {
                1 => Hold::Mutex,
                _ => Hold::Thread,
            },
        }
    }

    /// For the client: states that it leaves, before it releases the futex.
    pub fn announce_leave(&self, mark: u64, linked: bool, exit_code: i32) {
        let what = if linked { LEAVES_LINKED } else { LEAVES };
        let bits = statement(mark, what, exit_code as u32);
        self.statement(LEAVE).store(bits, Ordering::Release);
    }

    /// For the client: promises a tick at least once in this many milliseconds; 0 promises nothing.
    pub fn promise_ticks(&self, mark: u64, period_ms: u32) {
        let bits = statement(mark, TICKS, period_ms);
        self.statement(TICK_PERIOD).store(bits, Ordering::Release);
    }

    /// For the agent: the period of ticks that the client promised, in milliseconds; `None` if it promised none.
    pub fn tick_period_ms(&self) -> Option<u32> {
        match stated(
            self.mark(),
            self.statement(TICK_PERIOD).load(Ordering::Acquire),
        ) {
            Some((TICKS, period_ms @ 1..)) => Some(period_ms),
            _ => None,
        }
    }

    /// For the client: takes the futex in the agreed way.
    pub fn hold(&self, hold: Hold) -> std::io::Result<()> {
        match hold {
            Hold::Thread => robust::hold_by_list(&self.table.map, self.line),
            Hold::Mutex => robust::hold_by_mutex(&self.table.map, self.line),
        }
    }

    /// For the client: whether the calling thread holds the futex.
    pub fn is_held_here(&self) -> bool {
        self.futex().load(Ordering::Acquire) & futex::OWNER == robust::thread_id()
    }

    /// For the client: releases the futex. Fails in a thread that does not hold it.
    pub fn release(&self, hold: Hold) -> std::io::Result<()> {
        match hold {
            Hold::Thread => {
                robust::release_by_list(&self.table.map, self.line);
                Ok(())
            }
            Hold::Mutex => robust::release_by_mutex(&self.table.map, self.line),
        }
    }

    /// For the agent: gives the slot to a process and clears the client's line. The caller ensures that no
    /// thread is linked to it.
    pub(super) fn take(&self, claim: &Claim) -> u32 {
        for offset in (0..LINE_SIZE).step_by(4) {
            let field = self.table.map.word(self.line + offset);
            field.store(0, Ordering::Relaxed);
        }
        let generation = self
            .field(GENERATION)
            .load(Ordering::Relaxed)
            .wrapping_add(1)
            .max(1);
        self.field(GENERATION).store(generation, Ordering::Relaxed);
        self.field(PID).store(claim.pid, Ordering::Relaxed);
        self.table
            .map
            .long(self.facts + START)
            .store(claim.start_ticks, Ordering::Relaxed);
        self.field(RANK)
            .store(claim.rank.map_or(0, |rank| rank + 1), Ordering::Relaxed);
        self.field(ARMED).store(0, Ordering::Relaxed);
        self.field(HOLD)
            .store(u32::from(claim.hold == Hold::Mutex), Ordering::Relaxed);
        self.field(OCCUPANCY).store(1, Ordering::Release);
        generation
    }

    /// For the agent: notes that the client has reported that it holds the futex.
    pub fn set_armed(&self) {
        self.field(ARMED).store(1, Ordering::Release);
    }

    /// For the agent: takes the slot back.
    pub(super) fn set_occupancy(&self, occupancy: Occupancy) {
        let number = match occupancy {
            Occupancy::Free => 0,
            Occupancy::Taken => 1,
            Occupancy::Quarantined => 2,
        };
        self.field(OCCUPANCY).store(number, Ordering::Release);
    }

    /// A field of the agent's line.
    fn field(&self, offset: usize) -> &AtomicU32 {
        self.table.map.word(self.facts + offset)
    }

    /// A statement on the client's line.
    fn statement(&self, offset: usize) -> &AtomicU64 {
        self.table.map.long(self.line + offset)
    }
}
