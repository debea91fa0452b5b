//! Muster's membership protocols as pure state machines.
//!
//! Nothing here has a clock, a socket, a thread or an order that changes from run to run: time,
//! datagrams and randomness are handed in, datagrams and events are taken out, and the same
//! inputs give the same outputs on every machine. One host drives it over a fabric, another
//! (`muster-sim`) in a simulated world.
//!
//! The loop of a host, after every change of anything:
//!
//! 1. [`Overlay::handle`] one [`Input`], with the time now.
//! 2. [`Overlay::poll_transmit`] until `None`: send what it wrote.
//! 3. [`Overlay::poll_event`] until `None`: tell the application.
//! 4. Sleep until [`Overlay::poll_timeout`] or the next datagram; go to 1 with [`Input::Wake`] or
//!    the datagram. Datagrams that wait already go in before the wake-up, or those who sent them
//!    look more silent than they were; a datagram itself judges nobody's silence. Beats may be left
//!    lying until the wake-up, news may not ([`Class`]). A host that wakes late is found out
//!    ([`Overlay::lateness_us`]).
//!
//! What is absent: rails (a member has one opaque address; the fabric knows what is in it), PMIx,
//! Slurm, files, wall-clock time.
#![forbid(unsafe_code)]
// No decision hangs on how a machine rounds.
#![deny(clippy::float_arithmetic)]

mod ack_rtt;
pub mod age;
mod arrivals;
mod attributes;
mod codec;
mod config;
mod counters;
pub mod describe;
mod engine;
mod event;
mod evidence;
pub mod frame;
mod identity;
mod lateness;
mod link;
mod member_info;
mod overlay;
mod parameters;
pub mod planted;
mod ranks;
mod reject;
mod replay;
mod state;
mod subjects;
mod table;
mod time;
mod unverified;
mod verdict;
mod wire;

pub use age::carried::{GOSSIP_AHEAD_MAX, GOSSIP_AHEAD_MEMBERS_MAX};
pub use age::{Age, AgeConfig};
pub use arrivals::Arrivals;
pub use attributes::{ENTRY_COST, KEY_MAX, KeyHandle, MAP_BYTES_MAX, MONITOR_KEY, VALUE_MAX};
pub use config::{
    Config, ConfigError, MTU_MAX, MTU_MIN, Minority, Mode, Policy, Profile, SEEDS_MAX,
};
pub use counters::Counters;
pub use engine::Engine;
pub use event::{Cause, CauseKind, Event, EventKind};
pub use evidence::{EVIDENCE_MAX, Observation, ObservationKind};
pub use identity::{ADDRESS_MAX, GROUP_MAX, INCARNATION_MAX, MemberId, NAME_MAX, Version};
pub use lateness::LATE_MAX_US;
pub use overlay::{
    BEAT_AHEAD_MAX, Class, GroupFailure, Input, MemberView, Overlay, Phase, ResumeError, Route,
    Sizes, Target, Told, Transmit,
};
pub use parameters::Parameter;
pub use reject::Reject;
pub use state::{NodeState, RankDetail, RankFact, RankState};
pub use table::{RANKS_MAX, REPORTERS_MAX, Reporters};
pub use time::Instant;
pub use unverified::{UnverifiedSender, unverified_sender};
