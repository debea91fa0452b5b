//! What ranks say of their own messages: when they last had something from a node, or sent something there.
//!
//! Any rank of the node may write, at any rate: a word of time for each direction, the last one counts. The
//! agent looks when it judges a silence or is about to send a beat. The words of several nodes share a cache
//! line, which many ranks would wrest from each other with every message: so a time is written anew only when
//! it is older than what makes no difference.

use std::sync::atomic::Ordering;

use super::TableView;
use muster_sys::clock::monotonic_ns;

/// How much older than the last message the time that is noted may be.
const SLACK_NS: u64 = 1_000_000;

/// Which way a message went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TrafficStamp {
    /// From there to here.
    From = 0,
    /// From here to there.
    To = 1,
}

impl TableView {
    /// Notes a message from, or to, the node of this rank, to a millisecond: some loads, and seldom a store.
    /// `false` if nobody knows where the rank runs.
    #[inline]
    pub fn stamp_traffic(&self, rank: u32, traffic: TrafficStamp) -> bool {
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
    pub fn traffic_ns(&self, node: u32, traffic: TrafficStamp) -> u64 {
        let word = self.0.traffic(node, traffic);
        word.map_or(0, |word| word.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TableLimits;
    use crate::TableWriter;

    #[test]
    fn messages_are_noted_by_node_and_direction() {
        let mut table = TableWriter::create(TableLimits::default()).unwrap();
        let node = table.add_node("n1").unwrap();
        let other = table.add_node("n2").unwrap();
        table.raise_rank_count(5);
        table.set_rank_node(4, other);
        let view = table.view();
        assert!(
            !view.stamp_traffic(3, TrafficStamp::From),
            "its place is not known"
        );
        assert!(!view.stamp_traffic(u32::MAX, TrafficStamp::To));
        let before = monotonic_ns();
        assert!(view.stamp_traffic(4, TrafficStamp::From));
        let noted_ns = view.traffic_ns(other, TrafficStamp::From);
        assert!(noted_ns >= before);
        // What comes right after is not written, and what comes later is.
        assert!(view.stamp_traffic(4, TrafficStamp::From));
        let again_ns = view.traffic_ns(other, TrafficStamp::From);
        assert!(again_ns == noted_ns || again_ns > noted_ns + SLACK_NS);
        while monotonic_ns() <= again_ns + SLACK_NS {}
        assert!(view.stamp_traffic(4, TrafficStamp::From));
        assert!(view.traffic_ns(other, TrafficStamp::From) > again_ns + SLACK_NS);
        assert_eq!(view.traffic_ns(other, TrafficStamp::To), 0);
        assert_eq!(view.traffic_ns(node, TrafficStamp::From), 0);
        assert_eq!(view.traffic_ns(u32::MAX, TrafficStamp::From), 0);
    }
}
