//! What a member states about its ranks, by rank number: nothing, for most members of most zones.
//!
//! Everybody keeps a record of everybody, so an empty map is not to take the room of one.

use core::ops::{Deref, DerefMut};
use std::collections::BTreeMap;

use crate::state::RankFact;

/// A map of ranks, which takes a word while it is empty.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ranks(Option<Box<BTreeMap<u32, RankFact>>>);

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
