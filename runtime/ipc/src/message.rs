//! The messages between client and agent on the Unix socket, one message per packet.
//!
//! A message is a kind byte, then fixed little-endian fields and texts with a two-byte length, each with its own
//! limit. `Attach` begins with a magic number and the versions of this protocol and of the state table. Two releases
//! that are not compatible therefore detect it before the client gets a slot, which it could not release properly. A
//! decoder never allocates by a length that it has not checked, and rejects a message with bytes after its end.

use super::directory::KEY_MAX;
use muster_shm::LAYOUT_VERSION;

/// The version of this protocol.
pub const VERSION: u8 = 7;
/// The layout of the state table that belongs to this version.
const LAYOUT: u8 = LAYOUT_VERSION as u8;
const _: () = assert!(LAYOUT as u32 == LAYOUT_VERSION);
/// The longest message, in bytes.
pub const MESSAGE_MAX: usize = 1024;
/// The longest address text, in bytes.
pub const ADDRESS_MAX: usize = 255;
/// Most ranks of one `Placed` message.
pub const PLACED_MAX: usize = 160;
/// The longest text of a refusal, in bytes.
pub const REASON_MAX: usize = 512;
const MAGIC: [u8; 4] = *b"MSTR";

/// Why bytes are not a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DecodeError {
    /// Too short, too long, or a value that is not allowed.
    Malformed {
        /// The first byte; 0 if there is none.
        kind: u8,
    },
    /// An `Attach` of another release.
    Version {
        /// The protocol version of the message.
        protocol: u8,
        /// The state table layout that its sender knows.
        layout: u8,
    },
}

impl std::fmt::Display for DecodeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Malformed { kind } => write!(f, "malformed message of kind {kind}"),
            Self::Version { protocol, layout } => write!(
                f,
                "protocol {protocol} and state table layout {layout}, where this side has protocol {VERSION} and state \
         table layout {LAYOUT}"
            ),
        }
    }
}

impl std::error::Error for DecodeError {}

/// The slot that a client without connection to an agent holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// The identity of the state table.
    pub table: u64,
    /// The slot in it.
    pub slot: u32,
    /// The slot's generation.
    pub generation: u32,
}

/// The first message of a client. A descriptor can go with it: the eventfd of its application.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attach {
    /// Its pid in its own pid namespace.
    pub pid: u32,
    /// `UID:JOB:NODE`.
    pub key: String,
    /// Its rank, if it has one.
    pub rank: Option<u32>,
    /// The number of ranks of the job as the client knows it, 0 if it does not.
    pub job_size: u32,
    /// It has no library thread.
    pub threadless: bool,
    /// Its application requested that failures are reported to MPI.
    pub ulfm: bool,
    /// It wants a wake-up at every event.
    pub wants_wake_up: bool,
    /// What it holds from an earlier connection.
    pub held: Option<Held>,
}

/// The answer to a client that is attached. The descriptors of the state table's halves go with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attached {
    /// The client's slot.
    pub slot: u32,
    /// The slot's generation.
    pub generation: u32,
    /// The mark that the client combines its statements in the slot with.
    pub mark: u64,
    /// The agent wants its address published by this client.
    pub publish: bool,
    /// The agent's NID list; empty if it is not known yet.
    pub address: String,
}

/// Why a client is refused. The numbers are for programs; a text goes with each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum RefusalCode {
    /// Another version of this protocol.
    Version = 1,
    /// Another user.
    User = 2,
    /// The process is not visible to the agent (another pid namespace).
    Invisible = 3,
    /// Another job or node.
    Job = 4,
    /// No slot is free.
    Full = 5,
    /// Another process has that rank.
    RankTaken = 6,
    /// The process is attached already.
    AlreadyAttached = 7,
    /// The message could not be decoded or was not expected.
    Malformed = 8,
    /// The agent is ending and must not be started again for this client.
    Closing = 9,
    /// A rank beyond the limit or beyond the size of the job.
    RankTooLarge = 10,
    /// The agent could not start.
    NoAgent = 11,
}

impl RefusalCode {
    fn from_number(number: u8) -> Option<Self> {
        use RefusalCode::*;
        let all = [
            Version,
            User,
            Invisible,
            Job,
            Full,
            RankTaken,
            AlreadyAttached,
            Malformed,
            Closing,
            RankTooLarge,
            NoAgent,
        ];
        all.into_iter().find(|code| *code as u8 == number)
    }
}

/// From a client to the agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToAgent {
    /// The first message.
    Attach(Attach),
    /// The client holds its futex now.
    Armed,
    /// The address of another agent, found by the client's bootstrap.
    Seed(String),
    /// The job's key, found by the client's bootstrap.
    Key([u8; 32]),
    /// The client leaves, with this exit code; it stated so in its slot before.
    Leaving(i32),
    /// The client has a query, which is in the socket that goes with it.
    Ask,
    /// The client's launcher reports that this rank ended abnormally: by this signal, or with this exit code as a
    /// negative number; 0 if neither is known. With the number of ranks of the job.
    Aborted(u32, i32, u32),
    /// The client's bootstrap reports that these ranks run on the node of this name, or of these NIDs; at most
    /// [`PLACED_MAX`] of them.
    Placed(String, Vec<u32>),
    /// The client's application requests that failures are reported to MPI; its `Attach` did not.
    Feeds,
}

/// From the agent to a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToClient {
    /// The client is attached.
    Attached(Attached),
    /// The client is refused, or its connection is ended by the agent.
    Refused(RefusalCode, String),
    /// The state table has changed.
    WakeUp,
    /// The agent's NID list has become known or has changed.
    Address(String),
    /// The key that this agent created for the job, to be published.
    KeyForPublication([u8; 32]),
    /// The agent has noted that the client leaves.
    Detach,
}

impl ToAgent {
    /// The message as bytes. The receiver refuses texts beyond their limits.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(64);
        match self {
            Self::Attach(attach_request) => {
                out.push(1);
                out.extend(MAGIC);
                out.extend([VERSION, LAYOUT]);
                out.extend(attach_request.pid.to_le_bytes());
                put_text(&mut out, &attach_request.key);
                out.extend(
                    attach_request
                        .rank
                        .map_or(u32::MAX, |rank| rank)
                        .to_le_bytes(),
                );
                out.extend(attach_request.job_size.to_le_bytes());
                let flags = [
                    attach_request.threadless,
                    attach_request.ulfm,
                    attach_request.wants_wake_up,
                    attach_request.held.is_some(),
                ];
                out.push(bits(flags));
                let none = Held {
                    table: 0,
                    slot: 0,
                    generation: 0,
                };
                let held = attach_request.held.unwrap_or(none);
                out.extend(held.table.to_le_bytes());
                out.extend(held.slot.to_le_bytes());
                out.extend(held.generation.to_le_bytes());
            }
            Self::Armed => out.push(2),
            Self::Seed(address) => {
                out.push(3);
                put_text(&mut out, address);
            }
            Self::Key(key) => {
                out.push(4);
                out.extend(key);
            }
            Self::Leaving(exit_code) => {
                out.push(5);
                out.extend(exit_code.to_le_bytes());
            }
            Self::Ask => out.push(6),
            Self::Aborted(rank, how, job_size) => {
                out.push(7);
                out.extend(rank.to_le_bytes());
                out.extend(how.to_le_bytes());
                out.extend(job_size.to_le_bytes());
            }
            Self::Placed(node, ranks) => {
                out.push(8);
                put_text(&mut out, node);
                out.extend((ranks.len() as u32).to_le_bytes());
                ranks.iter().for_each(|rank| out.extend(rank.to_le_bytes()));
            }
            Self::Feeds => out.push(9),
        }
        out
    }

    /// A message from untrusted bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(bytes)?;
        let message = match reader.kind {
            1 => {
                if reader.array::<4>()? != MAGIC {
                    return Err(reader.malformed());
                }
                let [protocol, layout] = reader.array()?;
                if (protocol, layout) != (VERSION, LAYOUT) {
                    return Err(DecodeError::Version { protocol, layout });
                }
                let pid = reader.number()?;
                let key = reader.text(KEY_MAX)?;
                let rank = Some(reader.number()?).filter(|rank| *rank != u32::MAX);
                let job_size = reader.number()?;
                let [flags] = reader.array()?;
                let table = u64::from_le_bytes(reader.array()?);
                let held = Held {
                    table,
                    slot: reader.number()?,
                    generation: reader.number()?,
                };
                Self::Attach(Attach {
                    pid,
                    key,
                    rank,
                    job_size,
                    threadless: flags & 1 != 0,
                    ulfm: flags & 2 != 0,
                    wants_wake_up: flags & 4 != 0,
                    held: (flags & 8 != 0).then_some(held),
                })
            }
            2 => Self::Armed,
            3 => Self::Seed(reader.text(ADDRESS_MAX)?),
            4 => Self::Key(reader.array()?),
            5 => Self::Leaving(i32::from_le_bytes(reader.array()?)),
            6 => Self::Ask,
            7 => {
                let (rank, how) = (reader.number()?, i32::from_le_bytes(reader.array()?));
                Self::Aborted(rank, how, reader.number()?)
            }
            8 => {
                let (node, count) = (reader.text(ADDRESS_MAX)?, reader.number()?);
                if count as usize > PLACED_MAX {
                    return Err(reader.malformed());
                }
                let ranks: Result<Vec<u32>, DecodeError> =
                    (0..count).map(|_| reader.number()).collect();
                Self::Placed(node, ranks?)
            }
            9 => Self::Feeds,
            _ => return Err(reader.malformed()),
        };
        reader.end(message)
    }
}

impl ToClient {
    /// The message as bytes. A refusal's text is cut at its limit.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(64);
        match self {
            Self::Attached(attached) => {
                out.push(65);
                out.extend(attached.slot.to_le_bytes());
                out.extend(attached.generation.to_le_bytes());
                out.extend(attached.mark.to_le_bytes());
                out.push(u8::from(attached.publish));
                put_text(&mut out, &attached.address);
            }
            Self::Refused(code, text) => {
                out.extend([66, *code as u8]);
                let fits = |end: &usize| text.is_char_boundary(*end);
                let end = (0..=text.len().min(REASON_MAX))
                    .rev()
                    .find(fits)
                    .unwrap_or(0);
                put_text(&mut out, &text[..end]);
            }
            Self::WakeUp => out.push(67),
            Self::Address(address) => {
                out.push(68);
                put_text(&mut out, address);
            }
            Self::KeyForPublication(key) => {
                out.push(69);
                out.extend(key);
            }
            Self::Detach => out.push(70),
        }
        out
    }

    /// A message from untrusted bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(bytes)?;
        let message = match reader.kind {
            65 => Self::Attached(Attached {
                slot: reader.number()?,
                generation: reader.number()?,
                mark: u64::from_le_bytes(reader.array()?),
                publish: reader.array::<1>()? != [0],
                address: reader.text(ADDRESS_MAX)?,
            }),
            66 => {
                let [code] = reader.array()?;
                let code = RefusalCode::from_number(code).ok_or(reader.malformed())?;
                Self::Refused(code, reader.text(REASON_MAX)?)
            }
            67 => Self::WakeUp,
            68 => Self::Address(reader.text(ADDRESS_MAX)?),
            69 => Self::KeyForPublication(reader.array()?),
            70 => Self::Detach,
            _ => return Err(reader.malformed()),
        };
        reader.end(message)
    }
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u16).to_le_bytes());
    out.extend(text.as_bytes());
}

fn bits(flags: [bool; 4]) -> u8 {
    flags
        .iter()
        .enumerate()
        .fold(0, |bits, (index, flag)| bits | u8::from(*flag) << index)
}

struct Reader<'a> {
    kind: u8,
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    fn new(bytes: &'a [u8]) -> Result<Self, DecodeError> {
        let (kind, rest) = bytes
            .split_first()
            .ok_or(DecodeError::Malformed { kind: 0 })?;
        Ok(Self { kind: *kind, rest })
    }

    fn malformed(&self) -> DecodeError {
        DecodeError::Malformed { kind: self.kind }
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let (array, rest) = self.rest.split_first_chunk().ok_or(self.malformed())?;
        self.rest = rest;
        Ok(*array)
    }

    fn number(&mut self) -> Result<u32, DecodeError> {
        self.array().map(u32::from_le_bytes)
    }

    fn text(&mut self, most: usize) -> Result<String, DecodeError> {
        let length = usize::from(u16::from_le_bytes(self.array()?));
        if length > most || length > self.rest.len() {
            return Err(self.malformed());
        }
        let (text, rest) = self.rest.split_at(length);
        self.rest = rest;
        Ok(std::str::from_utf8(text)
            .map_err(|_| self.malformed())?
            .to_owned())
    }

    fn end<T>(&self, message: T) -> Result<T, DecodeError> {
        if self.rest.is_empty() {
            Ok(message)
        } else {
            Err(self.malformed())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn attach_request() -> Attach {
        Attach {
            pid: 4711,
            key: "1000:job.0:node7".into(),
            rank: Some(3),
            job_size: 16,
            threadless: false,
            ulfm: true,
            wants_wake_up: true,
            held: Some(Held {
                table: u64::MAX,
                slot: 5,
                generation: 2,
            }),
        }
    }

    #[test]
    fn every_message_survives_encoding() {
        let without_rank = Attach {
            rank: None,
            held: None,
            ..attach_request()
        };
        for message in [
            ToAgent::Attach(attach_request()),
            ToAgent::Attach(without_rank),
            ToAgent::Armed,
            ToAgent::Seed("10.0.0.1:7741@udp0".into()),
            ToAgent::Key([7; 32]),
            ToAgent::Leaving(-9),
            ToAgent::Ask,
            ToAgent::Aborted(4711, -3, 5000),
            ToAgent::Placed("n2".into(), vec![2, 3]),
            ToAgent::Placed("x".repeat(ADDRESS_MAX), vec![7; PLACED_MAX]),
            ToAgent::Feeds,
        ] {
            assert!(message.encode().len() <= MESSAGE_MAX);
            assert_eq!(ToAgent::decode(&message.encode()), Ok(message));
        }
        let attached = Attached {
            slot: 1,
            generation: 2,
            mark: 1 << 63 | 7,
            publish: true,
            address: "a@udp0".into(),
        };
        for message in [
            ToClient::Attached(attached),
            ToClient::Refused(RefusalCode::Full, "all 4 slots".into()),
            ToClient::WakeUp,
            ToClient::Address(String::new()),
            ToClient::KeyForPublication([9; 32]),
            ToClient::Detach,
        ] {
            assert_eq!(ToClient::decode(&message.encode()), Ok(message));
        }
    }

    #[test]
    fn another_version_is_distinguished_from_garbage() {
        let mut bytes = ToAgent::Attach(attach_request()).encode();
        for (protocol, layout) in [(9, LAYOUT), (VERSION, 9)] {
            bytes[5..7].copy_from_slice(&[protocol, layout]);
            assert_eq!(
                ToAgent::decode(&bytes),
                Err(DecodeError::Version { protocol, layout })
            );
        }
        bytes[1] = b'X';
        assert_eq!(
            ToAgent::decode(&bytes),
            Err(DecodeError::Malformed { kind: 1 })
        );
    }

    #[test]
    fn a_refusal_text_is_cut_at_its_limit() {
        let text = "\u{e9}".repeat(1000);
        let bytes = ToClient::Refused(RefusalCode::Job, text).encode();
        assert!(bytes.len() <= MESSAGE_MAX && ToClient::decode(&bytes).is_ok());
    }

    proptest! {
        #[test]
        fn garbage_is_refused_or_decodes_to_a_valid_message(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(message) = ToAgent::decode(&bytes) {
                prop_assert!(ToAgent::decode(&message.encode()).is_ok());
            }
            if let Ok(message) = ToClient::decode(&bytes) {
                prop_assert!(ToClient::decode(&message.encode()).is_ok());
            }
        }

        #[test]
        fn a_truncated_message_is_refused(cut in 0usize..60) {
            let bytes = ToAgent::Attach(attach_request()).encode();
            if cut < bytes.len() {
                prop_assert!(ToAgent::decode(&bytes[..cut]).is_err());
            }
        }
    }
}
