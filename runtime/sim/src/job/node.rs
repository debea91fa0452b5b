//! `JobNode` is a node of a simulated job: its tree, and what it has been told.

use muster_protocol::Instant;
use muster_zones::Tree;

/// Random numbers of one node: SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
/// Each node draws the delays of its own datagrams, so that they do not depend on what other nodes do meanwhile.
#[derive(Clone, Copy, Debug)]
pub(super) struct Draw(u64);

impl Draw {
    pub(super) const fn new(seed: u64, node: usize) -> Self {
        Self(seed ^ (node as u64).wrapping_mul(0xd6e8_feb8_6659_fd93))
    }

    pub(super) const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A number from `low` to `high`, both included.
    pub(super) fn between(&mut self, low: u64, high: u64) -> u64 {
        let span = u128::from(high - low) + 1;
        low + ((u128::from(self.next()) * span) >> 64) as u64
    }
}

/// A number that depends on each bit of another one.
pub(super) const fn mix(mut number: u64) -> u64 {
    number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

/// A node of the job.
#[derive(Debug)]
pub(super) struct JobNode {
    /// `None` while it is dead.
    pub(super) tree: Option<Box<Tree>>,
    pub(super) draw: Draw,
    /// How many datagrams it has sent: of two that arrive at the same time from one node, the first one comes first.
    pub(super) sequence: u32,
    /// When it wants to be woken next.
    pub(super) alarm: Instant,
    /// Of all that it has been told and sent, with the times.
    pub(super) digest: u64,
    /// The subjects of the present change that it knows of, one bit each.
    pub(super) known: u64,
    /// When it knew of all.
    pub(super) knew_at: Option<Instant>,
}

impl JobNode {
    pub(super) fn new(tree: Tree, draw: Draw) -> Self {
        Self {
            tree: Some(Box::new(tree)),
            draw,
            sequence: 0,
            alarm: Instant::NEVER,
            digest: 0,
            known: 0,
            knew_at: None,
        }
    }

    /// Adds something to the digest.
    pub(super) const fn note(&mut self, at: Instant, what: u64) {
        self.digest = mix(self.digest ^ mix(at.0 ^ mix(what)));
    }
}
