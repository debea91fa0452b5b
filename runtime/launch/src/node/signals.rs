//! Signals to a launcher, as flags and a descriptor for its loop.

use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2};

/// The signals that a launcher handles.
const HANDLED: [i32; 5] = [SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2];

/// The handled signals. Once this exists, they do not end the process by themselves. A process makes one and passes it
/// on: with two, a signal would be taken twice.
#[derive(Debug)]
pub struct Signals {
    flags: Vec<(i32, Arc<AtomicBool>)>,
    wake: UnixStream,
}

impl Signals {
    /// Installs the handlers, which stay installed.
    ///
    /// # Errors
    /// The system's error.
    pub fn new() -> std::io::Result<Self> {
        let (wake, end) = UnixStream::pair()?;
        wake.set_nonblocking(true)?;
        let mut flags = Vec::new();
        for signal in HANDLED {
            let flag = Arc::new(AtomicBool::new(false));
            signal_hook::flag::register(signal, Arc::clone(&flag))?;
            signal_hook::low_level::pipe::register(signal, end.try_clone()?)?;
            flags.push((signal, flag));
        }
        Ok(Self { flags, wake })
    }

    /// Returns the signals that have arrived since the last call.
    pub fn take(&self) -> Vec<i32> {
        let mut stream = &self.wake;
        while stream.read(&mut [0; 64]).is_ok_and(|count| count > 0) {}
        let arrived = self.flags.iter();
        let arrived = arrived.filter(|(_, flag)| flag.swap(false, Ordering::AcqRel));
        arrived.map(|(signal, _)| *signal).collect()
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}
