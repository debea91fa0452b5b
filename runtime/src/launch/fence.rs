//! Fences over nodes that may fail: who took part is agreed, with one ruling a fence (run-3).
//!
//! Picture a round of people who each put a note on the table; the one at the head, as soon as everybody who
//! is still there has put his, reads out whose notes count, and with that the round is over for all. If the
//! head leaves, the next one along takes over; but first he asks each of the others whether they had already
//! heard a ruling, and if one had, it stands. So whoever puts a note and leaves is in for all or out for all.
//!
//! This is right if everybody agrees in the end on who has left, and nobody who was declared to have left goes
//! on. The first is what Muster's view is for; the second its launchers see to (an outcast kills its ranks).
//!
//! Pure: no clock and no message. What is heard is told by [`Fences::hear`], what is to be said is
//! [`Fences::notes`].

use std::collections::{BTreeMap, BTreeSet};

use super::bell::{FenceId, Note, Put};
use super::layout::Layout;

/// Finished fences that are still spoken of: somebody may have to be told the ruling.
const KEPT: u64 = 2;

/// Fences of groups that are over here and kept for others, at most.
const TOLD_MOST: usize = 64;

/// What is known of the nodes.
pub(super) struct Standing<'a> {
    /// Launchers that are gone for good.
    pub(super) gone: &'a BTreeSet<usize>,
    /// Ranks that have ended.
    pub(super) ended: &'a BTreeSet<u32>,
    /// Launchers that are gone in each node's eyes.
    pub(super) gone_for: &'a [BTreeSet<usize>],
}

/// A fence that is over for this node.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The data of all that count.
    Complete(FenceId, Vec<u8>),
    /// Data that counts went with this node before it came here.
    Lost(FenceId, usize),
    /// This node's data counts, and was more than can be carried.
    TooMuch(FenceId, usize),
}

#[derive(Debug, Default)]
struct Fence {
    ranks: Vec<u32>,
    members: Vec<usize>,
    puts: BTreeMap<usize, Vec<u8>>,
    /// Data that is announced and not here yet: node and length.
    awaited: BTreeMap<usize, usize>,
    /// Nodes whose data is more than can be carried, and its length; among the puts it is nothing.
    too_much: BTreeMap<usize, usize>,
    ruling: Option<Vec<usize>>,
    delivered: bool,
    tag: String,
    /// Nodes that have spoken of it themselves.
    spoke: BTreeSet<usize>,
    /// Its place among all that there have been.
    age: u64,
    /// Nodes that need nothing more: it is over for them, or they do not speak of it any more.
    served: BTreeSet<usize>,
}

/// All fences of this node.
pub(super) struct Fences {
    own: usize,
    layout: Layout,
    fences: BTreeMap<FenceId, Fence>,
    /// How many fences the own ranks have come to, by group.
    turns: BTreeMap<u64, u64>,
    /// How many fences there have been.
    count: u64,
}

impl Fences {
    pub(super) fn new(own: usize, layout: Layout) -> Self {
        Self {
            own,
            layout,
            fences: BTreeMap::new(),
            turns: BTreeMap::new(),
            count: 0,
        }
    }

    /// The own ranks have come to a fence of these ranks (none for all), or to something that is like one and has
    /// a tag. What they bring is [`Fences::put`].
    pub(super) fn come(&mut self, tag: &str, ranks: &[u32]) -> FenceId {
        let group = group_of(tag, ranks);
        let turn = self.turns.entry(group).or_default();
        let id = FenceId { group, turn: *turn };
        *turn += 1;
        self.fence(id, tag, ranks);
        let (oldest, group) = (id.turn.saturating_sub(KEPT), id.group);
        self.fences
            .retain(|one, fence| one.group != group || one.turn >= oldest || !fence.delivered);
        id
    }

    /// What the own ranks have brought to it can be had by the others.
    pub(super) fn put(&mut self, id: FenceId, data: Vec<u8>) {
        if let Some(fence) = self.fences.get_mut(&id) {
            fence.puts.insert(self.own, data);
        }
    }

    /// What the own ranks have brought to it is more than can be carried: it fails, for all alike.
    pub(super) fn refuse(&mut self, id: FenceId, size: usize) {
        if let Some(fence) = self.fences.get_mut(&id) {
            fence.take(self.own, &Put::TooMuch(size));
        }
    }

    /// How many fences of all ranks the own ranks have come to.
    pub(super) fn turns_of_all(&self) -> u64 {
        self.turns.get(&0).copied().unwrap_or(0)
    }

    /// How many fences of all ranks are over here.
    pub(super) fn delivered_of_all(&self) -> u64 {
        let turns = self.turns_of_all();
        let is_open =
            |id: &FenceId, fence: &Fence| id.group == 0 && id.turn < turns && !fence.delivered;
        let open = self.fences.iter().filter(|(id, fence)| is_open(id, fence));
        turns - open.count() as u64
    }

    /// What another node says. Data that lies beside is to be fetched: [`Fences::awaited`].
    pub(super) fn hear(&mut self, node: usize, notes: &[Note]) {
        for note in notes {
            let is_ours = |rank: &u32| self.layout.node_of(*rank) == Some(self.own);
            if !note.ranks.is_empty() && !note.ranks.iter().any(is_ours) {
                continue;
            }
            let turn = self.turns.get(&note.id.group).copied().unwrap_or(0);
            // Of a group all that is over may have been forgotten; what has come is in turns.
            let kept = if note.id.group == 0 { KEPT } else { 0 };
            if note.id.turn + kept < turn && !self.fences.contains_key(&note.id) {
                continue;
            }
            let fence = self.fence(note.id, &note.tag, &note.ranks);
            fence.spoke.insert(node);
            if note.over {
                fence.served.insert(node);
            }
            if let Some(put) = &note.put {
                fence.take(node, put);
            }
            if let (Some(ruling), None) = (&note.ruling, &fence.ruling) {
                fence.ruling = Some(ruling.iter().map(|(node, _)| *node).collect());
            }
            for (node, put) in note.ruling.iter().flatten() {
                fence.take(*node, put);
            }
        }
        for (id, fence) in &mut self.fences {
            if fence.spoke.contains(&node) && notes.iter().all(|note| note.id != *id) {
                fence.served.insert(node);
            }
        }
    }

    /// Forgets what is over for everybody. There may be any number of groups, each with a fence or two; of fences
    /// of one group the next one tells that the last is over.
    fn forget(&mut self, gone: &BTreeSet<usize>) {
        let own = self.own;
        self.fences.retain(|id, fence| {
            id.group == 0 || !fence.is_over(own) || !fence.is_served(own, gone)
        });
        // A note that was missed must not keep its fence for good.
        let over = self
            .fences
            .iter()
            .filter(|(id, fence)| id.group != 0 && fence.is_over(own));
        let mut over: Vec<(u64, FenceId)> = over.map(|(id, fence)| (fence.age, *id)).collect();
        // The oldest first: a number of a group says nothing of its age.
        over.sort_unstable();
        for (_, id) in over.iter().take(over.len().saturating_sub(TOLD_MOST)) {
            self.fences.remove(id);
        }
    }

    /// Data to be fetched: fence, node, length.
    pub(super) fn awaited(&self) -> Vec<(FenceId, usize, usize)> {
        let one = |(id, fence): (&FenceId, &Fence)| {
            let id = *id;
            let list: Vec<_> = fence
                .awaited
                .iter()
                .map(|(node, size)| (id, *node, *size))
                .collect();
            list
        };
        self.fences.iter().flat_map(one).collect()
    }

    /// Data has come.
    pub(super) fn fetched(&mut self, id: FenceId, node: usize, data: Vec<u8>) {
        if let Some(fence) = self.fences.get_mut(&id) {
            fence.awaited.remove(&node);
            fence.puts.insert(node, data);
        }
    }

    /// Rules where it is this node's turn, and says what is over.
    pub(super) fn advance(&mut self, standing: &Standing<'_>) -> Vec<Outcome> {
        self.forget(standing.gone);
        let mut over = Vec::new();
        for (id, fence) in &mut self.fences {
            if fence.ruling.is_none() && fence.may_rule(self.own, &self.layout, standing) {
                fence.ruling = Some(fence.puts.keys().copied().collect());
            }
            if fence.delivered || !fence.puts.contains_key(&self.own) {
                continue;
            }
            let Some(ruling) = &fence.ruling else {
                continue;
            };
            let missing = ruling.iter().find(|node| !fence.puts.contains_key(node));
            let too_much = ruling.iter().find(|node| fence.too_much.contains_key(node));
            match missing.or(too_much) {
                Some(node) if fence.too_much.contains_key(node) => {
                    over.push(Outcome::TooMuch(*id, *node));
                    fence.delivered = true;
                }
                None => {
                    let parts: Vec<&[u8]> = ruling
                        .iter()
                        .filter_map(|node| fence.puts.get(node).map(Vec::as_slice))
                        .collect();
                    over.push(Outcome::Complete(*id, parts.concat()));
                    fence.delivered = true;
                }
                Some(node) if standing.gone.contains(node) => {
                    over.push(Outcome::Lost(*id, *node));
                    fence.delivered = true;
                }
                Some(_) => {}
            }
        }
        over
    }

    /// What is to be said.
    pub(super) fn notes(&self) -> Vec<Note> {
        let known = self.fences.iter();
        let note = |(id, fence): (&FenceId, &Fence)| Note {
            id: *id,
            tag: fence.tag.clone(),
            over: fence.is_over(self.own),
            ranks: fence.ranks.clone(),
            put: fence.put_of(self.own),
            ruling: fence.ruling.as_ref().map(|nodes| {
                let put = |node: &usize| fence.put_of(*node).unwrap_or(Put::Beside(0));
                nodes.iter().map(|node| (*node, put(node))).collect()
            }),
        };
        known.map(note).collect()
    }

    /// Nodes for which a fence of this node waits.
    pub(super) fn missing(&self, id: FenceId, standing: &Standing<'_>) -> Vec<usize> {
        let Some(fence) = self.fences.get(&id) else {
            return Vec::new();
        };
        let waits = |node: &&usize| {
            fence.is_expected(**node, &self.layout, standing) && !fence.puts.contains_key(node)
        };
        fence.members.iter().filter(waits).copied().collect()
    }

    /// Whether others may still need what this node has put.
    pub(super) fn is_needed(&self, id: FenceId, gone: &BTreeSet<usize>) -> bool {
        let fence = self.fences.get(&id);
        fence.is_some_and(|fence| !fence.is_over(self.own) || !fence.is_served(self.own, gone))
    }

    /// Whether ranks of other nodes take part.
    pub(super) fn is_shared(&self, id: FenceId) -> bool {
        let fence = self.fences.get(&id);
        fence.is_some_and(|fence| fence.members.iter().any(|node| *node != self.own))
    }

    /// Whether the own ranks wait for it.
    pub(super) fn is_open(&self, id: FenceId) -> bool {
        self.fences.get(&id).is_some_and(|fence| !fence.delivered)
    }

    fn fence(&mut self, id: FenceId, tag: &str, ranks: &[u32]) -> &mut Fence {
        let (layout, count) = (&self.layout, &mut self.count);
        self.fences.entry(id).or_insert_with(|| {
            *count += 1;
            let members: BTreeSet<usize> = match ranks {
                [] => (0..layout.nodes().len()).collect(),
                some => some
                    .iter()
                    .filter_map(|rank| layout.node_of(*rank))
                    .collect(),
            };
            Fence {
                tag: tag.to_owned(),
                ranks: ranks.to_vec(),
                members: members.into_iter().collect(),
                age: *count,
                ..Fence::default()
            }
        })
    }
}

impl Fence {
    /// Whether its own ranks wait for nothing more: they have it, or it was ruled without them.
    fn is_over(&self, own: usize) -> bool {
        self.delivered || self.ruling.is_some() && !self.puts.contains_key(&own)
    }

    /// Whether all others that take part and are left need nothing more.
    fn is_served(&self, own: usize, gone: &BTreeSet<usize>) -> bool {
        let is_served =
            |node: &usize| *node == own || gone.contains(node) || self.served.contains(node);
        self.members.iter().all(is_served)
    }

    /// What is said of what a node has put.
    fn put_of(&self, node: usize) -> Option<Put> {
        let too_much = self.too_much.get(&node).map(|size| Put::TooMuch(*size));
        too_much.or_else(|| self.puts.get(&node).map(|data| Put::new(data)))
    }

    fn take(&mut self, node: usize, put: &Put) {
        if self.puts.contains_key(&node) {
            return;
        }
        match put {
            Put::Here(_) => {
                if let Some(data) = put.data() {
                    self.awaited.remove(&node);
                    self.puts.insert(node, data);
                }
            }
            // Who rules without having it says nothing of its length.
            Put::Beside(0) => {}
            Put::Beside(size) => _ = self.awaited.insert(node, *size),
            Put::TooMuch(size) => {
                self.awaited.remove(&node);
                self.too_much.insert(node, *size);
                self.puts.insert(node, Vec::new());
            }
        }
    }

    /// Whether ranks of this node may still come.
    fn is_expected(&self, node: usize, layout: &Layout, standing: &Standing<'_>) -> bool {
        let mut ranks = layout.ranks_of(node);
        let takes_part = |rank: &u32| self.ranks.is_empty() || self.ranks.contains(rank);
        !standing.gone.contains(&node)
            && ranks.any(|rank| takes_part(&rank) && !standing.ended.contains(&rank))
    }

    fn may_rule(&self, own: usize, layout: &Layout, standing: &Standing<'_>) -> bool {
        let present = |node: &&usize| !standing.gone.contains(node);
        if self.members.iter().find(present) != Some(&own) {
            return false;
        }
        let before: Vec<&usize> = self
            .members
            .iter()
            .take_while(|node| **node != own)
            .collect();
        let knows = |node: &usize| {
            let for_it = standing.gone_for.get(*node);
            for_it.is_some_and(|gone| before.iter().all(|one| gone.contains(one)))
        };
        let others_know = self
            .members
            .iter()
            .filter(present)
            .all(|node| *node == own || before.is_empty() || knows(node));
        let all_came = self.members.iter().all(|node| {
            self.puts.contains_key(node)
                || !self.is_expected(*node, layout, standing) && !self.awaited.contains_key(node)
                || standing.gone.contains(node)
        });
        others_know && all_came && !self.puts.is_empty()
    }
}

/// A number for a list of ranks and what they meet for; 0 for a plain fence of all.
fn group_of(tag: &str, ranks: &[u32]) -> u64 {
    if tag.is_empty() && ranks.is_empty() {
        return 0;
    }
    let ranks = ranks.iter().flat_map(|rank| rank.to_le_bytes());
    let bytes: Vec<u8> = ranks.chain(tag.bytes()).collect();
    crate::doorman::key_hash(&bytes).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nodes in one process: what one says the others hear, unless it is lost.
    struct World {
        nodes: Vec<Fences>,
        gone: BTreeSet<usize>,
        gone_for: Vec<BTreeSet<usize>>,
        ended: BTreeSet<u32>,
    }

    impl Fences {
        /// The own ranks come and bring this.
        fn contribute(&mut self, tag: &str, ranks: &[u32], data: Vec<u8>) -> FenceId {
            let id = self.come(tag, ranks);
            self.put(id, data);
            id
        }
    }

    impl World {
        fn new(count: usize) -> Self {
            let names = (0..count).map(|node| format!("n{node}")).collect();
            let layout = Layout::new(names, None, Some(2)).unwrap();
            let fences = |own| Fences::new(own, layout.clone());
            Self {
                nodes: (0..count).map(fences).collect(),
                gone: BTreeSet::new(),
                gone_for: vec![BTreeSet::new(); count],
                ended: BTreeSet::new(),
            }
        }

        fn put(&mut self, node: usize) {
            self.nodes[node].contribute("", &[], vec![node as u8]);
        }

        fn says(&mut self, from: usize, to: usize) {
            let notes = self.nodes[from].notes();
            self.nodes[to].hear(from, &notes);
        }

        /// What is over at a node that knows of these losses.
        fn advance(&mut self, node: usize) -> Vec<Outcome> {
            let standing = Standing {
                gone: &self.gone_for[node].clone(),
                ended: &self.ended,
                gone_for: &self.gone_for,
            };
            self.nodes[node].advance(&standing)
        }

        fn complete(&mut self, node: usize) -> Option<Vec<u8>> {
            match self.advance(node).as_slice() {
                [] => None,
                [Outcome::Complete(_, data)] => Some(data.clone()),
                other => panic!("{other:?}"),
            }
        }

        fn lose(&mut self, node: usize) {
            self.gone.insert(node);
            for gone in &mut self.gone_for {
                gone.insert(node);
            }
        }
    }

    #[test]
    fn all_hear_the_same_and_nobody_before_all_have_come() {
        let mut world = World::new(3);
        world.put(0);
        world.put(2);
        world.says(2, 0);
        world.says(0, 2);
        assert_eq!((world.complete(0), world.complete(2)), (None, None));
        world.put(1);
        world.says(1, 0);
        assert_eq!(world.complete(0), Some(vec![0, 1, 2]));
        for node in [1, 2] {
            world.says(0, node);
            assert_eq!(world.complete(node), Some(vec![0, 1, 2]));
            assert_eq!(world.complete(node), None, "told once");
        }
    }

    #[test]
    fn who_dies_half_way_is_in_for_all_or_out_for_all() {
        // Its note was heard by the head before it died: in, also for those who never heard it.
        let mut world = World::new(3);
        for node in 0..3 {
            world.put(node);
        }
        world.says(2, 0);
        world.lose(2);
        world.says(1, 0);
        assert_eq!(world.complete(0), Some(vec![0, 1, 2]));
        world.says(0, 1);
        assert_eq!(world.complete(1), Some(vec![0, 1, 2]));
        // It was heard by another only: out, also for that one.
        let mut world = World::new(3);
        for node in 0..3 {
            world.put(node);
        }
        world.says(2, 1);
        world.lose(2);
        world.says(1, 0);
        assert_eq!(world.complete(0), Some(vec![0, 1]));
        world.says(0, 1);
        assert_eq!(world.complete(1), Some(vec![0, 1]));
    }

    #[test]
    fn a_ruling_that_one_has_heard_stands_when_its_head_is_lost() {
        let mut world = World::new(4);
        for node in 0..4 {
            world.put(node);
        }
        for node in 1..4 {
            world.says(node, 0);
        }
        assert!(world.complete(0).is_some());
        world.says(0, 3);
        assert_eq!(world.complete(3), Some(vec![0, 1, 2, 3]));
        // The next head must not rule before it has asked node 3, which has gone on.
        for node in 1..4 {
            world.gone_for[node].insert(0);
        }
        world.gone_for[3].clear();
        world.says(2, 1);
        assert_eq!(world.complete(1), None);
        world.gone_for[3].insert(0);
        world.says(3, 1);
        assert_eq!(world.complete(1), Some(vec![0, 1, 2, 3]));
        world.says(1, 2);
        assert_eq!(world.complete(2), Some(vec![0, 1, 2, 3]));
    }

    #[test]
    fn a_node_whose_ranks_have_ended_is_not_waited_for_but_may_rule() {
        let mut world = World::new(3);
        world.ended.extend([0, 1]);
        world.put(1);
        world.put(2);
        world.says(1, 0);
        assert_eq!(world.advance(0), []);
        world.says(2, 0);
        assert_eq!(world.advance(0), []);
        world.says(0, 1);
        assert_eq!(world.complete(1), Some(vec![1, 2]));
    }

    #[test]
    fn fences_of_some_ranks_go_beside_those_of_all() {
        let mut world = World::new(3);
        let some = [2, 4];
        for node in [1, 2] {
            let id = world.nodes[node].contribute("", &some, vec![7]);
            assert_ne!(id.group, 0);
        }
        world.says(2, 1);
        assert_eq!(world.complete(1), Some(vec![7, 7]));
        world.put(1);
        assert_eq!(world.complete(1), None);
        assert_eq!(world.nodes[1].turns_of_all(), 1);
        assert_eq!(world.nodes[1].delivered_of_all(), 0);
    }

    #[test]
    fn much_data_is_fetched_and_what_went_with_its_node_is_lost() {
        let mut world = World::new(2);
        world.nodes[0].contribute("", &[], vec![1; 600]);
        world.nodes[1].contribute("", &[], vec![2; 600]);
        world.says(1, 0);
        let id = FenceId { group: 0, turn: 0 };
        assert_eq!(world.nodes[0].awaited(), [(id, 1, 600)]);
        assert_eq!(world.complete(0), None);
        world.nodes[0].fetched(id, 1, vec![2; 600]);
        assert_eq!(world.complete(0).map(|all| all.len()), Some(1200));
        world.says(0, 1);
        world.lose(0);
        assert_eq!(world.advance(1), [Outcome::Lost(id, 0)]);
    }

    #[test]
    fn what_was_put_is_needed_until_all_that_are_left_have_it() {
        let mut world = World::new(3);
        let id = world.nodes[0].contribute("", &[], vec![1; 600]);
        let is_needed = |world: &World| world.nodes[0].is_needed(id, &world.gone_for[0]);
        for node in [1, 2] {
            world.put(node);
            world.says(node, 0);
        }
        assert!(world.nodes[0].is_open(id) && is_needed(&world));
        assert!(world.complete(0).is_some());
        assert!(!world.nodes[0].is_open(id) && is_needed(&world));
        for node in [1, 2] {
            world.says(0, node);
            let (fence, from, size) = world.nodes[node].awaited()[0];
            world.says(node, 0);
            assert!(is_needed(&world), "node {node} has heard the ruling only");
            world.nodes[node].fetched(fence, from, vec![1; size]);
            if node == 1 {
                assert!(world.complete(node).is_some());
                world.says(node, 0);
            }
        }
        world.lose(2);
        assert!(!is_needed(&world));
    }

    #[test]
    fn what_is_too_much_fails_its_fence_for_all_and_no_other() {
        let mut world = World::new(3);
        let id = world.nodes[1].come("", &[]);
        world.nodes[1].refuse(id, 2_000_000);
        for node in [0, 2] {
            world.put(node);
        }
        for node in [1, 2] {
            world.says(node, 0);
        }
        for node in 0..3 {
            world.says(0, node);
            assert_eq!(world.advance(node), [Outcome::TooMuch(id, 1)]);
            assert_eq!(world.advance(node), []);
        }
        for node in [2, 1, 0] {
            world.put(node);
            world.says(node, 0);
        }
        assert_eq!(world.complete(0), Some(vec![0, 1, 2]));
        // It is alike where the launcher that had too much is lost meanwhile.
        let mut world = World::new(3);
        let id = world.nodes[1].come("", &[]);
        world.nodes[1].refuse(id, 2_000_000);
        world.put(0);
        world.says(1, 0);
        world.lose(1);
        world.put(2);
        world.says(2, 0);
        assert_eq!(world.advance(0), [Outcome::TooMuch(id, 1)]);
        world.says(0, 2);
        assert_eq!(world.advance(2), [Outcome::TooMuch(id, 1)]);
    }

    #[test]
    fn old_fences_are_forgotten() {
        let mut world = World::new(1);
        for _ in 0..10 {
            world.put(0);
            assert!(world.complete(0).is_some());
        }
        assert!(world.nodes[0].notes().len() <= 3);
        assert_eq!(world.nodes[0].delivered_of_all(), 10);
    }

    #[test]
    fn groups_are_told_apart_and_forgotten_when_they_are_over_for_all() {
        let mut world = World::new(2);
        let some = [1, 2];
        for name in ["a", "b"] {
            for node in 0..2 {
                world.nodes[node].contribute(name, &some, vec![node as u8]);
            }
        }
        world.says(1, 0);
        assert_eq!(world.advance(0).len(), 2);
        assert_eq!(
            world.nodes[0].notes().len(),
            2,
            "it is not over for the other"
        );
        world.says(0, 1);
        assert_eq!(world.advance(1).len(), 2);
        assert_eq!(world.nodes[1].notes().len(), 2);
        world.says(1, 0);
        assert_eq!(world.advance(0), []);
        assert_eq!(world.nodes[0].notes().len(), 0);
        world.says(0, 1);
        assert_eq!(world.advance(1), []);
        assert_eq!(world.nodes[1].notes().len(), 0);
        // What somebody still says of it does not bring it back.
        world.nodes[1].contribute("a", &some, vec![1]);
        world.says(1, 0);
        assert_eq!(world.complete(0), None);
        world.nodes[0].contribute("a", &some, vec![0]);
        assert_eq!(world.complete(0), Some(vec![0, 1]));
    }

    #[test]
    fn of_too_many_groups_the_oldest_are_forgotten() {
        let mut world = World::new(2);
        let name = |number: usize| format!("group {number}");
        for number in 0..TOLD_MOST + 8 {
            for node in 0..2 {
                world.nodes[node].contribute(&name(number), &[1, 2], vec![]);
            }
            world.says(1, 0);
            assert!(world.complete(0).is_some());
        }
        // Node 1 does not say any more that it is over there.
        assert_eq!(world.advance(0), []);
        let told: BTreeSet<String> = (world.nodes[0].notes().into_iter())
            .map(|note| note.tag)
            .collect();
        let youngest: BTreeSet<String> = (8..TOLD_MOST + 8).map(name).collect();
        assert_eq!(told, youngest);
    }

    #[test]
    fn a_group_is_forgotten_by_a_node_whose_ranks_have_ended() {
        let mut world = World::new(2);
        world.ended.extend([0, 1]);
        world.nodes[1].contribute("a", &[1, 2], vec![1]);
        world.says(1, 0);
        assert_eq!(world.advance(0), []);
        world.says(0, 1);
        assert_eq!(world.complete(1), Some(vec![1]));
        world.says(1, 0);
        assert_eq!(world.advance(0), []);
        assert_eq!(world.nodes[0].notes().len(), 0);
        world.says(0, 1);
        assert_eq!(world.advance(1), []);
        assert_eq!(world.nodes[1].notes().len(), 0);
    }
}
