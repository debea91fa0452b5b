//! How many ranks the job has, as clients of this node say it, and which rank numbers can be.
//!
//! The rule: the first size that can be stands. A size cannot be if it is beyond the board's room, or below a rank
//! that is known already. A later statement of another size is refused, and so is every word about a rank at or above
//! the size; both are counted. Who says how a rank ended says the job's size with it, so that there is always one.

/// What is known of the job's size.
#[derive(Debug, Default)]
pub(super) struct JobSize {
    known: Option<u32>,
    /// Statements of a size that cannot be, or is not the one that stands.
    pub(super) sizes_refused: u64,
    /// Words about ranks that the job does not have.
    pub(super) ranks_refused: u64,
}

/// What became of a statement.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Said {
    /// Nothing was said, or what is known.
    Known,
    /// It is the job's size from now on.
    First,
    /// It cannot be. Whether somebody should be told: not of each of many.
    Refused { is_told: bool },
}

impl JobSize {
    /// The size that stands.
    pub(super) fn known(&self) -> Option<u32> {
        self.known
    }

    /// A client says that the job has so many ranks (0: it does not know). `seen` is one more than the highest rank
    /// that is known, `room` how many the board holds.
    pub(super) fn hear(&mut self, said: u32, seen: u32, room: u32) -> Said {
        if said == 0 || self.known == Some(said) {
            return Said::Known;
        }
        if self.known.is_some() || said < seen || said > room {
            self.sizes_refused += 1;
            return Said::Refused {
                is_told: self.sizes_refused.is_power_of_two(),
            };
        }
        self.known = Some(said);
        Said::First
    }

    /// Whether the job has this rank, so that a word about it counts.
    pub(super) fn has(&mut self, rank: u32) -> bool {
        let has = self.known.is_some_and(|known| rank < known);
        self.ranks_refused += u64::from(!has);
        has
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_size_that_can_be_stands() {
        let mut size = JobSize::default();
        let refused = |is_told| Said::Refused { is_told };
        assert_eq!(size.hear(0, 0, 100), Said::Known);
        // Beyond the room, and below a rank that is there.
        assert_eq!(size.hear(101, 0, 100), refused(true));
        assert_eq!(size.hear(3, 4, 100), refused(true));
        assert_eq!(size.known(), None);
        assert_eq!(size.hear(8, 4, 100), Said::First);
        assert_eq!(size.hear(8, 4, 100), Said::Known);
        assert_eq!(size.hear(100, 4, 100), refused(false));
        assert_eq!((size.known(), size.sizes_refused), (Some(8), 3));
    }

    #[test]
    fn a_rank_at_or_above_the_size_is_refused() {
        let mut size = JobSize::default();
        assert!(!size.has(0), "nobody has said how many there are");
        size.hear(8, 0, 100);
        assert!(size.has(0) && size.has(7));
        assert!(!size.has(8) && !size.has(4_194_303));
        assert_eq!(size.ranks_refused, 3);
    }
}
