//! `Reach` is how many nodes of the job the local node has seen alive, now and in the recent past.

use muster_protocol::Instant;

/// Most changes that are remembered.
const CHANGES_MAX: usize = 64;

/// The numbers of nodes.
#[derive(Clone, Debug, Default)]
pub(super) struct Reach {
    /// From when on, and how many; oldest first.
    changes: Vec<(Instant, u32)>,
    /// The deepest fall before the local node started, as others have told, and when they told it.
    told: Option<(Instant, u32, u32)>,
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

    /// Takes a fall that others have seen before the local node started.
    pub(super) fn note_fall(&mut self, now: Instant, (least, most): (u32, u32)) {
        let held = self.told.map_or((0, 0), |(_, least, most)| (least, most));
        if is_deeper((least, most), held) {
            self.told = Some((now, least, most));
        }
    }

    /// The deepest fall since a time that lasted for `hold_us`, as far as it is remembered: to how many nodes, and from
    /// how many. Growth, as when a job starts, is none. Of a shorter fall, only the part that lasted counts: while a
    /// supervisor is replaced, its zone is absent for a moment.
    pub(super) fn fall(&self, since: Instant, now: Instant, hold_us: u64) -> (u32, u32) {
        let first = self.changes.partition_point(|(at, _)| *at <= since);
        let changes = &self.changes[first.saturating_sub(1)..];
        let told = self.told.filter(|(at, ..)| *at >= since);
        let (mut least, mut most) = told.map_or((0, 0), |(_, least, most)| (least, most));
        let mut peak = 0;
        for (place, (at, nodes)) in changes.iter().enumerate() {
            peak = peak.max(*nodes);
            let end = at.after(hold_us);
            if end > now {
                break;
            }
            let within = changes[place + 1..].iter().take_while(|(at, _)| *at < end);
            let held = within.map(|(_, nodes)| *nodes).fold(*nodes, u32::max);
            if !is_deeper((least, most), (held, peak.max(held))) {
                (least, most) = (held, peak.max(held));
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

/// The deepest of several falls; (0, 0) if there are none.
pub(super) fn deepest(falls: impl Iterator<Item = (u32, u32)>) -> (u32, u32) {
    let deeper = |one, other| if is_deeper(other, one) { other } else { one };
    falls.reduce(deeper).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// ZM-12: the strength of a side.
    #[test]
    fn the_deepest_fall_since_a_time() {
        let mut reach = Reach::default();
        assert_eq!(reach.fall(Instant(0), Instant(90), 0), (0, 0));
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
        let fall =
            [0, 9, 15, 25, 35, 45, 59, 60, 90].map(|at| reach.fall(Instant(at), Instant(90), 0));
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

    /// ZM-12: the strength of a side.
    #[test]
    fn a_fall_counts_if_it_lasts() {
        let mut reach = Reach::default();
        for (at, nodes) in [(10, 100), (50, 20), (53, 60), (58, 30), (70, 100)] {
            reach.set(Instant(at), nodes);
        }
        let fall = |now, hold_us| reach.fall(Instant(0), Instant(now), hold_us);
        assert_eq!(fall(90, 3), (20, 100));
        assert_eq!(fall(90, 4), (30, 100));
        assert_eq!(fall(90, 12), (30, 100));
        assert_eq!(fall(90, 15), (60, 100));
        // It is not known yet whether it lasts.
        assert_eq!(fall(60, 12), (100, 100));
    }

    #[test]
    fn the_oldest_changes_are_forgotten() {
        let mut reach = Reach::default();
        for at in (0..100).rev() {
            reach.set(Instant(100 - at), at as u32);
        }
        assert_eq!(reach.changes.len(), CHANGES_MAX);
        assert_eq!(reach.fall(Instant(0), Instant(200), 0), (0, 63));
    }
}
