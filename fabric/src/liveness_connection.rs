//! Liveness connections: TCP connections that carry no data and break when the peer's process ends.
//!
//! Datagrams to a process that was killed are lost without an error, and its silence is noticed only after a
//! deadline. The kernel, however, closes the connections of a process at once, however the process ends. So each rail
//! with an IP address has a listening TCP socket ([`Nid::liveness_address`]), and each observer of a peer connects to
//! it. No connection is accepted: a connection that waits in the kernel's queue costs the owner of the socket nothing
//! and wakes no process. It is reset when the last process that holds the listening socket has ended. An agent whose
//! supervisor forks the worker again makes the sockets before the fork ([`LivenessConnection::new`]), so that the end
//! of a worker breaks no connection.
//!
//! A break is evidence that a process was there and has ended. The connection is tried again at once: a refusal says
//! that no process is there now. If all connections to a peer broke and were refused twice, its process has ended. One
//! refusal is not enough, as a queue that is checked ([`LivenessConnection::check_queues`]) refuses connections for a
//! moment. A peer that cannot be reached at all breaks nothing. This module only reports the evidence.

use crate::peer_handle::PeerHandle;
#[cfg(doc)]
use muster_provider::Nid;
use muster_provider::{NIDS_MAX, waiting};
use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::sockopt::{set_socket_reuseaddr, socket_error};
use rustix::net::{
    AddressFamily, Shutdown, SocketFlags, SocketType, bind, connect, getsockname, listen, shutdown,
    socket_with,
};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Connections that may wait in the kernel's queue: enough for two observers and for many connections of observers
/// that have ended. The system may allow fewer (`net.core.somaxconn`).
const WAITING_MAX: i32 = 1024;
/// How often the length of the queue is checked.
pub(crate) const QUEUE_CHECK_US: u64 = 10_000_000;
/// For how long a removed rail still offers its connection: until observers know of the other rails.
pub(crate) const WITHDRAWAL_US: u64 = 10_000_000;

/// Sockets of one `LivenessConnection`. A socket stays bound to its address for ever, so each address that a rail
/// ever had takes one. If all are used, further addresses offer no liveness connection.
const SOCKETS_MAX: usize = 4 * NIDS_MAX;

/// A liveness connection that broke or could not be made is tried again after this pause. The pause doubles with each
/// refusal.
const PAUSE_MIN_US: u64 = 1_000_000;
const PAUSE_MAX_US: u64 = 60_000_000;
/// Refusals after a break that show that the process has ended, and the time between them.
const REFUSALS: u32 = 2;
const REFUSAL_PAUSE_US: u64 = 500;

/// Breaks that are read in one call.
const BREAKS_MAX: usize = 64;

/// The listening sockets of this node, one for each rail, bound when the rails are opened. Every process that has a
/// copy holds them, such as a worker that is forked later. The kernel knows to which address each socket is bound.
#[derive(Debug)]
pub struct LivenessConnection {
    sockets: Vec<OwnedFd>,
}

impl LivenessConnection {
    /// Makes the sockets.
    ///
    /// # Errors
    /// The system gives no more sockets.
    pub fn new() -> std::io::Result<LivenessConnection> {
        let sockets = (0..SOCKETS_MAX)
            .map(|_| stream())
            .collect::<Result<Vec<_>, Errno>>()?;
        Ok(LivenessConnection { sockets })
    }

    /// Offers liveness connections on a rail's address. A socket that an earlier process has bound to the address
    /// continues. If no socket can be bound, the rail offers none, and observers rely on silence.
    pub(crate) fn offer(&self, at: SocketAddrV4) {
        if let Some(socket) = self.at(at) {
            let _ = listen(socket, WAITING_MAX);
            return;
        }
        let free = |socket: &&OwnedFd| address(socket).is_some_and(|at| at.port() == 0);
        let Some(socket) = self.sockets.iter().find(free) else {
            return;
        };
        if set_socket_reuseaddr(socket, true).is_ok() && bind(socket, &at).is_ok() {
            let _ = listen(socket, WAITING_MAX);
        }
    }

    /// Stops offering liveness connections on an address: resets the observers' connections and refuses new ones.
    pub(crate) fn withdraw(&self, at: SocketAddrV4) {
        if let Some(socket) = self.at(at) {
            let _ = shutdown(socket, Shutdown::Both);
        }
    }

    /// Resets all connections of a queue that is half full, long before the queue refuses new ones: most of them
    /// belong to observers that have ended. Observers that are alive connect again.
    pub(crate) fn check_queues(&self) {
        for socket in &self.sockets {
            if waiting(socket.as_fd()).is_some_and(|(count, most)| 2 * count >= most) {
                let _ = shutdown(socket, Shutdown::Both);
                let _ = listen(socket, WAITING_MAX);
            }
        }
    }

    fn at(&self, at: SocketAddrV4) -> Option<&OwnedFd> {
        let mut sockets = self.sockets.iter();
        sockets.find(|socket| address(socket) == Some(at))
    }
}

/// The liveness connections of this node to its peers.
#[derive(Debug)]
pub(crate) struct LivenessObserver {
    epoll: OwnedFd,
    connections: Vec<Connection>,
    last_token: u64,
}

/// The observer's end of a liveness connection.
#[derive(Debug)]
struct Connection {
    token: u64,
    peer: PeerHandle,
    to: SocketAddrV4,
    from: Ipv4Addr,
    /// None: the connection is to be tried again.
    socket: Option<OwnedFd>,
    /// When it broke last.
    broke_us: Option<u64>,
    retry_us: u64,
    pause_us: u64,
    /// Whether the peer is known to offer liveness connections. Only then a refusal is evidence that the peer has
    /// ended.
    offered: bool,
    /// Refusals since the last break.
    refusals: u32,
}

/// What the connections to a peer show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Evidence {
    /// A connection broke.
    Broken,
    /// All connections broke and were refused.
    Ended,
}

impl LivenessObserver {
    pub(crate) fn new() -> Result<LivenessObserver, Errno> {
        Ok(LivenessObserver {
            epoll: epoll::create(CreateFlags::CLOEXEC)?,
            connections: Vec::new(),
            last_token: 0,
        })
    }

    /// The descriptor that becomes readable when a connection breaks.
    pub(crate) fn wait_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Observes a peer over these pairs of a local and a remote address, and closes its other connections. An empty
    /// list closes all.
    pub(crate) fn observe(&mut self, peer: PeerHandle, pairs: &[(Ipv4Addr, SocketAddrV4)]) {
        self.connections.retain(|connection| {
            connection.peer != peer || pairs.contains(&(connection.from, connection.to))
        });
        for (from, to) in pairs {
            let same = |connection: &Connection| {
                connection.peer == peer && (connection.from, connection.to) == (*from, *to)
            };
            if self.connections.iter().any(same) {
                continue;
            }
            self.last_token += 1;
            self.connections.push(Connection {
                token: self.last_token,
                peer,
                to: *to,
                from: *from,
                socket: None,
                broke_us: None,
                retry_us: 0,
                pause_us: PAUSE_MIN_US,
                offered: false,
                refusals: 0,
            });
        }
    }

    /// When the next connection is to be tried again.
    pub(crate) fn timeout(&self) -> Option<u64> {
        let waits = self
            .connections
            .iter()
            .filter(|connection| connection.socket.is_none());
        waits.map(|connection| connection.retry_us).min()
    }

    /// Makes the connections that are due, and appends the peers whose connections have broken or are refused. Returns
    /// true if there may be more.
    pub(crate) fn poll(&mut self, now_us: u64, gone: &mut Vec<(PeerHandle, Evidence)>) -> bool {
        if self.connections.is_empty() {
            return false;
        }
        let mut events = Vec::with_capacity(BREAKS_MAX);
        let at_once = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // An interruption loses nothing: what is ready stays ready.
        let _ = epoll::wait(&self.epoll, spare_capacity(&mut events), Some(&at_once));
        for event in &events {
            let token = event.data.u64();
            if let Some(connection) = self
                .connections
                .iter_mut()
                .find(|connection| connection.token == token)
            {
                let evidence = connection.broken(now_us);
                gone.extend(evidence.map(|evidence| (connection.peer, evidence)));
            }
        }
        for connection in &mut self.connections {
            if connection.socket.is_none() && connection.retry_us <= now_us {
                let evidence = connection.try_again(now_us, &self.epoll);
                gone.extend(evidence.map(|evidence| (connection.peer, evidence)));
            }
        }
        let is_refused = |one: &Connection| one.socket.is_none() && one.refusals >= REFUSALS;
        gone.retain(|(peer, evidence)| {
            let mut others = self.connections.iter().filter(|one| one.peer == *peer);
            *evidence == Evidence::Broken || others.all(is_refused)
        });
        events.len() == BREAKS_MAX
    }
}

impl Connection {
    /// Notes that the connection has broken. Returns what that shows.
    fn broken(&mut self, now_us: u64) -> Option<Evidence> {
        match self.socket.take().map(|socket| socket_error(&socket)) {
            Some(Ok(Ok(()) | Err(Errno::CONNRESET))) => {
                (self.offered, self.refusals) = (true, 0);
                let before_us = self.broke_us.replace(now_us);
                self.pause_us = PAUSE_MIN_US;
                // Where each one is reset, trying it at once would never end.
                self.retry_us = match before_us.is_some_and(|at| now_us < at + PAUSE_MIN_US) {
                    true => now_us + PAUSE_MIN_US,
                    false => now_us,
                };
                Some(Evidence::Broken)
            }
            Some(Ok(Err(Errno::CONNREFUSED))) => self.refused(now_us),
            _ => self.put_off(now_us),
        }
    }

    /// The peer has refused the connection. That is evidence if it offered one before.
    fn refused(&mut self, now_us: u64) -> Option<Evidence> {
        self.put_off(now_us);
        if !self.offered {
            return None;
        }
        self.refusals += 1;
        if self.refusals < REFUSALS {
            (self.retry_us, self.pause_us) = (now_us + REFUSAL_PAUSE_US, PAUSE_MIN_US);
        }
        (self.refusals >= REFUSALS).then_some(Evidence::Ended)
    }

    fn put_off(&mut self, now_us: u64) -> Option<Evidence> {
        self.retry_us = now_us + self.pause_us;
        self.pause_us = (2 * self.pause_us).min(PAUSE_MAX_US);
        None
    }

    /// Tries to connect. Returns what a refusal shows.
    fn try_again(&mut self, now_us: u64, epoll: &OwnedFd) -> Option<Evidence> {
        match self.open(epoll) {
            Ok(socket) => self.socket = Some(socket),
            Err(Errno::CONNREFUSED) => return self.refused(now_us),
            Err(_) => return self.put_off(now_us),
        }
        None
    }

    fn open(&self, epoll: &OwnedFd) -> Result<OwnedFd, Errno> {
        let socket = begin_connection(self.from, self.to)?;
        // epoll always reports hang-ups and errors.
        epoll::add(
            epoll,
            &socket,
            EventData::new_u64(self.token),
            EventFlags::RDHUP,
        )?;
        Ok(socket)
    }
}

/// The address that a socket is bound to; port 0 if it is not bound.
fn address(socket: &OwnedFd) -> Option<SocketAddrV4> {
    getsockname(socket).ok()?.try_into().ok()
}

/// Begins a TCP connection from an address of this node; it may still be under way on return.
pub(crate) fn begin_connection(from: Ipv4Addr, to: SocketAddrV4) -> Result<OwnedFd, Errno> {
    let socket = stream()?;
    bind(&socket, &SocketAddrV4::new(from, 0))?;
    match connect(&socket, &to) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
        Err(error) => Err(error),
    }
}

fn stream() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Systems allow 128 or 4096 waiting connections: the queue is reset when half of the allowed number waits.
    #[test]
    fn the_queue_is_reset_when_it_is_half_full_whatever_the_system_allows() {
        let liveness_connection = LivenessConnection::new().unwrap();
        let at = SocketAddrV4::new(Ipv4Addr::new(127, 41, 53, 1), 7_742);
        liveness_connection.offer(at);
        let socket = liveness_connection.at(at).expect("it is offered");
        listen(socket, 8).unwrap();
        let waits = || waiting(socket.as_fd()).map(|(count, _)| count);
        let mut held = Vec::new();
        for count in 1..=4 {
            liveness_connection.check_queues();
            assert_eq!(waits(), Some(count - 1));
            let one = stream().unwrap();
            assert!(matches!(
                connect(&one, &at),
                Ok(()) | Err(Errno::INPROGRESS)
            ));
            held.push(one);
        }
        assert_eq!(waits(), Some(4));
        liveness_connection.check_queues();
        assert_eq!(waits(), Some(0));
    }

    /// Where each connection is closed at once, such as by a host in between, it is not tried again and again.
    #[test]
    fn a_connection_that_breaks_each_time_is_made_twice_a_second() {
        let listener = std::net::TcpListener::bind("127.41.45.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let std::net::SocketAddr::V4(to) = listener.local_addr().unwrap() else {
            panic!("not an IPv4 address");
        };
        let mut observer = LivenessObserver::new().unwrap();
        let peer = PeerHandle {
            index: 0,
            generation: 0,
        };
        observer.observe(peer, &[(Ipv4Addr::new(127, 41, 45, 2), to)]);
        let (mut made, mut gone) = (0, Vec::new());
        for now_us in (0..3_500_000).step_by(10_000) {
            observer.poll(now_us, &mut gone);
            while let Ok((connection, _)) = listener.accept() {
                drop(connection);
                made += 1;
            }
        }
        assert!((6..=8).contains(&made), "{made}");
        assert!(
            gone.iter()
                .all(|(_, evidence)| *evidence == Evidence::Broken)
        );
    }
}
