//! Restart inquiry: an agent that replaces one that broke off asks what became of the previous incarnation.
//!
//! The engine starts under the previous incarnation and joins with it. If the others hold that incarnation
//! failed, they say so: the engine reports `Outcast` and follows the policy. If they admit it, it waits for
//! one deadline, since a verdict may still be on its way, and refutes suspicions meanwhile. Then it begins
//! the new incarnation.
//!
//! A new incarnation would be admitted at once, and the verdict on the one before would be forgotten. The
//! ranks that the agent serves live through both, but their MPI has given them up with the first.
//!
//! Without an answer the inquiry does not end: a member that is alone keeps the previous incarnation.

use crate::config::Config;
use crate::identity::Version;
use crate::interface::Phase;
use crate::overlay::Overlay;
use crate::overlay::rules::Rules;
use crate::state::NodeState;
use crate::time::Instant;
use crate::wire::Message;

/// State of the inquiry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RestartInquiry {
    /// None is needed, or it is answered.
    None,
    /// No answer yet, about this incarnation.
    Pending(u64),
    /// Admitted: the new incarnation begins at this time.
    Admitted(Instant),
}

impl RestartInquiry {
    pub(super) fn of(config: &Config) -> Self {
        match config.previous_incarnation {
            Some(previous)
                if previous < config.incarnation && Rules::of(config.mode).inquires_restarts =>
            {
                Self::Pending(previous)
            }
            _ => Self::None,
        }
    }

    /// The incarnation that is asked about.
    pub(super) fn incarnation(self) -> Option<u64> {
        match self {
            Self::Pending(previous) => Some(previous),
            Self::None | Self::Admitted(_) => None,
        }
    }

    pub(super) fn next_timer(self) -> Instant {
        match self {
            Self::Admitted(until) => until,
            Self::None | Self::Pending(_) => Instant::NEVER,
        }
    }
}

impl Overlay {
    /// Takes a failure claim of an unknown sender, until the new incarnation begins. It must answer a
    /// recent frame. Any sender counts: the engine has no view of its own that could weigh more, and the
    /// member that admitted it may be restarting itself.
    pub(super) fn take_predecessor_claim(&mut self, message: &Message<'_>) {
        if let Message::FailureClaim {
            failure_claim,
            answers,
        } = message
            && self.join.restart_inquiry != RestartInquiry::None
            && failure_claim.about.version.incarnation == self.own_version().incarnation
            && (failure_claim.about.id, failure_claim.about.state) == (self.own, NodeState::Failed)
            && self.is_fresh(*answers)
        {
            self.join.restart_inquiry = RestartInquiry::None;
            self.outcast(None, &failure_claim.about);
        }
    }

    /// A view came, or the last worker left one: its sender does not hold the local member failed.
    pub(super) fn admit_restart(&mut self) {
        if let RestartInquiry::Pending(_) = self.join.restart_inquiry {
            let until = self.now.after(self.widened_deadline_us(0));
            self.join.restart_inquiry = RestartInquiry::Admitted(until);
        }
    }

    /// Begins the new incarnation when the waiting time is over.
    pub(super) fn run_restart_inquiry(&mut self) {
        if self.now < self.join.restart_inquiry.next_timer() {
            return;
        }
        self.join.restart_inquiry = RestartInquiry::None;
        let new = Version::first(self.config.incarnation);
        if self.phase == Phase::Running && self.own_version() < new {
            self.renew_own(new);
        }
    }
}
