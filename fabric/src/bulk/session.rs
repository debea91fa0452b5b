//! Sessions: a frame is for its receiver's session, of its sender's latest one, and comes once.
//!
//! A *session* is what one side remembers of the other: it begins when the peer becomes known, and ends when it is
//! forgotten or the process ends. Its number is greater than that of any session of this node before. A frame names
//! its sender's session and its receiver's, as far as that is known, and is counted in the sender's (a [`Stamp`]).
//! So a recording is worth nothing: it names a session that is over, or a number that has come.
//!
//! Who does not know the peer's session asks, and sends no message before it has the answer, which names the session
//! that asked. A frame for another session of ours may be a recording, or its sender does not know yet that we began
//! anew: nothing is taken from it, and it is answered like such a question. The answer is shorter than what it answers
//! or as long.
//!
//! The price is one round trip before the first message; and a node whose clock was set back behind its last session
//! is refused by those who remember that one.

use crate::window::Window;

/// What a frame says of sessions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Stamp {
    /// The sender's session.
    pub(crate) session: u64,
    /// The receiver's, as the sender knows it; 0: not at all.
    pub(crate) to: u64,
    /// Counted from 1 in the sender's session.
    pub(crate) number: u64,
}

/// What a stamp says of its frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It is new.
    New,
    /// It is new, and the first of a session of the peer's that knows nothing of those before.
    Began,
    /// It is for another session of ours, or for any: nothing of it is believed.
    Elsewhere,
    /// It has come already, or is of an earlier session of the peer's.
    Repeated,
}

/// Ours with one peer, and the peer's with us.
#[derive(Debug, Default)]
pub(crate) struct Session {
    own: u64,
    /// The latest that has named ours; 0: none has.
    theirs: u64,
    /// Frames that were stamped.
    stamped: u64,
    came: Window,
}

impl Session {
    /// A session of this number.
    pub(crate) fn new(own: u64) -> Session {
        Session {
            own,
            ..Session::default()
        }
    }

    pub(crate) fn own(&self) -> u64 {
        self.own
    }

    /// The peer's session; 0: not known.
    pub(crate) fn theirs(&self) -> u64 {
        self.theirs
    }

    /// For the next frame to a session of the peer's.
    pub(crate) fn stamp(&mut self, to: u64) -> Stamp {
        self.stamped += 1;
        Stamp {
            session: self.own,
            to,
            number: self.stamped,
        }
    }

    /// Takes the stamp of a frame that was proven.
    pub(crate) fn take(&mut self, stamp: Stamp) -> Standing {
        if stamp.session < self.theirs || stamp.session == 0 {
            return Standing::Repeated;
        }
        if stamp.to != self.own {
            return Standing::Elsewhere;
        }
        let began = stamp.session > self.theirs;
        if began {
            self.theirs = stamp.session;
            self.came = Window::default();
        }
        match (self.came.take(stamp.number), began) {
            (false, _) => Standing::Repeated,
            (true, true) => Standing::Began,
            (true, false) => Standing::New,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_taken_once_and_by_the_session_that_it_is_for() {
        let (mut one, mut other) = (Session::new(5), Session::new(9));
        let asked = one.stamp(one.theirs());
        assert_eq!(other.take(asked), Standing::Elsewhere);
        assert_eq!(other.theirs(), 0, "it may be a recording");
        let answer = other.stamp(asked.session);
        assert_eq!(one.take(answer), Standing::Began);
        assert_eq!(one.take(answer), Standing::Repeated);
        let first = one.stamp(one.theirs());
        assert_eq!(other.take(first), Standing::Began);
        let second = one.stamp(one.theirs());
        assert_eq!(other.take(second), Standing::New);
        assert_eq!(other.take(first), Standing::Repeated);

        // It forgets the other and begins anew; what it sent before is over, and a repetition is refused.
        let mut anew = Session::new(6);
        assert_eq!(anew.take(answer), Standing::Elsewhere);
        let asked = anew.stamp(other.own());
        assert_eq!(other.take(asked), Standing::Began);
        for old in [first, second, one.stamp(9)] {
            assert_eq!(other.take(old), Standing::Repeated);
        }
    }
}
