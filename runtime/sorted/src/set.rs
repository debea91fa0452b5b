//! `SortedSet`: a map without values.

use core::borrow::Borrow;
use core::ops::RangeBounds;

use crate::map::SortedMap;

/// A set in a sorted array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SortedSet<K> {
    keys: SortedMap<K, ()>,
}

impl<K> SortedSet<K> {
    /// An empty set, which needs no memory.
    #[must_use]
    pub const fn new() -> Self {
        let keys = SortedMap::new();
        Self { keys }
    }

    /// Number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Whether there are no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Drops all elements and their memory.
    pub fn clear(&mut self) {
        self.keys.clear();
    }

    /// The elements in their order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &K> {
        self.keys.keys()
    }

    /// The lowest element.
    #[must_use]
    pub fn first(&self) -> Option<&K> {
        self.keys.first_key_value().map(|(key, ())| key)
    }

    /// Removes the lowest element.
    pub fn pop_first(&mut self) -> Option<K> {
        self.keys.pop_first().map(|(key, ())| key)
    }

    /// Keeps the elements for which `is_kept` returns true.
    pub fn retain(&mut self, mut is_kept: impl FnMut(&K) -> bool) {
        self.keys.retain(|key, ()| is_kept(key));
    }
}

impl<K: Ord> SortedSet<K> {
    /// Whether it has this element.
    pub fn contains<Q: Ord + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.keys.contains_key(key)
    }

    /// Adds an element; returns false if it was there.
    pub fn insert(&mut self, key: K) -> bool {
        self.keys.insert(key, ()).is_none()
    }

    /// Removes an element; returns false if it was not there.
    pub fn remove<Q: Ord + ?Sized>(&mut self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.keys.remove(key).is_some()
    }

    /// The elements in a range, in their order.
    pub fn range(&self, range: impl RangeBounds<K>) -> impl DoubleEndedIterator<Item = &K> {
        self.keys.range(range).map(|(key, ())| key)
    }
}

impl<K> Default for SortedSet<K> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K: Ord> Extend<K> for SortedSet<K> {
    fn extend<I: IntoIterator<Item = K>>(&mut self, keys: I) {
        self.keys.extend(keys.into_iter().map(|key| (key, ())));
    }
}

impl<K: Ord> FromIterator<K> for SortedSet<K> {
    fn from_iter<I: IntoIterator<Item = K>>(keys: I) -> Self {
        let mut set = Self::new();
        set.extend(keys);
        set
    }
}

impl<K> IntoIterator for SortedSet<K> {
    type Item = K;
    type IntoIter = core::iter::Map<<SortedMap<K, ()> as IntoIterator>::IntoIter, fn((K, ())) -> K>;

    fn into_iter(self) -> Self::IntoIter {
        self.keys.into_iter().map(|(key, ())| key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Elements are there once, in their order.
    #[test]
    fn a_sorted_set_is_an_ordered_set() {
        let mut set: SortedSet<u8> = [5, 1, 3, 5].into_iter().collect();
        assert!(set.insert(4) && !set.insert(4));
        assert!(set.iter().eq(&[1, 3, 4, 5]));
        assert!(set.range(2..5).eq(&[3, 4]));
        assert!(set.remove(&3) && !set.remove(&3));
        assert!(set.contains(&1) && !set.contains(&3));
        assert_eq!((set.first(), set.len()), (Some(&1), 3));
        set.retain(|key| *key > 1);
        assert_eq!(
            (set.pop_first(), set.pop_first(), set.pop_first()),
            (Some(4), Some(5), None)
        );
        assert!(set.is_empty());
    }
}
