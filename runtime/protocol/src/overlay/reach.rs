//! `Reach` is how many nodes of the whole job the host sees alive, now and in the past.
//!
//! In a zone above, each side of a split may have few members and stand for many nodes, or the other way round. The
//! side that reaches more of the job's nodes is the stronger one. When the sides meet, zone after zone, the weaker one
//! soon sees all nodes again: so the smallest number since they lost each other counts.

use crate::time::Instant;

/// Most changes that are remembered. Of older ones the two oldest become one, with the smaller number.
const CHANGES_MAX: usize = 32;
/// Bits for the members of the view in a strength.
const LIVE_BITS: u32 = 12;

/// The numbers of reached nodes.
#[derive(Clone, Debug, Default)]
pub(super) struct Reach {
    /// From when on, and how many.
    changes: Vec<(Instant, u32)>,
}

impl Reach {
    pub(super) fn set(&mut self, now: Instant, nodes: u32) {
        if self.changes.last().is_some_and(|(_, last)| *last == nodes) {
            return;
        }
        self.changes.push((now, nodes));
        if self.changes.len() > CHANGES_MAX {
            let (at, oldest) = self.changes.remove(0);
            let next = &mut self.changes[0];
            *next = (at, oldest.min(next.1));
        }
    }

    /// The smallest number since a time; `None` if the host does not tell.
    fn since(&self, since: Instant) -> Option<u32> {
        let later = self.changes.iter().filter(|(at, _)| *at > since);
        let at_first = self.changes.iter().rfind(|(at, _)| *at <= since);
        let nodes = later.chain(at_first).map(|(_, nodes)| *nodes);
        nodes.min()
    }

    /// The strength of a view of `live` members: that of the nodes reached since a time, then of the members.
    pub(super) fn strength(&self, live: u32, since: Instant) -> u32 {
        let members = live.min((1 << LIVE_BITS) - 1);
        self.since(since).map_or(live, |nodes| {
            nodes.min(u32::MAX >> LIVE_BITS) << LIVE_BITS | members
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_number_since_the_loss_counts() {
        let mut reach = Reach::default();
        assert_eq!(reach.strength(7, Instant(0)), 7);
        for (at, nodes) in [(10, 100), (20, 40), (30, 40), (40, 100)] {
            reach.set(Instant(at), nodes);
        }
        let since = [5, 10, 19, 20, 35, 40, 90].map(|at| reach.since(Instant(at)));
        assert_eq!(since, [40, 40, 40, 40, 40, 100, 100].map(Some));
        assert!(reach.strength(3, Instant(35)) < reach.strength(2, Instant(50)));
        assert!(reach.strength(3, Instant(50)) > reach.strength(2, Instant(50)));
    }

    #[test]
    fn old_changes_become_one_with_the_smaller_number() {
        let mut reach = Reach::default();
        for at in 0..100 {
            reach.set(Instant(at), 1000 + (at as u32 % 2));
        }
        assert_eq!(reach.changes.len(), CHANGES_MAX);
        assert_eq!(reach.since(Instant(0)), Some(1000));
    }
}
