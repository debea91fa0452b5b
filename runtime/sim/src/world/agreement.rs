//! Which views are right, updated at every change of a view.
//!
//! A view is right when its digest is the sum of the digests of the running members' own records. It then
//! holds exactly these members, in their present versions, with their rank facts and attributes, and suspects
//! no member. To compare all views with each other would take longer than the simulation itself.

use std::collections::BTreeMap;

use muster_protocol::Instant;

use super::NodeIndex;

/// What a running member holds: the digest of its own record, and the digest of its view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Held {
    pub(super) own: u64,
    pub(super) view: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    held: Option<Held>,
    since: Instant,
}

#[derive(Debug, Default)]
pub(super) struct Agreement {
    entries: Vec<Entry>,
    /// How many members hold each view.
    views: BTreeMap<u64, usize>,
    running: usize,
    /// The digest of the right view.
    truth: u64,
}

impl Agreement {
    /// Records a node's view; `None` if the node does not run.
    pub(super) fn note(&mut self, node: NodeIndex, held: Option<Held>, now: Instant) {
        if self.entries.len() <= node {
            self.entries.resize(node + 1, Entry::default());
        }
        let entry = &mut self.entries[node];
        if entry.held == held {
            return;
        }
        if entry.held.map(|held| held.view) != held.map(|held| held.view) {
            entry.since = now;
        }
        let before = core::mem::replace(&mut entry.held, held);
        if let Some(before) = before {
            self.truth = self.truth.wrapping_sub(before.own);
            self.running -= 1;
            if let Some(count) = self.views.get_mut(&before.view) {
                *count -= 1;
                if *count == 0 {
                    self.views.remove(&before.view);
                }
            }
        }
        if let Some(held) = held {
            self.truth = self.truth.wrapping_add(held.own);
            self.running += 1;
            *self.views.entry(held.view).or_default() += 1;
        }
    }

    /// Whether every running member's view is right.
    pub(super) fn is_whole(&self) -> bool {
        self.views.get(&self.truth).copied().unwrap_or(0) == self.running
    }

    /// Since when a running member's view is right; `None` if it is not.
    pub(super) fn right_since(&self, node: NodeIndex) -> Option<Instant> {
        let entry = self.entries.get(node)?;
        entry
            .held
            .filter(|held| held.view == self.truth)
            .map(|_| entry.since)
    }
}
