//! Counters: what went out, what came in, and why something did not; and how busy things are.
//!
//! The same set is kept for each rail and for each path of a peer, so that the sums can be checked
//! against each other. Counters only grow; they start at zero with the fabric or the peer, and when
//! they are set to zero by hand.

/// Why a message was not sent, or not delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum DropReason {
    /// The peer's handle is not, or no longer, valid.
    UnknownPeer,
    /// The peer is known, and no local rail is on a net of its.
    NoPath,
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
    /// Arrived on a bulk lane, and was stale, malformed, or of a peer that is unknown.
    BulkRefused,
    /// Came through another member or was to be carried on, and relaying is off here.
    RelayOff,
    /// The same, and the envelope contradicts itself, does not prove the key, or was carried already.
    RelayMalformed,
    /// The same, and one of the three members is not known here.
    RelayStranger,
    /// To be carried on, and its sender, or all together, had as much carried as they may.
    RelayRate,
    /// To be carried on, and no direct pair leads on, or its lane was busy for too long.
    RelayNoPath,
    /// Came through another member or was to be carried on, and had come already, or is of an earlier life of its
    /// sender.
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
        DropReason::RelayStranger,
        DropReason::RelayRate,
        DropReason::RelayNoPath,
        DropReason::RelayRepeated,
    ];

    /// The reason as a word for tables and metrics.
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
            DropReason::RelayStranger => "relay_stranger",
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
    /// Messages that arrived; on a path, those that the host proved to come from the peer.
    pub receives: u64,
    /// Bytes of the messages that arrived; not kept for a path.
    pub receive_bytes: u64,
    /// Times that an answer did not come: a peer that fell silent here while it was heard elsewhere,
    /// or a send that the provider gave up.
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

/// What is used loses half of its heat in this time.
pub const USAGE_HALF_LIFE_US: u64 = 1 << 20;

/// How busy something is: a sum of its uses that decays by half every second or so.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct UsageRate {
    /// In sixteenths, so that little heat fades slowly too.
    sixteenths: u64,
    /// When it was last halved.
    at_us: u64,
}

impl UsageRate {
    pub(crate) fn count(&mut self, now_us: u64) {
        self.cool(now_us);
        self.sixteenths = self.sixteenths.saturating_add(16);
    }

    /// The heat now: in steady use, about three times the uses in a second at most.
    pub(crate) fn at(mut self, now_us: u64) -> u64 {
        self.cool(now_us);
        self.sixteenths / 16
    }

    fn cool(&mut self, now_us: u64) {
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
    fn heat_is_a_sum_of_uses_that_halves() {
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
