//! Time: a number of microseconds, given by the host.
//!
//! Its origin is not defined. The host uses its monotonic clock, the simulator its virtual one, and a test
//! a constant. The clocks of the standard library serve neither: they cannot be set to a number, or they jump.

/// A point in time, in microseconds since an origin that only the host knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(pub u64);

impl Instant {
    /// Later than any time of a host: no timer is running.
    pub const NEVER: Self = Self(u64::MAX);

    /// The instant `duration_us` microseconds later; stops at [`Instant::NEVER`].
    #[must_use]
    pub const fn after(self, duration_us: u64) -> Self {
        Self(self.0.saturating_add(duration_us))
    }

    /// Microseconds from `earlier` to `self`; zero if `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}
