//! Which libfabric provider serves which net.
//!
//! One row a net and lane. A provider's name may change between versions of libfabric, so a row
//! holds a name for each version from which it is valid; a further net is a further row.

use crate::net::NetKind;
use libfabric_sys as sys;

/// How a net is spoken to.
#[derive(Debug)]
pub(crate) struct Row {
    /// The net.
    pub(crate) net: NetKind,
    /// Names of the provider, each with the first version that knows it, oldest first.
    names: &'static [(Version, &'static str)],
    /// libfabric's endpoint type.
    pub(crate) endpoint: sys::fi_ep_type,
    /// libfabric's address format.
    pub(crate) address_format: u32,
}

/// A version of libfabric: major, minor.
pub(crate) type Version = (u32, u32);

/// The datagram lanes of this build.
const DATAGRAM: &[Row] = &[Row {
    net: NetKind::Udp,
    names: &[((1, 0), "udp")],
    endpoint: sys::FI_EP_DGRAM,
    address_format: sys::FI_SOCKADDR_IN,
}];

/// The bulk lanes: reliable datagrams over connections. Before 1.18 `tcp` had no such endpoints; of
/// the two that stood in for it `net` is the one whose peers do not share one pool of sends.
const BULK: &[Row] = &[
    Row {
        net: NetKind::Udp,
        names: &[((1, 0), "net"), ((1, 18), "tcp")],
        endpoint: sys::FI_EP_RDM,
        address_format: sys::FI_SOCKADDR_IN,
    },
    Row {
        net: NetKind::Tcp,
        names: &[((1, 0), "net"), ((1, 18), "tcp")],
        endpoint: sys::FI_EP_RDM,
        address_format: sys::FI_SOCKADDR_IN,
    },
    Row {
        net: NetKind::O2ib,
        names: &[((1, 0), "verbs;ofi_rxm")],
        endpoint: sys::FI_EP_RDM,
        address_format: sys::FI_SOCKADDR_IN,
    },
];

impl Row {
    /// The provider's name in this version of libfabric.
    pub(crate) fn provider(&self, version: Version) -> &'static str {
        let valid = self.names.iter().rev().find(|(since, _)| *since <= version);
        valid.unwrap_or(&self.names[0]).1
    }
}

/// The datagram lane of this kind of net, if this build has one.
pub(crate) fn datagram(net: NetKind) -> Option<&'static Row> {
    DATAGRAM.iter().find(|row| row.net == net)
}

/// The bulk lane of this kind of net, if this build has one.
pub(crate) fn bulk(net: NetKind) -> Option<&'static Row> {
    BULK.iter().find(|row| row.net == net)
}

/// The kinds of net that have a datagram lane, as a text for messages.
pub(crate) fn datagram_nets() -> String {
    let words: Vec<&str> = DATAGRAM.iter().map(|row| row.net.word()).collect();
    words.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_provider_has_the_name_of_its_version() {
        let name = |version| bulk(NetKind::Udp).unwrap().provider(version);
        assert_eq!([(1, 17), (1, 18), (2, 5)].map(name), ["net", "tcp", "tcp"]);
        assert_eq!(datagram(NetKind::Udp).unwrap().provider((1, 17)), "udp");
        assert!(bulk(NetKind::Shm).is_none());
    }
}
