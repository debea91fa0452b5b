//! The control channel: what the parent on the launcher's host (`command::remote`) reports to the launcher, and the
//! loss of that parent. A thread writes here what it reads from standard input.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use signal_hook::consts::SIGHUP;

use muster_sys::process::send_signal;

/// What has come over the channel.
#[derive(Debug, Default)]
pub(crate) struct ControlChannel {
    is_cut: AtomicBool,
    lost: Mutex<BTreeSet<usize>>,
}

impl ControlChannel {
    /// Notes that the parent is gone.
    pub(crate) fn cut(&self) {
        self.is_cut.store(true, Ordering::Release);
        // Wakes the loop, which waits for signals among other things. Once the channel is cut it ignores this
        // signal.
        let _ = send_signal(std::process::id(), SIGHUP);
    }

    /// Whether the parent is gone.
    pub(super) fn is_cut(&self) -> bool {
        self.is_cut.load(Ordering::Acquire)
    }

    /// Notes that the launcher of this node was not started, or is lost.
    pub(crate) fn lose(&self, node: usize) {
        self.nodes().insert(node);
    }

    /// The nodes for which that was noted since the last call.
    pub(super) fn take_lost(&self) -> BTreeSet<usize> {
        std::mem::take(&mut self.nodes())
    }

    fn nodes(&self) -> MutexGuard<'_, BTreeSet<usize>> {
        self.lost.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
