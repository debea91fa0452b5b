//! Connections of verbs that broke while the links of both nodes stayed up, as by a failure between two switches.
//!
//! `ofi_rxm` keeps such connections for ever ([`NetKind::keeps_broken_connections`]), so two nodes do not hear each
//! other on the rail any more, even if the network works again. A peer that is silent on a rail, and is heard on
//! others, is therefore probed over TCP between the same interfaces, at the address of its liveness connection. If it
//! answers while the rail is still silent, the connection is stale: the rail has to be closed and opened again.
//!
//! Each silence makes a rail stale at most once. One node of two is enough, so one of them waits longer.

#[cfg(doc)]
use crate::NetKind;
use crate::liveness_connection::begin_connection;
use crate::peer_handle::PeerHandle;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::socket_error;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::OwnedFd;

/// For how long a rail is silent before it is probed, on the node with the lower and with the higher address.
const LOWER_US: u64 = 5_000_000;
const HIGHER_US: u64 = 15_000_000;
/// An answer is awaited for so long.
const ANSWER_US: u64 = 1_000_000;
/// The time from one probe to the next.
const PAUSE_US: u64 = 5_000_000;
/// Most silences that are probed. A node watches two or three peers.
const PROBES_MAX: usize = 64;

/// The silences.
#[derive(Debug, Default)]
pub(crate) struct StaleProbes(Vec<Probe>);

#[derive(Debug)]
struct Probe {
    peer: PeerHandle,
    rail: usize,
    from: Ipv4Addr,
    to: SocketAddrV4,
    next_us: u64,
    socket: Option<OwnedFd>,
}

impl StaleProbes {
    /// Notes that a peer is silent on a rail with the address `from`. `to` is the address of its liveness connection.
    pub(crate) fn begin(
        &mut self,
        now_us: u64,
        (peer, rail): (PeerHandle, usize),
        from: Ipv4Addr,
        to: SocketAddrV4,
    ) {
        self.0.retain(|one| (one.peer, one.rail) != (peer, rail));
        let wait_us = if from < *to.ip() { LOWER_US } else { HIGHER_US };
        if self.0.len() < PROBES_MAX {
            self.0.push(Probe {
                peer,
                rail,
                from,
                to,
                next_us: now_us + wait_us,
                socket: None,
            });
        }
    }

    /// When [`poll`](StaleProbes::poll) has something to do.
    pub(crate) fn due_us(&self) -> Option<u64> {
        self.0.iter().map(|one| one.next_us).min()
    }

    /// Sends probes, and ends those of rails that are not silent any more. Returns the rails that are stale.
    pub(crate) fn poll(
        &mut self,
        now_us: u64,
        is_silent: impl Fn(PeerHandle, usize) -> bool,
    ) -> Vec<usize> {
        let mut stale = Vec::new();
        self.0.retain_mut(|one| {
            if now_us < one.next_us {
                return true;
            }
            if !is_silent(one.peer, one.rail) {
                return false;
            }
            if one.step(now_us) {
                stale.push(one.rail);
                return false;
            }
            true
        });
        stale
    }
}

impl Probe {
    /// Sends a probe, or returns whether the last one was answered.
    fn step(&mut self, now_us: u64) -> bool {
        if let Some(socket) = self.socket.take() {
            self.next_us = now_us + PAUSE_US;
            return is_connected(&socket);
        }
        // An error, as of an address that is gone, is no answer: the next probe may get one.
        self.socket = begin_connection(self.from, self.to).ok();
        self.next_us = now_us + ANSWER_US;
        false
    }
}

fn is_connected(socket: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(socket, PollFlags::OUT)];
    let is_ready = poll(&mut fds, Some(&Timespec::default())) == Ok(1);
    is_ready && socket_error(socket) == Ok(Ok(()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    const FROM: Ipv4Addr = Ipv4Addr::new(127, 43, 1, 1);

    const PEER: PeerHandle = PeerHandle {
        index: 0,
        generation: 0,
    };

    /// Polls at each due time until a rail is stale, at most so often; returns it with the time.
    fn stale(probes: &mut StaleProbes, polls: usize) -> Option<(usize, u64)> {
        for _ in 0..polls {
            let now_us = probes.due_us()?;
            if let [rail] = probes.poll(now_us, |_, _| true)[..] {
                return Some((rail, now_us));
            }
        }
        None
    }

    #[test]
    fn a_rail_is_stale_once_if_the_peer_answers() {
        let to = TcpListener::bind((Ipv4Addr::new(127, 43, 1, 2), 0)).unwrap();
        let std::net::SocketAddr::V4(to) = to.local_addr().unwrap() else {
            unreachable!("it is an IPv4 address");
        };
        let mut probes = StaleProbes::default();
        probes.begin(100, (PEER, 3), FROM, to);
        assert_eq!(stale(&mut probes, 2), Some((3, 100 + LOWER_US + ANSWER_US)));
        assert_eq!(probes.due_us(), None);
        probes.begin(100, (PEER, 3), Ipv4Addr::new(127, 43, 1, 3), to);
        assert_eq!(
            stale(&mut probes, 2),
            Some((3, 100 + HIGHER_US + ANSWER_US))
        );
    }

    #[test]
    fn a_rail_is_not_stale_if_nobody_answers_or_it_is_heard_again() {
        let nobody = SocketAddrV4::new(Ipv4Addr::new(127, 43, 1, 2), 9);
        let mut probes = StaleProbes::default();
        probes.begin(0, (PEER, 0), FROM, nobody);
        assert_eq!(stale(&mut probes, 10), None);
        let now_us = probes.due_us().expect("it is probed again");
        assert_eq!(probes.poll(now_us, |_, _| false), [] as [usize; 0]);
        assert_eq!(probes.due_us(), None);
    }
}
