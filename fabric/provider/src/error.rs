//! Errors. Each message names the value, the reason and the remedy.

use crate::limits::NIDS_MAX;
use crate::net_kind::NetKind;

/// A text that is not a NID or not a list of NIDs.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NidError {
    /// The text has no `@`.
    #[error("{nid:?} is no NID: it has no net; write address@net, such as 192.0.2.7@udp0")]
    NoNet {
        /// The text.
        nid: String,
    },
    /// The text after `@` is not a net.
    #[error(
        "{net:?} is no net; nets are {} and a number, such as udp0",
        known_nets()
    )]
    UnknownNet {
        /// The text.
        net: String,
    },
    /// The text before the net is neither an address nor the name of an interface.
    #[error(
        "{nid:?} is no NID: what stands before the net is neither an IPv4 address nor the name of \
         an interface; write 192.0.2.7@udp0 or eth0@udp0"
    )]
    BadAddress {
        /// The text.
        nid: String,
    },
    /// The port is not a 16-bit number.
    #[error("{nid:?} is no NID: the port is not a number from 0 to 65535")]
    BadPort {
        /// The text.
        nid: String,
    },
    /// The text after the net is no address of a provider.
    #[error(
        "{nid:?} is no NID: what stands behind the net is not a provider's address in hexadecimal, or the net has no \
         such addresses; copy the NID from what \"muster rails\" prints on its node"
    )]
    BadName {
        /// The text.
        nid: String,
    },
    /// An IPv6 address.
    #[error("{nid:?} is an IPv6 address, which no net of this build can use; give an IPv4 address")]
    Ipv6 {
        /// The text.
        nid: String,
    },
    /// A list without NIDs.
    #[error("the list of NIDs is empty; give at least one, such as 192.0.2.7@udp0")]
    EmptyList,
    /// A list that is too long.
    #[error("the list has {given} NIDs; at most {NIDS_MAX} are allowed")]
    LongList {
        /// The number of NIDs given.
        given: usize,
    },
    /// A list that names a NID twice.
    #[error("the NID {nid} is in the list twice; name each interface once")]
    Twice {
        /// The NID.
        nid: String,
    },
}

/// A call into libfabric that failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{call} failed: {text} ({code})")]
pub struct CallError {
    /// libfabric's name of the function.
    pub call: &'static str,
    /// libfabric's error number, positive; below 256 it is an errno.
    pub code: i32,
    /// libfabric's text for that number; for a failed completion with the provider's own code and text.
    pub text: String,
}

fn known_nets() -> String {
    let words: Vec<&str> = NetKind::ALL.iter().map(|kind| kind.word()).collect();
    words.join(", ")
}
