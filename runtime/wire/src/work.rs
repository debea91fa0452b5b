//! Work: how many members, links and requests an input looks at, for tests that it is few in any view.
//!
//! It is counted in builds with debug assertions, since the counter is read by tests of the crates above.

#[cfg(debug_assertions)]
std::thread_local! {
    static VISITS: core::cell::Cell<usize> = const { core::cell::Cell::new(0) };
}

/// Counts that a member, a link or a request is looked at by a walk, or that a link or a request is looked up.
#[inline]
pub fn visited() {
    #[cfg(debug_assertions)]
    VISITS.with(|visits| visits.set(visits.get() + 1));
}

/// How often `visited` was called in this thread.
#[cfg(debug_assertions)]
#[must_use]
pub fn visits() -> usize {
    VISITS.with(core::cell::Cell::get)
}
