//! An outsider in the network of [`Hosts`]: it has no key, records the datagrams that pass, and sends them
//! again.

use crate::DEADLINE;
use crate::hosts::Hosts;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{
    AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, ipproto, recv, sendto,
    socket_with,
};
use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::num::NonZeroU32;
use std::os::fd::OwnedFd;
use std::time::Instant;

/// All protocols, including those of outgoing packets (`ETH_P_ALL`).
const ALL: u16 = 3;
const UDP: u8 = 17;
/// Longest packet that is recorded.
const PACKET_MAX: usize = 1 << 16;

/// A UDP datagram as recorded, with its IPv4 header.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Recorded(Vec<u8>);

impl Recorded {
    /// Returns `None` if these bytes are no UDP datagram.
    fn read(bytes: &[u8]) -> Option<Self> {
        let is_udp = bytes.len() > 28 && bytes[0] >> 4 == 4 && bytes[9] == UDP;
        let whole = Self(bytes.to_vec());
        (is_udp && bytes.len() >= whole.udp() + 8).then_some(whole)
    }

    /// The offset of its UDP header.
    fn udp(&self) -> usize {
        usize::from(self.0[0] & 15) * 4
    }

    fn address(&self, at: usize) -> Ipv4Addr {
        let [a, b, c, d] = [0, 1, 2, 3].map(|byte| self.0[at + byte]);
        Ipv4Addr::new(a, b, c, d)
    }

    /// The address that sent it.
    pub fn from(&self) -> Ipv4Addr {
        self.address(12)
    }

    /// The address that it was sent to.
    pub fn to(&self) -> Ipv4Addr {
        self.address(16)
    }
}

/// See the module.
#[derive(Debug)]
pub struct Outsider {
    /// Receives all packets that pass.
    receiver: OwnedFd,
    /// Sends packets with any header.
    sender: OwnedFd,
    /// A packet passes several ports of a bridge and is recorded once.
    seen: BTreeSet<Recorded>,
}

impl Outsider {
    /// Connects it to the first rail of these hosts. It receives what passes from now on.
    ///
    /// # Panics
    /// If that is not possible; the hosts require the same rights.
    pub fn at(hosts: &Hosts) -> Self {
        hosts.configure_hub("addr add 10.77.0.254/24 dev br0\n");
        let (receiver, sender) = hosts.in_hub(|| {
            let all = NonZeroU32::new(u32::from(ALL.to_be())).map(Protocol::from_raw);
            let open = |family, kind, protocol| {
                socket_with(family, kind, SocketFlags::CLOEXEC, protocol).expect("a raw socket")
            };
            let receiver = open(AddressFamily::PACKET, SocketType::DGRAM, all);
            let sender = open(AddressFamily::INET, SocketType::RAW, Some(ipproto::RAW));
            (receiver, sender)
        });
        Self {
            receiver,
            sender,
            seen: BTreeSet::new(),
        }
    }

    /// Records the datagrams that `is_meant` accepts, until `is_enough`.
    ///
    /// # Panics
    /// If there are not enough before the deadline.
    pub fn record(
        &mut self,
        is_meant: impl Fn(&Recorded) -> bool,
        is_enough: impl Fn(&[Recorded]) -> bool,
    ) -> Vec<Recorded> {
        let end = Instant::now() + DEADLINE;
        let mut recording = Vec::new();
        let mut bytes = vec![0; PACKET_MAX];
        while !is_enough(&recording) {
            let rest = end.saturating_duration_since(Instant::now());
            let rest = rest.try_into().expect("at most a minute");
            let mut fds = [PollFd::new(&self.receiver, PollFlags::IN)];
            let ready = poll(&mut fds, Some(&rest)).expect("poll");
            assert!(ready > 0, "only {} datagrams passed", recording.len());
            let (_, length) =
                recv(&self.receiver, &mut bytes[..], RecvFlags::empty()).expect("recv");
            let datagram = Recorded::read(&bytes[..length.min(PACKET_MAX)]);
            if let Some(datagram) = datagram.filter(&is_meant)
                && self.seen.insert(datagram.clone())
            {
                recording.push(datagram);
            }
        }
        recording
    }

    /// Sends a datagram again, from its original address and port, to an address of the caller.
    ///
    /// # Panics
    /// If it cannot be sent.
    pub fn replay(&self, datagram: &Recorded, to: Ipv4Addr) {
        let mut packet = datagram.0.clone();
        packet[16..20].copy_from_slice(&to.octets());
        // No checksum: another receiver address would change it, and the sender left it to its interface.
        let checksum = datagram.udp() + 6;
        packet[checksum..checksum + 2].fill(0);
        let to = SocketAddrV4::new(to, 0);
        sendto(&self.sender, &packet, SendFlags::empty(), &to).expect("it is sent");
    }
}
