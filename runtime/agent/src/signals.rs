//! Requests to terminate, as a descriptor that an event loop can wait for.

use rustix::io::read;
use signal_hook::SigId;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::low_level;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

/// SIGTERM and SIGINT, while it exists.
pub(super) struct Signals {
    reader: UnixStream,
    registered: Vec<SigId>,
}

impl Signals {
    pub(super) fn install() -> io::Result<Self> {
        let (reader, writer) = UnixStream::pair()?;
        reader.set_nonblocking(true)?;
        let mut registered = Vec::new();
        for signal in [SIGTERM, SIGINT] {
            registered.push(low_level::pipe::register(signal, writer.try_clone()?)?);
        }
        Ok(Self { reader, registered })
    }

    /// Whether a signal has arrived since the last call.
    pub(super) fn take(&mut self) -> bool {
        let mut bytes = [0; 16];
        let mut arrived = false;
        while read(&self.reader, &mut bytes).is_ok_and(|count| count > 0) {
            arrived = true;
        }
        arrived
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.reader.as_fd()
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        for id in self.registered.drain(..) {
            low_level::unregister(id);
        }
    }
}
