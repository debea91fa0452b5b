//! Reporters: the members whose reports count against one version of a member.

use crate::identity::MemberId;

/// Most distinct reporters kept against one version of a member; also the largest Theta.
pub const REPORTERS_MAX: usize = 4;
/// Distinct reporters of a member, at most four.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reporters {
    count: u8,
    ids: [u64; REPORTERS_MAX],
}

impl Reporters {
    /// Adds a reporter. Returns false, and changes nothing, if it is there already or there is no room.
    pub fn add(&mut self, reporter: MemberId) -> bool {
        if self.contains(reporter) || usize::from(self.count) == REPORTERS_MAX {
            return false;
        }
        self.ids[usize::from(self.count)] = reporter.0;
        self.count += 1;
        true
    }

    /// Whether this member is a reporter.
    #[must_use]
    pub fn contains(&self, reporter: MemberId) -> bool {
        self.iter().any(|id| id == reporter)
    }

    /// Number of reporters.
    #[must_use]
    pub fn len(&self) -> usize {
        usize::from(self.count)
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The reporters in the order in which they were added.
    pub fn iter(&self) -> impl Iterator<Item = MemberId> {
        self.ids
            .into_iter()
            .take(usize::from(self.count))
            .map(MemberId)
    }
}

impl FromIterator<MemberId> for Reporters {
    fn from_iter<I: IntoIterator<Item = MemberId>>(ids: I) -> Self {
        let mut reporters = Self::default();
        for id in ids {
            reporters.add(id);
        }
        reporters
    }
}
