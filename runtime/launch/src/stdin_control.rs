//! What a launcher hears from whoever started it on its host (`cli::run::remote`), and that this one is gone.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::SIGHUP;

use muster_sys::process::send_signal;

static CUT: AtomicBool = AtomicBool::new(false);
static LOST: Mutex<BTreeSet<usize>> = Mutex::new(BTreeSet::new());

/// Nobody is at the other end any more.
pub fn cut() {
    CUT.store(true, Ordering::Release);
    // The loop waits for signals, among other things; once the cord is cut it takes this one for nothing else.
    let _ = send_signal(std::process::id(), SIGHUP);
}

/// Whether somebody has said so.
pub(super) fn is_cut() -> bool {
    CUT.load(Ordering::Acquire)
}

/// The launcher of this node was not started, or is lost.
pub fn lose(node: usize) {
    nodes().insert(node);
}

/// Nodes of which that was said.
pub(super) fn lost() -> Vec<usize> {
    nodes().iter().copied().collect()
}

fn nodes() -> std::sync::MutexGuard<'static, BTreeSet<usize>> {
    LOST.lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}
