//! Direct modex: data that a rank has put for others, requested without a fence (run-3).
//!
//! When a rank wants data of a rank on another node, its launcher publishes the request in its node status. The
//! owner's launcher asks its PMIx server and stores the answer in attributes of its node. Every launcher takes a
//! copy, not only the one that requested it, so the data is available when its node is lost. As a rule, when one
//! rank requests data this way, the whole job does. Therefore in a job of moderate size every launcher then stores
//! the data of all its ranks.
//!
//! Large data is not in attributes: the owner's launcher serves it to those whose ranks request it, and to a few that
//! keep a copy for the case that the owner's node is lost.
//!
//! A rank may put more data later. A launcher whose copy lacks the wanted key publishes the version that it has,
//! and the owner asks its server again, with growing pauses. A node stores a bounded amount (`source`).

mod source;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::messages::{Action, Answer, Wanting};
use super::node_status::{Blob, DataChunk, NodeStatus, PART, Wanted};
use super::{Core, Storing, WithoutRoom, push_within};
use crate::layout::Layout;
use source::{Change, Room, Source, Step};

/// In larger jobs only data that another rank has requested is stored.
const SPREAD_MAX: u32 = 4096;
/// Most bytes that a node stores: half of what a node's attributes may take.
const BYTES_MAX: usize = 512 << 10;
/// Most bytes of a blob in the node status, and the number of blobs that always have room there.
const BLOB_SIZE: usize = 96;
const BLOBS_LEAST: usize = 128;
/// Bytes that stay free in the node status.
const STATUS_SLACK: usize = PART / 8;
/// Most requests of a node's ranks that may be open: one for every rank of a large job.
const PENDING_MAX: usize = 65_536;
/// Most ranks whose data a launcher requests at a time.
const WANTED_MAX: usize = 64;
/// Number of launchers, those after the owner's, that take a copy of served data although no rank there requests it.
const COPIES: usize = 2;
/// Number of launchers that replicate the data of a lost node; if none of them does, the next ones do after a
/// pause, and so on.
const REPLICAS: usize = 3;
const REPLICA_PAUSE: Duration = Duration::from_millis(200);
const REPLICA_PAUSES: usize = 5;
/// How long all launchers may take for the replication once they know of the loss; longer than these pauses.
const LOSS_WAIT: Duration = Duration::from_secs(5);

/// The direct modex of a node.
#[derive(Debug, Default)]
pub(super) struct Modex {
    in_use: bool,
    /// Data of this node's ranks, and replicated data of lost ones.
    sources: BTreeMap<u32, Source>,
    /// Copies of the data of other nodes' ranks.
    copies: BTreeMap<u32, Copy>,
    /// The last `blob_turn` of each node whose blobs are copied.
    copied: BTreeMap<usize, u64>,
    /// For ranks of lost nodes: since when other launchers have requested the data.
    requested_since: BTreeMap<u32, Duration>,
    /// Blobs of lost nodes whose data did not arrive here: node, rank, version.
    unavailable: BTreeSet<(usize, u32, u32)>,
    pending: Vec<Pending>,
    /// Changes of what is stored that are still to be carried out.
    changes: VecDeque<Change>,
    /// Something is due at the next tick.
    is_due_soon: bool,
}

/// The versions of a rank's data that the requesters have, the least and the greatest: they want newer ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct WantedVersions {
    oldest: u32,
    newest: u32,
}

#[derive(Debug, Default)]
struct Copy {
    version: u32,
    data: Vec<u8>,
    last: bool,
    too_much: bool,
}

impl Copy {
    /// The part of a copy that a newer blob exceeds.
    fn state(&self) -> (u32, bool, bool) {
        (self.version, self.last, self.too_much)
    }

    /// Takes a blob. If its data is too large to be stored, the older data stays, which is better than none.
    fn take(&mut self, blob: &Blob, data: Vec<u8>) {
        if !blob.too_much || !data.is_empty() {
            self.data = data;
        }
        (self.version, self.last, self.too_much) = (blob.version, blob.last, blob.too_much);
    }
}

/// An open request of a rank of this node.
#[derive(Debug)]
struct Pending {
    want: Wanting,
    since: Duration,
    /// Since when all launchers know that the node is lost.
    lost: Option<Duration>,
}

impl Wanting {
    /// Whether the requested key is in this data. libpmix writes keys as they are. If other bytes look like the key,
    /// the requester gets an answer without it.
    fn is_in(&self, data: &[u8]) -> bool {
        let within =
            |key: &String| key.is_empty() || data.windows(key.len()).any(|at| at == key.as_bytes());
        !data.is_empty() && self.key.as_ref().is_none_or(within)
    }
}

impl Modex {
    pub(super) fn is_due_soon(&self) -> bool {
        self.is_due_soon
    }

    /// Replicates the data of lost nodes' ranks that other launchers request. A launcher that has a copy
    /// replicates it, the lowest node first, unless another launcher that is left does.
    fn replicate(
        &mut self,
        own: usize,
        gone: &BTreeSet<usize>,
        layout: &Layout,
        remaining: &Remaining<'_>,
        now: Duration,
    ) {
        let wants = wants(remaining);
        let is_lost = |rank: u32| {
            layout
                .node_of(rank)
                .is_some_and(|node| gone.contains(&node))
        };
        self.requested_since
            .retain(|rank, _| wants.contains_key(rank) && is_lost(*rank));
        for (rank, versions) in wants.into_iter().filter(|(rank, _)| is_lost(*rank)) {
            let copy = self.copies.get(&rank);
            let Some(copy) = copy.filter(|copy| copy.version > versions.oldest) else {
                continue;
            };
            let replicated = self.sources.get(&rank).map_or(0, |source| source.version);
            let has_it = |blob: &Blob| blob.rank == rank && blob.version >= copy.version;
            let is_replicated = remaining
                .iter()
                .any(|(_, node_status)| node_status.blobs.iter().any(has_it));
            let since = *self.requested_since.entry(rank).or_insert(now);
            if replicated >= copy.version || is_replicated {
                continue;
            }
            let place = (0..own).filter(|node| !gone.contains(node)).count();
            if now.saturating_sub(since) >= replica_pause(place) {
                let source = self.sources.entry(rank).or_default();
                source.replicate(copy.version, copy.data.clone());
            } else {
                self.is_due_soon = true;
            }
        }
    }
}

/// The node statuses of the other launchers that are left.
type Remaining<'a> = Vec<(usize, &'a NodeStatus)>;

/// Selects them. Requests of a lost launcher do not count.
fn remaining<'a>(
    node_statuses: impl Iterator<Item = (usize, &'a NodeStatus)>,
    own: usize,
    gone: &BTreeSet<usize>,
) -> Remaining<'a> {
    node_statuses
        .filter(|(node, _)| *node != own && !gone.contains(node))
        .collect()
}

fn wants(remaining: &Remaining<'_>) -> BTreeMap<u32, WantedVersions> {
    let mut wants: BTreeMap<u32, WantedVersions> = BTreeMap::new();
    for Wanted { rank, after } in remaining
        .iter()
        .flat_map(|(_, node_status)| &node_status.wanted)
    {
        let (oldest, newest) = (*after, *after);
        let versions = wants
            .entry(*rank)
            .or_insert(WantedVersions { oldest, newest });
        versions.oldest = versions.oldest.min(*after);
        versions.newest = versions.newest.max(*after);
    }
    wants
}

/// How long the launcher at this place among those that are left waits before it replicates.
fn replica_pause(place: usize) -> Duration {
    REPLICA_PAUSE * (place / REPLICAS).min(REPLICA_PAUSES) as u32
}

/// How many blobs have room in the node status.
fn room_for_blobs(node_status: &NodeStatus, known: usize) -> usize {
    if known <= BLOBS_LEAST {
        return BLOBS_LEAST;
    }
    let mut rest = node_status.clone();
    rest.blobs.clear();
    PART.saturating_sub(rest.encode().len() + STATUS_SLACK) / BLOB_SIZE
}

impl Core {
    /// A rank of this node requests data of a rank on another node.
    pub(super) fn want(&mut self, want: Wanting) {
        if want.rank >= self.config.layout.ranks() {
            return self.answer(want.request, Answer::NotFound);
        }
        let pending = Pending {
            want,
            since: self.now,
            lost: None,
        };
        if let Err(one) = push_within(&mut self.modex.pending, pending, PENDING_MAX) {
            self.answer(one.want.request, Answer::Refused);
        }
    }

    /// Takes the PMIx server's answer for a rank of this node.
    pub(super) fn take_found(&mut self, rank: u32, data: Vec<u8>) {
        let source = self.modex.sources.entry(rank).or_default();
        source.take(data, self.now);
    }

    /// The node statuses of the other launchers that are left.
    fn remaining(&self) -> Remaining<'_> {
        remaining(self.view.others(), self.config.own, self.view.gone())
    }

    /// Ranks whose data other launchers request and have not got in its newest version.
    fn needed(&self) -> BTreeSet<u32> {
        let is_needed = |(rank, versions): (&u32, &WantedVersions)| {
            let news = self.modex.sources.get(rank)?.has_news_for(versions.oldest);
            news.then_some(*rank)
        };
        let wants = wants(&self.remaining());
        wants.iter().filter_map(is_needed).collect()
    }

    /// Withdraws data that no launcher requests at the moment, until at most `most` bytes are stored. Returns
    /// how many are.
    pub(super) fn free_modex(&mut self, most: usize) -> usize {
        let needed = self.needed();
        for rank in source::idle(&self.modex.sources, &needed, most) {
            self.withdraw(rank);
        }
        source::stored_bytes(&self.modex.sources)
    }

    /// Stores the data that other launchers request, and other data as far as there is room. Other data that is being
    /// stored is awaited before.
    pub(super) fn store_data(&mut self) {
        if !self.modex.in_use || self.storing.is_some() {
            return;
        }
        let needed = self.needed();
        let (bytes, later) = self.room_beside_fences();
        let room = Room {
            bytes,
            later,
            ranks: room_for_blobs(&self.node_status, self.modex.sources.len()),
            serve_from: self.config.serve_from.unwrap_or(usize::MAX),
            serve_max: self.config.serve_max,
        };
        self.modex.changes = source::changes(&self.modex.sources, &needed, room).into();
        self.store_next();
        let sources = &self.modex.sources;
        let is_due = |rank: &u32| sources.get(rank).is_some_and(Source::is_due);
        self.modex.is_due_soon |= needed.iter().any(is_due);
    }

    /// Carries out the changes up to the next data to be stored; after the last one, publishes what is stored.
    fn store_next(&mut self) {
        while self.storing.is_none()
            && let Some(one) = self.modex.changes.pop_front()
        {
            match one {
                Change::Store(rank) => self.store(rank),
                Change::Withdraw(rank) => self.withdraw(rank),
                Change::TooMuch(rank) => self.give_up(rank),
            }
        }
        if self.storing.is_some() {
            return;
        }
        let sources = self.modex.sources.iter();
        let blobs = sources.filter_map(|(rank, one)| one.blob(*rank));
        let blobs: Vec<Blob> = blobs.collect();
        if blobs != self.node_status.blobs {
            self.node_status.blobs = blobs;
            self.node_status.blob_turn += 1;
        }
    }

    /// Stores the newest version. If both have room, the older one is withdrawn last, so that one version is
    /// always there.
    fn store(&mut self, rank: u32) {
        let source = self.modex.sources.get(&rank);
        if source.is_some_and(|source| self.is_for_serving(source.data.len())) {
            return self.serve_source(rank);
        }
        let (bytes, later) = self.room_beside_fences();
        let is_needed = self.needed().contains(&rank);
        let stored = source::stored_bytes(&self.modex.sources);
        let Some(source) = self.modex.sources.get_mut(&rank) else {
            return;
        };
        let (version, data) = (source.version, source.data.clone());
        if stored + data.len() > bytes {
            self.withdraw(rank);
        }
        self.storing = Some(Storing::Source {
            rank,
            version,
            size: data.len(),
            without_room: match is_needed {
                true if later > bytes => WithoutRoom::Retry,
                true => WithoutRoom::GiveUp,
                false => WithoutRoom::Postpone,
            },
        });
        let chunk = DataChunk::Rank(rank, version);
        self.act(Action::Put { chunk, data });
    }

    /// Serves the newest version instead of what was stored before.
    fn serve_source(&mut self, rank: u32) {
        let Some(source) = self.modex.sources.get_mut(&rank) else {
            return;
        };
        let before = source.stored.map(|stored| (stored, source.is_served));
        let (version, size) = (source.version, source.data.len());
        let data = Arc::new(source.data.clone());
        source.store(version, size, true);
        let (chunk, owner) = (DataChunk::Rank(rank, version), self.config.own);
        self.act(Action::Serve { chunk, owner, data });
        self.withdraw_version(rank, before);
    }

    /// Withdraws a version of a rank's data: version and size, and whether it is served.
    fn withdraw_version(&mut self, rank: u32, version: Option<((u32, usize), bool)>) {
        let Some(((version, size), is_served)) = version else {
            return;
        };
        let (chunk, owner) = (DataChunk::Rank(rank, version), self.config.own);
        self.act(match is_served {
            true => Action::StopServing { chunk, owner },
            false => Action::Clear { chunk, size },
        });
    }

    /// Takes the result of storing a version. If it failed, other processes have written large attributes.
    pub(super) fn take_stored_source(
        &mut self,
        rank: u32,
        (version, size): (u32, usize),
        is_stored: bool,
        without_room: WithoutRoom,
    ) {
        if let Some(source) = self.modex.sources.get_mut(&rank) {
            let before = source.stored.map(|stored| (stored, source.is_served));
            match (is_stored, without_room) {
                (true, _) => {
                    source.store(version, size, false);
                    self.withdraw_version(rank, before);
                }
                (false, WithoutRoom::Retry) => {}
                (false, WithoutRoom::GiveUp) => self.give_up(rank),
                (false, WithoutRoom::Postpone) => source.postpone(),
            }
        }
        self.store_next();
    }

    fn withdraw(&mut self, rank: u32) {
        let Some(source) = self.modex.sources.get_mut(&rank) else {
            return;
        };
        let version = source
            .stored
            .take()
            .map(|stored| (stored, source.is_served));
        self.withdraw_version(rank, version);
    }

    /// Most bytes of the data of a rank.
    fn modex_max(&self) -> usize {
        match self.config.serve_from {
            Some(_) => self.config.serve_max,
            None => BYTES_MAX,
        }
    }

    fn give_up(&mut self, rank: u32) {
        let most = self.modex_max();
        let source = self.modex.sources.get_mut(&rank);
        if let Some(source) = source
            && source.give_up()
        {
            let text = format!(
                "rank {rank} has put {} bytes, and the direct modex of a node may take {most}, less where \
                 fences take much; exchange it by a fence",
                source.data.len()
            );
            self.print(text);
        }
    }

    /// Handles requests, copies and answers.
    pub(super) fn advance_modex(&mut self) {
        let uses =
            |node_status: &NodeStatus| !node_status.wanted.is_empty() || node_status.blob_turn > 0;
        self.modex.in_use |= !self.modex.pending.is_empty() || self.view.any(uses);
        self.modex.is_due_soon = false;
        if self.modex.in_use {
            self.copy_blobs();
            let remaining = remaining(self.view.others(), self.config.own, self.view.gone());
            let (own, layout, gone) = (self.config.own, &self.config.layout, self.view.gone());
            self.modex
                .replicate(own, gone, layout, &remaining, self.now);
            self.ask_server();
            self.store_data();
            self.answer_wants();
        }
    }

    /// Requests what the other launchers have stored and this one has no copy of.
    fn copy_blobs(&mut self) {
        let mut fetches = Vec::new();
        let mut requests = Vec::new();
        let wanted: BTreeSet<u32> = self.modex.pending.iter().map(|one| one.want.rank).collect();
        let layout = &self.config.layout;
        let is_kept = |blob: &&Blob| {
            let owner = layout.node_of(blob.rank).unwrap_or_default();
            let nodes = layout.nodes().len();
            let behind = (self.config.own + nodes - owner) % nodes;
            wanted.contains(&blob.rank) || (1..=COPIES).contains(&behind)
        };
        let modex = &mut self.modex;
        for (node, node_status) in self.view.others() {
            if modex.copied.get(&node).copied().unwrap_or(0) == node_status.blob_turn {
                continue;
            }
            let is_missing = |blob: &&Blob| {
                let known = modex.copies.get(&blob.rank);
                let known = known.map_or((0, false, false), Copy::state);
                blob.rank < self.config.layout.ranks()
                    && (blob.version, blob.last, blob.too_much) > known
                    && !(modex.unavailable).contains(&(node, blob.rank, blob.version))
            };
            let missing: Vec<&Blob> = node_status.blobs.iter().filter(is_missing).collect();
            if missing.is_empty() {
                modex.copied.insert(node, node_status.blob_turn);
            }
            let fetch = |blob: &Blob| Action::Fetch {
                chunk: DataChunk::Rank(blob.rank, blob.version),
                node,
                size: blob.size,
            };
            let (served, stored): (Vec<&Blob>, Vec<&Blob>) =
                missing.into_iter().partition(|blob| blob.served);
            fetches.extend(stored.into_iter().map(fetch));
            let request = |blob: &Blob| {
                let chunk = DataChunk::Rank(blob.rank, blob.version);
                (chunk, node, blob.size)
            };
            requests.extend(served.into_iter().filter(&is_kept).map(request));
        }
        self.modex.is_due_soon |= !fetches.is_empty() || !requests.is_empty();
        self.actions.extend(fetches);
        for (chunk, node, size) in requests {
            self.request(chunk, node, size, vec![node]);
        }
    }

    /// Takes a copy of data that another launcher has stored.
    pub(super) fn take_copy(
        &mut self,
        rank: u32,
        version: u32,
        node: usize,
        data: Option<Vec<u8>>,
    ) {
        let Some(data) = data else {
            if self.view.gone().contains(&node) {
                self.modex.unavailable.insert((node, rank, version));
            }
            return;
        };
        let is_it = |blob: &&Blob| blob.rank == rank && blob.version == version;
        let node_status = self.view.status(node);
        let Some(blob) = node_status.and_then(|one| one.blobs.iter().find(is_it)) else {
            return;
        };
        let copy = self.modex.copies.entry(rank).or_default();
        // Several launchers may have stored the data, in several versions.
        if (blob.version, blob.last, blob.too_much) <= copy.state() {
            return;
        }
        let (is_new, size) = (version > copy.version, data.len());
        copy.take(blob, data);
        if is_new && self.config.verbose {
            self.print(format!("received the data of rank {rank}: {size} bytes"));
        }
    }

    /// Asks the server for data of this node's ranks that other launchers request.
    fn ask_server(&mut self) {
        let layout = &self.config.layout;
        let ranks = layout.ranks_of(self.config.own);
        let wants = wants(&self.remaining());
        let wanted = wants.iter().filter(|(rank, _)| ranks.contains(rank));
        let wanted = wanted.map(|(rank, versions)| (*rank, Some(versions.newest)));
        let is_small = layout.ranks() <= SPREAD_MAX;
        let rest = ranks
            .clone()
            .filter(|rank| is_small && !wants.contains_key(rank));
        let ended = self.node_status.ended.iter();
        let ended: BTreeSet<u32> = ended.map(|ended| ended.rank).collect();
        for (rank, wanted) in wanted.chain(rest.map(|rank| (rank, None))) {
            let source = self.modex.sources.entry(rank).or_default();
            match source.step(wanted, ended.contains(&rank), self.now) {
                Step::Ask => self.actions.push_back(Action::AskServer(rank)),
                Step::Wait => self.modex.is_due_soon |= wanted.is_some(),
                Step::Idle => {}
            }
        }
    }

    /// Answers this node's ranks as far as possible, and publishes the requests that stay open.
    fn answer_wants(&mut self) {
        let mut wanted: Vec<Wanted> = Vec::new();
        let gone = self.view.gone();
        let remaining = self.remaining();
        let knows = |node: usize| {
            move |(_, status): &(usize, &NodeStatus)| status.gone.contains(node as u32)
        };
        let lost: BTreeSet<usize> = gone
            .iter()
            .copied()
            .filter(|node| remaining.iter().all(knows(*node)))
            .collect();
        for mut pending in std::mem::take(&mut self.modex.pending) {
            let rank = pending.want.rank;
            let node = self.config.layout.node_of(rank).unwrap_or_default();
            if lost.contains(&node) {
                pending.lost.get_or_insert(self.now);
            }
            match self.answer_want(&pending, node) {
                Some(answer) => self.answer(pending.want.request, answer),
                None => {
                    let copy = self.modex.copies.get(&rank);
                    let after = copy.map_or(0, |copy| copy.version);
                    wanted.push(Wanted { rank, after });
                    self.modex.pending.push(pending);
                }
            }
        }
        wanted.sort_by_key(|one| one.rank);
        wanted.dedup();
        wanted.truncate(WANTED_MAX);
        self.node_status.wanted = wanted;
        self.modex.is_due_soon |= !self.modex.pending.is_empty();
    }

    /// The answer to a request for data of a rank on this node, if there is one already.
    fn answer_want(&mut self, pending: &Pending, node: usize) -> Option<Answer> {
        let rank = pending.want.rank;
        let copy = self.modex.copies.get(&rank);
        if let Some(copy) = copy.filter(|copy| pending.want.is_in(&copy.data)) {
            return Some(Answer::Data(copy.data.clone()));
        }
        let after = copy.map_or(0, |copy| copy.version);
        let has_newer = |blob: &Blob| blob.rank == rank && blob.version > after;
        let is_offered =
            (self.remaining().iter()).any(|(_, status)| status.blobs.iter().any(has_newer));
        let limit = pending.want.timeout_s;
        let limit = limit.map_or(self.config.timeout, |limit| {
            Duration::from_secs(u64::from(limit))
        });
        let is_lost = pending
            .lost
            .is_some_and(|lost| self.since(lost) > LOSS_WAIT && !is_offered);
        let why = if is_lost {
            "was lost before another node had a copy of it".to_owned()
        } else if copy.is_some_and(|copy| copy.too_much) {
            let most = self.modex_max();
            format!("has put more than the direct modex of a node may take, {most} bytes")
        } else if copy.is_some_and(|copy| copy.last) {
            "has ended without it".to_owned()
        } else if self.since(pending.since) > limit {
            format!("has not put it within {} s", limit.as_secs())
        } else {
            return None;
        };
        let will_not_come = is_lost || copy.is_some_and(|copy| copy.last || copy.too_much);
        let answer = match copy {
            // libpmix finds out itself that the key is missing.
            Some(copy) if !copy.data.is_empty() => Answer::Data(copy.data.clone()),
            _ if will_not_come => Answer::NotFound,
            _ => Answer::TimedOut,
        };
        let what = pending.want.key.as_deref().unwrap_or("data");
        let name = self.config.layout.name(node);
        self.print(format!(
            "a rank of this node requests {what} of rank {rank} on {name}, and that rank {why}"
        ));
        Some(answer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node_status(wanted: &[(u32, u32)], blobs: &[(u32, u32)]) -> NodeStatus {
        let wanted = wanted.iter().copied();
        let blobs = blobs.iter().copied();
        NodeStatus {
            wanted: wanted.map(|(rank, after)| Wanted { rank, after }).collect(),
            blobs: blobs.map(|(rank, version)| blob(rank, version)).collect(),
            ..NodeStatus::default()
        }
    }

    fn blob(rank: u32, version: u32) -> Blob {
        Blob {
            rank,
            version,
            size: 3,
            last: false,
            too_much: false,
            served: false,
        }
    }

    #[test]
    fn requests_of_a_lost_node_do_not_count() {
        let node_statuses = [
            node_status(&[(9, 4)], &[]),
            node_status(&[(9, 1), (5, 0)], &[]),
            node_status(&[(9, 7)], &[]),
            node_status(&[(9, 2)], &[]),
        ];
        let of = |gone: &[usize]| {
            let gone = gone.iter().copied().collect();
            wants(&remaining(node_statuses.iter().enumerate(), 3, &gone))
        };
        let versions = |oldest, newest| WantedVersions { oldest, newest };
        assert_eq!(of(&[]), [(5, versions(0, 0)), (9, versions(1, 7))].into());
        assert_eq!(of(&[2]), [(5, versions(0, 0)), (9, versions(1, 4))].into());
        assert_eq!(of(&[0, 1, 2]), [].into());
    }

    /// Ten nodes with a rank each. Node 4 is lost, and node 8 requests the data of its rank.
    struct Lost {
        layout: Layout,
        node_statuses: Vec<NodeStatus>,
        modex: Modex,
        now: Duration,
    }

    impl Lost {
        fn new() -> Self {
            let names = (0..10).map(|node| format!("n{node}")).collect();
            let mut node_statuses = vec![NodeStatus::default(); 10];
            node_statuses[8] = node_status(&[(4, 0)], &[]);
            // Node 4 had stored it itself.
            node_statuses[4] = node_status(&[], &[(4, 1)]);
            let mut modex = Modex::default();
            let copy = modex.copies.entry(4).or_default();
            copy.take(&blob(4, 1), b"old".to_vec());
            Self {
                layout: Layout::new(names, None, None).unwrap(),
                node_statuses,
                modex,
                now: Duration::ZERO,
            }
        }

        /// Whether this node replicates its copy when it has known of the request for this long.
        fn replicates(&mut self, own: usize, known: Duration) -> bool {
            let gone = [4].into();
            let remaining = remaining(self.node_statuses.iter().enumerate(), own, &gone);
            for now in [self.now, self.now + known] {
                self.modex
                    .replicate(own, &gone, &self.layout, &remaining, now);
            }
            self.now += known;
            let source = self.modex.sources.get(&4);
            source.is_some_and(|source| source.version == 1 && source.data == b"old")
        }
    }

    /// run-3.
    #[test]
    fn a_node_replicates_its_copy_if_no_earlier_node_does() {
        for own in 0..3 {
            assert!(Lost::new().replicates(own, Duration::ZERO), "{own}");
        }
        let last = replica_pause(8);
        assert!(last >= REPLICA_PAUSE && last < LOSS_WAIT);
        assert!(Lost::new().replicates(9, last));
        let mut lost = Lost::new();
        lost.node_statuses[7] = node_status(&[], &[(4, 1)]);
        assert!(
            !lost.replicates(9, last),
            "another launcher has replicated it"
        );
        lost.node_statuses[7] = NodeStatus::default();
        assert!(lost.replicates(9, last), "that launcher is lost, too");
        let mut lost = Lost::new();
        lost.node_statuses[8] = node_status(&[(4, 1)], &[]);
        assert!(!lost.replicates(0, last), "the requester has this version");
        assert_eq!(replica_pause(4000), REPLICA_PAUSE * REPLICA_PAUSES as u32);
    }

    #[test]
    fn too_large_data_does_not_replace_the_copy() {
        let mut copy = Copy::default();
        copy.take(&blob(0, 1), b"old".to_vec());
        let too_much = Blob {
            size: 0,
            too_much: true,
            ..blob(0, 2)
        };
        copy.take(&too_much, Vec::new());
        assert_eq!(
            (copy.state(), &copy.data[..]),
            ((2, false, true), &b"old"[..])
        );
        copy.take(&blob(0, 3), b"new".to_vec());
        assert_eq!(copy.data, b"new");
    }

    #[test]
    fn the_reported_room_for_blobs_suffices() {
        let longest = Blob {
            rank: 65_535,
            version: u32::MAX,
            size: BYTES_MAX,
            last: false,
            too_much: true,
            served: true,
        };
        assert!(serde_json::to_vec(&longest).unwrap().len() < BLOB_SIZE);
        let ended = |rank| super::super::node_status::Ended {
            rank,
            status: 137,
            connected: false,
            finalized: false,
        };
        for count in [200, 600, 850] {
            let mut node_status = NodeStatus {
                ended: (60_000..60_000 + count).map(ended).collect(),
                ..NodeStatus::default()
            };
            let room = room_for_blobs(&node_status, 1000);
            assert!(room > 0, "{count}");
            node_status.blobs = vec![longest.clone(); room];
            assert!(node_status.encode().len() <= PART - STATUS_SLACK, "{count}");
        }
        assert_eq!(room_for_blobs(&NodeStatus::default(), 5), BLOBS_LEAST);
    }
}
