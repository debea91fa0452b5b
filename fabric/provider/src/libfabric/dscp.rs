//! Marks the datagrams of a lane with a DSCP (RFC 2474), for the queues of the host and of the network.
//!
//! libfabric's udp provider marks none, and returns no socket. Its socket is found among those of this process by the
//! address that it is bound to.

use std::fs;
use std::mem;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::RawFd;

/// The highest priority in the host's own queues that requires no privilege (`socket(7)`, SO_PRIORITY).
const PRIORITY: libc::c_int = 6;

/// Marks what is sent by the datagram sockets that are bound to this address. Returns whether there is one, and the
/// kernel marks it.
pub(super) fn mark(bound: SocketAddrV4, dscp: u8) -> bool {
    let open = fs::read_dir("/proc/self/fd");
    let names = open.into_iter().flatten().flatten();
    let fds = names.filter_map(|entry| entry.file_name().to_str()?.parse::<RawFd>().ok());
    let mut sockets = fds.filter(|fd| is_bound(*fd, bound)).peekable();
    let is_found = sockets.peek().is_some();
    let is_marked = sockets.all(|socket| set(socket, dscp));
    is_found && is_marked
}

/// Whether this is a datagram socket that is bound to this address.
fn is_bound(fd: RawFd, address: SocketAddrV4) -> bool {
    let mut kind: libc::c_int = 0;
    let mut kind_length = size_of::<libc::c_int>() as libc::socklen_t;
    let mut length = size_of::<libc::sockaddr_in>() as libc::socklen_t;
    // SAFETY: all zeros is a valid sockaddr_in. The kernel writes at most as many bytes as the lengths state, and
    // refuses a number that is no socket's.
    let (name, is_read) = unsafe {
        let mut name: libc::sockaddr_in = mem::zeroed();
        let (kind, name_at) = ((&raw mut kind).cast(), (&raw mut name).cast());
        let read = libc::getsockopt(
            fd,
            libc::SOL_SOCKET,
            libc::SO_TYPE,
            kind,
            &raw mut kind_length,
        ) | libc::getsockname(fd, name_at, &raw mut length);
        (name, read == 0)
    };
    let ip = Ipv4Addr::from(u32::from_be(name.sin_addr.s_addr));
    let found = SocketAddrV4::new(ip, u16::from_be(name.sin_port));
    let is_inet = libc::c_int::from(name.sin_family) == libc::AF_INET;
    is_read && kind == libc::SOCK_DGRAM && is_inet && found == address
}

/// Sets the DSCP of a socket, and its priority. IP_TOS sets another priority, so it comes first.
fn set(socket: RawFd, dscp: u8) -> bool {
    let set = |level, option, value: libc::c_int| {
        let (at, length) = ((&raw const value).cast(), size_of::<libc::c_int>());
        // SAFETY: the kernel reads one c_int, and refuses a number that is no socket's.
        unsafe { libc::setsockopt(socket, level, option, at, length as libc::socklen_t) == 0 }
    };
    let tos = libc::c_int::from(dscp) << 2;
    let is_marked = set(libc::IPPROTO_IP, libc::IP_TOS, tos);
    // Without it only the host's own queues treat the datagrams as all others.
    let _ = set(libc::SOL_SOCKET, libc::SO_PRIORITY, PRIORITY);
    is_marked
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{SocketAddr, UdpSocket};
    use std::os::fd::AsRawFd;

    fn option(socket: &UdpSocket, level: libc::c_int, option: libc::c_int) -> libc::c_int {
        let mut value: libc::c_int = -1;
        let mut length = size_of::<libc::c_int>() as libc::socklen_t;
        let at = (&raw mut value).cast();
        // SAFETY: the kernel writes one c_int.
        let read =
            unsafe { libc::getsockopt(socket.as_raw_fd(), level, option, at, &raw mut length) };
        assert_eq!(read, 0);
        value
    }

    /// AG-16: the socket with the address is marked, and no other one.
    #[test]
    fn the_datagrams_of_one_socket_are_marked() {
        let [one, other] = [(); 2].map(|()| UdpSocket::bind("127.41.80.1:0").unwrap());
        let SocketAddr::V4(bound) = one.local_addr().unwrap() else {
            panic!("an IPv4 address was bound");
        };
        assert!(mark(bound, 46));
        let options = [
            (libc::IPPROTO_IP, libc::IP_TOS),
            (libc::SOL_SOCKET, libc::SO_PRIORITY),
        ];
        let values = |socket| options.map(|(level, name)| option(socket, level, name));
        assert_eq!(values(&one), [46 << 2, PRIORITY]);
        assert_eq!(values(&other), [0, 0]);
        drop(one);
        assert!(!mark(bound, 46), "no socket has this address");
    }
}
