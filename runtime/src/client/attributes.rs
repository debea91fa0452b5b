//! Attributes: what nodes say about themselves in a few words, readable on every node.
//!
//! Any process of a node writes the node's attributes; there is one map a node, and the last
//! writer of a key wins. Reading asks the agent of the own node, which holds everybody's: a round
//! trip within the node, not through the network.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use super::{Client, Error, Inner, lock};
use crate::doorman::{
    ASK_MAX, ATTRIBUTE_KEY_MAX, ATTRIBUTE_VALUE_MAX, Answer, Ask, ToAgent, key_hash,
};
use crate::sys::poll;
use crate::sys::socket::{Packets, Received};

/// How long the agent may take to answer.
const ANSWER_DEADLINE: Duration = Duration::from_secs(5);
/// Most keys that one process watches.
const WATCHED_MAX: usize = 256;

impl Client {
    /// Writes an attribute of this node: a key of 1 to 255 bytes, a value of at most 65536. It is
    /// readable here at once and on the other nodes within milliseconds, in the order of writing.
    /// Attributes live as long as the agent; they survive a restart of its worker.
    ///
    /// # Errors
    /// [`Error::Limit`] if key, value or all attributes of the node (1 MiB, 64 bytes a key
    /// included) are too long; nothing was written. [`Error::AgentLost`], [`Error::Deadline`]: it
    /// may have been written, and can be written again.
    pub fn publish(&self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        check_key(key)?;
        if value.len() > ATTRIBUTE_VALUE_MAX {
            return Err(Error::Limit(format!(
                "a value has at most {ATTRIBUTE_VALUE_MAX} bytes, this one {}",
                value.len()
            )));
        }
        self.ask(&Ask::Publish { key, value }).map(|_| ())
    }

    /// Deletes an attribute of this node. Whether there was one.
    ///
    /// # Errors
    /// As [`Client::publish`].
    pub fn withdraw(&self, key: &[u8]) -> Result<bool, Error> {
        check_key(key)?;
        let reply = self.ask(&Ask::Withdraw { key })?;
        Ok(reply == Reply::Done)
    }

    /// The value of an attribute of the node with this index, as far as it has come here; `None`
    /// if there is none, or the node has left or failed.
    ///
    /// # Errors
    /// [`Error::NoSuchNode`], [`Error::Limit`], [`Error::AgentLost`], [`Error::Deadline`].
    pub fn get(&self, node: u32, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        check_key(key)?;
        match self.ask(&Ask::Get { node, key })? {
            Reply::Value(value) => Ok(Some(value)),
            Reply::Done | Reply::Absent => Ok(None),
        }
    }

    /// From now on changes of this key, on whatever node, are events of this process
    /// (`EventKind::Attribute`, with the key's [`key_hash`]). What changed before is no event: look
    /// once with [`Client::get`] after this. Survives restarts of the agent.
    ///
    /// # Errors
    /// [`Error::Limit`] beyond 256 keys. Others: as [`Client::get`]; nothing is watched then.
    pub fn watch(&self, key: &[u8]) -> Result<(), Error> {
        check_key(key)?;
        let key_hash = key_hash(key);
        let full = {
            let watched = lock(&self.inner.watched);
            watched.len() >= WATCHED_MAX && !watched.contains(&key_hash)
        };
        if full {
            return Err(Error::Limit(format!(
                "a process watches at most {WATCHED_MAX} keys"
            )));
        }
        self.ask(&Ask::Watch { key_hash })?;
        lock(&self.inner.watched).insert(key_hash);
        Ok(())
    }

    fn ask(&self, ask: &Ask<'_>) -> Result<Reply, Error> {
        self.board()?;
        let inner = &self.inner;
        let socket = inner.put(ask)?;
        let until = Instant::now() + ANSWER_DEADLINE;
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
                    return Err(Error::AgentLost {
                        attempts: 0,
                        reason: "it went away, or was busy, before it answered".into(),
                    });
                }
                Received::Nothing => {}
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Error::Deadline {
                    socket: inner.setting.place.socket(),
                    waited_ms: ANSWER_DEADLINE.as_millis() as u64,
                    last: "an attribute was asked for".into(),
                });
            }
            poll::readable(&[socket.as_fd()], Some(left))
                .map_err(Error::system("wait for the agent"))?;
        }
    }
}

impl Inner {
    /// Hands a question to the agent; the answer will come out of the socket.
    fn put(&self, ask: &Ask<'_>) -> Result<Packets, Error> {
        let (ours, theirs) = Packets::pair().map_err(Error::system("make a pair of sockets"))?;
        ours.send(&ask.encode(), None)
            .map_err(Error::system("send to the agent"))?;
        self.link.0.send_with(&ToAgent::Ask, Some(theirs.as_fd()))?;
        Ok(ours)
    }

    /// Another agent does not know what is watched.
    pub(super) fn watch_again(&self) {
        let watched = lock(&self.watched).clone();
        for key_hash in watched {
            // An agent that is lost again is told again. Nobody waits for the answer.
            let _ = self.put(&Ask::Watch { key_hash });
        }
    }
}

/// An answer that is no error.
#[derive(Debug, PartialEq, Eq)]
enum Reply {
    Done,
    Value(Vec<u8>),
    Absent,
}

impl Reply {
    fn read(bytes: &[u8]) -> Result<Self, Error> {
        match Answer::decode(bytes) {
            Ok(Answer::Done) => Ok(Self::Done),
            Ok(Answer::Value(value)) => Ok(Self::Value(value.to_vec())),
            Ok(Answer::Absent) => Ok(Self::Absent),
            Ok(Answer::NoNode) => Err(Error::NoSuchNode),
            Ok(Answer::Limit(text)) => Err(Error::Limit(text.to_owned())),
            Ok(Answer::Stopped) => Err(Error::Outcast),
            Err(error) => Err(Error::Protocol {
                found: error.to_string(),
                expected: "an answer about an attribute",
            }),
        }
    }
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
