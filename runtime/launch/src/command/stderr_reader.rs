//! What launchers on other hosts say on standard error: passed on, and the first word of each, that it has come.
//!
//! A thread of its own passes the words on, since whoever reads them may be slow, and signals are not to wait for him.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::process::ChildStderr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::output_reader::{LOOK, OutputReader};
use muster_sys::descriptor::EventFd;
use muster_sys::poll::Epoll;

/// What a launcher says first. Nobody else begins a line so, and nobody sees it.
const HERE: &[u8] = b"\x01muster run has come\n";
/// A line before it that is longer is passed on as it is.
const LINE_MAX: usize = 4096;
/// How long the last words of hosts that have ended are waited for: a process that an ssh has left may hold the pipe.
pub(super) const LAST_OUTPUT: Duration = Duration::from_secs(1);

/// Says that this launcher has come, to whoever has started it.
pub(super) fn say_here() {
    let _ = io::stderr().write_all(HERE);
}

/// What is heard of a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Heard {
    /// Its launcher has come.
    Here(usize),
    /// Nothing more will be heard.
    Closed(usize),
}

/// What one host says.
struct Ear {
    pipe: ChildStderr,
    /// Said since the last whole line, while its launcher has not come.
    held: Vec<u8>,
    has_come: bool,
}

/// What the thread and its owner share.
#[derive(Default)]
struct Open {
    stderr_reader: Mutex<BTreeMap<usize, Ear>>,
    /// How many will still be heard.
    left: AtomicUsize,
}

/// All of them.
pub(super) struct StderrReader {
    open: Arc<Open>,
    epoll: Arc<Epoll>,
    heard: Receiver<Heard>,
}

impl StderrReader {
    /// `wake` is raised when something is heard.
    pub(super) fn new(wake: EventFd) -> io::Result<Self> {
        let open = Arc::new(Open::default());
        let epoll = Arc::new(Epoll::new()?);
        let (tell, heard) = channel();
        let (all, ready) = (Arc::clone(&open), Arc::clone(&epoll));
        let listen = move || listen(&all, &ready, &tell, &wake);
        std::thread::Builder::new().spawn(listen)?;
        Ok(Self { open, epoll, heard })
    }

    pub(super) fn add(&self, place: usize, pipe: ChildStderr) -> io::Result<()> {
        let mut stderr_reader = lock(&self.open);
        self.epoll.add(pipe.as_fd(), place as u64)?;
        self.open.left.fetch_add(1, Ordering::AcqRel);
        stderr_reader.insert(place, Ear::new(pipe));
        Ok(())
    }

    pub(super) fn take(&self) -> impl Iterator<Item = Heard> {
        self.heard.try_iter()
    }

    /// Waits for the last words, and for their reader as long as he takes something within this time.
    pub(super) fn finish(&self, patience: Duration) {
        let mut until = Instant::now() + LAST_OUTPUT;
        let mut output_reader = OutputReader::new(Instant::now());
        while self.open.left.load(Ordering::Acquire) > 0 {
            let now = Instant::now();
            if now >= until {
                if !output_reader.keeps_waiting(patience, now) {
                    return;
                }
                until = now + LOOK;
            }
            match self
                .heard
                .recv_timeout(until.saturating_duration_since(now))
            {
                Ok(_) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }
}

fn lock(open: &Open) -> MutexGuard<'_, BTreeMap<usize, Ear>> {
    open.stderr_reader
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
}

fn listen(open: &Open, epoll: &Epoll, tell: &Sender<Heard>, wake: &EventFd) {
    let mut ready = Vec::new();
    let mut buffer = vec![0; 65_536];
    while epoll.wait(&mut ready, None).is_ok() {
        for one in &ready {
            let place = one.token as usize;
            // Not held while words are written, which may take as long as their reader likes.
            let ear = lock(open).remove(&place);
            let Some(mut ear) = ear else { continue };
            let count = ear.pipe.read(&mut buffer).unwrap_or(0);
            let (text, came) = ear.hear(&buffer[..count]);
            let _ = io::stderr().write_all(&text);
            let heard = if count == 0 {
                epoll.remove(ear.pipe.as_fd());
                open.left.fetch_sub(1, Ordering::AcqRel);
                Some(Heard::Closed(place))
            } else {
                lock(open).insert(place, ear);
                came.then_some(Heard::Here(place))
            };
            if let Some(heard) = heard {
                // Without the other end this process ends.
                let _ = tell.send(heard);
                wake.raise();
            }
        }
    }
}

impl Ear {
    fn new(pipe: ChildStderr) -> Self {
        Self {
            pipe,
            held: Vec::new(),
            has_come: false,
        }
    }

    /// The words that are to be passed on, and whether the launcher has come with these. Nothing at all is the end.
    fn hear(&mut self, bytes: &[u8]) -> (Vec<u8>, bool) {
        if self.has_come {
            return (bytes.to_vec(), false);
        }
        self.held.extend(bytes);
        let held = &mut self.held;
        let found = held.windows(HERE.len()).position(|part| part == HERE);
        if let Some(at) = found {
            held.drain(at..at + HERE.len());
            self.has_come = true;
            return (std::mem::take(held), true);
        }
        let lines = held
            .iter()
            .rposition(|byte| *byte == b'\n')
            .map_or(0, |last| last + 1);
        let whole = match held.len() {
            all if bytes.is_empty() => all,
            // It may have begun.
            all if all - lines > LINE_MAX => all - (HERE.len() - 1),
            _ => lines,
        };
        (held.drain(..whole).collect(), false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    fn ear() -> Ear {
        let mut command = Command::new("true");
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        child.wait().unwrap();
        Ear::new(child.stderr.take().unwrap())
    }

    #[test]
    fn the_first_word_is_heard_however_it_is_cut_and_not_passed_on() {
        let said = [b"a warning\nno end of line ", HERE, b"progress\r"].concat();
        for cut in 0..said.len() {
            let mut ear = ear();
            let mut passed = Vec::new();
            let mut times = 0;
            for part in [&said[..cut], &said[cut..]] {
                // Nothing would be the end.
                if !part.is_empty() {
                    let (text, came) = ear.hear(part);
                    passed.extend(text);
                    times += usize::from(came);
                }
            }
            let text = b"a warning\nno end of line progress\r";
            assert_eq!((&passed[..], times), (&text[..], 1), "{cut}");
        }
    }

    #[test]
    fn of_who_does_not_come_all_is_passed_on() {
        let mut ear = ear();
        assert_eq!(
            ear.hear(b"no route\nto ho"),
            (b"no route\n".to_vec(), false)
        );
        assert_eq!(ear.hear(b"st"), (Vec::new(), false));
        assert_eq!(ear.hear(b""), (b"to host".to_vec(), false));
        let long = vec![b'x'; LINE_MAX + 1];
        let (text, came) = ear.hear(&long);
        assert_eq!((text.len(), came), (long.len() - (HERE.len() - 1), false));
        let (rest, _) = ear.hear(b"");
        assert_eq!(rest.len(), HERE.len() - 1);
    }
}
