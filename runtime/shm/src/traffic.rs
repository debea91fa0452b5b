//! Traffic stamps: when ranks of this node last received a message from a node, or sent one there.
//!
//! Any rank of the node may write a stamp, at any rate. There is one time for each direction; the last one counts.
//! The agent reads it when it judges a silence or is about to send a beat. The stamps of several nodes share a cache
//! line, and many ranks would contend for it with every message. A stamp is therefore written only when it is older
//! than the accuracy that the agent needs.

use std::sync::atomic::Ordering;

use super::TableView;
use muster_sys::clock::monotonic_ns;

/// How much older than the last message its stamp may be.
const SLACK_NS: u64 = 1_000_000;

/// The direction of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TrafficStamp {
    /// From that node to this one.
    From = 0,
    /// From this node to that one.
    To = 1,
}

impl TableView {
    /// Notes a message from, or to, the node of this rank, accurate to a millisecond: a few loads, rarely a store.
    /// `false` if the node of the rank is not known.
    #[inline]
    pub fn stamp_traffic(&self, rank: u32, traffic: TrafficStamp) -> bool {
        let node = self.rank_node(rank);
        let stamp = node.and_then(|node| self.0.traffic(node, traffic));
        let Some(stamp) = stamp else { return false };
        let now_ns = monotonic_ns();
        if now_ns.abs_diff(stamp.load(Ordering::Relaxed)) > SLACK_NS {
            stamp.store(now_ns, Ordering::Relaxed);
        }
        true
    }

    /// When the last message from, or to, a node was noted, in nanoseconds of this node's monotonic clock; 0 if
    /// none was.
    pub fn traffic_ns(&self, node: u32, traffic: TrafficStamp) -> u64 {
        let stamp = self.0.traffic(node, traffic);
        stamp.map_or(0, |stamp| stamp.load(Ordering::Relaxed))
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
            "its node is not known"
        );
        assert!(!view.stamp_traffic(u32::MAX, TrafficStamp::To));
        let before = monotonic_ns();
        assert!(view.stamp_traffic(4, TrafficStamp::From));
        let noted_ns = view.traffic_ns(other, TrafficStamp::From);
        assert!(noted_ns >= before);
        // A message right after is not stamped, a later one is.
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
