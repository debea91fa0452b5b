//! Connections of foreign processes to a lane over TCP.

use super::*;
use crate::libfabric::table;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

const DEADLINE: Duration = Duration::from_secs(20);
/// Bytes that are sent on each connection: none, and fewer and more than libfabric's first message has.
const LENGTHS: [usize; 5] = [0, 1, 16, 31, 100];
/// Connections of each length.
const EACH: usize = 8;

/// Each such connection is closed, so that it keeps no descriptor, even if an earlier call has left EAGAIN in
/// `errno`.
#[test]
fn a_connection_that_sends_something_else_is_closed() {
    let library = crate::load().expect("libfabric is installed where tests run");
    let row = table::datagram(NetKind::Tcp)[0];
    let limits = Limits {
        receives: 4,
        sends: 4,
        inject: true,
        wakes: true,
        message_max: 512,
        class: None,
        dscp: 0,
    };
    let source = "127.41.97.1:0".parse().unwrap();
    let mut lane = Lane::<()>::open(&library, row, source, limits).unwrap();
    let address = lane.local_address().unwrap();
    let connect = |length| {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(&vec![b'x'; length]).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        stream.set_nonblocking(true).unwrap();
        (length, stream)
    };
    let lengths = LENGTHS.iter().flat_map(|length| [*length; EACH]);
    let mut open: Vec<_> = lengths.map(connect).collect();
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    silent.set_nonblocking(true).unwrap();
    let start = Instant::now();
    while !open.is_empty() {
        open.retain_mut(|(_, stream)| {
            let read = stream.read(&mut [0; 64]);
            matches!(read, Err(error) if error.kind() == ErrorKind::WouldBlock)
        });
        let nothing = silent.recv(&mut [0]).unwrap_err();
        assert_eq!(nothing.kind(), ErrorKind::WouldBlock);
        assert_eq!(lane.next_done(), None);
        let lengths: Vec<_> = open.iter().map(|(length, _)| length).collect();
        assert!(start.elapsed() < DEADLINE, "still open: {lengths:?}");
    }
}
