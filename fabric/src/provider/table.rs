//! Which libfabric provider serves which net.
//!
//! A row, or several, a net and lane. A provider's name may change between versions of libfabric, so a
//! row holds a name for each version from which it is valid; a further net is a further row.
//!
//! Not here: verbs' unreliable datagrams, which have no descriptor to wait for (`fi_verbs(7)`: wait objects "only
//! for `FI_EP_MSG`") and addresses of their own kind (`FI_ADDR_IB_UD`), for messages that the reliable ones carry as
//! well; and `shm`, whose completion queues have none either (`fi_cq_open` with `FI_WAIT_FD` fails with ENOSYS in
//! 1.17 and 2.5: who waits would spin), for a node that talks to itself by the board.

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
    /// How a peer's address is had.
    pub(crate) addressing: Addressing,
    /// It drives a device, which may fail, and tells of that on an event queue.
    pub(crate) has_device: bool,
}

/// How a peer's address is had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Addressing {
    /// IPv4 address and port are the address.
    Ip,
    /// The provider finds its own kind of address from them: the node's and a service's number.
    Service,
}

/// A version of libfabric: major, minor.
pub(crate) type Version = (u32, u32);

/// Connections over TCP. Before 1.18 `tcp` had no such endpoints; of the two that stood in for it
/// `net` is the one whose peers do not share one pool of sends.
const TCP: &[(Version, &str)] = &[((1, 0), "net"), ((1, 18), "tcp")];

/// The same by way of another of libfabric's parts, for builds that lack what stands above.
const RXM: &[(Version, &str)] = &[((1, 0), "tcp;ofi_rxm")];

/// Reliable datagrams over the connections of RDMA devices; addresses are those of IP over InfiniBand.
const VERBS: &[(Version, &str)] = &[((1, 0), "verbs;ofi_rxm")];

const fn ip(net: NetKind, endpoint: sys::fi_ep_type, names: Names) -> Row {
    Row {
        net,
        names,
        endpoint,
        address_format: sys::FI_SOCKADDR_IN,
        addressing: Addressing::Ip,
        has_device: false,
    }
}

const fn psm(names: Names, address_format: u32) -> Row {
    Row {
        net: NetKind::Psm,
        names,
        endpoint: sys::FI_EP_RDM,
        address_format,
        addressing: Addressing::Service,
        has_device: true,
    }
}

type Names = &'static [(Version, &'static str)];

const O2IB: Row = Row {
    has_device: true,
    ..ip(NetKind::O2ib, sys::FI_EP_RDM, VERBS)
};
const PSM3: Row = psm(&[((1, 0), "psm3")], sys::FI_ADDR_PSMX3);
const PSM2: Row = psm(&[((1, 0), "psm2")], sys::FI_ADDR_PSMX2);

/// The datagram lanes of this build; of several rows for a net the first that the machine has.
const DATAGRAM: &[Row] = &[
    ip(NetKind::Udp, sys::FI_EP_DGRAM, &[((1, 0), "udp")]),
    ip(NetKind::Tcp, sys::FI_EP_RDM, TCP),
    ip(NetKind::Tcp, sys::FI_EP_RDM, RXM),
    O2IB,
    PSM3,
    PSM2,
];

/// The bulk lanes: reliable datagrams over connections.
const BULK: &[Row] = &[
    ip(NetKind::Udp, sys::FI_EP_RDM, TCP),
    ip(NetKind::Udp, sys::FI_EP_RDM, RXM),
    ip(NetKind::Tcp, sys::FI_EP_RDM, TCP),
    ip(NetKind::Tcp, sys::FI_EP_RDM, RXM),
    O2IB,
    PSM3,
    PSM2,
];

impl Row {
    /// The provider's name in this version of libfabric.
    pub(crate) fn provider(&self, version: Version) -> &'static str {
        let valid = self.names.iter().rev().find(|(since, _)| *since <= version);
        valid.unwrap_or(&self.names[0]).1
    }
}

/// The datagram lanes for this kind of net, best first; none if this build has none.
pub(crate) fn datagram(net: NetKind) -> Vec<&'static Row> {
    DATAGRAM.iter().filter(|row| row.net == net).collect()
}

/// The bulk lanes for this kind of net, best first; none if this build has none.
pub(crate) fn bulk(net: NetKind) -> Vec<&'static Row> {
    BULK.iter().filter(|row| row.net == net).collect()
}

/// The kinds of net that have a datagram lane, as a text for messages.
pub(crate) fn datagram_nets() -> String {
    let mut words: Vec<&str> = DATAGRAM.iter().map(|row| row.net.word()).collect();
    words.dedup();
    words.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_provider_has_the_name_of_its_version() {
        let name = |version| bulk(NetKind::Udp)[0].provider(version);
        assert_eq!([(1, 17), (1, 18), (2, 5)].map(name), ["net", "tcp", "tcp"]);
        assert_eq!(datagram(NetKind::Udp)[0].provider((1, 17)), "udp");
        assert!(bulk(NetKind::Shm).is_empty());
        assert_eq!(datagram_nets(), "udp, tcp, o2ib, psm");
    }
}
