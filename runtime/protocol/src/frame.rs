//! The envelope: who sent this, which life of it, which frame, when, and a proof.
//!
//! ```text
//!  0      2         3      4        12            20         28         32          end-16   end
//!  | magic | version | kind | sender | incarnation | sequence | time_us | body .... |  tag   |
//! ```
//! The tag is the head of a keyed BLAKE3 over all before it. Nothing of a frame is believed
//! before the tag is right; a frame that fails costs a counter and nothing else. The envelope
//! proves that a member of the job wrote the frame. That it is fresh is the matter of `replay`.

use crate::codec::{Full, Malformed, Reader, Writer};
use crate::identity::{INCARNATION_MAX, MemberId};
use crate::planted::{self, Fault};
use crate::reject::Reject;

const MAGIC: u16 = 0x754d;
/// Version of the wire format; frames of any other are refused.
pub const WIRE_VERSION: u8 = 4;
/// Bytes before the body.
pub const HEADER_SIZE: usize = 32;
/// Bytes of proof after the body.
pub const TAG_SIZE: usize = 16;
/// Bytes a frame adds to its body.
pub const FRAME_OVERHEAD: usize = HEADER_SIZE + TAG_SIZE;

/// What the body is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum Kind {
    Beat = 1,
    Link = 2,
    LinkReply = 3,
    Probe = 4,
    ProbeReply = 5,
    Ask = 6,
    Answer = 7,
    News = 8,
    Ack = 9,
    Discover = 10,
    View = 11,
    Claim = 12,
    Refusal = 13,
    Request = 14,
    Reply = 15,
    Hint = 16,
    Twin = 17,
    Gossip = 18,
    GossipReply = 19,
    GossipCarried = 20,
}

impl Kind {
    fn from_number(number: u8) -> Option<Self> {
        Some(match number {
            1 => Self::Beat,
            2 => Self::Link,
            3 => Self::LinkReply,
            4 => Self::Probe,
            5 => Self::ProbeReply,
            6 => Self::Ask,
            7 => Self::Answer,
            8 => Self::News,
            9 => Self::Ack,
            10 => Self::Discover,
            11 => Self::View,
            12 => Self::Claim,
            13 => Self::Refusal,
            14 => Self::Request,
            15 => Self::Reply,
            16 => Self::Hint,
            17 => Self::Twin,
            18 => Self::Gossip,
            19 => Self::GossipReply,
            20 => Self::GossipCarried,
            _ => return None,
        })
    }
}

/// The head of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) kind: Kind,
    pub(crate) sender: MemberId,
    pub(crate) incarnation: u64,
    pub(crate) sequence: u64,
    /// The sender's clock in microseconds, its low 32 bits: for measuring, never for deciding.
    pub(crate) time_us: u32,
}

impl Header {
    pub(crate) fn name(&self) -> FrameName {
        FrameName {
            incarnation: self.incarnation,
            sequence: self.sequence,
        }
    }
}

/// Which frame of its sender: the life, and the number in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameName {
    pub(crate) incarnation: u64,
    pub(crate) sequence: u64,
}

impl FrameName {
    /// No frame: no life has this number.
    pub(crate) const NONE: Self = Self {
        incarnation: 0,
        sequence: 0,
    };

    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self {
            incarnation: reader.u64()?,
            sequence: reader.u64()?,
        })
    }

    pub(crate) fn write(&self, writer: &mut Writer<'_>) -> Result<(), Full> {
        writer.u64(self.incarnation)?;
        writer.u64(self.sequence)
    }
}

/// The sender a frame claims, unproven. For the host's rail health, after `handle` said yes.
#[must_use]
pub fn sender(bytes: &[u8]) -> Option<MemberId> {
    read_header(bytes).ok().map(|header| header.sender)
}

/// What a frame claims: its kind, its sender, and its body. None of it is proven.
pub(crate) fn unproven(bytes: &[u8]) -> Option<(Kind, MemberId, &[u8])> {
    let header = read_header(bytes).ok()?;
    let body = bytes.get(HEADER_SIZE..bytes.len().checked_sub(TAG_SIZE)?)?;
    Some((header.kind, header.sender, body))
}

/// The kind a frame claims, unproven. For traces.
pub(crate) fn peek(bytes: &[u8]) -> Option<Kind> {
    read_header(bytes).ok().map(|header| header.kind)
}

/// Finishes the frame whose body of `body_size` bytes lies in `buffer` after [`HEADER_SIZE`]:
/// writes header and tag, returns the size of the whole. The buffer has room for both.
pub(crate) fn seal(key: &[u8; 32], header: Header, buffer: &mut [u8], body_size: usize) -> usize {
    let mut writer = Writer::new(&mut buffer[..HEADER_SIZE]);
    let written = writer
        .u16(MAGIC)
        .and_then(|()| writer.u8(WIRE_VERSION))
        .and_then(|()| writer.u8(header.kind as u8))
        .and_then(|()| writer.u64(header.sender.0))
        .and_then(|()| writer.u64(header.incarnation))
        .and_then(|()| writer.u64(header.sequence))
        .and_then(|()| writer.u32(header.time_us));
    debug_assert!(written.is_ok() && writer.used() == HEADER_SIZE);
    let end = HEADER_SIZE + body_size;
    let tag = blake3::keyed_hash(key, &buffer[..end]);
    buffer[end..end + TAG_SIZE].copy_from_slice(&tag.as_bytes()[..TAG_SIZE]);
    end + TAG_SIZE
}

/// Proves a frame and takes it apart.
pub(crate) fn open<'a>(key: &[u8; 32], bytes: &'a [u8]) -> Result<(Header, &'a [u8]), Reject> {
    if bytes.len() < FRAME_OVERHEAD {
        return Err(Reject::Truncated);
    }
    let header = read_header(bytes)?;
    let (signed, tag) = bytes.split_at(bytes.len() - TAG_SIZE);
    let expected = blake3::keyed_hash(key, signed);
    // Every byte is compared, whatever the first ones say: time tells nothing about the tag.
    let difference = expected
        .as_bytes()
        .iter()
        .zip(tag)
        .fold(0, |bits, (left, right)| bits | (left ^ right));
    if core::hint::black_box(difference) != 0 && !planted::on(Fault::TagIgnored) {
        return Err(Reject::Forged);
    }
    if header.incarnation == 0 || header.incarnation > INCARNATION_MAX {
        return Err(Reject::Malformed);
    }
    Ok((header, &signed[HEADER_SIZE..]))
}

/// The sender of an authentic frame of another wire version; the head and the proof are where
/// they are in every version.
pub(crate) fn other_release(key: &[u8; 32], bytes: &[u8]) -> Option<MemberId> {
    if bytes.len() < FRAME_OVERHEAD {
        return None;
    }
    let (signed, tag) = bytes.split_at(bytes.len() - TAG_SIZE);
    let sender = signed[4..12].try_into().ok()?;
    let proven = blake3::keyed_hash(key, signed).as_bytes()[..TAG_SIZE] == *tag;
    proven.then_some(MemberId(u64::from_le_bytes(sender)))
}

fn read_header(bytes: &[u8]) -> Result<Header, Reject> {
    let mut reader = Reader::new(bytes);
    let truncated = |_: Malformed| Reject::Truncated;
    if reader.u16().map_err(truncated)? != MAGIC {
        return Err(Reject::Foreign);
    }
    if reader.u8().map_err(truncated)? != WIRE_VERSION {
        return Err(Reject::WireVersion);
    }
    let kind = Kind::from_number(reader.u8().map_err(truncated)?).ok_or(Reject::Malformed)?;
    Ok(Header {
        kind,
        sender: MemberId(reader.u64().map_err(truncated)?),
        incarnation: reader.u64().map_err(truncated)?,
        sequence: reader.u64().map_err(truncated)?,
        time_us: reader.u32().map_err(truncated)?,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const KEY: [u8; 32] = [7; 32];

    fn sealed(body: &[u8]) -> Vec<u8> {
        let header = Header {
            kind: Kind::News,
            sender: MemberId(3),
            incarnation: 9,
            sequence: 77,
            time_us: 5,
        };
        let mut buffer = vec![0; FRAME_OVERHEAD + body.len()];
        buffer[HEADER_SIZE..HEADER_SIZE + body.len()].copy_from_slice(body);
        let size = seal(&KEY, header, &mut buffer, body.len());
        assert_eq!(size, buffer.len());
        buffer
    }

    proptest! {
        #[test]
        fn what_was_sealed_opens(body in proptest::collection::vec(any::<u8>(), 0..600)) {
            let bytes = sealed(&body);
            let (header, opened) = open(&KEY, &bytes).unwrap();
            prop_assert_eq!(header.sequence, 77);
            prop_assert_eq!(opened, &body[..]);
            prop_assert_eq!(sender(&bytes), Some(MemberId(3)));
        }

        #[test]
        fn one_flipped_bit_is_never_believed(
            body in proptest::collection::vec(any::<u8>(), 0..100),
            at in any::<prop::sample::Index>(), bit in 0..8,
        ) {
            let mut bytes = sealed(&body);
            let at = at.index(bytes.len());
            bytes[at] ^= 1_u8 << bit;
            prop_assert!(open(&KEY, &bytes).is_err());
        }

        #[test]
        fn a_shortened_frame_is_never_believed(
            body in proptest::collection::vec(any::<u8>(), 0..100), cut in any::<prop::sample::Index>(),
        ) {
            let bytes = sealed(&body);
            let length = cut.index(bytes.len());
            prop_assert!(open(&KEY, &bytes[..length]).is_err());
        }

        #[test]
        fn garbage_is_refused_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..2000)) {
            prop_assert!(open(&KEY, &bytes).is_err());
        }
    }

    #[test]
    fn another_key_is_forgery() {
        assert_eq!(
            open(&[8; 32], &sealed(b"hello")).unwrap_err(),
            Reject::Forged
        );
    }
}
