//! Evidence: the last sixteen observations about each member.
//!
//! Evidence explains a verdict (`muster why`). Verdicts are not computed from it, so dropping the oldest
//! never changes a decision.

use crate::cause::CauseKind;
use crate::identity::{MemberId, Version};
use crate::time::Instant;

/// Most observations kept for each member.
pub const EVIDENCE_MAX: usize = 16;

/// What was observed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObservationKind {
    /// It entered the view.
    Joined,
    /// It was silent, and is being probed over all rails and by other members.
    Probed,
    /// A prober found it alive.
    Vouched,
    /// A prober found it silent.
    FoundSilent,
    /// A report against it, with its cause.
    Reported(CauseKind),
    /// It raised its version.
    Refuted,
    /// It was declared failed.
    Failed(CauseKind),
    /// It left.
    Left,
    /// The fabric reported some of its rails silent.
    Degraded,
    /// The fabric reported all its rails working.
    Recovered,
    /// The fabric reported it unreachable.
    Unreachable,
    /// Its node said that its process has ended.
    Ended,
}

/// One observation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Observation {
    /// When it came to the local member.
    pub at: Instant,
    /// The member that made it.
    pub by: MemberId,
    /// The version of the observed member.
    pub version: Version,
    /// What was observed.
    pub kind: ObservationKind,
}

/// The observations about a member, oldest first. Most members have one, which needs no allocation.
#[derive(Clone, Debug, Default)]
pub enum Evidence {
    /// No observation.
    #[default]
    None,
    /// One observation.
    One(Observation),
    /// Several observations.
    More(Vec<Observation>),
}

impl Evidence {
    /// Adds an observation; an equal one by the same member only updates the time.
    pub fn push(&mut self, observation: Observation) {
        if let Some(last) = self.as_mut_slice().last_mut()
            && (last.by, last.version, last.kind)
                == (observation.by, observation.version, observation.kind)
        {
            last.at = observation.at;
            return;
        }
        match self {
            Self::None => *self = Self::One(observation),
            Self::One(first) => *self = Self::More(vec![*first, observation]),
            Self::More(observations) => {
                if observations.len() == EVIDENCE_MAX {
                    observations.remove(0);
                }
                observations.push(observation);
            }
        }
    }

    fn as_mut_slice(&mut self) -> &mut [Observation] {
        match self {
            Self::None => &mut [],
            Self::One(observation) => core::slice::from_mut(observation),
            Self::More(observations) => observations,
        }
    }

    /// The observations, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &Observation> {
        let observations = match self {
            Self::None => &[],
            Self::One(observation) => core::slice::from_ref(observation),
            Self::More(observations) => observations,
        };
        observations.iter()
    }
}
