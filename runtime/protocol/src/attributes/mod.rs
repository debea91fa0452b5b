//! Attributes: each member writes a map of keys and values, which all members read.
//!
//! A member that writes its map tells only the new version. A member that holds less requests what is
//! newer, and gets just that. While nothing changes nothing is sent.
//!
//! Files: `map` (the keys of one member, in the order of writes), `replica` (a map that is built from
//! frames that may be lost, duplicated or reordered), `store` (all replicas of an engine, and its requests
//! and replies), `pending` (its requests without a reply), `message` (the two messages). The update stage
//! needs no message of its own: the version of a map is news (`Subject::Map`), acknowledged and repaired as
//! such. `overlay::attributes` connects them.
//!
//! Guarantees:
//!
//! - A replica follows the order of writes: reported versions increase, and a value sent in parts counts
//!   when it is complete. A key that is written twice before it is sent is reported once.
//! - A deleted key leaves a certificate, which is dropped after some time. A replica that is further behind
//!   is built anew beside the old one, and replaces it when it is complete.
//! - Keys, values, maps, all replicas together, and data in transfer are bounded.
//! - A map exists as long as its writer's present incarnation is in the view.

mod map;
pub(crate) mod message;
mod pending;
mod replica;
mod store;

pub(crate) use map::Map;
pub(crate) use replica::Taken;
pub(crate) use store::Store;

/// Longest key, in bytes.
pub const KEY_MAX: usize = 255;
/// Longest value, in bytes.
pub const VALUE_MAX: usize = 65_536;
/// Largest map of one member, in bytes: keys, values, and [`ENTRY_COST`] for each key.
pub const MAP_BYTES_MAX: usize = 1 << 20;
/// Bytes counted for a key beside its name and value.
pub const ENTRY_COST: usize = 64;
/// A member whose map has this key is a monitor: suspicions are sent to it at once.
pub const MONITOR_KEY: &[u8] = b"muster.monitor";
/// Most monitors served, the lowest ids first.
pub(crate) const MONITORS_MAX: usize = 8;
/// Most certificates of deleted keys in one map; the oldest is dropped first.
pub(crate) const CERTIFICATES_MAX: usize = 64;
/// Most bytes of a map in transfer: old values and those that replace them may be held at the same time,
/// and certificates that the writer has dropped.
pub(crate) const GROWING_BYTES_MAX: usize =
    2 * MAP_BYTES_MAX + CERTIFICATES_MAX * (ENTRY_COST + KEY_MAX);
/// How long a certificate is kept, in microseconds.
pub(crate) const CERTIFICATE_LIFE_US: u64 = 60_000_000;
/// Versions of maps are below this; a higher one is rejected.
pub(crate) const MAP_VERSION_MAX: u64 = 1 << 62;
