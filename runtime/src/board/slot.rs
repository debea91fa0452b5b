//! A slot: what one attached process and the agent tell each other through the board.
//!
//! ```text
//! client's line   0..96  word and links of the hold (see sys::robust)
//!                    96  leave mark     100 exit code      104 promised period of ticks, ms
//! agent's line   128 occupancy   132 pid     136 start time (8)   144 rank + 1
//!                148 generation  152 armed   156 hold
//! ```
//! The agent trusts its own line, never the client's: from there it takes only the word, which it
//! classifies, and the leave mark, which concerns nobody but the client itself.

use std::sync::atomic::{AtomicU32, Ordering};

use super::core::Board;
use super::layout::SLOT_SIZE;
use crate::sys::{futex, robust};

const LEAVE: usize = 96;
const EXIT_CODE: usize = 100;
const TICK_PERIOD: usize = 104;
const OCCUPANCY: usize = 128;
const PID: usize = 132;
const START: usize = 136;
const RANK: usize = 144;
const GENERATION: usize = 148;
const ARMED: usize = 152;
const HOLD: usize = 156;

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
    board: &'a Board,
    start: usize,
}

impl Board {
    /// `None` beyond the last.
    pub(crate) fn slot(&self, slot: u32) -> Option<Slot<'_>> {
        let inside = slot < self.layout.limits.slots;
        let start = self.layout.slots + slot as usize * SLOT_SIZE;
        inside.then_some(Slot { board: self, start })
    }

    /// The word of a slot that exists.
    pub(crate) fn word(&self, slot: u32) -> &AtomicU32 {
        self.map.word(self.layout.slots + slot as usize * SLOT_SIZE)
    }

    pub(crate) fn slot_count(&self) -> u32 {
        self.layout.limits.slots
    }
}

impl Slot<'_> {
    /// The word that the kernel marks.
    pub fn word(&self) -> &AtomicU32 {
        self.field(0)
    }

    /// Whether nobody holds the word: never taken, given back, or its holder ended.
    pub fn is_released(&self) -> bool {
        self.word().load(Ordering::Acquire) & futex::OWNER == 0
    }

    /// What the client said about leaving, and its exit code.
    pub fn leave(&self) -> (Leave, i32) {
        let mark = match self.field(LEAVE).load(Ordering::Acquire) {
            1 => Leave::Announced,
            2 => Leave::StillLinked,
            _ => Leave::No,
        };
        (mark, self.field(EXIT_CODE).load(Ordering::Relaxed) as i32)
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
                .board
                .map
                .long(self.start + START)
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
    pub(crate) fn announce_leave(&self, linked: bool, exit_code: i32) {
        self.field(EXIT_CODE)
            .store(exit_code as u32, Ordering::Relaxed);
        self.field(LEAVE)
            .store(if linked { 2 } else { 1 }, Ordering::Release);
    }

    /// For the client: promises a tick at least every so many milliseconds; 0 promises nothing.
    pub(crate) fn promise_ticks(&self, period_ms: u32) {
        self.field(TICK_PERIOD).store(period_ms, Ordering::Release);
    }

    /// How often the client promised to tick, in milliseconds; none if it did not.
    pub fn tick_period_ms(&self) -> Option<u32> {
        let period_ms = self.field(TICK_PERIOD).load(Ordering::Acquire);
        (period_ms > 0).then_some(period_ms)
    }

    /// For the client: takes the word, as it was agreed.
    pub(crate) fn hold(&self, hold: Hold) -> std::io::Result<()> {
        match hold {
            Hold::Thread => robust::hold_by_list(&self.board.map, self.start),
            Hold::Mutex => robust::hold_by_mutex(&self.board.map, self.start),
        }
    }

    /// For the client: whether the calling thread is the one that holds the word.
    pub(crate) fn is_held_here(&self) -> bool {
        self.word().load(Ordering::Acquire) & futex::OWNER == robust::thread_id()
    }

    /// For the client: lets go of the word. Fails in a thread that does not hold it.
    pub(crate) fn release(&self, hold: Hold) -> std::io::Result<()> {
        match hold {
            Hold::Thread => {
                robust::release_by_list(&self.board.map, self.start);
                Ok(())
            }
            Hold::Mutex => robust::release_by_mutex(&self.board.map, self.start),
        }
    }

    /// For the agent: gives the slot to a process. The client's line is cleared only when nobody
    /// can be linked into it.
    pub(super) fn take(&self, claim: &Claim) -> u32 {
        for offset in (0..super::layout::LINE_SIZE).step_by(4) {
            self.field(offset).store(0, Ordering::Relaxed);
        }
        let generation = self
            .field(GENERATION)
            .load(Ordering::Relaxed)
            .wrapping_add(1)
            .max(1);
        self.field(GENERATION).store(generation, Ordering::Relaxed);
        self.field(PID).store(claim.pid, Ordering::Relaxed);
        self.board
            .map
            .long(self.start + START)
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
    pub(crate) fn set_armed(&self) {
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

    fn field(&self, offset: usize) -> &AtomicU32 {
        self.board.map.word(self.start + offset)
    }
}
