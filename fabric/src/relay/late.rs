//! Envelopes that wait for the lane on which they are to be forwarded.

use crate::peer_handle::PeerHandle;

/// An envelope that waits for the lane on which it is to be forwarded.
#[derive(Debug)]
pub(crate) struct Late {
    /// The rail that it arrived on.
    pub(crate) rail: usize,
    pub(crate) from: PeerHandle,
    pub(crate) to: PeerHandle,
    pub(crate) bytes: Vec<u8>,
    pub(crate) next_us: u64,
    pub(crate) until_us: u64,
}
