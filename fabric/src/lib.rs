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
//! `examples/fabric/put_get.rs` is a complete host for bulk messages.
//!
//! A peer without a working common net is reached through a member that shares a net with each side (`relay`). The
//! carrier receives a copy in an envelope and forwards it at once. Such messages arrive with [`Arrival::relayed`]
//! set; the host reports them with [`heard_through`](Transport::heard_through).
//!
//! Layers, from bottom to top; a module uses only modules that are listed before it:
//!
//! - `muster-provider`: NIDs, nets, lanes of libfabric, and what the machine reports about its interfaces
//! - `muster-rail-health`: the judgement of paths and rails
//! - `limits`, `peer_handle`, `stats`, `timeouts`, `bucket`, `window`: numbers, names and counters
//! - `error`: errors of this crate
//! - `policy`: the administrator's preference
//! - `select`: the choice of a path, a pure function of policy and health
//! - `bulk`, `relay`: the protocols of long messages and of relayed ones, as state machines
//! - `peer`, `liveness_connection`: what is known about a peer
//! - `message`, `view`, `lane`: messages, figures to show, and lanes whose sends have tags
//! - `config`: rails and limits of one fabric
//! - `rail`: an open rail
//! - `transport`: the interface of a fabric
//! - `fault`, `fabric`: the wrapper that injects faults, and the fabric itself
//!
//! Not in this crate: clocks (`now_us` is an argument, in microseconds of any monotonic clock), threads (except those
//! of `muster-provider`, for provider calls that would block and for reading interface speeds), membership, and trust.
//! Datagrams that arrive may come from any process. Bulk messages come from a process that has the key.

#![forbid(unsafe_code)]

mod bucket;
mod bulk;
mod config;
mod error;
mod fabric;
mod fault;
mod lane;
mod lane_names;
mod limits;
mod liveness_connection;
mod message;
mod peer;
mod peer_handle;
mod policy;
mod rail;
mod relay;
mod select;
mod stale_probes;
mod stats;
mod timeouts;
mod transport;
mod view;
mod window;

pub use bulk::BULK_MESSAGE_MAX;
pub use config::{DSCP_DEFAULT, FabricConfig};
pub use error::{OpenError, PeerError, PolicyError, RemoveError};
pub use fabric::{Fabric, OpenedRail, QUESTION_MAX, RailOpener};
pub use fault::{Cut, Direction, FaultCounters, FaultPlan, Faulty};
pub use limits::{MESSAGES_MAX, PATTERNS_MAX, RULES_MAX};
pub use liveness_connection::LivenessConnection;
pub use message::{Arrival, Class, PutOptions, Question, Relayed, Route, Sent};
pub use muster_provider::{
    Address, BEAT_PORT_OFFSET, CallError, DefaultRails, EndpointName, Interface, Libfabric,
    LoadError, NIDS_MAX, Net, NetKind, Nid, NidError, NidList, PORT_DEFAULT, RawEndpoint,
    TrafficClass, load, load_before_fork, load_from, locality,
};
pub use muster_rail_health::{
    Blame, Finding, HEALTH_MAX, HealthConfig, HealthState, Lack, Outcome, Pace, PairReport, infer,
};
pub use peer_handle::PeerHandle;
pub use policy::{NidPattern, Policy, Ranks, Rule, Subject};
pub use relay::{ENVELOPE_BYTES, Tally};
pub use select::{
    Candidate, CarrierInput, Choice, Explanation, Loss, PATHS_MAX, PathInput, RailInput, Request,
    Selection, Standing, Step, Tried, choose, choose_carriers, explain,
};
pub use stats::{Counters, DropReason, USAGE_HALF_LIFE_US};
pub use timeouts::Timeouts;
pub use transport::{FabricEvent, Transport};
pub use view::{
    Credits, NetView, PathState, PathView, PeerNidView, PeerView, RailView, RelayView, Through,
    Why, by_net, by_nid,
};
