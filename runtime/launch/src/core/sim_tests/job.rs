//! A random job: what its ranks do, and which of them and of the nodes are lost when.

use std::time::Duration;

use crate::core::policy::ExitPolicy;

/// Numbers from a seed (SplitMix64).
#[derive(Debug, Clone)]
pub(super) struct Rng(u64);

impl Rng {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ 0x9e37_79b9_7f4a_7c15)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    pub(super) fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }

    pub(super) fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }

    pub(super) fn ms(&mut self, from: usize, to: usize) -> Duration {
        Duration::from_micros((1000 * from + self.below(1000 * (to - from))) as u64)
    }
}

/// Fences in MPI_Init, which each job begins with.
pub(super) const INIT: usize = 4;

/// Room for all that launchers store.
pub(super) const ROOM: usize = (1 << 20) - (1 << 16);

/// Within this time every node is told of a loss.
pub(super) const DETECTION_MS: usize = 1500;

/// An operation; each rank carries out those that name it, in order, one at a time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Op {
    /// A fence, or the construction of a group of this name. Each node contributes this many bytes.
    Collective {
        /// Empty for all.
        ranks: Vec<u32>,
        group: Option<String>,
        size: usize,
    },
    Publish {
        rank: u32,
        key: String,
        once: bool,
    },
    /// A rank looks up a name: at once if it waits for the name, else when the publisher has told it of the name.
    LookUp {
        rank: u32,
        key: String,
        wait: bool,
    },
    /// A rank requests the data that another one has put.
    Want {
        rank: u32,
        of: u32,
    },
}

impl Op {
    pub(super) fn involves(&self, rank: u32) -> bool {
        match self {
            Self::Collective { ranks, .. } => ranks.is_empty() || ranks.contains(&rank),
            Self::Publish { rank: one, .. }
            | Self::LookUp { rank: one, .. }
            | Self::Want { rank: one, .. } => *one == rank,
        }
    }
}

/// A loss.
#[derive(Debug, Clone)]
pub(super) enum Loss {
    /// The node stops before its launcher carries out this action, counted from the start of the job, or from the
    /// moment when MPI_Init is over on all nodes.
    Node {
        node: usize,
        step: usize,
        after_init: bool,
    },
    /// A node stops right after it has published its contribution to this operation.
    Contributor { node: usize, op: usize },
    /// The lowest node comes last to this fence, and the node that decides it stops right after it has published the
    /// decision.
    Decider { op: usize },
    /// The other nodes declare a living node failed, this long after MPI_Init is over on all nodes.
    Verdict { node: usize, after: Duration },
    /// A rank is killed this long after it has begun an operation.
    Rank {
        rank: u32,
        op: usize,
        after: Duration,
    },
}

/// A job.
#[derive(Debug, Clone)]
pub(super) struct Job {
    pub(super) nodes: usize,
    pub(super) per_node: u32,
    pub(super) ops: Vec<Op>,
    pub(super) losses: Vec<Loss>,
    pub(super) policy: ExitPolicy,
    /// The exit status of each rank that is not lost.
    pub(super) statuses: Vec<u8>,
    /// The longest time that an attribute takes to another node.
    pub(super) latency_ms: usize,
    /// Bytes that the attributes of a node have room for, besides its status.
    pub(super) room: usize,
    /// Data above this size is served; `None` if none is.
    pub(super) serve_from: Option<usize>,
}

impl Job {
    /// Draws a job.
    pub(super) fn draw(rng: &mut Rng) -> Self {
        let nodes = 2 + rng.below(5);
        let per_node = 1 + rng.below(3) as u32;
        let ranks = nodes as u32 * per_node;
        let mut job = Self {
            nodes,
            per_node,
            ops: Vec::new(),
            losses: Vec::new(),
            policy: [ExitPolicy::First, ExitPolicy::Worst, ExitPolicy::Survivors][rng.below(3)],
            statuses: (0..ranks)
                .map(|_| {
                    if rng.one_in(6) {
                        1 + rng.below(9) as u8
                    } else {
                        0
                    }
                })
                .collect(),
            latency_ms: [2, 20, 200][rng.below(3)],
            room: [ROOM, ROOM, 91_000, 50_000][rng.below(4)],
            serve_from: None,
        };
        for turn in 0..INIT {
            let size = if turn % 2 == 0 { 86 } else { 0 };
            job.fence(Vec::new(), size);
        }
        for count in 0..3 + rng.below(10) {
            job.draw_op(count, rng);
        }
        job.draw_losses(rng);
        job
    }

    fn fence(&mut self, ranks: Vec<u32>, size: usize) {
        self.ops.push(Op::Collective {
            ranks,
            group: None,
            size,
        });
    }

    /// Some ranks, at least two.
    fn draw_ranks(&self, rng: &mut Rng) -> Vec<u32> {
        let all = self.statuses.len() as u32;
        let mut ranks: Vec<u32> = (0..all).filter(|_| rng.one_in(2)).collect();
        if ranks.len() < 2 {
            ranks = vec![0, all - 1];
        }
        ranks
    }

    fn draw_op(&mut self, count: usize, rng: &mut Rng) {
        let all = self.statuses.len();
        let rank = rng.below(all) as u32;
        let other = rng.below(all) as u32;
        let size = [0, 8, INLINE_MAX, 700, 90_000][rng.below(5)];
        match rng.below(8) {
            0..=2 => self.fence(Vec::new(), size),
            3 | 4 => {
                let ranks = self.draw_ranks(rng);
                self.fence(ranks, size);
            }
            5 => {
                let ranks = self.draw_ranks(rng);
                let group = Some(format!("g{}", if rng.one_in(3) { 0 } else { count }));
                self.ops.push(Op::Collective { ranks, group, size });
            }
            6 => {
                let key = format!("name {count}");
                let once = rng.one_in(3);
                let wait = rng.one_in(2);
                self.ops.push(Op::Publish {
                    rank,
                    key: key.clone(),
                    once,
                });
                for reader in [other, rank, (rank + 1) % all as u32] {
                    let key = key.clone();
                    self.ops.push(Op::LookUp {
                        rank: reader,
                        key,
                        wait,
                    });
                }
            }
            _ => {
                // Data of a rank of the same node is no matter for the launcher.
                let of = (rank + self.per_node) % all as u32;
                self.ops.push(Op::Want { rank, of });
            }
        }
    }

    fn draw_losses(&mut self, rng: &mut Rng) {
        let after_init = !rng.one_in(4);
        let most = rng.below(self.nodes.min(4));
        let mut left: Vec<usize> = (0..self.nodes).collect();
        for _ in 0..most {
            let node = left.swap_remove(rng.below(left.len()));
            let op = INIT + rng.below(self.ops.len() - INIT);
            let loss = match rng.below(10) {
                0..=1 if after_init => Loss::Verdict {
                    node,
                    after: rng.ms(0, 1500),
                },
                2..=4 if after_init => Loss::Contributor { node, op },
                5..=6 if after_init => Loss::Decider { op },
                _ => Loss::Node {
                    node,
                    step: rng.below(if after_init { 60 } else { 50 }),
                    after_init,
                },
            };
            self.losses.push(loss);
        }
        while rng.one_in(3) {
            let first = if after_init { INIT } else { 0 };
            self.losses.push(Loss::Rank {
                rank: rng.below(self.statuses.len()) as u32,
                op: first + rng.below(self.ops.len() - first),
                after: rng.ms(0, 30),
            });
        }
    }

    /// Whether all losses come after MPI_Init: then none of them ends the job.
    pub(super) fn survives_losses(&self) -> bool {
        self.losses.iter().all(|loss| match loss {
            Loss::Node { after_init, .. } => *after_init,
            Loss::Verdict { .. } | Loss::Contributor { .. } | Loss::Decider { .. } => true,
            Loss::Rank { op, .. } => *op >= INIT,
        })
    }

    /// Whether other attributes leave so little room that data may be refused.
    pub(super) fn is_short_of_room(&self) -> bool {
        self.room < ROOM
    }

    pub(super) fn node_of(&self, rank: u32) -> usize {
        (rank / self.per_node) as usize
    }

    pub(super) fn ranks_of(&self, node: usize) -> std::ops::Range<u32> {
        let first = node as u32 * self.per_node;
        first..first + self.per_node
    }
}

/// What a request is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) node: usize,
    pub(super) op: usize,
    /// The rank, if it is that of one.
    pub(super) rank: Option<u32>,
}

/// The data that a rank has put.
pub(super) fn data_of(rank: u32) -> Vec<u8> {
    let mut data = format!("key {rank};").into_bytes();
    data.resize(100 + 50 * rank as usize, b'.');
    data
}

/// Data of contributions up to this size is in the node status itself, also where a group's number is before it.
pub(super) const INLINE_MAX: usize = 400;
/// Bytes before the data of a contribution to a group.
const GROUP_PREFIX: usize = 16;

/// Which contribution it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Contribution {
    pub(super) node: usize,
    pub(super) op: usize,
}

impl Contribution {
    /// Recognizes a contribution to an operation with this tag.
    pub(super) fn read(tag: &str, data: &[u8]) -> Option<Self> {
        let start = if tag.is_empty() { 0 } else { GROUP_PREFIX };
        let [.., node, op] = *data.get(start..)?.first_chunk::<6>()?;
        Some(Self {
            node: node.into(),
            op: op.into(),
        })
    }
}

/// The name of a node.
pub(super) fn node_name(node: usize) -> String {
    format!("n{node}")
}

/// The node with this name.
pub(super) fn node_named(name: &str) -> Option<usize> {
    name.strip_prefix('n')?.parse().ok()
}

/// A node's contribution: its size, its node, its operation, filler.
pub(super) fn contribution(node: usize, op: usize, size: usize) -> Vec<u8> {
    let mut data = (size as u32).to_le_bytes().to_vec();
    data.extend([node as u8, op as u8]);
    data.resize(6 + size, node as u8);
    data
}
