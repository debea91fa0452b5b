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

use super::layout::Layout;
use super::node_status::{Contributed, FenceId, FenceState};
use super::ranges::Ranges;

/// Finished fences that are still spoken of: somebody may have to be told the ruling.
const KEPT: u64 = 2;

/// Fences of groups that are over here and kept for others, at most.
const TOLD_MAX: usize = 64;
/// What they may take on the bell.
const TOLD_SIZE: usize = 16 << 10;
/// What lost nodes had put, for those who have not heard it from themselves, may take there.
const LENT_SIZE: usize = 16 << 10;

/// What is known of the nodes.
pub(super) struct FenceProgress<'a> {
    /// Launchers that are gone for good.
    pub(super) gone: &'a BTreeSet<usize>,
    /// Ranks that have ended.
    pub(super) ended: &'a BTreeSet<u32>,
    /// Launchers that are gone in each node's eyes.
    pub(super) gone_for: &'a [BTreeSet<usize>],
    /// A loss is still to be judged: nobody rules.
    pub(super) is_in_doubt: bool,
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
    ranks: Ranges,
    members: Vec<usize>,
    puts: BTreeMap<usize, Vec<u8>>,
    /// Data that is announced and not here yet: node and length.
    awaited: BTreeMap<usize, usize>,
    /// Nodes whose data is more than can be carried, and its length; among the puts it is nothing.
    too_much: BTreeMap<usize, usize>,
    ruling: Option<Ranges>,
    delivered: bool,
    tag: String,
    /// Nodes that have spoken of it themselves.
    spoke: BTreeSet<usize>,
    /// Nodes that have told a ruling: they know whose data counts, and lend that of the lost.
    ruled: BTreeSet<usize>,
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
        self.fence(id, tag, &ranks.iter().copied().collect());
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
            fence.take(self.own, &Contributed::TooMuch(size));
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

    /// Whether others wait in a fence of all ranks that the own ones have not come to.
    pub(super) fn is_awaited(&self) -> bool {
        let next = FenceId {
            group: 0,
            turn: self.turns_of_all(),
        };
        let fence = self.fences.get(&next);
        fence.is_some_and(|fence| !fence.spoke.is_empty() && fence.ruling.is_none())
    }

    /// What another node says. Data that lies beside is to be fetched: [`Fences::awaited`].
    pub(super) fn hear(&mut self, node: usize, notes: &[FenceState]) {
        for note in notes {
            let mut own_ranks = self.layout.ranks_of(self.own);
            if !note.ranks.is_empty() && !own_ranks.any(|rank| note.ranks.contains(rank)) {
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
            if note.ruling.is_some() {
                fence.ruled.insert(node);
            }
            if note.over {
                fence.served.insert(node);
            }
            if let Some(put) = &note.put {
                fence.take(node, put);
            }
            if fence.ruling.is_none() {
                fence.ruling.clone_from(&note.ruling);
            }
            for (node, put) in &note.lent {
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
        let mut over: Vec<(u64, usize, FenceId)> = over
            .map(|(id, fence)| (fence.age, fence.size(own), *id))
            .collect();
        // The oldest first: a number of a group says nothing of its age.
        over.sort_unstable();
        let (mut size, mut kept) = (0, 0);
        for (_, more, id) in over.into_iter().rev() {
            size += more;
            if kept > 0 && (kept == TOLD_MAX || size > TOLD_SIZE) {
                self.fences.remove(&id);
            } else {
                kept += 1;
            }
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
    pub(super) fn advance(&mut self, standing: &FenceProgress<'_>) -> Vec<Outcome> {
        self.forget(standing.gone);
        let mut over = Vec::new();
        for (id, fence) in &mut self.fences {
            let may_rule = !standing.is_in_doubt && fence.ruling.is_none();
            if may_rule && fence.may_rule(self.own, &self.layout, standing) {
                fence.ruling = Some(fence.puts.keys().map(|node| *node as u32).collect());
            }
            if fence.delivered || !fence.puts.contains_key(&self.own) {
                continue;
            }
            let Some(ruling) = &fence.ruling else {
                continue;
            };
            let mut ruled = ruling.iter().map(|node| node as usize);
            let missing = ruled.find(|node| !fence.puts.contains_key(node));
            let mut too_much = fence.too_much.keys().copied();
            let too_much = too_much.find(|node| ruling.contains(*node as u32));
            match missing.or(too_much) {
                Some(node) if fence.too_much.contains_key(&node) => {
                    over.push(Outcome::TooMuch(*id, node));
                    fence.delivered = true;
                }
                None => {
                    let parts: Vec<&[u8]> = ruling
                        .iter()
                        .filter_map(|node| fence.puts.get(&(node as usize)).map(Vec::as_slice))
                        .collect();
                    over.push(Outcome::Complete(*id, parts.concat()));
                    fence.delivered = true;
                }
                Some(node) if fence.is_lost(self.own, node, standing) => {
                    over.push(Outcome::Lost(*id, node));
                    fence.delivered = true;
                }
                Some(_) => {}
            }
        }
        over
    }

    /// What is to be said. What counts in a ruling each node says itself; the others what those had put that are gone,
    /// as far as there is room.
    pub(super) fn notes(&self, gone: &BTreeSet<usize>) -> Vec<FenceState> {
        let mut room = LENT_SIZE;
        let note = |(id, fence): (&FenceId, &Fence)| FenceState {
            id: *id,
            tag: fence.tag.clone(),
            over: fence.is_over(self.own),
            ranks: fence.ranks.clone(),
            put: fence.put_of(self.own),
            ruling: fence.ruling.clone(),
            lent: match fence.is_served(self.own, gone) {
                true => Vec::new(),
                false => fence.lent(gone, &mut room),
            },
        };
        self.fences.iter().map(note).collect()
    }

    /// Nodes for which a fence of this node waits.
    pub(super) fn missing(&self, id: FenceId, standing: &FenceProgress<'_>) -> Vec<usize> {
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

    fn fence(&mut self, id: FenceId, tag: &str, ranks: &Ranges) -> &mut Fence {
        let (layout, count) = (&self.layout, &mut self.count);
        self.fences.entry(id).or_insert_with(|| {
            *count += 1;
            let members: BTreeSet<usize> = if ranks.is_empty() {
                (0..layout.nodes().len()).collect()
            } else {
                let node_of = |rank| layout.node_of(rank);
                ranks.iter().filter_map(node_of).collect()
            };
            Fence {
                tag: tag.to_owned(),
                ranks: ranks.clone(),
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

    /// What it takes on the bell, a little more.
    fn size(&self, own: usize) -> usize {
        let put = self.put_of(own).map_or(0, |put| put.size());
        let ruling = self.ruling.as_ref().map_or(0, Ranges::size);
        128 + self.tag.len() + self.ranks.size() + ruling + put
    }

    /// What nodes that are gone had put, if it counts.
    fn lent(&self, gone: &BTreeSet<usize>, room: &mut usize) -> Vec<(usize, Contributed)> {
        let counts = |node: &&usize| {
            let ruling = self.ruling.as_ref();
            ruling.is_some_and(|ruling| ruling.contains(**node as u32))
        };
        let put = |node: &usize| {
            let put = self.put_of(*node)?;
            *room = room.checked_sub(put.size())?;
            Some((*node, put))
        };
        gone.iter().filter(counts).filter_map(put).collect()
    }

    /// Whether what a node has put went with it: whoever has it lends it as soon as he knows of the loss.
    fn is_lost(&self, own: usize, node: usize, standing: &FenceProgress<'_>) -> bool {
        let is_left = |member: &&usize| **member != own && !standing.gone.contains(member);
        let knows = |member: &usize| {
            let gone = standing.gone_for.get(*member);
            let can_lend = self.ruled.contains(member) || self.served.contains(member);
            can_lend && gone.is_some_and(|gone| gone.contains(&node))
        };
        standing.gone.contains(&node) && self.members.iter().filter(is_left).all(knows)
    }

    /// What is said of what a node has put.
    fn put_of(&self, node: usize) -> Option<Contributed> {
        let too_much = self
            .too_much
            .get(&node)
            .map(|size| Contributed::TooMuch(*size));
        too_much.or_else(|| self.puts.get(&node).map(|data| Contributed::new(data)))
    }

    fn take(&mut self, node: usize, put: &Contributed) {
        if self.puts.contains_key(&node) {
            return;
        }
        match put {
            Contributed::Here(_) => {
                if let Some(data) = put.data() {
                    self.awaited.remove(&node);
                    self.puts.insert(node, data);
                }
            }
            Contributed::Beside(size) => _ = self.awaited.insert(node, *size),
            Contributed::TooMuch(size) => {
                self.awaited.remove(&node);
                self.too_much.insert(node, *size);
                self.puts.insert(node, Vec::new());
            }
        }
    }

    /// Whether ranks of this node may still come.
    fn is_expected(&self, node: usize, layout: &Layout, standing: &FenceProgress<'_>) -> bool {
        let mut ranks = layout.ranks_of(node);
        let takes_part = |rank: &u32| self.ranks.is_empty() || self.ranks.contains(*rank);
        !standing.gone.contains(&node)
            && ranks.any(|rank| takes_part(&rank) && !standing.ended.contains(&rank))
    }

    fn may_rule(&self, own: usize, layout: &Layout, standing: &FenceProgress<'_>) -> bool {
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
    muster_ipc::key_hash(&bytes).max(1)
}

#[cfg(test)]
#[path = "fence_tests.rs"]
mod tests;
