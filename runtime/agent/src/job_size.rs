//! The number of ranks of the job, as clients of this node state it, and the check of rank numbers.
//!
//! The first possible size is final. A size is not possible if it exceeds the capacity of the state table, or if a
//! higher rank is known already. A later statement of another size is refused, and so is every statement about a rank
//! at or above the size; both are counted. A statement about a rank's end includes the job's size, so a size is
//! always known then.

/// What is known of the job's size.
#[derive(Debug, Default)]
pub(super) struct JobSize {
    known: Option<u32>,
    /// Statements of a size that is not possible, or differs from the known one.
    pub(super) sizes_refused: u64,
    /// Statements about ranks that the job does not have.
    pub(super) ranks_refused: u64,
}

/// The result of a statement.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Statement {
    /// No size was stated, or the known one.
    Known,
    /// It is the job's size from now on.
    First,
    /// The size is not possible. `is_logged` limits the log lines of many refusals.
    Refused { is_logged: bool },
}

impl JobSize {
    /// The job's size, if it is known.
    pub(super) fn known(&self) -> Option<u32> {
        self.known
    }

    /// A client states that the job has this number of ranks (0: unknown to it). `seen` is one more than the highest
    /// known rank, `room` the capacity of the state table.
    pub(super) fn learn(&mut self, stated: u32, seen: u32, room: u32) -> Statement {
        if stated == 0 || self.known == Some(stated) {
            return Statement::Known;
        }
        if self.known.is_some() || stated < seen || stated > room {
            self.sizes_refused += 1;
            return Statement::Refused {
                is_logged: self.sizes_refused.is_power_of_two(),
            };
        }
        self.known = Some(stated);
        Statement::First
    }

    /// Returns whether the job has this rank, and counts a refusal if not.
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
    fn the_first_possible_size_is_final() {
        let mut size = JobSize::default();
        let refused = |is_logged| Statement::Refused { is_logged };
        assert_eq!(size.learn(0, 0, 100), Statement::Known);
        // Above the capacity, and below a rank that is known.
        assert_eq!(size.learn(101, 0, 100), refused(true));
        assert_eq!(size.learn(3, 4, 100), refused(true));
        assert_eq!(size.known(), None);
        assert_eq!(size.learn(8, 4, 100), Statement::First);
        assert_eq!(size.learn(8, 4, 100), Statement::Known);
        assert_eq!(size.learn(100, 4, 100), refused(false));
        assert_eq!((size.known(), size.sizes_refused), (Some(8), 3));
    }

    #[test]
    fn a_rank_at_or_above_the_size_is_refused() {
        let mut size = JobSize::default();
        assert!(!size.has(0), "no size is known yet");
        size.learn(8, 0, 100);
        assert!(size.has(0) && size.has(7));
        assert!(!size.has(8) && !size.has(4_194_303));
        assert_eq!(size.ranks_refused, 3);
    }
}
