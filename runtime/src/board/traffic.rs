//! What ranks say of their own messages: when they last had something from a node, or sent something there.
//!
//! Any rank of the node may write, at any rate: a word of time for each direction, the last one counts. The
//! agent looks when it judges a silence or is about to send a beat. The words of several nodes share a cache
//! line, which many ranks would wrest from each other with every message: so a time is written anew only when
//! it is older than what makes no difference.

use std::sync::atomic::Ordering;

use super::BoardView;
use crate::sys::clock::monotonic_ns;

/// How much older than the last message the time that is noted may be.
const SLACK_NS: u64 = 1_000_000;

/// Which way a message went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Traffic {
    /// From there to here.
    From = 0,
    /// From here to there.
    To = 1,
}

impl BoardView {
    /// Notes a message from, or to, the node of this rank, to a millisecond: some loads, and seldom a store.
    /// `false` if nobody knows where the rank runs.
    #[inline]
    pub fn note_traffic(&self, rank: u32, traffic: Traffic) -> bool {
        let node = self.rank_node(rank);
        let word = node.and_then(|node| self.0.traffic(node, traffic));
        let Some(word) = word else { return false };
        let now_ns = monotonic_ns();
        if now_ns.abs_diff(word.load(Ordering::Relaxed)) > SLACK_NS {
            word.store(now_ns, Ordering::Relaxed);
        }
        true
    }

    /// When the last message from, or to, a node was noted, in nanoseconds of this node's monotonic clock; 0 if
    /// none was.
    pub fn traffic_ns(&self, node: u32, traffic: Traffic) -> u64 {
        let word = self.0.traffic(node, traffic);
        word.map_or(0, |word| word.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::board::{BoardLimits, BoardWriter};

    #[test]
    fn messages_are_noted_by_node_and_direction() {
        let mut board = BoardWriter::create(BoardLimits::default()).unwrap();
        let node = board.add_node("n1").unwrap();
        let other = board.add_node("n2").unwrap();
        board.raise_rank_count(5);
        board.set_rank_node(4, other);
        let view = board.view();
        assert!(
            !view.note_traffic(3, Traffic::From),
            "its place is not known"
        );
        assert!(!view.note_traffic(u32::MAX, Traffic::To));
        let before = monotonic_ns();
        assert!(view.note_traffic(4, Traffic::From));
        let noted_ns = view.traffic_ns(other, Traffic::From);
        assert!(noted_ns >= before);
        // What comes right after is not written, and what comes later is.
        assert!(view.note_traffic(4, Traffic::From));
        let again_ns = view.traffic_ns(other, Traffic::From);
        assert!(again_ns == noted_ns || again_ns > noted_ns + SLACK_NS);
        while monotonic_ns() <= again_ns + SLACK_NS {}
        assert!(view.note_traffic(4, Traffic::From));
        assert!(view.traffic_ns(other, Traffic::From) > again_ns + SLACK_NS);
        assert_eq!(view.traffic_ns(other, Traffic::To), 0);
        assert_eq!(view.traffic_ns(node, Traffic::From), 0);
        assert_eq!(view.traffic_ns(u32::MAX, Traffic::From), 0);
    }
}
