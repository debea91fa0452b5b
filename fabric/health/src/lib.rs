//! Which rails, remote NIDs and pairs of them work. The state machines here receive outcomes and times, and make no
//! calls.
//!
//! There are three, all pure. [`RailLiveness`] observes one peer on all rails and compares arrivals with
//! arrivals. [`Health`] is a number from 0 to 1000 that errors lower and successes raise, kept for each local
//! rail and each path to a remote NID. [`infer`] compares all pairs and returns the most likely place of a
//! fault: a pair, a remote interface, a local one, a net, or a node; or that the place cannot be determined.
//!
//! They return no verdicts about peers: a peer that is silent on all rails is a matter for the membership
//! protocol.

#![forbid(unsafe_code)]

mod infer;
mod outcome;
mod rail_liveness;
mod score;

pub use infer::{Finding, Lack, PAIRS_MAX, PairReport, infer, local_faults};
pub use outcome::{Blame, Outcome};
pub use rail_liveness::{LivenessChange, Pace, RailLiveness};
pub use score::{HEALTH_MAX, Health, HealthChange, HealthConfig, HealthState};
