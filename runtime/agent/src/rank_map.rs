//! Which ranks run where, as a launcher or an allgather says it: age gossip carries no ranks.
//!
//! A rank's process knows its job's map and says which ranks run on the node of a name, or of some NIDs. A
//! participant is called by the one or the other; as soon as it is on the board, so are its ranks' places. Where
//! the engine itself tells where ranks are, nothing of this is looked at.

use muster_protocol::age::Participant;
use muster_protocol::{Engine, MemberId};
use muster_shm::{Cause, Event, EventKind, NodeState, TableWriter};
use muster_sys::clock::monotonic_ns;
use std::collections::{BTreeMap, BTreeSet};

/// Most names of nodes, and ranks of all of them, that wait for a participant who is called so. Each node may be told
/// of by its name and by its rails: one of the two is nobody's, and waits until its ranks are placed.
const NODES_MAX: usize = 512;
const RANKS_MAX: usize = 2 << 16;

/// What was said, until the node is known.
#[derive(Debug, Default)]
pub(super) struct RankMap {
    waiting: BTreeMap<String, BTreeSet<u32>>,
    ranks: usize,
    is_due: bool,
    /// So many ranks found no room here.
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

    /// A node may have become known.
    pub(super) fn look_again(&mut self) {
        self.is_due = !self.waiting.is_empty();
    }

    /// Those whose node is known by now, each with its node. Of ranks that have a place nothing waits.
    pub(super) fn take(
        &mut self,
        engine: &Engine,
        index: impl Fn(MemberId) -> Option<u32>,
        has_place: impl Fn(u32) -> bool,
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
            let found = participants.iter().find(|one| is_called(one, node));
            let found = found.and_then(|one| index(MemberId::of(&one.name)));
            if let Some(found) = found {
                placed.extend(ranks.iter().map(|rank| (*rank, found)));
            }
            found.is_none()
        });
        let now: BTreeSet<u32> = placed.iter().map(|(rank, _)| *rank).collect();
        self.waiting.retain(|_, ranks| {
            ranks.retain(|rank| !now.contains(rank) && !has_place(*rank));
            !ranks.is_empty()
        });
        self.ranks = self.waiting.values().map(BTreeSet::len).sum();
        placed
    }
}

/// Writes on the board where these ranks run. One whose node had failed before is told with that node: nobody knew
/// then that it was there. True if there is news for the ranks.
pub(super) fn write(table: &mut TableWriter, placed: &[(u32, u32)]) -> bool {
    let mut news = false;
    for &(rank, node) in placed {
        // Of its own ranks a node knows better.
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

/// Whether this is the participant's name, or one of these NIDs is its.
fn is_called(participant: &Participant, node: &str) -> bool {
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

    /// By a name and by any NID; whoever is not on the board yet waits, and is placed once.
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
        rank_map.look_again();
        let third = MemberId::of("n3");
        let only_third = |id: MemberId| (id == third).then_some(7);
        assert_eq!(rank_map.take(&engine, only_third, |_| false), [(4, 7)]);
        rank_map.look_again();
        assert_eq!(
            rank_map.take(&engine, |_| Some(1), |_| false),
            [(2, 1), (3, 1)]
        );
        rank_map.look_again();
        assert_eq!(rank_map.take(&engine, |_| Some(1), |_| false), []);
        assert_eq!(rank_map.ranks, 1);
    }

    /// A node is told of by its name and by its rails, of which one is no participant's: it waits for nobody any more.
    #[test]
    fn who_is_placed_waits_under_no_other_name() {
        let (engine, mut rank_map) = (engine(), RankMap::default());
        rank_map.note("host2".into(), &[2, 3]);
        rank_map.note("10.0.0.2@udp0".into(), &[2, 3]);
        let placed = rank_map.take(&engine, |_| Some(1), |_| false);
        assert_eq!(placed, [(2, 1), (3, 1)]);
        assert_eq!((rank_map.ranks, rank_map.waiting.len()), (0, 0));
        // Also if the other name comes later, or a part of the ranks has a place.
        rank_map.note("host2".into(), &[2, 3]);
        rank_map.note("host4".into(), &[3, 4]);
        assert_eq!(rank_map.take(&engine, |_| None, |rank| rank < 4), []);
        assert_eq!((rank_map.ranks, rank_map.waiting.len()), (1, 1));
    }

    #[test]
    fn there_is_a_bound_and_the_overlay_needs_none_of_it() {
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

    /// A rank that gets its place when its node has failed is told once; others are just placed.
    #[test]
    fn ranks_of_a_node_that_had_failed_are_told() {
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
        let told = view.next_event(&mut cursor).unwrap();
        assert_eq!(
            (told.kind, told.cause, told.node, told.rank),
            (EventKind::RankFailed, Cause::NodeFailed, 0, 3)
        );
        assert!(!write(&mut table, &[(3, 0), (4, 1), (3, 1), (99, 0)]));
        assert_eq!(view.next_event(&mut cursor), None);
        assert_eq!((view.rank_node(3), view.rank_node(4)), (Some(0), Some(1)));
    }
}
