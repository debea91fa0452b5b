//! Which ranks run in other zones. Each supervisor copies the ranks of its base zone into the zone above, as one
//! attribute under the name of the zone's first node, from where they reach all zones as other attributes do (`relay`).
//!
//! The list has every rank that was stated; the ledger has those that have ended or hang. Of two lists the longer one
//! counts.

use muster_protocol::{Instant, RankState};

use crate::directory::NodeIndex;
use crate::rank_runs::RankRuns;
use crate::tree::Tree;
use crate::tree::relay::{copy_key, version};

/// The key of the list.
const RANKS_KEY: &[u8] = b"muster.zones.ranks";
/// Ranks that start together are published together: the list waits this long after a change, in microseconds.
const PUBLISH_AFTER_US: u64 = 50_000;

impl Tree {
    /// A rank of the base zone has changed.
    pub(super) fn note_rank(&mut self) {
        if self.levels.len() > 1 {
            let due = self.now.after(PUBLISH_AFTER_US);
            self.ranks_due = self.ranks_due.min(due);
        }
    }

    /// Publishes the ranks of the base zone, if it is time.
    pub(super) fn publish_ranks(&mut self) {
        if self.ranks_due > self.now {
            return;
        }
        self.ranks_due = Instant::NEVER;
        let base = &self.levels[0];
        let first = self.map.nodes(base.zone).first().copied();
        let (Some(first), true) = (first, self.levels.len() > 1) else {
            return;
        };
        let of_node = |(node, id)| {
            let member = base.engine.member(id)?;
            let stated = member
                .ranks()
                .filter(|fact| fact.state != RankState::Unknown);
            let mut ranks: Vec<u32> = stated.map(|fact| fact.rank).collect();
            ranks.sort_unstable();
            Some((node, ranks))
        };
        let nodes = self.ids.iter().map(|(node, id)| (*node, *id));
        let runs = RankRuns::new(nodes.filter_map(of_node));
        if !runs.is_empty() {
            let value = [&version(0, runs.len() as u64)[..], &runs.encode()].concat();
            self.copy(1, &copy_key(first, RANKS_KEY), Some(&value));
        }
    }

    /// Whether an attribute of a node is the list of the ranks of its zone.
    #[must_use]
    pub fn is_rank_list(key: &[u8]) -> bool {
        key == RANKS_KEY
    }

    /// The ranks of the base zone of a node of another zone, as far as they are known.
    #[must_use]
    pub fn ranks_of_zone(&self, node: NodeIndex) -> RankRuns {
        let zone = self.map.base_zone(node);
        let first = zone.and_then(|zone| self.map.nodes(zone).first());
        let value = first.and_then(|first| self.copy_of(*first, RANKS_KEY));
        value.and_then(RankRuns::decode).unwrap_or_default()
    }
}
