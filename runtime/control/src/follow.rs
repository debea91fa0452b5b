//! The client side of following an agent's events.

use super::{AskError, Request, TIMEOUT, marked, trust_in};
use muster_sys::stream;
use serde_json::Value;
use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Longest line that is read.
const LINE_MAX: usize = 1 << 20;

/// A stream of events.
pub struct Follower {
    path: PathBuf,
    stream: UnixStream,
    unread: Vec<u8>,
    /// The agent's first line: its name, and how many of the requested events it no longer has.
    pub head: Value,
}

/// The result of a wait for the next event.
#[derive(Debug)]
pub enum Followed {
    /// An event.
    Event(Value),
    /// None came in time.
    Late,
    /// The agent has ended, or has sent all events that were asked for.
    Ended,
}

impl Follower {
    /// Asks the agent at `path` for the events after number `since` and, if `follow`, for future ones.
    pub fn open(path: &Path, since: u64, follow: bool) -> Result<Self, AskError> {
        let request = marked(&Request::Events { since, follow });
        let stream = stream::say(path, request.as_bytes(), TIMEOUT, trust_in(path));
        let failed = |cause| AskError::of(path, cause);
        let mut follower = Self {
            path: path.to_owned(),
            stream: stream.map_err(failed)?,
            unread: Vec::new(),
            head: Value::Null,
        };
        let end = Instant::now() + 2 * TIMEOUT;
        let head = match follower.line(Some(end)).map_err(failed)? {
            Line::Text(text) => AskError::check(path, text.as_bytes())?,
            Line::Late => return Err(failed(io::ErrorKind::TimedOut.into())),
            Line::End => return Err(failed(io::ErrorKind::UnexpectedEof.into())),
        };
        follower.head = head;
        Ok(follower)
    }

    /// Waits for the next event, not longer than to `end`.
    pub fn next(&mut self, end: Option<Instant>) -> Result<Followed, AskError> {
        loop {
            let line = self
                .line(end)
                .map_err(|cause| AskError::of(&self.path, cause))?;
            let text = match line {
                Line::Text(text) if text.is_empty() => continue,
                Line::Text(text) => text,
                Line::Late => return Ok(Followed::Late),
                Line::End => return Ok(Followed::Ended),
            };
            let event = serde_json::from_str(&text).map_err(|error| AskError::Refused {
                path: self.path.clone(),
                why: format!("a line that is no event: {error}"),
            })?;
            return Ok(Followed::Event(event));
        }
    }

    fn line(&mut self, end: Option<Instant>) -> io::Result<Line> {
        loop {
            if let Some(at) = self.unread.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.unread.drain(..=at).collect();
                return Ok(Line::Text(
                    String::from_utf8_lossy(&line[..at]).into_owned(),
                ));
            }
            if self.unread.len() > LINE_MAX {
                return Err(io::ErrorKind::InvalidData.into());
            }
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left: Duration| left.is_zero()) {
                return Ok(Line::Late);
            }
            self.stream.set_read_timeout(left)?;
            let mut buffer = [0; 4096];
            match self.stream.read(&mut buffer) {
                Ok(0) => return Ok(Line::End),
                Ok(count) => self.unread.extend(&buffer[..count]),
                Err(cause) => match cause.kind() {
                    io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => return Ok(Line::Late),
                    io::ErrorKind::ConnectionReset => return Ok(Line::End),
                    io::ErrorKind::Interrupted => {}
                    _ => return Err(cause),
                },
            }
        }
    }
}

enum Line {
    Text(String),
    Late,
    End,
}
