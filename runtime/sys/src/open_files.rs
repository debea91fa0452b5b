//! The descriptors of this process: how many are open, and which are connections without use.

use std::fs;
use std::io;
use std::mem;
use std::os::fd::RawFd;

/// The kernel's information about a TCP connection (`struct tcp_info`), up to the last field that is used here.
#[repr(C)]
struct TcpInfo {
    state: u8,
    options: [u8; 7],
    numbers: [u32; 24],
    rates: [u64; 2],
    bytes_acked: u64,
    bytes_received: u64,
}

/// `TCP_ESTABLISHED` and `TCP_CLOSE_WAIT`.
const ESTABLISHED: u8 = 1;
const CLOSE_WAIT: u8 = 8;

/// How many descriptors are open.
///
/// # Errors
/// `/proc` is missing, or there is no descriptor left for it.
pub fn count() -> io::Result<u64> {
    const OWN: &str = "/proc/self/fd";
    match fs::metadata(OWN)?.len() {
        // Linux before 6.2 has no size here, so list them. The descriptor that lists them is one of them.
        0 => Ok(fs::read_dir(OWN)?.count().saturating_sub(1) as u64),
        count => Ok(count),
    }
}

/// How many descriptors below this number are TCP connections that the peer has closed, or on which fewer bytes than
/// this have arrived. Any connection can be in such a state for a moment. Takes a few microseconds for ten
/// descriptors.
pub fn unserved_connections(below: RawFd, bytes_min: u64) -> u64 {
    let is_unserved = |info: &TcpInfo| match info.state {
        CLOSE_WAIT => true,
        ESTABLISHED => info.bytes_received < bytes_min,
        _ => false,
    };
    (0..below)
        .filter_map(connection)
        .filter(is_unserved)
        .count() as u64
}

/// The kernel's information about a descriptor, if it is a TCP connection.
fn connection(fd: RawFd) -> Option<TcpInfo> {
    let mut length = size_of::<TcpInfo>() as libc::socklen_t;
    // SAFETY: zeros are a valid TcpInfo, and the kernel writes at most `length` bytes to it. For an invalid descriptor,
    // or one that is not a TCP socket, it returns an error.
    let (answer, info) = unsafe {
        let mut info: TcpInfo = mem::zeroed();
        let at = (&raw mut info).cast();
        let answer = libc::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_INFO, at, &raw mut length);
        (answer, info)
    };
    // An older kernel returns a shorter structure, without the byte counts.
    (answer == 0 && length as usize == size_of::<TcpInfo>()).then_some(info)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    #[test]
    fn connections_with_few_bytes_or_a_closed_peer_are_unserved() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let before = count().unwrap();
        let mut far = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut near, _) = listener.accept().unwrap();
        // Other tests of this process open and close descriptors, too.
        assert!(before > 0 && count().is_ok());
        let is_unserved = |of: &TcpStream| {
            let number = of.as_raw_fd();
            unserved_connections(number + 1, 4) - unserved_connections(number, 4)
        };
        assert_eq!([&near, &far].map(is_unserved), [1, 1]);
        for stream in [&mut near, &mut far] {
            stream.write_all(b"four").unwrap();
        }
        for stream in [&mut near, &mut far] {
            stream.read_exact(&mut [0; 4]).unwrap();
        }
        assert_eq!([&near, &far].map(is_unserved), [0, 0]);
        drop(far);
        assert_eq!(near.read(&mut [0; 4]).unwrap(), 0);
        assert_eq!(is_unserved(&near), 1);
        assert!(connection(listener.as_raw_fd()).is_some_and(|info| info.state == 10));
        assert!(connection(-1).is_none());
    }
}
