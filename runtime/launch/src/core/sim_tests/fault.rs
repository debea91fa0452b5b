//! Faults that are planted at the boundary of a core, to show that the checkers find such faults.

use crate::core::Core;
use crate::core::messages::Input;
use crate::core::node_status::NodeStatus;

/// A fault of a launcher.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// It does not replicate the contributions of lost nodes.
    NoReplication,
    /// It does not read the decisions of others.
    IgnoredDecisions,
    /// It takes for granted that the others know of every loss.
    AssumedKnowledge,
    /// It is never told of losses, and waits for the lost.
    IgnoredLosses,
    /// It takes each contribution of its ranks twice.
    DoubleContribution,
    /// It reports each end of a rank as a success.
    WrongStatus,
    /// It states that it knows of names before it does.
    PrematureNames,
}

pub(super) const ALL: [Fault; 7] = [
    Fault::NoReplication,
    Fault::IgnoredDecisions,
    Fault::AssumedKnowledge,
    Fault::IgnoredLosses,
    Fault::DoubleContribution,
    Fault::WrongStatus,
    Fault::PrematureNames,
];

impl Fault {
    /// Changes what a launcher publishes.
    pub(super) fn change_status(self, status: &mut NodeStatus, nodes: usize) {
        match self {
            Self::NoReplication => {
                for fence in &mut status.fences {
                    fence.replicated.clear();
                }
            }
            Self::PrematureNames => {
                for node in 0..nodes {
                    status.noticed.insert(node, 1000);
                }
            }
            _ => {}
        }
    }

    /// Changes an input; returns how often it arrives.
    pub(super) fn change_input(self, input: &mut Input, lost: &[usize]) -> usize {
        match (self, input) {
            (Self::IgnoredDecisions, Input::Status(_, status)) => {
                for fence in &mut status.fences {
                    // Only the deciding launcher itself knows its decision.
                    fence.decision = None;
                }
                1
            }
            (Self::AssumedKnowledge, Input::Status(_, status)) => {
                add_lost(status, lost);
                1
            }
            (Self::IgnoredLosses, Input::Gone(_)) => 0,
            (Self::DoubleContribution, Input::Enter(_)) => 2,
            (Self::WrongStatus, Input::RankEnded(end)) => {
                end.status = 0;
                1
            }
            _ => 1,
        }
    }

    /// Changes what a launcher knows of the others when it is told of a loss.
    pub(super) fn change_view(self, core: &mut Core, lost: &[usize]) {
        if self == Self::AssumedKnowledge {
            let statuses: Vec<(usize, NodeStatus)> = core
                .view
                .others()
                .map(|(node, status)| (node, status.clone()))
                .collect();
            for (node, mut status) in statuses {
                add_lost(&mut status, lost);
                core.view.take(node, status);
            }
        }
    }
}

fn add_lost(status: &mut NodeStatus, lost: &[usize]) {
    let lost = lost.iter().map(|node| *node as u32);
    status.gone = status.gone.iter().chain(lost).collect();
}
