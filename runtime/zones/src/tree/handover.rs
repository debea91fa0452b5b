//! What the zone supervisors of a zone publish for those that come after them.
//!
//! If all supervisors of a zone fail at once, the members that take over must find the zone above, and must know
//! which zones have been alive there: otherwise nobody would notice the end of a zone that failed at the same time.

use std::collections::BTreeSet;

/// Most addresses.
pub(super) const CONTACTS_MAX: usize = 8;

/// The beginning of the keys of all attributes that trees publish for each other.
pub const ZONES_KEYS: &[u8] = b"muster.zones.";

/// The key of the attribute for the supervisors at this level.
pub(super) fn key(level: usize) -> Vec<u8> {
    let mut key = ZONES_KEYS.to_vec();
    key.extend(format!("handover.{level}").into_bytes());
    key
}

/// What is handed over.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Handover {
    /// Numbers of the zones that were alive, of those below the zone above.
    pub(super) seen: BTreeSet<u32>,
    /// Addresses of members of the zone above, of other zones.
    pub(super) contacts: Vec<Vec<u8>>,
}

impl Handover {
    /// The value of the attribute.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = (self.seen.len() as u32).to_le_bytes().to_vec();
        for zone in &self.seen {
            bytes.extend(zone.to_le_bytes());
        }
        for contact in &self.contacts {
            bytes.push(contact.len() as u8);
            bytes.extend(contact);
        }
        bytes
    }

    /// Reads the value of the attribute; `None` if it is malformed.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let (count, rest) = bytes.split_first_chunk::<4>()?;
        let count = u32::from_le_bytes(*count) as usize;
        let size = count.checked_mul(4)?;
        if rest.len() < size {
            return None;
        }
        let (zones, mut rest) = rest.split_at(size);
        let number = |bytes: &[u8]| bytes.try_into().map(u32::from_le_bytes).ok();
        let seen: Option<BTreeSet<u32>> = zones.chunks_exact(4).map(number).collect();
        let mut contacts = Vec::new();
        while let Some((length, after)) = rest.split_first() {
            let (contact, after) = after.split_at_checked(usize::from(*length))?;
            if contact.is_empty() || contacts.len() == CONTACTS_MAX {
                return None;
            }
            contacts.push(contact.to_vec());
            rest = after;
        }
        Some(Self {
            seen: seen?,
            contacts,
        })
    }

    /// Adds what another supervisor has published: its contacts replace those held.
    pub(super) fn merge(&mut self, other: Self) {
        self.seen.extend(other.seen);
        if !other.contacts.is_empty() {
            self.contacts = other.contacts;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_handover_is_read_as_it_was_written(
            seen in prop::collection::btree_set(any::<u32>(), 0..9),
            contacts in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..40), 0..CONTACTS_MAX),
        ) {
            let handover = Handover { seen, contacts };
            prop_assert_eq!(Handover::decode(&handover.encode()), Some(handover));
        }

        #[test]
        fn bytes_of_any_kind_are_read_safely(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            if let Some(handover) = Handover::decode(&bytes) {
                prop_assert!(handover.encode().len() <= bytes.len());
            }
        }
    }
}
