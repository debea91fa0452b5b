//! Bells: what wakes a peer whose provider has nothing to wait for.
//!
//! libfabric's shared memory gives no descriptor (`fi_cq_open` with `FI_WAIT_FD` fails with ENOSYS in 1.17 and
//! 2.5), so who waits would spin, a core for each agent. Each lane of it has a datagram socket instead, named
//! after the lane's address in the abstract namespace of Unix sockets; whoever has sent something there rings it.
//!
//! A bell tells of an end, too. Its sender is connected to the very socket: that one is gone with its process, and
//! another one of the same name is not it. The provider would go on writing to memory that nobody reads any more,
//! without an error; so the address is taken in anew when the bell is another. Each time that takes one of the 256
//! places that the provider has for peers, and one that was used before is no place any more: libfabric 2.5.1 keeps
//! what it knew of the peer before, takes the new one for known, and reads through a null pointer (seen with a peer
//! that was killed 256 times). So there are so many in the life of a lane, and then an error.

use super::library::Libfabric;
use crate::error::CallError;
use std::collections::BTreeMap;
use std::io::{Error, ErrorKind};
use std::net::SocketAddrV4;
use std::os::fd::{AsRawFd, RawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Peers that are taken in, one that is another one now each time, in the life of a lane. The places beyond are for
/// those that call and are never called.
const FOUND_MAX: u32 = 192;

/// The bell of a lane, and those of its peers.
#[derive(Debug)]
pub(super) struct Doorbell {
    own: UnixDatagram,
    peers: BTreeMap<u64, Peer>,
    last: u64,
    found: u32,
}

/// A peer's bell.
#[derive(Debug)]
struct Peer {
    at: SocketAddrV4,
    /// Connected to the peer's, and what stands for the peer's address at the provider; none if it is not
    /// known to be there.
    wire: Option<(UnixDatagram, u64)>,
}

impl Doorbell {
    /// Hangs up the bell of this address. To be called when the endpoint can be reached: who finds the bell takes
    /// the memory for this process's.
    pub(super) fn open(library: &Libfabric, at: SocketAddrV4) -> Result<Doorbell, CallError> {
        let error = |error: &Error| told(library, "bind", error);
        let name = name(at).map_err(|one| error(&one))?;
        let own = UnixDatagram::bind_addr(&name).map_err(|one| error(&one))?;
        own.set_nonblocking(true).map_err(|one| error(&one))?;
        Ok(Doorbell {
            own,
            peers: BTreeMap::new(),
            last: 0,
            found: 0,
        })
    }

    /// What becomes readable when it rings.
    pub(super) fn fd(&self) -> RawFd {
        self.own.as_raw_fd()
    }

    /// Takes note that it has rung: it tells of everything that comes from now on.
    pub(super) fn hush(&self) {
        // Whoever rings faster than this rings again: a bound is not needed, and there is one.
        for _ in 0..HUSHED_MAX {
            if self.own.recv(&mut []).is_err() {
                return;
            }
        }
    }

    /// Remembers a peer; returns what it is called here.
    pub(super) fn learn(&mut self, at: SocketAddrV4) -> u64 {
        self.last += 1;
        self.peers.insert(self.last, Peer { at, wire: None });
        self.last
    }

    /// Forgets a peer; returns what stands for it at the provider.
    pub(super) fn forget(&mut self, peer: u64) -> Option<u64> {
        let wire = self.peers.remove(&peer)?.wire;
        wire.map(|(_, address)| address)
    }

    /// What stands for a peer at the provider, if it is known to be there.
    pub(super) fn address(&self, peer: u64) -> Option<u64> {
        let (_, address) = self.peers.get(&peer)?.wire.as_ref()?;
        Some(*address)
    }

    /// Finds a peer's bell.
    ///
    /// # Errors
    /// Nobody is there, or there is no place for anybody.
    pub(super) fn find(
        &self,
        library: &Libfabric,
        peer: u64,
    ) -> Result<(UnixDatagram, SocketAddrV4), CallError> {
        let known = self.peers.get(&peer).ok_or(ErrorKind::NotFound.into());
        let found = known.and_then(|peer| {
            let wire = UnixDatagram::unbound()?;
            wire.set_nonblocking(true)?;
            wire.connect_addr(&name(peer.at)?)?;
            Ok((wire, peer.at))
        });
        let found = found.map_err(|error: Error| told(library, "connect", &error))?;
        if self.found >= FOUND_MAX {
            return Err(library.error("fi_av_insert", libc::ENOSPC.into()));
        }
        Ok(found)
    }

    /// Notes that a peer is there.
    pub(super) fn found(&mut self, peer: u64, wire: UnixDatagram, address: u64) {
        self.found += 1;
        if let Some(peer) = self.peers.get_mut(&peer) {
            peer.wire = Some((wire, address));
        }
    }

    /// Rings a peer's bell. If it is gone, what stood for the peer at the provider: that is to be removed.
    pub(super) fn ring(&mut self, peer: u64) -> Option<u64> {
        let wire = &mut self.peers.get_mut(&peer)?.wire;
        let (doorbell, _) = wire.as_ref()?;
        match doorbell.send(&[]) {
            // One that cannot take any more has not been heard yet.
            Err(error) if error.kind() != ErrorKind::WouldBlock => {
                wire.take().map(|(_, address)| address)
            }
            _ => None,
        }
    }
}

/// Rings that are taken note of with one call, at most.
const HUSHED_MAX: usize = 1024;

fn name(at: SocketAddrV4) -> Result<SocketAddr, Error> {
    SocketAddr::from_abstract_name(format!("muster-shm/{at}"))
}

fn told(library: &Libfabric, call: &'static str, error: &Error) -> CallError {
    library.error(call, error.raw_os_error().unwrap_or(libc::EIO).into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    const DEADLINE: Duration = Duration::from_secs(20);

    /// A bell wakes, is heard once however often it was rung, and is missed when its owner has gone, even if
    /// another one hangs in its place.
    #[test]
    fn a_bell_is_heard_and_missed() {
        let library = crate::load().expect("libfabric is installed where tests run");
        let at = "127.41.99.1:7741".parse().unwrap();
        let own = Doorbell::open(&library, "127.41.99.2:7741".parse().unwrap());
        let mut own = own.unwrap();
        let peer = own.learn(at);
        let nobody = own.find(&library, peer).unwrap_err();
        assert_eq!((nobody.call, nobody.code), ("connect", libc::ECONNREFUSED));
        let other = Doorbell::open(&library, at).unwrap();
        let twice = Doorbell::open(&library, at).unwrap_err();
        assert_eq!((twice.call, twice.code), ("bind", libc::EADDRINUSE));
        let (wire, _) = own.find(&library, peer).unwrap();
        own.found(peer, wire, 7);
        assert_eq!(own.address(peer), Some(7));
        // More often than the system keeps.
        for _ in 0..1000 {
            assert_eq!(own.ring(peer), None);
        }
        assert!(other.own.recv(&mut []).is_ok());
        other.hush();
        let silent = other.own.recv(&mut []).unwrap_err();
        assert_eq!(silent.kind(), ErrorKind::WouldBlock);
        drop(other);
        // A process that another test forked has the old one for a moment, too.
        let start = Instant::now();
        let _new = loop {
            match Doorbell::open(&library, at) {
                Ok(new) => break new,
                Err(error) => assert!(start.elapsed() < DEADLINE, "{error}"),
            }
            std::thread::yield_now();
        };
        assert_eq!(own.ring(peer), Some(7));
        assert_eq!((own.ring(peer), own.address(peer)), (None, None));
        assert!(own.find(&library, peer).is_ok());
        assert_eq!(own.forget(peer), None);
        // The provider would take the place of one that has gone, and fail on what it left there.
        let peer = own.learn(at);
        for _ in 1..FOUND_MAX {
            let (wire, _) = own.find(&library, peer).unwrap();
            own.found(peer, wire, 8);
        }
        let full = own.find(&library, peer).unwrap_err();
        assert_eq!((full.call, full.code), ("fi_av_insert", libc::ENOSPC));
    }
}
