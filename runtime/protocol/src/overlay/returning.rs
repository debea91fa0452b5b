//! Coming back in the place of a life that broke off: what became of that one comes first.
//!
//! Intuition: somebody fainted, and wakes in his bed. Before he goes out as if nothing had been he asks at
//! the door, under the name that he had: "am I still on the list?" If they say that he was buried, those
//! who came with him have to be told, and he stays at home. If they greet him, he waits for a moment, as
//! some may still be about to speak of his death, and objects to that as anybody would; then he begins a
//! new life, in which nothing depends on what he has forgotten.
//!
//! Why under the old name: a new life is let in at once, and the one before it is forgotten with its
//! verdict. Those whom the agent serves live through both; their MPI was buried with the first.
//!
//! What is absent: an end to the question where nobody answers. Alone, the old life goes on.

use crate::config::Config;
use crate::identity::Version;
use crate::overlay::Overlay;
use crate::overlay::interface::Phase;
use crate::state::NodeState;
use crate::time::Instant;
use crate::wire::Message;

/// How far the question is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Returning {
    /// There is none, or it is answered.
    No,
    /// Nobody has said anything yet.
    Asks(u64),
    /// We were let in: the new life begins then.
    LetIn(Instant),
}

impl Returning {
    pub(super) fn of(config: &Config) -> Self {
        match config.former {
            Some(former) if former < config.incarnation && !config.mode.is_paper() => {
                Self::Asks(former)
            }
            _ => Self::No,
        }
    }

    /// The life under whose name is asked.
    pub(super) fn life(self) -> Option<u64> {
        match self {
            Self::Asks(former) => Some(former),
            Self::No | Self::LetIn(_) => None,
        }
    }

    pub(super) fn next_timer(self) -> Instant {
        match self {
            Self::LetIn(until) => until,
            Self::No | Self::Asks(_) => Instant::NEVER,
        }
    }
}

impl Overlay {
    /// Somebody whom we do not know says that we are held failed. That counts until we begin a new life, as an
    /// answer to what we have just sent, and whoever says it: we have no view of our own that could weigh more. Who
    /// has let us in may be somebody who is coming back himself.
    pub(super) fn hear_of_the_former(&mut self, message: &Message<'_>) {
        if let Message::Claim { claim, answers } = message
            && self.returning != Returning::No
            && claim.about.version.incarnation == self.own_version().incarnation
            && (claim.about.id, claim.about.state) == (self.own, NodeState::Failed)
            && self.is_fresh(*answers)
        {
            self.returning = Returning::No;
            self.outcast(None, &claim.about);
        }
    }

    /// A view has come, or the last worker has left one: whoever told it does not hold us failed.
    pub(super) fn let_in(&mut self) {
        if let Returning::Asks(_) = self.returning {
            let until = self.now.after(self.widened_deadline_us(0));
            self.returning = Returning::LetIn(until);
        }
    }

    /// Nobody spoke of our death, or not in a way that stands.
    pub(super) fn run_returning(&mut self) {
        if self.now < self.returning.next_timer() {
            return;
        }
        self.returning = Returning::No;
        let new = Version::first(self.config.incarnation);
        if self.phase == Phase::Running && self.own_version() < new {
            self.renew_own(new);
        }
    }
}
