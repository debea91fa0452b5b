//! The event listener: receives the launcher's reports of ended processes and passes them to one `Listener`.
//!
//! They arrive on libpmix's own thread, which all other PMIx calls of MPI depend on: the listener must not wait for
//! anything, least of all for PMIx.

use std::ffi::CStr;
use std::sync::Mutex;

use super::lock;

/// Called with each reported rank of the namespace that was given to `listen`.
pub type Listener = Box<dyn Fn(u32) + Send>;

static LISTENER: Mutex<Option<(Box<CStr>, Listener)>> = Mutex::new(None);

/// From now on, `listener` gets the reports, and no other one.
pub(super) fn listen(namespace: &CStr, listener: Listener) {
    *lock(&LISTENER) = Some((namespace.into(), listener));
}

/// From now on, no listener gets the reports.
pub(super) fn stop() {
    *lock(&LISTENER) = None;
}

/// Passes on the launcher's report that a process of this namespace and rank has ended. A report about a whole
/// namespace is ignored.
pub(super) fn report(namespace: &CStr, rank: u32) {
    if let Some((own, listener)) = &*lock(&LISTENER)
        && **own == *namespace
        && rank < pmix_sys::PMIX_RANK_WILDCARD
    {
        listener(rank);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn only_ranks_of_the_own_namespace_are_reported() {
        let (sender, reported) = channel();
        listen(c"job.1", Box::new(move |rank| sender.send(rank).unwrap()));
        report(c"job.2", 3);
        report(c"job.1", pmix_sys::PMIX_RANK_WILDCARD);
        report(c"job.1", 4);
        stop();
        report(c"job.1", 5);
        assert_eq!(reported.iter().collect::<Vec<u32>>(), [4]);
    }
}
