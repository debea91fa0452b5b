//! Counters of messages that were sent, received and dropped, and usage rates.
//!
//! The same set of counters is kept for each rail and for each path of a peer, so that the sums can be checked
//! against each other. Counters only grow. They start at zero with the fabric or the peer, and when an operator sets
//! them to zero.

/// Why a message was not sent, or not delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum DropReason {
    /// The peer's handle is not valid, or not any more.
    UnknownPeer,
    /// The peer is known, but no local rail is on one of its nets.
    NoPath,
    /// The message to send is longer than the rail's largest message.
    Oversize,
    /// The rail has its maximum of sends under way, or the provider takes no more now.
    RailBusy,
    /// The peer has its maximum of sends under way on this rail.
    PeerBusy,
    /// The provider refused the message or failed it later.
    ProviderError,
    /// The message that arrived is longer than the rail's largest message.
    ReceivedOversize,
    /// The provider reported a failed receive.
    ReceiveError,
    /// The frame on a bulk lane is stale, malformed, or from an unknown peer.
    BulkRefused,
    /// The envelope arrived while relaying is off on this node.
    RelayOff,
    /// The envelope contradicts itself, does not prove the key, or was carried already.
    RelayMalformed,
    /// One of the three members of the envelope is not known here.
    RelayUnknown,
    /// The envelope exceeds the bytes that may be carried for its sender, or for all senders.
    RelayRate,
    /// The envelope cannot be forwarded: no direct pair works, or its lane was busy for too long.
    RelayNoPath,
    /// The envelope has arrived before, or is from an earlier incarnation of its sender.
    RelayRepeated,
}

impl DropReason {
    /// All reasons, in the order of their counters.
    pub const ALL: [DropReason; 15] = [
        DropReason::UnknownPeer,
        DropReason::NoPath,
        DropReason::Oversize,
        DropReason::RailBusy,
        DropReason::PeerBusy,
        DropReason::ProviderError,
        DropReason::ReceivedOversize,
        DropReason::ReceiveError,
        DropReason::BulkRefused,
        DropReason::RelayOff,
        DropReason::RelayMalformed,
        DropReason::RelayUnknown,
        DropReason::RelayRate,
        DropReason::RelayNoPath,
        DropReason::RelayRepeated,
    ];

    /// The name of the reason in tables and metrics.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            DropReason::UnknownPeer => "unknown_peer",
            DropReason::NoPath => "no_path",
            DropReason::Oversize => "oversize",
            DropReason::RailBusy => "rail_busy",
            DropReason::PeerBusy => "peer_busy",
            DropReason::ProviderError => "provider_error",
            DropReason::ReceivedOversize => "received_oversize",
            DropReason::ReceiveError => "receive_error",
            DropReason::BulkRefused => "bulk_refused",
            DropReason::RelayOff => "relay_off",
            DropReason::RelayMalformed => "relay_malformed",
            DropReason::RelayUnknown => "relay_unknown",
            DropReason::RelayRate => "relay_rate",
            DropReason::RelayNoPath => "relay_no_path",
            DropReason::RelayRepeated => "relay_repeated",
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
    /// Messages that arrived. On a path: messages that the host has authenticated as the peer's.
    pub receives: u64,
    /// Bytes of the messages that arrived; not counted for a path.
    pub receive_bytes: u64,
    /// Missing answers: the peer fell silent here while it was heard elsewhere, or the provider gave up a send.
    pub timeouts: u64,
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

    pub(crate) fn count_timeout(&mut self) {
        self.timeouts += 1;
    }

    pub(crate) fn add(&mut self, other: &Counters) {
        self.sends += other.sends;
        self.send_bytes += other.send_bytes;
        self.receives += other.receives;
        self.receive_bytes += other.receive_bytes;
        self.timeouts += other.timeouts;
        for (sum, drops) in self.drops.iter_mut().zip(&other.drops) {
            *sum += drops;
        }
    }
}

/// The half-life of a usage rate.
pub const USAGE_HALF_LIFE_US: u64 = 1 << 20;

/// A usage rate: a sum of uses that halves every half-life (about a second).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct UsageRate {
    /// In sixteenths of a use, so that a small rate decays gradually too.
    sixteenths: u64,
    /// The time of the last halving.
    at_us: u64,
}

impl UsageRate {
    pub(crate) fn count(&mut self, now_us: u64) {
        self.decay(now_us);
        self.sixteenths = self.sixteenths.saturating_add(16);
    }

    /// The rate now. In steady use it is at most about three times the uses per second.
    pub(crate) fn at(mut self, now_us: u64) -> u64 {
        self.decay(now_us);
        self.sixteenths / 16
    }

    fn decay(&mut self, now_us: u64) {
        let halvings = now_us.saturating_sub(self.at_us) / USAGE_HALF_LIFE_US;
        if halvings > 0 {
            self.sixteenths = self
                .sixteenths
                .checked_shr(halvings.min(64) as u32)
                .unwrap_or(0);
            self.at_us += halvings * USAGE_HALF_LIFE_US;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// dbg-070, dbg-075.
    #[test]
    fn a_usage_rate_is_a_sum_of_uses_that_halves() {
        let mut usage = UsageRate::default();
        (0..8).for_each(|_| usage.count(5));
        assert_eq!(usage.at(5), 8);
        assert_eq!(usage.at(5 + USAGE_HALF_LIFE_US), 4);
        assert_eq!(usage.at(4 * USAGE_HALF_LIFE_US), 0);
        usage.count(3 * USAGE_HALF_LIFE_US);
        assert_eq!(usage.at(3 * USAGE_HALF_LIFE_US), 2);
        assert_eq!(usage.at(u64::MAX), 0);
    }
}
