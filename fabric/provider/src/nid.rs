//! NIDs: the names of network interfaces, `address@net`.
//!
//! `192.0.2.7:7741@udp0` is an address, a port and a net. The port may be left out (then it is [`PORT_DEFAULT`]) and
//! may be 0 on a local rail (then the system chooses one). In the configuration of a local rail the address may also
//! be the name of an interface, `eth0@udp0`, which is resolved when the rail is opened. A peer cannot be reached by
//! such a name.
//!
//! A rail takes at most four ports: P, the NID's own, for news, and P+1 for beats ([`BEAT_PORT_OFFSET`]). The text
//! contains only P. On udp nets the same numbers are used as TCP ports: P for the bulk lane, P+1 for the liveness
//! connection. On other nets the bulk lane has P+2, and the liveness connection TCP port P+3.
//!
//! On nets whose providers have addresses of their own kind (`cxi`, `efa`, `opx`, `psm`), the IP address and the port
//! only identify the interface. Messages are sent to the provider's address, which follows the net in hexadecimal:
//! `192.0.2.7@cxi0/0a00001f`. Only the node itself knows it, and it changes each time the rail is opened.
//!
//! The text form is also the wire form: members exchange what [`NidList`] displays, and it parses to an equal list.

use crate::endpoint_name::EndpointName;
use crate::error::NidError;
use crate::limits::NIDS_MAX;
use crate::net::Net;
use crate::net_kind::NetKind;
use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::str::FromStr;

/// The port of a NID whose text has no port.
pub const PORT_DEFAULT: u16 = 7741;

/// The port for beats is the NID's port plus this offset. Beats have a lane of their own, so that their arrival need
/// not wake the host.
pub const BEAT_PORT_OFFSET: u16 = 1;

/// Longest name of a network interface (the kernel's IFNAMSIZ, without its terminator).
const INTERFACE_NAME_MAX: usize = 15;

/// The part of a NID before the port.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Address {
    /// An address that can be sent to.
    Ip(Ipv4Addr),
    /// A local interface, whose address is looked up when the rail is opened.
    Interface(String),
}

/// The name of one network interface on one net.
///
/// NIDs are compared without the provider's address: they are equal if they name the same interface, whatever address
/// its rail has had since it was opened last.
#[derive(Debug, Clone)]
pub struct Nid {
    /// Address, or the name of a local interface.
    pub address: Address,
    /// Port, for nets that have ports; 0 lets the system choose.
    pub port: u16,
    /// The net that the interface is on.
    pub net: Net,
    /// The provider's address, on nets whose addresses are of its own kind; none if it is not known.
    pub name: Option<EndpointName>,
}

impl Nid {
    /// A NID with an IP address, without an address of the provider.
    #[must_use]
    pub fn of(address: SocketAddrV4, net: Net) -> Nid {
        Nid {
            address: Address::Ip(*address.ip()),
            port: address.port(),
            net,
            name: None,
        }
    }

    /// What NIDs are compared by.
    fn key(&self) -> (&Address, u16, Net) {
        (&self.address, self.port, self.net)
    }

    /// The address to send to, if this NID holds one.
    #[must_use]
    pub fn socket_address(&self) -> Option<SocketAddrV4> {
        match self.address {
            Address::Ip(ip) => Some(SocketAddrV4::new(ip, self.port)),
            Address::Interface(_) => None,
        }
    }

    /// Whether both name one interface on one net, whatever their ports are.
    #[must_use]
    pub fn is_same_interface(&self, other: &Nid) -> bool {
        (&self.address, self.net) == (&other.address, other.net)
    }

    /// The port for beats; none if the port is 0 or 65535.
    #[must_use]
    pub fn beat_port(&self) -> Option<u16> {
        match self.port {
            0 => None,
            port => port.checked_add(BEAT_PORT_OFFSET),
        }
    }

    /// The address of its bulk lane. The port is the NID's own on udp nets, where TCP does not use that port
    /// otherwise; else the port after the port for beats.
    #[must_use]
    pub fn bulk_address(&self) -> Option<SocketAddrV4> {
        let port = match self.net.kind {
            NetKind::Udp => self.port,
            _ => self.beat_port()?.checked_add(1)?,
        };
        let address = self.socket_address();
        let ip = address.map_or(Ipv4Addr::UNSPECIFIED, |address| *address.ip());
        Some(SocketAddrV4::new(ip, port))
    }

    /// The TCP address of its liveness connection. The port is the port for beats on udp nets, and the port after
    /// that of the bulk lane on other nets. None within one machine (shm).
    #[must_use]
    pub fn liveness_address(&self) -> Option<SocketAddrV4> {
        let offset = match self.net.kind {
            NetKind::Udp => 0,
            NetKind::Shm => return None,
            _ => 2,
        };
        let address = self.socket_address()?;
        let port = self.beat_port()?.checked_add(offset)?;
        Some(SocketAddrV4::new(*address.ip(), port))
    }
}

impl PartialEq for Nid {
    fn eq(&self, other: &Nid) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Nid {}

impl PartialOrd for Nid {
    fn partial_cmp(&self, other: &Nid) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Nid {
    fn cmp(&self, other: &Nid) -> Ordering {
        self.key().cmp(&other.key())
    }
}

impl Hash for Nid {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key().hash(state);
    }
}

impl fmt::Display for Nid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.address {
            Address::Ip(ip) => write!(f, "{ip}")?,
            Address::Interface(name) => f.write_str(name)?,
        }
        if self.port != PORT_DEFAULT {
            write!(f, ":{}", self.port)?;
        }
        write!(f, "@{}", self.net)?;
        self.name.iter().try_for_each(|name| write!(f, "/{name}"))
    }
}

impl FromStr for Nid {
    type Err = NidError;

    fn from_str(text: &str) -> Result<Nid, NidError> {
        let nid = || text.to_owned();
        let (before, net) = text
            .rsplit_once('@')
            .ok_or_else(|| NidError::NoNet { nid: nid() })?;
        if before.starts_with('[') || before.matches(':').count() > 1 {
            return Err(NidError::Ipv6 { nid: nid() });
        }
        let (address, port) = match before.split_once(':') {
            None => (before, PORT_DEFAULT),
            Some((address, port)) => (
                address,
                parse_port(port).ok_or_else(|| NidError::BadPort { nid: nid() })?,
            ),
        };
        let address = parse_address(address).ok_or_else(|| NidError::BadAddress { nid: nid() })?;
        let (net, name) = match net.split_once('/') {
            None => (net, None),
            Some((net, name)) => (net, Some(name)),
        };
        let net: Net = net.parse()?;
        let read = |name| EndpointName::parse(name).filter(|_| net.kind.has_names());
        let name = match name.map(read) {
            Some(None) => return Err(NidError::BadName { nid: nid() }),
            name => name.flatten(),
        };
        Ok(Nid {
            address,
            port,
            net,
            name,
        })
    }
}

/// Accepts digits only: `u16::from_str` would accept a sign.
fn parse_port(text: &str) -> Option<u16> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    if digits { text.parse().ok() } else { None }
}

fn parse_address(text: &str) -> Option<Address> {
    if let Ok(ip) = text.parse() {
        return Some(Address::Ip(ip));
    }
    let plausible = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let named = text.bytes().any(|byte| byte.is_ascii_alphabetic());
    let fits = text.len() <= INTERFACE_NAME_MAX;
    let is_name = named && fits && text.bytes().all(plausible);
    is_name.then(|| Address::Interface(text.to_owned()))
}

/// The NIDs of one node, in order of preference: at least one, at most [`NIDS_MAX`], each once.
///
/// Lists are compared with the providers' addresses: a node whose rail was opened again has another list.
#[derive(Debug, Clone)]
pub struct NidList(Vec<Nid>);

impl NidList {
    /// What lists are compared by.
    fn key(&self) -> impl Iterator<Item = (&Nid, Option<&EndpointName>)> {
        self.0.iter().map(|nid| (nid, nid.name.as_ref()))
    }

    /// Makes a list.
    ///
    /// # Errors
    /// An empty list, a list that is too long, or a list that contains a NID twice.
    pub fn new(nids: Vec<Nid>) -> Result<NidList, NidError> {
        if nids.is_empty() {
            return Err(NidError::EmptyList);
        }
        if nids.len() > NIDS_MAX {
            return Err(NidError::LongList { given: nids.len() });
        }
        for (index, nid) in nids.iter().enumerate() {
            if nids[..index].contains(nid) {
                return Err(NidError::Twice {
                    nid: nid.to_string(),
                });
            }
        }
        Ok(NidList(nids))
    }

    /// The NIDs, in order.
    #[must_use]
    pub fn as_slice(&self) -> &[Nid] {
        &self.0
    }

    /// The NIDs, in order.
    pub fn iter(&self) -> std::slice::Iter<'_, Nid> {
        self.0.iter()
    }
}

impl PartialEq for NidList {
    fn eq(&self, other: &NidList) -> bool {
        self.key().eq(other.key())
    }
}

impl Eq for NidList {}

impl PartialOrd for NidList {
    fn partial_cmp(&self, other: &NidList) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for NidList {
    fn cmp(&self, other: &NidList) -> Ordering {
        self.key().cmp(other.key())
    }
}

impl<'a> IntoIterator for &'a NidList {
    type Item = &'a Nid;
    type IntoIter = std::slice::Iter<'a, Nid>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl fmt::Display for NidList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, nid) in self.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { "," };
            write!(f, "{separator}{nid}")?;
        }
        Ok(())
    }
}

impl FromStr for NidList {
    type Err = NidError;

    fn from_str(text: &str) -> Result<NidList, NidError> {
        if text.trim().is_empty() {
            return Err(NidError::EmptyList);
        }
        // Counted before anything is allocated, since the text may come from a peer.
        let given = text.split(',').count();
        if given > NIDS_MAX {
            return Err(NidError::LongList { given });
        }
        let nids: Result<Vec<Nid>, NidError> =
            text.split(',').map(|nid| nid.trim().parse()).collect();
        NidList::new(nids?)
    }
}
