//! Doorbells: datagram sockets that wake a peer whose provider has no descriptor to wait for.
//!
//! libfabric's shared memory provider has no descriptor (`fi_cq_open` with `FI_WAIT_FD` fails with ENOSYS in
//! 1.17 and 2.5), so a waiting agent would have to spin on a core. Instead, each lane of that provider has a
//! datagram socket, named after the lane's address in the abstract namespace of Unix sockets. A sender rings it
//! after each send to the lane.
//!
//! A doorbell also shows that a process has ended. The sender's socket is connected to the peer's very socket,
//! which closes with its process; a later socket of the same name is a different one. The provider would
//! continue, without an error, to write to memory that no process reads. So the peer's address is inserted
//! again when its doorbell has changed.
//!
//! Each insertion takes one of the provider's 256 entries for peers, and a used entry cannot be used again:
//! libfabric 2.5.1 keeps its state of the earlier peer, treats the new one as known, and reads through a null
//! pointer (seen with a peer that was killed 256 times). So insertions are limited over the lifetime of a lane;
//! past the limit, they fail.

use super::library::Libfabric;
use crate::error::CallError;
use std::collections::BTreeMap;
use std::io::{Error, ErrorKind};
use std::net::SocketAddrV4;
use std::os::fd::{AsRawFd, RawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Peers that a lane inserts in its lifetime, at most; a restarted peer counts again. The provider's other
/// entries are for processes that send to this lane and are never sent to.
const FOUND_MAX: u32 = 192;

/// The doorbell of a lane, and the doorbells of its peers.
#[derive(Debug)]
pub(super) struct Doorbell {
    own: UnixDatagram,
    peers: BTreeMap<u64, Peer>,
    last: u64,
    found: u32,
}

/// A peer's doorbell.
#[derive(Debug)]
struct Peer {
    at: SocketAddrV4,
    /// A socket that is connected to the peer's, and the provider's handle of the peer's address; `None` if the
    /// peer has not been found.
    socket: Option<(UnixDatagram, u64)>,
}

impl Doorbell {
    /// Opens the doorbell of this address. The endpoint must be reachable before: a peer that finds the
    /// doorbell takes the shared memory of this address for this process's.
    pub(super) fn open(library: &Libfabric, at: SocketAddrV4) -> Result<Doorbell, CallError> {
        let failed = |error: &Error| call_error(library, "bind", error);
        let name = name(at).map_err(|one| failed(&one))?;
        let own = UnixDatagram::bind_addr(&name).map_err(|one| failed(&one))?;
        own.set_nonblocking(true).map_err(|one| failed(&one))?;
        Ok(Doorbell {
            own,
            peers: BTreeMap::new(),
            last: 0,
            found: 0,
        })
    }

    /// The descriptor that becomes readable when the doorbell rings.
    pub(super) fn fd(&self) -> RawFd {
        self.own.as_raw_fd()
    }

    /// Drains the doorbell: the descriptor becomes readable again for every later ring.
    pub(super) fn drain(&self) {
        // The bound only guards against an endless loop: if a peer rings faster than this, the descriptor stays
        // readable.
        for _ in 0..DRAINED_MAX {
            if self.own.recv(&mut []).is_err() {
                return;
            }
        }
    }

    /// Adds a peer; returns its number in this table.
    pub(super) fn learn(&mut self, at: SocketAddrV4) -> u64 {
        self.last += 1;
        self.peers.insert(self.last, Peer { at, socket: None });
        self.last
    }

    /// Removes a peer; returns the provider's handle of its address.
    pub(super) fn forget(&mut self, peer: u64) -> Option<u64> {
        let socket = self.peers.remove(&peer)?.socket;
        socket.map(|(_, address)| address)
    }

    /// The provider's handle of a peer's address, if the peer has been found.
    pub(super) fn address(&self, peer: u64) -> Option<u64> {
        let (_, address) = self.peers.get(&peer)?.socket.as_ref()?;
        Some(*address)
    }

    /// Connects to a peer's doorbell.
    ///
    /// # Errors
    /// The peer is unknown, its doorbell does not exist, or the lane has inserted `FOUND_MAX` peers.
    pub(super) fn find(
        &self,
        library: &Libfabric,
        peer: u64,
    ) -> Result<(UnixDatagram, SocketAddrV4), CallError> {
        let known = self.peers.get(&peer).ok_or(ErrorKind::NotFound.into());
        let found = known.and_then(|peer| {
            let socket = UnixDatagram::unbound()?;
            socket.set_nonblocking(true)?;
            socket.connect_addr(&name(peer.at)?)?;
            Ok((socket, peer.at))
        });
        let found = found.map_err(|error: Error| call_error(library, "connect", &error))?;
        if self.found >= FOUND_MAX {
            return Err(library.error("fi_av_insert", libc::ENOSPC.into()));
        }
        Ok(found)
    }

    /// Stores the connection and the provider's handle of a peer.
    pub(super) fn found(&mut self, peer: u64, socket: UnixDatagram, address: u64) {
        self.found += 1;
        if let Some(peer) = self.peers.get_mut(&peer) {
            peer.socket = Some((socket, address));
        }
    }

    /// Rings a peer's doorbell. If it is gone, returns the provider's handle of the peer, which must be
    /// removed.
    pub(super) fn ring(&mut self, peer: u64) -> Option<u64> {
        let socket = &mut self.peers.get_mut(&peer)?.socket;
        let (doorbell, _) = socket.as_ref()?;
        match doorbell.send(&[]) {
            // A doorbell whose queue is full has rings that the peer has not read: it will wake anyway.
            Err(error) if error.kind() != ErrorKind::WouldBlock => {
                socket.take().map(|(_, address)| address)
            }
            _ => None,
        }
    }
}

/// Rings that one call drains, at most.
const DRAINED_MAX: usize = 1024;

fn name(at: SocketAddrV4) -> Result<SocketAddr, Error> {
    SocketAddr::from_abstract_name(format!("muster-shm/{at}"))
}

fn call_error(library: &Libfabric, call: &'static str, error: &Error) -> CallError {
    library.error(call, error.raw_os_error().unwrap_or(libc::EIO).into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    const DEADLINE: Duration = Duration::from_secs(20);

    /// A doorbell wakes its owner, is drained by one call after any number of rings, and is reported gone after
    /// its owner has closed it, even if another doorbell has the same name.
    #[test]
    fn a_doorbell_wakes_and_shows_the_end_of_its_owner() {
        let library = crate::load().expect("libfabric is installed where tests run");
        let at = "127.41.99.1:7741".parse().unwrap();
        let own = Doorbell::open(&library, "127.41.99.2:7741".parse().unwrap());
        let mut own = own.unwrap();
        let peer = own.learn(at);
        let refused = own.find(&library, peer).unwrap_err();
        assert_eq!(
            (refused.call, refused.code),
            ("connect", libc::ECONNREFUSED)
        );
        let other = Doorbell::open(&library, at).unwrap();
        let twice = Doorbell::open(&library, at).unwrap_err();
        assert_eq!((twice.call, twice.code), ("bind", libc::EADDRINUSE));
        let (socket, _) = own.find(&library, peer).unwrap();
        own.found(peer, socket, 7);
        assert_eq!(own.address(peer), Some(7));
        // More rings than the system queues.
        for _ in 0..1000 {
            assert_eq!(own.ring(peer), None);
        }
        assert!(other.own.recv(&mut []).is_ok());
        other.drain();
        let drained = other.own.recv(&mut []).unwrap_err();
        assert_eq!(drained.kind(), ErrorKind::WouldBlock);
        drop(other);
        // A process that another test forked may hold the old socket open for a moment.
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
        // The provider would reuse the entry of an ended peer, and fail on the state that it left there.
        let peer = own.learn(at);
        for _ in 1..FOUND_MAX {
            let (socket, _) = own.find(&library, peer).unwrap();
            own.found(peer, socket, 8);
        }
        let full = own.find(&library, peer).unwrap_err();
        assert_eq!((full.call, full.code), ("fi_av_insert", libc::ENOSPC));
    }
}
