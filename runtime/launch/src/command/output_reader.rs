//! `OutputReader` observes the process that reads this process's standard output and error, by the fill level of the
//! pipes. The launch coordinator uses it.
//!
//! Launchers on other hosts wait until the output of their ranks is read. One launcher may wait long after the others
//! have ended. As long as the reader reads anything, that launcher is not given up.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Interval between two checks of the pipes.
pub(super) const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// A pipe that was full within this time counts as one that a slow reader empties.
const RECENT: Duration = Duration::from_secs(1);

/// The reader of this process's standard output and error.
pub(super) struct OutputReader {
    outputs: Vec<OwnedFd>,
    /// Bytes in the pipes at the last check.
    queued: Vec<u64>,
    /// Time at which the number of bytes last changed.
    moved: Instant,
    /// Time at which one of the pipes was last full.
    full: Instant,
}

impl OutputReader {
    pub(super) fn new(now: Instant) -> Self {
        let outputs = [
            io::stdout().as_fd().try_clone_to_owned(),
            io::stderr().as_fd().try_clone_to_owned(),
        ];
        Self::of(outputs.into_iter().flatten().collect(), now)
    }

    fn of(outputs: Vec<OwnedFd>, now: Instant) -> Self {
        Self {
            queued: vec![0; outputs.len()],
            outputs,
            moved: now,
            full: now,
        }
    }

    /// Whether launchers may still wait for the reader: a pipe is full, and the reader has read something within
    /// `timeout`. Must be called repeatedly, since each call is one check.
    pub(super) fn keeps_waiting(&mut self, timeout: Duration, now: Instant) -> bool {
        let queued = |output| rustix::io::ioctl_fionread(output).unwrap_or(0);
        let queued: Vec<u64> = self.outputs.iter().map(queued).collect();
        if queued != self.queued {
            (self.queued, self.moved) = (queued, now);
        }
        if self.outputs.iter().any(is_full) {
            self.full = now;
        }
        let since = |moment| now.saturating_duration_since(moment);
        since(self.full) < RECENT && since(self.moved) < timeout
    }
}

fn is_full(output: &OwnedFd) -> bool {
    let mut one = [PollFd::new(output, PollFlags::OUT)];
    poll(&mut one, Some(&Timespec::default())).is_ok_and(|ready| ready == 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::{Read, Write};

    #[test]
    fn a_slow_reader_is_waited_for_and_a_stopped_one_is_not() {
        let (from, to) = rustix::pipe::pipe().unwrap();
        let (mut from, mut pipe) = (File::from(from), File::from(to.try_clone().unwrap()));
        let start = Instant::now();
        let timeout = Duration::from_secs(100);
        let mut output_reader = OutputReader::of(vec![to], start);
        // The pipe has room: no launcher waits for the reader.
        assert!(output_reader.keeps_waiting(timeout, start));
        assert!(!output_reader.keeps_waiting(timeout, start + RECENT));
        while !is_full(&output_reader.outputs[0]) {
            pipe.write_all(&[0; 4096]).unwrap();
        }
        let mut now = start + RECENT;
        assert!(output_reader.keeps_waiting(timeout, now));
        for _ in 0..10 {
            now += timeout - RECENT;
            assert!(output_reader.keeps_waiting(timeout, now));
            // A partly read page makes no room for writers.
            from.read_exact(&mut [0; 100]).unwrap();
            assert!(output_reader.keeps_waiting(timeout, now));
        }
        assert!(!output_reader.keeps_waiting(timeout, now + timeout));
    }
}
