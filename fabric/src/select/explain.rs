//! Explanation: why a pair was chosen, and why each of the others was not.
//!
//! It compares the same keys as the choice; the first key that differs from the winner's is the reason. So the
//! explanation cannot contradict the choice.

use super::{
    Choice, PathInput, RAIL_STEPS, REMOTE_STEPS, RailInput, RailKey, RemoteKey, Request, SHARED,
    Step, choose, packed, rail_keys, remote_key,
};

/// A candidate, and why it was not chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidate {
    /// The rail's index; for a NID, the path's.
    pub index: u8,
    /// None: it was chosen.
    pub lost: Option<Loss>,
}

/// Why a candidate was not chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// It was tried for this message, without success.
    Exhausted,
    /// Another was better at this step, and they were equal at all earlier steps.
    At(Step),
}

/// The explanation of a choice.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Explanation {
    /// The chosen pair.
    pub choice: Option<Choice>,
    /// All rails that lead to the peer.
    pub rails: Vec<Candidate>,
    /// The paths of the chosen rail, one for each of the peer's NIDs on its net.
    pub remotes: Vec<Candidate>,
}

/// Returns the choice of [`choose`], and its reasons.
#[must_use]
pub fn explain(request: &Request, rails: &[RailInput], paths: &[PathInput]) -> Explanation {
    let Some(choice) = choose(request, rails, paths) else {
        let mut exhausted: Vec<Candidate> = paths
            .iter()
            .map(|path| Candidate {
                index: path.rail,
                lost: Some(Loss::Exhausted),
            })
            .collect();
        exhausted.dedup();
        return Explanation {
            rails: exhausted,
            ..Explanation::default()
        };
    };
    let keys = rail_keys(request, rails, paths);
    let best = keys[usize::from(choice.rail)].expect("the rail that was chosen has a key");
    let mut explanation = Explanation {
        choice: Some(choice),
        ..Explanation::default()
    };
    for (index, key) in (0u8..).zip(&keys) {
        if !paths.iter().any(|path| path.rail == index) {
            continue;
        }
        let lost = match key {
            None => Some(Loss::Exhausted),
            Some(_) if index == choice.rail => None,
            Some(key) => Some(Loss::At(rail_step(&best, key))),
        };
        explanation.rails.push(Candidate { index, lost });
    }
    let key = |path: &PathInput| remote_key(packed(request, path), path);
    let best = key(&paths[usize::from(choice.path)]);
    for (index, path) in (0u8..)
        .zip(paths)
        .filter(|(_, path)| path.rail == choice.rail)
    {
        let lost = if index == choice.path {
            None
        } else if request.tried.has_path(usize::from(index)) {
            Some(Loss::Exhausted)
        } else {
            Some(Loss::At(remote_step(&best, &key(path))))
        };
        explanation.remotes.push(Candidate { index, lost });
    }
    explanation
}

fn rail_step(best: &RailKey, other: &RailKey) -> Step {
    if best.0 != other.0 {
        return shared_step(best.0, other.0);
    }
    let differs = [
        best.1.0 != other.1.0,
        best.1.1 != other.1.1,
        best.2 != other.2,
        best.3 != other.3,
        best.4 != other.4,
    ];
    step_at(&RAIL_STEPS, &differs)
}

fn remote_step(best: &RemoteKey, other: &RemoteKey) -> Step {
    if best.0 != other.0 {
        return shared_step(best.0, other.0);
    }
    let differs = [best.1 != other.1, best.2 != other.2, best.3 != other.3];
    step_at(&REMOTE_STEPS, &differs)
}

/// The first step that differs, else the last step.
fn step_at(steps: &[Step], differs: &[bool]) -> Step {
    let first = differs.iter().position(|differs| *differs);
    steps[first.unwrap_or(steps.len() - 1)]
}

/// The first of the packed numbers that differs: the highest bits were packed first.
fn shared_step(best: u128, other: u128) -> Step {
    SHARED[((best ^ other).leading_zeros() / u16::BITS) as usize]
}

impl Step {
    /// Why a candidate lost at this step.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Step::Standing => "it is silent or failed",
            Step::Tried => "its rail or its remote interface was tried for this message",
            Step::Back => "the request came over another path",
            Step::NetPolicy => "the policy prefers another net",
            Step::LocalPolicy => "the policy prefers another local interface",
            Step::PairPolicy => "the policy prefers another pair",
            Step::Home => "it is a spare pair, and a home pair works",
            Step::Health => "its health is below the limit",
            Step::Partition => "it is bound to other CPU partitions than the message's",
            Step::Distance => "it is farther from the message's memory",
            Step::Run => "another has more messages in a row to send",
            Step::Credits => "it has fewer credits",
            Step::QueuedBytes => "more bytes are queued on it",
            Step::Turn => "another was used longer ago",
        }
    }
}

impl Loss {
    /// Why a candidate was not taken.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Loss::Exhausted => "it was tried for this message",
            Loss::At(step) => step.words(),
        }
    }
}
