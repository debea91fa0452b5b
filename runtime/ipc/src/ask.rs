//! Queries of a client about attributes, and the agent's answers.
//!
//! A client makes a pair of sockets, writes its query into one end and passes the other one to the agent; the answer
//! comes back the same way. An answer therefore belongs to its query whatever other messages are sent meanwhile, any
//! thread may send a query, and a client notices the end of an agent at once, because the connection closes. A query
//! is one packet, with at most one key and one value.

use super::DecodeError;

/// Longest key of an attribute, in bytes.
pub const ATTRIBUTE_KEY_MAX: usize = 255;
/// Longest value of an attribute, in bytes.
pub const ATTRIBUTE_VALUE_MAX: usize = 65_536;
/// The longest query or answer, in bytes.
pub const ASK_MAX: usize = 1 + 4 + 1 + ATTRIBUTE_KEY_MAX + ATTRIBUTE_VALUE_MAX;

/// A query of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ask<'a> {
    /// Writes an attribute of this node.
    Publish {
        /// Its key.
        key: &'a [u8],
        /// Its value.
        value: &'a [u8],
    },
    /// Deletes an attribute of this node.
    Withdraw {
        /// Its key.
        key: &'a [u8],
    },
    /// Returns the value of a node's attribute.
    Get {
        /// Index of the node in the state table.
        node: u32,
        /// The key.
        key: &'a [u8],
    },
    /// Reports changes of this key, of any node, as events from now on.
    Watch {
        /// [`key_hash`] of the key.
        key_hash: u64,
    },
    /// Ends these reports.
    Unwatch {
        /// [`key_hash`] of the key.
        key_hash: u64,
    },
    /// Returns the keys of a node's attributes, in order, as many as fit: [`keys_of`] the answer.
    Keys {
        /// Index of the node in the state table.
        node: u32,
        /// Only keys after this one; empty for all.
        after: &'a [u8],
    },
}

/// An answer of the agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer<'a> {
    /// It is done.
    Done,
    /// The value.
    Value(&'a [u8]),
    /// There is no such attribute.
    Absent,
    /// There is no such node.
    NoNode,
    /// It would exceed a limit, which the text names.
    Limit(&'a str),
    /// The agent is no longer a member: it left, or was declared failed.
    Stopped,
}

/// The number by which events name a key (64-bit FNV-1a). Two keys of one application practically never have the same
/// number; a program that must be sure reads the value and compares.
#[must_use]
pub fn key_hash(key: &[u8]) -> u64 {
    key.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

impl<'a> Ask<'a> {
    /// The query as bytes. The agent refuses keys and values beyond their limits.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        match self {
            Self::Publish { key, value } => {
                out.push(1);
                put_key(&mut out, key);
                out.extend(*value);
            }
            Self::Withdraw { key } => {
                out.push(2);
                put_key(&mut out, key);
            }
            Self::Get { node, key } => {
                out.push(3);
                out.extend(node.to_le_bytes());
                put_key(&mut out, key);
            }
            Self::Watch { key_hash } => {
                out.push(4);
                out.extend(key_hash.to_le_bytes());
            }
            Self::Unwatch { key_hash } => {
                out.push(5);
                out.extend(key_hash.to_le_bytes());
            }
            Self::Keys { node, after } => {
                out.push(6);
                out.extend(node.to_le_bytes());
                out.extend(*after);
            }
        }
        out
    }

    /// A query from untrusted bytes.
    ///
    /// # Errors
    /// The bytes are not a query.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, DecodeError> {
        let kind = bytes.first().copied().unwrap_or(0);
        Self::read(bytes).ok_or(DecodeError::Malformed { kind })
    }

    fn read(bytes: &'a [u8]) -> Option<Self> {
        let (kind, rest) = bytes.split_first()?;
        match kind {
            1 => {
                let (key, value) = take_key(rest)?;
                (value.len() <= ATTRIBUTE_VALUE_MAX).then_some(Self::Publish { key, value })
            }
            2 => {
                let (key, rest) = take_key(rest)?;
                rest.is_empty().then_some(Self::Withdraw { key })
            }
            3 => {
                let (node, rest) = rest.split_first_chunk::<4>()?;
                let (key, rest) = take_key(rest)?;
                let node = u32::from_le_bytes(*node);
                rest.is_empty().then_some(Self::Get { node, key })
            }
            4 => {
                let key_hash = u64::from_le_bytes(rest.try_into().ok()?);
                Some(Self::Watch { key_hash })
            }
            5 => {
                let key_hash = u64::from_le_bytes(rest.try_into().ok()?);
                Some(Self::Unwatch { key_hash })
            }
            6 => {
                let (node, after) = rest.split_first_chunk::<4>()?;
                let node = u32::from_le_bytes(*node);
                (after.len() <= ATTRIBUTE_KEY_MAX).then_some(Self::Keys { node, after })
            }
            _ => None,
        }
    }
}

/// Encodes keys as an answer's value, as many of them as fit.
pub fn listed<'a>(keys: impl Iterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut out = Vec::new();
    for key in keys {
        if out.len() + 1 + key.len() > ATTRIBUTE_VALUE_MAX {
            break;
        }
        put_key(&mut out, key);
    }
    out
}

/// The keys in such a value; `None` if it is malformed.
pub fn keys_of(mut value: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut keys = Vec::new();
    while !value.is_empty() {
        let (key, rest) = take_key(value)?;
        keys.push(key.to_vec());
        value = rest;
    }
    Some(keys)
}

impl<'a> Answer<'a> {
    /// The answer as bytes.
    pub fn encode(&self) -> Vec<u8> {
        let (kind, rest): (u8, &[u8]) = match self {
            Self::Done => (1, &[]),
            Self::Value(value) => (2, value),
            Self::Absent => (3, &[]),
            Self::NoNode => (4, &[]),
            Self::Limit(text) => (5, text.as_bytes()),
            Self::Stopped => (6, &[]),
        };
        [&[kind], rest].concat()
    }

    /// An answer from untrusted bytes.
    ///
    /// # Errors
    /// The bytes are not an answer.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, DecodeError> {
        let kind = bytes.first().copied().unwrap_or(0);
        let malformed = DecodeError::Malformed { kind };
        let (_, rest) = bytes.split_first().ok_or(malformed)?;
        match kind {
            2 if rest.len() <= ATTRIBUTE_VALUE_MAX => Ok(Self::Value(rest)),
            5 => core::str::from_utf8(rest)
                .map(Self::Limit)
                .map_err(|_| malformed),
            _ if !rest.is_empty() => Err(malformed),
            1 => Ok(Self::Done),
            3 => Ok(Self::Absent),
            4 => Ok(Self::NoNode),
            6 => Ok(Self::Stopped),
            _ => Err(malformed),
        }
    }
}

fn put_key(out: &mut Vec<u8>, key: &[u8]) {
    out.push(u8::try_from(key.len()).unwrap_or(0));
    out.extend(key);
}

fn take_key(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first()?;
    let (key, rest) = rest.split_at_checked(usize::from(*length))?;
    (!key.is_empty()).then_some((key, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_and_answers_survive_encoding() {
        let key = [7; ATTRIBUTE_KEY_MAX];
        let value = vec![9; ATTRIBUTE_VALUE_MAX];
        let asks = [
            Ask::Publish {
                key: &key,
                value: &value,
            },
            Ask::Publish {
                key: b"k",
                value: b"",
            },
            Ask::Withdraw { key: b"k" },
            Ask::Get { node: 5, key: &key },
            Ask::Watch {
                key_hash: key_hash(b"k"),
            },
            Ask::Unwatch {
                key_hash: key_hash(b"k"),
            },
            Ask::Keys {
                node: 5,
                after: b"",
            },
            Ask::Keys {
                node: 5,
                after: &key,
            },
        ];
        for ask in asks {
            let bytes = ask.encode();
            assert!(bytes.len() <= ASK_MAX);
            assert_eq!(Ask::decode(&bytes), Ok(ask));
        }
        let answers = [
            Answer::Done,
            Answer::Value(&value),
            Answer::Absent,
            Answer::NoNode,
            Answer::Limit("too much"),
            Answer::Stopped,
        ];
        for answer in answers {
            let bytes = answer.encode();
            assert!(bytes.len() <= ASK_MAX);
            assert_eq!(Answer::decode(&bytes), Ok(answer));
        }
    }

    #[test]
    fn keys_are_listed_as_far_as_they_fit() {
        let keys: Vec<Vec<u8>> = (0..=255u8).map(|n| vec![n; ATTRIBUTE_KEY_MAX]).collect();
        let all = keys.iter().map(Vec::as_slice);
        assert_eq!(keys_of(&listed(all.clone())), Some(keys.clone()));
        let one_more = all.chain([&b"k"[..]]);
        assert_eq!(keys_of(&listed(one_more)), Some(keys));
        assert_eq!(keys_of(b""), Some(vec![]));
        for value in [&b"\x00"[..], b"\x02k", b"\x01kk"] {
            assert_eq!(keys_of(value), None);
        }
    }

    #[test]
    fn truncated_and_overlong_bytes_are_refused() {
        let whole = Ask::Get {
            node: 5,
            key: b"key",
        }
        .encode();
        for length in 0..whole.len() {
            assert!(Ask::decode(&whole[..length]).is_err());
        }
        for bytes in [
            &b""[..],
            b"\x01",
            b"\x01\x00v",
            b"\x09",
            b"\x02\x01kx",
            b"\x04short",
            b"\x05",
            b"\x06abc",
        ] {
            assert!(Ask::decode(bytes).is_err(), "{bytes:?}");
        }
        for bytes in [&b""[..], b"\x00", b"\x01x", b"\x05\xff"] {
            assert!(Answer::decode(bytes).is_err(), "{bytes:?}");
        }
    }
}
