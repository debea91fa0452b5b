//! Nodes that were alive and that no member of their zone knows any more.
//!
//! A zone whose members have all started anew does not know what became of the nodes that run no longer: it says that
//! they are missing, as if they had never been. Those who saw such a node alive know better: a supervisor of another
//! zone writes into the ledger that it has failed, or if all supervisors have just started, another node, into that of
//! its own zone. The entry has a version from before the zone's present life: what
//! the node says is newer if it has started since. If it runs on, it learns that it was declared failed.

use muster_protocol::{CauseKind, Instant, LedgerEntry, LedgerKey, NodeState, Version};

use crate::directory::NodeIndex;
use crate::tree::Tree;
use crate::tree::states::ZoneStates;

/// A node that is missing for so many deadlines has failed: members of a zone that start again may need a while to
/// find each other.
const LOST_DEADLINES: u64 = 10;

impl Tree {
    /// Notes which nodes that were alive are missing now. `before` is what was told before: of zones that had formed,
    /// so that a node of them that was not missing was alive.
    pub(super) fn note_missing(&mut self, before: &ZoneStates) {
        let missing = &self.told.missing;
        self.missing_since.retain(|node, _| missing.contains(node));
        let was_alive = |node: &&u32| {
            let zone = self.map.base_zone(NodeIndex(**node));
            zone.is_some_and(|zone| before.get(zone).is_some())
        };
        let new = missing.difference(&before.missing).filter(was_alive);
        self.missing_since.extend(new.map(|node| (*node, self.now)));
    }

    /// Reports nodes that have been missing for long.
    pub(super) fn report_lost(&mut self) {
        // While no supervisor of a zone is there, none says which of its nodes run.
        for (node, since) in &mut self.missing_since {
            let zone = self.map.base_zone(NodeIndex(*node));
            let state = zone.and_then(|zone| self.told.get(zone));
            if state.is_some_and(|state| state.is_failed || state.is_absent) {
                *since = self.now;
            }
        }
        let (level, wait_us) = (usize::from(self.levels.len() > 1), self.lost_us());
        let is_due = |since: &Instant| self.now >= since.after(wait_us);
        let due = self.missing_since.iter().filter(|(_, since)| is_due(since));
        for node in due.map(|(node, _)| *node).collect::<Vec<_>>() {
            if self.entry(level, LedgerKey::Node(node)).is_none() {
                let zone = self.map.base_zone(NodeIndex(node));
                let life = zone.and_then(|zone| Some(self.told.get(zone)?.life.began));
                let before = life.unwrap_or_default().saturating_sub(1);
                let (first, cause) = (Version::first(before.max(1)), CauseKind::Silence);
                self.write(
                    level,
                    LedgerEntry::node(node, first, NodeState::Failed, cause, 0),
                );
            }
        }
    }

    /// For how long a node is missing until it is reported. Those who are no supervisors wait for them.
    fn lost_us(&self) -> u64 {
        match self.levels.len() {
            1 => self.deadlines(2 * LOST_DEADLINES),
            _ => self.deadlines(LOST_DEADLINES),
        }
    }

    /// When a node is to be reported next.
    pub(super) fn next_lost(&self) -> Instant {
        let ends = self.missing_since.values();
        let ends = ends.map(|since| since.after(self.lost_us()));
        let ahead = ends.filter(|at| *at > self.now);
        ahead.fold(Instant::NEVER, Instant::min)
    }
}
