//! The attributes of one member: keys with values, in the order of writes.
//!
//! Every write has a version, one above the last. So the changes after version 7 are the entries from 8 on,
//! and two maps of one version are equal.
//!
//! A deleted key stays as a certificate (an entry without a value), so that its deletion can be sent.
//! Certificates are dropped after some time; `floor` is the version of the newest dropped one. A replica
//! must have accounted for all deletions up to there (`settled`) to continue from its version.

use std::sync::Arc;

use crate::attributes::{CERTIFICATE_LIFE_US, CERTIFICATES_MAX, ENTRY_COST};
use crate::sorted::SortedMap;
use crate::time::Instant;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) version: u64,
    /// `None` if the key is deleted.
    pub(crate) value: Option<Box<[u8]>>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Map {
    entries: SortedMap<Arc<[u8]>, Entry>,
    order: SortedMap<u64, Arc<[u8]>>,
    /// Versions of the certificates, with the time of arrival.
    certificates: SortedMap<u64, Instant>,
    /// All entries up to this version are held.
    pub(crate) version: u64,
    /// All deletions up to this version are accounted for; at least `version`.
    pub(crate) settled: u64,
    /// Certificates up to this version may have been dropped.
    pub(crate) floor: u64,
    bytes: usize,
}

impl Map {
    pub(crate) fn get(&self, key: &[u8]) -> Option<&[u8]> {
        self.entries.get(key)?.value.as_deref()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Keys with a value, in the order of keys, each with its version.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8], u64)> {
        self.entries
            .iter()
            .filter_map(|(key, entry)| Some((&**key, entry.value.as_deref()?, entry.version)))
    }

    /// All entries after this version, certificates too, oldest first.
    pub(crate) fn newer(&self, version: u64) -> impl Iterator<Item = (&Arc<[u8]>, &Entry)> {
        self.order
            .range(version.saturating_add(1)..)
            .filter_map(|(_, key)| Some((key, self.entries.get(key)?)))
    }

    /// The size of the map after this write, in bytes.
    pub(crate) fn bytes_with(&self, key: &[u8], value: usize) -> usize {
        let old = self.entries.get(key).map_or(0, |entry| cost(key, entry));
        self.bytes - old + ENTRY_COST + key.len() + value
    }

    /// Writes an entry with its version. Returns whether a reader sees a difference. An entry that is not
    /// newer than the one held changes nothing.
    pub(crate) fn write(
        &mut self,
        now: Instant,
        key: &[u8],
        value: Option<Box<[u8]>>,
        version: u64,
    ) -> bool {
        let held = self.entries.get(key);
        if held.is_some_and(|held| held.version >= version) {
            return false;
        }
        let was_there = held.is_some_and(|held| held.value.is_some());
        let visible = was_there || value.is_some();
        let name: Arc<[u8]> = key.into();
        self.drop_entry(key);
        if value.is_none() {
            self.certificates.insert(version, now);
        }
        let entry = Entry { version, value };
        self.bytes += cost(key, &entry);
        self.order.insert(version, name.clone());
        self.entries.insert(name, entry);
        while self.certificates.len() > CERTIFICATES_MAX {
            self.forget_certificate();
        }
        visible
    }

    /// Drops expired certificates.
    pub(crate) fn expire(&mut self, now: Instant) {
        while let Some((_, since)) = self.certificates.first_key_value()
            && now >= since.after(CERTIFICATE_LIFE_US)
        {
            self.forget_certificate();
        }
    }

    /// When the oldest certificate came.
    pub(crate) fn certified_since(&self) -> Option<Instant> {
        self.certificates.first_key_value().map(|(_, since)| *since)
    }

    /// All entries up to `version` are held now.
    pub(crate) fn advance(&mut self, version: u64) {
        self.version = self.version.max(version);
        self.settled = self.settled.max(self.version);
    }

    /// Jumps above a version that others hold and this map does not: a write of a former worker that was
    /// lost with it. No replica can continue from its version then, so the certificates are of no use.
    pub(crate) fn jump(&mut self, version: u64) {
        while !self.certificates.is_empty() {
            self.forget_certificate();
        }
        self.advance(version);
        self.floor = self.version;
    }

    fn forget_certificate(&mut self) {
        if let Some((version, _)) = self.certificates.pop_first() {
            self.floor = self.floor.max(version);
            if let Some(key) = self.order.get(&version).cloned() {
                self.drop_entry(&key);
            }
        }
    }

    fn drop_entry(&mut self, key: &[u8]) {
        if let Some(entry) = self.entries.remove(key) {
            self.bytes -= cost(key, &entry);
            self.order.remove(&entry.version);
            self.certificates.remove(&entry.version);
        }
    }
}

fn cost(key: &[u8], entry: &Entry) -> usize {
    ENTRY_COST + key.len() + entry.value.as_deref().map_or(0, <[u8]>::len)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Instant = Instant(1);

    fn put(map: &mut Map, key: &[u8], value: Option<&[u8]>) {
        let version = map.version + 1;
        map.write(NOW, key, value.map(Into::into), version);
        map.advance(version);
    }

    /// ZM-11: the order is that of the writes, and each key is in it once.
    #[test]
    fn newer_is_in_the_order_of_writes() {
        let mut map = Map::default();
        for key in [b"b", b"a", b"c", b"b"] {
            put(&mut map, key, Some(b"v"));
        }
        let newer: Vec<(&[u8], u64)> = map.newer(1).map(|(k, e)| (&**k, e.version)).collect();
        assert_eq!(newer, [(&b"a"[..], 2), (b"c", 3), (b"b", 4)]);
    }

    /// ZM-11: certificates are bounded in number and in time; the floor covers the dropped ones.
    #[test]
    fn certificates_are_forgotten_and_the_floor_remembers() {
        let mut map = Map::default();
        for number in 0..=CERTIFICATES_MAX as u32 {
            put(&mut map, &number.to_le_bytes(), Some(b"v"));
            put(&mut map, &number.to_le_bytes(), None);
        }
        assert_eq!((map.certificates.len(), map.floor), (CERTIFICATES_MAX, 2));
        map.expire(NOW.after(CERTIFICATE_LIFE_US - 1));
        assert_eq!(map.certificates.len(), CERTIFICATES_MAX);
        map.expire(NOW.after(CERTIFICATE_LIFE_US));
        assert_eq!((map.certificates.len(), map.bytes()), (0, 0));
        assert_eq!(map.floor, map.version);
    }
}
