//! Signals to a launcher, as flags and a descriptor that its loop waits for.

use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2};

/// Those that a launcher takes for its ranks.
const TAKEN: [i32; 5] = [SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2];

/// From its making on, these signals end nothing by themselves.
#[derive(Debug)]
pub struct Signals {
    flags: Vec<(i32, Arc<AtomicBool>)>,
    wake: UnixStream,
}

impl Signals {
    /// Takes them over.
    ///
    /// # Errors
    /// The system's.
    pub fn new() -> std::io::Result<Self> {
        let (wake, end) = UnixStream::pair()?;
        wake.set_nonblocking(true)?;
        let mut flags = Vec::new();
        for signal in TAKEN {
            let flag = Arc::new(AtomicBool::new(false));
            signal_hook::flag::register(signal, Arc::clone(&flag))?;
            signal_hook::low_level::pipe::register(signal, end.try_clone()?)?;
            flags.push((signal, flag));
        }
        Ok(Self { flags, wake })
    }

    /// Those that have come since.
    pub fn take(&self) -> Vec<i32> {
        let mut stream = &self.wake;
        while stream.read(&mut [0; 64]).is_ok_and(|count| count > 0) {}
        let come = self
            .flags
            .iter()
            .filter(|(_, flag)| flag.swap(false, Ordering::AcqRel));
        come.map(|(signal, _)| *signal).collect()
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}
