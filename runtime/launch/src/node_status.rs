//! What a launcher says to the others: one attribute of its node, written anew whenever something changes (run-3).
//!
//! The others read the whole of it each time, so nothing is lost with a lost event and nothing has to come in
//! order. What the ranks put into a fence lies beside it, in attributes of its own, if there is much of it.

use super::modex::{Blob, Wanted};
use super::name_service::PublishedName;
use super::ranges::Ranges;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// The attribute.
pub(super) const KEY: &[u8] = b"run.bell";
/// Data of a fence up to this size is in the bell itself.
const INLINE_MAX: usize = 512;
/// The longest value of an attribute.
pub(super) const PART: usize = 65_536;

/// A launcher's state, as the others need it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct NodeStatus {
    /// The launcher's process, to tell two of them on one node.
    pub(super) pid: u32,
    /// What the job is, in its launcher's eyes: all must see the same.
    pub(super) job: String,
    /// It is ready to start its ranks.
    pub(super) ready: bool,
    /// One of its ranks has come to the PMIx server.
    pub(super) connected: bool,
    /// MPI_Init is over: who is lost now is lost to a job that goes on.
    #[serde(default)]
    pub(super) started: bool,
    /// Its ranks have ended.
    pub(super) done: bool,
    /// The job is to end, and with which status.
    pub(super) abort: Option<Abort>,
    /// Ranks of this node that have ended.
    #[serde(with = "alike")]
    pub(super) ended: Vec<Ended>,
    /// When the first of them ended that did not end with 0, in ms after all launchers had met, and with what.
    #[serde(default)]
    pub(super) failed: Option<(u64, u8)>,
    /// Launchers that are gone, in its eyes.
    pub(super) gone: Ranges,
    pub(super) fences: Vec<FenceState>,
    /// What its ranks have left for others to find.
    pub(super) name_service: Vec<PublishedName>,
    /// The last that they have left, whether it still stands or not.
    #[serde(default)]
    pub(super) posted: u64,
    /// Notices of other nodes, for the first who reads them, that its ranks have read: node and serial.
    pub(super) taken: Vec<(usize, u64)>,
    /// The last notice of each node that has come here.
    pub(super) noticed: BTreeMap<usize, u64>,
    /// Signals that its ranks have sent to others; the last ones.
    pub(super) signals: Vec<Signal>,
    /// Ranks elsewhere whose data its own ranks want without a fence.
    #[serde(default)]
    pub(super) wanted: Vec<Wanted>,
    /// Data of its ranks that lies beside.
    #[serde(default)]
    pub(super) blobs: Vec<Blob>,
    /// Grows whenever these change.
    #[serde(default)]
    pub(super) blob_turn: u64,
}

/// A signal on its way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Signal {
    /// Which of its node's.
    pub(super) serial: u64,
    /// To whom, from this rank to that one; empty for all.
    pub(super) ranks: Vec<(u32, u32)>,
    pub(super) signal: i32,
}

/// Why a job ends before its time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Abort {
    pub(super) status: u8,
    pub(super) why: String,
    /// The node whose launcher ended it. Those of other nodes repeat it.
    pub(super) by: usize,
}

/// A rank that has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Ended {
    pub(super) rank: u32,
    /// What it left, as a shell counts: 128 and more for a signal.
    pub(super) status: u8,
    /// It had come to the PMIx server.
    pub(super) connected: bool,
    /// It had left the PMIx server in order.
    pub(super) finalized: bool,
}

impl Ended {
    /// MPI would wait for it in vain.
    pub(super) fn is_lost(&self) -> bool {
        self.connected && !self.finalized
    }
}

/// Ranks that have ended alike are said together, in no order.
mod alike {
    use super::{Ended, Ranges};
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use std::collections::BTreeMap;

    pub(super) fn serialize<S: Serializer>(all: &[Ended], to: S) -> Result<S::Ok, S::Error> {
        let mut alike: BTreeMap<(u8, bool, bool), Vec<u32>> = BTreeMap::new();
        for one in all {
            let how = (one.status, one.connected, one.finalized);
            alike.entry(how).or_default().push(one.rank);
        }
        let told = |(how, ranks): ((u8, bool, bool), Vec<u32>)| {
            let ranks: Ranges = ranks.into_iter().collect();
            (ranks, how)
        };
        let told: Vec<_> = alike.into_iter().map(told).collect();
        told.serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Ended>, D::Error> {
        let told: Vec<(Ranges, (u8, bool, bool))> = Vec::deserialize(from)?;
        let mut all = Vec::new();
        for (ranks, (status, connected, finalized)) in told {
            all.extend(ranks.iter().map(|rank| Ended {
                rank,
                status,
                connected,
                finalized,
            }));
        }
        Ok(all)
    }
}

/// Which fence: whose, and which of theirs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(super) struct FenceId {
    /// A number made of the ranks and of what it is for; 0 for a plain fence of the whole job.
    pub(super) group: u64,
    pub(super) turn: u64,
}

/// What a launcher says of a fence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FenceState {
    pub(super) id: FenceId,
    /// What the fence is for, where it is not only a fence.
    pub(super) tag: String,
    /// The ranks, where these are not all.
    pub(super) ranks: Ranges,
    /// It is over for its own ranks.
    pub(super) over: bool,
    /// What its own ranks have put; none if they have not come.
    pub(super) put: Option<Contributed>,
    /// The nodes whose contributions count.
    pub(super) ruling: Option<Ranges>,
    /// What those of them have put that are gone.
    pub(super) lent: Vec<(usize, Contributed)>,
}

/// What the ranks of a node have put into a fence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Contributed {
    /// All of it, in hexadecimal digits.
    Here(String),
    /// It is that long and lies in attributes of its own.
    Beside(usize),
    /// It is that long, and nobody will have it.
    TooMuch(usize),
}

impl Contributed {
    pub(super) fn new(data: &[u8]) -> Self {
        if data.len() > INLINE_MAX {
            return Self::Beside(data.len());
        }
        Self::here(data)
    }

    /// What it takes on the bell as one of a list, a little more.
    pub(super) fn size(&self) -> usize {
        let Self::Here(digits) = self else { return 64 };
        64 + digits.len()
    }

    /// All of it, however much it is.
    pub(super) fn here(data: &[u8]) -> Self {
        let mut digits = String::with_capacity(2 * data.len());
        for byte in data {
            let _ = write!(digits, "{byte:02x}");
        }
        Self::Here(digits)
    }

    /// The data, if it is here.
    pub(super) fn data(&self) -> Option<Vec<u8>> {
        let Self::Here(digits) = self else {
            return None;
        };
        let digit = |place: usize| char::from(*digits.as_bytes().get(place)?).to_digit(16);
        (0..digits.len().div_ceil(2))
            .map(|at| Some((digit(2 * at)? << 4 | digit(2 * at + 1)?) as u8))
            .collect()
    }
}

/// Data that lies beside the bell.
#[derive(Debug, Clone, Copy)]
pub(super) enum DataChunk {
    /// What the ranks of a node have put into a fence.
    Fence(FenceId),
    /// What a rank has put for whoever asks, in this version.
    Rank(u32, u32),
}

impl DataChunk {
    /// The attribute in which a part of it lies.
    pub(super) fn key(self, part: usize) -> Vec<u8> {
        let key = match self {
            Self::Fence(id) => format!("run.f.{:x}.{}.{part}", id.group, id.turn),
            Self::Rank(rank, version) => format!("run.d.{rank}.{version}.{part}"),
        };
        key.into_bytes()
    }
}

impl NodeStatus {
    /// As the value of the attribute.
    pub(super) fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// From a value of whatever origin.
    pub(super) fn decode(value: &[u8]) -> Option<Self> {
        serde_json::from_slice(value).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::super::layout::RANKS_OF_NODE_MAX;
    use super::*;

    #[test]
    fn little_is_said_at_once_and_much_is_put_beside() {
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(Contributed::new(&all).data(), Some(all));
        assert_eq!(Contributed::new(&[]).data(), Some(vec![]));
        assert_eq!(Contributed::new(&[7; 513]), Contributed::Beside(513));
        for wrong in ["0", "0g", "\u{e4}"] {
            assert_eq!(Contributed::Here(wrong.into()).data(), None);
        }
    }

    #[test]
    fn a_bell_is_read_as_it_was_written() {
        let id = FenceId { group: 0, turn: 3 };
        let node_status = NodeStatus {
            pid: 7,
            ended: vec![Ended {
                rank: 3,
                status: 137,
                connected: true,
                finalized: false,
            }],
            fences: vec![FenceState {
                id,
                tag: String::new(),
                over: false,
                ranks: [1, 2, 3].into_iter().collect(),
                put: Some(Contributed::new(b"x")),
                ruling: Some([0, 2].into_iter().collect()),
                lent: vec![(2, Contributed::Beside(9999))],
            }],
            ..NodeStatus::default()
        };
        assert_eq!(NodeStatus::decode(&node_status.encode()), Some(node_status));
        assert_eq!(NodeStatus::decode(b"{}"), None);
        assert_eq!(NodeStatus::decode(b"\xff"), None);
        assert_eq!(DataChunk::Fence(id).key(1), b"run.f.0.3.1");
        assert_eq!(DataChunk::Rank(7, 2).key(0), b"run.d.7.2.0");
    }
    /// run-3.
    #[test]
    fn a_bell_has_room_for_the_ends_of_4096_ranks_however_they_end() {
        let end = |rank: u32| Ended {
            rank: 60_000 + rank,
            status: (rank * 7 % 251) as u8,
            connected: !rank.is_multiple_of(3),
            finalized: rank % 3 > 1,
        };
        let ended: Vec<Ended> = (0..RANKS_OF_NODE_MAX).map(end).collect();
        let node_status = NodeStatus {
            ended: ended.clone(),
            gone: (0..4096).step_by(2).collect(),
            ..NodeStatus::default()
        };
        let written = node_status.encode();
        assert!(written.len() < 2 * PART / 3, "{}", written.len());
        let mut read = NodeStatus::decode(&written).unwrap();
        read.ended.sort_by_key(|one| one.rank);
        assert_eq!((read.ended, read.gone), (ended, node_status.gone));
    }
}
