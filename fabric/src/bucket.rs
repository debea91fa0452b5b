//! A token bucket: what a rail may take, where it is made to take less than it can.

/// As much as can be saved up: what is earned in a millisecond, or one message if that is more.
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
        let wanted = bytes as u64 * MILLION;
        let most = self.bytes_per_s.saturating_mul(BURST_US).max(wanted);
        self.micro = self.micro.saturating_add(earned).min(most);
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

    /// A megabyte a second: in a second as much passes, whatever the size of a message.
    #[test]
    fn what_is_earned_passes_in_messages_of_any_size() {
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
