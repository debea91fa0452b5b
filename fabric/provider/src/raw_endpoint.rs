//! Two raw endpoints of libfabric, to measure the overhead that the fabric adds.

use crate::error::CallError;
use crate::libfabric::table;
use crate::libfabric::{Lane, Libfabric, Limits};
use crate::net_kind::NetKind;
use std::net::{Ipv4Addr, SocketAddrV4};

/// Buffers of each endpoint. At most this many datagrams may be under way.
const SLOTS: usize = 64;

/// One endpoint. It sends and receives datagrams of the `udp` provider over loopback with libfabric's calls alone.
#[derive(Debug)]
pub struct RawEndpoint {
    lane: Lane<()>,
    to: u64,
}

impl RawEndpoint {
    /// Opens two endpoints that send to each other, for messages up to `message_max` bytes.
    ///
    /// # Errors
    /// The call of libfabric that failed, and its error.
    pub fn pair(library: Libfabric, message_max: usize) -> Result<[RawEndpoint; 2], CallError> {
        let limits = Limits {
            receives: SLOTS,
            sends: SLOTS,
            inject: true,
            wakes: false,
            message_max,
            class: None,
            dscp: 0,
        };
        let row = table::datagram(NetKind::Udp)[0];
        let any = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0);
        let [mut near, mut far] = [
            Lane::open(&library, row, any, limits)?,
            Lane::open(&library, row, any, limits)?,
        ];
        let to_far = near.insert(far.local_address()?)?;
        let to_near = far.insert(near.local_address()?)?;
        let end = |lane, to| RawEndpoint { lane, to };
        Ok([end(near, to_far), end(far, to_near)])
    }

    /// Sends a datagram to the other endpoint. Returns false if the provider does not take it.
    pub fn send(&mut self, bytes: &[u8]) -> bool {
        self.lane.raw_send(self.to, bytes)
    }

    /// Returns whether a datagram has arrived. Does not block.
    pub fn receive(&mut self) -> bool {
        self.lane.raw_receive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    #[test]
    fn each_datagram_is_received_once_and_buffers_are_reused() {
        let library = crate::load().expect("libfabric is installed where tests run");
        let [mut near, mut far] = RawEndpoint::pair(library, 128).unwrap();
        assert!(!far.receive());
        for _ in 0..3 * SLOTS {
            assert!(near.send(&[7; 128]));
            let start = Instant::now();
            while !far.receive() {
                assert!(start.elapsed() < Duration::from_secs(30));
            }
        }
        assert!(!far.receive() && !near.receive());
    }
}
