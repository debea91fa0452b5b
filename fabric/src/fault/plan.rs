//! Which faults, how often, and what came of it.

/// Which way a cut works.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Direction {
    /// What arrives is lost.
    In,
    /// What is sent is lost.
    Out,
}

/// A rail that is cut one way for some time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cut {
    /// Index of the local rail.
    pub rail: usize,
    /// Which way.
    pub direction: Direction,
    /// First moment of the cut, microseconds of the host's clock.
    pub from_us: u64,
    /// First moment after the cut; `u64::MAX` for ever.
    pub until_us: u64,
}

/// Which faults, how often. The default has none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FaultPlan {
    /// Decides everything that is left to chance.
    pub seed: u64,
    /// Share of messages that are lost, in millionths.
    pub drop_ppm: u32,
    /// Share of messages that arrive twice, in millionths.
    pub duplicate_ppm: u32,
    /// Share of messages of which one bit is flipped, in millionths.
    pub corrupt_ppm: u32,
    /// Share of messages that are held back until the next one on their rail has passed, or for
    /// `delay_max_us` if none comes, in millionths.
    pub reorder_ppm: u32,
    /// Share of messages that are delayed, in millionths.
    pub delay_ppm: u32,
    /// Longest delay, microseconds; each delay is between 0 and this.
    pub delay_max_us: u32,
    /// Rails that are cut.
    pub cuts: Vec<Cut>,
    /// What each rail takes in a second, in bytes, of datagrams and of bulk messages each; beyond that it is
    /// busy, and says so. 0 for no limit.
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

/// What the plan has done so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FaultCounters {
    /// Lost by chance.
    pub dropped: u64,
    /// Lost by a cut.
    pub cut: u64,
    /// Delivered twice.
    pub duplicated: u64,
    /// Damaged.
    pub corrupted: u64,
    /// Held back for the next one to pass.
    pub reordered: u64,
    /// Delayed.
    pub delayed: u64,
    /// Lost because too many were held back.
    pub overflowed: u64,
    /// Datagrams that were refused because the rail was busy.
    pub refused: u64,
}
