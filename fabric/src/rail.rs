//! Rails: the local interfaces that messages go out on and come in on.
//!
//! Opening a rail turns what the configuration says (an address or an interface, a port or none)
//! into an open lane with a full NID, or into an error that says what to write instead.

use crate::config::FabricConfig;
use crate::error::{CallError, OpenError};
use crate::health::SendHealth;
use crate::nid::{Address, Nid};
use crate::peer::PeerHandle;
use crate::provider::{Interface, Lane, Libfabric, Limits, table};
use crate::stats::Counters;
use std::net::{Ipv4Addr, SocketAddrV4};

/// Whether a rail can be sent on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RailState {
    /// The provider takes messages.
    Up,
    /// The provider refused several messages in a row; other rails carry the traffic.
    Failing,
}

/// A rail as its owner sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RailView {
    /// Its NID, with the address and the port that it is bound to.
    pub nid: Nid,
    /// The interface, if libfabric names one: not for further addresses of an interface.
    pub interface: Option<String>,
    /// libfabric's provider.
    pub provider: &'static str,
    /// Longest message, bytes.
    pub mtu: usize,
    /// Whether it can be sent on.
    pub state: RailState,
    /// What went over it.
    pub counters: Counters,
}

/// An open rail.
#[derive(Debug)]
pub(crate) struct Rail {
    pub(crate) nid: Nid,
    pub(crate) lane: Lane,
    health: SendHealth,
    /// Who the last refused send was to.
    refused_last: Option<PeerHandle>,
    pub(crate) counters: Counters,
    interface: Option<String>,
    provider: &'static str,
}

impl Rail {
    /// Opens the rail that the configuration names.
    pub(crate) fn open(config: &FabricConfig, nid: &Nid) -> Result<Rail, OpenError> {
        let library = &config.library;
        let row = table::datagram(nid.net.kind).ok_or_else(|| OpenError::NoDatagramLane {
            nid: nid.to_string(),
            net: nid.net.to_string(),
            known: table::datagram_nets(),
        })?;
        let source = SocketAddrV4::new(resolve(library, nid)?, nid.port);
        let limits = Limits {
            receives: config.receive_buffers,
            sends: config.send_slots,
            peers: config.peers_max,
            inject: config.inject,
        };
        let provider = row.provider(library.version());
        let refused = |reason| explain(library, nid, source, provider, reason);
        let lane = Lane::open(library, row, source, limits).map_err(refused)?;
        let bound = lane.local_address().map_err(refused)?;
        Ok(Rail {
            nid: Nid {
                address: Address::Ip(*bound.ip()),
                port: bound.port(),
                net: nid.net,
            },
            lane,
            health: SendHealth::default(),
            refused_last: None,
            counters: Counters::default(),
            interface: interface_of(library, *bound.ip()),
            provider,
        })
    }

    pub(crate) fn health(&self) -> &SendHealth {
        &self.health
    }

    /// Notes a refused send; true if the rail has become failing by it. Errors to one peer alone
    /// speak against that peer's address, not against the rail, unless there is no other peer.
    pub(crate) fn refused(&mut self, now_us: u64, peer: Option<PeerHandle>, peers: usize) -> bool {
        let same_again = peer.is_some() && peer == self.refused_last && peers > 1;
        self.refused_last = peer;
        if same_again && !self.health.is_failing() {
            return false;
        }
        self.health.failed(now_us)
    }

    /// Notes a send that was taken; true if the rail was failing.
    pub(crate) fn taken(&mut self) -> bool {
        self.refused_last = None;
        self.health.succeeded()
    }

    pub(crate) fn view(&self) -> RailView {
        let failing = self.health.is_failing();
        RailView {
            nid: self.nid.clone(),
            interface: self.interface.clone(),
            provider: self.provider,
            mtu: self.lane.message_max(),
            state: if failing {
                RailState::Failing
            } else {
                RailState::Up
            },
            counters: self.counters.clone(),
        }
    }
}

/// Refuses two rails that are one interface, before anything is opened.
pub(crate) fn check_distinct(library: &Libfabric, nids: &[Nid]) -> Result<(), OpenError> {
    let mut seen: Vec<(&Nid, Ipv4Addr)> = Vec::new();
    for nid in nids {
        let address = resolve(library, nid)?;
        if let Some((first, _)) = seen.iter().find(|(_, other)| *other == address) {
            return Err(OpenError::SameInterface {
                first: first.to_string(),
                second: nid.to_string(),
                address: address.to_string(),
            });
        }
        seen.push((nid, address));
    }
    Ok(())
}

/// The address of a rail as it was configured.
fn resolve(library: &Libfabric, nid: &Nid) -> Result<Ipv4Addr, OpenError> {
    let name = match &nid.address {
        Address::Ip(address) => return Ok(*address),
        Address::Interface(name) => name,
    };
    let interfaces = library.interfaces();
    let found = interfaces.iter().find(|interface| interface.name == *name);
    found
        .map(|interface| interface.address)
        .ok_or_else(|| OpenError::UnknownInterface {
            nid: nid.to_string(),
            interface: name.clone(),
            known: library.known_interfaces(),
        })
}

fn interface_of(library: &Libfabric, address: Ipv4Addr) -> Option<String> {
    let has = |interface: &Interface| {
        let both_loopback = interface.address.is_loopback() && address.is_loopback();
        interface.address == address || both_loopback
    };
    library
        .interfaces()
        .into_iter()
        .find(has)
        .map(|interface| interface.name)
}

/// Says what a refusal of libfabric means for the one who configured the rail.
fn explain(
    library: &Libfabric,
    nid: &Nid,
    source: SocketAddrV4,
    provider: &'static str,
    reason: CallError,
) -> OpenError {
    let nid = nid.to_string();
    let address = source.ip().to_string();
    match (reason.call, reason.code) {
        ("fi_getinfo", _) => OpenError::NoProvider {
            nid,
            provider,
            version: library.version_text(),
            reason,
        },
        (_, libc::EADDRNOTAVAIL) => OpenError::ForeignAddress {
            nid,
            address,
            known: library.known_interfaces(),
        },
        (_, libc::EADDRINUSE) => OpenError::PortInUse {
            nid,
            address,
            port: source.port(),
        },
        (_, libc::EACCES) => OpenError::PortForbidden {
            nid,
            port: source.port(),
        },
        _ => OpenError::Provider { nid, reason },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_of_libfabric_is_explained() {
        let library = crate::load().expect("libfabric is installed where tests run");
        let nid: Nid = "192.0.2.7:80@udp".parse().unwrap();
        let text = |code| {
            let reason = library.error("fi_endpoint", code);
            let source = nid.socket_address().unwrap();
            explain(&library, &nid, source, "udp", reason).to_string()
        };
        assert_eq!(
            text(-i64::from(libc::EACCES)),
            "rail 192.0.2.7:80@udp0: this user may not use port 80; give a port above 1023"
        );
        assert_eq!(
            text(-i64::from(libc::ENOMEM)),
            "rail 192.0.2.7:80@udp0: fi_endpoint failed: Cannot allocate memory (12)"
        );
    }
}
