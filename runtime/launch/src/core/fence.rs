//! Fences over nodes that may fail: the nodes agree which contributions count, with one decision for each fence
//! (run-3).
//!
//! Each node contributes the data of its ranks. The coordinator is the lowest node that takes part and is left. As
//! soon as every node that is left has contributed, the coordinator decides which contributions count, and the
//! fence is over for all nodes. If the coordinator is lost, the next node takes over. It first waits until each
//! other node knows of the loss, and so has passed on any decision that it had received; such a decision stands.
//! Therefore the contribution of a lost node counts for all nodes or for none.
//!
//! This requires that all nodes agree in the end on which nodes are gone, and that no node continues that was
//! declared gone. Muster's membership view ensures the first; the launchers ensure the second (an outcast kills its
//! ranks).
//!
//! The module is pure: it has no clock and sends nothing. [`Fences::receive`] takes the states of other nodes, and
//! [`Fences::states`] returns the states to publish.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::node_status::{Contributed, Ended, FenceId, FenceState};
use super::ranges::Ranges;
use crate::layout::Layout;

/// Number of finished fences whose states are kept: another node may still need their decision.
const FENCES_KEPT: u64 = 2;

/// Most fences of groups that are over on this node and kept for others.
const GROUPS_KEPT_MAX: usize = 64;
/// Most bytes that these take in the node status.
const GROUPS_KEPT_SIZE: usize = 16 << 10;
/// Most bytes of contributions of lost nodes that are replicated in the node status, for nodes that have not
/// received them.
const REPLICATED_SIZE: usize = 16 << 10;

/// What is known about the nodes.
pub(crate) struct FenceProgress<'a> {
    /// Launchers that are gone for good.
    pub(crate) gone: &'a BTreeSet<usize>,
    /// Ranks that have ended.
    pub(crate) ended: &'a BTreeSet<u32>,
    /// For each node: the launchers that are gone in its view.
    pub(crate) gone_for: &'a [BTreeSet<usize>],
    /// A loss is still to be judged: no node decides a fence.
    pub(crate) is_in_doubt: bool,
}

/// A fence that is over for this node.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The data of all contributions that count.
    Complete(FenceId, Vec<u8>),
    /// This node was lost before its contribution, which counts, arrived here.
    Lost(FenceId, usize),
    /// This node's contribution counts and is larger than can be carried.
    TooMuch(FenceId, usize),
}

#[derive(Debug, Default)]
struct Fence {
    ranks: Ranges,
    members: Vec<usize>,
    contributions: BTreeMap<usize, Arc<Vec<u8>>>,
    /// Contributions that are announced and not here yet.
    awaited: BTreeMap<usize, Awaited>,
    /// Contributions that are served: node, and the launchers that serve it.
    servers: BTreeMap<usize, BTreeSet<usize>>,
    /// Nodes whose contribution is larger than can be carried, and its length. `contributions` has an empty
    /// entry for each.
    too_much: BTreeMap<usize, usize>,
    decision: Option<Ranges>,
    delivered: bool,
    tag: String,
    /// Nodes that have published a state of this fence.
    known_by: BTreeSet<usize>,
    /// Nodes that have published a decision: they know which contributions count, and replicate those of lost
    /// nodes.
    decided: BTreeSet<usize>,
    /// Its number among all fences of this node.
    order: u64,
    /// Nodes that need nothing more: the fence is over for them, or they no longer publish a state of it.
    served: BTreeSet<usize>,
}

/// A contribution that is announced and not here yet.
#[derive(Debug, Clone, Copy)]
struct Awaited {
    size: usize,
    /// It is served, and not in attributes.
    is_served: bool,
}

/// A contribution to fetch.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ToFetch {
    pub(crate) id: FenceId,
    pub(crate) node: usize,
    pub(crate) size: usize,
    /// The launchers that serve it; `None` if it is in attributes.
    pub(crate) servers: Option<Vec<usize>>,
}

/// All fences of this node.
#[derive(Debug)]
pub(crate) struct Fences {
    own: usize,
    layout: Layout,
    fences: BTreeMap<FenceId, Fence>,
    /// How many fences this node's ranks have entered, by group.
    turns: BTreeMap<u64, u64>,
    /// How many fences there have been.
    count: u64,
}

impl Fences {
    pub(crate) fn new(own: usize, layout: Layout) -> Self {
        Self {
            own,
            layout,
            fences: BTreeMap::new(),
            turns: BTreeMap::new(),
            count: 0,
        }
    }

    /// This node's ranks have entered a fence of these ranks (empty for all), or an operation like a fence,
    /// which has a tag. Their data is added by [`Fences::put`].
    pub(crate) fn open(&mut self, tag: &str, ranks: &[u32]) -> FenceId {
        let group = group_of(tag, ranks);
        let turn = self.turns.entry(group).or_default();
        let id = FenceId { group, turn: *turn };
        *turn += 1;
        self.fence(id, tag, &ranks.iter().copied().collect());
        let (oldest, group) = (id.turn.saturating_sub(FENCES_KEPT), id.group);
        self.fences
            .retain(|one, fence| one.group != group || one.turn >= oldest || !fence.delivered);
        id
    }

    /// Adds the contribution of this node's ranks; other nodes can then fetch it.
    pub(crate) fn put(&mut self, id: FenceId, data: Vec<u8>) {
        if let Some(fence) = self.fences.get_mut(&id) {
            fence.contributions.insert(self.own, Arc::new(data));
        }
    }

    /// The same for a contribution that this launcher serves ([`Fences::to_serve`]).
    pub(crate) fn put_served(&mut self, id: FenceId, data: Vec<u8>) {
        self.put(id, data);
        if let Some(fence) = self.fences.get_mut(&id) {
            fence.servers.entry(self.own).or_default().insert(self.own);
        }
    }

    /// Marks this node's contribution as larger than can be carried: the fence fails on all nodes.
    pub(crate) fn refuse(&mut self, id: FenceId, size: usize) {
        if let Some(fence) = self.fences.get_mut(&id) {
            fence.take(self.own, self.own, &Contributed::TooMuch(size));
        }
    }

    /// How many fences of all ranks this node's ranks have entered.
    pub(crate) fn turns_of_all(&self) -> u64 {
        self.turns.get(&0).copied().unwrap_or(0)
    }

    /// How many fences of all ranks are over on this node.
    pub(crate) fn delivered_of_all(&self) -> u64 {
        let turns = self.turns_of_all();
        let is_open =
            |id: &FenceId, fence: &Fence| id.group == 0 && id.turn < turns && !fence.delivered;
        let open = self.fences.iter().filter(|(id, fence)| is_open(id, fence));
        turns - open.count() as u64
    }

    /// Whether other nodes wait in a fence of all ranks that this node's ranks have not entered.
    pub(crate) fn is_awaited(&self) -> bool {
        let next = FenceId {
            group: 0,
            turn: self.turns_of_all(),
        };
        let fence = self.fences.get(&next);
        fence.is_some_and(|fence| !fence.known_by.is_empty() && fence.decision.is_none())
    }

    /// Takes the states that another node has published. Data in separate attributes is to be fetched:
    /// [`Fences::awaited`].
    pub(crate) fn receive(&mut self, node: usize, states: &[FenceState]) {
        for fence in self.fences.values_mut() {
            for servers in fence.servers.values_mut() {
                servers.remove(&node);
            }
        }
        for state in states {
            let mut own_ranks = self.layout.ranks_of(self.own);
            if !state.ranks.is_empty() && !own_ranks.any(|rank| state.ranks.contains(rank)) {
                continue;
            }
            let turn = self.turns.get(&state.id.group).copied().unwrap_or(0);
            // A finished fence of a group may have been forgotten; those that have arrived are in
            // `turns`.
            let kept = if state.id.group == 0 { FENCES_KEPT } else { 0 };
            if state.id.turn + kept < turn && !self.fences.contains_key(&state.id) {
                continue;
            }
            let fence = self.fence(state.id, &state.tag, &state.ranks);
            fence.known_by.insert(node);
            if state.decision.is_some() {
                fence.decided.insert(node);
            }
            if state.over {
                fence.served.insert(node);
            }
            if let Some(put) = &state.put {
                fence.take(node, node, put);
            }
            if fence.decision.is_none() {
                fence.decision.clone_from(&state.decision);
            }
            for (lost, put) in &state.replicated {
                fence.take(node, *lost, put);
            }
        }
        for (id, fence) in &mut self.fences {
            if fence.known_by.contains(&node) && states.iter().all(|state| state.id != *id) {
                fence.served.insert(node);
            }
        }
    }

    /// Takes the ranks of another node that have ended, as the status of that node states, after its states
    /// ([`Fences::receive`]). If it has published none of a fence, it will not take part: all of its ranks have ended.
    /// It may never publish one. If it has seen the fence only when that was over, it has forgotten it at once.
    pub(crate) fn note_ended(&mut self, node: usize, ended: &[Ended]) {
        if ended.is_empty() {
            return;
        }
        let (own, layout) = (self.own, &self.layout);
        let has_ended = |rank: u32| ended.iter().any(|ended| ended.rank == rank);
        // While the fence is open here, that node may have the contribution of a lost one.
        let is_out = |fence: &Fence| {
            let mut ranks = layout.ranks_of(node).filter(|rank| fence.has(*rank));
            fence.is_over(own) && !fence.known_by.contains(&node) && ranks.all(has_ended)
        };
        for fence in self.fences.values_mut() {
            if !fence.served.contains(&node) && is_out(fence) {
                fence.served.insert(node);
            }
        }
    }

    /// Forgets fences that are over for all nodes. There may be any number of groups, each with a fence or two.
    /// Within one group, the next fence shows that the last one is over. A node whose ranks have ended does not enter
    /// the next one: it forgets old fences of all ranks when others have entered newer ones.
    fn forget(&mut self, progress: &FenceProgress<'_>) {
        let (own, layout) = (self.own, &self.layout);
        for fence in self.fences.values_mut() {
            if fence.is_over(own) && fence.is_served(own, progress.gone) {
                fence.drop_served();
            }
        }
        let of_all = self.fences.keys().filter(|id| id.group == 0);
        let newest = of_all.map(|id| id.turn).max().unwrap_or(0);
        let turns = self.turns.get(&0).copied().unwrap_or(0);
        self.fences.retain(|id, fence| match id.group {
            0 => {
                id.turn + FENCES_KEPT >= newest
                    || id.turn < turns && !fence.delivered
                    || fence.is_expected(own, layout, progress)
            }
            _ => !fence.is_over(own) || !fence.is_served(own, progress.gone),
        });
        // A missed state of another node must not keep a fence for ever.
        let over = self
            .fences
            .iter()
            .filter(|(id, fence)| id.group != 0 && fence.is_over(own));
        let mut over: Vec<(u64, usize, FenceId)> = over
            .map(|(id, fence)| (fence.order, fence.size(own), *id))
            .collect();
        // Oldest first: a group's number does not show its age.
        over.sort_unstable();
        let (mut size, mut kept) = (0, 0);
        for (_, more, id) in over.into_iter().rev() {
            size += more;
            if kept > 0 && (kept == GROUPS_KEPT_MAX || size > GROUPS_KEPT_SIZE) {
                self.fences.remove(&id);
            } else {
                kept += 1;
            }
        }
    }

    /// Contributions to fetch. Served ones are fetched only for fences that are not over here: others may state one
    /// that was forgotten here, and its data would be requested again and again.
    pub(crate) fn awaited(&self) -> Vec<ToFetch> {
        let of_fence = |(id, fence): (&FenceId, &Fence)| {
            let id = *id;
            let is_open = !fence.is_over(self.own);
            let one = |(node, awaited): (&usize, &Awaited)| ToFetch {
                id,
                node: *node,
                size: awaited.size,
                servers: awaited.is_served.then(|| fence.servers_of(*node)),
            };
            let awaited = fence.awaited.iter();
            let awaited = awaited.filter(|(_, awaited)| is_open || !awaited.is_served);
            awaited.map(one).collect::<Vec<_>>()
        };
        self.fences.iter().flat_map(of_fence).collect()
    }

    /// The contributions that this launcher serves: those of its own node, and the counted ones of nodes that are
    /// gone, until no other node needs them.
    pub(crate) fn to_serve(
        &self,
        gone: &BTreeSet<usize>,
    ) -> BTreeMap<(FenceId, usize), Arc<Vec<u8>>> {
        let mut all = BTreeMap::new();
        for (id, fence) in &self.fences {
            if fence.is_over(self.own) && fence.is_served(self.own, gone) {
                continue;
            }
            let nodes = fence.servers.keys();
            for node in nodes.filter(|node| **node == self.own || fence.is_replicated(**node, gone))
            {
                if let Some(data) = fence.contributions.get(node) {
                    all.insert((*id, *node), Arc::clone(data));
                }
            }
        }
        all
    }

    /// Adds a contribution that was fetched. Returns whether the fence is not over on this node.
    pub(crate) fn fetched(&mut self, id: FenceId, node: usize, data: Vec<u8>) -> bool {
        let Some(fence) = self.fences.get_mut(&id) else {
            return false;
        };
        fence.awaited.remove(&node);
        fence.contributions.insert(node, Arc::new(data));
        !fence.is_over(self.own)
    }

    /// Decides the fences that this node coordinates. Returns the fences that are over.
    pub(crate) fn advance(&mut self, progress: &FenceProgress<'_>) -> Vec<Outcome> {
        self.forget(progress);
        let mut over = Vec::new();
        for (id, fence) in &mut self.fences {
            let may_decide = !progress.is_in_doubt && fence.decision.is_none();
            if may_decide && fence.may_decide(self.own, &self.layout, progress) {
                fence.decision = Some(
                    fence
                        .contributions
                        .keys()
                        .map(|node| *node as u32)
                        .collect(),
                );
            }
            if fence.delivered || !fence.contributions.contains_key(&self.own) {
                continue;
            }
            let Some(decision) = &fence.decision else {
                continue;
            };
            let mut decided = decision.iter().map(|node| node as usize);
            let missing = decided.find(|node| !fence.contributions.contains_key(node));
            let mut too_much = fence.too_much.keys().copied();
            let too_much = too_much.find(|node| decision.contains(*node as u32));
            match missing.or(too_much) {
                Some(node) if fence.too_much.contains_key(&node) => {
                    over.push(Outcome::TooMuch(*id, node));
                    fence.delivered = true;
                }
                None => {
                    let parts: Vec<&[u8]> = decision
                        .iter()
                        .filter_map(|node| {
                            fence
                                .contributions
                                .get(&(node as usize))
                                .map(|one| one.as_slice())
                        })
                        .collect();
                    over.push(Outcome::Complete(*id, parts.concat()));
                    fence.delivered = true;
                }
                Some(node) if fence.is_lost(self.own, node, progress) => {
                    over.push(Outcome::Lost(*id, node));
                    fence.delivered = true;
                }
                Some(_) => {}
            }
        }
        over
    }

    /// Returns the states to publish. Each node publishes its own contributions. The others replicate the
    /// counted contributions of lost nodes, as far as there is room.
    pub(crate) fn states(&self, gone: &BTreeSet<usize>) -> Vec<FenceState> {
        let mut room = REPLICATED_SIZE;
        let state = |(id, fence): (&FenceId, &Fence)| FenceState {
            id: *id,
            tag: fence.tag.clone(),
            over: fence.is_over(self.own),
            ranks: fence.ranks.clone(),
            put: fence.contribution_of(self.own),
            decision: fence.decision.clone(),
            replicated: match fence.is_served(self.own, gone) {
                true => Vec::new(),
                false => fence.replicated(gone, &mut room),
            },
        };
        self.fences.iter().map(state).collect()
    }

    /// Nodes for which a fence of this node waits.
    pub(crate) fn missing(&self, id: FenceId, progress: &FenceProgress<'_>) -> Vec<usize> {
        let Some(fence) = self.fences.get(&id) else {
            return Vec::new();
        };
        let waits = |node: &&usize| {
            fence.is_expected(**node, &self.layout, progress)
                && !fence.contributions.contains_key(node)
        };
        fence.members.iter().filter(waits).copied().collect()
    }

    /// Whether other nodes may still need this node's contribution.
    pub(crate) fn is_needed(&self, id: FenceId, gone: &BTreeSet<usize>) -> bool {
        let fence = self.fences.get(&id);
        fence.is_some_and(|fence| !fence.is_over(self.own) || !fence.is_served(self.own, gone))
    }

    /// Whether ranks of other nodes take part.
    pub(crate) fn is_shared(&self, id: FenceId) -> bool {
        let fence = self.fences.get(&id);
        fence.is_some_and(|fence| fence.members.iter().any(|node| *node != self.own))
    }

    /// Whether this node's ranks wait for it.
    pub(crate) fn is_open(&self, id: FenceId) -> bool {
        self.fences.get(&id).is_some_and(|fence| !fence.delivered)
    }

    /// The contributions of a node that are here, each with the tag of its operation.
    #[cfg(test)]
    pub(crate) fn contributions_of(&self, node: usize) -> impl Iterator<Item = (&str, &[u8])> {
        self.fences.values().filter_map(move |fence| {
            let data = fence.contributions.get(&node)?;
            Some((fence.tag.as_str(), data.as_slice()))
        })
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
                order: *count,
                ..Fence::default()
            }
        })
    }
}

impl Fence {
    /// Whether this node's ranks need nothing more: they have the result, or the fence was decided without
    /// them.
    fn is_over(&self, own: usize) -> bool {
        self.delivered || self.decision.is_some() && !self.contributions.contains_key(&own)
    }

    /// Whether all other nodes that take part and are left need nothing more.
    fn is_served(&self, own: usize, gone: &BTreeSet<usize>) -> bool {
        let is_served =
            |node: &usize| *node == own || gone.contains(node) || self.served.contains(node);
        self.members.iter().all(is_served)
    }

    /// Size of its state in the node status, as an upper bound.
    fn size(&self, own: usize) -> usize {
        let put = self.contribution_of(own).map_or(0, |put| put.size());
        let decision = self.decision.as_ref().map_or(0, Ranges::size);
        128 + self.tag.len() + self.ranks.size() + decision + put
    }

    /// Contributions of nodes that are gone, if they count.
    fn replicated(&self, gone: &BTreeSet<usize>, room: &mut usize) -> Vec<(usize, Contributed)> {
        let counts = |node: &&usize| self.is_replicated(**node, gone);
        let put = |node: &usize| {
            let put = self.contribution_of(*node)?;
            *room = room.checked_sub(put.size())?;
            Some((*node, put))
        };
        gone.iter().filter(counts).filter_map(put).collect()
    }

    /// Whether a node's contribution counts, and the node is gone.
    fn is_replicated(&self, node: usize, gone: &BTreeSet<usize>) -> bool {
        let decision = self.decision.as_ref();
        gone.contains(&node) && decision.is_some_and(|decision| decision.contains(node as u32))
    }

    /// Drops the data of served contributions, which may be large, when nobody needs it.
    fn drop_served(&mut self) {
        for node in self.servers.keys() {
            if let Some(data) = self.contributions.get_mut(node) {
                *data = Arc::default();
            }
        }
    }

    /// The launchers that serve a node's contribution, the node itself first.
    fn servers_of(&self, node: usize) -> Vec<usize> {
        let mut servers: Vec<usize> = match self.servers.get(&node) {
            Some(servers) => servers.iter().copied().collect(),
            None => Vec::new(),
        };
        servers.sort_by_key(|server| *server != node);
        servers
    }

    /// Whether a node's contribution was lost with it. A node that has a copy replicates it as soon as it knows
    /// of the loss.
    fn is_lost(&self, own: usize, node: usize, progress: &FenceProgress<'_>) -> bool {
        let is_left = |member: &&usize| **member != own && !progress.gone.contains(member);
        let knows = |member: &usize| {
            let gone = progress.gone_for.get(*member);
            let can_replicate = self.decided.contains(member) || self.served.contains(member);
            can_replicate && gone.is_some_and(|gone| gone.contains(&node))
        };
        let mut servers = self.servers.get(&node).into_iter().flatten();
        let is_served = servers.any(|server| *server != own && !progress.gone.contains(server));
        progress.gone.contains(&node)
            && !is_served
            && self.members.iter().filter(is_left).all(knows)
    }

    /// What is published of a node's contribution.
    fn contribution_of(&self, node: usize) -> Option<Contributed> {
        let too_much = self
            .too_much
            .get(&node)
            .map(|size| Contributed::TooMuch(*size));
        too_much.or_else(|| {
            let data = self.contributions.get(&node)?;
            Some(match self.servers.contains_key(&node) {
                true => Contributed::Served(data.len()),
                false => Contributed::new(data),
            })
        })
    }

    /// Takes what the launcher `from` states of a node's contribution.
    fn take(&mut self, from: usize, node: usize, put: &Contributed) {
        if let Contributed::Served(_) = put {
            self.servers.entry(node).or_default().insert(from);
        }
        if self.contributions.contains_key(&node) {
            return;
        }
        match put {
            Contributed::Here(_) => {
                if let Some(data) = put.data() {
                    self.awaited.remove(&node);
                    self.contributions.insert(node, Arc::new(data));
                }
            }
            Contributed::Beside(size) | Contributed::Served(size) => {
                let awaited = Awaited {
                    size: *size,
                    is_served: matches!(put, Contributed::Served(_)),
                };
                self.awaited.insert(node, awaited);
            }
            Contributed::TooMuch(size) => {
                self.awaited.remove(&node);
                self.too_much.insert(node, *size);
                self.contributions.insert(node, Arc::default());
            }
        }
    }

    /// Whether a rank takes part.
    fn has(&self, rank: u32) -> bool {
        self.ranks.is_empty() || self.ranks.contains(rank)
    }

    /// Whether ranks of this node may still enter the fence.
    fn is_expected(&self, node: usize, layout: &Layout, progress: &FenceProgress<'_>) -> bool {
        let mut ranks = layout.ranks_of(node);
        !progress.gone.contains(&node)
            && ranks.any(|rank| self.has(rank) && !progress.ended.contains(&rank))
    }

    fn may_decide(&self, own: usize, layout: &Layout, progress: &FenceProgress<'_>) -> bool {
        let present = |node: &&usize| !progress.gone.contains(node);
        if self.members.iter().find(present) != Some(&own) {
            return false;
        }
        let before: Vec<&usize> = self
            .members
            .iter()
            .take_while(|node| **node != own)
            .collect();
        let knows = |node: &usize| {
            let for_it = progress.gone_for.get(*node);
            for_it.is_some_and(|gone| before.iter().all(|one| gone.contains(one)))
        };
        let others_know = self
            .members
            .iter()
            .filter(present)
            .all(|node| *node == own || before.is_empty() || knows(node));
        let all_came = self.members.iter().all(|node| {
            self.contributions.contains_key(node)
                || !self.is_expected(*node, layout, progress) && !self.awaited.contains_key(node)
                || progress.gone.contains(node)
        });
        others_know && all_came && !self.contributions.is_empty()
    }
}

/// A number for a list of ranks and the tag of their operation; 0 for a plain fence of all ranks.
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
