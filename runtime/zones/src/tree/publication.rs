//! What the members of a zone publish in it for the tree, as attributes.
//!
//! - *Outside*, in the zone below: a member of the zone above tells its own zone about all others. It has the
//!   addresses of members of the zone above too, so that a member that takes over finds it.
//! - *Below*, in the zone above: a member tells about the zones below its own zone, and which zones it has declared
//!   failed or misses.
//!
//! A member of the zone below publishes *outside*, too, if its supervisors have all just started and it has not: a
//! *reminder* that the zone is older than they know, and of the zones beside it.
//!
//! A publication has one writer and is replaced as a whole. It counts while its publisher is in the view.

use muster_sorted::SortedMap;

use crate::map::ZoneMap;
use crate::tree::life::Life;
use crate::tree::reach::is_deeper;
use crate::tree::states::ZoneStates;

/// The beginning of the keys of all attributes that trees publish for each other.
pub const ZONES_KEYS: &[u8] = b"muster.zones.";
/// The key of what is published about the zones outside.
pub(super) const OUTSIDE_KEY: &[u8] = b"muster.zones.outside";
/// The key of what is published about the zones below.
pub(super) const BELOW_KEY: &[u8] = b"muster.zones.below";
/// Most addresses.
pub(super) const CONTACTS_MAX: usize = 8;

/// Numbers of an [`Outcast`] on the wire, besides its life and the newest node.
const FIELDS: usize = 4;

/// What became of a zone of the local node in the splits of the job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Outcast {
    /// How often it was declared failed, as far as its supervisors know.
    pub(super) known: u32,
    pub(super) life: Life,
    /// How often it was on the weaker side, so that its nodes are outcast.
    pub(super) count: u32,
    /// The incarnation of the node that had started last when it was counted.
    pub(super) newest: u64,
    /// In a split that has not ended: the nodes of the job that it sees alive; otherwise 0.
    pub(super) least: u32,
    /// And those that it saw before.
    pub(super) most: u32,
}

impl Outcast {
    /// Takes the later of both counts, the earlier life, and the deeper fall.
    pub(super) fn merge(&mut self, other: Self) {
        self.known = self.known.max(other.known);
        (self.count, self.newest) = (self.count, self.newest).max((other.count, other.newest));
        self.life = self.life.earlier(other.life);
        if is_deeper((other.least, other.most), (self.least, self.most)) {
            (self.least, self.most) = (other.least, other.most);
        }
    }

    fn encode(self, bytes: &mut Vec<u8>) {
        let fields = [self.known, self.count, self.least, self.most];
        bytes.extend(fields.into_iter().flat_map(u32::to_le_bytes));
        bytes.extend(self.newest.to_le_bytes());
        self.life.encode(bytes);
    }

    /// Reads one from the beginning of bytes. `None` if it is malformed, or its fields contradict each other.
    fn decode(mut bytes: &[u8]) -> Option<(Self, &[u8])> {
        let mut fields = [0; FIELDS];
        for field in &mut fields {
            let (first, rest) = bytes.split_first_chunk::<4>()?;
            *field = u32::from_le_bytes(*first);
            bytes = rest;
        }
        let [known, count, least, most] = fields;
        let (newest, rest) = bytes.split_first_chunk::<8>()?;
        let (life, rest) = Life::decode(rest)?;
        let outcast = Self {
            known,
            life,
            count,
            newest: u64::from_le_bytes(*newest),
            least,
            most,
        };
        (least <= most).then_some((outcast, rest))
    }
}

/// What a member publishes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Publication {
    /// Addresses of members of the zone above, of other zones.
    pub(super) contacts: Vec<Vec<u8>>,
    /// Whether the publisher's base zone has formed.
    pub(super) has_formed: bool,
    /// The publisher is no supervisor: it tells new ones what those before them knew.
    pub(super) is_reminder: bool,
    /// The zones of the publisher, by level.
    pub(super) outcasts: SortedMap<u8, Outcast>,
    pub(super) states: ZoneStates,
}

impl Publication {
    /// The value of the attribute.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![self.contacts.len() as u8];
        for contact in &self.contacts {
            bytes.push(contact.len() as u8);
            bytes.extend(contact);
        }
        bytes.push(u8::from(self.has_formed) | u8::from(self.is_reminder) << 1);
        bytes.push(self.outcasts.len() as u8);
        for (level, outcast) in self.outcasts.iter() {
            bytes.push(*level);
            outcast.encode(&mut bytes);
        }
        self.states.encode(&mut bytes);
        bytes
    }

    /// Reads the value of the attribute; `None` if it is malformed.
    pub(super) fn decode(map: &ZoneMap, bytes: &[u8]) -> Option<Self> {
        let (count, mut rest) = bytes.split_first()?;
        let mut contacts = Vec::new();
        for _ in 0..*count {
            let (length, after) = rest.split_first()?;
            let (contact, after) = after.split_at_checked(usize::from(*length))?;
            if contact.is_empty() || contacts.len() == CONTACTS_MAX {
                return None;
            }
            contacts.push(contact.to_vec());
            rest = after;
        }
        let (flags, rest) = rest.split_first()?;
        let (count, mut rest) = rest.split_first()?;
        let mut outcasts = SortedMap::new();
        for _ in 0..*count {
            let (level, after) = rest.split_first()?;
            let (outcast, after) = Outcast::decode(after)?;
            outcasts.insert(*level, outcast);
            rest = after;
        }
        Some(Self {
            contacts,
            has_formed: flags & 1 != 0,
            is_reminder: flags & 2 != 0,
            outcasts,
            states: ZoneStates::decode(map, rest)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::directory::Directory;
    use crate::plan::{Aim, plan};
    use crate::tree::states::ZoneState;

    /// 64 nodes in 16 base zones, below four zones and one.
    fn map() -> ZoneMap {
        let names: Vec<String> = (0..64).map(|node| format!("n{node}")).collect();
        let aim = Aim {
            one_zone_max: 4,
            zone: 4,
            above_max: 8,
        };
        plan(
            Directory::new(names.iter().map(String::as_str)).unwrap(),
            &[],
            aim,
        )
        .unwrap()
    }

    fn any_states() -> impl Strategy<Value = ZoneStates> {
        let map = map();
        let numbers: Vec<u32> = map.zones().map(crate::tree::zone_number).collect();
        let state = (any::<[bool; 5]>(), 0u32..2, 0u64..2, 0u64..2);
        let state = state.prop_map(|(flags, declared, began, of)| ZoneState {
            is_failed: flags[0],
            is_absent: flags[1],
            has_formed: flags[2],
            declared,
            // Of a zone that was never declared failed it is not told.
            of: of * u64::from(declared),
            life: match declared {
                0 => Life::default(),
                _ => Life {
                    began,
                    is_sure: flags[4],
                },
            },
            is_told: flags[3],
        });
        let zones = prop::collection::btree_map(prop::sample::select(numbers), state, 0..20);
        let missing = prop::collection::btree_set(0u32..64, 0..20);
        (zones, missing).prop_map(|(zones, missing)| ZoneStates {
            zones: zones.into_iter().collect(),
            missing,
        })
    }

    proptest! {
        /// ZM-12: the census.
        #[test]
        fn a_publication_is_read_as_it_was_written(
            contacts in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..40), 0..CONTACTS_MAX),
            outcasts in prop::collection::btree_map(0u8..4, any::<([u32; FIELDS], [u64; 2], bool)>(), 0..3),
            states in any_states(),
            [has_formed, is_reminder] in any::<[bool; 2]>(),
        ) {
            let outcasts = outcasts.into_iter().map(|(level, ([known, count, one, other], [began, newest], is_sure))| {
                let life = Life { began, is_sure };
                let (least, most) = (one.min(other), one.max(other));
                (level, Outcast { known, life, count, newest, least, most })
            });
            let outcasts = outcasts.collect();
            let publication = Publication { contacts, has_formed, is_reminder, outcasts, states };
            prop_assert_eq!(Publication::decode(&map(), &publication.encode()), Some(publication));
        }

        #[test]
        fn bytes_of_any_kind_are_read_safely(bytes in prop::collection::vec(any::<u8>(), 0..90)) {
            if let Some(publication) = Publication::decode(&map(), &bytes) {
                prop_assert!(publication.encode().len() <= bytes.len());
            }
        }

        /// What is below a zone and what is outside of it is all but the zone itself.
        #[test]
        fn a_zone_parts_the_states(states in any_states(), zone in 0usize..21) {
            let map = map();
            let zone = map.zones().nth(zone).unwrap();
            let mut parts = states.below(&map, zone);
            parts.extend(states.outside(&map, zone));
            if let Some(state) = states.get(zone) {
                parts.zones.insert(crate::tree::zone_number(zone), state);
            }
            prop_assert_eq!(parts, states);
        }
    }
}
