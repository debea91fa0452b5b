//! Signals to a launcher, as flags and a descriptor for its loop.

use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2};

/// The signals that a launcher handles.
const HANDLED: [i32; 5] = [SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2];

/// Whether the handlers that set the flags are installed. Installed twice, a signal could set its flag again after
/// that was taken.
static HAS_HANDLERS: OnceLock<()> = OnceLock::new();

/// The flags: one list for the process, so that no signal is missed when one `Signals` replaces another.
fn flags() -> &'static [(i32, Arc<AtomicBool>)] {
    static FLAGS: OnceLock<Vec<(i32, Arc<AtomicBool>)>> = OnceLock::new();
    FLAGS.get_or_init(|| HANDLED.map(|signal| (signal, Arc::default())).into())
}

/// The handled signals. Once this exists, they do not end the process by themselves.
#[derive(Debug)]
pub struct Signals {
    wake: UnixStream,
}

impl Signals {
    /// Installs the handlers.
    ///
    /// # Errors
    /// The system's error.
    pub fn new() -> std::io::Result<Self> {
        let (wake, end) = UnixStream::pair()?;
        wake.set_nonblocking(true)?;
        for (signal, flag) in flags() {
            if HAS_HANDLERS.get().is_none() {
                signal_hook::flag::register(*signal, Arc::clone(flag))?;
            }
            signal_hook::low_level::pipe::register(*signal, end.try_clone()?)?;
        }
        let _ = HAS_HANDLERS.set(());
        Ok(Self { wake })
    }

    /// Returns the signals that have arrived since the last call.
    pub fn take(&self) -> Vec<i32> {
        let mut stream = &self.wake;
        while stream.read(&mut [0; 64]).is_ok_and(|count| count > 0) {}
        let flags = flags().iter();
        let arrived = flags.filter(|(_, flag)| flag.swap(false, Ordering::AcqRel));
        arrived.map(|(signal, _)| *signal).collect()
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}
