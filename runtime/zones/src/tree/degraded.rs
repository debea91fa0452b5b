//! Nodes of other zones that are degraded, as they say themselves in an attribute of theirs, which supervisors copy as
//! all others. What the attribute means is the host's matter: it names the key, and reads the value.

use muster_protocol::{KeyHandle, NodeState};

use crate::directory::NodeIndex;
use crate::map::ZoneId;
use crate::tree::relay::original;
use crate::tree::{Tree, TreeEvent};

/// The attribute in which nodes say that they are degraded.
#[derive(Clone, Copy, Debug)]
pub struct DegradedBy {
    /// Its key.
    pub key: &'static [u8],
    /// Whether a value of it says so.
    pub says: fn(&[u8]) -> bool,
}

impl Tree {
    /// Whether a node of another zone says that it is degraded.
    pub(super) fn says_degraded(&self, node: NodeIndex) -> bool {
        let value = |by: DegradedBy| Some((by.says)(self.current_copy(node, by.key)?));
        self.degraded_by.and_then(value) == Some(true)
    }

    /// An attribute of a member of the base zone has changed: it may be the copy of what a node said.
    pub(super) fn note_said(&mut self, key: KeyHandle) {
        let copy = self.base().changed_key(key).and_then(original);
        let of = copy.filter(|(_, key)| self.is_said_by(key));
        if let Some((node, _)) = of {
            self.note_degraded(node);
        }
    }

    /// The nodes of a zone are alive again, or for the first time: what those say of themselves counts that have said
    /// something.
    pub(super) fn note_degraded_of(&mut self, zone: ZoneId) {
        let base = self.base();
        let members = base.members().filter(|member| member.state().in_view());
        let keys = members.flat_map(|member| base.attributes(member.id()));
        let copies = keys.filter_map(|(key, ..)| original(key));
        let said = copies.filter(|(_, key)| self.is_said_by(key));
        let nodes: Vec<NodeIndex> = said.map(|(node, _)| node).collect();
        for node in nodes {
            if self.map.zones_of(node).any(|of| of == zone) {
                self.note_degraded(node);
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

    fn is_said_by(&self, key: &[u8]) -> bool {
        self.degraded_by.is_some_and(|by| by.key == key)
    }
}
