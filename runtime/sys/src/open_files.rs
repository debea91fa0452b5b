//! The descriptors of this process: how many are open, and which of them serve nobody.

use std::fs;
use std::io;
use std::mem;
use std::os::fd::RawFd;

/// What the kernel tells of a TCP connection (`struct tcp_info`), as far as it is read here.
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
/// `/proc` is not there, or a descriptor for it cannot be had.
pub fn count() -> io::Result<u64> {
    const OWN: &str = "/proc/self/fd";
    match fs::metadata(OWN)?.len() {
        // Linux before 6.2 does not say. The one that lists them is one of them.
        0 => Ok(fs::read_dir(OWN)?.count().saturating_sub(1) as u64),
        count => Ok(count),
    }
}

/// How many descriptors below this number are TCP connections that the other side has closed, or that have brought
/// fewer bytes than this. Both can be so for a moment of any connection. A few microseconds for ten descriptors.
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

/// What the kernel tells of a descriptor that is a TCP connection.
fn connection(fd: RawFd) -> Option<TcpInfo> {
    let mut length = size_of::<TcpInfo>() as libc::socklen_t;
    // SAFETY: zeros are a valid TcpInfo, and the kernel writes at most `length` bytes to it. A number that is no
    // descriptor, or not one of a TCP socket, is refused.
    let (answer, info) = unsafe {
        let mut info: TcpInfo = mem::zeroed();
        let at = (&raw mut info).cast();
        let answer = libc::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_INFO, at, &raw mut length);
        (answer, info)
    };
    // An older kernel that tells less would tell nothing of the bytes.
    (answer == 0 && length as usize == size_of::<TcpInfo>()).then_some(info)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    #[test]
    fn connections_that_brought_little_or_were_closed_serve_nobody() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let before = count().unwrap();
        let mut far = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut near, _) = listener.accept().unwrap();
        // Other tests of this process open and close some, too.
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
