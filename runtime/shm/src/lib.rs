//! The board: one piece of shared memory that says who is alive, and what happened.
//!
//! Intuition: a notice board in the hall of a node. One agent writes on it; every rank looks up
//! when it likes, and looking costs a load, not a question. A strip at the foot belongs to the
//! ranks: each holds one line there, and the kernel marks the line when the rank ends.
//!
//! ```text
//! the agent's half, which all others map for reading:
//! header       magic, layout version, limits | counts, epoch | head of the ring
//! node states  a byte each          rank states  a byte each
//! rank nodes   u32 each             node names   64 bytes each
//! node groups  32 bytes each        group events u64 each
//! ring         the events of this node's agent, 64 bytes each
//! slots        128 bytes each: who is there
//! the clients' half, which every client and the agent map for writing:
//! changed      those who wait for a change of a state sleep on it
//! slots        128 bytes each: the word of the client there, and what it says of itself
//! ticks        a line of 128 bytes each, one writer
//! traffic      16 bytes a node: when ranks here last had something from it, and sent something there
//! parcels      256 bytes a node: a beat for a message to carry there, and one that a message brought
//! ```
//!
//! Every region starts on its own page, so a state never shares a cache line with a slot, a tick
//! or the ring. Pages that nobody wrote cost nothing, so the limits can be generous.
//!
//! **Why one ring and not one per client.** The events are the same for everybody. With one ring
//! the agent writes each once, whatever the number of ranks, and no slow or stopped rank can make
//! it wait or cost memory; each reader keeps its own cursor in its own memory and finds out by
//! itself, with the exact number, that it was lapped.
//!
//! The board survives its writer: a new worker inherits the same memory, mapped, and reads no layout
//! from it. It is not a log and not a queue with acknowledgements; what counts after a loss is the states.
//!
//! **Trust.** Only processes of the same user ever get the descriptors. What the agent believes, and a successor of its
//! worker, is in the agent's half: a memory file of its own, sealed so that nobody else can write it
//! (`F_SEAL_FUTURE_WRITE`, Linux 5.1; before, clients map it for reading all the same). Of the clients' half the
//! agent believes no bytes of one client about another, see `slot`. A view never panics
//! and never reads outside its mapping whatever is written there: sizes are taken once, checked
//! against the files, and kept in private memory.
#![forbid(unsafe_code)]

mod core;
mod event;
mod event_ring;
mod layout;
pub mod names;
mod piggyback;
mod slot;
mod state;
mod traffic;
mod view;
mod writer;

pub use self::core::StateTable;
pub use event::{Cause, Event, EventKind, NO_NODE, NO_RANK, setting};
pub use event_ring::Cursor;
pub use layout::{LAYOUT_VERSION, NODE_NAME_MAX, TableLimits};
pub use piggyback::PIGGYBACK_MAX;
pub use slot::{Claim, ClaimError, Hold, Leave, Occupancy, Slot, SlotFacts};
pub use state::{NodeState, RankState};
pub use traffic::TrafficStamp;
pub use view::TableView;
pub use writer::TableWriter;

/// Why a board could not be made or attached.
#[derive(Debug, thiserror::Error)]
pub enum TableError {
    /// The memory holds no board; nothing was changed.
    #[error("this is not a board of Muster ({why}); is something else listening on the socket?")]
    NotABoard {
        /// What was found instead.
        why: String,
    },
    /// The board was made by another release; nothing was changed.
    #[error(
        "board of another version: it has layout {found}, this library knows layout {known}; \
         use the musterd and the libmuster of one release (MUSTER_AGENT names the musterd), \
         or end the running agent"
    )]
    Version {
        /// The layout of the board.
        found: u32,
        /// The layout of this code.
        known: u32,
    },
    /// A limit outside what the layout can hold.
    #[error("{what} = {value} is outside {least}..={most}")]
    Limit {
        /// Which limit.
        what: &'static str,
        /// The value asked for.
        value: u64,
        /// The least allowed.
        least: u64,
        /// The most allowed.
        most: u64,
    },
    /// The system refused.
    #[error("cannot {what}: {cause}")]
    System {
        /// What was tried.
        what: &'static str,
        /// The system's answer.
        cause: std::io::Error,
    },
}
