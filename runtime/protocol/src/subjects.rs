//! Subjects: what facts are about, and a set of them in order, such as the dirty list of a link.
//!
//! Nearly all facts are about nodes, and a new peer is sent all of them. So node subjects are stored as
//! bare ids, a fifth of the size of a subject.

use crate::identity::{MemberId, Version};
use crate::ledger::LedgerKey;
use crate::sorted::SortedSet;

/// The subject of a fact. Nodes sort before ranks and maps, so they are sent first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Subject {
    Node(MemberId),
    Rank(MemberId, u32),
    /// One report, in paper mode. It outlives its suspect's record.
    Suspicion {
        suspect: MemberId,
        reporter: MemberId,
        version: Version,
    },
    /// The version of a member's attributes.
    Map(MemberId),
    /// An entry of the ledger.
    Record(LedgerKey),
}

impl Subject {
    /// The member that it is about, if it is about one.
    pub(crate) fn member(self) -> Option<MemberId> {
        match self {
            Self::Node(id)
            | Self::Rank(id, _)
            | Self::Map(id)
            | Self::Suspicion { suspect: id, .. } => Some(id),
            Self::Record(_) => None,
        }
    }
}

/// Subjects in their order: nodes, then the rest.
#[derive(Clone, Debug, Default)]
pub(crate) struct Subjects {
    nodes: SortedSet<MemberId>,
    others: SortedSet<Subject>,
}

impl Subjects {
    pub(crate) fn insert(&mut self, subject: Subject) -> bool {
        match subject {
            Subject::Node(id) => self.nodes.insert(id),
            other => self.others.insert(other),
        }
    }

    pub(crate) fn remove(&mut self, subject: &Subject) -> bool {
        match subject {
            Subject::Node(id) => self.nodes.remove(id),
            other => self.others.remove(other),
        }
    }

    pub(crate) fn contains(&self, subject: &Subject) -> bool {
        match subject {
            Subject::Node(id) => self.nodes.contains(id),
            other => self.others.contains(other),
        }
    }

    /// Removes the first subject and returns it.
    pub(crate) fn pop_first(&mut self) -> Option<Subject> {
        let node = self.nodes.pop_first().map(Subject::Node);
        node.or_else(|| self.others.pop_first())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.nodes.is_empty() && self.others.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.nodes.len() + self.others.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = Subject> {
        let nodes = self.nodes.iter().map(|id| Subject::Node(*id));
        nodes.chain(self.others.iter().copied())
    }

    pub(crate) fn retain(&mut self, mut keep: impl FnMut(&Subject) -> bool) {
        self.nodes.retain(|id| keep(&Subject::Node(*id)));
        self.others.retain(keep);
    }
}

impl Extend<Subject> for Subjects {
    fn extend<I: IntoIterator<Item = Subject>>(&mut self, subjects: I) {
        for subject in subjects {
            self.insert(subject);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// It behaves like an ordered set, whatever the subjects are.
    #[test]
    fn subjects_keep_their_order() {
        let (node, rank) = (Subject::Node, |id| Subject::Rank(MemberId(id), 3));
        let mut subjects = Subjects::default();
        let mut plain = std::collections::BTreeSet::new();
        for subject in [
            rank(1),
            node(MemberId(9)),
            rank(0),
            node(MemberId(2)),
            rank(1),
        ] {
            assert_eq!(subjects.insert(subject), plain.insert(subject));
        }
        subjects.extend([MemberId(2), MemberId(4)].map(Subject::Node));
        plain.insert(node(MemberId(4)));
        subjects.retain(|subject| *subject != rank(0));
        plain.remove(&rank(0));
        assert!(subjects.iter().eq(plain.iter().copied()));
        assert_eq!(subjects.len(), plain.len());
        assert_eq!(subjects.pop_first(), plain.pop_first());
        assert!(subjects.remove(&node(MemberId(9))) && !subjects.remove(&node(MemberId(9))));
    }
}
