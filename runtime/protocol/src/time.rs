//! Time as the core knows it: a number of microseconds that somebody hands in.
//!
//! Nothing here says when zero was. The host uses its monotonic clock, the simulator its virtual
//! one, and a test can write an instant down. It is not `std::time::Instant`, which cannot be
//! written down, and not wall-clock time, which jumps.

/// A point in time, in microseconds since an origin only the host knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(pub u64);

impl Instant {
    /// Later than every time a host will ever hand in: "no timer is running".
    pub const NEVER: Self = Self(u64::MAX);

    /// The instant `duration_us` microseconds later; stops at [`Instant::NEVER`].
    #[must_use]
    pub const fn after(self, duration_us: u64) -> Self {
        Self(self.0.saturating_add(duration_us))
    }

    /// Microseconds from `earlier` to `self`; zero if `earlier` is in fact later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}
