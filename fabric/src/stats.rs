//! Counters: what went out, what came in, and why something did not.
//!
//! The same set is kept for each rail and for each path of a peer, so that the sums can be checked
//! against each other. Counters only grow and start at zero with the fabric or the peer.

/// Why a message was not sent, or not delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum DropReason {
    /// The peer's handle is not, or no longer, valid.
    UnknownPeer,
    /// To be sent, and longer than the rail's largest message.
    Oversize,
    /// The rail has as many sends under way as it may, or the provider takes no more now.
    RailBusy,
    /// The peer has as many sends under way on this rail as it may.
    PeerBusy,
    /// The provider refused the message or failed it later.
    ProviderError,
    /// Arrived, and was longer than the rail's largest message.
    ReceivedOversize,
    /// The provider reported a failed receive.
    ReceiveError,
}

impl DropReason {
    /// All reasons, in the order of their counters.
    pub const ALL: [DropReason; 7] = [
        DropReason::UnknownPeer,
        DropReason::Oversize,
        DropReason::RailBusy,
        DropReason::PeerBusy,
        DropReason::ProviderError,
        DropReason::ReceivedOversize,
        DropReason::ReceiveError,
    ];

    /// The reason as a word for tables and metrics.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            DropReason::UnknownPeer => "unknown_peer",
            DropReason::Oversize => "oversize",
            DropReason::RailBusy => "rail_busy",
            DropReason::PeerBusy => "peer_busy",
            DropReason::ProviderError => "provider_error",
            DropReason::ReceivedOversize => "received_oversize",
            DropReason::ReceiveError => "receive_error",
        }
    }
}

/// Counters of one rail, or of one path of a peer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counters {
    /// Messages that the provider took.
    pub sends: u64,
    /// Bytes of those messages.
    pub send_bytes: u64,
    /// Messages that arrived; on a path, those that the host proved to come from the peer.
    pub receives: u64,
    /// Bytes of the messages that arrived; not kept for a path.
    pub receive_bytes: u64,
    drops: [u64; DropReason::ALL.len()],
}

impl Counters {
    /// Messages that were dropped for this reason.
    #[must_use]
    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.drops[reason as usize]
    }

    /// Messages that were dropped for any reason.
    #[must_use]
    pub fn dropped_in_all(&self) -> u64 {
        self.drops.iter().sum()
    }

    pub(crate) fn count_send(&mut self, bytes: usize) {
        self.sends += 1;
        self.send_bytes += bytes as u64;
    }

    pub(crate) fn count_receive(&mut self, bytes: usize) {
        self.receives += 1;
        self.receive_bytes += bytes as u64;
    }

    pub(crate) fn count_drop(&mut self, reason: DropReason) {
        self.drops[reason as usize] += 1;
    }
}
