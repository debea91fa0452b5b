//! Kinds of networks.

/// A kind of network, with the names that LNet uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NetKind {
    /// UDP over IP.
    Udp,
    /// TCP over IP.
    Tcp,
    /// InfiniBand or RoCE through verbs.
    O2ib,
    /// Omni-Path or InfiniPath through PSM: experimental, untested on hardware. A send to a node that has
    /// vanished waits for it, and then ends the process: after 10 s in psm3, as seen over IP interfaces, and 5 s in
    /// psm2, by its sources.
    Psm,
    /// Shared memory within a node.
    Shm,
    /// InfiniBand or RoCE through verbs, with heartbeats as unreliable datagrams.
    O2ud,
    /// Slingshot: experimental, untested on hardware.
    Cxi,
    /// The Elastic Fabric Adapter: experimental, untested on hardware.
    Efa,
    /// Omni-Path without PSM: experimental, untested on hardware.
    Opx,
}

impl NetKind {
    /// All kinds, in the order in which messages list them. A kind's index is its number on the wire.
    pub const ALL: [NetKind; 9] = [
        NetKind::Udp,
        NetKind::Tcp,
        NetKind::O2ib,
        NetKind::Psm,
        NetKind::Shm,
        NetKind::O2ud,
        NetKind::Cxi,
        NetKind::Efa,
        NetKind::Opx,
    ];

    /// Whether rails of both kinds use the same kind of device. A device carries one rail of each kind of device: an
    /// adapter may have its IP interface on a udp net and its verbs device on an o2ib net.
    #[must_use]
    pub fn shares_devices(self, other: NetKind) -> bool {
        let device = |kind| match kind {
            NetKind::Udp | NetKind::Tcp => 0,
            NetKind::O2ib | NetKind::O2ud => 1,
            NetKind::Psm | NetKind::Opx => 2,
            // Shared memory uses the address of an interface only as its name.
            NetKind::Shm => 3,
            NetKind::Cxi => 4,
            NetKind::Efa => 5,
        };
        device(self) == device(other)
    }

    /// Whether the provider drives a device, which may fail and reports errors on an event queue.
    #[must_use]
    pub fn has_device(self) -> bool {
        !matches!(self, NetKind::Udp | NetKind::Tcp | NetKind::Shm)
    }

    /// Whether the provider has addresses of its own kind, which only the node of an endpoint knows.
    #[must_use]
    pub fn has_names(self) -> bool {
        matches!(
            self,
            NetKind::Psm | NetKind::Cxi | NetKind::Efa | NetKind::Opx
        )
    }

    /// Whether a connection that broke while its link was down stays broken when the link is up again: verbs reports
    /// no end of a connection whose packets were lost, and `ofi_rxm` uses it for ever, with an error for each message
    /// (seen in libfabric 1.17; removing and inserting the peer's address does not help). It ends when either side
    /// closes its endpoint.
    #[must_use]
    pub fn keeps_broken_connections(self) -> bool {
        matches!(self, NetKind::O2ib | NetKind::O2ud)
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
            NetKind::Cxi => "cxi",
            NetKind::Efa => "efa",
            NetKind::Opx => "opx",
        }
    }

    /// The kind of the net of this name, whatever follows the kind's own name.
    pub(crate) fn of(net: &str) -> Option<NetKind> {
        let mut kinds = NetKind::ALL.into_iter();
        kinds.find(|kind| net.starts_with(kind.word()))
    }
}
