//! `LogWriter` writes the agent's log on a thread of its own.
//!
//! A write to a file may wait for a busy disk, and a write to a pipe or a terminal for its reader, without a limit. A
//! loop that waits there sends no heartbeats, and its node is found failed. So the loop only queues lines. Lines that
//! find the queue full are dropped and counted, and the log states how many are missing.

use muster_sys::priority_queue::{Receiver, Sender, queue};
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Lines in the queue. Each takes 24 bytes, used or not.
const LINES_MAX: usize = 1024;

enum Entry {
    Line(Box<[u8]>),
    /// Asks for a message when all entries before this one are written.
    Flush(Sender<()>),
}

/// The loop's end of the queue.
pub(super) struct LogWriter {
    entries: Sender<Entry>,
    lost: Arc<AtomicU64>,
}

impl LogWriter {
    /// Starts a thread that writes to `sink` until the writer is dropped.
    ///
    /// # Errors
    /// No thread or no queue could be made.
    pub(super) fn start(sink: impl Write + Send + 'static) -> io::Result<Self> {
        let (entries, taken) = queue(LINES_MAX)?;
        let lost = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&lost);
        std::thread::Builder::new()
            .name("muster-log".into())
            .stack_size(256 << 10)
            .spawn(move || write_all(taken, &counted, sink))?;
        Ok(Self { entries, lost })
    }

    /// Queues a line. It does not wait.
    pub(super) fn write(&self, line: &[u8]) {
        if self.entries.try_send(Entry::Line(line.into())).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Waits until all queued lines are written, for at most `timeout`.
    pub(super) fn flush(&self, timeout: Duration) {
        let Ok((done, written)) = queue(1) else {
            return;
        };
        // A full queue is not being emptied: waiting is useless.
        if self.entries.try_send(Entry::Flush(done)).is_ok() {
            let _ = written.recv_timeout(timeout);
        }
    }

    /// Lines that found the queue full.
    pub(super) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }
}

/// The thread. A failed write is not reported: there is no other place for it, and the next one may succeed.
fn write_all(entries: Receiver<Entry>, lost: &AtomicU64, mut sink: impl Write) {
    let mut reported = 0;
    for entry in entries {
        let lost = lost.load(Ordering::Relaxed);
        if lost > reported {
            let _ = writeln!(
                sink,
                "{} lines were dropped: the log was busy",
                lost - reported
            );
            reported = lost;
        }
        match entry {
            Entry::Line(line) => _ = sink.write_all(&line),
            Entry::Flush(done) => {
                let _ = sink.flush();
                // The loop may have stopped waiting.
                let _ = done.try_send(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{self, channel};

    /// Writes a line only when the test allows it, as a slow disk does.
    struct Slow {
        begun: mpsc::Sender<()>,
        may_go_on: mpsc::Receiver<()>,
        written: mpsc::Sender<String>,
    }

    impl Write for Slow {
        fn write(&mut self, line: &[u8]) -> io::Result<usize> {
            let _ = self.begun.send(());
            let _ = self.may_go_on.recv();
            let _ = self
                .written
                .send(String::from_utf8_lossy(line).into_owned());
            Ok(line.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_blocked_log_drops_lines_and_does_not_block_the_loop() {
        let (begun, has_begun) = channel();
        let (go_on, may_go_on) = channel();
        let (written, lines) = channel();
        let sink = Slow {
            begun,
            may_go_on,
            written,
        };
        let log = LogWriter::start(sink).unwrap();
        log.write(b"first");
        has_begun.recv().unwrap();
        // The thread is blocked in its write: a queue that waited would never return.
        for number in 0..LINES_MAX + 3 {
            log.write(number.to_string().as_bytes());
        }
        assert_eq!(log.lost(), 3);
        drop(go_on);
        log.flush(Duration::from_secs(60));
        drop(log);
        let lines: Vec<String> = lines.iter().collect();
        assert_eq!(lines[0], "first");
        assert!(lines[1..].concat().starts_with("3 lines were dropped"));
        let last = (LINES_MAX - 1).to_string();
        assert_eq!(lines.last(), Some(&last));
    }
}
