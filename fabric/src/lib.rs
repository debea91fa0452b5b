//! Messages to and from peers over several rails at once.
//!
//! A **rail** is a local network interface on one **net** (`udp0`). Its name is its **NID**, an address on a net,
//! such as `192.0.2.7@udp0`. A **peer** is known by all of its NIDs. A **path** is a pair of a local rail and a
//! remote NID on the same net. A message to a peer takes one path, or, as [`Route::All`], a copy takes every home
//! path. The crate selects the path and avoids rails that fail. It reports when a peer that sends on one rail has
//! gone silent on another.
//!
//! The crate does not interpret messages and does not decide which peer is alive.
//!
//! Each rail has two **lanes**, which are separate datagram endpoints. A message of [`Class::News`] wakes the host. A
//! message of [`Class::Beat`] stays in its lane until the host is awake for another reason. Only the news lane has a
//! descriptor, so a host that must receive beats in time has its own tick.
//!
//! One thread drives a [`Fabric`], in this order. Only step 1 blocks:
//!
//! 1. Wait on [`Transport::wait_fds`] (edge-triggered) and the host's own descriptors, but only if
//!    [`Transport::may_sleep`] returns true, and at most until [`Transport::next_timeout`].
//! 2. Call [`Transport::poll`] until it returns that there is no more. Call [`Transport::poll_beats`] instead if the
//!    host slept and none of the descriptors woke it. Call [`heard`](Transport::heard) for each arrival that the host
//!    has authenticated.
//! 3. Call [`Transport::poll_event`] until it returns none.
//! 4. Call [`Transport::send`].
//!
//! A peer without a working common net is reached through a member that shares a net with each side (`relay`). The
//! carrier receives a copy in an envelope and forwards it at once. Such messages arrive with [`Arrival::relayed`]
//! set; the host reports them with [`heard_through`](Transport::heard_through).
//!
//! Not in this crate: clocks (`now_us` is an argument, in microseconds of any monotonic clock), threads (except for
//! provider calls that would block, see `provider/names.rs`, and for reading interface speeds, see `speeds.rs`),
//! membership, and trust. Datagrams that arrive may come from any process. Bulk messages come from a process that has
//! the key.

#![deny(unsafe_code)]

mod bucket;
mod bulk;
mod choice;
mod config;
mod error;
mod fabric;
mod fault;
mod health;
mod link;
mod liveness_connection;
pub mod locality;
mod net;
mod nid;
mod peer;
mod policy;
#[allow(unsafe_code)]
mod provider;
mod rail;
mod raw_endpoint;
mod relay;
mod select;
mod speeds;
mod stats;
mod timeouts;
mod transport;
mod view;
mod window;

pub use bulk::BULK_MESSAGE_MAX;
pub use choice::DefaultRails;
pub use config::FabricConfig;
pub use error::{CallError, NidError, OpenError, PeerError, PolicyError, RemoveError};
pub use fabric::{Fabric, OpenedRail, QUESTION_MAX, RailOpener};
pub use fault::{Cut, Direction, FaultCounters, FaultPlan, Faulty};
pub use health::{
    Blame, Finding, HEALTH_MAX, HealthConfig, HealthState, Lack, Outcome, Pace, PairReport, infer,
};
pub use libfabric_sys::LoadError;
pub use liveness_connection::LivenessConnection;
pub use net::{Net, NetKind};
pub use nid::{Address, BEAT_PORT_OFFSET, NIDS_MAX, Nid, NidList, PORT_DEFAULT};
pub use peer::PeerHandle;
pub use policy::{MESSAGES_MAX, NidPattern, PATTERNS_MAX, Policy, RULES_MAX, Ranks, Rule, Subject};
pub use provider::{Interface, Libfabric, TrafficClass, load, load_from};
pub use raw_endpoint::RawEndpoint;
pub use relay::{ENVELOPE_BYTES, Tally};
pub use select::{
    Candidate, CarrierInput, Choice, Explanation, Loss, PATHS_MAX, PathInput, RailInput, Request,
    Selection, Standing, Step, Tried, choose, choose_carriers, explain,
};
pub use stats::{Counters, DropReason, USAGE_HALF_LIFE_US};
pub use timeouts::Timeouts;
pub use transport::{
    Arrival, Class, FabricEvent, PutOptions, Question, Relayed, Route, Sent, Transport,
};
pub use view::{
    Credits, NetView, PathState, PathView, PeerNidView, PeerView, RailView, RelayView, Through,
    Why, by_net, by_nid,
};
