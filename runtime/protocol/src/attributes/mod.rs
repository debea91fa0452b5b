//! Attributes: each member writes a map of keys and values, everybody reads all of them.
//!
//! Intuition: a notice board in every house. Whoever changes his own notice tells his neighbours
//! only "mine is at 7 now"; who has less asks for what is newer, and gets just that. Nobody says
//! anything while nothing changes.
//!
//! One noun a file: `map` (one member's keys, in the order of their writes), `replica` (how a map
//! grows out of frames that may be lost, doubled or overtaken), `store` (all replicas of an
//! engine, what it asks for and what it was asked for), `message` (the two kinds of frame).
//! The update stage needs no frame of its own: a map's version is news like any other
//! (`Subject::Map`), acknowledged and repaired as such. `overlay::attributes` ties it together.
//!
//! What holds:
//! - A replica follows its writer's order: what is told has growing versions, and a value that
//!   travels in parts counts when it is whole. A key that is written twice before it travels is
//!   told once.
//! - A deleted key leaves a certificate, which is forgotten after a time; a replica that is
//!   further behind than that is built anew beside the old one and takes its place when complete.
//! - Keys, values, maps, all replicas together, and what is under way have bounds.
//! - A map lives as long as its writer's present life is in the view.

mod map;
pub(crate) mod message;
mod replica;
mod store;

pub(crate) use map::Map;
pub(crate) use replica::Taken;
pub(crate) use store::Store;

/// Longest key, in bytes.
pub const KEY_MAX: usize = 255;
/// Longest value, in bytes.
pub const VALUE_MAX: usize = 65_536;
/// Most bytes of one member's map: keys, values, and [`ENTRY_COST`] for each key.
pub const MAP_BYTES_MAX: usize = 1 << 20;
/// What a key costs beside its bytes and those of its value.
pub const ENTRY_COST: usize = 64;
/// A member whose map has this key is a monitor: suspicions are sent to it at once.
pub const MONITOR_KEY: &[u8] = b"muster.monitor";
/// Most monitors that are served, first by id.
pub(crate) const MONITORS_MAX: usize = 8;
/// Most certificates of deleted keys in one map; the oldest is forgotten first.
pub(crate) const CERTIFICATES_MAX: usize = 64;
/// Most bytes of a map on its way here: values that are to be replaced and those that replace
/// them may be there at the same time, and certificates that the writer has forgotten already.
pub(crate) const GROWING_BYTES_MAX: usize =
    2 * MAP_BYTES_MAX + CERTIFICATES_MAX * (ENTRY_COST + KEY_MAX);
/// How long a certificate lives, in microseconds.
pub(crate) const CERTIFICATE_LIFE_US: u64 = 60_000_000;
/// Map versions lie below this; one beyond is a lie.
pub(crate) const MAP_VERSION_MAX: u64 = 1 << 62;

/// Names the key of an `AttributeChanged` event, for as long as the engine remembers it
/// (`Overlay::changed_key`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyHandle(pub(crate) u64);
