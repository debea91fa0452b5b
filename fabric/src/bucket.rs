//! A token bucket: what a rail may take, where it is made to take less than it can.

/// As much as can be saved up: what is earned in a millisecond.
const BURST_US: u64 = 1_000;

/// One in a million, the unit of a token.
const MILLION: u64 = 1_000_000;

/// What may still be taken, in millionths of a byte, and when that was so.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Bucket {
    /// Bytes a second; 0 for no limit.
    pub(crate) bytes_per_s: u64,
    micro: u64,
    at_us: u64,
}

impl Bucket {
    /// Takes so many bytes, if they are there.
    pub(crate) fn takes(&mut self, now_us: u64, bytes: usize) -> bool {
        if self.bytes_per_s == 0 {
            return true;
        }
        let past_us = now_us.saturating_sub(self.at_us);
        let earned = past_us.saturating_mul(self.bytes_per_s);
        let most = self.bytes_per_s.saturating_mul(BURST_US);
        self.micro = self.micro.saturating_add(earned).min(most);
        self.at_us = now_us;
        let wanted = bytes as u64 * MILLION;
        let has = self.micro >= wanted;
        if has {
            self.micro -= wanted;
        }
        has
    }
}
