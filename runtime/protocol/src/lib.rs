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
//!   higher minor, and restarts with a higher incarnation (`identity`, `verdict`).
//! - A frame is valid for one incarnation of one receiver, and once (`frame`, `replay`).
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
//! The modules in layers, from bottom to top. None refers to a module of a layer above its own:
//!
//! 1. Values: `time`, `identity`, `state`, `reject`, `codec`, `mix`, `planted`, `work`.
//! 2. Made of them: `reporters`, `cause`, `evidence`, `ledger`, `subjects`, `ranks`, `member_info`, `counters`,
//!    `timers`.
//! 3. Measured: `arrivals`, `ack_rtt`, `lateness`, `replay`.
//! 4. Frames without their bodies, and attributes: `frame`, `attributes`.
//! 5. Settings and events: `config`, `parameters`, `event`.
//! 6. Bodies of frames: `wire`, `unverified`, `describe`.
//! 7. What a member holds, and its rules: `table`, `link`, `resends`, `links`, `verdict`.
//! 8. The interface to the host: `interface`.
//! 9. The engines: `overlay`, `age`; above both, `engine`.
//!
//! The crate does not know rails (a member has one opaque address), PMIx, Slurm, files, or wall-clock time.
#![forbid(unsafe_code)]
// Decisions do not depend on how a machine rounds.
#![deny(clippy::float_arithmetic)]

mod ack_rtt;
pub mod age;
mod arrivals;
mod attributes;
mod cause;
mod codec;
mod config;
mod counters;
pub mod describe;
mod engine;
mod event;
mod evidence;
pub mod frame;
mod identity;
mod interface;
mod lateness;
mod ledger;
mod link;
mod links;
mod member_info;
mod mix;
mod overlay;
mod parameters;
pub mod planted;
mod ranks;
mod reject;
mod replay;
mod reporters;
mod resends;
mod state;
mod subjects;
mod table;
mod time;
mod timers;
mod unverified;
mod verdict;
mod wire;
mod work;

pub use age::carried::{GOSSIP_AHEAD_MAX, GOSSIP_AHEAD_MEMBERS_MAX};
pub use age::{Age, AgeConfig};
pub use arrivals::Arrivals;
pub use attributes::{ENTRY_COST, KEY_MAX, KeyHandle, MAP_BYTES_MAX, MONITOR_KEY, VALUE_MAX};
pub use cause::{Cause, CauseKind};
pub use config::{
    Config, ConfigError, MTU_MAX, MTU_MIN, Minority, Mode, Policy, Profile, SEEDS_MAX, ZoneConfig,
};
pub use counters::Counters;
pub use engine::Engine;
pub use event::{Event, EventKind};
pub use evidence::{EVIDENCE_MAX, Observation, ObservationKind};
pub use identity::{ADDRESS_MAX, GROUP_MAX, INCARNATION_MAX, MemberId, NAME_MAX, Version};
pub use interface::{Class, Input, MemberView, Phase, Route, Target, Told, Transmit};
pub use lateness::LATE_MAX_US;
pub use ledger::{LedgerEntry, LedgerKey};
pub use overlay::{BEAT_AHEAD_MAX, GroupFailure, Overlay, ResumeError, Sizes};
pub use parameters::Parameter;
pub use reject::Reject;
pub use reporters::{REPORTERS_MAX, Reporters};
pub use state::{NodeState, RankDetail, RankFact, RankState};
pub use table::RANKS_MAX;
pub use time::Instant;
pub use unverified::{UnverifiedSender, unverified_sender};
