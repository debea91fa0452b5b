//! Data that is requested from another launcher piece by piece.

use std::collections::{BTreeMap, BTreeSet};

use super::DataName;
use crate::core::node_status::{DataChunk, FenceId};
use muster_fabric::BULK_MESSAGE_MAX;

/// The longest piece, with room for what the fabric and the answer add to it.
pub(super) const PIECE: usize = BULK_MESSAGE_MAX - 64;
/// Questions of one transfer that may be open at a time: the next piece is requested while one is on its way.
const OPEN_MAX: usize = 4;
/// Length of a question.
const QUESTION: usize = 33;

/// A question for a piece: which data, and where the piece begins.
pub(super) fn question(name: DataName, offset: usize) -> [u8; QUESTION] {
    let (kind, first, second) = match name.chunk {
        DataChunk::Fence(FenceId { group, turn }) => (0, group, turn),
        DataChunk::Rank(rank, version) => (1, rank.into(), version.into()),
    };
    let numbers = [name.owner as u64, first, second, offset as u64];
    let mut bytes = [kind; QUESTION];
    for (place, number) in bytes[1..].chunks_exact_mut(8).zip(numbers) {
        place.copy_from_slice(&number.to_le_bytes());
    }
    bytes
}

/// Reads a question; `None` if it is none.
pub(super) fn read_question(bytes: &[u8]) -> Option<(DataName, usize)> {
    let (kind, rest) = bytes.split_first()?;
    let (numbers, rest) = rest.as_chunks::<8>();
    let &[owner, first, second, offset] = numbers else {
        return None;
    };
    let [owner, first, second, offset] = [owner, first, second, offset].map(u64::from_le_bytes);
    let chunk = match kind {
        0 => DataChunk::Fence(FenceId {
            group: first,
            turn: second,
        }),
        1 => DataChunk::Rank(first.try_into().ok()?, second.try_into().ok()?),
        _ => return None,
    };
    let name = DataName {
        owner: owner.try_into().ok()?,
        chunk,
    };
    let offset = offset.try_into().ok()?;
    rest.is_empty().then_some((name, offset))
}

/// The answer: the piece of served data that begins there; empty if there is none.
pub(super) fn piece_at(data: &[u8], offset: usize) -> &[u8] {
    let rest = data.get(offset..).unwrap_or_default();
    &rest[..rest.len().min(PIECE)]
}

/// Data on its way.
#[derive(Debug)]
pub(super) struct Transfer {
    size: usize,
    /// The launchers that may have it. It comes from the first one.
    from: Vec<usize>,
    /// The pieces that have arrived, by their offsets.
    pieces: BTreeMap<usize, Vec<u8>>,
    /// Open questions: the fabric's number, and the offset.
    open: BTreeMap<u64, usize>,
}

impl Transfer {
    pub(super) fn new(size: usize, from: Vec<usize>) -> Self {
        Self {
            size,
            from,
            pieces: BTreeMap::new(),
            open: BTreeMap::new(),
        }
    }

    /// The launcher that is asked; `None` if no one is left.
    pub(super) fn server(&self) -> Option<usize> {
        self.from.first().copied()
    }

    /// The piece to ask for next, if one more question may be open.
    pub(super) fn next(&self) -> Option<usize> {
        let asked: BTreeSet<usize> = self.open.values().copied().collect();
        let is_missing =
            |offset: &usize| !self.pieces.contains_key(offset) && !asked.contains(offset);
        let mut offsets = (0..self.size).step_by(PIECE);
        offsets
            .find(is_missing)
            .filter(|_| self.open.len() < OPEN_MAX)
    }

    /// Notes a question that was sent.
    pub(super) fn asked(&mut self, question: u64, offset: usize) {
        self.open.insert(question, offset);
    }

    /// Whether this is an open question of this transfer.
    pub(super) fn has_asked(&self, question: u64) -> bool {
        self.open.contains_key(&question)
    }

    /// Takes the answer to an open question. Returns whether it is the piece that was asked for.
    pub(super) fn answered(&mut self, question: u64, piece: Vec<u8>) -> bool {
        let Some(offset) = self.open.remove(&question) else {
            return false;
        };
        let is_it = piece.len() == PIECE.min(self.size - offset);
        if is_it {
            self.pieces.insert(offset, piece);
        }
        is_it
    }

    /// Turns to the next launcher, which has the same data: the pieces that have arrived stay.
    pub(super) fn leave_server(&mut self) {
        self.open.clear();
        if !self.from.is_empty() {
            self.from.remove(0);
        }
    }

    /// Forgets that a launcher may have the data.
    pub(super) fn lose(&mut self, node: usize) {
        if self.server() == Some(node) {
            self.leave_server();
        }
        self.from.retain(|one| *one != node);
    }

    /// The data, if all of it has arrived.
    pub(super) fn take_whole(&mut self) -> Option<Vec<u8>> {
        let received: usize = self.pieces.values().map(Vec::len).sum();
        if received < self.size {
            return None;
        }
        let mut data = Vec::with_capacity(self.size);
        for (_, piece) in std::mem::take(&mut self.pieces) {
            data.extend(piece);
        }
        Some(data)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(owner: usize) -> DataName {
        let id = FenceId {
            group: u64::MAX,
            turn: 3,
        };
        DataName {
            owner,
            chunk: DataChunk::Fence(id),
        }
    }

    #[test]
    fn a_question_is_read_as_it_was_asked() {
        let of_rank = DataName {
            owner: 7,
            chunk: DataChunk::Rank(5, 2),
        };
        for asked in [(name(4095), 0), (of_rank, PIECE)] {
            let bytes = question(asked.0, asked.1);
            assert_eq!(read_question(&bytes), Some(asked));
            for length in 0..bytes.len() {
                assert_eq!(read_question(&bytes[..length]), None);
            }
            assert_eq!(read_question(&[&bytes[..], &[0]].concat()), None);
        }
        let mut unknown = question(name(1), 0);
        unknown[0] = 2;
        assert_eq!(read_question(&unknown), None);
        let mut large = question(of_rank, 0);
        large[9..17].fill(0xff);
        assert_eq!(read_question(&large), None, "no rank has this number");
    }

    #[test]
    fn the_pieces_of_one_launcher_are_completed_by_the_next() {
        let data: Vec<u8> = (0..3 * PIECE + 10).map(|at| (at % 251) as u8).collect();
        let mut transfer = Transfer::new(data.len(), vec![4, 2]);
        let ask = |transfer: &mut Transfer, number: u64| {
            let offset = transfer.next()?;
            transfer.asked(number, offset);
            Some(offset)
        };
        assert_eq!(ask(&mut transfer, 1), Some(0));
        assert_eq!(ask(&mut transfer, 2), Some(PIECE));
        assert!(transfer.answered(2, piece_at(&data, PIECE).to_vec()));
        assert!(
            !transfer.answered(2, piece_at(&data, 0).to_vec()),
            "answered already"
        );
        transfer.lose(4);
        assert_eq!(transfer.server(), Some(2));
        assert!(!transfer.has_asked(1));
        for number in 3..6 {
            let offset = ask(&mut transfer, number).unwrap();
            assert_eq!(transfer.take_whole(), None);
            assert!(transfer.answered(number, piece_at(&data, offset).to_vec()));
        }
        assert_eq!(transfer.next(), None);
        assert_eq!(transfer.take_whole(), Some(data));
    }

    #[test]
    fn another_length_is_no_answer() {
        let mut transfer = Transfer::new(PIECE + 1, vec![1]);
        for (number, length) in [(1, 0), (2, PIECE - 1), (3, PIECE + 1)] {
            let offset = transfer.next().unwrap();
            transfer.asked(number, offset);
            assert!(!transfer.answered(number, vec![0; length]));
        }
        transfer.leave_server();
        assert_eq!(transfer.server(), None);
        assert_eq!(piece_at(&[1, 2, 3], 3), [0u8; 0]);
        assert_eq!(piece_at(&[1, 2, 3], usize::MAX), [0u8; 0]);
    }
}
