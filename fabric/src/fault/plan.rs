//! The faults to inject, their frequency, and counters.

/// The direction of a cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Received messages are dropped.
    In,
    /// Sent messages are dropped.
    Out,
}

/// A rail that is cut in one direction for some time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cut {
    /// Index of the local rail.
    pub rail: usize,
    /// The direction.
    pub direction: Direction,
    /// Start of the cut, microseconds of the host's clock.
    pub from_us: u64,
    /// End of the cut, exclusive; `u64::MAX`: it does not end.
    pub until_us: u64,
}

/// The faults to inject and their frequency. The default injects none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FaultPlan {
    /// Seed of the random numbers.
    pub seed: u64,
    /// Share of messages that are dropped, in millionths.
    pub drop_ppm: u32,
    /// Share of messages that are delivered twice, in millionths.
    pub duplicate_ppm: u32,
    /// Share of messages with one flipped bit, in millionths.
    pub corrupt_ppm: u32,
    /// Share of messages that are held until the next one on their rail has passed, or for `delay_max_us` if
    /// none arrives, in millionths.
    pub reorder_ppm: u32,
    /// Share of messages that are delayed, in millionths.
    pub delay_ppm: u32,
    /// Longest delay, microseconds; each delay is between 0 and this.
    pub delay_max_us: u32,
    /// Rails that are cut.
    pub cuts: Vec<Cut>,
    /// Limit of each rail, in bytes per second, separately for datagrams and for bulk messages; beyond it, the
    /// rail is busy. 0: no limit.
    pub rail_bytes_per_s: u64,
}

impl FaultPlan {
    pub(super) fn is_cut(&self, now_us: u64, rail: usize, direction: Direction) -> bool {
        self.cuts.iter().any(|cut| {
            let now = cut.from_us <= now_us && now_us < cut.until_us;
            now && cut.rail == rail && cut.direction == direction
        })
    }
}

/// The number of faults injected so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FaultCounters {
    /// Messages dropped at random.
    pub dropped: u64,
    /// Messages dropped by a cut.
    pub cut: u64,
    /// Messages delivered twice.
    pub duplicated: u64,
    /// Messages with a flipped bit.
    pub corrupted: u64,
    /// Messages held until the next one passed.
    pub reordered: u64,
    /// Messages delayed.
    pub delayed: u64,
    /// Messages dropped because too many were held.
    pub overflowed: u64,
    /// Datagrams refused because the rail was over its limit.
    pub refused: u64,
}
