//! `SortedMap`: entries in the order of their keys, in one array.

use core::borrow::Borrow;
use core::ops::{Bound, RangeBounds};
use std::collections::VecDeque;

/// Bytes of an empty collection that it keeps: one that is filled again and again does not allocate each time.
const KEPT: usize = 64;

/// A map in a sorted array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SortedMap<K, V> {
    entries: VecDeque<(K, V)>,
}

impl<K, V> SortedMap<K, V> {
    /// An empty map, which needs no memory.
    #[must_use]
    pub const fn new() -> Self {
        let entries = VecDeque::new();
        Self { entries }
    }

    /// Number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are no entries.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Drops all entries, and their memory as far as it is not small.
    pub fn clear(&mut self) {
        self.entries.clear();
        self.give_back();
    }

    /// The entries in the order of their keys.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (&K, &V)> {
        self.entries.iter().map(|(key, value)| (key, value))
    }

    /// The entries in the order of their keys, with values that may be changed.
    pub fn iter_mut(&mut self) -> impl DoubleEndedIterator<Item = (&K, &mut V)> {
        self.entries.iter_mut().map(|(key, value)| (&*key, value))
    }

    /// The keys in their order.
    pub fn keys(&self) -> impl DoubleEndedIterator<Item = &K> {
        self.entries.iter().map(|(key, _)| key)
    }

    /// The values in the order of their keys.
    pub fn values(&self) -> impl DoubleEndedIterator<Item = &V> {
        self.entries.iter().map(|(_, value)| value)
    }

    /// The values in the order of their keys, to be changed.
    pub fn values_mut(&mut self) -> impl DoubleEndedIterator<Item = &mut V> {
        self.entries.iter_mut().map(|(_, value)| value)
    }

    /// The entry with the lowest key.
    #[must_use]
    pub fn first_key_value(&self) -> Option<(&K, &V)> {
        self.entries.front().map(|(key, value)| (key, value))
    }

    /// Removes the entry with the lowest key.
    pub fn pop_first(&mut self) -> Option<(K, V)> {
        let first = self.entries.pop_front()?;
        self.give_back();
        Some(first)
    }

    /// Keeps the entries for which `is_kept` returns true.
    pub fn retain(&mut self, mut is_kept: impl FnMut(&K, &mut V) -> bool) {
        self.entries.retain_mut(|(key, value)| is_kept(key, value));
        self.give_back();
    }

    /// Makes room for one more entry. The room grows by a quarter: a collection stays close to its size.
    fn make_room(&mut self) {
        let length = self.entries.len();
        if length == self.entries.capacity() {
            self.entries.reserve_exact(length / 4 + 2);
        }
    }

    /// Gives memory back when most of it is not used.
    fn give_back(&mut self) {
        if self.entries.is_empty() {
            if self.entries.capacity() * size_of::<(K, V)>() > KEPT {
                self.entries = VecDeque::new();
            }
        } else if self.entries.len() < self.entries.capacity() / 4 {
            self.entries.shrink_to(self.entries.len() * 2);
        }
    }
}

impl<K: Ord, V> SortedMap<K, V> {
    /// The place of a key, or the place where it would be.
    fn find<Q: Ord + ?Sized>(&self, key: &Q) -> Result<usize, usize>
    where
        K: Borrow<Q>,
    {
        match self.entries.back() {
            Some((last, _)) if last.borrow() < key => Err(self.entries.len()),
            _ => self
                .entries
                .binary_search_by(|(held, _)| held.borrow().cmp(key)),
        }
    }

    /// Whether there is an entry with this key.
    pub fn contains_key<Q: Ord + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.find(key).is_ok()
    }

    /// The value with this key.
    pub fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        let place = self.find(key).ok()?;
        self.entries.get(place).map(|(_, value)| value)
    }

    /// The value with this key, to be changed.
    pub fn get_mut<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
    {
        let place = self.find(key).ok()?;
        self.entries.get_mut(place).map(|(_, value)| value)
    }

    /// The value with this key; if there is none, the new one that was put there.
    pub fn get_or_insert_with(&mut self, key: K, value: impl FnOnce() -> V) -> &mut V {
        let place = self.find(&key).unwrap_or_else(|place| {
            self.make_room();
            self.entries.insert(place, (key, value()));
            place
        });
        &mut self.entries[place].1
    }

    /// The same; the new one is the default.
    pub fn get_or_default(&mut self, key: K) -> &mut V
    where
        V: Default,
    {
        self.get_or_insert_with(key, V::default)
    }

    /// Puts a value there, and returns the one that was there.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        match self.find(&key) {
            Ok(place) => Some(core::mem::replace(&mut self.entries[place].1, value)),
            Err(place) => {
                self.make_room();
                self.entries.insert(place, (key, value));
                None
            }
        }
    }

    /// Removes the value with this key.
    pub fn remove<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        let place = self.find(key).ok()?;
        let (_, value) = self.entries.remove(place)?;
        self.give_back();
        Some(value)
    }

    /// The entries in a range of keys, in their order.
    pub fn range(&self, range: impl RangeBounds<K>) -> impl DoubleEndedIterator<Item = (&K, &V)> {
        let place = |key: &K, is_after: bool| match self.find(key) {
            Ok(place) => place + usize::from(is_after),
            Err(place) => place,
        };
        let from = match range.start_bound() {
            Bound::Included(key) => place(key, false),
            Bound::Excluded(key) => place(key, true),
            Bound::Unbounded => 0,
        };
        let to = match range.end_bound() {
            Bound::Included(key) => place(key, true),
            Bound::Excluded(key) => place(key, false),
            Bound::Unbounded => self.entries.len(),
        };
        let entries = self.entries.range(from.min(to)..to);
        entries.map(|(key, value)| (key, value))
    }
}

impl<K, V> Default for SortedMap<K, V> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K: Ord, V> Extend<(K, V)> for SortedMap<K, V> {
    fn extend<I: IntoIterator<Item = (K, V)>>(&mut self, entries: I) {
        for (key, value) in entries {
            self.insert(key, value);
        }
    }
}

impl<K: Ord, V> FromIterator<(K, V)> for SortedMap<K, V> {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(entries: I) -> Self {
        let mut map = Self::new();
        map.extend(entries);
        map
    }
}

impl<K, V> IntoIterator for SortedMap<K, V> {
    type Item = (K, V);
    type IntoIter = std::collections::vec_deque::IntoIter<(K, V)>;

    fn into_iter(self) -> Self::IntoIter {
        self.entries.into_iter()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn entries(map: &SortedMap<u8, u16>) -> Vec<(u8, u16)> {
        map.iter().map(|(key, value)| (*key, *value)).collect()
    }

    proptest! {
        /// It gives the answers of a `BTreeMap`, whatever was done to it.
        #[test]
        fn a_sorted_map_is_an_ordered_map(
            steps in proptest::collection::vec((0..7_u8, 0..40_u8, any::<u16>()), 1..200),
            range in (0..40_u8, 0..40_u8),
        ) {
            let (mut map, mut plain) = (SortedMap::new(), BTreeMap::new());
            for (what, key, value) in steps {
                match what {
                    0 => prop_assert_eq!(map.remove(&key), plain.remove(&key)),
                    1 => prop_assert_eq!(map.pop_first(), plain.pop_first()),
                    2 => {
                        map.retain(|key, held| *key % 3 > 0 || *held > value);
                        plain.retain(|key, held| *key % 3 > 0 || *held > value);
                    }
                    3 => prop_assert_eq!(
                        map.get_or_insert_with(key, || value),
                        plain.entry(key).or_insert(value)
                    ),
                    _ => prop_assert_eq!(map.insert(key, value), plain.insert(key, value)),
                }
                prop_assert_eq!(map.get(&key), plain.get(&key));
                prop_assert_eq!(map.contains_key(&key), plain.contains_key(&key));
                prop_assert_eq!(map.first_key_value(), plain.first_key_value());
                prop_assert!(map.iter().eq(plain.iter()));
                prop_assert_eq!(map.len(), plain.len());
            }
            let (low, high) = (range.0.min(range.1), range.0.max(range.1));
            prop_assert!(map.range(low..high).eq(plain.range(low..high)));
            prop_assert!(map.range(low..=high).rev().eq(plain.range(low..=high).rev()));
            let after = (Bound::Excluded(low), Bound::Unbounded);
            prop_assert!(map.range(after).eq(plain.range(after)));
            let copy: SortedMap<u8, u16> = plain.into_iter().rev().collect();
            prop_assert_eq!(entries(&copy), entries(&map));
        }
    }

    /// A range from a key to an earlier one is empty.
    #[test]
    fn a_range_backwards_is_empty() {
        let map: SortedMap<u8, u16> = (0..9).map(|key| (key, 0)).collect();
        let (from, to) = (Bound::Included(7), Bound::Excluded(3));
        assert_eq!(map.range((from, to)).count(), 0);
    }

    /// There is little room beyond what is held, and none in an empty map.
    #[test]
    fn room_follows_the_entries() {
        let mut map = SortedMap::new();
        for key in 0..1000_u32 {
            map.insert(key.wrapping_mul(2_654_435_761), key);
            assert!(map.entries.capacity() <= map.len() + map.len() / 4 + 2);
        }
        while map.len() > 10 {
            map.pop_first();
        }
        assert!(map.entries.capacity() <= 44, "{}", map.entries.capacity());
        map.retain(|_, _| false);
        assert_eq!(map.entries.capacity(), 0);
    }
}
