//! The state table: one piece of shared memory with the states of nodes and ranks, and the events of this node's
//! agent.
//!
//! One agent writes it. Every rank of the node reads it: a read is a load, not a request. In the clients' half, each
//! rank holds one line, which the kernel marks when the rank ends.
//!
//! ```text
//! the agent's half, which all other processes map for reading:
//! header       magic, layout version, limits | counts, epoch | head of the event ring
//! node states  a byte each          rank states  a byte each
//! rank nodes   u32 each             node names   64 bytes each
//! node groups  32 bytes each        group events u64 each
//! zone names   192 bytes each       node zones   u32 each
//! event ring   the events of this node's agent, 64 bytes each
//! slots        128 bytes each: the process in the slot
//! the clients' half, which every client and the agent map for writing:
//! changed      futex on which processes wait for a change of a state
//! slots        128 bytes each: the robust futex of the client and its statements
//! ticks        a line of 128 bytes each, one writer
//! traffic      16 bytes a node: when ranks of this node last received from it, and sent to it
//! piggybacks   256 bytes a node: a beat for a message to that node, and one that a message brought
//! ```
//!
//! Every region starts on a page of its own, so a state never shares a cache line with a slot, a tick or the event
//! ring. Pages that are never written take no memory, so the limits can be generous.
//!
//! **Why one event ring and not one per client.** The events are the same for all clients. With one ring the agent
//! writes each event once, whatever the number of ranks. A slow or stopped rank cannot make it wait and costs no
//! memory. Each reader keeps its cursor in its own memory and detects by itself that it was lapped, with the exact
//! number of lost events.
//!
//! The state table survives its writer: a new worker inherits the same memory, already mapped, and reads no layout
//! from it. The event ring is neither a log nor a queue with acknowledgements; after a loss, the states count.
//!
//! **Trust.** Only processes of the same user get the descriptors. What the agent, or a successor of its worker,
//! relies on is in the agent's half: a memory file of its own, which is sealed so that no other process can write it
//! (`F_SEAL_FUTURE_WRITE`, Linux 5.1; on older kernels clients still map it for reading). In the clients' half, the
//! agent does not rely on bytes that one client may have written about another, see `slot`. A view never panics and
//! never reads outside its mapping, whatever is written there: sizes are read once, checked against the files, and
//! kept in private memory.
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
mod zones;

pub use self::core::StateTable;
pub use event::{Cause, Event, EventKind, NO_NODE, NO_RANK, setting, setting_value};
pub use event_ring::Cursor;
pub use layout::{LAYOUT_VERSION, NODE_NAME_MAX, TableLimits, ZONE_NAME_MAX};
pub use piggyback::PIGGYBACK_MAX;
pub use slot::{Claim, ClaimError, Hold, Leave, Occupancy, Slot, SlotFacts};
pub use state::{NodeState, RankState};
pub use traffic::TrafficStamp;
pub use view::TableView;
pub use writer::TableWriter;

/// Why a state table could not be created or attached.
#[derive(Debug)]
pub enum TableError {
    /// The memory holds no state table; nothing was changed.
    NotATable {
        /// What was found instead.
        why: String,
    },
    /// The state table was created by another release; nothing was changed.
    Version {
        /// The layout of the state table.
        found: u32,
        /// The layout that this code knows.
        known: u32,
    },
    /// A limit outside what the layout can hold.
    Limit {
        /// Name of the limit.
        what: &'static str,
        /// The requested value.
        value: u64,
        /// The lowest allowed value.
        least: u64,
        /// The highest allowed value.
        most: u64,
    },
    /// A system call failed.
    System {
        /// The operation.
        what: &'static str,
        /// The error of the system call.
        cause: std::io::Error,
    },
}

impl std::fmt::Display for TableError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NotATable { why } => write!(
                f,
                "the memory is not a state table of Muster ({why}); check which program listens on the agent's socket"
            ),
            Self::Version { found, known } => write!(
                f,
                "state table of another version: it has layout {found}, this library knows layout {known}; \
         use the musterd and the libmuster of one release (MUSTER_AGENT names the musterd), \
         or end the running agent"
            ),
            Self::Limit {
                what,
                value,
                least,
                most,
            } => write!(f, "{what} = {value} is outside {least}..={most}"),
            Self::System { what, cause } => write!(f, "cannot {what}: {cause}"),
        }
    }
}

impl std::error::Error for TableError {}
