//! Selection: the local rail and the remote NID that a message uses. It is a pure function.
//!
//! *Local NI first*: it first chooses one of the rails that lead to the peer, then one of the peer's NIDs that
//! this rail leads to. Each choice is the minimum of a list of keys, compared in a fixed order ([`Step`]):
//! whether the path works; whether it was tried for this message; the path by which a request came; the policy;
//! health; the CPU partition that the rail serves, and its distance from the memory; messages in a row; and
//! then weighted round robin, by credits and queued bytes and last by turn. So one comparison decides, and
//! [`explain`] can name the step that decided against each other candidate.
//!
//! Health is a preference, never a condition: when no path works, all are tried. An avoided path is probed now
//! and then with a copy of a real message, so that it can recover. Without probes, a cut rail would stay silent
//! forever, because both ends avoid it.

mod explain;
mod relay;
#[cfg(test)]
mod tests;

pub use explain::{Candidate, Explanation, Loss, explain};
pub(crate) use relay::compare;
pub use relay::{CarrierInput, choose_carriers};

use crate::policy::Ranks;
use crate::stats::DropReason;
use muster_provider::NIDS_MAX;
use std::cmp::Reverse;

/// Pairs of a local rail and a remote NID, at most.
pub const PATHS_MAX: usize = NIDS_MAX * NIDS_MAX;

/// Copies of one message, at most. A net has as many home pairs as the larger of its numbers of rails and of
/// remote NIDs; over all nets, these are at most all rails and all remote NIDs together.
const COPIES_MAX: usize = 2 * NIDS_MAX;

/// Pairs that are tried for one message, at most.
pub(crate) const TRIES_MAX: usize = 8;

/// The state of a local rail when a message is sent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RailInput {
    /// The rail is bound to CPU partitions, and the message's memory is in none of them.
    pub foreign: bool,
    /// The distance of the message's memory from the rail, in the unit of the NUMA range.
    pub distance: u32,
    /// Sends that the rail can accept now; equal for all rails with ample capacity.
    pub credits: u32,
    /// Bytes queued on the rail; 0 if it has ample capacity.
    pub queued_bytes: u64,
}

/// Whether a path can be used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Standing {
    /// No fault is known.
    #[default]
    Usable,
    /// The peer is silent on the rail, or the rail or the path has failed.
    Avoided,
    /// The address is known to be wrong.
    Blocked,
}

/// The state of a path when a message is sent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PathInput {
    /// The local rail, as an index into the rails' inputs.
    pub rail: u8,
    /// The remote NID, as its index among the peer's NIDs.
    pub remote: u8,
    /// Whether it can be used.
    pub standing: Standing,
    /// How far the health of the path, or of its rail, is below the limit.
    pub shunned_by: u16,
    /// Rail and NID are paired by index; other pairs are spare.
    pub spare: bool,
    /// The path's ranks in the policy.
    pub ranks: Ranks,
    /// The last message used it, and the policy wants more messages in a row.
    pub in_run: bool,
    /// Sends to the remote NID that can be accepted now.
    pub credits: u32,
    /// Bytes queued to the remote NID.
    pub queued_bytes: u64,
    /// When it was last used: a number that grows with each message.
    pub turn: u64,
}

/// What one message requires of its path.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Request {
    /// For a response: the rail on which the request arrived, and the NID that it came from.
    pub back: Option<(u8, u8)>,
    /// Rails up to this distance from the memory count as equally near.
    pub numa_range: u32,
    /// Paths that were tried for this message.
    pub tried: Tried,
}

impl PathInput {
    pub(crate) fn is_usable(&self) -> bool {
        self.standing == Standing::Usable
    }
}

impl Request {
    /// Whether no path is preferred and none was tried.
    pub(crate) fn is_first(&self) -> bool {
        self.back.is_none() && self.tried == Tried::default()
    }
}

/// The paths that were tried for one message without success. It applies to that message only.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tried {
    paths: u64,
    rails: u8,
    remotes: u8,
}

impl Tried {
    /// Records a refused copy. A busy rail counts against the rail. Any other reason counts against the remote
    /// NID, on all rails, as long as there is an alternative.
    pub fn note(&mut self, choice: Choice, reason: DropReason) {
        self.paths |= 1 << choice.path;
        match reason {
            DropReason::RailBusy => self.rails |= 1 << choice.rail,
            _ => self.remotes |= 1 << choice.remote,
        }
    }

    /// The number of paths that were tried.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.paths.count_ones()
    }

    pub(crate) fn has_path(&self, path: usize) -> bool {
        self.paths & (1 << path) != 0
    }

    /// 0 to 2: how many of the pair's two interfaces were tried, in this or other pairs.
    fn of(&self, path: &PathInput) -> u16 {
        u16::from(self.rails >> path.rail & 1) + u16::from(self.remotes >> path.remote & 1)
    }
}

/// A chosen pair.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Choice {
    /// The path, as its index among the peer's paths.
    pub path: u8,
    /// Its local rail.
    pub rail: u8,
    /// Its remote NID.
    pub remote: u8,
}

/// A step of the choice, in the order of comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Step {
    /// The path works.
    Standing,
    /// Its rail and its remote interface were not tried for this message yet.
    Tried,
    /// The path by which the request came.
    Back,
    /// The policy's rules about nets.
    NetPolicy,
    /// Its rules about local interfaces.
    LocalPolicy,
    /// Its rules about pairs.
    PairPolicy,
    /// Rail and NID are paired by index.
    Home,
    /// Health is not below the limit.
    Health,
    /// The rail serves the CPU partition of the message's memory; for rails only.
    Partition,
    /// The rail is near the message's memory; for rails only.
    Distance,
    /// The path has more messages in a row to send.
    Run,
    /// Most credits.
    Credits,
    /// Fewest bytes queued.
    QueuedBytes,
    /// Used longest ago.
    Turn,
}

/// The steps that the keys of rails and NIDs share, in order of comparison; see [`shared`].
const SHARED: [Step; 8] = [
    Step::Standing,
    Step::Tried,
    Step::Back,
    Step::NetPolicy,
    Step::LocalPolicy,
    Step::PairPolicy,
    Step::Home,
    Step::Health,
];

fn shared(request: &Request, path: &PathInput) -> [u16; SHARED.len()] {
    let off_the_request_path = request.back.map_or(0, |(rail, remote)| {
        2 * u16::from(rail != path.rail) + u16::from(remote != path.remote)
    });
    [
        path.standing as u16,
        request.tried.of(path),
        off_the_request_path,
        path.ranks.net,
        path.ranks.local,
        path.ranks.pair,
        u16::from(path.spare),
        path.shunned_by,
    ]
}

/// The shared steps as one number, which compares like the list.
fn packed(request: &Request, path: &PathInput) -> u128 {
    let step = |all: u128, one: u16| all << u16::BITS | u128::from(one);
    shared(request, path).into_iter().fold(0, step)
}

/// The key of a rail: the best of its paths, then the rail's own values. Less is better.
type RailKey = (u128, (bool, u32), bool, Reverse<u32>, u64, u64);
const RAIL_STEPS: [Step; 6] = [
    Step::Partition,
    Step::Distance,
    Step::Run,
    Step::Credits,
    Step::QueuedBytes,
    Step::Turn,
];

/// The key of a remote NID, on the chosen rail. Less is better.
type RemoteKey = (u128, bool, u64, Reverse<u32>, u64);
const REMOTE_STEPS: [Step; 4] = [Step::Run, Step::QueuedBytes, Step::Credits, Step::Turn];

fn remote_key(packed: u128, path: &PathInput) -> RemoteKey {
    let credits = Reverse(path.credits);
    (packed, !path.in_run, path.queued_bytes, credits, path.turn)
}

/// The keys of all rails that have an untried path, by rail.
fn rail_keys(
    request: &Request,
    rails: &[RailInput],
    paths: &[PathInput],
) -> [Option<RailKey>; NIDS_MAX] {
    let mut keys: [Option<RailKey>; NIDS_MAX] = [None; NIDS_MAX];
    for (index, path) in paths.iter().enumerate() {
        if request.tried.has_path(index) {
            continue;
        }
        let Some(rail) = rails.get(usize::from(path.rail)) else {
            continue;
        };
        let packed = packed(request, path);
        match &mut keys[usize::from(path.rail)] {
            Some(key) => {
                key.0 = key.0.min(packed);
                key.2 &= !path.in_run;
                key.5 = key.5.max(path.turn);
            }
            none => {
                let distance = rail.distance.max(request.numa_range);
                let credits = Reverse(rail.credits);
                let queued_bytes = rail.queued_bytes;
                *none = Some((
                    packed,
                    (rail.foreign, distance),
                    !path.in_run,
                    credits,
                    queued_bytes,
                    path.turn,
                ));
            }
        }
    }
    keys
}

/// Chooses one path; none if all were tried.
#[must_use]
pub fn choose(request: &Request, rails: &[RailInput], paths: &[PathInput]) -> Option<Choice> {
    let keys = rail_keys(request, rails, paths);
    let by_key = |rail: &usize| keys[*rail];
    let rail = (0..NIDS_MAX)
        .filter(|rail| keys[*rail].is_some())
        .min_by_key(by_key)?;
    let of_rail = |(index, path): &(usize, &PathInput)| {
        usize::from(path.rail) == rail && !request.tried.has_path(*index)
    };
    let key = |(_, path): &(usize, &PathInput)| remote_key(packed(request, path), path);
    let (index, path) = paths.iter().enumerate().filter(of_rail).min_by_key(key)?;
    Some(Choice {
        path: index as u8,
        rail: path.rail,
        remote: path.remote,
    })
}

/// The paths of one message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Selection {
    choices: List<COPIES_MAX>,
    probes: List<TRIES_MAX>,
}

impl Default for Selection {
    fn default() -> Selection {
        Selection {
            choices: List::new(),
            probes: List::new(),
        }
    }
}

impl Selection {
    /// The paths that each get a copy of the message. Empty if the peer is unknown, or all paths were tried.
    #[must_use]
    pub fn choices(&self) -> &[Choice] {
        self.choices.as_slice()
    }

    /// The paths that each get one more copy, as a probe.
    #[must_use]
    pub fn probes(&self) -> &[Choice] {
        self.probes.as_slice()
    }

    pub(crate) fn add(&mut self, choice: Choice) {
        self.choices.push(choice);
    }

    pub(crate) fn add_probe(&mut self, choice: Choice) {
        self.probes.push(choice);
    }
}

/// A list of fixed capacity without an allocation; items beyond the capacity are dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct List<const N: usize> {
    items: [Choice; N],
    count: usize,
}

impl<const N: usize> List<N> {
    fn new() -> List<N> {
        List {
            items: [Choice::default(); N],
            count: 0,
        }
    }

    fn push(&mut self, item: Choice) {
        if self.count < N {
            self.items[self.count] = item;
            self.count += 1;
        }
    }

    fn as_slice(&self) -> &[Choice] {
        &self.items[..self.count]
    }
}
