//! Lifelines: connections that say nothing, and break when the peer's process ends.
//!
//! Datagrams to a process that was killed vanish without a word, and its silence takes a deadline to
//! be noticed; but the kernel closes the connections of a process that ends, however it ends, at once.
//! So each rail with an IP address has a listening TCP socket ([`Nid::liveness_address`]), and each observer of
//! a peer connects to it. Nobody accepts: a connection that waits in the kernel's queue costs its owner
//! nothing, wakes nobody, and is reset when the last process that holds the listening socket is gone.
//! An agent whose worker is forked again by its keeper makes the sockets before ([`LivenessConnection::new`]), so
//! that a worker's end is none.
//!
//! A break is evidence of one who was there and is not now, and so is a refusal by one who offered a
//! lifeline before. What follows from it is not decided here; and a peer that cannot be reached at all
//! breaks nothing.

use crate::nid::NIDS_MAX;
#[cfg(doc)]
use crate::nid::Nid;
use crate::peer::PeerHandle;
use crate::provider::waiting;
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

/// Connections that wait in the kernel's queue: those of two observers and of many that ended. The system
/// may allow fewer (`net.core.somaxconn`).
const WAITING_MAX: i32 = 1024;
/// How often that is looked at.
pub(crate) const LOOK_US: u64 = 10_000_000;

/// Sockets of one lifeline: a socket stays at its address for ever, so each address that a rail ever
/// had takes one. Who has used them all up offers no lifeline on further ones.
const SOCKETS_MAX: usize = 4 * NIDS_MAX;

/// A lifeline that broke, or could not be had, is tried again after this; each time that it is
/// refused twice as late.
const PAUSE_MIN_US: u64 = 1_000_000;
const PAUSE_MAX_US: u64 = 60_000_000;

/// Breaks that are read in one go.
const BREAKS_MAX: usize = 64;

/// Sockets that others hold on to, one a rail; bound when the rails are opened. Held by each process
/// that has a copy, such as those that are forked later: where each is bound, its kernel knows.
#[derive(Debug)]
pub struct LivenessConnection {
    sockets: Vec<OwnedFd>,
}

impl LivenessConnection {
    /// Makes the sockets.
    ///
    /// # Errors
    /// The system gives no more.
    pub fn new() -> std::io::Result<LivenessConnection> {
        let sockets = (0..SOCKETS_MAX)
            .map(|_| stream())
            .collect::<Result<Vec<_>, Errno>>()?;
        Ok(LivenessConnection { sockets })
    }

    /// Offers it on a rail. One that a process before us has offered goes on; one that cannot be had
    /// is not offered, and nobody is the worse for it.
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

    /// Offers it no more: who holds on is let go, and nobody else can.
    pub(crate) fn withdraw(&self, at: SocketAddrV4) {
        if let Some(socket) = self.at(at) {
            let _ = shutdown(socket, Shutdown::Both);
        }
    }

    /// Lets go of all who hold on where the queue is half full, long before nobody could hold on any more:
    /// most of them have ended. Those who live hold on again, after a look at us.
    pub(crate) fn look(&self) {
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

/// What we hold on to.
#[derive(Debug)]
pub(crate) struct Held {
    epoll: OwnedFd,
    lines: Vec<Line>,
    last_token: u64,
}

/// One end of a lifeline.
#[derive(Debug)]
struct Line {
    token: u64,
    peer: PeerHandle,
    to: SocketAddrV4,
    from: Ipv4Addr,
    /// None: to be tried again.
    socket: Option<OwnedFd>,
    retry_us: u64,
    pause_us: u64,
    /// The peer is known to offer one: then a refusal says that it is gone. Others never do.
    offered: bool,
}

impl Held {
    pub(crate) fn new() -> Result<Held, Errno> {
        Ok(Held {
            epoll: epoll::create(CreateFlags::CLOEXEC)?,
            lines: Vec::new(),
            last_token: 0,
        })
    }

    /// Becomes readable when a lifeline breaks.
    pub(crate) fn wait_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Holds on to a peer by these ways: from an address of ours to one of theirs. None lets go.
    pub(crate) fn hold(&mut self, peer: PeerHandle, ways: &[(Ipv4Addr, SocketAddrV4)]) {
        self.lines
            .retain(|line| line.peer != peer || ways.contains(&(line.from, line.to)));
        for (from, to) in ways {
            let same = |line: &Line| line.peer == peer && (line.from, line.to) == (*from, *to);
            if self.lines.iter().any(same) {
                continue;
            }
            self.last_token += 1;
            self.lines.push(Line {
                token: self.last_token,
                peer,
                to: *to,
                from: *from,
                socket: None,
                retry_us: 0,
                pause_us: PAUSE_MIN_US,
                offered: false,
            });
        }
    }

    /// When one is to be tried again.
    pub(crate) fn timeout(&self) -> Option<u64> {
        let waits = self.lines.iter().filter(|line| line.socket.is_none());
        waits.map(|line| line.retry_us).min()
    }

    /// Holds on to those that are due; says whose lifelines have broken. True if there may be more.
    pub(crate) fn tend(&mut self, now_us: u64, gone: &mut Vec<PeerHandle>) -> bool {
        if self.lines.is_empty() {
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
            if let Some(line) = self.lines.iter_mut().find(|line| line.token == token) {
                gone.extend(line.broken(now_us).then_some(line.peer));
            }
        }
        for line in &mut self.lines {
            if line.socket.is_none() && line.retry_us <= now_us {
                gone.extend(line.try_again(now_us, &self.epoll).then_some(line.peer));
            }
        }
        events.len() == BREAKS_MAX
    }
}

impl Line {
    /// Notes that it has broken; true if that speaks against the peer.
    fn broken(&mut self, now_us: u64) -> bool {
        let why = self.socket.take().map(|socket| socket_error(&socket));
        let was_held = matches!(why, Some(Ok(Ok(()) | Err(Errno::CONNRESET))));
        let was_refused = matches!(why, Some(Ok(Err(Errno::CONNREFUSED))));
        self.put_off(now_us, was_held);
        self.offered |= was_held;
        was_held || was_refused && self.offered
    }

    fn put_off(&mut self, now_us: u64, was_held: bool) {
        if was_held {
            self.pause_us = PAUSE_MIN_US;
        }
        self.retry_us = now_us + self.pause_us;
        self.pause_us = (2 * self.pause_us).min(PAUSE_MAX_US);
    }

    /// True if the peer has refused at once.
    fn try_again(&mut self, now_us: u64, epoll: &OwnedFd) -> bool {
        let tried = self.open(epoll);
        let refused = matches!(tried, Err(Errno::CONNREFUSED));
        match tried {
            Ok(socket) => self.socket = Some(socket),
            Err(_) => self.put_off(now_us, false),
        }
        refused && self.offered
    }

    fn open(&self, epoll: &OwnedFd) -> Result<OwnedFd, Errno> {
        let socket = stream()?;
        bind(&socket, &SocketAddrV4::new(self.from, 0))?;
        match connect(&socket, &self.to) {
            Ok(()) | Err(Errno::INPROGRESS) => {}
            Err(error) => return Err(error),
        }
        // A hang-up and an error are always told.
        epoll::add(
            epoll,
            &socket,
            EventData::new_u64(self.token),
            EventFlags::RDHUP,
        )?;
        Ok(socket)
    }
}

/// Where a socket is bound; port 0 for one that is not.
fn address(socket: &OwnedFd) -> Option<SocketAddrV4> {
    getsockname(socket).ok()?.try_into().ok()
}

fn stream() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Systems allow 128, or 4096: the queue begins anew when half of what is allowed is used.
    #[test]
    fn the_queue_begins_anew_when_it_is_half_full_whatever_the_system_allows() {
        let liveness_connection = LivenessConnection::new().unwrap();
        let at = SocketAddrV4::new(Ipv4Addr::new(127, 41, 53, 1), 7_742);
        liveness_connection.offer(at);
        let socket = liveness_connection.at(at).expect("it is offered");
        listen(socket, 8).unwrap();
        let waits = || waiting(socket.as_fd()).map(|(count, _)| count);
        let mut held = Vec::new();
        for count in 1..=4 {
            liveness_connection.look();
            assert_eq!(waits(), Some(count - 1));
            let one = stream().unwrap();
            assert!(matches!(
                connect(&one, &at),
                Ok(()) | Err(Errno::INPROGRESS)
            ));
            held.push(one);
        }
        assert_eq!(waits(), Some(4));
        liveness_connection.look();
        assert_eq!(waits(), Some(0));
    }
}
