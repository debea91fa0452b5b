//! Marks the packets of a lane with a DSCP (RFC 2474), for the queues of the host and of the network.
//!
//! libfabric's udp and tcp providers mark none, and return no socket. Their sockets are found among those of this
//! process by the address that they are bound to. A connection that a marked socket has accepted has its DSCP, too; one
//! that this process has begun is found later.

use std::fs;
use std::mem;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::RawFd;

/// The highest priority in the host's own queues that requires no privilege (`socket(7)`, SO_PRIORITY).
const PRIORITY: libc::c_int = 6;

/// Marks what is sent by the sockets of this kind (`SOCK_DGRAM`, `SOCK_STREAM`) that are bound to this address. Returns
/// whether there is one, and the kernel marks it.
pub(super) fn mark(kind: libc::c_int, bound: SocketAddrV4, dscp: u8) -> bool {
    let mut sockets = sockets()
        .filter(|(_, found)| *found == (kind, bound))
        .peekable();
    let is_found = sockets.peek().is_some();
    let is_marked = sockets.all(|(socket, _)| set(socket, dscp));
    is_found && is_marked
}

/// Marks what is sent by the connections of this process from an interface, unless they are marked.
pub(super) fn mark_connections(from: Ipv4Addr, dscp: u8) {
    let is_from = |(_, (kind, at)): &(RawFd, (libc::c_int, SocketAddrV4))| {
        *kind == libc::SOCK_STREAM && *at.ip() == from
    };
    for (socket, _) in sockets().filter(is_from) {
        let mark = option_of(socket, libc::IPPROTO_IP, libc::IP_TOS);
        let priority = option_of(socket, libc::SOL_SOCKET, libc::SO_PRIORITY);
        if (mark, priority) != (Some(tos(dscp)), Some(PRIORITY)) {
            set(socket, dscp);
        }
    }
}

/// The sockets of this process that have an IPv4 address, each with its kind and its address.
fn sockets() -> impl Iterator<Item = (RawFd, (libc::c_int, SocketAddrV4))> {
    let open = fs::read_dir("/proc/self/fd");
    let names = open.into_iter().flatten().flatten();
    let fds = names.filter_map(|entry| entry.file_name().to_str()?.parse::<RawFd>().ok());
    fds.filter_map(|fd| Some((fd, socket(fd)?)))
}

fn socket(fd: RawFd) -> Option<(libc::c_int, SocketAddrV4)> {
    let kind = option_of(fd, libc::SOL_SOCKET, libc::SO_TYPE)?;
    let mut length = size_of::<libc::sockaddr_in>() as libc::socklen_t;
    // SAFETY: all zeros is a valid sockaddr_in. The kernel writes at most as many bytes as the length states.
    let (name, read) = unsafe {
        let mut name: libc::sockaddr_in = mem::zeroed();
        let read = libc::getsockname(fd, (&raw mut name).cast(), &raw mut length);
        (name, read)
    };
    let is_inet = read == 0 && libc::c_int::from(name.sin_family) == libc::AF_INET;
    let ip = Ipv4Addr::from(u32::from_be(name.sin_addr.s_addr));
    is_inet.then(|| (kind, SocketAddrV4::new(ip, u16::from_be(name.sin_port))))
}

/// An option of a socket; none if the number is no socket's.
fn option_of(socket: RawFd, level: libc::c_int, option: libc::c_int) -> Option<libc::c_int> {
    let mut value: libc::c_int = 0;
    let mut length = size_of::<libc::c_int>() as libc::socklen_t;
    let at = (&raw mut value).cast();
    // SAFETY: the kernel writes one c_int, and refuses a number that is no socket's.
    let read = unsafe { libc::getsockopt(socket, level, option, at, &raw mut length) };
    (read == 0).then_some(value)
}

/// The byte of the IP header that contains a DSCP.
fn tos(dscp: u8) -> libc::c_int {
    libc::c_int::from(dscp) << 2
}

/// Sets the DSCP of a socket, and its priority. IP_TOS sets another priority, so it comes first.
fn set(socket: RawFd, dscp: u8) -> bool {
    let set = |level, option, value: libc::c_int| {
        let (at, length) = ((&raw const value).cast(), size_of::<libc::c_int>());
        // SAFETY: the kernel reads one c_int, and refuses a number that is no socket's.
        unsafe { libc::setsockopt(socket, level, option, at, length as libc::socklen_t) == 0 }
    };
    let is_marked = set(libc::IPPROTO_IP, libc::IP_TOS, tos(dscp));
    // Without it only the host's own queues treat the datagrams as all others.
    let _ = set(libc::SOL_SOCKET, libc::SO_PRIORITY, PRIORITY);
    is_marked
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
    use std::os::fd::AsRawFd;

    fn values(socket: &impl AsRawFd) -> [Option<libc::c_int>; 2] {
        let options = [
            (libc::IPPROTO_IP, libc::IP_TOS),
            (libc::SOL_SOCKET, libc::SO_PRIORITY),
        ];
        options.map(|(level, name)| option_of(socket.as_raw_fd(), level, name))
    }

    /// AG-16: the socket with the address is marked, and no other one.
    #[test]
    fn the_datagrams_of_one_socket_are_marked() {
        let [one, other] = [(); 2].map(|()| UdpSocket::bind("127.41.80.1:0").unwrap());
        let SocketAddr::V4(bound) = one.local_addr().unwrap() else {
            panic!("an IPv4 address was bound");
        };
        assert!(mark(libc::SOCK_DGRAM, bound, 46));
        assert_eq!(values(&one), [46 << 2, PRIORITY].map(Some));
        assert_eq!(values(&other), [0, 0].map(Some));
        assert!(!mark(libc::SOCK_STREAM, bound, 46), "it is no stream");
        drop(one);
        assert!(
            !mark(libc::SOCK_DGRAM, bound, 46),
            "no socket has this address"
        );
    }

    /// AG-16: an accepted connection is marked as its listener, and one that was begun here when it is looked for.
    #[test]
    fn the_connections_of_an_interface_are_marked() {
        let [one, other] =
            ["127.41.81.1:0", "127.41.81.2:0"].map(|at| TcpListener::bind(at).unwrap());
        let SocketAddr::V4(bound) = one.local_addr().unwrap() else {
            panic!("an IPv4 address was bound");
        };
        assert!(mark(libc::SOCK_STREAM, bound, 46));
        let begun = TcpStream::connect(bound).unwrap();
        let (accepted, _) = one.accept().unwrap();
        // The priority is not inherited.
        assert_eq!(values(&accepted), [46 << 2, 0].map(Some));
        assert_eq!(values(&begun), [0, 0].map(Some));
        let SocketAddr::V4(from) = begun.local_addr().unwrap() else {
            panic!("an IPv4 address connects to another");
        };
        for address in [from.ip(), bound.ip()] {
            mark_connections(*address, 46);
        }
        let marked = [46 << 2, PRIORITY].map(Some);
        assert_eq!((values(&accepted), values(&begun)), (marked, marked));
        assert_eq!(values(&other), [0, 0].map(Some));
    }
}
