//! Nets: a kind of network, and a number.
//!
//! `udp0` is the first network that is used over UDP, `o2ib1` the second InfiniBand network. Two NIDs can reach each
//! other if their nets are equal: the name is a promise of the administrator who configured it. `provider::table`
//! maps kinds of nets to providers.

use crate::error::NidError;
use std::fmt;
use std::str::FromStr;

/// A kind of network, with the names that LNet uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NetKind {
    /// UDP over IP.
    Udp,
    /// TCP over IP.
    Tcp,
    /// InfiniBand or RoCE through verbs.
    O2ib,
    /// Omni-Path or InfiniPath through PSM.
    Psm,
    /// Shared memory within a node.
    Shm,
    /// InfiniBand or RoCE through verbs, with heartbeats as unreliable datagrams.
    O2ud,
}

impl NetKind {
    /// All kinds, in the order in which messages list them. A kind's index is its number on the wire.
    pub const ALL: [NetKind; 6] = [
        NetKind::Udp,
        NetKind::Tcp,
        NetKind::O2ib,
        NetKind::Psm,
        NetKind::Shm,
        NetKind::O2ud,
    ];

    /// Whether rails of both kinds use the same kind of device. A device carries one rail of each kind of device: an
    /// adapter may have its IP interface on a udp net and its verbs device on an o2ib net.
    #[must_use]
    pub fn shares_devices(self, other: NetKind) -> bool {
        let device = |kind| match kind {
            NetKind::Udp | NetKind::Tcp => 0,
            NetKind::O2ib | NetKind::O2ud => 1,
            NetKind::Psm => 2,
            // Shared memory uses the address of an interface only as its name.
            NetKind::Shm => 3,
        };
        device(self) == device(other)
    }

    /// The name of the kind in a net's name, without the number.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            NetKind::Udp => "udp",
            NetKind::Tcp => "tcp",
            NetKind::O2ib => "o2ib",
            NetKind::Psm => "psm",
            NetKind::Shm => "shm",
            NetKind::O2ud => "o2ud",
        }
    }
}

/// One network: a kind and a number. Written `udp0`; `udp` is read as `udp0`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Net {
    /// Which kind of network.
    pub kind: NetKind,
    /// Which network of that kind.
    pub number: u16,
}

impl fmt::Display for Net {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.kind.word(), self.number)
    }
}

impl FromStr for Net {
    type Err = NidError;

    fn from_str(text: &str) -> Result<Net, NidError> {
        let unknown = || NidError::UnknownNet {
            net: text.to_owned(),
        };
        let kind = NetKind::ALL
            .into_iter()
            .find(|kind| text.starts_with(kind.word()))
            .ok_or_else(unknown)?;
        let digits = &text[kind.word().len()..];
        let canonical = digits.len() == 1 || !digits.starts_with('0');
        if !canonical || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(unknown());
        }
        let number = if digits.is_empty() {
            Ok(0)
        } else {
            digits.parse()
        };
        Ok(Net {
            kind,
            number: number.map_err(|_| unknown())?,
        })
    }
}
