//! Errors. Each message names the value, the reason and the remedy.
//!
//! No error leaves anything half done. A NID that is refused is not stored. A fabric that cannot be opened closes
//! what it had opened. A rail that is refused is not added. A peer that is refused is as unknown, or as known, as
//! before. Failures while messages flow are not errors: they are counted ([`DropReason`](crate::DropReason)) or
//! reported as events ([`FabricEvent`](crate::FabricEvent)).

use muster_provider::{CallError, NIDS_MAX};

/// Why a fabric could not be opened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// No rail was given.
    #[error("no rail was given; name at least one, such as 192.0.2.7@udp0; this node has: {known}")]
    NoRail {
        /// The interfaces that exist.
        known: String,
    },
    /// More rails than a node can have.
    #[error(
        "{given} rails were given; at most {NIDS_MAX} are allowed: leave some out, or remove one first"
    )]
    ManyRails {
        /// The number of rails given.
        given: usize,
    },
    /// Bulk messages need a key.
    #[error("bulk lanes need the key that their messages are proven by; give the fabric one first")]
    NoKey,
    /// libfabric does not offer the provider that serves this net.
    #[error(
        "rail {nid}: libfabric {version} offers no provider {provider:?} here ({reason}); \
         unset FI_PROVIDER if it is set, or install a libfabric that was built with {provider}"
    )]
    NoProvider {
        /// The rail as it was given.
        nid: String,
        /// The provider's name.
        provider: &'static str,
        /// The library's version.
        version: String,
        /// libfabric's error.
        reason: CallError,
    },
    /// A libfabric version whose shared memory blocks every process that sends to a process that was killed.
    #[error(
        "rail {nid}: with shm of libfabric {version} a process that is killed at a bad moment blocks every process \
         that sends to it, for ever; use libfabric 2.5 or later (MUSTER_LIBFABRIC=PATH), or a tcp or udp rail"
    )]
    SharedLocks {
        /// The rail as it was given.
        nid: String,
        /// The library's version.
        version: String,
    },
    /// The provider of a kind of device offers no device.
    #[error("rail {nid}: {provider} of libfabric {version} finds no device ({reason}); {lacks}")]
    NoDevice {
        /// The rail as it was given.
        nid: String,
        /// The provider's name.
        provider: &'static str,
        /// The library's version.
        version: String,
        /// libfabric's error.
        reason: Box<CallError>,
        /// What is missing, with the remedy.
        lacks: String,
        /// Whether a device may come later, or become ready.
        is_late: bool,
    },
    /// None of the provider's devices can be told to be that of the rail's interface.
    #[error(
        "rail {nid}: {provider} offers the devices {devices}, and the kernel names none of them at this interface; \
         show the provider one device only, by FI_EFA_IFACE, FI_CXI_DEVICE_NAME, FI_OPX_HFI_SELECT, PSM3_NIC, or \
         HFI_UNIT for psm2"
    )]
    ManyDevices {
        /// The rail.
        nid: String,
        /// The provider's name.
        provider: &'static str,
        /// The names of its devices.
        devices: String,
    },
    /// A net whose provider cannot choose a port.
    #[error(
        "rail {nid}: on net {net} the system chooses no port; leave the port out (7741), or give one"
    )]
    PortNeeded {
        /// The rail as it was given.
        nid: String,
        /// Its net.
        net: String,
    },
    /// The provider's messages are too short for the fragments of bulk messages.
    #[error(
        "rail {nid}: {provider} carries messages of up to {offered} bytes, and the bulk lane needs \
         {needed}; messages on it must fit a datagram"
    )]
    ShortBulkLane {
        /// The rail.
        nid: String,
        /// The provider's name.
        provider: &'static str,
        /// The longest message that the provider carries.
        offered: usize,
        /// The length that the bulk lane needs.
        needed: usize,
    },
    /// No interface of that name is up and has an address.
    #[error(
        "rail {nid}: there is no interface {interface:?} that is up and has an IPv4 address; this \
         node has: {known}"
    )]
    UnknownInterface {
        /// The rail as it was given.
        nid: String,
        /// The name.
        interface: String,
        /// The interfaces that exist.
        known: String,
    },
    /// The address belongs to no interface of this node.
    #[error(
        "rail {nid}: the address {address} belongs to no interface of this node; this node has: \
         {known}"
    )]
    ForeignAddress {
        /// The rail as it was given.
        nid: String,
        /// The address.
        address: String,
        /// The interfaces that exist.
        known: String,
    },
    /// Two rails on one interface.
    #[error(
        "rails {first} and {second} are the same interface ({interface}); name each interface once, \
         two rails on one interface are not two rails"
    )]
    SameInterface {
        /// The rail that was given first.
        first: String,
        /// The rail that was given second.
        second: String,
        /// The name of the interface, or the address that both have.
        interface: String,
    },
    /// Another process uses the port.
    #[error(
        "rail {nid}: port {port} of {address} is in use by another process; give another port{}",
        or_any(nid)
    )]
    PortInUse {
        /// The rail as it was given.
        nid: String,
        /// The address.
        address: String,
        /// The port.
        port: u16,
    },
    /// Another process uses the port after the rail's, which is the port for the rail's beats.
    #[error(
        "rail {nid}: port {next} of {address}, which carries the beats of port {port}, is in use by \
         another process; give a port whose next one is free too{}",
        or_any(nid)
    )]
    NextPortInUse {
        /// The rail as it was given.
        nid: String,
        /// The address.
        address: String,
        /// The rail's port.
        port: u16,
        /// The port for beats.
        next: u16,
    },
    /// The port is 65535, so there is no next port for the beats.
    #[error(
        "rail {nid}: after port {port} there is none for the rail's beats; give a port below it"
    )]
    NoNextPort {
        /// The rail as it was given.
        nid: String,
        /// The port.
        port: u16,
    },
    /// The system was to choose the port, and never chose a port whose next one is free.
    #[error(
        "rail {nid}: in {tries} tries the system offered no port of {address} whose next one is \
         free too; give a port"
    )]
    NoPortPair {
        /// The rail as it was given.
        nid: String,
        /// The address.
        address: String,
        /// The number of tries.
        tries: usize,
    },
    /// The user may not use the port, for example one below 1024.
    #[error("rail {nid}: this user may not use port {port}; give a port above 1023")]
    PortForbidden {
        /// The rail as it was given.
        nid: String,
        /// The port.
        port: u16,
    },
    /// Invalid numbers in the health configuration.
    #[error("{reason}")]
    Health {
        /// Which number is invalid, with the remedy.
        reason: String,
    },
    /// Time-outs that are out of order.
    #[error("{reason}")]
    Timeouts {
        /// Which time-out is out of order, with the remedy.
        reason: String,
    },
    /// Any other error of libfabric.
    #[error("rail {nid}: {reason}")]
    Provider {
        /// The rail as it was given.
        nid: String,
        /// libfabric's error.
        reason: CallError,
    },
}

/// Why a rail could not be removed. The rail is still open.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RemoveError {
    /// No rail has this NID.
    #[error("{nid} is no rail of this node; its rails are {known}")]
    NoSuchRail {
        /// The NID.
        nid: String,
        /// The rails of this node.
        known: String,
    },
    /// The rail is the only one.
    #[error("{nid} is the last rail of this node; add another before it is removed")]
    LastRail {
        /// The NID.
        nid: String,
    },
}

/// Why a peer could not be added.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PeerError {
    /// None of the peer's NIDs is on the net of a local rail.
    #[error(
        "the peer {peer} is on no net of this node: its rails are on {peer_nets}, ours on \
         {own_nets}; give both a rail on one net, or switch relaying on"
    )]
    NoCommonNet {
        /// The peer's NIDs.
        peer: String,
        /// The peer's nets.
        peer_nets: String,
        /// The nets of the local rails.
        own_nets: String,
    },
    /// A NID that names an interface, port 0, or port 65535 (which has no next port for beats).
    #[error("the NID {nid} cannot be sent to: it has no {lacks}")]
    NoDestination {
        /// The NID.
        nid: String,
        /// "address", "port" or "port for beats (the next one)".
        lacks: &'static str,
    },
    /// A NID on a net whose provider has addresses of its own kind, without that address.
    #[error(
        "the NID {nid} cannot be sent to: on this net only its node knows its address; copy the NID from what \
         \"muster rails\" prints there, or let the nodes meet through PMIx or by a net with IP addresses"
    )]
    NoName {
        /// The NID.
        nid: String,
    },
    /// The configured maximum of peers is reached.
    #[error("the limit of {limit} known peers is reached; raise peers_max, or forget some")]
    ManyPeers {
        /// The limit.
        limit: usize,
    },
    /// The NID belongs to another peer.
    #[error(
        "the NID {nid} belongs to another peer already, {other}; a NID names one interface of one \
         node, so forget that peer, or correct one of the two"
    )]
    NidTaken {
        /// The NID.
        nid: String,
        /// The other peer's NIDs.
        other: String,
        /// The other peer.
        by: crate::peer_handle::PeerHandle,
    },
    /// The handle is not valid any more.
    #[error("the peer was forgotten; add it again")]
    Forgotten,
    /// libfabric refused the address.
    #[error("the NID {nid} was refused: {reason}")]
    Provider {
        /// The NID.
        nid: String,
        /// libfabric's error.
        reason: CallError,
    },
}

/// Why rules do not form a policy. The policy in force stays in force.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// A text that is not a pattern of NIDs.
    #[error("{pattern:?} is no pattern of NIDs: {reason}")]
    Pattern {
        /// The text.
        pattern: String,
        /// The fault.
        reason: String,
    },
    /// Too many rules.
    #[error(
        "{given} rules were given; a policy has at most {}",
        crate::limits::RULES_MAX
    )]
    ManyRules {
        /// The number of rules given.
        given: usize,
    },
    /// Too many patterns on one side of a rule.
    #[error(
        "the rule about {rule:?} has {given} patterns on one side; at most {} are allowed, and a \
         pattern may hold ranges",
        crate::limits::PATTERNS_MAX
    )]
    ManyPatterns {
        /// The rule's subject.
        rule: String,
        /// The number of patterns given.
        given: usize,
    },
    /// A rule without patterns on one side.
    #[error(
        "the rule about {rule:?} has no pattern on one side; write *@udp0 for all NIDs of a net"
    )]
    EmptySide {
        /// The rule's subject.
        rule: String,
    },
    /// An invalid count of messages.
    #[error(
        "the rule about {rule:?} asks for {given} messages in a row; give 1 to {}",
        crate::limits::MESSAGES_MAX
    )]
    Messages {
        /// The rule's subject.
        rule: String,
        /// The count.
        given: u32,
    },
    /// Two rules about one subject.
    #[error(
        "two rules are about {rule:?}; a policy has one rule for each subject: leave one of them out"
    )]
    Contradiction {
        /// The subject.
        rule: String,
    },
}

impl OpenError {
    /// Whether a rail lacks a device, which may come later or become ready.
    #[must_use]
    pub fn is_late_device(&self) -> bool {
        matches!(self, OpenError::NoDevice { is_late: true, .. })
    }
}

/// The remedy that is offered for nets on which the system can choose ports.
fn or_any(nid: &str) -> &'static str {
    use muster_provider::NetKind::{O2ib, Tcp, Udp};
    let kind = nid.parse().map(|nid: muster_provider::Nid| nid.net.kind);
    match kind {
        Ok(Udp | Tcp | O2ib) => ", or port 0 to let the system choose",
        _ => "",
    }
}
