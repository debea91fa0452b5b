//! `LogWriter` writes the agent's log on a thread of its own.
//!
//! A write to a file may wait for a busy disk, and a write to a pipe or a terminal for its reader, without a limit. A
//! loop that waits there sends no heartbeats, and its node is found failed. So the loop only queues lines. Lines that
//! find the queue full are dropped and counted, and the log states how many are missing.

use super::line_queue::{LineReceiver, LineSender, line_queue};
use muster_sys::priority_queue::{Sender, queue};
use std::io::{self, Write};
use std::time::Duration;

/// Bytes of the lines that wait: some thousand lines.
const BYTES_MAX: usize = 256 << 10;
/// Requests for a message when all lines before the request are written.
const FLUSHES_MAX: usize = 4;

/// The loop's end of the queue.
pub(super) struct LogWriter(LineSender<Sender<()>>);

impl LogWriter {
    /// Starts a thread that writes to `sink` until the writer is dropped.
    ///
    /// # Errors
    /// No thread or no queue could be made.
    pub(super) fn start(sink: impl Write + Send + 'static) -> io::Result<Self> {
        let (sender, lines) = line_queue(BYTES_MAX, FLUSHES_MAX)?;
        std::thread::Builder::new()
            .name("muster-log".into())
            .stack_size(256 << 10)
            .spawn(move || write_all(lines, sink))?;
        Ok(Self(sender))
    }

    /// Queues a line. It does not wait.
    pub(super) fn write(&self, line: &[u8]) {
        self.0.add(line);
    }

    /// Waits until all queued lines are written, for at most `timeout`.
    pub(super) fn flush(&self, timeout: Duration) {
        let Ok((done, written)) = queue(1) else {
            return;
        };
        // A full queue is not being emptied: waiting is useless.
        if self.0.request(done) {
            let _ = written.recv_timeout(timeout);
        }
    }

    /// Lines that found the queue full.
    pub(super) fn lost(&self) -> u64 {
        self.0.lost()
    }
}

/// The thread. A failed write is not reported: there is no other place for it, and the next one may succeed.
fn write_all(mut lines: LineReceiver<Sender<()>>, mut sink: impl Write) {
    let mut reported = 0;
    while let Ok(taken) = lines.next(Duration::MAX) {
        let lost = taken.lost;
        let _ = sink.write_all(taken.lines);
        if lost > reported {
            let _ = writeln!(
                sink,
                "{} lines were dropped: the log was busy",
                lost - reported
            );
            reported = lost;
        }
        if let Some(done) = taken.request {
            let _ = sink.flush();
            // The loop may have stopped waiting.
            let _ = done.try_send(());
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
        let fit = BYTES_MAX / 8;
        for number in 0..fit + 3 {
            log.write(format!("{number:7}\n").as_bytes());
        }
        assert_eq!(log.lost(), 3);
        drop(go_on);
        log.flush(Duration::from_secs(60));
        drop(log);
        let lines: Vec<String> = lines.iter().collect();
        assert_eq!(lines[0], "first");
        let rest = lines[1..].concat();
        let numbers = rest.lines().take(fit).map(|line| line.trim().parse());
        assert!(numbers.eq((0..fit).map(Ok)));
        let last = rest.lines().last().unwrap();
        assert!(last.starts_with("3 lines were dropped"), "{last}");
    }
}
