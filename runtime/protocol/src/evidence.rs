//! Who said what about a member, and when: the last sixteen observations of each.
//!
//! Evidence explains a verdict (`muster why`); it is not what the verdict is computed from, so
//! that forgetting the oldest can never change a decision.

use crate::event::CauseKind;
use crate::identity::{MemberId, Version};
use crate::time::Instant;

/// Observations kept for each member.
pub const EVIDENCE_MAX: usize = 16;

/// What was observed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObservationKind {
    /// It entered the view.
    Joined,
    /// It was silent and is being probed over all rails and through helpers.
    Probed,
    /// A helper found it alive.
    Vouched,
    /// A helper found it silent too.
    FoundSilent,
    /// A report against it, with the reporter's kind of evidence.
    Reported(CauseKind),
    /// It raised its version.
    Refuted,
    /// It was declared failed.
    Failed(CauseKind),
    /// It said goodbye.
    Left,
    /// The fabric reported its rails silent, some of them.
    Degraded,
    /// The fabric reported all its rails well.
    Recovered,
    /// The fabric reported it unreachable.
    Unreachable,
}

/// One observation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Observation {
    /// When it came to us.
    pub at: Instant,
    /// Who made it.
    pub by: MemberId,
    /// About which version of the member.
    pub version: Version,
    /// What it was.
    pub kind: ObservationKind,
}

/// A member's observations, oldest first. Nearly all members have one, which needs no room apart.
#[derive(Clone, Debug, Default)]
pub(crate) enum Evidence {
    #[default]
    None,
    One(Observation),
    More(Vec<Observation>),
}

impl Evidence {
    /// Adds one; the same observation by the same member again only updates its time.
    pub(crate) fn push(&mut self, observation: Observation) {
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

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Observation> {
        let observations = match self {
            Self::None => &[],
            Self::One(observation) => core::slice::from_ref(observation),
            Self::More(observations) => observations,
        };
        observations.iter()
    }
}
