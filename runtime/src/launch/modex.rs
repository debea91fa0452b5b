//! What a rank has put for others, asked for without a fence (direct modex; run-3).
//!
//! A rank that wants something of a rank elsewhere has its launcher say so on the bell. The launcher over there asks
//! its PMIx server, lays the answer beside its own bell, and every launcher takes a copy, not only the one that
//! wanted it: so it can be had when its node is lost. As soon as one rank asks this way the whole job does as a rule,
//! so in a job of moderate size every launcher lays out the data of all its ranks then.
//!
//! A rank may put more later. Whoever has a copy that lacks what is wanted says up to which version he knows it, and
//! the owner asks its server again, with growing pauses.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::Error;
use super::bell::Parcel;
use super::node::{Launcher, say};
use crate::pmix::server::{Found, Server, Want};

/// Of larger jobs only that is laid out which somebody wants.
const SPREAD_MOST: u32 = 4096;
/// Most bytes that a node lays out: half of what the attributes of a node may take.
const BYTES_MOST: usize = 512 << 10;
/// Ranks that a launcher asks for at a time.
const WANTED_MOST: usize = 64;
/// Pauses before a server is asked again.
const PAUSE_LEAST: Duration = Duration::from_millis(50);
const PAUSE_MOST: Duration = Duration::from_secs(2);
/// How long the server may take for a rank that has ended: it has read all of it by then.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// How long others may take to lend a copy of what a lost node had.
const ECHO: Duration = Duration::from_secs(2);
/// How many of them do.
const LENDERS: usize = 3;

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
    sources: BTreeMap<u32, Source>,
    /// Of ranks elsewhere.
    copies: BTreeMap<u32, Copy>,
    /// Up to where the blobs of each node are known.
    heard: BTreeMap<usize, u64>,
    asking: Vec<Asking>,
    /// Something is to be looked at again soon.
    restless: bool,
}

/// Own ranks' data.
#[derive(Debug, Default)]
struct Source {
    version: u32,
    data: Vec<u8>,
    /// The server was asked, and has not answered.
    asked: Option<Instant>,
    /// It was asked after the rank's end.
    asked_after_end: bool,
    next: Option<Instant>,
    pause: Duration,
    last: bool,
}

#[derive(Debug, PartialEq, Eq)]
enum Step {
    Ask,
    Tell,
    Wait,
    Rest,
}

struct Copy {
    version: u32,
    data: Vec<u8>,
    last: bool,
}

/// An own rank that waits.
struct Asking {
    want: Want,
    since: Instant,
    /// Since when the node is known to be lost.
    lost: Option<Instant>,
}

impl Modex {
    pub(super) fn is_restless(&self) -> bool {
        self.restless
    }

    fn bytes(&self) -> usize {
        self.sources.values().map(|source| source.data.len()).sum()
    }
}

impl Source {
    /// What is to be done; `wanted` is the newest version that somebody has and finds too old.
    fn step(&mut self, wanted: Option<u32>, has_ended: bool, now: Instant) -> Step {
        if self.last || wanted.is_none() && self.version > 0 {
            return Step::Rest;
        }
        if let Some(asked) = self.asked {
            if !has_ended || now.duration_since(asked) < LAST_WORDS {
                return Step::Wait;
            }
        } else if !has_ended || !self.asked_after_end {
            if self.version > wanted.unwrap_or(0) && !has_ended {
                return Step::Rest;
            }
            if self.next.is_some_and(|next| now < next) {
                return Step::Wait;
            }
            self.asked = Some(now);
            self.asked_after_end = has_ended;
            return Step::Ask;
        }
        self.asked = None;
        self.last = true;
        self.version = self.version.max(1);
        Step::Tell
    }

    /// The server has answered. Whether it is something new.
    fn take(&mut self, data: &[u8], now: Instant) -> bool {
        self.asked = None;
        let is_new = self.version == 0 || self.data != data;
        let pause = if is_new { PAUSE_LEAST } else { self.pause * 2 };
        self.pause = pause.clamp(PAUSE_LEAST, PAUSE_MOST);
        self.next = Some(now + self.pause);
        is_new
    }
}

impl Launcher {
    /// An own rank wants something of a rank elsewhere.
    pub(super) fn want(&mut self, want: Want) {
        let is_ours = want.namespace == self.namespace();
        if !is_ours || want.rank >= self.plan.layout.ranks() {
            return want.refuse();
        }
        self.modex.asking.push(Asking {
            want,
            since: Instant::now(),
            lost: None,
        });
    }

    /// The server has answered for an own rank: it is laid out.
    pub(super) fn take_found(&mut self, found: Found) -> Result<(), Error> {
        let others = self.modex.bytes();
        let source = self.modex.sources.entry(found.rank).or_default();
        if !source.take(&found.data, Instant::now()) {
            return Ok(());
        }
        let (rank, version) = (found.rank, source.version);
        let before = std::mem::take(&mut source.data);
        source.version += 1;
        let size = found.data.len();
        if others - before.len() + size <= BYTES_MOST {
            let next = Parcel::Rank(rank, source.version);
            self.peers.put(next, &found.data)?;
            source.data = found.data;
        } else {
            source.last = true;
            let words = format!(
                "rank {rank} has put {size} bytes, and what no fence exchanges may take {BYTES_MOST} a node; \
                 use fewer ranks a node, or collect it by a fence"
            );
            say(self.plan.layout.name(self.own), &words);
        }
        self.peers
            .clear(Parcel::Rank(rank, version), before.len())?;
        self.tell_blob(rank);
        Ok(())
    }

    fn tell_blob(&mut self, rank: u32) {
        if let Some(source) = self.modex.sources.get(&rank) {
            let blob = Blob {
                rank,
                version: source.version,
                size: source.data.len(),
                last: source.last,
            };
            self.bell.blobs.retain(|one| one.rank != rank);
            self.bell.blobs.push(blob);
            self.bell.blob_turn += 1;
        }
    }

    /// Wants, copies and answers.
    pub(super) fn see_to_modex(&mut self, server: &Server) -> Result<(), Error> {
        let uses = |bell: &super::bell::Bell| !bell.wanted.is_empty() || bell.blob_turn > 0;
        let modex = &mut self.modex;
        modex.in_use |= !modex.asking.is_empty() || self.peers.bells().any(|(_, bell)| uses(bell));
        modex.restless = false;
        if modex.in_use {
            self.copy_blobs()?;
            self.lend()?;
            self.ask_server(server)?;
            self.answer_wants();
        }
        Ok(())
    }

    /// Takes copies of what the other launchers have laid out.
    fn copy_blobs(&mut self) -> Result<(), Error> {
        let (modex, peers, layout) = (&mut self.modex, &self.peers, &self.plan.layout);
        for (node, bell) in peers.bells().filter(|(node, _)| *node != self.own) {
            if modex.heard.get(&node).copied().unwrap_or(0) == bell.blob_turn {
                continue;
            }
            let is_gone = peers.gone().contains(&node);
            let mut is_all_here = true;
            for blob in &bell.blobs {
                let known = modex.copies.get(&blob.rank);
                let known = known.map_or((0, false), |copy| (copy.version, copy.last));
                if (blob.version, blob.last) <= known || blob.rank >= layout.ranks() {
                    continue;
                }
                let place = Parcel::Rank(blob.rank, blob.version);
                let data = match peers.fetch(place, node, blob.size) {
                    Ok(data) => data,
                    Err(_) if is_gone => None,
                    Err(error) => return Err(error),
                };
                is_all_here &= data.is_some() || is_gone;
                if let Some(data) = data {
                    let (version, last) = (blob.version, blob.last);
                    if self.plan.verbose && version > known.0 {
                        let words = format!(
                            "what rank {} has put is here: {} bytes",
                            blob.rank,
                            data.len()
                        );
                        say(layout.name(self.own), &words);
                    }
                    let copy = Copy {
                        version,
                        data,
                        last,
                    };
                    modex.copies.insert(blob.rank, copy);
                }
            }
            modex.restless |= !is_all_here;
            if is_all_here {
                modex.heard.insert(node, bell.blob_turn);
            }
        }
        Ok(())
    }

    /// The first that are left lay out their copies of what a lost node had, where another lacks it.
    fn lend(&mut self) -> Result<(), Error> {
        let (peers, layout, own) = (&self.peers, &self.plan.layout, self.own);
        let left = (0..layout.nodes().len()).filter(|node| !peers.gone().contains(node));
        if !left.take(LENDERS).any(|node| node == own) {
            return Ok(());
        }
        let wanted = peers.bells().filter(|(node, _)| *node != own);
        let wanted = wanted.flat_map(|(_, bell)| &bell.wanted);
        let mut lent: Vec<u32> = Vec::new();
        for Wanted { rank, after } in wanted {
            let node = layout.node_of(*rank);
            let is_lost = node.is_some_and(|node| peers.gone().contains(&node));
            let copy = self.modex.copies.get(rank);
            let Some(copy) = copy.filter(|copy| is_lost && copy.version > *after) else {
                continue;
            };
            let fits = self.modex.bytes() + copy.data.len() <= BYTES_MOST;
            if !fits || self.modex.sources.contains_key(rank) {
                continue;
            }
            peers.put(Parcel::Rank(*rank, copy.version), &copy.data)?;
            let source = Source {
                version: copy.version,
                data: copy.data.clone(),
                last: true,
                ..Source::default()
            };
            self.modex.sources.insert(*rank, source);
            lent.push(*rank);
        }
        for rank in lent {
            self.tell_blob(rank);
        }
        Ok(())
    }

    /// Asks the server for what others want of own ranks.
    fn ask_server(&mut self, server: &Server) -> Result<(), Error> {
        let layout = &self.plan.layout;
        let ranks = layout.ranks_of(self.own);
        let mut all: BTreeMap<u32, Option<u32>> = BTreeMap::new();
        if layout.ranks() <= SPREAD_MOST {
            all.extend(ranks.clone().map(|rank| (rank, None)));
        }
        let others = self.peers.bells().filter(|(node, _)| *node != self.own);
        for Wanted { rank, after } in others.flat_map(|(_, bell)| &bell.wanted) {
            if ranks.contains(rank) {
                let most = all.entry(*rank).or_default();
                *most = (*most).max(Some(*after));
            }
        }
        let now = Instant::now();
        for (rank, wanted) in all {
            let has_ended = self.bell.ended.iter().any(|ended| ended.rank == rank);
            let source = self.modex.sources.entry(rank).or_default();
            match source.step(wanted, has_ended, now) {
                Step::Ask => server.ask_for(rank)?,
                Step::Tell => self.tell_blob(rank),
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
        for mut asking in std::mem::take(&mut self.modex.asking) {
            let rank = asking.want.rank;
            let copy = self.modex.copies.get(&rank);
            if let Some(copy) = copy.filter(|copy| asking.want.is_in(&copy.data)) {
                asking.want.give(&copy.data);
                continue;
            }
            let node = self.plan.layout.node_of(rank).unwrap_or_default();
            if self.peers.gone().contains(&node) {
                asking.lost.get_or_insert_with(Instant::now);
            }
            let limit = asking.want.timeout_s;
            let limit = limit.map_or(patience, |limit| Duration::from_secs(u64::from(limit)));
            let is_lost = asking.lost.is_some_and(|lost| lost.elapsed() > ECHO);
            let why = if is_lost {
                "was lost before anybody had a copy of it".to_owned()
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
            match copy {
                // What is not in it libpmix finds out.
                Some(copy) if !copy.data.is_empty() => asking.want.give(&copy.data),
                _ if is_lost || copy.is_some_and(|copy| copy.last) => asking.want.refuse(),
                _ => asking.want.time_out(),
            }
        }
        wanted.sort_by_key(|one| one.rank);
        wanted.dedup();
        wanted.truncate(WANTED_MOST);
        self.bell.wanted = wanted;
        self.modex.restless |= !self.modex.asking.is_empty();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_asked_once_and_again_only_for_what_is_newer() {
        let now = Instant::now();
        let mut source = Source::default();
        assert_eq!(source.step(None, false, now), Step::Ask);
        assert_eq!(source.step(Some(0), false, now), Step::Wait);
        assert!(source.take(b"one", now));
        (source.data, source.version) = (b"one".to_vec(), 1);
        assert_eq!(source.step(None, false, now), Step::Rest);
        assert_eq!(source.step(Some(0), false, now), Step::Rest);
        assert_eq!(source.step(Some(1), false, now), Step::Wait);
        let mut at = now;
        let mut pauses = Vec::new();
        for _ in 0..8 {
            let pause = source.pause;
            pauses.push(pause);
            at += pause;
            assert_eq!(source.step(Some(1), false, at), Step::Ask);
            assert!(!source.take(b"one", at));
        }
        assert_eq!(pauses[..2], [PAUSE_LEAST, 2 * PAUSE_LEAST]);
        assert_eq!(pauses.last(), Some(&PAUSE_MOST));
        assert!(source.take(b"two", at));
        assert_eq!(source.pause, PAUSE_LEAST);
    }

    #[test]
    fn of_a_rank_that_has_ended_it_is_asked_once_more_and_then_no_more() {
        let now = Instant::now();
        let mut source = Source::default();
        assert_eq!(source.step(Some(0), true, now), Step::Ask);
        assert!(source.take(b"", now));
        source.version = 1;
        assert_eq!(source.step(Some(1), true, now), Step::Tell);
        assert!(source.last && source.version == 1);
        assert_eq!(source.step(Some(1), true, now), Step::Rest);
        // A rank that has put nothing: the server never answers.
        let mut source = Source::default();
        assert_eq!(source.step(Some(0), false, now), Step::Ask);
        assert_eq!(source.step(Some(0), true, now), Step::Wait);
        assert_eq!(source.step(Some(0), true, now + LAST_WORDS), Step::Tell);
        assert!(source.last && source.version == 1);
    }
}
