//! Signals to a launcher, as flags and a descriptor that its loop waits for.

use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2};

/// Those that a launcher takes for its ranks.
const TAKEN: [i32; 5] = [SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2];

/// Whether signals set their flags. Set twice for one signal, a flag that was taken in between would be two.
static IS_NOTED: OnceLock<()> = OnceLock::new();

/// Which have come: one list of the process, so that whoever takes over from another misses none.
fn come() -> &'static [(i32, Arc<AtomicBool>)] {
    static COME: OnceLock<Vec<(i32, Arc<AtomicBool>)>> = OnceLock::new();
    COME.get_or_init(|| TAKEN.map(|signal| (signal, Arc::default())).into())
}

/// From its making on, these signals end nothing by themselves.
#[derive(Debug)]
pub struct Signals {
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
        for (signal, flag) in come() {
            if IS_NOTED.get().is_none() {
                signal_hook::flag::register(*signal, Arc::clone(flag))?;
            }
            signal_hook::low_level::pipe::register(*signal, end.try_clone()?)?;
        }
        let _ = IS_NOTED.set(());
        Ok(Self { wake })
    }

    /// Those that have come since.
    pub fn take(&self) -> Vec<i32> {
        let mut stream = &self.wake;
        while stream.read(&mut [0; 64]).is_ok_and(|count| count > 0) {}
        let come = come().iter();
        let come = come.filter(|(_, flag)| flag.swap(false, Ordering::AcqRel));
        come.map(|(signal, _)| *signal).collect()
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}
