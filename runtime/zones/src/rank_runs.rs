//! `RankRuns` says which ranks run on which nodes, in a few bytes for the usual layouts: ranks in blocks (the first
//! node has the first ranks) and ranks in turn (rank 0 on the first node, rank 1 on the second, ...).

use crate::directory::NodeIndex;

/// Most ranks that bytes may stand for.
const RANKS_MAX: u64 = 1 << 24;
/// Numbers of a run in bytes.
const RUN_SIZE: usize = 24;

/// Nodes that follow each other in the directory, with as many ranks each.
///
/// Node number `node + i` has the ranks `first + i * shift + k * step`, for each `k` below `count`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    node: u32,
    nodes: u32,
    first: u32,
    count: u32,
    step: u32,
    shift: u32,
}

impl Run {
    fn fields(&self) -> [u32; 6] {
        [
            self.node, self.nodes, self.first, self.count, self.step, self.shift,
        ]
    }

    /// Appends a run of one node, if it continues this one.
    fn append(&mut self, next: &Self) -> bool {
        let shift = next.first.wrapping_sub(self.first) / self.nodes.max(1);
        let is_next = next.node == self.node + self.nodes
            && (next.count, next.step) == (self.count, self.step)
            && next.first > self.first
            && (self.nodes == 1 || shift == self.shift)
            && u64::from(self.first) + u64::from(shift) * u64::from(self.nodes)
                == u64::from(next.first);
        if is_next {
            self.shift = shift;
            self.nodes += 1;
        }
        is_next
    }
}

/// Which ranks run on which nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RankRuns {
    runs: Vec<Run>,
}

impl RankRuns {
    /// The runs of these nodes, in the directory's order, each with its ranks in order.
    #[must_use]
    pub fn new(nodes: impl IntoIterator<Item = (NodeIndex, Vec<u32>)>) -> Self {
        let mut runs: Vec<Run> = Vec::new();
        for (node, ranks) in nodes {
            for run in steps(node.0, &ranks) {
                if !runs.last_mut().is_some_and(|last| last.append(&run)) {
                    runs.push(run);
                }
            }
        }
        Self { runs }
    }

    /// Each rank with its node.
    pub fn ranks(&self) -> impl Iterator<Item = (u32, NodeIndex)> {
        self.runs.iter().flat_map(|run| {
            let nodes = (0..run.nodes).map(move |i| (run.node + i, run.first + i * run.shift));
            nodes.flat_map(move |(node, first)| {
                (0..run.count).map(move |k| (first + k * run.step, NodeIndex(node)))
            })
        })
    }

    /// Number of ranks.
    #[must_use]
    pub fn len(&self) -> usize {
        let counts = self
            .runs
            .iter()
            .map(|run| run.nodes as usize * run.count as usize);
        counts.sum()
    }

    /// Whether there are no ranks.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// The runs as bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let fields = self.runs.iter().flat_map(Run::fields);
        fields.flat_map(u32::to_le_bytes).collect()
    }

    /// Reads the bytes of [`RankRuns::encode`]; `None` if they are malformed, or stand for more ranks than a job has.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut runs = Vec::new();
        let mut total: u64 = 0;
        for bytes in bytes.chunks(RUN_SIZE) {
            let bytes: &[u8; RUN_SIZE] = bytes.try_into().ok()?;
            let field = |at: usize| {
                let bytes = bytes.get(4 * at..4 * at + 4)?;
                bytes.try_into().ok().map(u32::from_le_bytes)
            };
            let run = Run {
                node: field(0)?,
                nodes: field(1)?,
                first: field(2)?,
                count: field(3)?,
                step: field(4)?,
                shift: field(5)?,
            };
            let [node, nodes, first, count, step, shift] = run.fields().map(u64::from);
            total += nodes * count;
            if nodes == 0 || count == 0 || total > RANKS_MAX {
                return None;
            }
            let last = first + (nodes - 1) * shift + (count - 1) * step;
            if last >= RANKS_MAX || node + nodes > u64::from(u32::MAX) {
                return None;
            }
            runs.push(run);
        }
        Some(Self { runs })
    }
}

/// The ranks of one node, in order, as few sequences of equal steps.
fn steps(node: u32, ranks: &[u32]) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for rank in ranks {
        let continues = runs.last_mut().is_some_and(|last| {
            let step = rank.wrapping_sub(last.first + (last.count - 1) * last.step);
            let fits = last.count == 1 || step == last.step;
            if fits {
                last.step = step;
                last.count += 1;
            }
            fits
        });
        if !continues {
            runs.push(Run {
                node,
                nodes: 1,
                first: *rank,
                count: 1,
                step: 1,
                shift: 0,
            });
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn usual_layouts_are_one_run() {
        let blocks = (0..64).map(|node| (NodeIndex(node), (node * 8..node * 8 + 8).collect()));
        let blocks = RankRuns::new(blocks);
        assert_eq!((blocks.runs.len(), blocks.len()), (1, 512));
        let in_turn = (0..64).map(|node| {
            let ranks = (0..8).map(|k| node + k * 64).collect();
            (NodeIndex(node), ranks)
        });
        let in_turn = RankRuns::new(in_turn);
        assert_eq!((in_turn.runs.len(), in_turn.len()), (1, 512));
        assert!(in_turn.ranks().any(|one| one == (65, NodeIndex(1))));
    }

    proptest! {
        #[test]
        fn ranks_are_read_as_they_were_written(
            nodes in prop::collection::btree_map(0_u32..200, prop::collection::btree_set(0_u32..5000, 0..9), 0..40),
        ) {
            let given = nodes.iter().map(|(node, ranks)| (NodeIndex(*node), ranks.iter().copied().collect()));
            let runs = RankRuns::new(given);
            let read = RankRuns::decode(&runs.encode()).unwrap();
            let expected: BTreeSet<(u32, NodeIndex)> = nodes
                .iter()
                .flat_map(|(node, ranks)| ranks.iter().map(|rank| (*rank, NodeIndex(*node))))
                .collect();
            prop_assert_eq!(read.len(), expected.len());
            prop_assert_eq!(read.ranks().collect::<BTreeSet<_>>(), expected);
        }

        /// Numbers of any size.
        #[test]
        fn bytes_of_any_kind_are_read_safely(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            if let Some(runs) = RankRuns::decode(&bytes) {
                prop_assert!(runs.ranks().count() == runs.len());
            }
        }
    }
}
