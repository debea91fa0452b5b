//! Those who read a journal through the control socket, and what of it is kept for them.

use crate::control::protocol;
use serde_json::json;
use std::collections::VecDeque;
use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// Bytes of lines that are kept in memory: some 400 events.
const KEPT_BYTES_MAX: usize = 128 << 10;
/// Followers at one time: so many of the agent's own user, and so many others, who are not in their way.
const FOLLOWERS_MAX: usize = 16;
/// How long one reader may take for what was kept: the others wait for it.
const PATIENCE: Duration = Duration::from_secs(1);

/// What a reader wants.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading {
    /// What came behind this number.
    pub(crate) since: u64,
    /// And what comes.
    pub(crate) follow: bool,
    /// It is of the agent's own user, or root.
    pub(crate) is_own: bool,
}

/// The readers.
pub(super) struct Readers {
    node: String,
    kept: VecDeque<(u64, String)>,
    kept_bytes: usize,
    followers: Vec<Follower>,
}

/// One who is told what comes.
struct Follower {
    stream: UnixStream,
    is_own: bool,
}

impl Readers {
    pub(super) fn new(node: &str) -> Self {
        Self {
            node: node.to_owned(),
            kept: VecDeque::new(),
            kept_bytes: 0,
            followers: Vec::new(),
        }
    }

    /// Tells everybody who follows, and keeps the line. How many have lost it, and go.
    pub(super) fn tell(&mut self, seq: u64, line: String) -> usize {
        let lost = self.say(line.as_bytes());
        self.kept_bytes += line.len();
        self.kept.push_back((seq, line));
        while self.kept_bytes > KEPT_BYTES_MAX
            && let Some((_, oldest)) = self.kept.pop_front()
        {
            self.kept_bytes -= oldest.len();
        }
        lost
    }

    /// A blank line for everybody who follows: who has gone is found out by it.
    pub(super) fn keep_alive(&mut self) -> usize {
        self.say(b"\n")
    }

    /// Gives a reader what was kept behind number `since`. False if it does not take it.
    pub(super) fn serve(&mut self, mut stream: UnixStream, reading: Reading) -> bool {
        let Reading {
            since,
            follow,
            is_own,
        } = reading;
        if follow && self.is_crowded(is_own) {
            self.keep_alive();
        }
        if follow && self.is_crowded(is_own) {
            let why =
                format!("{FOLLOWERS_MAX} follow this agent's events already; end one of them");
            let mut refusal = json!({ "error": why });
            protocol::stamp(&mut refusal);
            return write_by(&mut stream, format!("{refusal}\n").as_bytes()).is_ok();
        }
        let behind = |(seq, _): &&(u64, String)| *seq > since;
        let first = self.kept.front().map_or(0, |(seq, _)| *seq);
        let last = self.kept.back().map_or(0, |(seq, _)| *seq);
        let mut head = json!({
            "schema": "muster/events/v1",
            "node": self.node,
            "follow": follow,
            "last": last,
            "lost": first.saturating_sub(since.saturating_add(1)),
        });
        protocol::stamp(&mut head);
        let kept: String = self
            .kept
            .iter()
            .filter(behind)
            .map(|(_, line)| line.as_str())
            .collect();
        if write_by(&mut stream, format!("{head}\n{kept}").as_bytes()).is_err() {
            return false;
        }
        if follow && stream.set_nonblocking(true).is_ok() {
            self.followers.push(Follower { stream, is_own });
        }
        true
    }

    fn is_crowded(&self, is_own: bool) -> bool {
        let alike = self.followers.iter().filter(|one| one.is_own == is_own);
        alike.count() >= FOLLOWERS_MAX
    }

    /// Who cannot take it at once has stopped listening.
    fn say(&mut self, bytes: &[u8]) -> usize {
        let before = self.followers.len();
        let takes = |one: &mut Follower| {
            let took = one.stream.write(bytes);
            took.is_ok_and(|took| took == bytes.len())
        };
        self.followers.retain_mut(takes);
        before - self.followers.len()
    }
}

fn write_by(stream: &mut UnixStream, mut bytes: &[u8]) -> io::Result<()> {
    let end = Instant::now() + PATIENCE;
    while !bytes.is_empty() {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_write_timeout(Some(left))?;
        match stream.write(bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
            Err(cause) => return Err(cause),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_does_not_listen_is_let_go_and_too_many_are_refused() {
        let mut readers = Readers::new("n1");
        let follow = |is_own| Reading {
            since: u64::MAX,
            follow: true,
            is_own,
        };
        let (_ours, theirs) = UnixStream::pair().unwrap();
        assert!(readers.serve(theirs, follow(true)));
        let line = format!("{}\n", "x".repeat(1 << 12));
        // It reads nothing: its buffer is full some time, whatever its size.
        let lost: usize = (1..)
            .map(|seq| readers.tell(seq, line.clone()))
            .find(|lost| *lost > 0)
            .unwrap();
        assert_eq!((lost, readers.followers.len()), (1, 0));
        assert!(readers.kept_bytes <= KEPT_BYTES_MAX && !readers.kept.is_empty());

        readers.kept.clear();
        let pairs: Vec<_> = (0..FOLLOWERS_MAX)
            .map(|_| UnixStream::pair().unwrap())
            .collect();
        for (_, theirs) in &pairs {
            assert!(readers.serve(theirs.try_clone().unwrap(), follow(false)));
        }
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        readers.serve(theirs, follow(false));
        let mut text = String::new();
        io::Read::read_to_string(&mut ours, &mut text).unwrap();
        assert!(
            text.contains("16 follow") && text.contains("error"),
            "{text}"
        );
        let (ours, theirs) = UnixStream::pair().unwrap();
        assert!(readers.serve(theirs, follow(true)), "its user has room");
        assert_eq!(readers.followers.len(), FOLLOWERS_MAX + 1);
        drop((pairs, ours));
        let (ours, theirs) = UnixStream::pair().unwrap();
        assert!(readers.serve(theirs, follow(false)) && readers.followers.len() <= 2);
        drop(ours);
    }
}
