//! Settings that both engines have, and the error for a setting that is rejected.

use thiserror::Error;

/// Smallest datagram, in bytes. Its body has room for the longest fact after the sender's own record, or after a
/// failure claim. Verbs' datagrams over Ethernet (RoCE) take 983 bytes, of which a relay's envelope takes 16.
pub const MTU_MIN: usize = 967;
/// Largest datagram, in bytes.
pub const MTU_MAX: usize = 65_000;

/// Policy of a member that learns that it was declared failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Rejoin with a higher incarnation, and take over the view of the members that said so.
    Rejoin,
    /// Return with a higher incarnation, and keep the view: two sides of a split merge. The host is not told, and
    /// decides itself which side was wrong.
    Merge,
    /// Stop: for jobs whose MPI cannot take back a failure.
    Stop,
}

/// A rejected configuration value; no engine was made.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{name} = {value}: {reason}; {remedy}")]
pub struct ConfigError {
    /// Name of the value.
    pub name: &'static str,
    /// The value.
    pub value: String,
    /// The reason.
    pub reason: &'static str,
    /// The remedy.
    pub remedy: &'static str,
}
