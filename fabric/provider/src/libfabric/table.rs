//! Maps nets to libfabric providers.
//!
//! There are one or more rows for each net and lane. A provider's name may change between versions of
//! libfabric, so a row lists each name with the first version for which it is valid. To support a further net,
//! add a row.
//!
//! Verbs' unreliable datagrams have no descriptor to wait for (`fi_verbs(7)`: wait objects "only for
//! `FI_EP_MSG`"), and beats need none. On a net `o2ud`, beats are such datagrams, and all other messages go as
//! on `o2ib`. Shared memory has no descriptor either; its lanes have a doorbell. Nor have cxi, efa and opx
//! (`fi_cxi(7)`, `fi_efa(7)`, `fi_opx(7)`) in all versions: messages on their lanes wait until the host reads them.

use crate::net_kind::NetKind;
use libfabric_sys as sys;

/// How to communicate over a net.
#[derive(Debug)]
pub struct Row {
    /// The net.
    pub(crate) net: NetKind,
    /// Names of the provider, each with the first version that has it, oldest first.
    names: &'static [(Version, &'static str)],
    /// libfabric's endpoint type.
    pub(crate) endpoint: sys::fi_ep_type,
    /// libfabric's address format.
    pub(crate) address_format: u32,
    /// How a peer's address is obtained.
    pub addressing: Addressing,
}

/// How a peer's address is obtained.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Addressing {
    /// The address is the IPv4 address and port.
    Ip,
    /// The provider derives its own kind of address from the node's address and a service number, and the peer is a
    /// process of this machine, which a doorbell wakes.
    Local,
    /// Only the peer knows the provider's address. Its NID contains that of its lane of news, and the peer tells those
    /// of the other lanes. The endpoint is opened on the device of the rail's interface, at an address that the
    /// provider chooses.
    Named,
    /// Only the peer knows the provider's address, and tells it.
    Told,
}

/// A version of libfabric: major, minor.
pub type Version = (u32, u32);

/// Connections over TCP. Before 1.18, `tcp` had no such endpoints. Of its two substitutes, `net` is the one
/// whose peers do not share one pool of sends.
const TCP: &[(Version, &str)] = &[((1, 0), "net"), ((1, 18), "tcp")];

/// Connections over TCP by way of libfabric's `ofi_rxm` layer, for builds without the providers above.
const RXM: &[(Version, &str)] = &[((1, 0), "tcp;ofi_rxm")];

/// Reliable datagrams over the connections of RDMA devices, addressed by IP over InfiniBand.
const VERBS: &[(Version, &str)] = &[((1, 0), "verbs;ofi_rxm")];

const fn ip(net: NetKind, endpoint: sys::fi_ep_type, names: Names) -> Row {
    Row {
        net,
        names,
        endpoint,
        address_format: sys::FI_SOCKADDR_IN,
        addressing: Addressing::Ip,
    }
}

const fn named(net: NetKind, names: Names, address_format: u32) -> Row {
    Row {
        net,
        names,
        endpoint: sys::FI_EP_RDM,
        address_format,
        addressing: Addressing::Named,
    }
}

type Names = &'static [(Version, &'static str)];

const O2IB: Row = ip(NetKind::O2ib, sys::FI_EP_RDM, VERBS);
const PSM3: Row = named(NetKind::Psm, &[((1, 0), "psm3")], sys::FI_ADDR_PSMX3);
const PSM2: Row = named(NetKind::Psm, &[((1, 0), "psm2")], sys::FI_ADDR_PSMX2);
const CXI: Row = named(NetKind::Cxi, &[((1, 0), "cxi")], sys::FI_ADDR_CXI);
const EFA: Row = named(NetKind::Efa, &[((1, 0), "efa")], sys::FI_ADDR_EFA);
const OPX: Row = named(NetKind::Opx, &[((1, 0), "opx")], sys::FI_ADDR_OPX);

/// The first version whose shared memory provider is usable. In libfabric 1.x a sender takes a lock in the
/// receiver's memory. If it is killed while it holds the lock, the lock is never released, and `fi_send` waits
/// for it forever. From this version on, no process locks another process's memory.
pub const SHM_SINCE: Version = (2, 5);

/// Shared memory, for processes of one machine.
const SHM: Row = Row {
    net: NetKind::Shm,
    names: &[((1, 0), "shm")],
    endpoint: sys::FI_EP_RDM,
    address_format: sys::FI_ADDR_STR,
    addressing: Addressing::Local,
};

/// Unreliable datagrams of RDMA devices. libfabric's name server for their addresses knows an endpoint by its port
/// alone, so of two endpoints of one host it names the last one.
const VERBS_UD: Row = Row {
    net: NetKind::O2ud,
    names: &[((1, 0), "verbs")],
    endpoint: sys::FI_EP_DGRAM,
    address_format: sys::FI_ADDR_IB_UD,
    addressing: Addressing::Told,
};

/// News and bulk messages on a net whose beats are `VERBS_UD`.
const O2UD: Row = Row {
    net: NetKind::O2ud,
    ..O2IB
};

/// Lanes of beats, where they differ from the lanes of news.
const BEATS: &[Row] = &[VERBS_UD];

/// The datagram lanes of this build. Where a net has several rows, the first that this machine supports is
/// used.
const DATAGRAM: &[Row] = &[
    ip(NetKind::Udp, sys::FI_EP_DGRAM, &[((1, 0), "udp")]),
    ip(NetKind::Tcp, sys::FI_EP_RDM, TCP),
    ip(NetKind::Tcp, sys::FI_EP_RDM, RXM),
    O2IB,
    PSM3,
    PSM2,
    SHM,
    O2UD,
    CXI,
    EFA,
    OPX,
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
    CXI,
    EFA,
    OPX,
];

impl Row {
    /// The provider's name in this version of libfabric.
    #[must_use]
    pub fn provider(&self, version: Version) -> &'static str {
        let valid = self.names.iter().rev().find(|(since, _)| *since <= version);
        valid.unwrap_or(&self.names[0]).1
    }
}

/// The datagram lanes for this kind of net, best first; empty if this build has none.
#[must_use]
pub fn datagram(net: NetKind) -> Vec<&'static Row> {
    DATAGRAM.iter().filter(|row| row.net == net).collect()
}

/// The lane of beats that belongs to this lane of news.
#[must_use]
pub fn beats(news: &'static Row) -> &'static Row {
    BEATS.iter().find(|row| row.net == news.net).unwrap_or(news)
}

/// The bulk lanes for this kind of net, best first; empty if this build has none.
#[must_use]
pub fn bulk(net: NetKind) -> Vec<&'static Row> {
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
