//! `Closer` closes rails of devices.

use crate::rail::Rail;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// The longest wait for a device that is being closed.
const WAIT_MAX: Duration = Duration::from_secs(10);

/// Closes rails in threads of their own: the provider of a device may take seconds (2 s with `o2ud` and libfabric
/// 1.17), and the host's loop must not.
#[derive(Debug, Clone, Default)]
pub(crate) struct Closer(Arc<(Mutex<usize>, Condvar)>);

/// A rail that is being closed.
struct Closing {
    closer: Closer,
    rail: Option<Rail>,
}

impl Closer {
    pub(super) fn close(&self, rail: Rail) {
        if !rail.nid.net.kind.has_device() {
            return drop(rail);
        }
        *self.count() += 1;
        let closing = Closing {
            closer: self.clone(),
            rail: Some(rail),
        };
        let thread = thread::Builder::new().name("muster-closes".into());
        // If there is no thread for it, the rail is closed here, with the closure.
        let _ = thread.spawn(move || drop(closing));
    }

    /// Waits until all are closed, so that their addresses can be used again.
    pub(super) fn wait(&self) {
        let (_, ended) = &*self.0;
        let _ = ended.wait_timeout_while(self.count(), WAIT_MAX, |count| *count > 0);
    }

    fn count(&self) -> std::sync::MutexGuard<'_, usize> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Closing {
    fn drop(&mut self) {
        self.rail = None;
        *self.closer.count() -= 1;
        self.closer.0.1.notify_all();
    }
}
