//! Links: the state of network interfaces, as the kernel reports it.
//!
//! A netlink socket receives every change of an interface: set up or down, a cable pulled or put in, the interface
//! removed. The current state is requested when the socket is opened, and again when the socket's buffer has
//! overflowed. Up means that the interface is switched on and has a carrier (`IFF_UP` and `IFF_RUNNING`).
//!
//! Each change is also a reason to read the speeds of interfaces again (`speeds`): a link may have been trained anew
//! at a lower speed, or a bond may have lost one of its devices.
//!
//! Not in this module: what a link's state means for a rail. A process that may not open such a socket runs without
//! it and learns of the same faults later, from sends that fail.

use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use rustix::net::{bind, recv, send, socket_with};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// `RTMGRP_LINK`: the multicast group of link changes.
const LINK_GROUP: u32 = 1;
/// Kinds of messages, from `linux/rtnetlink.h`.
const NEW_LINK: u16 = 16;
const DEL_LINK: u16 = 17;
const GET_LINK: u16 = 18;
/// `NLMSG_ERROR`: a request was refused, or acknowledged (error 0).
const ERROR: u16 = 2;
/// `NLMSG_DONE`: the end of an answer that consists of several messages.
const DONE: u16 = 3;
/// `IFLA_IFNAME`: the attribute that holds the interface's name.
const NAME: u16 = 3;
/// `IFLA_LINKINFO`, and in it `IFLA_INFO_KIND`: the kind of a virtual interface, such as `bridge`.
const LINK_INFO: u16 = 18;
const INFO_KIND: u16 = 1;
/// `NLA_TYPE_MASK`: the bits of an attribute's type without its flags.
const TYPE_BITS: u16 = 0x3fff;
/// `NLM_F_REQUEST | NLM_F_DUMP`: request a list of all links.
const REQUEST_ALL: u16 = 0x301;
/// `IFF_UP | IFF_RUNNING`.
const WORKING: u32 = 0x41;
/// `IFF_POINTOPOINT`.
const POINT_TO_POINT: u32 = 0x10;

/// Lengths of `nlmsghdr`, `ifinfomsg` and `rtattr`; each part begins at a multiple of 4.
const HEADER_BYTES: usize = 16;
const INFO_BYTES: usize = 16;
const ATTRIBUTE_BYTES: usize = 4;

/// Far more than the kernel reports about one interface, except one with very many virtual functions.
const READ_BYTES: usize = 16 << 10;
/// Datagrams that are read in one call, so that an interface that flaps cannot keep the host busy.
const READS_MAX: usize = 16;

/// A socket that receives link changes.
#[derive(Debug)]
pub struct Links {
    socket: OwnedFd,
    bytes: Box<[u8]>,
    /// The last request was refused. It is repeated at the next read.
    refused: bool,
}

/// The state of one link, as a change or as an answer to a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    /// The interface.
    pub name: String,
    /// Whether the interface is switched on and has a carrier.
    pub up: bool,
    /// Whether the link is a point-to-point link.
    pub point_to_point: bool,
    /// The kind of a virtual interface, as the kernel names it; none for most physical ones.
    pub kind: Option<String>,
}

/// All interfaces, in their current state.
///
/// # Errors
/// The kernel refuses the socket or the request, or its answer has no end.
pub(crate) fn all() -> Result<Vec<Link>, Errno> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
    bind(&socket, &SocketAddrNetlink::new(0, 0))?;
    request_all(&socket)?;
    let (mut links, mut bytes) = (Vec::new(), vec![0; READ_BYTES]);
    // The kernel queues each part of the answer before the part is read, so nothing blocks.
    loop {
        let (count, _) = match recv(&socket, &mut bytes[..], RecvFlags::empty()) {
            Err(Errno::INTR) => continue,
            received => received?,
        };
        let parsed = parse(&bytes[..count.min(READ_BYTES)], &mut links);
        if parsed.refused {
            return Err(Errno::BUSY);
        }
        if parsed.done {
            return Ok(links);
        }
    }
}

impl Links {
    /// Opens the socket and requests the current state.
    ///
    /// # Errors
    /// The system gives no such socket.
    pub fn open() -> Result<Links, Errno> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
        bind(&socket, &SocketAddrNetlink::new(0, LINK_GROUP))?;
        let bytes = vec![0; READ_BYTES].into_boxed_slice();
        let links = Links {
            socket,
            bytes,
            refused: false,
        };
        request_all(&links.socket)?;
        Ok(links)
    }

    /// The descriptor that becomes readable when there is something to read.
    pub fn wait_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Appends the changes since the last call, in order. Returns true if there may be more.
    pub fn read(&mut self, links: &mut Vec<Link>) -> bool {
        if self.refused {
            self.request_again();
        }
        for _ in 0..READS_MAX {
            match recv(&self.socket, &mut self.bytes[..], RecvFlags::empty()) {
                // The kernel refuses a request (EBUSY) while the answer to the last one is under way. The request is
                // repeated at the next call, not at once: a kernel that always refuses must not cause an endless
                // loop.
                Ok((count, _)) => {
                    self.refused |= parse(&self.bytes[..count.min(READ_BYTES)], links).refused;
                }
                // The socket's buffer has overflowed: request the state of all links.
                Err(Errno::NOBUFS) => self.request_again(),
                Err(Errno::INTR) => {}
                Err(_) => return false,
            }
        }
        true
    }

    /// Requests the current state again. The answer is read together with later changes.
    pub fn request_again(&mut self) {
        self.refused = request_all(&self.socket).is_err();
    }
}

fn request_all(socket: &OwnedFd) -> Result<(), Errno> {
    let mut request = [0; HEADER_BYTES + INFO_BYTES];
    request[0..4].copy_from_slice(&((HEADER_BYTES + INFO_BYTES) as u32).to_ne_bytes());
    request[4..6].copy_from_slice(&GET_LINK.to_ne_bytes());
    request[6..8].copy_from_slice(&REQUEST_ALL.to_ne_bytes());
    send(socket, &request, SendFlags::empty()).map(|_| ())
}

/// The control messages in a datagram of the kernel.
#[derive(Debug, Default)]
struct Parsed {
    /// A request was refused.
    refused: bool,
    /// The answer ends in this datagram.
    done: bool,
}

/// Parses one datagram of the kernel, which holds messages one after the other. A truncated message is left out.
fn parse(mut bytes: &[u8], links: &mut Vec<Link>) -> Parsed {
    let mut parsed = Parsed::default();
    while bytes.len() >= HEADER_BYTES {
        let length = number(&bytes[0..4]) as usize;
        let kind = short(&bytes[4..6]);
        if length < HEADER_BYTES || length > bytes.len() {
            return parsed;
        }
        parsed.done |= kind == DONE;
        if kind == ERROR {
            let code = bytes[HEADER_BYTES..length].first_chunk::<4>();
            parsed.refused |= code.is_some_and(|code| i32::from_ne_bytes(*code) != 0);
        }
        if matches!(kind, NEW_LINK | DEL_LINK) {
            let link = link(kind == NEW_LINK, &bytes[HEADER_BYTES..length]);
            links.extend(link);
        }
        bytes = bytes.get(aligned(length)..).unwrap_or_default();
    }
    parsed
}

fn link(is_there: bool, body: &[u8]) -> Option<Link> {
    let (info, attributes) = body.split_at_checked(INFO_BYTES)?;
    let flags = number(&info[8..12]);
    let details = attribute(attributes, LINK_INFO);
    Some(Link {
        name: text(attribute(attributes, NAME)?),
        up: is_there && flags & WORKING == WORKING,
        point_to_point: flags & POINT_TO_POINT != 0,
        kind: details
            .and_then(|details| attribute(details, INFO_KIND))
            .map(text),
    })
}

/// The first attribute of this type.
fn attribute(mut attributes: &[u8], wanted: u16) -> Option<&[u8]> {
    while attributes.len() >= ATTRIBUTE_BYTES {
        let length = usize::from(short(&attributes[0..2]));
        let kind = short(&attributes[2..4]) & TYPE_BITS;
        let value = attributes.get(ATTRIBUTE_BYTES..length)?;
        if kind == wanted {
            return Some(value);
        }
        attributes = attributes.get(aligned(length)..).unwrap_or_default();
    }
    None
}

/// The text up to the first zero byte.
fn text(value: &[u8]) -> String {
    let text = value.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).into_owned()
}

fn aligned(length: usize) -> usize {
    length.next_multiple_of(4)
}

fn number(bytes: &[u8]) -> u32 {
    u32::from_ne_bytes(bytes.try_into().expect("four bytes"))
}

fn short(bytes: &[u8]) -> u16 {
    u16::from_ne_bytes(bytes.try_into().expect("two bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::net::socketpair;

    fn message(kind: u16, flags: u32, name: &str) -> Vec<u8> {
        let mut body = vec![0; INFO_BYTES];
        body[8..12].copy_from_slice(&flags.to_ne_bytes());
        // One attribute before the name, with a length that is not a multiple of 4.
        body.extend([5u16, 99].map(u16::to_ne_bytes).concat());
        body.extend([7, 0, 0, 0]);
        let length = (ATTRIBUTE_BYTES + name.len() + 1) as u16;
        body.extend([length, NAME].map(u16::to_ne_bytes).concat());
        body.extend(name.bytes().chain([0]));
        let length = HEADER_BYTES + body.len();
        let mut bytes = (length as u32).to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.resize(HEADER_BYTES, 0);
        bytes.extend(body);
        bytes.resize(aligned(length), 0);
        bytes
    }

    fn read(bytes: &[u8]) -> Vec<(String, bool)> {
        let mut links = Vec::new();
        parse(bytes, &mut links);
        links.into_iter().map(|link| (link.name, link.up)).collect()
    }

    /// hlt-005, RS-02.
    #[test]
    fn a_link_is_up_if_it_is_switched_on_has_a_carrier_and_exists() {
        let bytes = [
            message(NEW_LINK, WORKING, "eth0"),
            message(NEW_LINK, 0x1, "ib0"),
            message(3, WORKING, "done"),
            message(DEL_LINK, WORKING, "eth10"),
        ];
        let read = read(&bytes.concat());
        let expected = [("eth0", true), ("ib0", false), ("eth10", false)];
        assert!(read.iter().map(|(name, up)| (&name[..], *up)).eq(expected));
    }

    /// hlt-005: the kernel refuses a request while it answers another one. The request is repeated, once at each
    /// read.
    #[test]
    fn a_refused_request_is_repeated_at_the_next_read() {
        let flags = SocketFlags::NONBLOCK;
        let (socket, kernel) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        let mut links = Links {
            socket,
            bytes: vec![0; READ_BYTES].into_boxed_slice(),
            refused: false,
        };
        let requested = || {
            let mut bytes = [0; 64];
            let received = recv(&kernel, &mut bytes[..], RecvFlags::empty());
            received.is_ok_and(|(count, _)| count > 0 && short(&bytes[4..6]) == GET_LINK)
        };
        let refuse = |code: i32| {
            let mut bytes = 36u32.to_ne_bytes().to_vec();
            bytes.extend(ERROR.to_ne_bytes());
            bytes.resize(HEADER_BYTES, 0);
            bytes.extend((-code).to_ne_bytes());
            bytes.resize(36, 0);
            send(&kernel, &bytes, SendFlags::empty()).unwrap();
        };
        refuse(libc::EBUSY);
        links.read(&mut Vec::new());
        assert!(!requested());
        links.read(&mut Vec::new());
        assert!(requested());
        refuse(0);
        links.read(&mut Vec::new());
        links.read(&mut Vec::new());
        assert!(!requested(), "error 0 is not a refusal");
    }

    #[test]
    fn all_interfaces_are_listed_at_once() {
        let links = all().expect("a netlink socket requires no privilege");
        let lo = links.iter().find(|link| link.name == "lo");
        let lo = lo.unwrap_or_else(|| panic!("{links:?}"));
        assert!(!lo.point_to_point && lo.kind.is_none(), "{lo:?}");
    }

    #[test]
    fn the_kind_is_read_from_the_nested_attribute() {
        let mut bytes = message(NEW_LINK, WORKING | POINT_TO_POINT, "docker0");
        let kind = [
            &10u16.to_ne_bytes()[..],
            &INFO_KIND.to_ne_bytes(),
            b"bridge",
        ]
        .concat();
        let length = (ATTRIBUTE_BYTES + kind.len()) as u16;
        bytes.extend([length, LINK_INFO | 0x8000].map(u16::to_ne_bytes).concat());
        bytes.extend(kind);
        let length = bytes.len() as u32;
        bytes[..4].copy_from_slice(&length.to_ne_bytes());
        let mut links = Vec::new();
        parse(&bytes, &mut links);
        assert_eq!(links.len(), 1);
        assert_eq!(links[0].kind.as_deref(), Some("bridge"));
        assert!(links[0].point_to_point && links[0].up);
    }

    #[test]
    fn the_current_state_is_read_first() {
        let mut links = Links::open().expect("a netlink socket requires no privilege");
        let mut received = Vec::new();
        while !received.iter().any(|link: &Link| link.name == "lo") {
            let mut fds = [PollFd::from_borrowed_fd(links.wait_fd(), PollFlags::IN)];
            let wait = Timespec {
                tv_sec: 20,
                tv_nsec: 0,
            };
            assert_eq!(poll(&mut fds, Some(&wait)), Ok(1), "{received:?}");
            links.read(&mut received);
        }
    }

    proptest! {
        #[test]
        fn garbage_gives_no_link_and_no_panic(
            bytes in proptest::collection::vec(any::<u8>(), 0..200), at in 0..60usize, byte in any::<u8>(),
        ) {
            read(&bytes);
            let mut damaged = message(NEW_LINK, WORKING, "eth0");
            let at = at % damaged.len();
            damaged[at] = byte;
            damaged.truncate(200 - at);
            prop_assert!(read(&damaged).len() <= 1);
        }
    }
}
