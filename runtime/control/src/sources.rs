//! What an agent knows, as the input of an answer.

use super::unreachable;
use muster_config::RailsDocument;
use muster_fabric::{Fabric, Nid};
use muster_protocol::{Engine, Instant};
use muster_zones::Tree;
use std::collections::BTreeMap;

/// What an agent knows when it is asked.
pub struct Sources<'a> {
    /// The membership, with the engine of the node's own zone in it.
    pub tree: &'a Tree,
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

impl Sources<'_> {
    /// The engine of the node's own zone.
    pub(super) fn engine(&self) -> &Engine {
        self.tree.base()
    }

    /// The counters of the engines of all zones that the node is a member of, summed up.
    pub(super) fn counters(&self) -> BTreeMap<String, u64> {
        let mut sums = BTreeMap::new();
        for (_, engine) in self.tree.memberships() {
            engine.counters().each(|name, value| {
                *sums.entry(name.to_owned()).or_default() += value;
            });
        }
        sums
    }
}
