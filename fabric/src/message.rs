//! Messages: their urgency, the paths that they take, and what is known when they arrive.

use crate::peer_handle::PeerHandle;
use crate::select::Tried;
use crate::stats::DropReason;

/// The urgency of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Class {
    /// A regular message; the next one repeats it. It takes the beat lane, so its arrival does not wake the host.
    Beat,
    /// A message with new information. It takes the news lane, so its arrival wakes the host.
    News,
}

/// Options of a bulk message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PutOptions {
    /// The message overtakes messages that are not urgent, but no urgent one.
    pub urgent: bool,
    /// The peer acknowledges the message.
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

/// A question that a peer has sent with [`Fabric::get`](crate::Fabric::get).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Question {
    /// The number of the question, which its answer carries.
    pub number: u64,
    /// The peer's session. The answer carries it too, and is not valid in a later session.
    pub(crate) session: u64,
    /// Whether the question was urgent. Then the answer is, too.
    pub urgent: bool,
    /// The path that it arrived by; none if another member carried it.
    pub(crate) path: Option<u32>,
}

/// Which paths a message takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Route {
    /// One path, by the policy, taking turns over healthy paths. Another path if the provider refuses the message.
    Next,
    /// A copy on every home path.
    All,
}

/// The result of a send. A copy that was sent may still be lost: only an answer proves its arrival.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sent {
    /// Copies that the provider took.
    pub copies: u8,
    /// The last reason why a copy was not sent, if there is one. It has been counted.
    pub dropped: Option<DropReason>,
    /// The paths that failed; [`Fabric::pairs_tried`](crate::Fabric::pairs_tried) returns them as pairs of NIDs.
    pub tried: Tried,
}

/// A message that arrived. It may come from any process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrival<'a> {
    /// Index of the local rail.
    pub rail: usize,
    /// The message.
    pub bytes: &'a [u8],
    /// How another member carried the message; none if it arrived directly.
    pub relayed: Option<Relayed>,
}

/// How a relayed message arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Relayed {
    /// The peer that carried it.
    pub by: PeerHandle,
    /// The sender states that it receives nothing from this node directly.
    pub no_direct_contact: bool,
}
