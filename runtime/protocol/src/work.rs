//! Work: how many members, links and requests an input looks at, for tests that it is few in any view.

#[cfg(test)]
thread_local! {
    static VISITS: core::cell::Cell<usize> = const { core::cell::Cell::new(0) };
}

/// Counts that a member, a link or a request is looked at by a walk, or that a link or a request is looked up.
pub(crate) fn visited() {
    #[cfg(test)]
    VISITS.with(|visits| visits.set(visits.get() + 1));
}

/// How often `visited` was called in this thread.
#[cfg(test)]
pub(crate) fn visits() -> usize {
    VISITS.with(core::cell::Cell::get)
}
