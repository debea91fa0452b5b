//! The handle of a peer: what all layers know about it.

/// The handle of a known peer. It is invalid once the peer is forgotten.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerHandle {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}
