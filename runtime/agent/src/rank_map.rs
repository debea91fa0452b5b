//! `RankMap` holds which ranks run on which node, as a launcher or an allgather reports it. Age gossip does not
//! distribute ranks.
//!
//! A rank's process knows the map of its job, and reports the ranks of a node by the node's name or by some of its
//! NIDs. A participant is identified by either. Once the participant is in the state table, the nodes of its ranks
//! are written there, too. With the overlay, which distributes ranks itself, the map is not used.

use muster_protocol::age::Participant;
use muster_protocol::{Engine, MemberId};
use muster_shm::{Cause, Event, EventKind, NodeState, TableWriter};
use muster_sys::clock::monotonic_ns;
use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of node names, and of all their ranks, that wait for their participant. A node may be reported by
/// its name and by its NIDs. One of the two matches no participant, and waits until its ranks are placed.
const NODES_MAX: usize = 512;
const RANKS_MAX: usize = 2 << 16;

/// Ranks whose node is not known yet.
#[derive(Debug, Default)]
pub(super) struct RankMap {
    waiting: BTreeMap<String, BTreeSet<u32>>,
    ranks: usize,
    is_due: bool,
    /// Number of ranks that were dropped because the map was full.
    pub(super) dropped: u64,
}

impl RankMap {
    pub(super) fn note(&mut self, node: String, ranks: &[u32]) {
        let has_room = self.waiting.len() < NODES_MAX || self.waiting.contains_key(&node);
        if !has_room || self.ranks + ranks.len() > RANKS_MAX {
            self.dropped += ranks.len() as u64;
            return;
        }
        let waiting = self.waiting.entry(node).or_default();
        let before = waiting.len();
        waiting.extend(ranks);
        self.ranks += waiting.len() - before;
        self.is_due = true;
    }

    /// Retries, because a node may have become known.
    pub(super) fn retry(&mut self) {
        self.is_due = !self.waiting.is_empty();
    }

    /// Removes and returns the ranks whose node is known by now, each with its node. Also removes ranks that are
    /// placed.
    pub(super) fn take(
        &mut self,
        engine: &Engine,
        index: impl Fn(MemberId) -> Option<u32>,
        is_placed: impl Fn(u32) -> bool,
    ) -> Vec<(u32, u32)> {
        if !std::mem::take(&mut self.is_due) {
            return Vec::new();
        }
        let Some(age) = engine.age() else {
            *self = Self::default();
            return Vec::new();
        };
        let mut placed = Vec::new();
        let participants = &age.config().participants;
        self.waiting.retain(|node, ranks| {
            let found = participants.iter().find(|one| is_named(one, node));
            let found = found.and_then(|one| index(MemberId::of(&one.name)));
            if let Some(found) = found {
                placed.extend(ranks.iter().map(|rank| (*rank, found)));
            }
            found.is_none()
        });
        let now: BTreeSet<u32> = placed.iter().map(|(rank, _)| *rank).collect();
        self.waiting.retain(|_, ranks| {
            ranks.retain(|rank| !now.contains(rank) && !is_placed(*rank));
            !ranks.is_empty()
        });
        self.ranks = self.waiting.values().map(BTreeSet::len).sum();
        placed
    }
}

/// Writes the nodes of ranks to the state table. If a rank's node had failed before, the rank is reported as failed
/// with it, because it was not known then. Returns true if there is news for the ranks.
pub(super) fn write(table: &mut TableWriter, placed: &[(u32, u32)]) -> bool {
    let mut news = false;
    for &(rank, node) in placed {
        // A node's own report of its ranks takes precedence.
        if table.view().rank_node(rank).is_some() || !table.set_rank_node(rank, node) {
            continue;
        }
        if table.view().node_state(node) == NodeState::Failed {
            let mut event = Event::new(EventKind::RankFailed, Cause::NodeFailed);
            (event.node, event.rank, event.at_ns) = (node, rank, monotonic_ns());
            table.push_event(&event);
            news = true;
        }
    }
    news
}

/// Whether this is the participant's name, or contains one of its NIDs.
fn is_named(participant: &Participant, node: &str) -> bool {
    let mut nids = participant.address.split(',');
    participant.name == node || nids.any(|nid| node.split(',').any(|one| one == nid))
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_protocol::{Age, AgeConfig, Config, Overlay, Profile};
    use muster_shm::TableLimits;

    fn engine() -> Engine {
        let mut participants: Vec<Participant> = ["10.0.0.1@udp0", "10.0.0.2@udp0,10.1.0.2@udp1"]
            .map(Participant::new)
            .into();
        participants.push(Participant::new("10.0.0.3@udp0"));
        participants[2].name = "n3".into();
        let config = AgeConfig::new("10.0.0.1@udp0", participants);
        Age::new(config).unwrap().into()
    }

    /// Ranks are reported by a name or by any NID. They wait until their node is in the state table, and are placed
    /// once.
    #[test]
    fn ranks_are_placed_when_their_node_is_known() {
        let (engine, mut rank_map) = (engine(), RankMap::default());
        rank_map.note("10.1.0.2@udp1".into(), &[2, 3]);
        rank_map.note("n3".into(), &[4]);
        rank_map.note("elsewhere".into(), &[9]);
        assert_eq!(rank_map.take(&engine, |_| None, |_| false), []);
        assert_eq!(
            rank_map.take(&engine, |_| Some(1), |_| false),
            [],
            "nothing is new"
        );
        rank_map.retry();
        let third = MemberId::of("n3");
        let only_third = |id: MemberId| (id == third).then_some(7);
        assert_eq!(rank_map.take(&engine, only_third, |_| false), [(4, 7)]);
        rank_map.retry();
        assert_eq!(
            rank_map.take(&engine, |_| Some(1), |_| false),
            [(2, 1), (3, 1)]
        );
        rank_map.retry();
        assert_eq!(rank_map.take(&engine, |_| Some(1), |_| false), []);
        assert_eq!(rank_map.ranks, 1);
    }

    /// A node is reported by its name and by its NIDs, and one of the two matches no participant. Its entry is
    /// removed.
    #[test]
    fn placed_ranks_do_not_wait_under_another_name() {
        let (engine, mut rank_map) = (engine(), RankMap::default());
        rank_map.note("host2".into(), &[2, 3]);
        rank_map.note("10.0.0.2@udp0".into(), &[2, 3]);
        let placed = rank_map.take(&engine, |_| Some(1), |_| false);
        assert_eq!(placed, [(2, 1), (3, 1)]);
        assert_eq!((rank_map.ranks, rank_map.waiting.len()), (0, 0));
        // This also holds if the other name is reported later, or if some of the ranks are placed already.
        rank_map.note("host2".into(), &[2, 3]);
        rank_map.note("host4".into(), &[3, 4]);
        assert_eq!(rank_map.take(&engine, |_| None, |rank| rank < 4), []);
        assert_eq!((rank_map.ranks, rank_map.waiting.len()), (1, 1));
    }

    #[test]
    fn the_map_is_bounded_and_not_used_with_the_overlay() {
        let mut rank_map = RankMap::default();
        for node in 0..NODES_MAX + 2 {
            rank_map.note(format!("n{node}"), &[node as u32]);
        }
        assert_eq!((rank_map.ranks, rank_map.dropped), (NODES_MAX, 2));
        let all: Vec<u32> = (0..RANKS_MAX as u32).collect();
        rank_map.note("n1".into(), &all);
        assert_eq!(rank_map.dropped, 2 + RANKS_MAX as u64);
        let config = Config::new("n1", b"address", Profile::Standard);
        let overlay = Engine::from(Overlay::new(config).unwrap());
        assert_eq!(rank_map.take(&overlay, |_| Some(0), |_| false), []);
        assert!(rank_map.waiting.is_empty());
    }

    /// A rank that is placed after its node has failed is reported once. Other ranks are only placed.
    #[test]
    fn ranks_of_a_failed_node_are_reported() {
        let limits = TableLimits {
            nodes: 4,
            ranks: 8,
            slots: 4,
            events: 16,
        };
        let mut table = TableWriter::create(limits).unwrap();
        for (name, state) in [("n1", NodeState::Failed), ("n2", NodeState::Alive)] {
            let node = table.add_node(name).unwrap();
            table.set_node_state(node, state);
        }
        let (view, mut cursor) = (table.view(), table.view().cursor());
        assert!(write(&mut table, &[(3, 0), (4, 1)]));
        let event = view.next_event(&mut cursor).unwrap();
        assert_eq!(
            (event.kind, event.cause, event.node, event.rank),
            (EventKind::RankFailed, Cause::NodeFailed, 0, 3)
        );
        assert!(!write(&mut table, &[(3, 0), (4, 1), (3, 1), (99, 0)]));
        assert_eq!(view.next_event(&mut cursor), None);
        assert_eq!((view.rank_node(3), view.rank_node(4)), (Some(0), Some(1)));
    }
}
