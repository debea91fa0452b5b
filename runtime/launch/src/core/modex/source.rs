//! The data that this node's ranks have put, and the part of it that is stored in attributes or served (run-3).
//!
//! Large data is served, but only when it is requested. The rest is stored in attributes.
//!
//! There is not always room for all of it. Data that other launchers request comes first, and data that none
//! requests at the moment is withdrawn for it. A launcher that needs withdrawn data requests it, and it is stored
//! again.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::BYTES_MAX;
use crate::core::node_status::Blob;

/// Least and greatest pause before the server is asked again.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// How long the server may take for a rank that has ended: by then it has read all of the rank's data.
const LAST_OUTPUT: Duration = Duration::from_secs(1);

/// A rank's data.
#[derive(Debug, Default)]
pub(super) struct Source {
    /// Increases when the rank has put more.
    pub(super) version: u32,
    pub(super) data: Vec<u8>,
    /// When the server was asked, if it has not answered.
    requested: Option<Duration>,
    /// The server was asked after the rank's end.
    requested_after_end: bool,
    /// When the rank's end was first seen.
    ended: Option<Duration>,
    next: Option<Duration>,
    pause: Duration,
    pub(super) last: bool,
    /// What is stored in attributes or served: version and size.
    pub(super) stored: Option<(u32, usize)>,
    /// It is served.
    pub(super) is_served: bool,
    /// The newest version that was ever stored.
    newest_stored: u32,
    /// The data is larger than a node may store.
    pub(super) too_much: bool,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    Ask,
    Idle,
    Wait,
}

/// A change of what is stored.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// Store the rank's data.
    Store(u32),
    /// Withdraw it.
    Withdraw(u32),
    /// It will not be stored.
    TooMuch(u32),
}

/// How much may be stored.
#[derive(Debug, Clone, Copy)]
pub(super) struct Room {
    pub(super) bytes: usize,
    /// Bytes when the fences that are over on this node are over on all nodes.
    pub(super) later: usize,
    pub(super) ranks: usize,
    /// Data above this size is served.
    pub(super) serve_from: usize,
    /// Most bytes that are served.
    pub(super) serve_max: usize,
}

impl Source {
    /// Sets the data of a lost node's rank.
    pub(super) fn replicate(&mut self, version: u32, data: Vec<u8>) {
        (self.version, self.data) = (version, data);
    }

    /// Returns the next step; `wanted` is the newest version that a requester has and finds too old.
    pub(super) fn step(&mut self, wanted: Option<u32>, has_ended: bool, now: Duration) -> Step {
        if has_ended {
            self.ended.get_or_insert(now);
        }
        if self.last || self.too_much || wanted.is_none() && self.version > 0 {
            return Step::Idle;
        }
        if let Some(requested) = self.requested {
            let since = self.ended.map(|ended| ended.max(requested));
            if since.is_none_or(|since| now.saturating_sub(since) < LAST_OUTPUT) {
                return Step::Wait;
            }
        } else if !has_ended || !self.requested_after_end {
            if self.version > wanted.unwrap_or(0) && !has_ended {
                return Step::Idle;
            }
            if self.next.is_some_and(|next| now < next) {
                return Step::Wait;
            }
            self.requested = Some(now);
            self.requested_after_end = has_ended;
            return Step::Ask;
        }
        self.requested = None;
        self.last = true;
        self.version = self.version.max(1);
        Step::Idle
    }

    /// Takes the server's answer.
    pub(super) fn take(&mut self, data: Vec<u8>, now: Duration) {
        self.requested = None;
        let is_new = self.version == 0 || self.data != data;
        let pause = if is_new { PAUSE_MIN } else { self.pause * 2 };
        self.pause = pause.clamp(PAUSE_MIN, PAUSE_MAX);
        self.next = Some(now + self.pause);
        if is_new {
            self.version += 1;
            self.data = data;
        }
    }

    /// Notes that this version is stored; it is the newest, unless a newer one has come meanwhile.
    pub(super) fn store(&mut self, version: u32, size: usize, is_served: bool) {
        self.stored = Some((version, size));
        self.is_served = is_served;
        self.newest_stored = version;
    }

    /// Notes that there is no room; the data is stored when it is requested.
    pub(super) fn postpone(&mut self) {
        self.newest_stored = self.version;
    }

    /// Gives the newest version up; an older one may stay stored. Returns whether this is new.
    pub(super) fn give_up(&mut self) -> bool {
        self.stored.get_or_insert((self.version, 0));
        !std::mem::replace(&mut self.too_much, true)
    }

    /// Whether a requester that has this version, and finds it too old, has still to be told something.
    pub(super) fn has_news_for(&self, after: u32) -> bool {
        self.version > after || self.last || self.too_much
    }

    /// Whether the newest version is still to be stored.
    pub(super) fn is_due(&self) -> bool {
        let stored = self.stored.map(|(version, _)| version);
        let is_reported = self.too_much && stored.is_some();
        self.version > 0 && !is_reported && stored != Some(self.version)
    }

    pub(super) fn blob(&self, rank: u32) -> Option<Blob> {
        let (version, size) = self.stored?;
        Some(Blob {
            rank,
            version,
            size,
            last: self.last && version == self.version,
            too_much: self.too_much,
            served: self.is_served,
        })
    }
}

/// How many bytes are stored in attributes.
pub(super) fn stored_bytes(sources: &BTreeMap<u32, Source>) -> usize {
    bytes(sources, false)
}

fn bytes(sources: &BTreeMap<u32, Source>, is_served: bool) -> usize {
    let counted = sources.values().filter(|one| one.is_served == is_served);
    let sizes = counted.filter_map(|source| source.stored);
    sizes.map(|(_, size)| size).sum()
}

/// Ranks whose data no launcher requests and which are to be withdrawn, so that at most this many bytes stay
/// stored.
pub(super) fn idle(
    sources: &BTreeMap<u32, Source>,
    needed: &BTreeSet<u32>,
    most: usize,
) -> Vec<u32> {
    let mut bytes = stored_bytes(sources);
    let mut ranks = Vec::new();
    for (rank, source) in sources.iter().filter(|(rank, _)| !needed.contains(rank)) {
        if bytes > most
            && !source.is_served
            && let Some((_, size)) = source.stored
        {
            bytes -= size;
            ranks.push(*rank);
        }
    }
    ranks
}

/// Returns the changes that store the requested data, and other data as far as there is room. Requested data
/// without room is tried again later.
pub(super) fn changes(
    sources: &BTreeMap<u32, Source>,
    needed: &BTreeSet<u32>,
    room: Room,
) -> Vec<Change> {
    let mut changes = Vec::new();
    let mut bytes = stored_bytes(sources);
    let stored = sources.iter().filter(|(_, source)| source.stored.is_some());
    let mut ranks = stored.clone().count();
    let idle = stored.filter(|(rank, _)| !needed.contains(rank));
    let mut idle_served = idle.clone().filter(|(_, source)| source.is_served);
    let mut served = self::bytes(sources, true);
    let mut idle = idle.filter(|(_, source)| !source.is_served);
    let is_large = |source: &Source| source.data.len() > room.serve_from;
    let mut free = |bytes: &mut usize, ranks: &mut usize, changes: &mut Vec<Change>| {
        let Some((rank, source)) = idle.next() else {
            return false;
        };
        *bytes -= source.stored.map_or(0, |(_, size)| size);
        *ranks -= 1;
        changes.push(Change::Withdraw(*rank));
        true
    };
    while ranks > room.ranks && free(&mut bytes, &mut ranks, &mut changes) {}
    let most = room.bytes.min(BYTES_MAX);
    let due = |is_needed: bool| {
        let due = sources.iter().filter(|(_, source)| source.is_due());
        due.filter(move |(rank, _)| needed.contains(rank) == is_needed)
    };
    for (rank, source) in due(true) {
        let size = source.data.len();
        if is_large(source) && size <= room.serve_max && !source.too_much {
            let before = if source.is_served {
                source.stored.map_or(0, |(_, size)| size)
            } else {
                0
            };
            while served - before + size > room.serve_max
                && let Some((rank, source)) = idle_served.next()
            {
                served -= source.stored.map_or(0, |(_, size)| size);
                changes.push(Change::Withdraw(*rank));
            }
            if served - before + size <= room.serve_max {
                served = served - before + size;
                changes.push(Change::Store(*rank));
            }
            continue;
        }
        if size > room.later.min(BYTES_MAX) || source.too_much {
            changes.push(Change::TooMuch(*rank));
            continue;
        }
        if size > most {
            continue;
        }
        let (before, more) = match source.stored {
            Some(_) if source.is_served => (0, 0),
            Some((_, size)) => (size, 0),
            None => (0, 1),
        };
        let fits = |bytes: usize, ranks: usize| {
            bytes - before + size <= most && ranks + more <= room.ranks.max(1)
        };
        while !fits(bytes, ranks) && free(&mut bytes, &mut ranks, &mut changes) {}
        if fits(bytes, ranks) {
            bytes = bytes - before + size;
            ranks += more;
            changes.push(Change::Store(*rank));
        }
    }
    let is_new = |source: &Source| source.version > source.newest_stored && !source.too_much;
    for (rank, source) in due(false).filter(|(_, source)| is_new(source) && !is_large(source)) {
        let size = source.data.len();
        // Data that was stored before may have been withdrawn above.
        let is_free = source.stored.is_none();
        if is_free && bytes + size <= most && ranks < room.ranks {
            bytes += size;
            ranks += 1;
            changes.push(Change::Store(*rank));
        }
    }
    changes
}

#[cfg(test)]
mod tests {
    use super::*;

    /// run-3.
    #[test]
    fn a_server_is_asked_again_only_for_newer_data() {
        let now = Duration::ZERO;
        let mut source = Source::default();
        assert_eq!(source.step(None, false, now), Step::Ask);
        assert_eq!(source.step(Some(0), false, now), Step::Wait);
        source.take(b"one".to_vec(), now);
        assert_eq!(source.version, 1);
        assert_eq!(source.step(None, false, now), Step::Idle);
        assert_eq!(source.step(Some(0), false, now), Step::Idle);
        assert_eq!(source.step(Some(1), false, now), Step::Wait);
        let mut at = now;
        let mut pauses = Vec::new();
        for _ in 0..8 {
            let pause = source.pause;
            pauses.push(pause);
            at += pause;
            assert_eq!(source.step(Some(1), false, at), Step::Ask);
            source.take(b"one".to_vec(), at);
            assert_eq!(source.version, 1);
        }
        assert_eq!(pauses[..2], [PAUSE_MIN, 2 * PAUSE_MIN]);
        assert_eq!(pauses.last(), Some(&PAUSE_MAX));
        source.take(b"two".to_vec(), at);
        assert_eq!((source.pause, source.version), (PAUSE_MIN, 2));
    }

    #[test]
    fn a_server_is_asked_once_after_the_end_of_a_rank() {
        let now = Duration::ZERO;
        let mut source = Source::default();
        assert_eq!(source.step(Some(0), true, now), Step::Ask);
        source.take(Vec::new(), now);
        assert_eq!(source.step(Some(1), true, now), Step::Idle);
        assert!(source.last && source.version == 1);
        assert_eq!(source.step(Some(1), true, now), Step::Idle);
        // A rank that has put nothing: the server never answers.
        let mut source = Source::default();
        assert_eq!(source.step(Some(0), false, now), Step::Ask);
        assert_eq!(source.step(Some(0), true, now), Step::Wait);
        assert_eq!(source.step(Some(0), true, now + LAST_OUTPUT), Step::Idle);
        assert!(source.last && source.version == 1);
    }

    #[test]
    fn the_server_has_time_after_the_end_of_a_rank() {
        let requested = Duration::ZERO;
        let mut source = Source::default();
        assert_eq!(source.step(Some(0), false, requested), Step::Ask);
        let ended = requested + 10 * LAST_OUTPUT;
        assert_eq!(source.step(Some(0), true, ended), Step::Wait);
        assert!(!source.last);
        source.take(b"late".to_vec(), ended);
        assert_eq!((source.version, &source.data[..]), (1, &b"late"[..]));
        // The server has that time also if the end was seen long before it was asked.
        let mut source = Source::default();
        source.step(None, false, requested);
        source.take(b"one".to_vec(), requested);
        assert_eq!(source.step(None, true, requested), Step::Idle);
        assert_eq!(source.step(Some(1), true, ended), Step::Ask);
        assert_eq!(source.step(Some(1), true, ended), Step::Wait);
        assert!(!source.last);
    }

    /// More than what a node may store: then data is given up and not served.
    const SERVE_FROM: usize = BYTES_MAX + 10;
    const SERVE_MAX: usize = 4 * BYTES_MAX;

    /// Sources of ranks with data of these sizes, and the room that there will be later.
    struct Table(BTreeMap<u32, Source>, usize);

    impl Table {
        fn new(sizes: &[usize]) -> Self {
            let source = |size: &usize| Source {
                version: 1,
                data: vec![7; *size],
                ..Source::default()
            };
            Self((0..).zip(sizes.iter().map(source)).collect(), 0)
        }

        fn turn(&mut self, needed: &[u32], bytes: usize, ranks: usize) -> Vec<Change> {
            let needed = needed.iter().copied().collect();
            let later = bytes.max(self.1);
            let room = Room {
                bytes,
                later,
                ranks,
                serve_from: SERVE_FROM,
                serve_max: SERVE_MAX,
            };
            let changes = changes(&self.0, &needed, room);
            for one in &changes {
                match one {
                    Change::Store(rank) => {
                        let source = self.0.get_mut(rank).unwrap();
                        let size = source.data.len();
                        source.store(source.version, size, size > SERVE_FROM);
                    }
                    Change::Withdraw(rank) => self.0.get_mut(rank).unwrap().stored = None,
                    Change::TooMuch(rank) => _ = self.0.get_mut(rank).unwrap().give_up(),
                }
            }
            assert!(stored_bytes(&self.0) <= bytes.min(BYTES_MAX));
            changes
        }

        fn stored(&self) -> Vec<u32> {
            let stored = self.0.iter().filter(|(_, source)| source.stored.is_some());
            stored.map(|(rank, _)| *rank).collect()
        }
    }

    /// Large data is served when it is requested, beside what is stored in attributes.
    #[test]
    fn large_data_is_served_up_to_a_limit() {
        let large = BYTES_MAX + 11;
        let mut table = Table::new(&[large, 40]);
        assert_eq!(table.turn(&[], 100, 9), [Change::Store(1)]);
        assert_eq!(table.turn(&[0], 100, 9), [Change::Store(0)]);
        assert_eq!(table.stored(), [0, 1]);
        assert_eq!((stored_bytes(&table.0), bytes(&table.0, true)), (40, large));
        let mut table = Table::new(&[large, SERVE_MAX, SERVE_MAX + 1]);
        assert_eq!(table.turn(&[0], 100, 9), [Change::Store(0)]);
        assert_eq!(
            table.turn(&[0, 1], 100, 9),
            [],
            "the first is requested still"
        );
        let changes = [Change::Withdraw(0), Change::Store(1)];
        assert_eq!(table.turn(&[1], 100, 9), changes);
        assert_eq!(table.turn(&[2], 100, 9), [Change::TooMuch(2)]);
    }

    /// run-3.
    #[test]
    fn requested_data_goes_before_other_data() {
        let mut table = Table::new(&[40, 40, 40, 40]);
        table.turn(&[3], 100, 9);
        assert_eq!(
            table.stored(),
            [0, 3],
            "the others wait, and are not given up"
        );
        assert!(
            table
                .0
                .values()
                .all(|source| !source.too_much && !source.last)
        );
        assert_eq!(
            table.turn(&[2, 3], 100, 9),
            [Change::Withdraw(0), Change::Store(2)]
        );
        // There is no room for a third one while two are requested.
        assert_eq!(table.turn(&[1, 2, 3], 100, 9), []);
        assert_eq!(
            table.turn(&[1], 100, 9),
            [Change::Withdraw(2), Change::Store(1)]
        );
        // Withdrawn data is stored again when it is requested, and not before.
        assert_eq!(table.turn(&[], 200, 9), []);
        assert_eq!(table.turn(&[0], 200, 9), [Change::Store(0)]);
    }

    #[test]
    fn a_version_that_is_too_large_leaves_the_older_one_stored() {
        let mut table = Table::new(&[40]);
        table.turn(&[0], 100, 9);
        table
            .0
            .get_mut(&0)
            .unwrap()
            .take(vec![8; 101], Duration::ZERO);
        assert_eq!(table.turn(&[], 100, 9), [], "it is not requested");
        assert_eq!(table.turn(&[0], 100, 9), [Change::TooMuch(0)]);
        let source = &table.0[&0];
        let blob = source.blob(0).unwrap();
        assert_eq!((blob.version, blob.size), (1, 40));
        assert!(blob.too_much && !blob.last && source.has_news_for(2));
        assert_eq!(table.turn(&[0], 100, 9), [], "it is reported once");
        assert_eq!(table.turn(&[], 100, 0), [Change::Withdraw(0)]);
        assert_eq!(table.turn(&[], 100, 9), []);
        // A later request must be told of it as well.
        assert_eq!(table.turn(&[0], 100, 9), [Change::TooMuch(0)]);
        assert!(table.0[&0].blob(0).unwrap().too_much);
        let mut table = Table::new(&[BYTES_MAX + 1]);
        assert_eq!(table.turn(&[0], usize::MAX, 9), [Change::TooMuch(0)]);
        assert_eq!(table.0[&0].blob(0).unwrap().size, 0);
    }

    #[test]
    fn data_that_has_room_after_a_fence_waits_for_its_end() {
        let mut table = Table::new(&[40, 60]);
        table.1 = 100;
        assert_eq!(table.turn(&[1], 50, 9), [Change::Store(0)]);
        assert_eq!(table.turn(&[1], 50, 9), []);
        assert_eq!(table.turn(&[1], 100, 9), [Change::Store(1)]);
        table.1 = 50;
        table.turn(&[], 100, 0);
        assert_eq!(table.turn(&[1], 50, 9), [Change::TooMuch(1)]);
    }

    #[test]
    fn unrequested_data_is_withdrawn_for_a_fence_as_needed() {
        let mut table = Table::new(&[40, 40, 40]);
        table.turn(&[], 200, 9);
        let needed = |ranks: &[u32]| ranks.iter().copied().collect();
        assert!(idle(&table.0, &needed(&[]), 120).is_empty());
        assert_eq!(idle(&table.0, &needed(&[0]), 90), [1]);
        assert_eq!(idle(&table.0, &needed(&[0, 2]), 0), [1]);
    }

    #[test]
    fn a_larger_version_replaces_the_older_one() {
        let mut table = Table::new(&[40, 40]);
        table.turn(&[], 100, 9);
        table
            .0
            .get_mut(&1)
            .unwrap()
            .take(vec![8; 60], Duration::ZERO);
        assert_eq!(table.turn(&[1], 100, 9), [Change::Store(1)]);
        assert_eq!(table.0[&1].stored, Some((2, 60)));
    }

    #[test]
    fn the_number_of_blobs_is_bounded() {
        let mut table = Table::new(&[1; 9]);
        table.turn(&[], 100, 5);
        assert_eq!(table.stored(), [0, 1, 2, 3, 4]);
        table.turn(&[8], 100, 5);
        assert_eq!(table.stored(), [1, 2, 3, 4, 8]);
        table.turn(&[8], 100, 2);
        assert_eq!(table.stored(), [4, 8]);
        table.turn(&[7], 100, 0);
        assert_eq!(table.stored(), [7], "at least one at a time");
    }
}
