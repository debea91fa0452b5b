//! A slot: what one attached process and the agent tell each other through the board.
//!
//! ```text
//! client's line   0..96  word and links of the hold (see muster_sys::robust)
//!                    96  leave (8)   104 promised period of ticks (8)
//! agent's line     0 occupancy     4 pid     8 start time (8)   16 rank + 1
//!                 20 generation   24 armed  28 hold
//! ```
//! The agent trusts its own line, which only it can write, never the client's: from there it takes only the word,
//! which it classifies, and what the client says of itself, that it leaves and how often it will tick. Any client
//! can write on the lines of all, so such a statement is combined with the client's mark: 32 bits of content and 2
//! that say which, the other bits being those of a number that only this client was told. What somebody else has
//! scribbled there says nothing.

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

/// What a client's statement is about.
const LEAVES: u64 = 1;
const LEAVES_LINKED: u64 = 2;
const TICKS: u64 = 3;

fn statement(mark: u64, what: u64, value: u32) -> u64 {
    mark ^ (what << 32 | u64::from(value))
}

/// What is stated, if it is by the one with this mark.
fn stated(mark: u64, word: u64) -> Option<(u64, u32)> {
    let content = mark ^ word;
    (content >> 34 == 0).then_some((content >> 32, content as u32))
}

const _: () = assert!(robust::LINE_USED <= LEAVE);

/// Whether a slot is in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Occupancy {
    /// Nobody's.
    Free,
    /// A process has it.
    Taken,
    /// Its process left but still has links into it: not to be used while that process lives.
    Quarantined,
}

/// How a client holds its word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hold {
    /// A thread of the library, by its own robust list.
    Thread,
    /// The application's thread that attached, by a robust mutex.
    Mutex,
}

/// Whether a client has announced that it leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leave {
    /// It has not.
    No,
    /// It leaves, and has let go of the slot or will with its next step.
    Announced,
    /// It leaves but cannot let go: the slot stays linked into one of its threads.
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
    /// Counts the images that had this slot: an exec raises it.
    pub generation: u32,
    /// Whether the client has said that it holds the word.
    pub armed: bool,
    /// How it holds the word.
    pub hold: Hold,
}

/// Who wants a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claim {
    /// The process.
    pub pid: u32,
    /// When it started, in the kernel's ticks since boot.
    pub start_ticks: u64,
    /// Its rank, if it has one.
    pub rank: Option<u32>,
    /// How it will hold the word.
    pub hold: Hold,
}

/// Why a slot was not given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ClaimError {
    /// Every slot is in use.
    #[error("all {slots} slots of this node's board are taken")]
    Full {
        /// How many there are.
        slots: u32,
    },
    /// The process holds a slot through another copy of the library.
    #[error("process {pid} is attached already, through another copy of the library")]
    AlreadyAttached {
        /// The process.
        pid: u32,
    },
    /// Another process is that rank.
    #[error(
        "rank {rank} is taken by process {pid}, which is attached; give every process a rank of \
         its own (MUSTER_RANK)"
    )]
    RankTaken {
        /// The rank.
        rank: u32,
        /// Who has it.
        pid: u32,
    },
    /// The rank is beyond the board.
    #[error("rank {rank} is beyond the {ranks} ranks this board has room for")]
    RankTooLarge {
        /// The rank.
        rank: u32,
        /// The limit.
        ranks: u32,
    },
}

/// A slot of a board, by its number.
#[derive(Debug, Clone, Copy)]
pub struct Slot<'a> {
    table: &'a StateTable,
    number: u32,
    /// The client's line.
    line: usize,
    /// The agent's.
    facts: usize,
}

impl StateTable {
    /// `None` beyond the last.
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

    /// The word of a slot that exists.
    pub fn word(&self, slot: u32) -> &AtomicU32 {
        self.map.word(self.layout.lines + slot as usize * LINE_SIZE)
    }

    /// How many client slots the table has.
    pub fn slot_count(&self) -> u32 {
        self.layout.limits.slots
    }
}

impl Slot<'_> {
    /// The word that the kernel marks.
    pub fn word(&self) -> &AtomicU32 {
        self.table.map.word(self.line)
    }

    /// Whether nobody holds the word: never taken, given back, or its holder ended.
    pub fn is_released(&self) -> bool {
        self.word().load(Ordering::Acquire) & futex::OWNER == 0
    }

    /// For the agent: what the client said about leaving, and its exit code.
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

    /// For the client: says that it leaves, before it lets go of the word.
    pub fn announce_leave(&self, mark: u64, linked: bool, exit_code: i32) {
        let what = if linked { LEAVES_LINKED } else { LEAVES };
        let word = statement(mark, what, exit_code as u32);
        self.statement(LEAVE).store(word, Ordering::Release);
    }

    /// For the client: promises a tick at least every so many milliseconds; 0 promises nothing.
    pub fn promise_ticks(&self, mark: u64, period_ms: u32) {
        let word = statement(mark, TICKS, period_ms);
        self.statement(TICK_PERIOD).store(word, Ordering::Release);
    }

    /// For the agent: how often the client promised to tick, in milliseconds; none if it did not.
    pub fn tick_period_ms(&self) -> Option<u32> {
        match stated(
            self.mark(),
            self.statement(TICK_PERIOD).load(Ordering::Acquire),
        ) {
            Some((TICKS, period_ms @ 1..)) => Some(period_ms),
            _ => None,
        }
    }

    /// For the client: takes the word, as it was agreed.
    pub fn hold(&self, hold: Hold) -> std::io::Result<()> {
        match hold {
            Hold::Thread => robust::hold_by_list(&self.table.map, self.line),
            Hold::Mutex => robust::hold_by_mutex(&self.table.map, self.line),
        }
    }

    /// For the client: whether the calling thread is the one that holds the word.
    pub fn is_held_here(&self) -> bool {
        self.word().load(Ordering::Acquire) & futex::OWNER == robust::thread_id()
    }

    /// For the client: lets go of the word. Fails in a thread that does not hold it.
    pub fn release(&self, hold: Hold) -> std::io::Result<()> {
        match hold {
            Hold::Thread => {
                robust::release_by_list(&self.table.map, self.line);
                Ok(())
            }
            Hold::Mutex => robust::release_by_mutex(&self.table.map, self.line),
        }
    }

    /// For the agent: gives the slot to a process. The client's line is cleared only when nobody
    /// can be linked into it.
    pub(super) fn take(&self, claim: &Claim) -> u32 {
        for offset in (0..LINE_SIZE).step_by(4) {
            let word = self.table.map.word(self.line + offset);
            word.store(0, Ordering::Relaxed);
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

    /// For the agent: the client has said that it holds the word.
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

    /// On the agent's line.
    fn field(&self, offset: usize) -> &AtomicU32 {
        self.table.map.word(self.facts + offset)
    }

    /// On the client's line.
    fn statement(&self, offset: usize) -> &AtomicU64 {
        self.table.map.long(self.line + offset)
    }
}
