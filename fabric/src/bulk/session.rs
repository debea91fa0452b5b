//! Sessions: a frame is valid once, in its receiver's session and in its sender's latest session.
//!
//! A *session* is the state that one side keeps about the other. It begins when the peer becomes known, and ends when
//! the peer is forgotten or the process ends. Its number is greater than that of any earlier session of this node. A
//! frame names its sender's session, and its receiver's if that is known, and is numbered within the sender's session
//! (a [`Stamp`]). So a recorded frame is useless: its session is over, or its number has arrived before.
//!
//! A sender that does not know the peer's session sends a probe, and sends no message before the answer, which names
//! the prober's session. A frame for another session of this node may be a recording, or its sender does not know yet
//! that this node has begun a new session. Nothing is taken from it, and it is answered like a probe. The answer is
//! not longer than the frame that it answers.
//!
//! The cost is one round trip before the first message. A node whose clock was set back to before its last session is
//! refused by peers that remember that session.

use crate::window::Window;

/// The session fields of a frame.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Stamp {
    /// The sender's session.
    pub(crate) session: u64,
    /// The receiver's session, as far as the sender knows it; 0 if not.
    pub(crate) to: u64,
    /// The frame's number, counted from 1 in the sender's session.
    pub(crate) number: u64,
}

/// What a stamp proves about its frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It is new.
    New,
    /// It is new, and the first of a new session of the peer, which has no state of earlier sessions.
    Began,
    /// It is for another session of this node, or for none. Nothing is taken from it.
    Elsewhere,
    /// It has arrived before, or is of an earlier session of the peer.
    Repeated,
}

/// The session of this node with one peer, and the peer's session with this node.
#[derive(Debug, Default)]
pub(crate) struct Session {
    own: u64,
    /// The latest session of the peer that has named ours; 0 if there is none.
    theirs: u64,
    /// The number of frames that were stamped.
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

    /// The peer's session; 0 if not known.
    pub(crate) fn theirs(&self) -> u64 {
        self.theirs
    }

    /// The stamp of the next frame, for this session of the peer.
    pub(crate) fn stamp(&mut self, to: u64) -> Stamp {
        self.stamped += 1;
        Stamp {
            session: self.own,
            to,
            number: self.stamped,
        }
    }

    /// Takes the stamp of a frame whose tag is valid.
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
    fn a_frame_is_valid_once_and_only_in_its_session() {
        let (mut one, mut other) = (Session::new(5), Session::new(9));
        let probe = one.stamp(one.theirs());
        assert_eq!(other.take(probe), Standing::Elsewhere);
        assert_eq!(other.theirs(), 0, "it may be a recording");
        let answer = other.stamp(probe.session);
        assert_eq!(one.take(answer), Standing::Began);
        assert_eq!(one.take(answer), Standing::Repeated);
        let first = one.stamp(one.theirs());
        assert_eq!(other.take(first), Standing::Began);
        let second = one.stamp(one.theirs());
        assert_eq!(other.take(second), Standing::New);
        assert_eq!(other.take(first), Standing::Repeated);

        // This side forgets the peer and begins a new session. Frames of its old session are refused as repeated.
        let mut anew = Session::new(6);
        assert_eq!(anew.take(answer), Standing::Elsewhere);
        let probe = anew.stamp(other.own());
        assert_eq!(other.take(probe), Standing::Began);
        for old in [first, second, one.stamp(9)] {
            assert_eq!(other.take(old), Standing::Repeated);
        }
    }
}
