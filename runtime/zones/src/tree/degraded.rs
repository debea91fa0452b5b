//! Nodes of other zones that are degraded, as they say themselves in an attribute of theirs, which supervisors copy as
//! all others. What the attribute means is the host's matter: it names the key, and reads the value.

use muster_protocol::{KeyHandle, NodeState};

use crate::directory::NodeIndex;
use crate::map::ZoneId;
use crate::tree::relay::original;
use crate::tree::{Tree, TreeEvent};

/// The attribute in which nodes say that they are degraded.
#[derive(Clone, Copy, Debug)]
pub struct DegradedAttribute {
    /// Its key.
    pub key: &'static [u8],
    /// Whether a value of it says so.
    pub is_degraded: fn(&[u8]) -> bool,
}

impl Tree {
    /// Whether a node of another zone says that it is degraded.
    pub(super) fn says_degraded(&self, node: NodeIndex) -> bool {
        let says = |one: DegradedAttribute| {
            let value = self.current_copy(node, one.key)?;
            Some((one.is_degraded)(value))
        };
        self.degraded_attribute.and_then(says) == Some(true)
    }

    /// An attribute of a member of the base zone has changed, which may be the copy of a node's.
    pub(super) fn note_status(&mut self, key: KeyHandle) {
        let copy = self.base().changed_key(key).and_then(original);
        if let Some((node, _)) = copy.filter(|(_, key)| self.is_status(key)) {
            self.note_degraded(node);
        }
    }

    /// The nodes of other zones that have published the attribute.
    pub(super) fn nodes_with_status(&self) -> Vec<NodeIndex> {
        if self.degraded_attribute.is_none() {
            return Vec::new();
        }
        let base = self.base();
        let members = base.members().filter(|member| member.state().in_view());
        let keys = members.flat_map(|member| base.attributes(member.id()));
        let copies = keys.filter_map(|(key, ..)| original(key));
        let said = copies.filter(|(_, key)| self.is_status(key));
        said.map(|(node, _)| node).collect()
    }

    /// The state of all nodes of a zone has changed: those of `nodes` are reviewed that are in it.
    pub(super) fn note_degraded_of(&mut self, zone: ZoneId, nodes: &[NodeIndex]) {
        for node in nodes {
            if self.map.zones_of(*node).any(|of| of == zone) {
                self.note_degraded(*node);
            }
        }
    }

    /// Tells the host if a node of another zone has become degraded, or is no longer.
    ///
    /// Of one that is not alive nothing is told: the host knows its state.
    pub(super) fn note_degraded(&mut self, node: NodeIndex) {
        let state = self.node_state(node);
        let is_degraded = state == Some(NodeState::Degraded);
        let is_new = match is_degraded {
            true => self.degraded.insert(node.0),
            false => self.degraded.remove(&node.0),
        };
        if is_new && matches!(state, Some(NodeState::Alive | NodeState::Degraded)) {
            self.tell(TreeEvent::Degraded { node, is_degraded });
        }
    }

    fn is_status(&self, key: &[u8]) -> bool {
        self.degraded_attribute.is_some_and(|one| one.key == key)
    }
}
