//! Attributes: keys and values that a node publishes, readable on every node.
//!
//! Any process of a node writes the node's attributes. Each node has one map, in which the last writer of a key wins.
//! Reading queries the agent of this node, which holds the attributes of all nodes: a round trip within the node, not
//! through the network.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use super::{Client, Error, Inner, Phase, lock};
use muster_ipc::{
    ASK_MAX, ATTRIBUTE_KEY_MAX, ATTRIBUTE_VALUE_MAX, Answer, Ask, ToAgent, key_hash, keys_of,
};
use muster_sys::poll;
use muster_sys::socket::{Packets, Received};

/// How long the agent may take to answer.
const ANSWER_DEADLINE: Duration = Duration::from_secs(5);
/// Prefix of Muster's own keys, and the one such key that a process may write: it makes its node a monitor.
const RESERVED: &[u8] = b"muster.";
const MONITOR_KEY: &[u8] = b"muster.monitor";
/// The pause before a query without an answer is sent again.
const ASK_PAUSE: Duration = Duration::from_millis(20);
/// Most keys that one process watches.
const WATCHED_MAX: usize = 256;

impl Client {
    /// Writes an attribute of this node: a key of 1 to 255 bytes, a value of at most 65536. It is
    /// readable here at once and on the other nodes within milliseconds, in the order of writing.
    /// Attributes exist as long as the agent and survive a restart of its worker.
    ///
    /// # Errors
    /// [`Error::Limit`] if key, value or all attributes of the node (1 MiB, 64 bytes a key
    /// included) are too long; nothing was written. [`Error::Reserved`]. [`Error::Unanswered`],
    /// [`Error::Deadline`]: it may have been written, and can be written again. [`Error::AgentLost`],
    /// [`Error::Dismissed`]: what was written went with the agent.
    pub fn publish(&self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        check_own_key(key)?;
        if value.len() > ATTRIBUTE_VALUE_MAX {
            return Err(Error::Limit(format!(
                "a value has at most {ATTRIBUTE_VALUE_MAX} bytes, this one {}",
                value.len()
            )));
        }
        self.ask(&Ask::Publish { key, value }).map(|_| ())
    }

    /// Deletes an attribute of this node. Returns whether it existed, or may have existed: if the agent's worker
    /// failed before it answered, it may have deleted the attribute already.
    ///
    /// # Errors
    /// As [`Client::publish`].
    pub fn withdraw(&self, key: &[u8]) -> Result<bool, Error> {
        check_own_key(key)?;
        let (reply, is_again) = self.ask_counted(&Ask::Withdraw { key })?;
        Ok(reply == Reply::Done || is_again)
    }

    /// The value of an attribute of the node with this index, as far as this node has received it; `None` if there is
    /// none, or the node has left or failed.
    ///
    /// # Errors
    /// [`Error::NoSuchNode`], [`Error::Limit`], [`Error::Unanswered`], [`Error::Deadline`], [`Error::AgentLost`],
    /// [`Error::Dismissed`].
    pub fn attribute_get(&self, node: u32, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        check_key(key)?;
        match self.ask(&Ask::Get { node, key })? {
            Reply::Value(value) => Ok(Some(value)),
            Reply::NoNode => Err(self.no_such_node(node)),
            Reply::Done | Reply::Absent => Ok(None),
        }
    }

    /// From now on, changes of this key on any node are events of this process (`EventKind::Attribute`, with the
    /// key's [`key_hash`]). Earlier changes are no events: read the value once with [`Client::attribute_get`] after
    /// this call. Survives restarts of the agent and of its worker; an
    /// [`EventKind::Overflow`](crate::shm::EventKind::Overflow) then reports that a change may have been missed: read
    /// the value again.
    ///
    /// # Errors
    /// [`Error::Limit`] beyond 256 keys. Others: as [`Client::attribute_get`]; nothing is watched then.
    pub fn watch(&self, key: &[u8]) -> Result<(), Error> {
        check_key(key)?;
        let key_hash = key_hash(key);
        let _both = lock(&self.inner.watching);
        let is_new = {
            let mut watched = lock(&self.inner.watched);
            if watched.len() >= WATCHED_MAX && !watched.contains(&key_hash) {
                return Err(Error::Limit(format!(
                    "a process watches at most {WATCHED_MAX} keys"
                )));
            }
            // An agent that this client attaches to meanwhile receives it, too.
            watched.insert(key_hash)
        };
        let result = self.ask(&Ask::Watch { key_hash });
        if result.is_err() && is_new {
            lock(&self.inner.watched).remove(&key_hash);
        }
        result.map(|_| ())
    }

    /// From now on, changes of this key are no events of this process. Returns whether they were.
    ///
    /// # Errors
    /// As [`Client::attribute_get`]; even then, they are no events of this process any more.
    pub fn unwatch(&self, key: &[u8]) -> Result<bool, Error> {
        check_key(key)?;
        let key_hash = key_hash(key);
        self.table()?;
        let _both = lock(&self.inner.watching);
        let was = lock(&self.inner.watched).remove(&key_hash);
        if was {
            self.ask(&Ask::Unwatch { key_hash })?;
        }
        Ok(was)
    }

    /// The keys of the attributes of the node with this index, in order, as far as this node has received them. A key
    /// that is written meanwhile may be missing.
    ///
    /// # Errors
    /// As [`Client::attribute_get`].
    pub fn attribute_keys(&self, node: u32) -> Result<Vec<Vec<u8>>, Error> {
        let mut keys: Vec<Vec<u8>> = Vec::new();
        loop {
            let after = keys.last().map_or(&[][..], Vec::as_slice);
            let more = match self.ask(&Ask::Keys { node, after })? {
                Reply::Value(value) => keys_of(&value).filter(|more| is_after(after, more)),
                Reply::NoNode => return Err(self.no_such_node(node)),
                Reply::Done | Reply::Absent => None,
            };
            match more {
                Some(more) if more.is_empty() => return Ok(keys),
                Some(more) => keys.extend(more),
                None => {
                    return Err(Error::Protocol {
                        found: "something else".into(),
                        expected: "keys in order",
                    });
                }
            }
        }
    }

    pub(super) fn no_such_node(&self, index: u32) -> Error {
        let known = self.node_count().unwrap_or_default();
        Error::NoSuchNode { index, known }
    }

    /// Sends a query, and again while there is no answer: the agent's worker may be restarting, the agent may have
    /// too many queries, or it may have ended, which is certain only after a search for another one. To write or
    /// watch a key twice does no harm.
    fn ask(&self, ask: &Ask<'_>) -> Result<Reply, Error> {
        self.ask_counted(ask).map(|(reply, _)| reply)
    }

    /// As [`Client::ask`]; also returns whether the query was sent more than once.
    fn ask_counted(&self, ask: &Ask<'_>) -> Result<(Reply, bool), Error> {
        let until = Instant::now() + ANSWER_DEADLINE;
        let (mut is_again, mut was_sent) = (false, false);
        loop {
            is_again |= was_sent;
            match self.ask_once(ask, until, &mut was_sent) {
                Err(Error::Unanswered(_)) if self.inner.phase() == Phase::Lost => {
                    // Without the library thread, only this thread searches for another agent.
                    if self.inner.setting.options.thread
                        || self.dispatch_until(Some(until)).is_err()
                    {
                        return Err(self.inner.lost());
                    }
                }
                Err(Error::Unanswered(_)) if Instant::now() + ASK_PAUSE < until => {
                    std::thread::sleep(ASK_PAUSE);
                    if !self.inner.setting.options.thread {
                        let _ = self.dispatch_until(Some(until));
                    }
                }
                answered => return answered.map(|reply| (reply, is_again)),
            }
        }
    }

    fn ask_once(&self, ask: &Ask<'_>, until: Instant, was_sent: &mut bool) -> Result<Reply, Error> {
        self.table()?;
        let inner = &self.inner;
        let socket = inner.send_query(ask)?;
        *was_sent = true;
        let mut buffer = vec![0; ASK_MAX];
        loop {
            let received = socket
                .receive(&mut buffer)
                .map_err(Error::system("receive from the agent"))?;
            match received {
                Received::Message(length, _) => {
                    return Reply::read(buffer.get(..length).unwrap_or_default());
                }
                Received::HungUp => {
                    let reason = "it closed the connection: it has ended, or has too many queries";
                    return Err(Error::Unanswered(reason.into()));
                }
                Received::Nothing => {}
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Error::Deadline {
                    socket: inner.setting.agent_directory.socket(),
                    waited_ms: ANSWER_DEADLINE.as_millis() as u64,
                    last: "waited for the answer to a query about attributes".into(),
                });
            }
            poll::readable(&[socket.as_fd()], Some(left))
                .map_err(Error::system("wait for the agent"))?;
        }
    }
}

impl Inner {
    /// Sends a query to the agent. The answer arrives on the returned socket.
    fn send_query(&self, ask: &Ask<'_>) -> Result<Packets, Error> {
        let (ours, theirs) = Packets::pair().map_err(Error::system("make a pair of sockets"))?;
        ours.send(&ask.encode(), None)
            .map_err(Error::system("send to the agent"))?;
        self.link.0.send_with(&ToAgent::Ask, Some(theirs.as_fd()))?;
        Ok(ours)
    }

    /// Sends the watched keys to another agent, which does not know them. Returns whether there are any.
    pub(super) fn watch_again(&self) -> bool {
        let watched = lock(&self.watched).clone();
        for key_hash in &watched {
            // If that agent is lost as well, the next one receives them. The answer is not awaited.
            let _ = self.send_query(&Ask::Watch {
                key_hash: *key_hash,
            });
        }
        !watched.is_empty()
    }
}

/// An answer that is not an error.
#[derive(Debug, PartialEq, Eq)]
enum Reply {
    Done,
    Value(Vec<u8>),
    Absent,
    NoNode,
}

impl Reply {
    fn read(bytes: &[u8]) -> Result<Self, Error> {
        match Answer::decode(bytes) {
            Ok(Answer::Done) => Ok(Self::Done),
            Ok(Answer::Value(value)) => Ok(Self::Value(value.to_vec())),
            Ok(Answer::Absent) => Ok(Self::Absent),
            Ok(Answer::NoNode) => Ok(Self::NoNode),
            Ok(Answer::Limit(text)) => Err(Error::Limit(text.to_owned())),
            Ok(Answer::Stopped) => Err(Error::Outcast),
            Err(error) => Err(Error::Protocol {
                found: error.to_string(),
                expected: "an answer about an attribute",
            }),
        }
    }
}

/// Whether `more` is in order and after `after`, so that the loop of queries ends.
fn is_after(after: &[u8], more: &[Vec<u8>]) -> bool {
    let first = more.first().is_none_or(|first| first.as_slice() > after);
    first && more.is_sorted_by(|one, next| one < next)
}

/// Checks a key that the application writes.
fn check_own_key(key: &[u8]) -> Result<(), Error> {
    if key.starts_with(RESERVED) && key != MONITOR_KEY {
        return Err(Error::Reserved(String::from_utf8_lossy(key).into_owned()));
    }
    check_key(key)
}

fn check_key(key: &[u8]) -> Result<(), Error> {
    if key.is_empty() || key.len() > ATTRIBUTE_KEY_MAX {
        return Err(Error::Limit(format!(
            "a key has 1 to {ATTRIBUTE_KEY_MAX} bytes, this one {}",
            key.len()
        )));
    }
    Ok(())
}
