//! What the launcher says of processes that ended, brought to one listener.
//!
//! It comes on libpmix's own thread, which everything else in MPI waits for: the listener must not wait for
//! anything, least of all for PMIx.

use std::ffi::CStr;
use std::sync::Mutex;

use super::lock;

/// Is told the rank, of the namespace it asked for.
pub type Listener = Box<dyn Fn(u32) + Send>;

static LISTENER: Mutex<Option<(Box<CStr>, Listener)>> = Mutex::new(None);

/// From now on `listener` is told, and nobody else.
pub(super) fn listen(namespace: &CStr, listener: Listener) {
    *lock(&LISTENER) = Some((namespace.into(), listener));
}

/// From now on nobody is told.
pub(super) fn deafen() {
    *lock(&LISTENER) = None;
}

/// A process of this namespace and rank has ended, says the launcher. A whole namespace is no rank.
pub(super) fn hear(namespace: &CStr, rank: u32) {
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
    fn only_ranks_of_the_own_namespace_are_heard() {
        let (sender, told) = channel();
        listen(c"job.1", Box::new(move |rank| sender.send(rank).unwrap()));
        hear(c"job.2", 3);
        hear(c"job.1", pmix_sys::PMIX_RANK_WILDCARD);
        hear(c"job.1", 4);
        deafen();
        hear(c"job.1", 5);
        assert_eq!(told.iter().collect::<Vec<u32>>(), [4]);
    }
}
