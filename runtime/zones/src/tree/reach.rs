//! `Reach` is how many nodes of the job the local node has seen alive, now and in the recent past.

use muster_protocol::Instant;

/// Most changes that are remembered.
const CHANGES_MAX: usize = 64;

/// The numbers of nodes.
#[derive(Clone, Debug, Default)]
pub(super) struct Reach {
    /// From when on, and how many; oldest first.
    changes: Vec<(Instant, u32)>,
}

impl Reach {
    pub(super) fn set(&mut self, now: Instant, nodes: u32) {
        if self.changes.last().is_some_and(|(_, last)| *last == nodes) {
            return;
        }
        if self.changes.len() == CHANGES_MAX {
            self.changes.remove(0);
        }
        self.changes.push((now, nodes));
    }

    /// The deepest fall since a time, as far as it is remembered: to how many nodes, and from how many. Growth, as when
    /// a job starts, is none.
    pub(super) fn fall(&self, since: Instant) -> (u32, u32) {
        let first = self.changes.partition_point(|(at, _)| *at <= since);
        let (mut least, mut most, mut peak) = (0, 0, 0);
        for (_, nodes) in &self.changes[first.saturating_sub(1)..] {
            peak = peak.max(*nodes);
            if !is_deeper((least, most), (*nodes, peak)) {
                (least, most) = (*nodes, peak);
            }
        }
        (least, most)
    }
}

/// Whether the first of two falls, to how many nodes and from how many, is to a smaller part. From 0 nodes: no fall.
pub(super) fn is_deeper(one: (u32, u32), other: (u32, u32)) -> bool {
    let part = |(least, most): (u32, u32)| match most {
        0 => (1, 1),
        _ => (u64::from(least), u64::from(most)),
    };
    let ((least, most), (other_least, other_most)) = (part(one), part(other));
    least * other_most < other_least * most
}

#[cfg(test)]
mod tests {
    use super::*;

    /// ZM-12: the strength of a side.
    #[test]
    fn the_deepest_fall_since_a_time() {
        let mut reach = Reach::default();
        assert_eq!(reach.fall(Instant(0)), (0, 0));
        let changes = [
            (5, 8),
            (10, 100),
            (20, 70),
            (30, 40),
            (40, 110),
            (50, 109),
            (60, 111),
        ];
        for (at, nodes) in changes {
            reach.set(Instant(at), nodes);
        }
        let fall = [0, 9, 15, 25, 35, 45, 59, 60, 90].map(|at| reach.fall(Instant(at)));
        let (cut, end) = ((40, 100), (111, 111));
        assert_eq!(
            fall,
            [
                cut,
                cut,
                cut,
                (40, 70),
                (109, 110),
                (109, 110),
                (111, 111),
                end,
                end
            ]
        );
    }

    #[test]
    fn the_oldest_changes_are_forgotten() {
        let mut reach = Reach::default();
        for at in (0..100).rev() {
            reach.set(Instant(100 - at), at as u32);
        }
        assert_eq!(reach.changes.len(), CHANGES_MAX);
        assert_eq!(reach.fall(Instant(0)), (0, 63));
    }
}
