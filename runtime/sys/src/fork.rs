//! Detection that this process is a forked child of the one that attached.
//!
//! A child inherits descriptors and mappings but not the library thread: its use of them would be attributed to its
//! parent. A handler of the C library counts forks, so the check costs one load.

use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

static GENERATION: AtomicU32 = AtomicU32::new(0);
static REGISTERED: Once = Once::new();

/// A number that differs between a process and its forked children. The first call registers the
/// handler, so call it before the fork that is to be detected.
pub fn generation() -> u32 {
    REGISTERED.call_once(|| {
        // SAFETY: the handler only increments an atomic, which is safe in a forked child.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
    current()
}

/// The number of this process, without registering the handler.
#[inline]
pub fn current() -> u32 {
    GENERATION.load(Ordering::Relaxed)
}

extern "C" fn in_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}
