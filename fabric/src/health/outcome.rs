//! Outcomes: what became of a send, or of an interface, and whom that speaks against.
//!
//! The list is that of the resiliency document for network interfaces; libfabric's error numbers are
//! sorted into it. A number that is not known counts against the way to the peer, which is tried
//! again soon.

/// What a provider, a link event or a missing acknowledgement says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// A send was taken, or acknowledged.
    Success,
    /// The local interface is down: not to be used until it is up, or a probe succeeds.
    LocalDown,
    /// The local interface is up again.
    LocalUp,
    /// A message waited too long on this side, or was never acknowledged.
    SendTimeout,
    /// The peer's address is wrong: not to be used until it is configured or discovered anew.
    AddressError,
    /// The peer's interface cannot be reached now.
    Unreachable,
    /// A connection could not be made.
    ConnectError,
    /// A connection was refused or torn down by the other side.
    Rejected,
}

/// Whom an outcome speaks against, before all pairs are looked at together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Blame {
    /// The local interface.
    Local,
    /// The remote one.
    Remote,
}

impl Outcome {
    /// All outcomes.
    pub const ALL: [Outcome; 8] = [
        Outcome::Success,
        Outcome::LocalDown,
        Outcome::LocalUp,
        Outcome::SendTimeout,
        Outcome::AddressError,
        Outcome::Unreachable,
        Outcome::ConnectError,
        Outcome::Rejected,
    ];

    /// The outcome behind an error number of libfabric; below 256 that is an errno. A connection that
    /// timed out (`ETIMEDOUT`) says that its other end does not answer: this side had sent.
    #[must_use]
    pub fn of_code(code: i32) -> Outcome {
        match code {
            libc::ENETDOWN | libc::ENODEV | libc::ENXIO => Outcome::LocalDown,
            libc::ENOBUFS => Outcome::SendTimeout,
            libc::EAFNOSUPPORT | libc::EDESTADDRREQ => Outcome::AddressError,
            libc::ENOTCONN | libc::EPIPE => Outcome::ConnectError,
            libc::ECONNREFUSED | libc::ECONNRESET | libc::ECONNABORTED => Outcome::Rejected,
            _ => Outcome::Unreachable,
        }
    }

    /// Whom the outcome speaks against, or for.
    #[must_use]
    pub fn blame(self) -> Blame {
        match self {
            Outcome::LocalDown | Outcome::LocalUp | Outcome::SendTimeout => Blame::Local,
            Outcome::Success
            | Outcome::AddressError
            | Outcome::Unreachable
            | Outcome::ConnectError
            | Outcome::Rejected => Blame::Remote,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RS-01: what this side lacks speaks against this side; that a peer does not answer, against its own.
    #[test]
    fn a_peer_that_does_not_answer_is_not_held_against_the_rail() {
        for code in [libc::ETIMEDOUT, libc::ECONNREFUSED, libc::EHOSTUNREACH] {
            assert_eq!(Outcome::of_code(code).blame(), Blame::Remote, "{code}");
        }
        for code in [libc::ENOBUFS, libc::ENETDOWN, libc::ENODEV] {
            assert_eq!(Outcome::of_code(code).blame(), Blame::Local, "{code}");
        }
    }
}
