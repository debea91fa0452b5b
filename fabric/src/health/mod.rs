//! Which rails, remote NIDs and pairs work: told outcomes and times, never asking.
//!
//! Three small state machines, each pure. [`RailLiveness`] listens for one peer on all rails and compares
//! arrivals with arrivals. [`Health`] is a number from 0 to 1000 that errors lower and successes
//! raise, kept for each local rail and each path to a remote NID. [`infer`] looks at all pairs
//! together and says where the fault is most likely to be: a pair, a remote interface, a local one, a
//! net, a node; or that it cannot be told.
//!
//! Not here: verdicts about peers. Silence on every rail is the protocol's business.

mod infer;
mod outcome;
mod rail_liveness;
mod score;

pub use infer::{Finding, Lack, PairReport, infer};
pub(crate) use infer::{PAIRS_MAX, local_faults};
pub use outcome::{Blame, Outcome};
pub use rail_liveness::Pace;
pub(crate) use rail_liveness::{LivenessChange, RailLiveness};
pub use score::{HEALTH_MAX, HealthConfig, HealthState};
pub(crate) use score::{Health, HealthChange};
