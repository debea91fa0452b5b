//! The ranks of a member, by number; for most members there are none.
//!
//! Each member stores this for every other member, so an empty map must not need the size of a map.

use core::ops::{Deref, DerefMut};

use muster_sorted::SortedMap;

use crate::state::RankFact;

/// A map of ranks; one word while it is empty.
#[derive(Clone, Debug, Default)]
pub struct Ranks(Option<Box<SortedMap<u32, RankFact>>>);

static NONE: SortedMap<u32, RankFact> = SortedMap::new();

impl Deref for Ranks {
    type Target = SortedMap<u32, RankFact>;

    fn deref(&self) -> &Self::Target {
        self.0.as_deref().unwrap_or(&NONE)
    }
}

impl DerefMut for Ranks {
    fn deref_mut(&mut self) -> &mut Self::Target {
        self.0.get_or_insert_default()
    }
}
