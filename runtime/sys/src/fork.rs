//! Knowing that this process is a forked child of the one that attached.
//!
//! A child inherits descriptors and mappings but not the library thread: whatever it did with
//! them would be done in its parent's name. A handler of the C library counts forks, so asking
//! costs one load.

use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

static GENERATION: AtomicU32 = AtomicU32::new(0);
static REGISTERED: Once = Once::new();

/// A number that differs between a process and its forked children. The first call registers the
/// handler, so take it before the fork that matters.
pub fn generation() -> u32 {
    REGISTERED.call_once(|| {
        // SAFETY: the handler only increments an atomic, which is safe in a forked child.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
    current()
}

/// The number of this process, without registering.
#[inline]
pub fn current() -> u32 {
    GENERATION.load(Ordering::Relaxed)
}

extern "C" fn in_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}
