//! Output forwarding (as PRRTE's IOF): a thread for each of the launcher's own outputs writes the ranks' output
//! there, with the rank before each line.
//!
//! The thread reads from the pipe of one rank, writes whole lines, and goes on to the next pipe when these are
//! written. If the reader is slow, the thread waits, the pipes fill, and the ranks block as at any pipe. If the
//! reader leaves, the thread closes the pipes, and a rank that continues to write gets SIGPIPE or EPIPE.
//!
//! When the ranks have ended, their remaining output is in the pipes, and the kernel can count it. That much is
//! still written, however long the reader takes, until the launcher halts the thread. Then the remaining lines are
//! counted and lost.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use super::console::print;
use muster_sys::descriptor::EventFd;
use muster_sys::poll::Epoll;

/// How long output of processes that ranks have left running is waited for: one may hold the pipe for ever.
pub(super) const LAST_OUTPUT: Duration = Duration::from_secs(1);
/// A longer line is passed on in parts, in bytes.
const LINE_MAX: usize = 65_536;
/// Most bytes that are read from a rank at a time.
const READ_MAX: usize = 65_536;
/// A pipe takes a write of this size whole or not at all, and has room for it when it polls writable (PIPE_BUF).
const WRITE_MAX: usize = 4096;
/// The token of the wake-up; those of ranks are their numbers.
const WAKE: u64 = u64::MAX;

/// The pipe of a rank.
struct Pipe {
    pipe: File,
    /// Each line begins with the rank.
    label: bool,
    /// What was read since the last whole line.
    held: Vec<u8>,
    /// Bytes that were in the pipe when the ranks had ended and are not read yet.
    due: u64,
}

impl Pipe {
    /// Adds the whole lines that these bytes complete.
    fn receive(&mut self, rank: u32, bytes: &[u8], lines: &mut Vec<u8>) {
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            let (mut text, is_whole) = match part.strip_suffix(b"\n") {
                Some(text) => (text, true),
                None => (part, false),
            };
            while self.held.len() + text.len() > LINE_MAX {
                let (some, remaining) = text.split_at(LINE_MAX - self.held.len());
                self.held.extend(some);
                self.end_line(rank, lines);
                text = remaining;
            }
            self.held.extend(text);
            if is_whole {
                self.end_line(rank, lines);
            }
        }
    }

    /// Adds a last line that has no line feed.
    fn finish(&mut self, rank: u32, lines: &mut Vec<u8>) {
        if !self.held.is_empty() {
            self.end_line(rank, lines);
        }
    }

    fn end_line(&mut self, rank: u32, lines: &mut Vec<u8>) {
        if self.label {
            lines.extend(format!("{rank}: ").as_bytes());
        }
        lines.append(&mut self.held);
        lines.push(b'\n');
    }
}

/// One of the launcher's outputs, with the thread that writes there.
pub(super) struct Forwarder(Arc<Shared>);

struct Shared {
    node: String,
    name: &'static str,
    to: OwnedFd,
    epoll: Epoll,
    pipes: Mutex<BTreeMap<u32, Pipe>>,
    /// Wakes the thread when all ranks have ended.
    wake: EventFd,
    /// Stays raised once the remaining output is only to be counted.
    halt: EventFd,
    /// Raised when the reader has left, and when the thread has ended.
    notifier: EventFd,
    closed: OnceLock<Instant>,
    is_halted: AtomicBool,
    has_ended: AtomicBool,
    /// The reader has left.
    is_gone: AtomicBool,
    has_failed: AtomicBool,
    /// Bytes that the reader has taken.
    taken: AtomicU64,
    /// Lines that were lost.
    lost: AtomicU64,
}

impl Forwarder {
    /// Starts the thread. `notifier` is raised when the reader has left, and when all is written.
    ///
    /// # Errors
    /// The system's error.
    pub(super) fn start(
        node: &str,
        name: &'static str,
        to: OwnedFd,
        notifier: EventFd,
    ) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            node: node.to_owned(),
            name,
            to,
            epoll: Epoll::new()?,
            pipes: Mutex::default(),
            wake: EventFd::new()?,
            halt: EventFd::new()?,
            notifier,
            closed: OnceLock::new(),
            is_halted: AtomicBool::new(false),
            has_ended: AtomicBool::new(false),
            is_gone: AtomicBool::new(false),
            has_failed: AtomicBool::new(false),
            taken: AtomicU64::new(0),
            lost: AtomicU64::new(0),
        });
        shared.epoll.add(shared.wake.as_fd(), WAKE)?;
        let own = Arc::clone(&shared);
        let write = move || {
            own.forward();
            own.has_ended.store(true, Ordering::Release);
            own.notifier.raise();
        };
        let thread = std::thread::Builder::new().spawn(write);
        thread.map_err(|cause| {
            let why = format!(
                "no thread for the output of ranks: {cause}; raise ulimit -u, or use --output"
            );
            io::Error::other(why)
        })?;
        Ok(Self(shared))
    }

    /// Forwards the output of a rank. If the reader has left, the pipe is closed at once.
    ///
    /// # Errors
    /// The system's error.
    pub(super) fn add(&self, rank: u32, pipe: OwnedFd, label: bool) -> io::Result<()> {
        let mut pipes = lock(&self.0.pipes);
        if !self.is_gone() {
            self.0.epoll.add(pipe.as_fd(), u64::from(rank))?;
            let pipe = File::from(pipe);
            let pipe = Pipe {
                pipe,
                label,
                held: Vec::new(),
                due: 0,
            };
            pipes.insert(rank, pipe);
        }
        Ok(())
    }

    pub(super) fn is_gone(&self) -> bool {
        self.0.is_gone.load(Ordering::Acquire)
    }

    /// Notes that all ranks have ended.
    pub(super) fn close(&self) {
        self.0.closed.get_or_init(Instant::now);
        self.0.wake.raise();
    }

    /// Has the thread count what is not written yet.
    pub(super) fn halt(&self) {
        self.0.is_halted.store(true, Ordering::Release);
        self.0.halt.raise();
        self.0.wake.raise();
    }

    pub(super) fn has_ended(&self) -> bool {
        self.0.has_ended.load(Ordering::Acquire)
    }

    /// How many bytes the reader has taken.
    pub(super) fn taken(&self) -> u64 {
        self.0.taken.load(Ordering::Acquire)
    }

    /// How many lines were lost.
    pub(super) fn lost(&self) -> u64 {
        self.0.lost.load(Ordering::Acquire)
    }

    pub(super) fn name(&self) -> &'static str {
        self.0.name
    }
}

fn lock(pipes: &Mutex<BTreeMap<u32, Pipe>>) -> MutexGuard<'_, BTreeMap<u32, Pipe>> {
    pipes.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    fn forward(&self) {
        let mut ready = Vec::new();
        let mut buffer = vec![0; READ_MAX];
        let mut is_measured = false;
        loop {
            let late = self.closed.get().map(|at| *at + LAST_OUTPUT);
            let remaining = late.map(|at| at.saturating_duration_since(Instant::now()));
            if self.epoll.wait(&mut ready, remaining).is_err() {
                return;
            }
            for one in &ready {
                match u32::try_from(one.token) {
                    Ok(rank) => self.forward_rank(rank, &mut buffer),
                    Err(_) => _ = self.wake.drain(),
                }
            }
            // It may have been closed during the wait.
            let Some(closed) = self.closed.get() else {
                continue;
            };
            let late = *closed + LAST_OUTPUT;
            if !std::mem::replace(&mut is_measured, true) {
                self.measure();
            }
            if self.is_halted() || Instant::now() >= late {
                self.close_drained();
            }
            if lock(&self.pipes).is_empty() {
                return;
            }
        }
    }

    /// Reads a rank's output and writes its whole lines.
    fn forward_rank(&self, rank: u32, buffer: &mut [u8]) {
        // The lock is not held while lines are written, which may take as long as the reader likes.
        let pipe = lock(&self.pipes).remove(&rank);
        let Some(mut pipe) = pipe else { return };
        // A terminal ends with an error (EIO).
        let count = pipe.pipe.read(buffer).unwrap_or(0);
        pipe.due = pipe.due.saturating_sub(count as u64);
        let mut lines = Vec::new();
        pipe.receive(rank, &buffer[..count], &mut lines);
        if count == 0 {
            pipe.finish(rank, &mut lines);
        }
        self.write(&lines);
        let mut pipes = lock(&self.pipes);
        if self.is_gone.load(Ordering::Acquire) {
            pipes.clear();
        } else if count > 0 {
            pipes.insert(rank, pipe);
        }
    }

    /// Notes how much output is in the pipes now that the ranks have ended; it is still to be written.
    fn measure(&self) {
        for pipe in lock(&self.pipes).values_mut() {
            pipe.due = rustix::io::ioctl_fionread(&pipe.pipe).unwrap_or(0);
        }
    }

    /// Closes the pipes of which all output of ranks is read: processes that the ranks left running hold them.
    fn close_drained(&self) {
        let mut lines = Vec::new();
        lock(&self.pipes).retain(|rank, pipe| {
            if pipe.due == 0 {
                pipe.finish(*rank, &mut lines);
            }
            pipe.due > 0
        });
        self.write(&lines);
    }

    fn is_halted(&self) -> bool {
        self.is_halted.load(Ordering::Acquire)
    }

    /// Writes whole lines, or counts them.
    fn write(&self, mut lines: &[u8]) {
        while !lines.is_empty() && !self.is_gone.load(Ordering::Acquire) {
            let (some, remaining) = lines.split_at(next_write(lines));
            match self.write_some(some) {
                Ok(()) => {}
                Err(cause) if cause.kind() == io::ErrorKind::BrokenPipe => {
                    self.is_gone.store(true, Ordering::Release);
                    self.notifier.raise();
                }
                Err(cause) => {
                    let count = some.iter().filter(|byte| **byte == b'\n').count();
                    self.lost.fetch_add(count as u64, Ordering::AcqRel);
                    self.report_error(&cause);
                }
            }
            lines = remaining;
        }
    }

    fn write_some(&self, mut text: &[u8]) -> io::Result<()> {
        while !text.is_empty() {
            self.await_room()?;
            match rustix::io::write(&self.to, &text[..text.len().min(WRITE_MAX)]) {
                Ok(count) => {
                    self.taken.fetch_add(count as u64, Ordering::AcqRel);
                    text = &text[count..];
                }
                Err(Errno::INTR | Errno::AGAIN) => {}
                Err(cause) => return Err(cause.into()),
            }
        }
        Ok(())
    }

    /// Waits until the output is writable.
    fn await_room(&self) -> io::Result<()> {
        loop {
            if self.is_halted() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            let mut both = [
                PollFd::new(&self.to, PollFlags::OUT),
                PollFd::new(&self.halt, PollFlags::IN),
            ];
            match poll(&mut both, None) {
                Ok(_) if !both[0].revents().is_empty() => return Ok(()),
                Ok(_) | Err(Errno::INTR) => {}
                Err(cause) => return Err(cause.into()),
            }
        }
    }

    /// Reports a write error, once, and not after a halt.
    fn report_error(&self, cause: &io::Error) {
        if self.is_halted() || self.has_failed.swap(true, Ordering::AcqRel) {
            return;
        }
        let file = std::fs::read_link(format!("/proc/self/fd/{}", raw_number(&self.to)));
        let file = file.map_or_else(|_| String::new(), |file| format!(" ({})", file.display()));
        print(
            &self.node,
            &format!(
                "{}{file}: {cause}; output of ranks is lost while this lasts; make room, or write elsewhere",
                self.name
            ),
        );
    }
}

fn raw_number(file: &OwnedFd) -> i32 {
    std::os::fd::AsRawFd::as_raw_fd(file)
}

/// How much of these lines to write next: whole lines that a pipe takes at once, or one longer line.
fn next_write(lines: &[u8]) -> usize {
    let is_end = |byte: &u8| *byte == b'\n';
    if lines.len() <= WRITE_MAX {
        return lines.len();
    }
    let last = lines[..WRITE_MAX].iter().rposition(is_end);
    let end = last.or_else(|| lines.iter().position(is_end));
    end.map_or(lines.len(), |end| end + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pipe() -> Pipe {
        let pipe = File::open("/dev/null").unwrap();
        Pipe {
            pipe,
            label: true,
            held: Vec::new(),
            due: 0,
        }
    }

    fn lines_of(parts: &[&[u8]]) -> Vec<u8> {
        let (mut pipe, mut lines) = (pipe(), Vec::new());
        for part in parts {
            pipe.receive(7, part, &mut lines);
            assert!(pipe.held.len() <= LINE_MAX);
        }
        pipe.finish(7, &mut lines);
        lines
    }

    #[test]
    fn lines_do_not_depend_on_how_they_arrive() {
        let input = b"one\n\n\xff\0\xfe\r\nno end";
        let expected = b"7: one\n7: \n7: \xff\0\xfe\r\n7: no end\n";
        for cut in 0..input.len() {
            let (some, remaining) = input.split_at(cut);
            assert_eq!(lines_of(&[some, remaining]), expected, "{cut}");
        }
        assert_eq!(lines_of(&[]), b"");
    }

    #[test]
    fn a_long_line_is_split_and_nothing_is_added() {
        for (size, parts) in [
            (LINE_MAX - 1, 1),
            (LINE_MAX, 1),
            (LINE_MAX + 1, 2),
            (2 * LINE_MAX, 2),
            (3 * LINE_MAX + 5, 4),
        ] {
            let mut input = vec![b'x'; size];
            input.push(b'\n');
            let (some, remaining) = input.split_at(size / 3);
            let lines = lines_of(&[some, remaining]);
            let lines = String::from_utf8(lines).unwrap();
            let text: Vec<&str> = lines.lines().map(|line| &line["7: ".len()..]).collect();
            assert_eq!((text.len(), text.concat().len()), (parts, size));
            assert!(text.iter().all(|text| !text.is_empty()));
        }
    }

    #[test]
    fn whole_lines_are_written_together() {
        let short = b"7: word\n".repeat(2000);
        assert_eq!(next_write(&short), WRITE_MAX / 8 * 8);
        assert_eq!(next_write(&short[..WRITE_MAX]), WRITE_MAX);
        let mut long = vec![b'x'; WRITE_MAX];
        long.extend(b"\nnext\n");
        assert_eq!(next_write(&long), WRITE_MAX + 1);
        assert_eq!(next_write(&long[WRITE_MAX + 1..]), 5);
    }
}
