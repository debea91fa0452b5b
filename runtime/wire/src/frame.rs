//! The frame: sender, incarnation, sequence, receiver and authentication tag around a message body.
//!
//! ```text
//!  0      2         3      4        12            20         28   32     36          end-16   end
//!  | magic | version | kind | sender | incarnation | sequence | to | zone | body .... |  tag   |
//! ```
//! The tag is the first 16 bytes of a keyed BLAKE3 hash over all bytes before it, followed by two numbers
//! that are not sent: the receiver's id, and its incarnation as known to the sender. So a frame is valid
//! for one incarnation of one member. A recording of it is valid for no other member and for no later
//! incarnation, also not in a later run with the same key. `to` is a hash of these two numbers: by it the
//! receiver finds the incarnation to check the tag with.
//!
//! `zone` is the number of the zone whose members exchange the frame, 0 if the job has one zone. A node may be a
//! member of several zones, one of each level. A frame of another zone is rejected.
//!
//! A frame *for anyone* goes to an address whose member is not known. Its `to` is 0, and nothing is
//! appended for the tag, in all releases alike. It may be a recording of any age. The receiver takes
//! nothing from it, and answers with a frame for the incarnation that it names, which learns the receiver's
//! incarnation from the answer.
//!
//! Nothing of a frame is used before the tag is checked; a frame with a wrong tag is dropped and counted.
//! The tag proves that a member of the job wrote the frame for this incarnation of the local member. It
//! gives no replay protection: that is done by `replay`.

use crate::codec::{Full, Malformed, Reader, Writer};
use crate::identity::{INCARNATION_MAX, MemberId};
use crate::mix::mix;
use crate::parameter::{Difference, Parameter};
use crate::planted::{self, Fault};
use crate::reject::Reject;

const MAGIC: u16 = 0x754d;
/// Version of the wire format; frames of any other version are rejected.
pub const WIRE_VERSION: u8 = 6;
/// Size of the header, in bytes.
pub const HEADER_SIZE: usize = 36;
/// Size of the tag, in bytes.
pub const TAG_SIZE: usize = 16;
/// Size of a frame without its body, in bytes.
pub const FRAME_OVERHEAD: usize = HEADER_SIZE + TAG_SIZE;

/// The kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Kind {
    /// Repeats known state.
    Beat = 1,
    /// Requests a link.
    Link = 2,
    /// Answers a request for a link.
    LinkReply = 3,
    /// Asks a silent member for a sign of life.
    Probe = 4,
    /// Answers a probe.
    ProbeReply = 5,
    /// Asks a third member to probe a silent one.
    IndirectProbe = 6,
    /// What the third member found.
    IndirectProbeReply = 7,
    /// Changes of the membership.
    News = 8,
    /// Acknowledges news.
    Ack = 9,
    /// Asks an address for contact.
    Join = 10,
    /// A part of a view.
    View = 11,
    /// Tells the receiver that it was declared failed.
    FailureClaim = 12,
    /// Refuses a member with other parameters.
    Refusal = 13,
    /// Requests attributes.
    Request = 14,
    /// Attributes that were requested.
    Reply = 15,
    /// Names news without their facts.
    Hint = 16,
    /// Tells the receiver that another member holds its name.
    NameConflict = 17,
    /// A ping of age gossip.
    Gossip = 18,
    /// The reply to a ping.
    GossipReply = 19,
    /// A ping in a message of the application.
    GossipCarried = 20,
    /// Answers a frame for anyone.
    Verify = 21,
}

impl Kind {
    fn from_number(number: u8) -> Option<Self> {
        Some(match number {
            1 => Self::Beat,
            2 => Self::Link,
            3 => Self::LinkReply,
            4 => Self::Probe,
            5 => Self::ProbeReply,
            6 => Self::IndirectProbe,
            7 => Self::IndirectProbeReply,
            8 => Self::News,
            9 => Self::Ack,
            10 => Self::Join,
            11 => Self::View,
            12 => Self::FailureClaim,
            13 => Self::Refusal,
            14 => Self::Request,
            15 => Self::Reply,
            16 => Self::Hint,
            17 => Self::NameConflict,
            18 => Self::Gossip,
            19 => Self::GossipReply,
            20 => Self::GossipCarried,
            21 => Self::Verify,
            _ => return None,
        })
    }
}

/// The header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The kind of the message.
    pub kind: Kind,
    /// The sender.
    pub sender: MemberId,
    /// The sender's incarnation.
    pub incarnation: u64,
    /// Number of the frame in that incarnation.
    pub sequence: u64,
    /// The number of the zone.
    pub zone: u32,
}

/// The receiver that a frame is written for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Receiver {
    /// The member at the address, whichever it is.
    Anyone,
    /// This incarnation of a member.
    Member(MemberId, u64),
}

impl Receiver {
    /// The field `to` of the header.
    fn mark(self) -> u32 {
        match self {
            Self::Anyone => 0,
            Self::Member(id, incarnation) => {
                let mixed = mix(id.0 ^ mix(incarnation));
                (mixed as u32).max(1)
            }
        }
    }
}

impl Header {
    /// The name of the frame.
    pub fn name(&self) -> FrameName {
        FrameName {
            incarnation: self.incarnation,
            sequence: self.sequence,
        }
    }
}

/// The name of a frame: its sender's incarnation, and its sequence number in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameName {
    /// The sender's incarnation.
    pub incarnation: u64,
    /// Number of the frame in that incarnation.
    pub sequence: u64,
}

impl FrameName {
    /// No frame: no incarnation is 0.
    pub const NONE: Self = Self {
        incarnation: 0,
        sequence: 0,
    };

    /// Reads a name.
    ///
    /// # Errors
    /// The bytes end before it.
    pub fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self {
            incarnation: reader.u64()?,
            sequence: reader.u64()?,
        })
    }

    /// Writes it.
    ///
    /// # Errors
    /// The buffer is full.
    pub fn write(&self, writer: &mut Writer<'_>) -> Result<(), Full> {
        writer.u64(self.incarnation)?;
        writer.u64(self.sequence)
    }
}

/// The sender that a frame names, not authenticated. For the host's rail health, after `handle` has
/// accepted the frame.
#[must_use]
pub fn sender(bytes: &[u8]) -> Option<MemberId> {
    read_header(bytes).ok().map(|(header, _)| header.sender)
}

/// The zone that a frame names, not authenticated: for a node that is a member of several zones, to find the
/// engine that is to handle it.
#[must_use]
pub fn zone(bytes: &[u8]) -> Option<u32> {
    read_header(bytes).ok().map(|(header, _)| header.zone)
}

/// The kind, sender and body of a frame, not authenticated.
pub fn unproven(bytes: &[u8]) -> Option<(Kind, MemberId, &[u8])> {
    let (header, _) = read_header(bytes).ok()?;
    let body = bytes.get(HEADER_SIZE..bytes.len().checked_sub(TAG_SIZE)?)?;
    Some((header.kind, header.sender, body))
}

/// The kind of a frame, not authenticated. For traces.
pub fn peek(bytes: &[u8]) -> Option<Kind> {
    read_header(bytes).ok().map(|(header, _)| header.kind)
}

/// Completes the frame whose body of `body_size` bytes is in `buffer` after [`HEADER_SIZE`]: writes header
/// and tag, and returns the size of the frame. The buffer has room for both.
pub fn seal(
    key: &[u8; 32],
    header: Header,
    to: Receiver,
    buffer: &mut [u8],
    body_size: usize,
) -> usize {
    let mut writer = Writer::new(&mut buffer[..HEADER_SIZE]);
    let written = writer
        .u16(MAGIC)
        .and_then(|()| writer.u8(WIRE_VERSION))
        .and_then(|()| writer.u8(header.kind as u8))
        .and_then(|()| writer.u64(header.sender.0))
        .and_then(|()| writer.u64(header.incarnation))
        .and_then(|()| writer.u64(header.sequence))
        .and_then(|()| writer.u32(to.mark()))
        .and_then(|()| writer.u32(header.zone));
    debug_assert!(written.is_ok() && writer.used() == HEADER_SIZE);
    let end = HEADER_SIZE + body_size;
    let tag = prove(key, &buffer[..end], to);
    buffer[end..end + TAG_SIZE].copy_from_slice(&tag.as_bytes()[..TAG_SIZE]);
    end + TAG_SIZE
}

fn prove(key: &[u8; 32], signed: &[u8], to: Receiver) -> blake3::Hash {
    match to {
        Receiver::Anyone => blake3::keyed_hash(key, signed),
        Receiver::Member(id, incarnation) => {
            let mut hasher = blake3::Hasher::new_keyed(key);
            hasher.update(signed);
            hasher.update(&id.0.to_le_bytes());
            hasher.update(&incarnation.to_le_bytes());
            hasher.finalize()
        }
    }
}

/// An authenticated frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened<'a> {
    /// Its header.
    pub header: Header,
    /// The frame is for anyone, and may be a recording of any age.
    pub is_unaddressed: bool,
    /// The body of the message.
    pub body: &'a [u8],
}

/// Authenticates a frame of a zone for the member `own` with one of its `incarnations`.
///
/// # Errors
/// Why the frame is rejected.
pub fn open<'a>(
    key: &[u8; 32],
    zone: u32,
    own: MemberId,
    incarnations: &[u64],
    bytes: &'a [u8],
) -> Result<Opened<'a>, Reject> {
    if bytes.len() < FRAME_OVERHEAD {
        return Err(Reject::Truncated);
    }
    let (header, mark) = read_header(bytes)?;
    if header.zone != zone {
        return Err(Reject::OtherZone);
    }
    let (signed, tag) = bytes.split_at(bytes.len() - TAG_SIZE);
    let to = match mark {
        0 => Receiver::Anyone,
        _ => {
            let incarnations = incarnations.iter().rev();
            let mut incarnations =
                incarnations.map(|incarnation| Receiver::Member(own, *incarnation));
            incarnations
                .find(|to| to.mark() == mark)
                .ok_or(Reject::Misdirected)?
        }
    };
    let expected = prove(key, signed, to);
    // Constant time: all bytes are compared, so that timing reveals nothing about the tag.
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
    Ok(Opened {
        header,
        is_unaddressed: to == Receiver::Anyone,
        body: &signed[HEADER_SIZE..],
    })
}

/// Whether a frame is authentic and for anyone, whichever zone it names. It may be a recording of any age.
#[must_use]
pub fn is_for_anyone(key: &[u8; 32], bytes: &[u8]) -> bool {
    zone(bytes).is_some_and(|zone| open(key, zone, MemberId(0), &[], bytes).is_ok())
}

/// The sender of an authentic frame for anyone of another wire version, and the versions. Header and tag of such a
/// frame are at the same place in every version.
pub fn other_release(key: &[u8; 32], bytes: &[u8]) -> Option<(MemberId, Difference)> {
    if bytes.len() < FRAME_OVERHEAD {
        return None;
    }
    let (signed, tag) = bytes.split_at(bytes.len() - TAG_SIZE);
    let sender = signed[4..12].try_into().ok()?;
    let proven = blake3::keyed_hash(key, signed).as_bytes()[..TAG_SIZE] == *tag;
    let (own, other) = (WIRE_VERSION.into(), signed[2].into());
    let difference = Difference::new(Parameter::WireVersion, own, other);
    proven.then_some((MemberId(u64::from_le_bytes(sender)), difference))
}

/// The header, and the field `to`.
fn read_header(bytes: &[u8]) -> Result<(Header, u32), Reject> {
    let mut reader = Reader::new(bytes);
    let truncated = |_: Malformed| Reject::Truncated;
    if reader.u16().map_err(truncated)? != MAGIC {
        return Err(Reject::Foreign);
    }
    if reader.u8().map_err(truncated)? != WIRE_VERSION {
        return Err(Reject::WireVersion);
    }
    let kind = Kind::from_number(reader.u8().map_err(truncated)?).ok_or(Reject::Malformed)?;
    let sender = MemberId(reader.u64().map_err(truncated)?);
    let incarnation = reader.u64().map_err(truncated)?;
    let sequence = reader.u64().map_err(truncated)?;
    let mark = reader.u32().map_err(truncated)?;
    let header = Header {
        kind,
        sender,
        incarnation,
        sequence,
        zone: reader.u32().map_err(truncated)?,
    };
    Ok((header, mark))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const KEY: [u8; 32] = [7; 32];
    const OWN: MemberId = MemberId(8);
    const INCARNATIONS: [u64; 2] = [40, 41];

    fn sealed_for(to: Receiver, body: &[u8]) -> Vec<u8> {
        let header = Header {
            kind: Kind::News,
            sender: MemberId(3),
            incarnation: 9,
            sequence: 77,
            zone: 0,
        };
        let mut buffer = vec![0; FRAME_OVERHEAD + body.len()];
        buffer[HEADER_SIZE..HEADER_SIZE + body.len()].copy_from_slice(body);
        let size = seal(&KEY, header, to, &mut buffer, body.len());
        assert_eq!(size, buffer.len());
        buffer
    }

    fn sealed(body: &[u8]) -> Vec<u8> {
        sealed_for(Receiver::Member(OWN, 41), body)
    }

    proptest! {
        #[test]
        fn what_was_sealed_opens(body in proptest::collection::vec(any::<u8>(), 0..600)) {
            for (to, is_unaddressed) in [
                (Receiver::Anyone, true), (Receiver::Member(OWN, 40), false), (Receiver::Member(OWN, 41), false),
            ] {
                let bytes = sealed_for(to, &body);
                let opened = open(&KEY, 0, OWN, &INCARNATIONS, &bytes).unwrap();
                prop_assert_eq!(opened.header.sequence, 77);
                prop_assert_eq!((opened.body, opened.is_unaddressed), (&body[..], is_unaddressed));
                prop_assert_eq!(sender(&bytes), Some(MemberId(3)));
            }
        }

        /// A frame for another member or incarnation is rejected, whatever its `to`.
        #[test]
        fn a_frame_for_another_is_never_believed(
            body in proptest::collection::vec(any::<u8>(), 0..100), other: u64, incarnation: u64,
        ) {
            prop_assume!(other != OWN.0 && !INCARNATIONS.contains(&incarnation));
            for to in [Receiver::Member(MemberId(other), 41), Receiver::Member(OWN, incarnation)] {
                let mut bytes = sealed_for(to, &body);
                prop_assert_eq!(open(&KEY, 0, OWN, &INCARNATIONS, &bytes), Err(Reject::Misdirected));
                for mark in [0, Receiver::Member(OWN, 41).mark()] {
                    bytes[28..32].copy_from_slice(&mark.to_le_bytes());
                    prop_assert_eq!(open(&KEY, 0, OWN, &INCARNATIONS, &bytes), Err(Reject::Forged));
                }
            }
        }

        /// A frame without the unsent numbers cannot be passed off as one with them.
        #[test]
        fn a_frame_for_a_member_is_none_for_anyone(
            body in proptest::collection::vec(any::<u8>(), 0..100),
        ) {
            let mut bytes = sealed(&body);
            let tag = bytes.split_off(bytes.len() - TAG_SIZE);
            bytes.extend(OWN.0.to_le_bytes());
            bytes.extend(41_u64.to_le_bytes());
            bytes.extend(tag);
            prop_assert!(open(&KEY, 0, OWN, &INCARNATIONS, &bytes).is_err());
        }

        #[test]
        fn one_flipped_bit_is_never_believed(
            body in proptest::collection::vec(any::<u8>(), 0..100),
            at in any::<prop::sample::Index>(), bit in 0..8,
        ) {
            let mut bytes = sealed(&body);
            let at = at.index(bytes.len());
            bytes[at] ^= 1_u8 << bit;
            prop_assert!(open(&KEY, 0, OWN, &INCARNATIONS, &bytes).is_err());
        }

        #[test]
        fn a_shortened_frame_is_never_believed(
            body in proptest::collection::vec(any::<u8>(), 0..100), cut in any::<prop::sample::Index>(),
        ) {
            let bytes = sealed(&body);
            let length = cut.index(bytes.len());
            prop_assert!(open(&KEY, 0, OWN, &INCARNATIONS, &bytes[..length]).is_err());
        }

        #[test]
        fn garbage_is_refused_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..2000)) {
            prop_assert!(open(&KEY, 0, OWN, &INCARNATIONS, &bytes).is_err());
        }
    }

    #[test]
    fn another_key_is_forgery() {
        assert_eq!(
            open(&[8; 32], 0, OWN, &INCARNATIONS, &sealed(b"hello")).unwrap_err(),
            Reject::Forged
        );
    }
}
