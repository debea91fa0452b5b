//! Whoever reads what a job says, as the conductor of launchers on other hosts sees him: by what lies in the pipe.
//!
//! The launchers wait for him, each for what its own ranks have said, and one of them may have to do so long after the
//! others have ended. As long as he takes anything it is not given up.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Between two looks at him.
pub(super) const LOOK: Duration = Duration::from_millis(100);
/// A pipe that was full so lately is taken for one that a reader empties slowly.
const LATELY: Duration = Duration::from_secs(1);

/// He, at this process's standard output and error.
pub(super) struct OutputReader {
    outputs: Vec<OwnedFd>,
    /// What lay in them when that was last looked at.
    queued: Vec<u64>,
    /// When this was another number.
    moved: Instant,
    /// When one of them was full.
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

    /// Whether launchers may still wait for him, of whom something was seen within this time. To be asked again and
    /// again, from the moment on from which it matters.
    pub(super) fn keeps_waiting(&mut self, patience: Duration, now: Instant) -> bool {
        let queued = |output| rustix::io::ioctl_fionread(output).unwrap_or(0);
        let queued: Vec<u64> = self.outputs.iter().map(queued).collect();
        if queued != self.queued {
            (self.queued, self.moved) = (queued, now);
        }
        if self.outputs.iter().any(is_full) {
            self.full = now;
        }
        let since = |moment| now.saturating_duration_since(moment);
        since(self.full) < LATELY && since(self.moved) < patience
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
    fn who_takes_something_is_waited_for_and_who_takes_nothing_is_not() {
        let (from, to) = rustix::pipe::pipe().unwrap();
        let (mut from, mut pipe) = (File::from(from), File::from(to.try_clone().unwrap()));
        let start = Instant::now();
        let patience = Duration::from_secs(100);
        let mut output_reader = OutputReader::of(vec![to], start);
        // There is room: nobody waits for him.
        assert!(output_reader.keeps_waiting(patience, start));
        assert!(!output_reader.keeps_waiting(patience, start + LATELY));
        while !is_full(&output_reader.outputs[0]) {
            pipe.write_all(&[0; 4096]).unwrap();
        }
        let mut now = start + LATELY;
        assert!(output_reader.keeps_waiting(patience, now));
        for _ in 0..10 {
            now += patience - LATELY;
            assert!(output_reader.keeps_waiting(patience, now));
            // What is left of a page leaves no room.
            from.read_exact(&mut [0; 100]).unwrap();
            assert!(output_reader.keeps_waiting(patience, now));
        }
        assert!(!output_reader.keeps_waiting(patience, now + patience));
    }
}
