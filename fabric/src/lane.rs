//! Lanes of this crate: the provider's endpoints, with a [`SendTag`] for each send.

use crate::peer_handle::PeerHandle;
use crate::select::Tried;
use crate::stats::DropReason;
use muster_provider::{CallError, Refused};

/// A lane whose sends have tags.
pub(crate) type Lane = muster_provider::Lane<SendTag>;

/// What the fabric needs to know about a send when it completes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct SendTag {
    /// Paths that were tried for this message before.
    pub(crate) tried: Tried,
    pub(crate) peer: u32,
    pub(crate) generation: u32,
    /// The path's index in the fabric.
    pub(crate) path: u32,
    pub(crate) bytes: u32,
    /// When another path sends the message if this send has not completed; `u64::MAX` if one has sent it.
    pub(crate) again_us: u64,
}

impl SendTag {
    /// Whether another path has sent the message.
    pub(crate) fn is_sent_again(&self) -> bool {
        self.again_us == u64::MAX
    }

    /// The peer that the send is addressed to.
    pub(crate) fn peer(&self) -> PeerHandle {
        PeerHandle {
            index: self.peer,
            generation: self.generation,
        }
    }
}

/// Why a lane has not accepted a send: the reason to count, and the error if there is one.
pub(crate) fn drop_reason(refused: Refused) -> (DropReason, Option<CallError>) {
    match refused {
        Refused::Busy => (DropReason::RailBusy, None),
        Refused::Error(error) => (DropReason::ProviderError, Some(error)),
    }
}

/// The message in a slot, if it is whole and `is` one of the fabric's own.
pub(crate) fn own(
    lane: &Lane,
    slot: usize,
    length: usize,
    is: fn(&[u8]) -> bool,
) -> Option<Vec<u8>> {
    let bytes = lane.message(slot, length.min(lane.message_max()));
    (length <= lane.message_max() && is(bytes)).then(|| bytes.to_vec())
}
