//! Control channel of stdin: what the parent on the launcher's host (`command::remote`) reports to the launcher,
//! and the loss of that parent.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::SIGHUP;

use muster_sys::process::send_signal;

static CUT: AtomicBool = AtomicBool::new(false);
static LOST: Mutex<BTreeSet<usize>> = Mutex::new(BTreeSet::new());

/// Notes that the parent is gone.
pub fn cut() {
    CUT.store(true, Ordering::Release);
    // Wakes the loop, which waits for signals among other things. Once the channel is cut it ignores this
    // signal.
    let _ = send_signal(std::process::id(), SIGHUP);
}

/// Whether the parent is gone.
pub(super) fn is_cut() -> bool {
    CUT.load(Ordering::Acquire)
}

/// Notes that the launcher of this node was not started, or is lost.
pub fn lose(node: usize) {
    nodes().insert(node);
}

/// The nodes for which that was noted.
pub(super) fn lost() -> Vec<usize> {
    nodes().iter().copied().collect()
}

fn nodes() -> std::sync::MutexGuard<'static, BTreeSet<usize>> {
    LOST.lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}
