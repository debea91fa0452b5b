//! What ranks say, on its way to one of the launcher's own outputs, with the rank before each line.
//!
//! Picture a scribe at a desk, with a tube from each tenant: he takes what has come through one of them, writes whole
//! lines, and reaches for the next tube when these are written. If whoever reads is slow he waits, the tubes fill, and
//! the tenants wait as at any pipe. If the reader leaves, he shuts the tubes: who talks on hears that nobody listens.
//!
//! When the ranks have ended, all that they have said lies in the tubes, which the kernel can count: that much is
//! still written, however long the reader takes, until the launcher says that it is enough. Then the rest is counted.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use super::node::say;
use muster_sys::descriptor::EventFd;
use muster_sys::poll::Epoll;

/// How long the words of processes that ranks have left are waited for: one may hold the pipe for ever.
pub(super) const LAST_OUTPUT: Duration = Duration::from_secs(1);
/// A line that is longer is passed on in parts, in bytes.
const LINE_MAX: usize = 65_536;
/// What is taken from a rank at a time.
const READ_MAX: usize = 65_536;
/// A pipe takes so much whole or not at all, and has room for it when it says that it has any (PIPE_BUF).
const AT_ONCE: usize = 4096;
/// Ranks are numbered from 0.
const WAKE: u64 = u64::MAX;

/// The pipe of a rank.
struct Pipe {
    pipe: File,
    /// Each line begins with the rank.
    label: bool,
    /// Since the last whole line.
    held: Vec<u8>,
    /// What the rank had said when it had ended, as far as it is not read.
    due: u64,
}

impl Pipe {
    /// Adds the whole lines that these bytes end.
    fn hear(&mut self, rank: u32, bytes: &[u8], lines: &mut Vec<u8>) {
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            let (mut text, is_whole) = match part.strip_suffix(b"\n") {
                Some(text) => (text, true),
                None => (part, false),
            };
            while self.held.len() + text.len() > LINE_MAX {
                let (some, rest) = text.split_at(LINE_MAX - self.held.len());
                self.held.extend(some);
                self.end_line(rank, lines);
                text = rest;
            }
            self.held.extend(text);
            if is_whole {
                self.end_line(rank, lines);
            }
        }
    }

    /// What it has said without an end of line is a line as well.
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
    /// Stays raised when the rest is to be counted.
    halt: EventFd,
    /// Told of the reader's leaving, and of the thread's end.
    tell: EventFd,
    closed: OnceLock<Instant>,
    is_halted: AtomicBool,
    has_ended: AtomicBool,
    /// Its reader has left.
    is_gone: AtomicBool,
    has_failed: AtomicBool,
    /// Bytes that were taken.
    taken: AtomicU64,
    /// Lines that were not.
    lost: AtomicU64,
}

impl Forwarder {
    /// Starts the thread. `tell` is raised when the reader has left, and when all is written.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn start(
        node: &str,
        name: &'static str,
        to: OwnedFd,
        tell: EventFd,
    ) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            node: node.to_owned(),
            name,
            to,
            epoll: Epoll::new()?,
            pipes: Mutex::default(),
            wake: EventFd::new()?,
            halt: EventFd::new()?,
            tell,
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
            own.pass_on();
            own.has_ended.store(true, Ordering::Release);
            own.tell.raise();
        };
        let thread = std::thread::Builder::new().spawn(write);
        thread.map_err(|cause| {
            let why =
                format!("no thread for what ranks say: {cause}; raise ulimit -u, or use --output");
            io::Error::other(why)
        })?;
        Ok(Self(shared))
    }

    /// Listens to a rank. Whose reader has left is told so by the end of the pipe.
    ///
    /// # Errors
    /// The system's.
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

    /// All ranks have ended.
    pub(super) fn close(&self) {
        self.0.closed.get_or_init(Instant::now);
        self.0.wake.raise();
    }

    /// What is not written yet is only counted.
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

    /// How many lines he has not.
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
    fn pass_on(&self) {
        let mut ready = Vec::new();
        let mut buffer = vec![0; READ_MAX];
        let mut is_measured = false;
        loop {
            let late = self.closed.get().map(|at| *at + LAST_OUTPUT);
            let rest = late.map(|at| at.saturating_duration_since(Instant::now()));
            if self.epoll.wait(&mut ready, rest).is_err() {
                return;
            }
            for one in &ready {
                match u32::try_from(one.token) {
                    Ok(rank) => self.listen(rank, &mut buffer),
                    Err(_) => _ = self.wake.drain(),
                }
            }
            // It may have been closed while this waited.
            let Some(closed) = self.closed.get() else {
                continue;
            };
            let late = *closed + LAST_OUTPUT;
            if !std::mem::replace(&mut is_measured, true) {
                self.measure();
            }
            if self.is_halted() || Instant::now() >= late {
                self.end_the_others();
            }
            if lock(&self.pipes).is_empty() {
                return;
            }
        }
    }

    /// Takes what a rank has said and writes it.
    fn listen(&self, rank: u32, buffer: &mut [u8]) {
        // Not held while lines are written, which may take as long as their reader likes.
        let pipe = lock(&self.pipes).remove(&rank);
        let Some(mut pipe) = pipe else { return };
        // The end of a terminal is an error (EIO).
        let count = pipe.pipe.read(buffer).unwrap_or(0);
        pipe.due = pipe.due.saturating_sub(count as u64);
        let mut lines = Vec::new();
        pipe.hear(rank, &buffer[..count], &mut lines);
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

    /// What lies in the pipes now that the ranks have ended is still to be written.
    fn measure(&self) {
        for pipe in lock(&self.pipes).values_mut() {
            pipe.due = rustix::io::ioctl_fionread(&pipe.pipe).unwrap_or(0);
        }
    }

    /// Pipes of which all is read that the ranks have said are held by processes that they have left.
    fn end_the_others(&self) {
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
            let (some, rest) = lines.split_at(some_of(lines));
            match self.write_some(some) {
                Ok(()) => {}
                Err(cause) if cause.kind() == io::ErrorKind::BrokenPipe => {
                    self.is_gone.store(true, Ordering::Release);
                    self.tell.raise();
                }
                Err(cause) => {
                    let count = some.iter().filter(|byte| **byte == b'\n').count();
                    self.lost.fetch_add(count as u64, Ordering::AcqRel);
                    self.print_cli_error(&cause);
                }
            }
            lines = rest;
        }
    }

    fn write_some(&self, mut text: &[u8]) -> io::Result<()> {
        while !text.is_empty() {
            self.await_room()?;
            match rustix::io::write(&self.to, &text[..text.len().min(AT_ONCE)]) {
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

    /// Waits for the reader.
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

    /// Once, and not of what was halted.
    fn print_cli_error(&self, cause: &io::Error) {
        if self.is_halted() || self.has_failed.swap(true, Ordering::AcqRel) {
            return;
        }
        let file = std::fs::read_link(format!("/proc/self/fd/{}", own_number(&self.to)));
        let file = file.map_or_else(|_| String::new(), |file| format!(" ({})", file.display()));
        say(
            &self.node,
            &format!(
                "{}{file}: {cause}; what ranks say there is lost while that lasts; make room, or write elsewhere",
                self.name
            ),
        );
    }
}

fn own_number(file: &OwnedFd) -> i32 {
    std::os::fd::AsRawFd::as_raw_fd(file)
}

/// How much of these lines is written next: whole lines that a pipe takes at once, or one that is longer.
fn some_of(lines: &[u8]) -> usize {
    let is_end = |byte: &u8| *byte == b'\n';
    if lines.len() <= AT_ONCE {
        return lines.len();
    }
    let last = lines[..AT_ONCE].iter().rposition(is_end);
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

    fn heard(parts: &[&[u8]]) -> Vec<u8> {
        let (mut pipe, mut lines) = (pipe(), Vec::new());
        for part in parts {
            pipe.hear(7, part, &mut lines);
            assert!(pipe.held.len() <= LINE_MAX);
        }
        pipe.finish(7, &mut lines);
        lines
    }

    #[test]
    fn lines_are_the_same_however_they_come() {
        let said = b"one\n\n\xff\0\xfe\r\nno end";
        let expected = b"7: one\n7: \n7: \xff\0\xfe\r\n7: no end\n";
        for cut in 0..said.len() {
            let (some, rest) = said.split_at(cut);
            assert_eq!(heard(&[some, rest]), expected, "{cut}");
        }
        assert_eq!(heard(&[]), b"");
    }

    #[test]
    fn a_long_line_comes_in_parts_and_nothing_is_added() {
        for (size, parts) in [
            (LINE_MAX - 1, 1),
            (LINE_MAX, 1),
            (LINE_MAX + 1, 2),
            (2 * LINE_MAX, 2),
            (3 * LINE_MAX + 5, 4),
        ] {
            let mut said = vec![b'x'; size];
            said.push(b'\n');
            let (some, rest) = said.split_at(size / 3);
            let lines = heard(&[some, rest]);
            let lines = String::from_utf8(lines).unwrap();
            let text: Vec<&str> = lines.lines().map(|line| &line["7: ".len()..]).collect();
            assert_eq!((text.len(), text.concat().len()), (parts, size));
            assert!(text.iter().all(|text| !text.is_empty()));
        }
    }

    #[test]
    fn whole_lines_are_written_at_once() {
        let short = b"7: word\n".repeat(2000);
        assert_eq!(some_of(&short), AT_ONCE / 8 * 8);
        assert_eq!(some_of(&short[..AT_ONCE]), AT_ONCE);
        let mut long = vec![b'x'; AT_ONCE];
        long.extend(b"\nnext\n");
        assert_eq!(some_of(&long), AT_ONCE + 1);
        assert_eq!(some_of(&long[AT_ONCE + 1..]), 5);
    }
}
