//! What a host sees of a fabric, whether or not faults are injected into it.
//!
//! [`Fabric`](crate::Fabric) is the real one; [`Faulty`](crate::Faulty) wraps any transport and
//! loses, delays or cuts what passes. Every method takes the time instead of reading a clock.

use crate::error::PeerError;
use crate::health::{HealthState, Pace};
use crate::nid::{Nid, NidList};
use crate::peer::PeerHandle;
use crate::select::{Choice, Selection, TRIES_MAX, Tried};
use crate::stats::DropReason;
use crate::view::{PathView, RailView, Why};
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

/// How a bulk message is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PutOptions {
    /// It passes those that are not urgent, and none that is.
    pub urgent: bool,
    /// The peer acknowledges it.
    pub acked: bool,
}

impl Default for PutOptions {
    fn default() -> PutOptions {
        PutOptions {
            urgent: false,
            acked: true,
        }
    }
}

/// A question that a peer asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Question {
    /// Its number, which its answer carries.
    pub number: u64,
    /// Which session of the peer asks: its answer carries that too, and means nothing to a later one.
    pub(crate) life: u64,
    /// It passed what is not urgent, and so does the answer.
    pub urgent: bool,
    /// The path that it came by; none if another member carried it.
    pub(crate) path: Option<u32>,
}

/// Which paths a message takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Route {
    /// One path, by the policy and in turn over those that are healthy; another one if the provider
    /// refuses it.
    Next,
    /// A copy on every home path.
    All,
}

/// What became of a message. A copy that was sent may still be lost: only an answer proves arrival.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sent {
    /// Copies that the provider took.
    pub copies: u8,
    /// The last reason why a copy was not sent, if any was not. It has been counted.
    pub dropped: Option<DropReason>,
    /// The paths that were in vain; [`Fabric::pairs_tried`](crate::Fabric::pairs_tried) names them.
    pub tried: Tried,
}

/// A message that came in. It may come from anybody.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrival<'a> {
    /// Index of the local rail.
    pub rail: usize,
    /// The message.
    pub bytes: &'a [u8],
    /// It came through another member; none: directly.
    pub relayed: Option<Relayed>,
}

/// How a message came that did not come directly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Relayed {
    /// The peer that carried it.
    pub by: PeerHandle,
    /// Its sender says that it does not hear us directly.
    pub unheard: bool,
}

/// Something the host should know about rails.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FabricEvent {
    /// A watched peer is heard on another rail, and a message on this one is overdue: ask it for a sign
    /// by all rails. Told a few times before the rail counts as silent.
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
        /// How much longer ago the peer was heard on this rail than on another, microseconds.
        silent_us: u64,
        /// Whether the peer was ever heard on it. If not, the two may have no connection there, which is no failure.
        worked: bool,
    },
    /// A watched peer is heard again on a rail that was silent, or the rail leads to it no more.
    RailBack {
        /// The peer.
        peer: PeerHandle,
        /// Index of the local rail.
        rail: usize,
    },
    /// A watched peer is heard through other members only.
    PeerIndirect {
        /// The peer.
        peer: PeerHandle,
    },
    /// A watched peer is heard directly again.
    PeerDirect {
        /// The peer.
        peer: PeerHandle,
    },
    /// Something is to be carried to or from a NID that nobody known here has. Said now and then.
    Stranger {
        /// The NID.
        nid: Nid,
    },
    /// A watched peer's process has ended, as far as its kernel says: its connection broke, or was
    /// refused. It may be back already.
    PeerGone {
        /// The peer.
        peer: PeerHandle,
    },
    /// The provider refuses to send on a local rail; others carry its traffic.
    RailFailing {
        /// Index of the local rail.
        rail: usize,
        /// What the provider said last.
        reason: String,
    },
    /// A bulk message has arrived whole: the peer has said so.
    BulkDone {
        /// The peer.
        peer: PeerHandle,
        /// The message's number.
        message: u64,
    },
    /// A message that nobody acknowledges was taken by the provider; whether it arrives nothing tells.
    BulkSent {
        /// The peer.
        peer: PeerHandle,
        /// The message's number.
        message: u64,
    },
    /// A peer asks; [`Fabric::answer`](crate::Fabric::answer) answers.
    Asked {
        /// The peer.
        peer: PeerHandle,
        /// What stands for the question when it is answered.
        question: Question,
        /// Its words.
        bytes: Vec<u8>,
    },
    /// A question was answered, or was not in time.
    Answered {
        /// The peer.
        peer: PeerHandle,
        /// The question's number.
        question: u64,
        /// The answer; none: the time for it is over, and whatever comes later is dropped.
        answer: Option<Vec<u8>>,
    },
    /// A bulk message was sent as often as it may be, and never acknowledged as a whole. Said once.
    BulkFailed {
        /// The peer.
        peer: PeerHandle,
        /// The message's number.
        message: u64,
        /// The pairs of a local and a remote NID that were tried; none if there was none to try, or the
        /// peer was forgotten.
        tried: Vec<(Nid, Nid)>,
        /// The members that carried it, each by its first NID.
        through: Vec<Nid>,
    },
    /// A piece of news was taken, and failed after all; it went by no other pair and through no other member.
    /// Said once. What is not taken at all, the answer to the call says.
    NewsFailed {
        /// The peer.
        peer: PeerHandle,
        /// The pairs of a local and a remote NID that were tried, as far as they are there still.
        tried: Vec<(Nid, Nid)>,
    },
    /// A message was not taken, or failed, on one pair of a local and a remote NID and goes by another.
    Moved {
        /// The peer.
        peer: PeerHandle,
        /// The pair that failed.
        from: (Nid, Nid),
        /// The pair in its place.
        to: (Nid, Nid),
    },
    /// A local rail's interface has become slower than it was at its best, or is as fast as that again. The
    /// rail is DEGRADED as long as it is slower, and is used all the same.
    RailSpeed {
        /// Index of the local rail.
        rail: usize,
        /// How fast it is now, megabits a second.
        mbits: u32,
        /// How fast it was at its best.
        best_mbits: u32,
    },
    /// The health of a local rail has changed between active and degraded; it is used all the same.
    RailHealth {
        /// Index of the local rail.
        rail: usize,
        /// The state that it has now.
        state: HealthState,
        /// The error that lowered it; empty when it is active again.
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

    /// Longest message, in bytes, that every rail can carry, through another member too.
    fn mtu(&self) -> usize;

    /// State and counters of the local rails.
    fn rails(&self) -> Vec<RailView>;

    /// State and counters of the paths to a peer; empty if the peer is unknown.
    fn paths(&self, peer: PeerHandle) -> Vec<PathView>;

    /// Takes a peer in. Nothing is sent to it.
    ///
    /// # Errors
    /// See [`PeerError`]; after an error the peer is unknown. A NID belongs to one peer only.
    fn peer(&mut self, nids: &NidList) -> Result<PeerHandle, PeerError>;

    /// Gives a known peer these NIDs instead of those that it had; paths that it keeps go on as they
    /// are. NIDs of another peer are refused.
    ///
    /// # Errors
    /// See [`PeerError`]; after an error the peer has the NIDs that it had.
    fn renew(&mut self, peer: PeerHandle, nids: &NidList) -> Result<(), PeerError>;

    /// A peer's NIDs; none if it is unknown.
    fn nids(&self, peer: PeerHandle) -> Option<NidList>;

    /// Forgets a peer; the handle is invalid from then on. Harmless if it already was.
    fn forget(&mut self, peer: PeerHandle);

    /// Chooses the paths of a message that is about to be sent, or is to be tried once more.
    fn select(&mut self, now_us: u64, peer: PeerHandle, route: Route, tried: &Tried) -> Selection;

    /// The local rail of a path that was selected.
    fn rail_of(&self, peer: PeerHandle, path: usize) -> Option<usize>;

    /// Says which path the next message would take, and why none of the others.
    fn why(&self, peer: PeerHandle) -> Why;

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

    /// Sends a copy through other members, if this peer cannot be reached directly, or may not be; says
    /// how many took one. A part of [`send`](Transport::send).
    fn relay(&mut self, now_us: u64, peer: PeerHandle, class: Class, bytes: &[u8]) -> u8;

    /// Notes that a message goes by one path because another did not take it.
    fn moved(&mut self, peer: PeerHandle, from: Choice, to: Choice);

    /// Sends a message to a peer. Never blocks, never waits for room. Messages do not begin with the
    /// mark of an envelope (F5, then `MR3`): they would be taken for one.
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
                        // Busy is no failure.
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

    /// Delivers what has come in on both lanes, a bounded amount; says whether there may be more.
    /// Beats come first: what was sent before a piece of news is delivered before it.
    fn poll(&mut self, now_us: u64, deliver: &mut dyn FnMut(Arrival<'_>)) -> bool;

    /// Delivers beats only: for a host that was woken by its own timer. News that had come would
    /// have woken it through the descriptors, if [`may_sleep`](Transport::may_sleep) said yes before
    /// it slept.
    fn poll_beats(&mut self, now_us: u64, deliver: &mut dyn FnMut(Arrival<'_>)) -> bool;

    /// Descriptors that become readable when news has come in; to be registered edge-triggered. They
    /// stay the same until a rail is added or removed. Beats do not touch them.
    fn wait_fds(&self) -> Vec<BorrowedFd<'_>>;

    /// Whether a wait on the descriptors would be woken by whatever news comes next. If not, poll
    /// first. Beats that wait are no reason to stay awake.
    fn may_sleep(&mut self) -> bool;

    /// When [`poll`](Transport::poll) has something to do even if nothing arrives, microseconds.
    fn next_timeout(&self) -> Option<u64>;

    /// Says that an authentic message of this peer has come over this rail.
    fn heard(&mut self, now_us: u64, peer: PeerHandle, rail: usize);

    /// Says that an authentic message of this peer has come, but through another member: that says
    /// nothing for any rail.
    fn heard_through(&mut self, now_us: u64, peer: PeerHandle, relayed: Relayed);

    /// Watches a peer's rails: one that is not heard at this [`Pace`], while another is, gives
    /// [`FabricEvent::RailLate`] and [`FabricEvent::RailSilent`]; and the end of its process
    /// [`FabricEvent::PeerGone`], if it offers a [`LivenessConnection`](crate::Lifeline). When
    /// nothing comes directly for a while, messages go to the peer through others as well. Called again,
    /// it only changes the pace.
    fn watch(&mut self, now_us: u64, peer: PeerHandle, pace: Pace);

    /// Ends the watch; a rail that was silent counts as healthy again.
    fn unwatch(&mut self, peer: PeerHandle);

    /// Has the bulk lane of each rail take so many bytes a second and no more, for faults on purpose; 0 for
    /// no limit.
    fn limit_bulk(&mut self, bytes_per_s: u64);

    /// The next event about rails. To be called after [`poll`](Transport::poll) said that there is
    /// no more, since only then is it known who was heard on which rail.
    fn poll_event(&mut self) -> Option<FabricEvent>;
}
