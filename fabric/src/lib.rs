//! Messages to and from peers over several rails at once.
//!
//! A **rail** is a local network interface on one **net** (`udp0`); its name is its **NID**, an
//! address on a net, such as `192.0.2.7@udp0`. A **peer** is known by all of its NIDs. A message to
//! a peer takes one **path**, which is a pair of a local rail and a remote NID on the same net; or,
//! as [`Route::All`], a copy takes every home path. The crate chooses the path, avoids rails that fail,
//! and says when a peer that is heard on one rail has gone silent on another.
//!
//! Intuition: a post office with several doors. It knows doors and letters, and which door a letter
//! from whom came through; it never opens a letter and has no opinion about who is alive.
//!
//! Each rail has two **lanes**, datagram endpoints of their own: [`Class::News`] wakes the host,
//! [`Class::Beat`] lies there until the host is awake for another reason. Only the first has a
//! descriptor, so a host that must hear beats in time has a tick of its own.
//!
//! One thread drives a [`Fabric`], in this order, and nothing blocks but step 1:
//!
//! 1. wait on [`Transport::wait_fds`] (edge-triggered) and the host's own descriptors, but only if
//!    [`Transport::may_sleep`] says so, and at most until [`Transport::next_timeout`];
//! 2. [`Transport::poll`] until it says that there is no more ([`Transport::poll_beats`] where the
//!    host slept and none of the descriptors woke it), and [`heard`](Transport::heard) for every
//!    arrival that was proved authentic;
//! 3. [`Transport::poll_event`] until it is empty;
//! 4. [`Transport::send`].
//!
//! A peer with which no working net is shared is reached through one that shares one with each side
//! (`relay`): a copy goes to it in an envelope, which it sends straight on. Such messages arrive with
//! [`Arrival::relayed`] set, and are told by [`heard_through`](Transport::heard_through).
//!
//! Absent on purpose: clocks (`now_us` is an argument, any monotonic microseconds will do),
//! threads (but for questions that a provider would wait for, see `provider/names.rs`), membership, and
//! trust: datagrams that arrive may come from anybody. Bulk messages come from who has the key.

#![deny(unsafe_code)]

mod bucket;
mod bulk;
mod choice;
mod config;
mod error;
mod fabric;
mod fault;
mod fold;
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
mod range;
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
pub use error::{CallError, NidError, OpenError, PeerError, PolicyError, RangeError, RemoveError};
pub use fabric::{Fabric, OpenedRail, QUESTION_MAX, RailOpener};
pub use fault::{Cut, Direction, FaultCounters, FaultPlan, Faulty};
pub use fold::{by_number, fold};
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
pub use range::expand;
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
