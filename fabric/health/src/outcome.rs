//! The outcome of a send, or a change of an interface's state, and the interface that it counts for or against.
//!
//! The list follows the resiliency document for network interfaces; libfabric's error numbers are mapped to it.
//! An unknown number counts against the path to the peer, which is tried again soon.

use rustix::io::Errno;

const ENETDOWN: i32 = Errno::NETDOWN.raw_os_error();
const ENODEV: i32 = Errno::NODEV.raw_os_error();
const ENXIO: i32 = Errno::NXIO.raw_os_error();
const ENOBUFS: i32 = Errno::NOBUFS.raw_os_error();
const EAFNOSUPPORT: i32 = Errno::AFNOSUPPORT.raw_os_error();
const EDESTADDRREQ: i32 = Errno::DESTADDRREQ.raw_os_error();
const ENOTCONN: i32 = Errno::NOTCONN.raw_os_error();
const EPIPE: i32 = Errno::PIPE.raw_os_error();
const ECONNREFUSED: i32 = Errno::CONNREFUSED.raw_os_error();
const ECONNRESET: i32 = Errno::CONNRESET.raw_os_error();
const ECONNABORTED: i32 = Errno::CONNABORTED.raw_os_error();

/// An outcome that a provider, a link event or a missing acknowledgement shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// A send was accepted by the provider, or was acknowledged.
    Success,
    /// The local interface is down: it is not used until it is up, or a probe succeeds.
    LocalDown,
    /// The local interface is up again.
    LocalUp,
    /// A message waited too long in this node, or was never acknowledged.
    SendTimeout,
    /// The peer's address is wrong: it is not used until it is configured or discovered again.
    AddressError,
    /// The peer's interface cannot be reached now.
    Unreachable,
    /// A connection could not be established.
    ConnectError,
    /// The peer refused or closed a connection.
    Rejected,
}

/// The interface that an outcome counts against, before all pairs are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Blame {
    /// The local interface.
    Local,
    /// The remote interface.
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

    /// The outcome of an error number of libfabric; numbers below 256 are errno values. A connection that timed
    /// out (`ETIMEDOUT`) counts against the peer, which did not answer: this node had sent.
    #[must_use]
    pub fn of_code(code: i32) -> Outcome {
        match code {
            ENETDOWN | ENODEV | ENXIO => Outcome::LocalDown,
            ENOBUFS => Outcome::SendTimeout,
            EAFNOSUPPORT | EDESTADDRREQ => Outcome::AddressError,
            ENOTCONN | EPIPE => Outcome::ConnectError,
            ECONNREFUSED | ECONNRESET | ECONNABORTED => Outcome::Rejected,
            _ => Outcome::Unreachable,
        }
    }

    /// The interface that the outcome counts for or against.
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

    /// RS-01: a lack of local resources counts against the local interface; a missing answer counts against the
    /// remote one.
    #[test]
    fn a_missing_answer_does_not_count_against_the_local_rail() {
        for errno in [Errno::TIMEDOUT, Errno::CONNREFUSED, Errno::HOSTUNREACH] {
            let code = errno.raw_os_error();
            assert_eq!(Outcome::of_code(code).blame(), Blame::Remote, "{code}");
        }
        for errno in [Errno::NOBUFS, Errno::NETDOWN, Errno::NODEV] {
            let code = errno.raw_os_error();
            assert_eq!(Outcome::of_code(code).blame(), Blame::Local, "{code}");
        }
    }
}
