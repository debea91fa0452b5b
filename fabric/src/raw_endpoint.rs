//! Two bare endpoints of libfabric, for measurements of what the fabric adds to them.

use crate::error::CallError;
use crate::net::NetKind;
use crate::provider::table;
use crate::provider::{Lane, Libfabric, Limits};
use std::net::{Ipv4Addr, SocketAddrV4};

/// Buffers of each end; no more datagrams are on their way than are waited for.
const SLOTS: usize = 64;

/// One end: datagrams of the `udp` provider over loopback, sent and received by libfabric's calls alone.
#[derive(Debug)]
pub struct RawEndpoint {
    lane: Lane,
    to: u64,
}

impl RawEndpoint {
    /// Two ends that send to each other, for messages up to so many bytes.
    ///
    /// # Errors
    /// Which call of libfabric failed, and how.
    pub fn pair(library: Libfabric, message_max: usize) -> Result<[RawEndpoint; 2], CallError> {
        let limits = Limits {
            receives: SLOTS,
            sends: SLOTS,
            inject: true,
            wakes: false,
            message_max,
            class: None,
        };
        let row = table::datagram(NetKind::Udp)[0];
        let any = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0);
        let [mut near, mut far] = [
            Lane::open(&library, row, any, limits)?,
            Lane::open(&library, row, any, limits)?,
        ];
        let unknown = || library.error("fi_av_insert", libc::EINVAL.into());
        let to_far = near.insert(far.local_address()?)?.ok_or_else(unknown)?;
        let to_near = far.insert(near.local_address()?)?.ok_or_else(unknown)?;
        let end = |lane, to| RawEndpoint { lane, to };
        Ok([end(near, to_far), end(far, to_near)])
    }

    /// Sends a datagram to the other end; false if it is not taken.
    pub fn send(&mut self, bytes: &[u8]) -> bool {
        self.lane.raw_send(self.to, bytes)
    }

    /// Whether a datagram has come. Never waits.
    pub fn receive(&mut self) -> bool {
        self.lane.raw_receive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    #[test]
    fn what_one_end_sends_the_other_receives_once_and_buffers_are_given_back() {
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
