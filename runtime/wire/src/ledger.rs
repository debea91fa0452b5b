//! The ledger: what a member knows about nodes and ranks outside of its own zone.
//!
//! An entry states the newest state of one node or rank of the job; what is in its first state, alive, has
//! none. So the ledger grows with the failures of a job, and not with its size. Of two entries with one key the
//! greater one is kept, by a total order. So members that have exchanged their entries hold the same ledger, in
//! whatever order and however often the entries came.
//!
//! An engine disseminates and repairs the entries as it does its other facts, and interprets none of them.

use std::collections::{BTreeMap, BTreeSet};

use crate::cause::CauseKind;
use crate::codec::{Full, Malformed, Reader, Writer};
use crate::identity::{INCARNATION_MAX, Version, is_plausible};
use crate::mix::mix;
use crate::state::{NodeState, RankDetail, RankFact, RankState};

/// What an entry is about. Nodes and ranks are named by their numbers in the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LedgerKey {
    /// A node.
    Node(u32),
    /// A rank.
    Rank(u32),
}

/// An entry. The order of the fields is the order in which two entries with one key are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LedgerEntry {
    key: LedgerKey,
    /// The incarnation of the node.
    incarnation: u64,
    /// The node's minor, or the rank's sequence.
    order: u32,
    state: u8,
    /// The number of the cause; for a rank, the code of its evidence.
    cause: u8,
    /// The exit code; for a rank, its node and the argument of its evidence.
    argument: i32,
}

/// A node's number is below this in an entry about a rank.
const RANK_NODES_MAX: u32 = 1 << 22;

impl LedgerEntry {
    /// A node's state: alive, failed or left. Other states count as alive: they are not for the whole job.
    #[must_use]
    pub fn node(
        node: u32,
        version: Version,
        state: NodeState,
        cause: CauseKind,
        exit_code: i32,
    ) -> Self {
        let state = match state {
            NodeState::Failed | NodeState::Left => state,
            _ => NodeState::Alive,
        };
        Self {
            key: LedgerKey::Node(node),
            incarnation: version.incarnation,
            order: version.minor,
            state: state as u8,
            cause: cause as u8,
            argument: exit_code,
        }
    }

    /// A rank's state, as its node stated it in this incarnation. `node` is below 2^22.
    #[must_use]
    pub fn rank(node: u32, incarnation: u64, fact: RankFact) -> Self {
        Self {
            key: LedgerKey::Rank(fact.rank),
            incarnation,
            order: fact.sequence,
            state: fact.state as u8,
            cause: fact.detail.code,
            argument: (node % RANK_NODES_MAX).cast_signed() << 8 | i32::from(fact.detail.argument),
        }
    }

    /// What it is about.
    #[must_use]
    pub const fn key(&self) -> LedgerKey {
        self.key
    }

    /// The version of the node; `None` if it is not about a node.
    #[must_use]
    pub fn version(&self) -> Option<Version> {
        let version = Version {
            incarnation: self.incarnation,
            minor: self.order,
        };
        matches!(self.key, LedgerKey::Node(_)).then_some(version)
    }

    /// The state of the node; `None` if it is about a rank.
    #[must_use]
    pub fn node_state(&self) -> Option<NodeState> {
        match self.key {
            LedgerKey::Node(_) => NodeState::from_number(self.state),
            LedgerKey::Rank(_) => None,
        }
    }

    /// The evidence for the node's state; `None` if it is not about a node.
    #[must_use]
    pub fn cause(&self) -> Option<CauseKind> {
        let is_node = matches!(self.key, LedgerKey::Node(_));
        CauseKind::from_number(self.cause).filter(|_| is_node)
    }

    /// The exit code of a node that left; 0 otherwise.
    #[must_use]
    pub const fn exit_code(&self) -> i32 {
        match self.key {
            LedgerKey::Node(_) => self.argument,
            _ => 0,
        }
    }

    /// The node that it is about, or whose rank it is about.
    #[must_use]
    pub fn about_node(&self) -> u32 {
        match self.key {
            LedgerKey::Node(node) => node,
            LedgerKey::Rank(_) => self.argument.cast_unsigned() >> 8,
        }
    }

    /// The incarnation of the node that stated it, and the fact; `None` if it is not about a rank.
    #[must_use]
    pub fn rank_fact(&self) -> Option<(u64, RankFact)> {
        let LedgerKey::Rank(rank) = self.key else {
            return None;
        };
        let detail = RankDetail {
            code: self.cause,
            argument: self.argument as u8,
        };
        let fact = RankFact {
            rank,
            state: RankState::from_number(self.state)?,
            detail,
            sequence: self.order,
        };
        Some((self.incarnation, fact))
    }

    /// A hash of all of it; never 0.
    pub fn stamp(&self) -> u64 {
        let (tag, number) = self.key.parts();
        let mut stamp = mix(u64::from(tag) << 32 | u64::from(number));
        stamp = mix(stamp ^ self.incarnation);
        stamp = mix(stamp ^ u64::from(self.order) ^ u64::from(self.state) << 32);
        stamp = mix(stamp ^ u64::from(self.argument.cast_unsigned()) ^ u64::from(self.cause) << 32);
        stamp.max(1)
    }

    /// Reads an entry.
    ///
    /// # Errors
    /// The bytes end before it, or it is not a valid entry.
    pub fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let (tag, number) = (reader.u8()?, reader.u32()?);
        let entry = Self {
            key: LedgerKey::from_parts(tag, number).ok_or(Malformed::Value)?,
            incarnation: reader.u64()?,
            order: reader.u32()?,
            state: reader.u8()?,
            cause: reader.u8()?,
            argument: reader.i32()?,
        };
        if entry.is_valid() {
            Ok(entry)
        } else {
            Err(Malformed::Value)
        }
    }

    fn is_valid(&self) -> bool {
        let has_incarnation = (1..=INCARNATION_MAX).contains(&self.incarnation);
        match self.key {
            LedgerKey::Node(_) => {
                let state = NodeState::from_number(self.state);
                let is_told = matches!(
                    state,
                    Some(NodeState::Alive | NodeState::Failed | NodeState::Left)
                );
                has_incarnation && self.order > 0 && is_told && self.cause().is_some()
            }
            LedgerKey::Rank(_) => {
                let state = RankState::from_number(self.state);
                let is_state = state.is_some_and(|state| state != RankState::Unknown);
                has_incarnation && is_state && self.argument.cast_unsigned() >> 30 == 0
            }
        }
    }

    /// Writes it.
    ///
    /// # Errors
    /// The buffer is full.
    pub fn write(&self, writer: &mut Writer<'_>) -> Result<(), Full> {
        let (tag, number) = self.key.parts();
        writer.u8(tag)?;
        writer.u32(number)?;
        writer.u64(self.incarnation)?;
        writer.u32(self.order)?;
        writer.u8(self.state)?;
        writer.u8(self.cause)?;
        writer.i32(self.argument)
    }
}

impl LedgerKey {
    /// A number for the kind, and its own number.
    pub const fn parts(self) -> (u8, u32) {
        match self {
            Self::Node(number) => (0, number),
            Self::Rank(number) => (1, number),
        }
    }

    /// The key with these [`parts`](Self::parts), if there is one.
    pub const fn from_parts(tag: u8, number: u32) -> Option<Self> {
        Some(match tag {
            0 => Self::Node(number),
            1 => Self::Rank(number),
            _ => return None,
        })
    }
}

/// What came of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Merged {
    /// It was news.
    New,
    /// The ledger has the same.
    Known,
    /// The ledger has a newer one.
    Old,
    /// There is no room for it, or its incarnation is not plausible.
    Refused,
}

/// The entries of one member.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    entries: BTreeMap<LedgerKey, LedgerEntry>,
    /// Keys whose entry has changed since the host asked.
    changed: BTreeSet<LedgerKey>,
    digest: u64,
    entries_max: usize,
}

impl Ledger {
    /// An empty ledger with room for this many entries.
    pub fn new(entries_max: usize) -> Self {
        Self {
            entries_max,
            ..Self::default()
        }
    }

    /// The entry with this key.
    pub fn get(&self, key: LedgerKey) -> Option<&LedgerEntry> {
        self.entries.get(&key)
    }

    /// All entries, in the order of their keys.
    pub fn iter(&self) -> impl Iterator<Item = &LedgerEntry> {
        self.entries.values()
    }

    /// All keys, in their order.
    pub fn keys(&self) -> impl Iterator<Item = LedgerKey> {
        self.entries.keys().copied()
    }

    /// Number of entries.
    pub fn count(&self) -> usize {
        self.entries.len()
    }

    /// The sum of the stamps of all entries: equal for equal ledgers.
    pub fn digest(&self) -> u64 {
        self.digest
    }

    /// The next key whose entry has changed.
    pub fn pop_changed(&mut self) -> Option<LedgerKey> {
        self.changed.pop_first()
    }

    /// What would come of an entry.
    pub fn compare(&self, entry: &LedgerEntry) -> Merged {
        let held = self.entries.get(&entry.key);
        let held_incarnation = held.map_or(0, |held| held.incarnation);
        match held {
            Some(held) if held > entry => Merged::Old,
            Some(held) if held == entry => Merged::Known,
            _ if !is_plausible(entry.incarnation, held_incarnation) => Merged::Refused,
            None if self.entries.len() >= self.entries_max => Merged::Refused,
            _ => Merged::New,
        }
    }

    /// Takes an entry if it is newer than the one held.
    pub fn merge(&mut self, entry: LedgerEntry) -> Merged {
        let merged = self.compare(&entry);
        if merged == Merged::New {
            let before = self.entries.insert(entry.key, entry);
            let gone = before.map_or(0, |before| before.stamp());
            self.digest = self.digest.wrapping_sub(gone).wrapping_add(entry.stamp());
            self.changed.insert(entry.key);
        }
        merged
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_entry() -> impl Strategy<Value = LedgerEntry> {
        let node = (0u32..4, 1u64..4, 1u32..3, 0usize..3, 0i32..3);
        let node = node.prop_map(|(node, incarnation, minor, state, exit_code)| {
            let state = [NodeState::Alive, NodeState::Failed, NodeState::Left][state];
            let version = Version { incarnation, minor };
            LedgerEntry::node(node, version, state, CauseKind::Silence, exit_code)
        });
        let rank = (0u32..4, 1u64..3, 0u32..3, 1u8..5, 0u8..3);
        let rank = rank.prop_map(|(rank, incarnation, sequence, state, argument)| {
            let detail = RankDetail { code: 7, argument };
            let state = RankState::from_number(state).unwrap();
            let fact = RankFact {
                rank,
                state,
                detail,
                sequence,
            };
            LedgerEntry::rank(rank % 3, incarnation, fact)
        });
        prop_oneof![node, rank]
    }

    proptest! {
        /// ZM-02, ZM-12: whatever the order and the duplicates, equal entries lead to equal ledgers.
        #[test]
        fn equal_entries_make_equal_ledgers(
            entries in prop::collection::vec(any_entry(), 0..40),
            order in prop::collection::vec(0usize..40, 0..40),
        ) {
            let (mut left, mut right) = (Ledger::new(64), Ledger::new(64));
            for entry in &entries {
                left.merge(*entry);
            }
            for at in order {
                entries.get(at).map(|entry| right.merge(*entry));
            }
            for entry in entries.iter().rev() {
                right.merge(*entry);
            }
            prop_assert!(left.iter().eq(right.iter()));
            prop_assert_eq!(left.digest(), right.digest());
            let sum = left.iter().map(LedgerEntry::stamp).fold(0, u64::wrapping_add);
            prop_assert_eq!(left.digest(), sum);
        }

        #[test]
        fn an_entry_is_read_as_it_was_written(entry in any_entry()) {
            let mut buffer = [0; 64];
            let mut writer = Writer::new(&mut buffer);
            entry.write(&mut writer).unwrap();
            let used = writer.used();
            let mut reader = Reader::new(&buffer[..used]);
            prop_assert_eq!(LedgerEntry::read(&mut reader).ok(), Some(entry));
            prop_assert!(reader.is_empty());
        }

        /// No bytes cause a panic, and what is accepted is written as the same bytes.
        #[test]
        fn bytes_of_any_kind_are_read_safely(bytes in prop::collection::vec(any::<u8>(), 23)) {
            if let Ok(entry) = LedgerEntry::read(&mut Reader::new(&bytes)) {
                let mut buffer = [0; 23];
                entry.write(&mut Writer::new(&mut buffer)).unwrap();
                prop_assert_eq!(&buffer[..], &bytes[..]);
            }
        }
    }

    fn failed(node: u32, incarnation: u64) -> LedgerEntry {
        let version = Version::first(incarnation);
        LedgerEntry::node(node, version, NodeState::Failed, CauseKind::Silence, 0)
    }

    /// ZM-03.
    #[test]
    fn a_full_ledger_refuses_new_keys_and_takes_newer_entries() {
        let mut ledger = Ledger::new(2);
        assert_eq!(ledger.merge(failed(1, 5)), Merged::New);
        assert_eq!(ledger.merge(failed(2, 5)), Merged::New);
        assert_eq!(ledger.merge(failed(3, 5)), Merged::Refused);
        assert_eq!(ledger.merge(failed(2, 6)), Merged::New);
        assert_eq!(ledger.merge(failed(2, 5)), Merged::Old);
        assert_eq!(ledger.merge(failed(2, 6)), Merged::Known);
        assert_eq!(ledger.merge(failed(1, 1 << 62 | 1)), Merged::Refused);
        let changed: Vec<_> = core::iter::from_fn(|| ledger.pop_changed()).collect();
        assert_eq!(changed, [LedgerKey::Node(1), LedgerKey::Node(2)]);
    }

    /// Within one version the end of a node beats its life; a later incarnation beats both.
    #[test]
    fn an_end_is_newer_than_life_in_the_same_version() {
        let version = Version::first(5);
        let alive = LedgerEntry::node(1, version, NodeState::Suspect, CauseKind::Joined, 0);
        assert_eq!(alive.node_state(), Some(NodeState::Alive));
        let mut ledger = Ledger::new(2);
        assert_eq!(ledger.merge(failed(1, 5)), Merged::New);
        assert_eq!(ledger.merge(alive), Merged::Old);
        let version = Version::first(6);
        let back = LedgerEntry::node(1, version, NodeState::Alive, CauseKind::Joined, 0);
        assert_eq!(ledger.merge(back), Merged::New);
    }
}
