//! What the ranks of a node have put, and which of it lies beside the bell (run-3).
//!
//! There is not room for all of it always. What somebody lacks goes first, and what nobody lacks at the moment is taken
//! away for it: whoever wants it later says so, and it is laid out again.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use super::{BYTES_MAX, Blob};

/// Pauses before a server is asked again.
const PAUSE_LEAST: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// How long the server may take for a rank that has ended: it has read all of it by then.
const LAST_OUTPUT: Duration = Duration::from_secs(1);

/// A rank's data.
#[derive(Debug, Default)]
pub(super) struct Source {
    /// Grows when the rank has put more.
    pub(super) version: u32,
    pub(super) data: Vec<u8>,
    /// The server was asked, and has not answered.
    asked: Option<Instant>,
    /// It was asked after the rank's end.
    asked_after_end: bool,
    /// When the rank's end was first seen.
    ended: Option<Instant>,
    next: Option<Instant>,
    pause: Duration,
    pub(super) last: bool,
    /// What lies beside the bell: version and size.
    pub(super) laid: Option<(u32, usize)>,
    /// The newest version that ever did.
    told: u32,
    /// It is more than a node may lay out.
    pub(super) too_much: bool,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    Ask,
    Rest,
    Wait,
}

/// What changes beside the bell.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Move {
    /// The rank's data is laid out.
    Lay(u32),
    /// It is taken away.
    Away(u32),
    /// It will not be laid out.
    TooMuch(u32),
}

/// How much may lie beside the bell.
#[derive(Debug, Clone, Copy)]
pub(super) struct Room {
    pub(super) bytes: usize,
    /// So many when fences that are over here are so everywhere.
    pub(super) later: usize,
    pub(super) ranks: usize,
}

impl Source {
    /// It is what a lost node had.
    pub(super) fn lend(&mut self, version: u32, data: Vec<u8>) {
        (self.version, self.data) = (version, data);
    }

    /// What is to be done; `wanted` is the newest version that somebody has and finds too old.
    pub(super) fn step(&mut self, wanted: Option<u32>, has_ended: bool, now: Instant) -> Step {
        if has_ended {
            self.ended.get_or_insert(now);
        }
        if self.last || self.too_much || wanted.is_none() && self.version > 0 {
            return Step::Rest;
        }
        if let Some(asked) = self.asked {
            let since = self.ended.map(|ended| ended.max(asked));
            if since.is_none_or(|since| now.duration_since(since) < LAST_OUTPUT) {
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
        Step::Rest
    }

    /// The server has answered.
    pub(super) fn take(&mut self, data: Vec<u8>, now: Instant) {
        self.asked = None;
        let is_new = self.version == 0 || self.data != data;
        let pause = if is_new { PAUSE_LEAST } else { self.pause * 2 };
        self.pause = pause.clamp(PAUSE_LEAST, PAUSE_MAX);
        self.next = Some(now + self.pause);
        if is_new {
            self.version += 1;
            self.data = data;
        }
    }

    /// The newest lies beside the bell.
    pub(super) fn lay(&mut self) {
        self.laid = Some((self.version, self.data.len()));
        self.told = self.version;
    }

    /// There is no room; it is tried again when somebody lacks it.
    pub(super) fn put_off(&mut self) {
        self.told = self.version;
    }

    /// It stays away; an older version may lie there still. Whether this is new.
    pub(super) fn give_up(&mut self) -> bool {
        self.laid.get_or_insert((self.version, 0));
        !std::mem::replace(&mut self.too_much, true)
    }

    /// Whether who has this version, and finds it too old, has still to hear of it.
    pub(super) fn is_news(&self, after: u32) -> bool {
        self.version > after || self.last || self.too_much
    }

    /// The newest is not laid out.
    pub(super) fn is_due(&self) -> bool {
        let laid = self.laid.map(|(version, _)| version);
        let is_told = self.too_much && laid.is_some();
        self.version > 0 && !is_told && laid != Some(self.version)
    }

    pub(super) fn blob(&self, rank: u32) -> Option<Blob> {
        let (version, size) = self.laid?;
        Some(Blob {
            rank,
            version,
            size,
            last: self.last && version == self.version,
            too_much: self.too_much,
        })
    }
}

/// How many bytes lie there.
pub(super) fn laid_bytes(sources: &BTreeMap<u32, Source>) -> usize {
    let sizes = sources.values().filter_map(|source| source.laid);
    sizes.map(|(_, size)| size).sum()
}

/// What is to be taken away, of what nobody lacks, so that at most so many bytes lie there.
pub(super) fn idle(
    sources: &BTreeMap<u32, Source>,
    lacked: &BTreeSet<u32>,
    most: usize,
) -> Vec<u32> {
    let mut bytes = laid_bytes(sources);
    let mut ranks = Vec::new();
    for (rank, source) in sources.iter().filter(|(rank, _)| !lacked.contains(rank)) {
        if bytes > most
            && let Some((_, size)) = source.laid
        {
            bytes -= size;
            ranks.push(*rank);
        }
    }
    ranks
}

/// What is to change so that what others lack lies there, and of the rest what there is room for. What they lack and
/// there is no room for yet is tried again.
pub(super) fn moves(
    sources: &BTreeMap<u32, Source>,
    lacked: &BTreeSet<u32>,
    room: Room,
) -> Vec<Move> {
    let mut moves = Vec::new();
    let mut bytes = laid_bytes(sources);
    let laid = sources.iter().filter(|(_, source)| source.laid.is_some());
    let mut ranks = laid.clone().count();
    let mut idle = laid.filter(|(rank, _)| !lacked.contains(rank));
    let mut free = |bytes: &mut usize, ranks: &mut usize, moves: &mut Vec<Move>| {
        let Some((rank, source)) = idle.next() else {
            return false;
        };
        *bytes -= source.laid.map_or(0, |(_, size)| size);
        *ranks -= 1;
        moves.push(Move::Away(*rank));
        true
    };
    while ranks > room.ranks && free(&mut bytes, &mut ranks, &mut moves) {}
    let most = room.bytes.min(BYTES_MAX);
    let due = |lacks: bool| {
        let due = sources.iter().filter(|(_, source)| source.is_due());
        due.filter(move |(rank, _)| lacked.contains(rank) == lacks)
    };
    for (rank, source) in due(true) {
        let size = source.data.len();
        if size > room.later.min(BYTES_MAX) || source.too_much {
            moves.push(Move::TooMuch(*rank));
            continue;
        }
        if size > most {
            continue;
        }
        let (before, more) = source.laid.map_or((0, 1), |(_, size)| (size, 0));
        let fits = |bytes: usize, ranks: usize| {
            bytes - before + size <= most && ranks + more <= room.ranks.max(1)
        };
        while !fits(bytes, ranks) && free(&mut bytes, &mut ranks, &mut moves) {}
        if fits(bytes, ranks) {
            bytes = bytes - before + size;
            ranks += more;
            moves.push(Move::Lay(*rank));
        }
    }
    let is_new = |source: &Source| source.version > source.told && !source.too_much;
    for (rank, source) in due(false).filter(|(_, source)| is_new(source)) {
        let size = source.data.len();
        // One that was laid out before may have been taken away above.
        let is_free = source.laid.is_none();
        if is_free && bytes + size <= most && ranks < room.ranks {
            bytes += size;
            ranks += 1;
            moves.push(Move::Lay(*rank));
        }
    }
    moves
}

#[cfg(test)]
mod tests {
    use super::*;

    /// run-3.
    #[test]
    fn a_server_is_asked_once_and_again_only_for_what_is_newer() {
        let now = Instant::now();
        let mut source = Source::default();
        assert_eq!(source.step(None, false, now), Step::Ask);
        assert_eq!(source.step(Some(0), false, now), Step::Wait);
        source.take(b"one".to_vec(), now);
        assert_eq!(source.version, 1);
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
            source.take(b"one".to_vec(), at);
            assert_eq!(source.version, 1);
        }
        assert_eq!(pauses[..2], [PAUSE_LEAST, 2 * PAUSE_LEAST]);
        assert_eq!(pauses.last(), Some(&PAUSE_MAX));
        source.take(b"two".to_vec(), at);
        assert_eq!((source.pause, source.version), (PAUSE_LEAST, 2));
    }

    #[test]
    fn of_a_rank_that_has_ended_it_is_asked_once_more_and_then_no_more() {
        let now = Instant::now();
        let mut source = Source::default();
        assert_eq!(source.step(Some(0), true, now), Step::Ask);
        source.take(Vec::new(), now);
        assert_eq!(source.step(Some(1), true, now), Step::Rest);
        assert!(source.last && source.version == 1);
        assert_eq!(source.step(Some(1), true, now), Step::Rest);
        // A rank that has put nothing: the server never answers.
        let mut source = Source::default();
        assert_eq!(source.step(Some(0), false, now), Step::Ask);
        assert_eq!(source.step(Some(0), true, now), Step::Wait);
        assert_eq!(source.step(Some(0), true, now + LAST_OUTPUT), Step::Rest);
        assert!(source.last && source.version == 1);
    }

    #[test]
    fn a_rank_that_ends_long_after_the_question_has_time_for_last_words() {
        let asked = Instant::now();
        let mut source = Source::default();
        assert_eq!(source.step(Some(0), false, asked), Step::Ask);
        let ended = asked + 10 * LAST_OUTPUT;
        assert_eq!(source.step(Some(0), true, ended), Step::Wait);
        assert!(!source.last);
        source.take(b"late".to_vec(), ended);
        assert_eq!((source.version, &source.data[..]), (1, &b"late"[..]));
        // And so has the server when the end was seen long before the question.
        let mut source = Source::default();
        source.step(None, false, asked);
        source.take(b"one".to_vec(), asked);
        assert_eq!(source.step(None, true, asked), Step::Rest);
        assert_eq!(source.step(Some(1), true, ended), Step::Ask);
        assert_eq!(source.step(Some(1), true, ended), Step::Wait);
        assert!(!source.last);
    }

    /// Sources of ranks with so many bytes each, and a way to carry out what is to change.
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

        fn turn(&mut self, lacked: &[u32], bytes: usize, ranks: usize) -> Vec<Move> {
            let lacked = lacked.iter().copied().collect();
            let later = bytes.max(self.1);
            let room = Room {
                bytes,
                later,
                ranks,
            };
            let moves = moves(&self.0, &lacked, room);
            for one in &moves {
                match one {
                    Move::Lay(rank) => self.0.get_mut(rank).unwrap().lay(),
                    Move::Away(rank) => self.0.get_mut(rank).unwrap().laid = None,
                    Move::TooMuch(rank) => _ = self.0.get_mut(rank).unwrap().give_up(),
                }
            }
            assert!(laid_bytes(&self.0) <= bytes.min(BYTES_MAX));
            moves
        }

        fn laid(&self) -> Vec<u32> {
            let laid = self.0.iter().filter(|(_, source)| source.laid.is_some());
            laid.map(|(rank, _)| *rank).collect()
        }
    }

    /// run-3.
    #[test]
    fn what_others_lack_goes_before_what_is_only_spread() {
        let mut table = Table::new(&[40, 40, 40, 40]);
        table.turn(&[3], 100, 9);
        assert_eq!(
            table.laid(),
            [0, 3],
            "the rest has to wait, and is not over"
        );
        assert!(
            table
                .0
                .values()
                .all(|source| !source.too_much && !source.last)
        );
        assert_eq!(table.turn(&[2, 3], 100, 9), [Move::Away(0), Move::Lay(2)]);
        // Nothing makes room for a third as long as two are lacked.
        assert_eq!(table.turn(&[1, 2, 3], 100, 9), []);
        assert_eq!(table.turn(&[1], 100, 9), [Move::Away(2), Move::Lay(1)]);
        // What was taken away comes back when it is lacked, and not before.
        assert_eq!(table.turn(&[], 200, 9), []);
        assert_eq!(table.turn(&[0], 200, 9), [Move::Lay(0)]);
    }

    #[test]
    fn a_version_that_is_too_long_leaves_the_older_one_there() {
        let mut table = Table::new(&[40]);
        table.turn(&[0], 100, 9);
        table
            .0
            .get_mut(&0)
            .unwrap()
            .take(vec![8; 101], Instant::now());
        assert_eq!(table.turn(&[], 100, 9), [], "nobody wants it");
        assert_eq!(table.turn(&[0], 100, 9), [Move::TooMuch(0)]);
        let source = &table.0[&0];
        let blob = source.blob(0).unwrap();
        assert_eq!((blob.version, blob.size), (1, 40));
        assert!(blob.too_much && !blob.last && source.is_news(2));
        assert_eq!(table.turn(&[0], 100, 9), [], "it is said once");
        assert_eq!(table.turn(&[], 100, 0), [Move::Away(0)]);
        assert_eq!(table.turn(&[], 100, 9), []);
        // Who asks later has to hear of it as well.
        assert_eq!(table.turn(&[0], 100, 9), [Move::TooMuch(0)]);
        assert!(table.0[&0].blob(0).unwrap().too_much);
        let mut table = Table::new(&[BYTES_MAX + 1]);
        assert_eq!(table.turn(&[0], usize::MAX, 9), [Move::TooMuch(0)]);
        assert_eq!(table.0[&0].blob(0).unwrap().size, 0);
    }

    #[test]
    fn what_has_room_after_a_fence_waits_for_its_end() {
        let mut table = Table::new(&[40, 60]);
        table.1 = 100;
        assert_eq!(table.turn(&[1], 50, 9), [Move::Lay(0)]);
        assert_eq!(table.turn(&[1], 50, 9), []);
        assert_eq!(table.turn(&[1], 100, 9), [Move::Lay(1)]);
        table.1 = 50;
        table.turn(&[], 100, 0);
        assert_eq!(table.turn(&[1], 50, 9), [Move::TooMuch(1)]);
    }

    #[test]
    fn what_nobody_lacks_is_taken_away_for_a_fence_as_far_as_that_needs_it() {
        let mut table = Table::new(&[40, 40, 40]);
        table.turn(&[], 200, 9);
        let lacked = |ranks: &[u32]| ranks.iter().copied().collect();
        assert!(idle(&table.0, &lacked(&[]), 120).is_empty());
        assert_eq!(idle(&table.0, &lacked(&[0]), 90), [1]);
        assert_eq!(idle(&table.0, &lacked(&[0, 2]), 0), [1]);
    }

    #[test]
    fn a_grown_version_takes_the_place_of_the_older_one() {
        let mut table = Table::new(&[40, 40]);
        table.turn(&[], 100, 9);
        table
            .0
            .get_mut(&1)
            .unwrap()
            .take(vec![8; 60], Instant::now());
        assert_eq!(table.turn(&[1], 100, 9), [Move::Lay(1)]);
        assert_eq!(table.0[&1].laid, Some((2, 60)));
    }

    #[test]
    fn there_are_no_more_than_the_bell_has_room_for() {
        let mut table = Table::new(&[1; 9]);
        table.turn(&[], 100, 5);
        assert_eq!(table.laid(), [0, 1, 2, 3, 4]);
        table.turn(&[8], 100, 5);
        assert_eq!(table.laid(), [1, 2, 3, 4, 8]);
        table.turn(&[8], 100, 2);
        assert_eq!(table.laid(), [4, 8]);
        table.turn(&[7], 100, 0);
        assert_eq!(table.laid(), [7], "one at a time in any case");
    }
}
