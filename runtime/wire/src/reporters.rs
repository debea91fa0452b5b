//! Reporters: the members whose reports count against one version of a member.
//!
//! A report belongs to an incarnation of its reporter, of which it has a short hash, the *mark*. A member that was
//! on the smaller side of a split comes back in another incarnation, and its earlier reports do not count any more,
//! even if other members still hold them.

use core::ops::Deref;

use crate::identity::MemberId;
use crate::mix::mix;

/// Most distinct reporters kept against one version of a member; also the largest Theta.
pub const REPORTERS_MAX: usize = 4;

/// The mark of no incarnation in particular: in paper mode, where reports carry versions of their own.
pub const NO_MARK: u16 = 0;

/// The mark of an incarnation.
pub fn mark(incarnation: u64) -> u16 {
    (mix(incarnation) as u16).max(1)
}

/// Distinct reporters of a member, at most four.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reporters {
    count: u8,
    marks: [u16; REPORTERS_MAX],
    ids: [u64; REPORTERS_MAX],
}

impl Reporters {
    /// Adds a reporter, with the mark of its incarnation. Returns false, and changes nothing, if it is there already
    /// or there is no room.
    pub fn add(&mut self, reporter: MemberId, mark: u16) -> bool {
        if self.contains(reporter) || usize::from(self.count) == REPORTERS_MAX {
            return false;
        }
        self.ids[usize::from(self.count)] = reporter.0;
        self.marks[usize::from(self.count)] = mark;
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
        self.iter_marked().map(|(id, _)| id)
    }

    /// The same, each with its mark.
    pub fn iter_marked(&self) -> impl Iterator<Item = (MemberId, u16)> {
        let marked = self.ids.into_iter().map(MemberId).zip(self.marks);
        marked.take(usize::from(self.count))
    }
}

/// The reporters in a record. Each member stores this for every other member, and most have none: one word then.
#[derive(Clone, Debug, Default)]
pub struct Reported(Option<Box<Reporters>>);

static NONE: Reporters = Reporters {
    count: 0,
    marks: [0; REPORTERS_MAX],
    ids: [0; REPORTERS_MAX],
};

impl Deref for Reported {
    type Target = Reporters;

    fn deref(&self) -> &Self::Target {
        self.0.as_deref().unwrap_or(&NONE)
    }
}

impl From<Reporters> for Reported {
    fn from(reporters: Reporters) -> Self {
        Self((!reporters.is_empty()).then(|| Box::new(reporters)))
    }
}

impl FromIterator<(MemberId, u16)> for Reporters {
    fn from_iter<I: IntoIterator<Item = (MemberId, u16)>>(marked: I) -> Self {
        let mut reporters = Self::default();
        for (id, mark) in marked {
            reporters.add(id, mark);
        }
        reporters
    }
}

/// Of any incarnation: for events, and in paper mode.
impl FromIterator<MemberId> for Reporters {
    fn from_iter<I: IntoIterator<Item = MemberId>>(ids: I) -> Self {
        ids.into_iter().map(|id| (id, NO_MARK)).collect()
    }
}
