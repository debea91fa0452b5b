//! Gossip messages on the wire, and messages of several parts put together.
//!
//! ```text
//!  0       8      10      12      13 (if flag 1)                               payload
//!  | clock | part | parts | flags | interval_us | members | SHA-1 | NID | ...  |
//! ```
//! The payload of a ping is one byte for each age, in the order of the participants. The payload of a reply
//! is one 32-bit number for each entry: the index, and the age in the low byte. The kind in the frame's
//! header distinguishes them. The parts of one message have consecutive sequences, so part and sequence
//! name the message. It counts when all parts are there.

use std::collections::VecDeque;

use muster_wire::codec::{Full, Malformed, Reader, Writer};
use muster_wire::frame::Header;
use muster_wire::identity::{ADDRESS_MAX, MemberId};
use muster_wire::parameter::{Difference, Parameter};

/// Most messages put together at a time: as many as a participant has receive buffers.
const ASSEMBLIES_MAX: usize = 4;
/// Most parts of one message: a million entries of a reply in the smallest datagrams.
const PARTS_MAX: u16 = 8192;
/// Size of a head without parameters.
const HEAD_SIZE: usize = 13;

/// What all participants must have in common, as sent; the wire version is in every frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Parameters<'a> {
    pub(super) interval_us: u32,
    pub(super) members: u32,
    pub(super) digest: [u8; 20],
    /// The sender's NIDs: without them a sender that is not in the receiver's list could not be answered.
    pub(super) address: &'a [u8],
}

impl Parameters<'_> {
    /// The first parameter that differs.
    pub(super) fn difference(&self, other: &Parameters<'_>) -> Option<Difference> {
        if self.interval_us != other.interval_us {
            let (own, other) = (self.interval_us, other.interval_us);
            Some(Difference::new(Parameter::Interval, own, other))
        } else if (self.members, self.digest) != (other.members, other.digest) {
            let (own, other) = (self.list(), other.list());
            Some(Difference::new(Parameter::Participants, own, other))
        } else {
            None
        }
    }

    /// The beginning of the digest.
    fn list(&self) -> u32 {
        let bytes = self.digest.first_chunk().copied().unwrap_or_default();
        u32::from_be_bytes(bytes)
    }
}

/// One part, as sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part<'a> {
    pub(super) clock: u64,
    pub(super) part: u16,
    pub(super) parts: u16,
    pub(super) parameters: Option<Parameters<'a>>,
    pub(super) payload: &'a [u8],
}

impl<'a> Part<'a> {
    /// Size of everything before the payload.
    pub(super) fn head_size(parameters: Option<&Parameters<'_>>) -> usize {
        HEAD_SIZE + parameters.map_or(0, |parameters| 4 + 4 + 20 + 1 + parameters.address.len())
    }

    pub(super) fn read(body: &'a [u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(body);
        let (clock, part, parts) = (reader.u64()?, reader.u16()?, reader.u16()?);
        if part >= parts || parts > PARTS_MAX {
            return Err(Malformed::Value);
        }
        let mut parameters = None;
        if reader.flag()? {
            let (interval_us, members) = (reader.u32()?, reader.u32()?);
            let mut digest = [0; 20];
            digest.copy_from_slice(reader.bytes(20)?);
            let address = reader.short()?;
            parameters = Some(Parameters {
                interval_us,
                members,
                digest,
                address,
            });
        }
        Ok(Self {
            clock,
            part,
            parts,
            parameters,
            payload: reader.rest(),
        })
    }

    /// Writes the head; the payload follows.
    pub(super) fn write_head(&self, writer: &mut Writer<'_>) -> Result<(), Full> {
        writer.u64(self.clock)?;
        writer.u16(self.part)?;
        writer.u16(self.parts)?;
        writer.u8(u8::from(self.parameters.is_some()))?;
        if let Some(parameters) = &self.parameters {
            writer.u32(parameters.interval_us)?;
            writer.u32(parameters.members)?;
            writer.bytes(&parameters.digest)?;
            debug_assert!(parameters.address.len() <= ADDRESS_MAX);
            writer.short(parameters.address)?;
        }
        Ok(())
    }
}

/// An entry of a reply.
pub(super) fn entry(index: usize, age: u8) -> u32 {
    // Participants are at most 2^20.
    (index as u32) << 8 | u32::from(age)
}

/// Index and age of an entry.
pub(super) fn entries(payload: &[u8]) -> impl Iterator<Item = (usize, u8)> + '_ {
    payload.chunks_exact(4).map(|bytes| {
        let number = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        ((number >> 8) as usize, number as u8)
    })
}

/// A message with missing parts.
#[derive(Clone, Debug)]
struct Assembly {
    sender: MemberId,
    /// Sequence of its first part.
    first: u64,
    parts: Vec<Option<Box<[u8]>>>,
    bytes: usize,
}

/// The messages with missing parts.
#[derive(Clone, Debug, Default)]
pub(super) struct Assemblies {
    waiting: VecDeque<Assembly>,
}

/// The effect of a part.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Joined {
    /// Other parts are missing; this number of incomplete messages was dropped for it.
    Waits { dropped: u64 },
    /// It was the last one: the payload of the message.
    Whole(Vec<u8>),
}

impl Assemblies {
    /// Takes a part of a message; its complete payload has at most `most` bytes.
    pub(super) fn take(
        &mut self,
        header: &Header,
        part: &Part<'_>,
        most: usize,
    ) -> Result<Joined, Malformed> {
        let first = header.sequence.checked_sub(part.part.into());
        let first = first.ok_or(Malformed::Value)?;
        let found = |waiting: &Assembly| waiting.sender == header.sender;
        let mut dropped = 0;
        let at = match self.waiting.iter().position(found) {
            Some(at) if self.waiting[at].first == first => at,
            other => {
                // The next message of a sender ends the one before; a fifth sender ends the oldest one.
                let full = self.waiting.len() == ASSEMBLIES_MAX;
                if let Some(at) = other.or(full.then_some(0)) {
                    self.waiting.remove(at);
                    dropped += 1;
                }
                self.waiting.push_back(Assembly {
                    sender: header.sender,
                    first,
                    parts: vec![None; part.parts.into()],
                    bytes: 0,
                });
                self.waiting.len() - 1
            }
        };
        let assembly = &mut self.waiting[at];
        let is_new = assembly.parts.get(usize::from(part.part)) == Some(&None);
        let fits = assembly.bytes + part.payload.len() <= most;
        if !is_new || !fits || assembly.parts.len() != usize::from(part.parts) {
            self.waiting.remove(at);
            return Err(Malformed::Value);
        }
        assembly.bytes += part.payload.len();
        assembly.parts[usize::from(part.part)] = Some(part.payload.into());
        if assembly.parts.iter().any(Option::is_none) {
            return Ok(Joined::Waits { dropped });
        }
        let whole = self.waiting.remove(at);
        let parts = whole.map_or_else(Vec::new, |whole| whole.parts);
        Ok(Joined::Whole(
            parts.into_iter().flatten().flatten().collect(),
        ))
    }

    pub(super) fn clear(&mut self) {
        self.waiting.clear();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use muster_wire::frame::Kind;

    fn header(sender: u64, sequence: u64) -> Header {
        Header {
            kind: Kind::Gossip,
            sender: MemberId(sender),
            incarnation: 1,
            sequence,
            zone: 0,
        }
    }

    fn part(part: u16, parts: u16, payload: &[u8]) -> Part<'_> {
        Part {
            clock: 7,
            part,
            parts,
            parameters: None,
            payload,
        }
    }

    /// AG-15: the parts make the message in any order.
    #[test]
    fn parts_in_any_order_make_the_message() {
        let mut assemblies = Assemblies::default();
        let waits = Ok(Joined::Waits { dropped: 0 });
        assert_eq!(assemblies.take(&header(1, 12), &part(2, 3, b"c"), 9), waits);
        assert_eq!(
            assemblies.take(&header(1, 10), &part(0, 3, b"aa"), 9),
            waits
        );
        let whole = Ok(Joined::Whole(b"aabc".to_vec()));
        assert_eq!(assemblies.take(&header(1, 11), &part(1, 3, b"b"), 9), whole);
    }

    /// AG-12, AG-15: four at a time; an incomplete message is dropped and counted.
    #[test]
    fn what_is_never_whole_makes_room() {
        let mut assemblies = Assemblies::default();
        for sender in 1..=4 {
            let taken = assemblies.take(&header(sender, 10), &part(0, 2, b"a"), 9);
            assert_eq!(taken, Ok(Joined::Waits { dropped: 0 }));
        }
        let taken = assemblies.take(&header(5, 10), &part(0, 2, b"a"), 9);
        assert_eq!(taken, Ok(Joined::Waits { dropped: 1 }));
        let taken = assemblies.take(&header(5, 20), &part(0, 2, b"a"), 9);
        assert_eq!(taken, Ok(Joined::Waits { dropped: 1 }));
        let taken = assemblies.take(&header(5, 11), &part(1, 2, b"b"), 9);
        assert_eq!(taken, Ok(Joined::Waits { dropped: 1 }));
        assert_eq!(assemblies.waiting.len(), 4);
        let long = assemblies.take(&header(5, 10), &part(0, 2, b"0123456789"), 9);
        assert_eq!(long, Err(Malformed::Value));
    }

    proptest! {
        /// A message is read back as written; any bytes are parsed or rejected.
        #[test]
        fn any_bytes_are_read_or_refused(
            clock: u64, members: u32, interval_us: u32, digest: [u8; 20],
            address in proptest::collection::vec(any::<u8>(), 0..255), carries: bool,
            payload in proptest::collection::vec(any::<u8>(), 0..500),
            garbage in proptest::collection::vec(any::<u8>(), 0..500),
        ) {
            let parameters = Parameters { interval_us, members, digest, address: &address };
            let part = Part {
                clock, part: 1, parts: 2, parameters: carries.then_some(parameters), payload: &payload,
            };
            let mut buffer = [0; 1000];
            let mut writer = Writer::new(&mut buffer);
            part.write_head(&mut writer).unwrap();
            prop_assert_eq!(writer.used(), Part::head_size(part.parameters.as_ref()));
            writer.bytes(&payload).unwrap();
            let used = writer.used();
            prop_assert_eq!(Part::read(&buffer[..used]), Ok(part));
            let _ = Part::read(&garbage);
        }
    }
}
