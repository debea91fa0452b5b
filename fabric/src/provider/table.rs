//! Which libfabric provider serves which net.
//!
//! A row, or several, a net and lane. A provider's name may change between versions of libfabric, so a
//! row holds a name for each version from which it is valid; a further net is a further row.
//!
//! Verbs' unreliable datagrams have no descriptor to wait for (`fi_verbs(7)`: wait objects "only for `FI_EP_MSG`"),
//! and beats need none: on a net `o2ud` they are such datagrams, and all else goes as on `o2ib`. Shared memory has
//! none either; its lanes have a bell.

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
    /// The same, and the peer is a process of this machine, which is woken by a bell.
    Local,
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

/// In libfabric 1.x who sends takes a lock in the receiver's memory: of one that was killed while it had it, it is
/// never free again, and `fi_send` waits for it without end. In this one nobody locks others' memory.
pub(crate) const SHM_SINCE: Version = (2, 5);

/// Shared memory, for processes of one machine.
const SHM: Row = Row {
    net: NetKind::Shm,
    names: &[((1, 0), "shm")],
    endpoint: sys::FI_EP_RDM,
    address_format: sys::FI_ADDR_STR,
    addressing: Addressing::Local,
    has_device: false,
};

/// Unreliable datagrams of RDMA devices, whose provider looks for addresses of its own kind.
const VERBS_UD: Row = Row {
    net: NetKind::O2ud,
    names: &[((1, 0), "verbs")],
    endpoint: sys::FI_EP_DGRAM,
    address_format: sys::FI_ADDR_IB_UD,
    addressing: Addressing::Service,
    has_device: true,
};

/// What goes beside those datagrams.
const O2UD: Row = Row {
    net: NetKind::O2ud,
    ..O2IB
};

/// Lanes of beats that are not as those of news.
const BEATS: &[Row] = &[VERBS_UD];

/// The datagram lanes of this build; of several rows for a net the first that the machine has.
const DATAGRAM: &[Row] = &[
    ip(NetKind::Udp, sys::FI_EP_DGRAM, &[((1, 0), "udp")]),
    ip(NetKind::Tcp, sys::FI_EP_RDM, TCP),
    ip(NetKind::Tcp, sys::FI_EP_RDM, RXM),
    O2IB,
    PSM3,
    PSM2,
    SHM,
    O2UD,
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
    SHM,
    O2UD,
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

/// The lane of beats beside this one of news.
pub(crate) fn beats(news: &'static Row) -> &'static Row {
    BEATS.iter().find(|row| row.net == news.net).unwrap_or(news)
}

/// The bulk lanes for this kind of net, best first; none if this build has none.
pub(crate) fn bulk(net: NetKind) -> Vec<&'static Row> {
    BULK.iter().filter(|row| row.net == net).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_provider_has_the_name_of_its_version() {
        let name = |version| bulk(NetKind::Udp)[0].provider(version);
        assert_eq!([(1, 17), (1, 18), (2, 5)].map(name), ["net", "tcp", "tcp"]);
        assert_eq!(datagram(NetKind::Udp)[0].provider((1, 17)), "udp");
        let news = datagram(NetKind::O2ud)[0];
        let names = [news, beats(news)].map(|row| row.provider((2, 5)));
        assert_eq!(names, ["verbs;ofi_rxm", "verbs"]);
        assert_eq!(
            beats(datagram(NetKind::O2ib)[0]).provider((2, 5)),
            "verbs;ofi_rxm"
        );
    }

    #[test]
    fn each_kind_of_net_has_its_lanes() {
        for kind in NetKind::ALL {
            assert!(
                !datagram(kind).is_empty() && !bulk(kind).is_empty(),
                "{kind:?}"
            );
        }
    }
}
