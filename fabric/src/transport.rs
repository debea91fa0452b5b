//! What a host sees of a fabric, whether or not faults are injected into it.
//!
//! [`Fabric`](crate::Fabric) is the real one; [`Faulty`](crate::Faulty) wraps any transport and
//! loses, delays or cuts what passes. Every method takes the time instead of reading a clock.

use crate::error::PeerError;
use crate::nid::NidList;
use crate::peer::{PathView, PeerHandle};
use crate::rail::RailView;
use crate::select::Selection;
use crate::stats::DropReason;
use std::os::fd::BorrowedFd;

/// How urgent a message is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Class {
    /// Regular; the next one will say the same. Goes by the beat lane: its arrival wakes nobody.
    Beat,
    /// Says something new. Goes by the news lane: its arrival wakes the host.
    News,
}

/// Which paths a message takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Route {
    /// One path, in turn over those that are healthy; another one if the provider refuses it.
    Next,
    /// A copy on every path.
    All,
}

/// What became of a message. A copy that was sent may still be lost: only an answer proves arrival.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sent {
    /// Copies that the provider took.
    pub copies: u8,
    /// The last reason why a copy was not sent, if any was not. It has been counted.
    pub dropped: Option<DropReason>,
}

/// A message that came in. It may come from anybody.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrival<'a> {
    /// Index of the local rail.
    pub rail: usize,
    /// The message.
    pub bytes: &'a [u8],
}

/// Something the host should know about rails.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FabricEvent {
    /// A watched peer is heard on another rail, but not on this one.
    RailSilent {
        /// The peer.
        peer: PeerHandle,
        /// Index of the local rail.
        rail: usize,
        /// How much longer ago the peer was heard on this rail than on another, microseconds.
        silent_us: u64,
    },
    /// A watched peer is heard again on a rail that was silent.
    RailBack {
        /// The peer.
        peer: PeerHandle,
        /// Index of the local rail.
        rail: usize,
    },
    /// The provider refuses to send on a local rail; others carry its traffic.
    RailFailing {
        /// Index of the local rail.
        rail: usize,
        /// What the provider said last.
        reason: String,
    },
    /// The provider sends on a local rail again.
    RailRecovered {
        /// Index of the local rail.
        rail: usize,
    },
}

/// Messages to and from peers.
pub trait Transport {
    /// The local rails' NIDs, with their ports.
    fn local_nids(&self) -> NidList;

    /// Longest message, in bytes, that every rail can carry.
    fn mtu(&self) -> usize;

    /// State and counters of the local rails.
    fn rails(&self) -> Vec<RailView>;

    /// State and counters of the paths to a peer; empty if the peer is unknown.
    fn paths(&self, peer: PeerHandle) -> Vec<PathView>;

    /// Takes a peer in. Nothing is sent to it.
    ///
    /// # Errors
    /// See [`PeerError`]; after an error the peer is unknown.
    fn peer(&mut self, nids: &NidList) -> Result<PeerHandle, PeerError>;

    /// Forgets a peer; the handle is invalid from then on. Harmless if it already was.
    fn forget(&mut self, peer: PeerHandle);

    /// Chooses the paths of a message that is about to be sent.
    fn select(&mut self, now_us: u64, peer: PeerHandle, route: Route) -> Selection;

    /// Sends a message along one path that was selected.
    ///
    /// # Errors
    /// Why the message was dropped; it has been counted.
    fn post(
        &mut self,
        now_us: u64,
        peer: PeerHandle,
        path: usize,
        class: Class,
        bytes: &[u8],
    ) -> Result<(), DropReason>;

    /// Sends a message to a peer. Never blocks, never waits for room.
    fn send(
        &mut self,
        now_us: u64,
        peer: PeerHandle,
        class: Class,
        route: Route,
        bytes: &[u8],
    ) -> Sent {
        let selection = self.select(now_us, peer, route);
        let mut sent = Sent::default();
        if selection.candidates().is_empty() {
            sent.dropped = Some(DropReason::UnknownPeer);
        }
        for &path in selection.candidates() {
            if sent.copies == selection.wanted() {
                break;
            }
            match self.post(now_us, peer, usize::from(path), class, bytes) {
                Ok(()) => sent.copies += 1,
                Err(reason) => sent.dropped = Some(reason),
            }
        }
        for &path in selection.probes() {
            if self
                .post(now_us, peer, usize::from(path), class, bytes)
                .is_ok()
            {
                sent.copies += 1;
            }
        }
        sent
    }

    /// Delivers what has come in on both lanes, a bounded amount; says whether there may be more.
    /// Beats come first: what was sent before a piece of news is delivered before it.
    fn poll(&mut self, now_us: u64, deliver: &mut dyn FnMut(Arrival<'_>)) -> bool;

    /// Delivers beats only: for a host that was woken by its own timer. News that had come would
    /// have woken it through the descriptors, if [`may_sleep`](Transport::may_sleep) said yes before
    /// it slept.
    fn poll_beats(&mut self, now_us: u64, deliver: &mut dyn FnMut(Arrival<'_>)) -> bool;

    /// Descriptors that become readable when news has come in; to be registered edge-triggered. They
    /// stay the same for the life of the transport. Beats do not touch them.
    fn wait_fds(&self) -> Vec<BorrowedFd<'_>>;

    /// Whether a wait on the descriptors would be woken by whatever news comes next. If not, poll
    /// first. Beats that wait are no reason to stay awake.
    fn may_sleep(&mut self) -> bool;

    /// When [`poll`](Transport::poll) has something to do even if nothing arrives, microseconds.
    fn next_timeout(&self) -> Option<u64>;

    /// Says that an authentic message of this peer has come over this rail.
    fn heard(&mut self, now_us: u64, peer: PeerHandle, rail: usize);

    /// Watches a peer's rails: one that is not heard for longer than the interval, while another
    /// is, gives [`FabricEvent::RailSilent`]. Messages go round the rails: with n rails, an interval
    /// of less than n of the peer's beats would accuse rails that are well. Called again, it only
    /// changes the interval.
    fn watch(&mut self, now_us: u64, peer: PeerHandle, interval_us: u64);

    /// Ends the watch; a rail that was silent counts as healthy again.
    fn unwatch(&mut self, peer: PeerHandle);

    /// The next event about rails. To be called after [`poll`](Transport::poll) said that there is
    /// no more, since only then is it known who was heard on which rail.
    fn poll_event(&mut self) -> Option<FabricEvent>;
}
