//! The names of states and causes in answers.

use muster_protocol::{CauseKind, NodeState, RankState};

/// The name of a state of a node in answers.
pub fn state_word(state: NodeState) -> &'static str {
    match state {
        NodeState::Unknown => "unknown",
        NodeState::Alive => "alive",
        NodeState::Degraded => "degraded",
        NodeState::Suspect => "suspect",
        NodeState::Failed => "failed",
        NodeState::Left => "left",
    }
}

pub(super) fn rank_word(state: RankState) -> &'static str {
    match state {
        RankState::Unknown => "unknown",
        RankState::Alive => "alive",
        RankState::Hung => "hung",
        RankState::Failed => "failed",
        RankState::Left => "left",
    }
}

/// The name of a cause in answers.
pub fn cause_word(cause: CauseKind) -> &'static str {
    match cause {
        CauseKind::Joined => "joined",
        CauseKind::Silence => "silence on every rail",
        CauseKind::Unreachable => "unreachable",
        CauseKind::Unanswered => "no answer to a request",
        CauseKind::Told => "told",
        CauseKind::Announced => "announced",
        CauseKind::Refuted => "refuted",
        CauseKind::Superseded => "a newer life",
        CauseKind::Rails => "rails",
        CauseKind::Claimed => "claimed by others",
    }
}
