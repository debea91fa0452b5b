//! `StderrReader` forwards the standard error of launchers on other hosts, and finds in it the message that a launcher
//! has started.
//!
//! A separate thread forwards the output: its reader may be slow, and the handling of signals must not wait for it.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::process::ChildStderr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::output_reader::{OutputReader, POLL_INTERVAL};
use muster_sys::descriptor::EventFd;
use muster_sys::poll::Epoll;

/// The first message of a launcher. Other output does not begin a line with this byte. It is not printed.
const STARTED: &[u8] = b"\x01muster run has come\n";
/// A longer line before that message is forwarded unchanged.
const LINE_MAX: usize = 4096;
/// How long the last output of a host whose ssh has ended is waited for. A process that ssh left may hold the pipe
/// open.
pub(super) const LAST_OUTPUT: Duration = Duration::from_secs(1);

/// Reports to the coordinator that this launcher has started.
pub(super) fn report_start() {
    let _ = io::stderr().write_all(STARTED);
}

/// An event of a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LauncherEvent {
    /// Its launcher has started.
    Started(usize),
    /// Its standard error is closed.
    Closed(usize),
}

/// The standard error of one host.
struct HostPipe {
    pipe: ChildStderr,
    /// Received since the last whole line, while the launcher has not started.
    held: Vec<u8>,
    has_started: bool,
}

/// State that the thread and its owner share.
#[derive(Default)]
struct Open {
    pipes: Mutex<BTreeMap<usize, HostPipe>>,
    /// Number of pipes that are still open.
    open_count: AtomicUsize,
}

/// The reader of all hosts.
pub(super) struct StderrReader {
    open: Arc<Open>,
    epoll: Arc<Epoll>,
    events: Receiver<LauncherEvent>,
}

impl StderrReader {
    /// Starts the thread. It signals `wake` for each event.
    pub(super) fn new(wake: EventFd) -> io::Result<Self> {
        let open = Arc::new(Open::default());
        let epoll = Arc::new(Epoll::new()?);
        let (sender, events) = channel();
        let (all, ready) = (Arc::clone(&open), Arc::clone(&epoll));
        let forward_all = move || forward_all(&all, &ready, &sender, &wake);
        std::thread::Builder::new().spawn(forward_all)?;
        Ok(Self {
            open,
            epoll,
            events,
        })
    }

    pub(super) fn add(&self, index: usize, pipe: ChildStderr) -> io::Result<()> {
        let mut pipes = lock(&self.open);
        self.epoll.add(pipe.as_fd(), index as u64)?;
        self.open.open_count.fetch_add(1, Ordering::AcqRel);
        pipes.insert(index, HostPipe::new(pipe));
        Ok(())
    }

    pub(super) fn take(&self) -> impl Iterator<Item = LauncherEvent> {
        self.events.try_iter()
    }

    /// Waits until all pipes are closed, at most `LAST_OUTPUT`; longer while the reader of this process reads something
    /// within `timeout`.
    pub(super) fn finish(&self, timeout: Duration) {
        let mut until = Instant::now() + LAST_OUTPUT;
        let mut output_reader = OutputReader::new(Instant::now());
        while self.open.open_count.load(Ordering::Acquire) > 0 {
            let now = Instant::now();
            if now >= until {
                if !output_reader.keeps_waiting(timeout, now) {
                    return;
                }
                until = now + POLL_INTERVAL;
            }
            match self
                .events
                .recv_timeout(until.saturating_duration_since(now))
            {
                Ok(_) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }
}

fn lock(open: &Open) -> MutexGuard<'_, BTreeMap<usize, HostPipe>> {
    open.pipes.lock().unwrap_or_else(PoisonError::into_inner)
}

fn forward_all(open: &Open, epoll: &Epoll, sender: &Sender<LauncherEvent>, wake: &EventFd) {
    let mut ready = Vec::new();
    let mut buffer = vec![0; 65_536];
    while epoll.wait(&mut ready, None).is_ok() {
        for one in &ready {
            let index = one.token as usize;
            // The lock is not held during a write, which may block for as long as the reader pauses.
            let host = lock(open).remove(&index);
            let Some(mut host) = host else { continue };
            let count = host.pipe.read(&mut buffer).unwrap_or(0);
            let (text, started) = host.push(&buffer[..count]);
            let _ = io::stderr().write_all(&text);
            let event = if count == 0 {
                epoll.remove(host.pipe.as_fd());
                open.open_count.fetch_sub(1, Ordering::AcqRel);
                Some(LauncherEvent::Closed(index))
            } else {
                lock(open).insert(index, host);
                started.then_some(LauncherEvent::Started(index))
            };
            if let Some(event) = event {
                // A failed send means that the owner is gone and this process ends.
                let _ = sender.send(event);
                wake.raise();
            }
        }
    }
}

impl HostPipe {
    fn new(pipe: ChildStderr) -> Self {
        Self {
            pipe,
            held: Vec::new(),
            has_started: false,
        }
    }

    /// Returns the bytes to forward, and whether they show that the launcher has started. Empty input is the end.
    fn push(&mut self, bytes: &[u8]) -> (Vec<u8>, bool) {
        if self.has_started {
            return (bytes.to_vec(), false);
        }
        self.held.extend(bytes);
        let held = &mut self.held;
        let found = held.windows(STARTED.len()).position(|part| part == STARTED);
        if let Some(at) = found {
            held.drain(at..at + STARTED.len());
            self.has_started = true;
            return (std::mem::take(held), true);
        }
        let lines = held
            .iter()
            .rposition(|byte| *byte == b'\n')
            .map_or(0, |last| last + 1);
        let whole = match held.len() {
            all if bytes.is_empty() => all,
            // Keep the bytes in which the message may have begun.
            all if all - lines > LINE_MAX => all - (STARTED.len() - 1),
            _ => lines,
        };
        (held.drain(..whole).collect(), false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    fn host() -> HostPipe {
        let mut command = Command::new("true");
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        child.wait().unwrap();
        HostPipe::new(child.stderr.take().unwrap())
    }

    #[test]
    fn the_start_message_is_found_in_any_parts_and_not_forwarded() {
        let output = [b"a warning\nno end of line ", STARTED, b"progress\r"].concat();
        for cut in 0..output.len() {
            let mut host = host();
            let mut passed = Vec::new();
            let mut times = 0;
            for part in [&output[..cut], &output[cut..]] {
                // An empty part would mean the end.
                if !part.is_empty() {
                    let (text, started) = host.push(part);
                    passed.extend(text);
                    times += usize::from(started);
                }
            }
            let text = b"a warning\nno end of line progress\r";
            assert_eq!((&passed[..], times), (&text[..], 1), "{cut}");
        }
    }

    #[test]
    fn all_output_is_forwarded_if_the_launcher_does_not_start() {
        let mut host = host();
        assert_eq!(
            host.push(b"no route\nto ho"),
            (b"no route\n".to_vec(), false)
        );
        assert_eq!(host.push(b"st"), (Vec::new(), false));
        assert_eq!(host.push(b""), (b"to host".to_vec(), false));
        let long = vec![b'x'; LINE_MAX + 1];
        let (text, started) = host.push(&long);
        assert_eq!(
            (text.len(), started),
            (long.len() - (STARTED.len() - 1), false)
        );
        let (rest, _) = host.push(b"");
        assert_eq!(rest.len(), STARTED.len() - 1);
    }
}
