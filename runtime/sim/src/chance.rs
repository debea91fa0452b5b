//! Random numbers from a seed by a fixed algorithm: the same on every machine and in every version.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

/// A stream of random numbers.
#[derive(Clone, Debug)]
pub struct Chance {
    rng: ChaCha8Rng,
}

impl Chance {
    /// Starts the stream of this seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self {
            rng: ChaCha8Rng::seed_from_u64(seed),
        }
    }

    /// A number from `low` to `high`, both included.
    ///
    /// # Panics
    /// If `low` is above `high`.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        assert!(low <= high, "{low}..={high} is empty");
        let span = u128::from(high - low) + 1;
        low + ((u128::from(self.rng.next_u64()) * span) >> 64) as u64
    }

    /// Returns true with a probability of `permille` / 1000.
    pub fn permille(&mut self, permille: u32) -> bool {
        self.between(0, 999) < u64::from(permille)
    }

    /// Picks one of the items. Returns `None` if there is none.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> Option<&'a T> {
        let last = items.len().checked_sub(1)?;
        items.get(self.between(0, last as u64) as usize)
    }
}
