//! The tray between the loop and its log: lines are dropped into it, and a thread of its own writes them.
//!
//! Whoever writes to a file waits while the disk is busy with what others write, and whoever writes to a
//! pipe or a terminal waits for its reader, perhaps for ever. A loop that waits there is silent to
//! everybody, and is held dead for having had something to say. So the loop never writes: a full tray costs
//! lines, which are counted, and the log says how many are missing.

use crate::sys::priority_queue::{Receiver, Sender, queue};
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Lines in the tray, which costs 24 bytes for each, used or not.
const LINES_MAX: usize = 1024;

enum Entry {
    Line(Box<[u8]>),
    /// Say so when everything before this has been written.
    End(Sender<()>),
}

/// The end at which lines are dropped in.
pub(super) struct Tray {
    entries: Sender<Entry>,
    lost: Arc<AtomicU64>,
}

impl Tray {
    /// Puts a thread to work that writes to `sink` until all trays of it are gone.
    ///
    /// # Errors
    /// There can be no more threads.
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

    /// Drops a line in; never waits.
    pub(super) fn put(&self, line: &[u8]) {
        if self.entries.try_send(Entry::Line(line.into())).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Waits until all that was dropped in has been written, but no longer than `patience`.
    pub(super) fn drain(&self, patience: Duration) {
        let Ok((done, written)) = queue(1) else {
            return;
        };
        // A tray that is full is not being emptied: there is nothing to wait for.
        if self.entries.try_send(Entry::End(done)).is_ok() {
            let _ = written.recv_timeout(patience);
        }
    }

    /// Lines that found the tray full.
    pub(super) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }
}

/// What cannot be written is nowhere to be told: the next line may find a disk with room again.
fn write_all(entries: Receiver<Entry>, lost: &AtomicU64, mut sink: impl Write) {
    let mut told = 0;
    for entry in entries {
        let lost = lost.load(Ordering::Relaxed);
        if lost > told {
            let _ = writeln!(sink, "{} lines were dropped: the log was busy", lost - told);
            told = lost;
        }
        match entry {
            Entry::Line(line) => _ = sink.write_all(&line),
            Entry::End(done) => {
                let _ = sink.flush();
                // Whoever asked may have lost patience.
                let _ = done.try_send(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{self, channel};

    /// Writes a line when it is told to, as a slow disk does.
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
    fn a_log_that_cannot_be_written_costs_lines_and_holds_nobody_up() {
        let (begun, has_begun) = channel();
        let (go_on, may_go_on) = channel();
        let (written, lines) = channel();
        let sink = Slow {
            begun,
            may_go_on,
            written,
        };
        let tray = Tray::start(sink).unwrap();
        tray.put(b"first");
        has_begun.recv().unwrap();
        // The thread is stuck in it: this would never come back if it waited.
        for number in 0..LINES_MAX + 3 {
            tray.put(number.to_string().as_bytes());
        }
        assert_eq!(tray.lost(), 3);
        drop(go_on);
        tray.drain(Duration::from_secs(60));
        drop(tray);
        let lines: Vec<String> = lines.iter().collect();
        assert_eq!(lines[0], "first");
        assert!(lines[1..].concat().starts_with("3 lines were dropped"));
        let last = (LINES_MAX - 1).to_string();
        assert_eq!(lines.last(), Some(&last));
    }
}
