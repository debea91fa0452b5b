//! Attributes of nodes of other zones.
//!
//! Engines carry attributes within a zone. Each supervisor of a zone copies those of its nodes into the zone above,
//! and those of other zones into its own, as attributes of its own whose keys name the node. A copy has the version of
//! the original before its value, so a reader of several copies takes the newest. Each supervisor copies in the order
//! of the writes, so a reader that sees a write also sees the earlier ones of the same node.
//!
//! A copy stays when its node fails, as the last that is known of it, until the node starts anew. All copies of a
//! supervisor share the limit of one member's attributes ([`muster_protocol::MAP_BYTES_MAX`]).

use core::fmt::Write as _;

use muster_protocol::{Input, KEY_MAX, KeyHandle, LedgerKey, MONITOR_KEY, MemberId};

use crate::directory::NodeIndex;
use crate::tree::Tree;
use crate::tree::publication::ZONES_KEYS;

/// What follows [`ZONES_KEYS`] in the key of a copy; the number of the node and the key follow.
const COPY: &[u8] = b"a.";
/// Digits of the number, and the dot behind it.
const NODE_SIZE: usize = 9;
/// The version before the value: incarnation of the node, and number of the write.
const VERSION_SIZE: usize = 16;

/// The key of a copy.
pub(super) fn copy_key(node: NodeIndex, key: &[u8]) -> Vec<u8> {
    let mut number = String::new();
    // Writing into a string does not fail.
    let _ = write!(number, "{:08x}.", node.0);
    [ZONES_KEYS, COPY, number.as_bytes(), key].concat()
}

/// The version of a copy.
pub(super) fn version(incarnation: u64, write: u64) -> [u8; VERSION_SIZE] {
    let mut version = [0; VERSION_SIZE];
    version[..8].copy_from_slice(&incarnation.to_be_bytes());
    version[8..].copy_from_slice(&write.to_be_bytes());
    version
}

/// The node and the key that a copy is of; `None` for other attributes.
pub(super) fn original(copy: &[u8]) -> Option<(NodeIndex, &[u8])> {
    let rest = copy.strip_prefix(ZONES_KEYS)?.strip_prefix(COPY)?;
    let (number, key) = rest.split_at_checked(NODE_SIZE)?;
    let number = core::str::from_utf8(number.strip_suffix(b".")?).ok()?;
    let number = u32::from_str_radix(number, 16).ok()?;
    Some((NodeIndex(number), key))
}

/// Whether an attribute is for the node's own zone only.
fn is_of_zone(key: &[u8]) -> bool {
    key.starts_with(ZONES_KEYS) || key == MONITOR_KEY
}

impl Tree {
    /// The node with this name, if it is one of another zone.
    fn elsewhere(&self, name: &str) -> Option<NodeIndex> {
        let node = self.map.directory().find(name)?;
        (!self.ids.contains_key(&node)).then_some(node)
    }

    /// The value of an attribute of the node with this name. None if the node has started anew since it wrote it.
    #[must_use]
    pub fn attribute(&self, name: &str, key: &[u8]) -> Option<&[u8]> {
        let Some(node) = self.elsewhere(name) else {
            return self.base().attribute(MemberId::of(name), key);
        };
        self.current_copy(node, key)
    }

    /// The value of the copy of an attribute of a node of another zone, unless the node has started anew since.
    pub(super) fn current_copy(&self, node: NodeIndex, key: &[u8]) -> Option<&[u8]> {
        let copy = self.newest_copy(0, &copy_key(node, key))?;
        let written = u64::from_be_bytes(*copy.first_chunk()?);
        let known = self.entry(0, LedgerKey::Node(node.0));
        let known = known.and_then(|entry| entry.version());
        let is_of_now = known.is_none_or(|version| written >= version.incarnation);
        copy.get(VERSION_SIZE..).filter(|_| is_of_now)
    }

    /// The value of the copy of an attribute of this node.
    pub(super) fn copy_of(&self, node: NodeIndex, key: &[u8]) -> Option<&[u8]> {
        let copy = self.newest_copy(0, &copy_key(node, key))?;
        copy.get(VERSION_SIZE..)
    }

    /// The keys of the attributes of the node with this name, in order.
    #[must_use]
    pub fn attribute_keys(&self, name: &str) -> Vec<&[u8]> {
        let base = self.base();
        let Some(node) = self.elsewhere(name) else {
            let own = base.attributes(MemberId::of(name));
            return own.map(|(key, ..)| key).collect();
        };
        let members = base.members().filter(|member| member.state().in_view());
        let members = members.map(|member| member.id());
        let copies = members.flat_map(|id| base.attributes(id).map(|(key, ..)| key));
        let keys = copies.filter_map(|copy| {
            let (of, key) = original(copy)?;
            (of == node).then_some(key)
        });
        let mut keys: Vec<&[u8]> = keys.collect();
        keys.sort_unstable();
        keys.dedup();
        keys
    }

    /// The node of another zone, and the key, that an `AttributeChanged` event of the base zone is about.
    #[must_use]
    pub fn changed_copy(&self, key: KeyHandle) -> Option<(NodeIndex, &[u8])> {
        original(self.base().changed_key(key)?)
    }

    /// Attributes that were not copied to other zones, as there was no room.
    #[must_use]
    pub fn copies_refused(&self) -> u64 {
        self.copies_refused
    }

    fn newest_copy(&self, level: usize, copy: &[u8]) -> Option<&[u8]> {
        let engine = &self.levels[level].engine;
        let values = engine.members().filter(|member| member.state().in_view());
        let values = values.filter_map(|member| engine.attribute(member.id(), copy));
        values.max_by_key(|value| value.first_chunk::<VERSION_SIZE>().copied())
    }

    /// An attribute of a member of the zone at this level has changed.
    pub(super) fn relay(&mut self, level: usize, member: MemberId, handle: KeyHandle) {
        let Some(key) = self.levels[level].engine.changed_key(handle) else {
            return;
        };
        let key = key.to_vec();
        self.relay_key(level, member, &key);
    }

    /// Copies all attributes of the zone at this level into the zone above, which the local node has just joined.
    pub(super) fn relay_all(&mut self, level: usize) {
        let engine = &self.levels[level].engine;
        let of = |id: MemberId| {
            engine
                .attributes(id)
                .map(move |(key, ..)| (id, key.to_vec()))
        };
        let members = engine.members().map(|member| member.id());
        let all: Vec<(MemberId, Vec<u8>)> = members.flat_map(of).collect();
        for (member, key) in all {
            self.relay_key(level, member, &key);
        }
    }

    fn relay_key(&mut self, level: usize, member: MemberId, key: &[u8]) {
        if let Some((node, _)) = original(key) {
            let value = self.newest_copy(level, key).map(<[u8]>::to_vec);
            let zone = self.levels[level].zone;
            if self.map.zones_of(node).any(|of| of == zone) {
                self.copy(level + 1, key, value.as_deref());
            }
            let below = level.checked_sub(1).map(|below| self.levels[below].zone);
            if below.is_some_and(|below| !self.map.zones_of(node).any(|of| of == below)) {
                self.copy(level - 1, key, value.as_deref());
            }
            return;
        }
        if level > 0 || self.levels.len() < 2 || is_of_zone(key) {
            return;
        }
        if let Some(node) = self.levels[0].node_of(&self.map, member) {
            let value = self.versioned(member, key);
            self.copy(1, &copy_key(node, key), value.as_deref());
        }
    }

    /// The value of an attribute of a member of the base zone, behind its version.
    fn versioned(&self, member: MemberId, key: &[u8]) -> Option<Vec<u8>> {
        let engine = self.base();
        let incarnation = engine.member(member)?.version().incarnation;
        let mut attributes = engine.attributes(member);
        let (_, value, write) = attributes.find(|(other, ..)| *other == key)?;
        Some([&version(incarnation, write)[..], value].concat())
    }

    /// Withdraws the copies of the local node in the zone at this level: it is no longer a supervisor of it.
    pub(super) fn withdraw_copies(&mut self, level: usize) {
        let engine = &self.levels[level].engine;
        let keys = engine.attributes(engine.id()).map(|(key, ..)| key.to_vec());
        let copies: Vec<Vec<u8>> = keys.filter(|key| original(key).is_some()).collect();
        for key in copies {
            self.copy(level, &key, None);
        }
    }

    /// Writes or withdraws a copy in the zone at this level, if the local node is a member of it.
    pub(super) fn copy(&mut self, level: usize, key: &[u8], value: Option<&[u8]>) {
        let now = self.now;
        let Some(level) = self.levels.get_mut(level) else {
            return;
        };
        let held = level.engine.attribute(level.engine.id(), key);
        let is_older =
            |value: &[u8]| held.is_some_and(|held| held[..VERSION_SIZE.min(held.len())] > *value);
        let input = match value {
            Some(value) if held == Some(value) || is_older(value) => return,
            Some(value) => Input::Publish { key, value },
            None if held.is_none() => return,
            None => Input::Withdraw { key },
        };
        if key.len() > KEY_MAX || level.engine.handle(now, input).is_err() {
            self.copies_refused += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_key_of_a_copy_names_its_original(node: u32, key in prop::collection::vec(any::<u8>(), 1..40)) {
            let copy = copy_key(NodeIndex(node), &key);
            prop_assert_eq!(original(&copy), Some((NodeIndex(node), &key[..])));
            prop_assert!(is_of_zone(&copy));
        }

        #[test]
        fn other_keys_are_no_copies(key in prop::collection::vec(any::<u8>(), 0..40)) {
            prop_assert_eq!(original(&key), None);
            if let Some((node, rest)) = original(&[ZONES_KEYS, &key[..]].concat()) {
                prop_assert_eq!(copy_key(node, rest).len(), ZONES_KEYS.len() + key.len());
            }
        }
    }
}
