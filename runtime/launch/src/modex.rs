//! What a rank has put for others, asked for without a fence (direct modex; run-3).
//!
//! A rank that wants something of a rank elsewhere has its launcher say so on the bell. The launcher over there asks
//! its PMIx server, lays the answer beside its own bell, and every launcher takes a copy, not only the one that
//! wanted it: so it can be had when its node is lost. As soon as one rank asks this way the whole job does as a rule,
//! so in a job of moderate size every launcher lays out the data of all its ranks then.
//!
//! A rank may put more later. Whoever has a copy that lacks what is wanted says up to which version he knows it, and
//! the owner asks its server again, with growing pauses. What a node lays out is bounded (`source`).

mod source;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::Error;
use super::layout::Layout;
use super::node::{Launcher, push_within, say};
use super::node_status::{DataChunk, NodeStatus, PART};
use muster_pmix::server::{Found, Server, Want};
use source::{Move, Room, Source, Step};

/// Of larger jobs only that is laid out which somebody wants.
const SPREAD_MAX: u32 = 4096;
/// Most bytes that a node lays out: half of what the attributes of a node may take.
const BYTES_MAX: usize = 512 << 10;
/// Most bytes of a blob on the bell, and how many have room there always.
const BLOB_SIZE: usize = 80;
const BLOBS_LEAST: usize = 128;
/// Left free on the bell.
const BELL_SLACK: usize = PART / 8;
/// What the ranks of a node may want at a time: of every rank of a large job something.
const ASKING_MAX: usize = 65_536;
/// Ranks that a launcher asks for at a time.
const WANTED_MAX: usize = 64;
/// How many lend a copy of what a lost node had; the next so many do after a pause if none of these does, and so on.
const LENDERS: usize = 3;
const LEND_PAUSE: Duration = Duration::from_millis(200);
const LEND_PAUSES: usize = 5;
/// How long all of them may take for that when they know of the loss; longer than these pauses.
const ECHO: Duration = Duration::from_secs(5);

/// Data of a rank that lies beside a bell.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Blob {
    pub(super) rank: u32,
    /// Grows when the rank has put more.
    pub(super) version: u32,
    /// 0 if there is none.
    pub(super) size: usize,
    /// The rank has ended: there will not be more.
    pub(super) last: bool,
    /// It has put more than can be laid out.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) too_much: bool,
}

/// A rank whose data is wanted, newer than this version.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Wanted {
    pub(super) rank: u32,
    pub(super) after: u32,
}

/// The direct modex of a node.
#[derive(Default)]
pub(super) struct Modex {
    in_use: bool,
    /// Of own ranks, and of lost ones what is lent.
    sources: BTreeMap<u32, Source>,
    /// Of ranks elsewhere.
    copies: BTreeMap<u32, Copy>,
    /// Up to where the blobs of each node are known.
    heard: BTreeMap<usize, u64>,
    /// Of ranks of lost nodes, since when others have wanted it.
    lendable: BTreeMap<u32, Instant>,
    asking: Vec<Asking>,
    /// Something is to be looked at again soon.
    restless: bool,
}

/// What others want of a rank: newer than this, the least and the most that they have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Lack {
    oldest: u32,
    newest: u32,
}

#[derive(Default)]
struct Copy {
    version: u32,
    data: Vec<u8>,
    last: bool,
    too_much: bool,
}

impl Copy {
    /// What of it may become newer.
    fn state(&self) -> (u32, bool, bool) {
        (self.version, self.last, self.too_much)
    }

    /// Of what was too much to be laid out the older version is better than nothing.
    fn take(&mut self, blob: &Blob, data: Vec<u8>) {
        if !blob.too_much || !data.is_empty() {
            self.data = data;
        }
        (self.version, self.last, self.too_much) = (blob.version, blob.last, blob.too_much);
    }
}

/// An own rank that waits.
struct Asking {
    want: Want,
    since: Instant,
    /// Since when all know that the node is lost.
    lost: Option<Instant>,
}

impl Modex {
    pub(super) fn is_restless(&self) -> bool {
        self.restless
    }

    /// Takes what is lent for data of lost nodes' ranks that somebody lacks. Whoever has a copy lends it, the lowest
    /// first, unless another that is left shows it.
    fn lend(&mut self, own: usize, gone: &BTreeSet<usize>, layout: &Layout, living: &Living<'_>) {
        let wants = wants(living);
        let now = Instant::now();
        let is_lost = |rank: u32| {
            layout
                .node_of(rank)
                .is_some_and(|node| gone.contains(&node))
        };
        self.lendable
            .retain(|rank, _| wants.contains_key(rank) && is_lost(*rank));
        for (rank, lack) in wants.into_iter().filter(|(rank, _)| is_lost(*rank)) {
            let copy = self.copies.get(&rank);
            let Some(copy) = copy.filter(|copy| copy.version > lack.oldest) else {
                continue;
            };
            let lent = self.sources.get(&rank).map_or(0, |source| source.version);
            let shows = |blob: &Blob| blob.rank == rank && blob.version >= copy.version;
            let is_shown = living
                .iter()
                .any(|(_, node_status)| node_status.blobs.iter().any(shows));
            let since = *self.lendable.entry(rank).or_insert(now);
            if lent >= copy.version || is_shown {
                continue;
            }
            let place = (0..own).filter(|node| !gone.contains(node)).count();
            if now.duration_since(since) >= pause_of_lender(place) {
                let source = self.sources.entry(rank).or_default();
                source.lend(copy.version, copy.data.clone());
            } else {
                self.restless = true;
            }
        }
    }
}

/// The other launchers that are left.
type Living<'a> = Vec<(usize, &'a NodeStatus)>;

/// Those of these bells. What a lost one wanted nobody waits for.
fn living<'a>(
    node_statuses: impl Iterator<Item = (usize, &'a NodeStatus)>,
    own: usize,
    gone: &BTreeSet<usize>,
) -> Living<'a> {
    node_statuses
        .filter(|(node, _)| *node != own && !gone.contains(node))
        .collect()
}

fn wants(living: &Living<'_>) -> BTreeMap<u32, Lack> {
    let mut wants: BTreeMap<u32, Lack> = BTreeMap::new();
    for Wanted { rank, after } in living
        .iter()
        .flat_map(|(_, node_status)| &node_status.wanted)
    {
        let (oldest, newest) = (*after, *after);
        let lack = wants.entry(*rank).or_insert(Lack { oldest, newest });
        lack.oldest = lack.oldest.min(*after);
        lack.newest = lack.newest.max(*after);
    }
    wants
}

/// How long the one in this place of those that are left leaves it to those before him.
fn pause_of_lender(place: usize) -> Duration {
    LEND_PAUSE * (place / LENDERS).min(LEND_PAUSES) as u32
}

/// How many blobs have room on a bell.
fn room_for_blobs(node_status: &NodeStatus, known: usize) -> usize {
    if known <= BLOBS_LEAST {
        return BLOBS_LEAST;
    }
    let mut rest = node_status.clone();
    rest.blobs.clear();
    PART.saturating_sub(rest.encode().len() + BELL_SLACK) / BLOB_SIZE
}

impl Launcher {
    /// An own rank wants something of a rank elsewhere.
    pub(super) fn want(&mut self, want: Want) {
        let is_ours = want.namespace == self.namespace();
        if !is_ours || want.rank >= self.plan.layout.ranks() {
            return want.refuse();
        }
        let asking = Asking {
            want,
            since: Instant::now(),
            lost: None,
        };
        if let Err(one) = push_within(&mut self.modex.asking, asking, ASKING_MAX) {
            one.want.turn_away();
        }
    }

    /// The server has answered for an own rank.
    pub(super) fn take_found(&mut self, found: Found) {
        let source = self.modex.sources.entry(found.rank).or_default();
        source.take(found.data, Instant::now());
    }

    /// Ranks whose data others want, and have still to hear of what there is.
    fn lacked(&self) -> BTreeSet<u32> {
        let living = living(self.peers.node_statuses(), self.own, self.peers.gone());
        let is_lacked = |(rank, lack): (&u32, &Lack)| {
            let news = self.modex.sources.get(rank)?.is_news(lack.oldest);
            news.then_some(*rank)
        };
        wants(&living).iter().filter_map(is_lacked).collect()
    }

    /// Takes away what nobody lacks at the moment until not more than this is left. How much is.
    pub(super) fn free_modex(&mut self, most: usize) -> Result<usize, Error> {
        let lacked = self.lacked();
        for rank in source::idle(&self.modex.sources, &lacked, most) {
            self.take_away(rank)?;
        }
        Ok(source::laid_bytes(&self.modex.sources))
    }

    /// Lays out what others lack, and what there is room for.
    fn lay_out(&mut self) -> Result<(), Error> {
        let lacked = self.lacked();
        let sources = &self.modex.sources;
        let (bytes, later) = self.room_beside_fences();
        let room = Room {
            bytes,
            later,
            ranks: room_for_blobs(&self.node_status, sources.len()),
        };
        for one in source::moves(sources, &lacked, room) {
            match one {
                Move::Lay(rank) => self.lay(rank, room, lacked.contains(&rank))?,
                Move::Away(rank) => self.take_away(rank)?,
                Move::TooMuch(rank) => self.give_up(rank),
            }
        }
        let sources = &self.modex.sources;
        let is_due = |rank: &u32| sources.get(rank).is_some_and(Source::is_due);
        self.modex.restless |= lacked.iter().any(is_due);
        let blobs = sources.iter().filter_map(|(rank, one)| one.blob(*rank));
        let blobs: Vec<Blob> = blobs.collect();
        if blobs != self.node_status.blobs {
            self.node_status.blobs = blobs;
            self.node_status.blob_turn += 1;
        }
        Ok(())
    }

    /// The older version goes last, so that there is always one, if both have room.
    fn lay(&mut self, rank: u32, room: Room, is_lacked: bool) -> Result<(), Error> {
        let laid = source::laid_bytes(&self.modex.sources);
        let Some(source) = self.modex.sources.get_mut(&rank) else {
            return Ok(());
        };
        if laid + source.data.len() > room.bytes
            && let Some((version, size)) = source.laid.take()
        {
            self.peers.clear(DataChunk::Rank(rank, version), size)?;
        }
        let next = DataChunk::Rank(rank, source.version);
        if !self.peers.put_if_room(next, &source.data)? {
            match is_lacked {
                true if room.later > room.bytes => {}
                true => self.give_up(rank),
                false => source.put_off(),
            }
            return Ok(());
        }
        let before = source.laid;
        source.lay();
        if let Some((version, size)) = before {
            self.peers.clear(DataChunk::Rank(rank, version), size)?;
        }
        Ok(())
    }

    fn take_away(&mut self, rank: u32) -> Result<(), Error> {
        let source = self.modex.sources.get_mut(&rank);
        if let Some((version, size)) = source.and_then(|source| source.laid.take()) {
            self.peers.clear(DataChunk::Rank(rank, version), size)?;
        }
        Ok(())
    }

    fn give_up(&mut self, rank: u32) {
        let source = self.modex.sources.get_mut(&rank);
        if let Some(source) = source
            && source.give_up()
        {
            let text = format!(
                "rank {rank} has put {} bytes, and what no fence exchanges may take {BYTES_MAX} a node, less where \
                 fences take much; collect it by a fence",
                source.data.len()
            );
            say(self.plan.layout.name(self.own), &text);
        }
    }

    /// Wants, copies and answers.
    pub(super) fn see_to_modex(&mut self, server: &Server) -> Result<(), Error> {
        let uses =
            |node_status: &NodeStatus| !node_status.wanted.is_empty() || node_status.blob_turn > 0;
        let modex = &mut self.modex;
        modex.in_use |= !modex.asking.is_empty()
            || self
                .peers
                .node_statuses()
                .any(|(_, node_status)| uses(node_status));
        modex.restless = false;
        if modex.in_use {
            self.copy_blobs()?;
            let living = living(self.peers.node_statuses(), self.own, self.peers.gone());
            let (layout, gone) = (&self.plan.layout, self.peers.gone());
            self.modex.lend(self.own, gone, layout, &living);
            self.ask_server(server)?;
            self.lay_out()?;
            self.answer_wants();
        }
        Ok(())
    }

    /// Takes copies of what the other launchers have laid out.
    fn copy_blobs(&mut self) -> Result<(), Error> {
        let (modex, peers, layout) = (&mut self.modex, &self.peers, &self.plan.layout);
        for (node, node_status) in peers.node_statuses().filter(|(node, _)| *node != self.own) {
            if modex.heard.get(&node).copied().unwrap_or(0) == node_status.blob_turn {
                continue;
            }
            let is_gone = peers.gone().contains(&node);
            let mut is_all_here = true;
            for blob in &node_status.blobs {
                if blob.rank >= layout.ranks() {
                    continue;
                }
                let known = modex.copies.get(&blob.rank);
                let known = known.map_or((0, false, false), Copy::state);
                if (blob.version, blob.last, blob.too_much) <= known {
                    continue;
                }
                let place = DataChunk::Rank(blob.rank, blob.version);
                let data = match peers.fetch(place, node, blob.size) {
                    Ok(data) => data,
                    Err(_) if is_gone => None,
                    Err(error) => return Err(error),
                };
                is_all_here &= data.is_some() || is_gone;
                if let Some(data) = data {
                    if self.plan.verbose && blob.version > known.0 {
                        let text = format!(
                            "what rank {} has put is here: {} bytes",
                            blob.rank,
                            data.len()
                        );
                        say(layout.name(self.own), &text);
                    }
                    modex.copies.entry(blob.rank).or_default().take(blob, data);
                }
            }
            modex.restless |= !is_all_here;
            if is_all_here {
                modex.heard.insert(node, node_status.blob_turn);
            }
        }
        Ok(())
    }

    /// Asks the server for what others want of own ranks.
    fn ask_server(&mut self, server: &Server) -> Result<(), Error> {
        let layout = &self.plan.layout;
        let ranks = layout.ranks_of(self.own);
        let wants = wants(&living(
            self.peers.node_statuses(),
            self.own,
            self.peers.gone(),
        ));
        let wanted = wants.iter().filter(|(rank, _)| ranks.contains(rank));
        let wanted = wanted.map(|(rank, lack)| (*rank, Some(lack.newest)));
        let is_small = layout.ranks() <= SPREAD_MAX;
        let rest = ranks
            .clone()
            .filter(|rank| is_small && !wants.contains_key(rank));
        let ended: BTreeSet<u32> = self
            .node_status
            .ended
            .iter()
            .map(|ended| ended.rank)
            .collect();
        let now = Instant::now();
        for (rank, wanted) in wanted.chain(rest.map(|rank| (rank, None))) {
            let source = self.modex.sources.entry(rank).or_default();
            match source.step(wanted, ended.contains(&rank), now) {
                Step::Ask => server.ask_for(rank)?,
                Step::Wait => self.modex.restless |= wanted.is_some(),
                Step::Rest => {}
            }
        }
        Ok(())
    }

    /// Answers own ranks what can be answered, and says what is wanted still.
    fn answer_wants(&mut self) {
        let patience = self.plan.patience;
        let mut wanted: Vec<Wanted> = Vec::new();
        let living = living(self.peers.node_statuses(), self.own, self.peers.gone());
        let all_know = |node: usize| {
            living
                .iter()
                .all(|(_, node_status)| node_status.gone.contains(node as u32))
        };
        for mut asking in std::mem::take(&mut self.modex.asking) {
            let rank = asking.want.rank;
            let copy = self.modex.copies.get(&rank);
            if let Some(copy) = copy.filter(|copy| asking.want.is_in(&copy.data)) {
                asking.want.give(&copy.data);
                continue;
            }
            let node = self.plan.layout.node_of(rank).unwrap_or_default();
            if self.peers.gone().contains(&node) && all_know(node) {
                asking.lost.get_or_insert_with(Instant::now);
            }
            let limit = asking.want.timeout_s;
            let limit = limit.map_or(patience, |limit| Duration::from_secs(u64::from(limit)));
            let is_lost = asking.lost.is_some_and(|lost| lost.elapsed() > ECHO);
            let why = if is_lost {
                "was lost before anybody had a copy of it".to_owned()
            } else if copy.is_some_and(|copy| copy.too_much) {
                format!("has put more than may be laid out, {BYTES_MAX} bytes a node")
            } else if copy.is_some_and(|copy| copy.last) {
                "has ended without it".to_owned()
            } else if asking.since.elapsed() > limit {
                format!("has not put it within {} s", limit.as_secs())
            } else {
                let after = copy.map_or(0, |copy| copy.version);
                wanted.push(Wanted { rank, after });
                self.modex.asking.push(asking);
                continue;
            };
            let what = asking.want.key.as_deref().unwrap_or("what it has put");
            let name = self.plan.layout.name(node);
            self.say(&format!(
                "{what} of rank {rank} on {name} is wanted here, and that rank {why}"
            ));
            let will_not_come = is_lost || copy.is_some_and(|copy| copy.last || copy.too_much);
            match copy {
                // What is not in it libpmix finds out.
                Some(copy) if !copy.data.is_empty() => asking.want.give(&copy.data),
                _ if will_not_come => asking.want.refuse(),
                _ => asking.want.time_out(),
            }
        }
        wanted.sort_by_key(|one| one.rank);
        wanted.dedup();
        wanted.truncate(WANTED_MAX);
        self.node_status.wanted = wanted;
        self.modex.restless |= !self.modex.asking.is_empty();
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
        }
    }

    #[test]
    fn what_a_lost_node_wanted_is_not_wanted_any_more() {
        let node_statuses = [
            node_status(&[(9, 4)], &[]),
            node_status(&[(9, 1), (5, 0)], &[]),
            node_status(&[(9, 7)], &[]),
            node_status(&[(9, 2)], &[]),
        ];
        let of = |gone: &[usize]| {
            let gone = gone.iter().copied().collect();
            wants(&living(node_statuses.iter().enumerate(), 3, &gone))
        };
        let lack = |oldest, newest| Lack { oldest, newest };
        assert_eq!(of(&[]), [(5, lack(0, 0)), (9, lack(1, 7))].into());
        assert_eq!(of(&[2]), [(5, lack(0, 0)), (9, lack(1, 4))].into());
        assert_eq!(of(&[0, 1, 2]), [].into());
    }

    /// Ten nodes with a rank each, of which node 4 is lost and node 8 wants what its rank had.
    struct Lost {
        layout: Layout,
        node_statuses: Vec<NodeStatus>,
        modex: Modex,
    }

    impl Lost {
        fn new() -> Self {
            let names = (0..10).map(|node| format!("n{node}")).collect();
            let mut node_statuses = vec![NodeStatus::default(); 10];
            node_statuses[8] = node_status(&[(4, 0)], &[]);
            // It showed it itself.
            node_statuses[4] = node_status(&[], &[(4, 1)]);
            let mut modex = Modex::default();
            let copy = modex.copies.entry(4).or_default();
            copy.take(&blob(4, 1), b"old".to_vec());
            Self {
                layout: Layout::new(names, None, None).unwrap(),
                node_statuses,
                modex,
            }
        }

        /// Whether this node lends what it has a copy of, having known of the want so long.
        fn lends(&mut self, own: usize, known: Duration) -> bool {
            let gone = [4].into();
            let living = living(self.node_statuses.iter().enumerate(), own, &gone);
            self.modex.lend(own, &gone, &self.layout, &living);
            if let Some(since) = self.modex.lendable.get_mut(&4) {
                *since -= known;
                self.modex.lend(own, &gone, &self.layout, &living);
            }
            let source = self.modex.sources.get(&4);
            source.is_some_and(|source| source.version == 1 && source.data == b"old")
        }
    }

    /// run-3.
    #[test]
    fn whoever_has_a_copy_lends_it_if_nobody_before_him_does() {
        for own in 0..3 {
            assert!(Lost::new().lends(own, Duration::ZERO), "{own}");
        }
        let last = pause_of_lender(8);
        assert!(last >= LEND_PAUSE && last < ECHO);
        assert!(Lost::new().lends(9, last));
        let mut lost = Lost::new();
        lost.node_statuses[7] = node_status(&[], &[(4, 1)]);
        assert!(!lost.lends(9, last), "another shows it");
        lost.node_statuses[7] = NodeStatus::default();
        assert!(lost.lends(9, last), "that one is lost too");
        let mut lost = Lost::new();
        lost.node_statuses[8] = node_status(&[(4, 1)], &[]);
        assert!(!lost.lends(0, last), "he has it, and it is not newer");
        assert_eq!(pause_of_lender(4000), LEND_PAUSE * LEND_PAUSES as u32);
    }

    #[test]
    fn what_was_too_much_does_not_replace_what_is_here() {
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
    fn a_bell_has_room_for_its_blobs_as_long_as_it_has_any() {
        let longest = Blob {
            rank: 65_535,
            version: u32::MAX,
            size: BYTES_MAX,
            last: false,
            too_much: true,
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
            assert!(node_status.encode().len() <= PART - BELL_SLACK, "{count}");
        }
        assert_eq!(room_for_blobs(&NodeStatus::default(), 5), BLOBS_LEAST);
    }
}
