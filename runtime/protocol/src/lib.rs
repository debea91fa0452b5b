//! Muster's membership protocols as pure state machines.
//!
//! An engine has no clock, no socket, no thread, and no order that changes from run to run. Time, datagrams
//! and random seeds are inputs; datagrams and events are outputs. The same inputs give the same outputs on
//! every machine. An agent drives it over a fabric, and `muster-sim` in a simulated network.
//!
//! There are two engines. [`Overlay`] is zone membership: members observe their ring successors, probe
//! silent ones, report them, and spread news along a tree of links. [`Age`] is gossip of ages. [`Engine`]
//! is either of them.
//!
//! Three ideas to know before reading on:
//!
//! - A *version* (incarnation, minor) orders all facts about a member. A member refutes a report with a
//!   higher minor, and restarts with a higher incarnation (`muster_wire::identity`, `verdict`).
//! - A frame is valid for one incarnation of one receiver, and once (`muster_wire::frame`, `muster_wire::replay`).
//! - A silence counts only while the local member itself was running (`lateness`).
//!
//! The loop of a host, after every change:
//!
//! 1. [`Overlay::handle`] one [`Input`], with the present time.
//! 2. [`Overlay::poll_transmit`] until `None`: send the frames.
//! 3. [`Overlay::poll_event`] until `None`: tell the application.
//! 4. Sleep until [`Overlay::poll_timeout`] or the next datagram; go to 1 with [`Input::Wake`] or the datagram.
//!
//! Waiting datagrams must be handled before the wake-up, since only a wake-up judges silences. Beats may
//! wait for it, news may not ([`Class`]). A host that wakes late is measured ([`Overlay::lateness_us`]).
//!
//! What both engines have in common is in `muster-wire`: identities, frames, the table of members, events, the
//! interface to the host. [`Age`] is in `muster-age`. Hosts depend on this crate alone, which re-exports what they need
//! of the other two.
//!
//! The modules of this crate in layers, from bottom to top. None refers to a module of a layer above its own:
//!
//! 1. Values: `subjects`, `timers`.
//! 2. Measured: `arrivals`, `ack_rtt`, `lateness`.
//! 3. Attributes and settings: `attributes`, `config`, `parameters`.
//! 4. Bodies of frames: `wire`, `unverified`, `describe`.
//! 5. What a member holds, and its rules: `link`, `resends`, `links`, `verdict`.
//! 6. The engine: `overlay`; above it and `Age`, `engine`.
//!
//! The crate does not know rails (a member has one opaque address), PMIx, Slurm, files, or wall-clock time.
#![forbid(unsafe_code)]
// Decisions do not depend on how a machine rounds.
#![deny(clippy::float_arithmetic)]

mod ack_rtt;
mod arrivals;
mod attributes;
mod config;
pub mod describe;
mod engine;
mod lateness;
mod link;
mod links;
mod overlay;
mod resends;
mod subjects;
mod timers;
mod unverified;
mod verdict;
mod wire;

// The modules of the crates below by their names alone, as if they were here: `crate::time::Instant`.
use muster_sorted as sorted;
use muster_wire::{
    cause, codec, counters, event, evidence, identity, interface, ledger, member_info, mix,
    parameter, parameters, reject, replay, reporters, state, table, time, work,
};

/// The frame: what a host reads of it.
pub mod frame {
    pub use muster_wire::frame::{
        FRAME_OVERHEAD, HEADER_SIZE, TAG_SIZE, WIRE_VERSION, is_for_anyone, sender, zone,
    };
    pub(crate) use muster_wire::frame::{
        FrameName, Header, Kind, Opened, Receiver, open, other_release, peek, seal, unproven,
    };
}

pub use arrivals::Arrivals;
pub use attributes::{ENTRY_COST, KEY_MAX, MAP_BYTES_MAX, MONITOR_KEY, VALUE_MAX};
pub use config::{Config, Minority, Mode, Profile, SEEDS_MAX, ZoneConfig};
pub use engine::Engine;
pub use lateness::LATE_MAX_US;
pub use muster_age::carried::{GOSSIP_AHEAD_MAX, GOSSIP_AHEAD_MEMBERS_MAX};
pub use muster_age::{self as age, Age, AgeConfig};
pub use muster_wire::cause::{Cause, CauseKind};
pub use muster_wire::counters::Counters;
pub use muster_wire::event::{Event, EventKind, KeyHandle};
pub use muster_wire::evidence::{EVIDENCE_MAX, Observation, ObservationKind};
pub use muster_wire::identity::{
    ADDRESS_MAX, GROUP_MAX, INCARNATION_MAX, MemberId, NAME_MAX, Version,
};
pub use muster_wire::interface::{Class, Input, MemberView, Phase, Route, Target, Told, Transmit};
pub use muster_wire::ledger::{LedgerEntry, LedgerKey};
pub use muster_wire::parameter::{Difference, Parameter};
pub use muster_wire::planted;
pub use muster_wire::reject::Reject;
pub use muster_wire::reporters::{REPORTERS_MAX, Reporters};
pub use muster_wire::settings::{ConfigError, MTU_MAX, MTU_MIN, Policy};
pub use muster_wire::state::{NodeState, RankDetail, RankFact, RankState};
pub use muster_wire::table::RANKS_MAX;
pub use muster_wire::time::Instant;
pub use overlay::{BEAT_AHEAD_MAX, GroupFailure, Overlay, ResumeError, Sizes};
pub use unverified::{UnverifiedSender, unverified_sender};
