//! The interface of a fabric, with or without injected faults.
//!
//! [`Fabric`](crate::Fabric) is the real transport. [`Faulty`](crate::Faulty) wraps any transport and loses, delays
//! or cuts messages. Every method takes the time as an argument instead of reading a clock.

use crate::error::PeerError;
use crate::message::{Arrival, Class, Question, Relayed, Route, Sent};
use crate::peer_handle::PeerHandle;
use crate::select::{Choice, Selection, TRIES_MAX, Tried};
use crate::stats::DropReason;
use crate::view::{PathView, RailView, Why};
use muster_provider::{Nid, NidList};
use muster_rail_health::{HealthState, Pace};
use std::os::fd::BorrowedFd;

/// An event about rails, peers or bulk messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FabricEvent {
    /// A watched peer is heard on another rail, and a message on this one is overdue. The host should request a sign
    /// of session from the peer on all rails. Reported a few times before the rail counts as silent.
    RailLate {
        /// The peer.
        peer: PeerHandle,
        /// Index of the local rail.
        rail: usize,
    },
    /// A watched peer is heard on another rail, but not on this one.
    RailSilent {
        /// The peer.
        peer: PeerHandle,
        /// Index of the local rail.
        rail: usize,
        /// How much earlier the last message on this rail arrived than the last one on another rail, microseconds.
        silent_us: u64,
        /// Whether the peer was ever heard on the rail. If not, the two may have no connection there, which is not a
        /// failure.
        worked: bool,
    },
    /// A watched peer is heard again on a rail that was silent, or the rail does not lead to it any more.
    RailBack {
        /// The peer.
        peer: PeerHandle,
        /// Index of the local rail.
        rail: usize,
    },
    /// A watched peer is heard only through other members.
    PeerIndirect {
        /// The peer.
        peer: PeerHandle,
    },
    /// A watched peer is heard directly again.
    PeerDirect {
        /// The peer.
        peer: PeerHandle,
    },
    /// An envelope names a NID that no known member has. Reported at a limited rate.
    UnknownNid {
        /// The NID.
        nid: Nid,
    },
    /// A liveness connection of a watched peer broke. Its process may have ended, and may have been restarted already.
    PeerGone {
        /// The peer.
        peer: PeerHandle,
    },
    /// The process of a watched peer has ended, as its kernel says: all its liveness connections broke, and were
    /// refused twice since.
    PeerEnded {
        /// The peer.
        peer: PeerHandle,
    },
    /// The provider refuses to send on a local rail. Other rails carry its traffic.
    RailFailing {
        /// Index of the local rail.
        rail: usize,
        /// The provider's last error.
        reason: String,
    },
    /// The peer has acknowledged a bulk message as a whole.
    BulkDone {
        /// The peer.
        peer: PeerHandle,
        /// The message's number.
        message: u64,
    },
    /// The provider has taken a message without acknowledgement. Its arrival is not known.
    BulkSent {
        /// The peer.
        peer: PeerHandle,
        /// The message's number.
        message: u64,
    },
    /// A peer has sent a question; answer it with [`Fabric::answer`](crate::Fabric::answer).
    Asked {
        /// The peer.
        peer: PeerHandle,
        /// Identifies the question in the answer.
        question: Question,
        /// The bytes of the question.
        bytes: Vec<u8>,
    },
    /// A question was answered, or was not answered in time.
    Answered {
        /// The peer.
        peer: PeerHandle,
        /// The question's number.
        question: u64,
        /// The answer; none if the reply time-out has passed. A later answer is dropped.
        answer: Option<Vec<u8>>,
    },
    /// A bulk message was given up after its last retry without an acknowledgement of the whole. Reported once.
    BulkFailed {
        /// The peer.
        peer: PeerHandle,
        /// The message's number.
        message: u64,
        /// The pairs of a local and a remote NID that were tried; empty if there was none, or if the peer was
        /// forgotten.
        tried: Vec<(Nid, Nid)>,
        /// The members that carried it, each by its first NID.
        through: Vec<Nid>,
    },
    /// The provider took a news message and failed it later, and no other pair and no other member took it. Reported
    /// once. If the provider does not take a message at all, the result of the call reports that.
    NewsFailed {
        /// The peer.
        peer: PeerHandle,
        /// The pairs of a local and a remote NID that were tried, as far as they still exist.
        tried: Vec<(Nid, Nid)>,
    },
    /// A message failed on one pair of a local and a remote NID, and is sent by another.
    Moved {
        /// The peer.
        peer: PeerHandle,
        /// The pair that failed.
        from: (Nid, Nid),
        /// The pair that replaces it.
        to: (Nid, Nid),
        /// Why it failed.
        reason: String,
    },
    /// The interface of a local rail has become slower than its best speed, or as fast as that again. While it is
    /// slower, the rail is DEGRADED but still used.
    RailSpeed {
        /// Index of the local rail.
        rail: usize,
        /// The speed now, Mbit/s.
        mbits: u32,
        /// The best speed so far, Mbit/s.
        best_mbits: u32,
    },
    /// The health of a local rail has changed between active and degraded. The rail is used in both states.
    RailHealth {
        /// Index of the local rail.
        rail: usize,
        /// The new state.
        state: HealthState,
        /// The error that lowered the health; empty when the rail is active again.
        reason: String,
    },
    /// A local rail works again.
    RailRecovered {
        /// Index of the local rail.
        rail: usize,
    },
    /// A local rail stays broken: its link was down, a peer is silent on it that answers TCP connections between the
    /// same interfaces, or its device was removed. The host should close the rail, and open it again.
    RailStale {
        /// Index of the local rail.
        rail: usize,
        /// Why, for messages.
        reason: &'static str,
    },
}

/// A transport of messages to and from peers.
pub trait Transport {
    /// The local rails' NIDs, with their ports.
    fn local_nids(&self) -> NidList;

    /// The longest message, in bytes, that every rail can carry, including in an envelope.
    fn mtu(&self) -> usize;

    /// State and counters of the local rails.
    fn rails(&self) -> Vec<RailView>;

    /// The number of local rails.
    fn rail_count(&self) -> usize;

    /// State and counters of the paths to a peer; empty if the peer is unknown.
    fn paths(&self, peer: PeerHandle) -> Vec<PathView>;

    /// Adds a peer. Nothing is sent to it.
    ///
    /// # Errors
    /// See [`PeerError`]; after an error the peer is unknown. A NID belongs to one peer only.
    fn peer(&mut self, nids: &NidList) -> Result<PeerHandle, PeerError>;

    /// Replaces a known peer's NIDs. Paths that the peer keeps stay as they are. NIDs of another peer are refused.
    ///
    /// # Errors
    /// See [`PeerError`]; after an error the peer has its old NIDs.
    fn renew(&mut self, peer: PeerHandle, nids: &NidList) -> Result<(), PeerError>;

    /// A peer's NIDs; none if it is unknown.
    fn nids(&self, peer: PeerHandle) -> Option<NidList>;

    /// Forgets a peer; its handle is invalid from then on. Does nothing if the handle is invalid already.
    fn forget(&mut self, peer: PeerHandle);

    /// Chooses the paths of a message that is to be sent, or to be tried again.
    fn select(&mut self, now_us: u64, peer: PeerHandle, route: Route, tried: &Tried) -> Selection;

    /// The local rail of a path that was selected.
    fn rail_of(&self, peer: PeerHandle, path: usize) -> Option<usize>;

    /// Explains which path the next message would take, and why not the others.
    fn why(&self, peer: PeerHandle) -> Why;

    /// Sends a message on one selected path.
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

    /// Sends a copy through other members if the peer cannot be reached directly, or perhaps cannot. Returns the
    /// number of members that took one. A part of [`send`](Transport::send).
    fn relay(&mut self, now_us: u64, peer: PeerHandle, class: Class, bytes: &[u8]) -> u8;

    /// Notes that a message is sent by one path because another did not take it.
    fn moved(&mut self, peer: PeerHandle, from: Choice, to: Choice);

    /// Sends a message to a peer. Does not block and does not wait for room. A message must not begin with the mark
    /// of an envelope (F5, then `MR3`): it would be taken for one.
    fn send(
        &mut self,
        now_us: u64,
        peer: PeerHandle,
        class: Class,
        route: Route,
        bytes: &[u8],
    ) -> Sent {
        let mut tried = Tried::default();
        let mut sent = Sent::default();
        let mut failed = None;
        let first = self.select(now_us, peer, route, &tried);
        if first.choices().is_empty() {
            sent.dropped = Some(match self.nids(peer) {
                Some(_) => DropReason::NoPath,
                None => DropReason::UnknownPeer,
            });
        }
        let mut selection = first;
        while !selection.choices().is_empty() {
            for &choice in selection.choices() {
                match self.post(now_us, peer, usize::from(choice.path), class, bytes) {
                    Ok(()) => {
                        sent.copies += 1;
                        if let Some(failed) = failed {
                            self.moved(peer, failed, choice);
                        }
                    }
                    Err(reason) => {
                        // A busy lane is not a failure.
                        let has_failed = reason == DropReason::ProviderError;
                        failed = Some(choice).filter(|_| has_failed && route != Route::All);
                        sent.dropped = Some(reason);
                        tried.note(choice, reason);
                    }
                }
            }
            let is_final = matches!(
                sent.dropped,
                Some(DropReason::Oversize | DropReason::UnknownPeer)
            );
            let given_up = tried.count() as usize >= TRIES_MAX;
            if sent.copies > 0 || route == Route::All || is_final || given_up {
                break;
            }
            selection = self.select(now_us, peer, route, &tried);
        }
        for choice in first.probes() {
            let probed = self.post(now_us, peer, usize::from(choice.path), class, bytes);
            sent.copies += u8::from(probed.is_ok());
        }
        sent.copies += self.relay(now_us, peer, class, bytes);
        sent.tried = tried;
        sent
    }

    /// Delivers a bounded number of messages that have arrived on both lanes. Returns true if there may be more.
    /// Beats come first, so that a beat which was sent before news is delivered before it.
    fn poll(&mut self, now_us: u64, deliver: &mut dyn FnMut(Arrival<'_>)) -> bool;

    /// Delivers beats only: for a host that was woken by its own timer. News would have woken it through the
    /// descriptors, if [`may_sleep`](Transport::may_sleep) returned true before it slept.
    fn poll_beats(&mut self, now_us: u64, deliver: &mut dyn FnMut(Arrival<'_>)) -> bool;

    /// Descriptors that become readable when news has arrived; to be registered edge-triggered. They stay the same
    /// until a rail is added or removed or the bulk lanes are opened. Beats do not signal them, nor does news on rails
    /// whose providers have no descriptors: [`next_timeout`](Transport::next_timeout) says when to poll these.
    fn wait_fds(&self) -> Vec<BorrowedFd<'_>>;

    /// Whether the next news would wake a wait on the descriptors. If not, poll first. Unread beats are no reason to
    /// stay awake.
    fn may_sleep(&mut self) -> bool;

    /// When [`poll`](Transport::poll) has something to do even if nothing arrives, microseconds.
    fn next_timeout(&self) -> Option<u64>;

    /// Notes that an authentic message of this peer has arrived on this rail.
    fn heard(&mut self, now_us: u64, peer: PeerHandle, rail: usize);

    /// Notes that an authentic message of this peer has arrived through another member. It proves nothing about any
    /// rail.
    fn heard_through(&mut self, now_us: u64, peer: PeerHandle, relayed: Relayed);

    /// Watches a peer's rails. A rail on which the peer is not heard at this [`Pace`], while it is heard on another,
    /// gives [`FabricEvent::RailLate`] and [`FabricEvent::RailSilent`]. The end of the peer's process gives
    /// [`FabricEvent::PeerGone`] and [`FabricEvent::PeerEnded`], if the peer offers a
    /// [`LivenessConnection`](crate::LivenessConnection). If nothing arrives directly for a while, messages go to the
    /// peer through other members as well. A second call only changes the pace.
    fn watch(&mut self, now_us: u64, peer: PeerHandle, pace: Pace);

    /// Ends the watch; a rail that was silent counts as healthy again.
    fn unwatch(&mut self, peer: PeerHandle);

    /// Limits the bulk lane of each rail to this many bytes per second, for injected faults; 0 for no limit.
    fn limit_bulk(&mut self, bytes_per_s: u64);

    /// The next event. To be called after [`poll`](Transport::poll) returned that there is no more: only then it is
    /// known which peers were heard on which rail.
    fn poll_event(&mut self) -> Option<FabricEvent>;
}
