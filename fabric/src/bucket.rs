//! A token bucket that limits the bytes a rail may take, where a fault plan limits the rail below its real rate.

/// The bucket holds at most the tokens of one millisecond, or of one message if that is more.
const BURST_US: u64 = 1_000;

/// The unit of a token is a millionth of a byte.
const MILLION: u64 = 1_000_000;

/// Tokens that are left, in millionths of a byte, and the time of that count.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Bucket {
    /// Bytes per second; 0 for no limit.
    pub(crate) bytes_per_s: u64,
    micro: u64,
    at_us: u64,
}

impl Bucket {
    /// Takes this many bytes. Returns false, and takes nothing, if too few tokens are left.
    pub(crate) fn takes(&mut self, now_us: u64, bytes: usize) -> bool {
        if self.bytes_per_s == 0 {
            return true;
        }
        let past_us = now_us.saturating_sub(self.at_us);
        let earned = past_us.saturating_mul(self.bytes_per_s);
        let wanted = bytes as u64 * MILLION;
        let limit = self.bytes_per_s.saturating_mul(BURST_US).max(wanted);
        self.micro = self.micro.saturating_add(earned).min(limit);
        self.at_us = now_us;
        let has = self.micro >= wanted;
        if has {
            self.micro -= wanted;
        }
        has
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// At 1 MB/s, one megabyte passes in one second, whatever the size of a message.
    #[test]
    fn the_rate_holds_for_messages_of_any_size() {
        for bytes in [100, 1_000, 16_400, 100_000] {
            let mut bucket = Bucket {
                bytes_per_s: 1_000_000,
                ..Bucket::default()
            };
            let ticks = (1..=100_000_u64).map(|tick| tick * 10);
            let passed = ticks.filter(|at_us| bucket.takes(*at_us, bytes)).count();
            let wanted = 1_000_000 / bytes;
            assert!(
                passed.abs_diff(wanted) <= 1,
                "{bytes}: {passed} of {wanted}"
            );
        }
    }
}
