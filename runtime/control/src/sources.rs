//! What an agent knows, as the input of an answer.

use super::unreachable;
use muster_config::RailsDocument;
use muster_fabric::{Fabric, Nid};
use muster_protocol::{Engine, Instant};

/// What an agent knows when it is asked.
pub struct Sources<'a> {
    /// The membership protocol.
    pub engine: &'a Engine,
    /// The rails and peers.
    pub fabric: &'a Fabric,
    /// The configuration of the rails that is in force.
    pub document: &'a RailsDocument,
    /// Rails of it that are not open, and why.
    pub rail_retry: &'a [(Nid, String)],
    /// How the rails were chosen where none are configured, in words.
    pub choice: &'a [String],
    /// What neither engine nor fabric counts.
    pub agent: &'a [(&'static str, u64)],
    /// The senders with another key.
    pub unauthenticated: &'a [unreachable::UnauthenticatedSender],
    /// Name of the agent's node.
    pub node: &'a str,
    /// Name of the agent's job.
    pub job: &'a str,
    /// The time of the answer.
    pub now: Instant,
}
