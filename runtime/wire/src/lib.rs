//! What Muster's membership protocols have in common.
//!
//! An engine of `muster-protocol` or `muster-age` is a pure state machine: no clock, no socket, no thread, and no
//! order that changes from run to run. This crate has what is below the engines:
//!
//! - *identities*: a [`identity::MemberId`] is a member's place on the ring, a [`identity::Version`] (incarnation,
//!   minor) orders all facts about it;
//! - *frames*: [`frame`] authenticates a message for one incarnation of one receiver, and [`replay`] accepts it once;
//! - *records*: [`table::Table`] has all that an engine holds about the members, [`ledger::Ledger`] what it holds
//!   about other zones;
//! - the *interface* to the host: inputs, frames to send and views of members ([`interface`]), events with their
//!   causes ([`event`]), [`reject::Reject`] and [`counters::Counters`].
//!
//! It decides nothing: which news wins and who has failed is decided by the engines. The bodies of their messages
//! are theirs as well, since no other engine reads them.
//!
//! The modules in layers, from bottom to top. None refers to a module of a layer above its own:
//!
//! 1. Values: `time`, `identity`, `state`, `reject`, `codec`, `mix`, `planted`, `work`, `settings`, `parameter`.
//! 2. Made of them: `reporters`, `cause`, `evidence`, `ledger`, `ranks`, `member_info`, `counters`, `replay`.
//! 3. Frames without their bodies, and events: `frame`, `event`.
//! 4. What a member holds: `table`.
//! 5. The interface to the host: `interface`.
//!
//! Hosts depend on `muster-protocol`, which re-exports what they need. The crate does not know rails, PMIx, Slurm,
//! files, or wall-clock time.
#![forbid(unsafe_code)]
// Decisions do not depend on how a machine rounds.
#![deny(clippy::float_arithmetic)]

pub mod cause;
pub mod codec;
pub mod counters;
pub mod event;
pub mod evidence;
pub mod frame;
pub mod identity;
pub mod interface;
pub mod ledger;
pub mod member_info;
pub mod mix;
pub mod parameter;
pub mod parameters;
pub mod planted;
pub mod ranks;
pub mod reject;
pub mod replay;
pub mod reporters;
pub mod settings;
pub mod state;
pub mod table;
pub mod time;
pub mod work;
