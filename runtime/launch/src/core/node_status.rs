//! The node status: a launcher's state, published to the other launchers as one attribute of its node, and
//! rewritten whenever something changes (run-3).
//!
//! The other launchers read the whole of it each time, so a lost event loses no state and no order is needed. A
//! large contribution to a fence is stored in attributes of its own. Still larger data is not in attributes: the
//! launcher serves it to those that request it.

use super::ranges::Ranges;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// The key of the attribute.
pub(crate) const KEY: &[u8] = b"run.status";
/// A contribution of up to this size is in the node status itself.
const INLINE_MAX: usize = 512;
/// The longest value of an attribute.
pub(crate) const PART: usize = 65_536;

/// A launcher's state, as the others need it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NodeStatus {
    /// The launcher's process, which distinguishes two launchers on one node.
    pub(crate) pid: u32,
    /// The job in this launcher's view: it must be the same for all.
    pub(crate) job: String,
    /// This launcher is ready to start its ranks.
    pub(crate) ready: bool,
    /// One of its ranks has connected to the PMIx server.
    pub(crate) connected: bool,
    /// MPI_Init is over: a loss from now on is a loss of a running job.
    #[serde(default)]
    pub(crate) started: bool,
    /// All its ranks have ended.
    pub(crate) done: bool,
    /// The job is to end, with this status.
    pub(crate) abort: Option<Abort>,
    /// Ranks of this node that have ended.
    #[serde(with = "alike")]
    pub(crate) ended: Vec<Ended>,
    /// The first rank here that ended with a status other than 0: when, in ms after all launchers had started,
    /// and the status.
    #[serde(default)]
    pub(crate) failed: Option<(u64, u8)>,
    /// Launchers that are gone in this launcher's view.
    pub(crate) gone: Ranges,
    pub(crate) fences: Vec<FenceState>,
    /// Names that its ranks have published.
    pub(crate) name_service: Vec<PublishedName>,
    /// The serial of the last entry that they have published, even if it is removed.
    #[serde(default)]
    pub(crate) posted: u64,
    /// Entries of other nodes, for the first reader only, that its ranks have taken: node and serial.
    pub(crate) taken: Vec<(usize, u64)>,
    /// The serial of the last entry of each node that has arrived here.
    pub(crate) noticed: BTreeMap<usize, u64>,
    /// The last signals that its ranks have sent to others.
    pub(crate) signals: Vec<Signal>,
    /// Requests for data of ranks on other nodes (direct modex).
    #[serde(default)]
    pub(crate) wanted: Vec<Wanted>,
    /// Data of its ranks that is stored in attributes.
    #[serde(default)]
    pub(crate) blobs: Vec<Blob>,
    /// Increases whenever `blobs` changes.
    #[serde(default)]
    pub(crate) blob_turn: u64,
    /// The NIDs at which this launcher serves data, separated by commas; empty if it has opened none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) data_nids: String,
}

/// A signal from a rank to others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Signal {
    /// Its number among its node's signals.
    pub(crate) serial: u64,
    /// The receivers as ranges, first to last; empty for all.
    pub(crate) ranks: Vec<(u32, u32)>,
    pub(crate) signal: i32,
}

/// Why a job ends early.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Abort {
    pub(crate) status: u8,
    pub(crate) why: String,
    /// The node whose launcher ended the job. The launchers of other nodes repeat it.
    pub(crate) by: usize,
}

/// A rank that has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Ended {
    pub(crate) rank: u32,
    /// Its exit status, as a shell counts: 128 and more for a signal.
    pub(crate) status: u8,
    /// It had connected to the PMIx server.
    pub(crate) connected: bool,
    /// It had disconnected in order.
    pub(crate) finalized: bool,
}

impl Ended {
    /// Whether MPI would wait for it for ever.
    pub(crate) fn is_lost(&self) -> bool {
        self.connected && !self.finalized
    }
}

/// Encodes ranks that have ended alike together, without order.
mod alike {
    use super::{Ended, Ranges};
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use std::collections::BTreeMap;

    pub(crate) fn serialize<S: Serializer>(all: &[Ended], to: S) -> Result<S::Ok, S::Error> {
        let mut alike: BTreeMap<(u8, bool, bool), Vec<u32>> = BTreeMap::new();
        for one in all {
            let how = (one.status, one.connected, one.finalized);
            alike.entry(how).or_default().push(one.rank);
        }
        let groups = |(how, ranks): ((u8, bool, bool), Vec<u32>)| {
            let ranks: Ranges = ranks.into_iter().collect();
            (ranks, how)
        };
        let groups: Vec<_> = alike.into_iter().map(groups).collect();
        groups.serialize(to)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Ended>, D::Error> {
        let groups: Vec<(Ranges, (u8, bool, bool))> = Vec::deserialize(from)?;
        let mut all = Vec::new();
        for (ranks, (status, connected, finalized)) in groups {
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

/// A fence: its group, and its number within the group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(crate) struct FenceId {
    /// A number derived from the ranks and the tag; 0 for a plain fence of the whole job.
    pub(crate) group: u64,
    pub(crate) turn: u64,
}

/// A launcher's state of a fence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FenceState {
    pub(crate) id: FenceId,
    /// The operation, if it is not a plain fence.
    pub(crate) tag: String,
    /// The ranks, if these are not all.
    pub(crate) ranks: Ranges,
    /// The fence is over for this launcher's ranks.
    pub(crate) over: bool,
    /// The contribution of its ranks; `None` if they have not entered.
    pub(crate) put: Option<Contributed>,
    /// The nodes whose contributions count.
    #[serde(rename = "ruling")]
    pub(crate) decision: Option<Ranges>,
    /// Counted contributions of nodes that are gone.
    #[serde(rename = "lent")]
    pub(crate) replicated: Vec<(usize, Contributed)>,
}

/// The contribution of a node's ranks to a fence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Contributed {
    /// All of it, in hexadecimal digits.
    Here(String),
    /// Its length; it is stored in attributes of its own.
    Beside(usize),
    /// Its length; the launcher that states it serves it.
    Served(usize),
    /// Its length; it is too large, and no node gets it.
    TooMuch(usize),
}

impl Contributed {
    pub(crate) fn new(data: &[u8]) -> Self {
        if data.len() > INLINE_MAX {
            return Self::Beside(data.len());
        }
        Self::here(data)
    }

    /// Its size in a list of the node status, as an upper bound.
    pub(crate) fn size(&self) -> usize {
        let Self::Here(digits) = self else { return 64 };
        64 + digits.len()
    }

    /// Encodes all of it, whatever its size.
    pub(crate) fn here(data: &[u8]) -> Self {
        let mut digits = String::with_capacity(2 * data.len());
        for byte in data {
            let _ = write!(digits, "{byte:02x}");
        }
        Self::Here(digits)
    }

    /// Returns the data, if it is here.
    pub(crate) fn data(&self) -> Option<Vec<u8>> {
        let Self::Here(digits) = self else {
            return None;
        };
        let digit = |place: usize| char::from(*digits.as_bytes().get(place)?).to_digit(16);
        (0..digits.len().div_ceil(2))
            .map(|at| Some((digit(2 * at)? << 4 | digit(2 * at + 1)?) as u8))
            .collect()
    }
}

/// Data of a rank that its launcher has stored in attributes, or serves (direct modex).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Blob {
    pub(crate) rank: u32,
    /// Increases when the rank has put more.
    pub(crate) version: u32,
    /// 0 if there is no data.
    pub(crate) size: usize,
    /// The rank has ended: there will be no more data.
    pub(crate) last: bool,
    /// The rank has put more than can be stored.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) too_much: bool,
    /// The launcher serves it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) served: bool,
}

/// A request for the data of a rank, newer than version `after`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Wanted {
    pub(crate) rank: u32,
    pub(crate) after: u32,
}

/// A published name and its value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PublishedName {
    /// Its number among its node's entries.
    pub(crate) serial: u64,
    pub(crate) rank: u32,
    pub(crate) key: String,
    pub(crate) kind: u16,
    pub(crate) value: Contributed,
    /// It is for the first reader only.
    pub(crate) once: bool,
}

/// Data that is stored in attributes of its own, in parts, or served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum DataChunk {
    /// The contribution of a node's ranks to a fence.
    Fence(FenceId),
    /// The data of a rank in this version (direct modex).
    Rank(u32, u32),
}

impl DataChunk {
    /// The key of the attribute of one part.
    pub(crate) fn key(self, part: usize) -> Vec<u8> {
        let key = match self {
            Self::Fence(id) => format!("run.f.{:x}.{}.{part}", id.group, id.turn),
            Self::Rank(rank, version) => format!("run.d.{rank}.{version}.{part}"),
        };
        key.into_bytes()
    }
}

impl NodeStatus {
    /// Encodes the value of the attribute.
    pub(crate) fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Decodes a value, which may come from any process.
    pub(crate) fn decode(value: &[u8]) -> Option<Self> {
        serde_json::from_slice(value).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::RANKS_OF_NODE_MAX;

    #[test]
    fn small_data_is_inline_and_large_data_is_separate() {
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(Contributed::new(&all).data(), Some(all));
        assert_eq!(Contributed::new(&[]).data(), Some(vec![]));
        assert_eq!(Contributed::new(&[7; 513]), Contributed::Beside(513));
        for wrong in ["0", "0g", "\u{e4}"] {
            assert_eq!(Contributed::Here(wrong.into()).data(), None);
        }
    }

    #[test]
    fn a_node_status_is_decoded_as_it_was_encoded() {
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
                decision: Some([0, 2].into_iter().collect()),
                replicated: vec![(2, Contributed::Beside(9999))],
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
    fn a_node_status_has_room_for_the_ends_of_4096_ranks() {
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
