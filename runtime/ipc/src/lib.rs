//! The Unix socket between the processes of a node and its agent: the messages, the directory in which
//! both sides find the socket, and the agent's listening end.
//!
//! A connection is a `SOCK_SEQPACKET` socket. It carries short messages only; what happens in the job stands
//! in the state table (`muster-shm`), and a wake-up says that there is something new to read. The agent's side
//! of the connections is the IPC server of `muster-agent`, the other side is `muster-client`.
//!
//! ```text
//! client                                   agent
//! Attach + eventfd     ------------------>   checks user, pid, key; assigns a slot
//!                      <------------------   Attached + state table, or Refused
//! (holds its futex) Armed --------------->   watches the futex
//! Seed, Key            ------------------>
//! Ask + socket         ------------------>   answers through that socket
//!                      <------------------   WakeUp, Address, KeyForPublication
//! (leave mark, releases) Leaving -------->
//!                      <------------------   Detach
//! ```
//!
//! This crate does not know what a member, a rail or PMIx is.
#![forbid(unsafe_code)]

mod ask;
pub mod control_socket;
mod directory;
mod listener;
pub mod locked_directory;
mod message;

pub use ask::{
    ASK_MAX, ATTRIBUTE_KEY_MAX, ATTRIBUTE_VALUE_MAX, Answer, Ask, key_hash, keys_of, listed,
};
pub use directory::{AgentDirectory, DirectoryError, JOB_MAX, KEY_MAX, base_directory};
pub use listener::{Listener, ListenerError};
pub use message::{
    ADDRESS_MAX, Attach, Attached, DecodeError, Held, MESSAGE_MAX, PLACED_MAX, REASON_MAX,
    RefusalCode, ToAgent, ToClient, VERSION,
};
