//! Clients that read the journal through the control socket, and the lines that are kept for them.

use muster_control::{EventRequest, protocol};
use serde_json::json;
use std::collections::VecDeque;
use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// Bytes of lines that are kept in memory: some 400 events.
const KEPT_BYTES_MAX: usize = 128 << 10;
/// Followers at one time: this many of the agent's own user and this many of all other users together; of one other
/// user, fewer.
const FOLLOWERS_MAX: usize = 16;
const FOLLOWERS_OF_ANOTHER_MAX: usize = 4;
/// How long one client may take to read the kept lines: the others wait meanwhile.
const READ_TIMEOUT: Duration = Duration::from_secs(1);

/// The readers.
pub(super) struct Readers {
    node: String,
    kept: VecDeque<(u64, String)>,
    kept_bytes: usize,
    followers: Vec<Follower>,
}

/// A client that gets future lines, too.
struct Follower {
    stream: UnixStream,
    other_user: Option<u32>,
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

    /// Sends a line to all followers and keeps it. Returns how many followers were dropped.
    pub(super) fn send(&mut self, seq: u64, line: String) -> usize {
        let lost = self.send_to_followers(line.as_bytes());
        self.kept_bytes += line.len();
        self.kept.push_back((seq, line));
        while self.kept_bytes > KEPT_BYTES_MAX
            && let Some((_, oldest)) = self.kept.pop_front()
        {
            self.kept_bytes -= oldest.len();
        }
        lost
    }

    /// Sends a blank line to all followers, which finds those that have gone. Returns how many were dropped.
    pub(super) fn keep_alive(&mut self) -> usize {
        self.send_to_followers(b"\n")
    }

    /// Sends the kept lines with a number above `since`. False if the client does not read them.
    pub(super) fn serve(&mut self, mut stream: UnixStream, request: EventRequest) -> bool {
        let EventRequest {
            since,
            follow,
            other_user,
        } = request;
        if follow && self.crowd(other_user).is_some() {
            self.keep_alive();
        }
        if follow && let Some(crowd) = self.crowd(other_user) {
            let why = format!("{crowd} follow this agent's events already; end one of them");
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
            self.followers.push(Follower { stream, other_user });
        }
        true
    }

    /// The followers that leave no room for one more of this user.
    fn crowd(&self, other_user: Option<u32>) -> Option<String> {
        let count =
            |alike: &dyn Fn(&&Follower) -> bool| self.followers.iter().filter(alike).count();
        let same = count(&|one| one.other_user == other_user);
        match other_user {
            Some(uid) if same >= FOLLOWERS_OF_ANOTHER_MAX => {
                Some(format!("{FOLLOWERS_OF_ANOTHER_MAX} of uid {uid}"))
            }
            _ if count(&|one| one.other_user.is_some() == other_user.is_some())
                >= FOLLOWERS_MAX =>
            {
                Some(FOLLOWERS_MAX.to_string())
            }
            _ => None,
        }
    }

    /// Drops each follower whose socket does not take the bytes at once: it has stopped reading.
    fn send_to_followers(&mut self, bytes: &[u8]) -> usize {
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
    let end = Instant::now() + READ_TIMEOUT;
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
        let follow_as = |other_user| EventRequest {
            since: u64::MAX,
            follow: true,
            other_user,
        };
        let own = follow_as(None);
        let (_ours, theirs) = UnixStream::pair().unwrap();
        assert!(readers.serve(theirs, own));
        let line = format!("{}\n", "x".repeat(1 << 12));
        // It reads nothing: its buffer is full some time, whatever its size.
        let lost: usize = (1..)
            .map(|seq| readers.send(seq, line.clone()))
            .find(|lost| *lost > 0)
            .unwrap();
        assert_eq!((lost, readers.followers.len()), (1, 0));
        assert!(readers.kept_bytes <= KEPT_BYTES_MAX && !readers.kept.is_empty());

        readers.kept.clear();
        let pairs: Vec<_> = (0..FOLLOWERS_MAX)
            .map(|_| UnixStream::pair().unwrap())
            .collect();
        let refused = |readers: &mut Readers, user| {
            let (mut ours, theirs) = UnixStream::pair().unwrap();
            readers.serve(theirs, follow_as(Some(user)));
            let mut text = String::new();
            io::Read::read_to_string(&mut ours, &mut text).unwrap();
            text
        };
        for (number, (_, theirs)) in pairs.iter().enumerate() {
            let user = (number / FOLLOWERS_OF_ANOTHER_MAX) as u32;
            assert!(readers.serve(theirs.try_clone().unwrap(), follow_as(Some(user))));
            if number == FOLLOWERS_OF_ANOTHER_MAX {
                let text = refused(&mut readers, 0);
                assert!(text.contains("4 of uid 0 follow"), "{text}");
            }
        }
        let text = refused(&mut readers, 99);
        assert!(
            text.contains("16 follow") && text.contains("error"),
            "{text}"
        );
        let (ours, theirs) = UnixStream::pair().unwrap();
        assert!(readers.serve(theirs, own), "its user has room");
        assert_eq!(readers.followers.len(), FOLLOWERS_MAX + 1);
        drop((pairs, ours));
        let (ours, theirs) = UnixStream::pair().unwrap();
        assert!(readers.serve(theirs, follow_as(Some(99))) && readers.followers.len() <= 2);
        drop(ours);
    }
}
