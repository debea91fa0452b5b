//! `line_queue` makes a bounded queue of lines from the event loop to a thread of normal priority.
//!
//! Memory that one thread allocates and another one frees makes both take the same lock in malloc(3), which does not
//! inherit priority. A thread that is preempted while it holds that lock stops the loop until it gets a processor:
//! 80 ms were measured beside busy loops. So no memory is handed over. A line is copied into a buffer of fixed
//! capacity, and the reader takes all lines at once: it exchanges the buffer for its own, empty one.

use muster_sys::priority_mutex::PriorityMutex;
use muster_sys::priority_queue::{Receiver, Sender, queue};
use std::io;
use std::mem::swap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

/// The end of the loop. A request of type `R` follows the lines before it.
pub(super) struct LineSender<R> {
    shared: Arc<Shared>,
    /// `None` wakes the reader for lines.
    requests: Sender<Option<R>>,
}

/// The end of the other thread.
pub(super) struct LineReceiver<R> {
    shared: Arc<Shared>,
    requests: Receiver<Option<R>>,
    /// The lines that were taken last.
    taken: Vec<u8>,
}

/// What the reader takes at once.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Taken<'a, R> {
    pub(super) lines: &'a [u8],
    /// The number of lines that were dropped so far, the last ones after these.
    pub(super) lost: u64,
    /// A request that follows the lines.
    pub(super) request: Option<R>,
}

struct Shared {
    lines: PriorityMutex<Vec<u8>>,
    lost: AtomicU64,
}

/// A queue of at most `bytes_max` bytes, of which those that are never used take no memory, and of `requests_max`
/// requests.
///
/// # Errors
/// The C library or the kernel does not support priority inheritance.
pub(super) fn line_queue<R>(
    bytes_max: usize,
    requests_max: usize,
) -> io::Result<(LineSender<R>, LineReceiver<R>)> {
    let shared = Arc::new(Shared {
        lines: PriorityMutex::new(Vec::with_capacity(bytes_max))?,
        lost: AtomicU64::new(0),
    });
    let (sender, requests) = queue(requests_max)?;
    let receiver = LineReceiver {
        shared: Arc::clone(&shared),
        requests,
        taken: Vec::with_capacity(bytes_max),
    };
    let requests = sender;
    Ok((LineSender { shared, requests }, receiver))
}

impl<R> LineSender<R> {
    /// Adds a line. It does not wait: a line that finds no room is dropped and counted.
    pub(super) fn add(&self, line: &[u8]) {
        let mut lines = self.shared.lines.lock();
        if lines.len() + line.len() > lines.capacity() {
            self.shared.lost.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let is_first = lines.is_empty();
        lines.extend_from_slice(line);
        drop(lines);
        if is_first {
            // Each request makes the reader take all lines, so a full queue of requests loses nothing.
            let _ = self.requests.try_send(None);
        }
    }

    /// Adds a request. Returns false if there is no room for it.
    pub(super) fn request(&self, request: R) -> bool {
        self.requests.try_send(Some(request)).is_ok()
    }

    /// The number of lines that were dropped.
    pub(super) fn lost(&self) -> u64 {
        self.shared.lost.load(Ordering::Relaxed)
    }
}

impl<R> LineReceiver<R> {
    /// Waits for lines or a request for at most `timeout`, and takes them.
    pub(super) fn next(&mut self, timeout: Duration) -> Result<Taken<'_, R>, RecvTimeoutError> {
        let request = self.requests.recv_timeout(timeout)?;
        self.taken.clear();
        let mut lines = self.shared.lines.lock();
        swap(&mut *lines, &mut self.taken);
        let lost = self.shared.lost.load(Ordering::Relaxed);
        drop(lines);
        Ok(Taken {
            lines: &self.taken,
            lost,
            request,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// For lines that are there already.
    const NOW: Duration = Duration::ZERO;

    #[test]
    fn lines_are_taken_in_order_and_before_a_later_request() {
        let (sender, mut receiver) = line_queue(8, 2).unwrap();
        assert_eq!(receiver.next(NOW), Err(RecvTimeoutError::Timeout));
        sender.add(b"abc\n");
        assert!(sender.request(1));
        sender.add(b"de\n");
        assert!(!sender.request(2), "one for the lines, and one request");
        sender.add(b"f\n");
        assert_eq!(sender.lost(), 1);
        let taken = |lines: &'static [u8], request| {
            Ok(Taken {
                lines,
                lost: 1,
                request,
            })
        };
        assert_eq!(receiver.next(NOW), taken(b"abc\nde\n", None));
        sender.add(b"f\n");
        assert_eq!(receiver.next(NOW), taken(b"f\n", Some(1)));
        drop(sender);
        assert_eq!(receiver.next(NOW), taken(b"", None));
        assert_eq!(receiver.next(NOW), Err(RecvTimeoutError::Disconnected));
    }

    /// Two buffers are all the memory, however many lines pass.
    #[test]
    fn no_memory_is_handed_over() {
        let (sender, mut receiver) = line_queue::<()>(64, 1).unwrap();
        let mut buffers = BTreeSet::new();
        for round in 1..=1000 {
            (0..10).for_each(|_| sender.add(b"a line\n"));
            assert_eq!(sender.lost(), round, "nine of ten have room");
            let lines = receiver.next(NOW).unwrap().lines;
            assert_eq!(lines.len(), 63);
            buffers.insert(lines.as_ptr());
        }
        assert_eq!((buffers.len(), receiver.taken.capacity()), (2, 64));
    }
}
