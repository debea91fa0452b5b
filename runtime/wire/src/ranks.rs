//! The ranks of a member, by number; for most members there are none.
//!
//! Each member stores this for every other member, so an empty map must not need the size of a map.

use core::ops::{Deref, DerefMut};
use std::collections::BTreeMap;

use crate::state::RankFact;

/// A map of ranks; one word while it is empty.
#[derive(Clone, Debug, Default)]
#[expect(
    clippy::box_collection,
    reason = "an empty map takes three words, a box that is not there one"
)]
pub struct Ranks(Option<Box<BTreeMap<u32, RankFact>>>);

static NONE: BTreeMap<u32, RankFact> = BTreeMap::new();

impl Deref for Ranks {
    type Target = BTreeMap<u32, RankFact>;

    fn deref(&self) -> &Self::Target {
        self.0.as_deref().unwrap_or(&NONE)
    }
}

impl DerefMut for Ranks {
    fn deref_mut(&mut self) -> &mut Self::Target {
        self.0.get_or_insert_default()
    }
}
