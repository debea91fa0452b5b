//! Selection: which local rail, and which remote NID, a message takes. A pure function.
//!
//! *Local NI first*: of the rails that lead to the peer, one is chosen; then, of the peer's NIDs that
//! it leads to, one. Each is the least of a list of keys, compared in a fixed order ([`Step`]): what
//! works, what was not tried for this message, the way that a question came, the policy, health, the
//! CPU partition that the rail serves and its distance from the memory, messages in a row, and then
//! weighted round robin: credits and queued bytes, and at last whose turn it is. So one comparison
//! decides, and [`explain`] can say which step decided against each of the others.
//!
//! Health is a preference, never a condition: when nothing works, all are tried. And a path that is
//! avoided is probed with a copy of a real message now and then, so that it can show that it works
//! again; both ends avoid a cut rail, so without probes it would stay silent for ever.

mod explain;
mod relay;
#[cfg(test)]
mod tests;

pub use explain::{Candidate, Explanation, Loss, explain};
pub(crate) use relay::compare;
pub use relay::{CarrierInput, choose_carriers};

use crate::nid::NIDS_MAX;
use crate::policy::Ranks;
use crate::stats::DropReason;
use std::cmp::Reverse;

/// Pairs of a local rail and a remote NID, at most.
pub const PATHS_MAX: usize = NIDS_MAX * NIDS_MAX;

/// Copies of one message, at most: on the nets that both are on, each rail and each remote NID is in
/// at most one home pair beyond the other side's number.
const COPIES_MAX: usize = 2 * NIDS_MAX;

/// Pairs that are tried for one message, at most.
pub(crate) const TRIES_MAX: usize = 8;

/// What is known about a local rail when a message is to be sent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RailInput {
    /// It is bound to CPU partitions, and the message's memory is in none of them.
    pub foreign: bool,
    /// How far the message's memory is from it; the unit is that of the NUMA range.
    pub distance: u32,
    /// Sends that it has room for; the same for all that have room in plenty.
    pub credits: u32,
    /// Bytes under way on it; 0 where there is room in plenty.
    pub queued_bytes: u64,
}

/// Whether a path can be used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Standing {
    /// Nothing speaks against it.
    #[default]
    Usable,
    /// The peer is silent on the rail, or the rail or the path has failed.
    Avoided,
    /// The address is known to be wrong.
    Blocked,
}

/// What is known about a path when a message is to be sent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PathInput {
    /// The local rail, an index into the rails' inputs.
    pub rail: u8,
    /// The remote NID, by its index among the peer's.
    pub remote: u8,
    /// Whether it can be used.
    pub standing: Standing,
    /// How far its health, or the rail's, is below the limit.
    pub shunned_by: u16,
    /// Rail and NID are paired by index; other pairs are spare.
    pub spare: bool,
    /// What the policy says.
    pub ranks: Ranks,
    /// The last message took it, and the policy wants more in a row.
    pub in_run: bool,
    /// Sends to the remote NID that there is room for.
    pub credits: u32,
    /// Bytes under way to the remote NID.
    pub queued_bytes: u64,
    /// When it was used last: a number that grows with each message.
    pub turn: u64,
}

/// What one message asks for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Request {
    /// A response: the rail that the request came by, and the NID that it came from.
    pub back: Option<(u8, u8)>,
    /// Rails up to this distance from the memory are as good as the nearest.
    pub numa_range: u32,
    /// What was tried for this message already.
    pub tried: Tried,
}

impl PathInput {
    pub(crate) fn is_usable(&self) -> bool {
        self.standing == Standing::Usable
    }
}

impl Request {
    /// Any way will do, and none was tried.
    pub(crate) fn is_first(&self) -> bool {
        self.back.is_none() && self.tried == Tried::default()
    }
}

/// What was tried for one message, and in vain. It holds for that message only.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tried {
    paths: u64,
    rails: u8,
    remotes: u8,
}

impl Tried {
    /// Notes that a copy was not taken. A rail that is too busy speaks against the rail; everything
    /// else against the remote NID, on all rails, before anything else is tried.
    pub fn note(&mut self, choice: Choice, reason: DropReason) {
        self.paths |= 1 << choice.path;
        match reason {
            DropReason::RailBusy => self.rails |= 1 << choice.rail,
            _ => self.remotes |= 1 << choice.remote,
        }
    }

    /// How much was tried.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.paths.count_ones()
    }

    pub(crate) fn has_path(&self, path: usize) -> bool {
        self.paths & (1 << path) != 0
    }

    /// 0 to 2: how much of the pair was tried with others.
    fn of(&self, path: &PathInput) -> u16 {
        u16::from(self.rails >> path.rail & 1) + u16::from(self.remotes >> path.remote & 1)
    }
}

/// A pair that was chosen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Choice {
    /// The path, by its index among the peer's.
    pub path: u8,
    /// Its local rail.
    pub rail: u8,
    /// Its remote NID.
    pub remote: u8,
}

/// A step of the choice, in the order in which they are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Step {
    /// Works.
    Standing,
    /// Its rail and its remote interface were not tried for this message yet.
    Tried,
    /// The way the request came.
    Back,
    /// The policy's rules about nets.
    NetPolicy,
    /// Its rules about local interfaces.
    LocalPolicy,
    /// Its rules about pairs.
    PairPolicy,
    /// Paired by index.
    Home,
    /// Not below the limit of health.
    Health,
    /// Serves the CPU partition that the message's memory is in; for rails only.
    Partition,
    /// Near the message's memory; for rails only.
    Distance,
    /// In the middle of its messages in a row.
    Run,
    /// Most credits.
    Credits,
    /// Least bytes under way.
    QueuedBytes,
    /// Used longest ago.
    Turn,
}

/// The steps that rail and NID share, as they are compared; see [`shared`].
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
    let off_the_way = request.back.map_or(0, |(rail, remote)| {
        2 * u16::from(rail != path.rail) + u16::from(remote != path.remote)
    });
    [
        path.standing as u16,
        request.tried.of(path),
        off_the_way,
        path.ranks.net,
        path.ranks.local,
        path.ranks.pair,
        u16::from(path.spare),
        path.shunned_by,
    ]
}

/// The same in one number, which compares like the list.
fn packed(request: &Request, path: &PathInput) -> u128 {
    let step = |all: u128, one: u16| all << u16::BITS | u128::from(one);
    shared(request, path).into_iter().fold(0, step)
}

/// A rail's place: the best of its paths, then what is its own. Less is better.
type RailKey = (u128, (bool, u32), bool, Reverse<u32>, u64, u64);
const RAIL_STEPS: [Step; 6] = [
    Step::Partition,
    Step::Distance,
    Step::Run,
    Step::Credits,
    Step::QueuedBytes,
    Step::Turn,
];

/// A remote NID's place, on a rail that was chosen. Less is better.
type RemoteKey = (u128, bool, u64, Reverse<u32>, u64);
const REMOTE_STEPS: [Step; 4] = [Step::Run, Step::QueuedBytes, Step::Credits, Step::Turn];

fn remote_key(packed: u128, path: &PathInput) -> RemoteKey {
    let credits = Reverse(path.credits);
    (packed, !path.in_run, path.queued_bytes, credits, path.turn)
}

/// The keys of all rails that have a path that was not tried, by rail.
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
                let rail_only = rail.queued_bytes;
                *none = Some((
                    packed,
                    (rail.foreign, distance),
                    !path.in_run,
                    credits,
                    rail_only,
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
    /// Send a copy along each of these. Empty if the peer is unknown, or everything was tried.
    #[must_use]
    pub fn choices(&self) -> &[Choice] {
        self.choices.as_slice()
    }

    /// Send one more copy along each of these, as a probe.
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

/// A short list that needs no memory of its own; what does not fit is left out.
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
