//! The frame of the bulk lane: a fixed header, then a fragment if the frame carries one, then a tag.
//!
//! ```text
//!  0  4  mark "MBK6"
//!  4  1  kind: 0 fragment, 1 acknowledgement, 2 probe: does this path work?
//!  5  1  operation of its message: 0 put, 1 put without acknowledgement, 2 get, 3 reply; +16 urgent
//!  6  2  port of the sender's NID
//!  8  4  address of the sender's NID
//! 12  2  port of the NID that it is sent to
//! 14  4  address of the NID that it is sent to
//! 18  8  session of the sender
//! 26  8  session of the receiver; 0 if it is not known
//! 34  8  number of the frame, counted from 1 in the sender's session
//! 42  8  message, counted from 1; 0 in a probe and its acknowledgement
//! 50  4  length of the whole message
//! 54  4  which fragment; 0 in an acknowledgement
//! 58  8  fragments that have arrived, a bit each; 0 in a fragment
//! 66     the fragment
//! -16 16 tag
//! ```
//! Numbers are little-endian. The net is that of the rail that the frame arrived on. The tag is the first 16 bytes of
//! a keyed BLAKE3 over all bytes before it. A frame is used only if its tag is valid and it is addressed to this
//! node. The tag gives no replay protection; `session` does.

use super::{Fragment, Operation, Stamp};
use std::net::{Ipv4Addr, SocketAddrV4};

const MARK: [u8; 4] = *b"MBK6";

/// Added to the operation of an urgent message.
const URGENT: u8 = 16;

const HEADER_BYTES: usize = 66;

const TAG_BYTES: usize = 16;

/// The bytes that a frame adds to its fragment.
pub(crate) const FRAME_BYTES: usize = HEADER_BYTES + TAG_BYTES;

/// The key that all senders and receivers share.
pub(crate) type Key = [u8; 32];

/// The kind of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The frame carries a fragment.
    Fragment,
    /// These fragments have arrived, one bit each.
    Acked(u64),
    /// Probes whether this path works. To be acknowledged at once.
    Probe,
}

/// The fragment field of a frame that carries none.
pub(crate) const NO_FRAGMENT: Fragment = Fragment {
    message: 0,
    length: 0,
    index: 0,
};

/// A placeholder for the sender of a frame whose rail is not known yet.
pub(crate) const NO_SENDER: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0);

/// A header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Frame {
    /// The sender's NID, which answers are sent to.
    pub(crate) sender: SocketAddrV4,
    pub(crate) stamp: Stamp,
    pub(crate) fragment: Fragment,
    pub(crate) kind: Kind,
    /// The operation of its message.
    pub(crate) operation: Operation,
    /// Whether its message is in the urgent stream.
    pub(crate) urgent: bool,
}

impl Frame {
    /// The whole frame with its tag, for one NID.
    pub(crate) fn seal(&self, key: &Key, to: SocketAddrV4, rest: &[u8]) -> Vec<u8> {
        let (kind, bits) = match self.kind {
            Kind::Fragment => (0, 0),
            Kind::Acked(bits) => (1, bits),
            Kind::Probe => (2, 0),
        };
        let mut bytes = Vec::with_capacity(FRAME_BYTES + rest.len());
        bytes.extend(MARK);
        let urgent = if self.urgent { URGENT } else { 0 };
        bytes.extend([kind, self.operation as u8 + urgent]);
        for address in [self.sender, to] {
            bytes.extend(address.port().to_le_bytes());
            bytes.extend(address.ip().octets());
        }
        let Stamp {
            session,
            to,
            number,
        } = self.stamp;
        for number in [session, to, number] {
            bytes.extend(number.to_le_bytes());
        }
        bytes.extend(self.fragment.message.to_le_bytes());
        bytes.extend(self.fragment.length.to_le_bytes());
        bytes.extend(self.fragment.index.to_le_bytes());
        bytes.extend(bits.to_le_bytes());
        bytes.extend(rest);
        let tag = blake3::keyed_hash(key, &bytes);
        bytes.extend(&tag.as_bytes()[..TAG_BYTES]);
        bytes
    }

    /// Parses a frame: the header and the bytes after it. None if the frame is malformed, its tag is not valid, or it
    /// is addressed to another NID.
    pub(crate) fn open<'a>(
        key: &Key,
        is_own: impl Fn(SocketAddrV4) -> bool,
        bytes: &'a [u8],
    ) -> Option<(Frame, &'a [u8])> {
        let (signed, tag) = bytes.split_at_checked(bytes.len().checked_sub(TAG_BYTES)?)?;
        let (header, rest) = signed.split_first_chunk::<HEADER_BYTES>()?;
        // The cheap checks come first, since the tag takes time for each byte.
        if header[0..4] != MARK || !is_own(address(&header[12..18])) {
            return None;
        }
        let expected = blake3::keyed_hash(key, signed);
        if !is_same(&expected.as_bytes()[..TAG_BYTES], tag) {
            return None;
        }
        let four =
            |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().expect("four bytes"));
        let eight =
            |at: usize| u64::from_le_bytes(header[at..at + 8].try_into().expect("eight bytes"));
        let operation = *Operation::ALL.get(usize::from(header[5] & !URGENT))?;
        let kind = match header[4] {
            0 => Kind::Fragment,
            1 => Kind::Acked(eight(58)),
            2 => Kind::Probe,
            _ => return None,
        };
        let frame = Frame {
            sender: address(&header[6..12]),
            stamp: Stamp {
                session: eight(18),
                to: eight(26),
                number: eight(34),
            },
            fragment: Fragment {
                message: eight(42),
                length: four(50),
                index: four(54),
            },
            kind,
            operation,
            urgent: header[5] & URGENT != 0,
        };
        Some((frame, rest))
    }
}

/// Whether two tags of one length are equal. All bytes are compared in any case, so that the time gives no
/// information about them.
pub(crate) fn is_same(one: &[u8], other: &[u8]) -> bool {
    let pairs = one.iter().zip(other);
    let difference = pairs.fold(0, |bits, (left, right)| bits | (left ^ right));
    std::hint::black_box(difference) == 0 && one.len() == other.len()
}

/// Parses a port and an address, six bytes.
fn address(bytes: &[u8]) -> SocketAddrV4 {
    let ip = Ipv4Addr::new(bytes[2], bytes[3], bytes[4], bytes[5]);
    SocketAddrV4::new(ip, u16::from_le_bytes([bytes[0], bytes[1]]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const KEY: Key = [7; 32];

    fn frame(kind: Kind, numbers: (u64, u64, u32, u32)) -> Frame {
        Frame {
            sender: "1.2.3.4:258".parse().unwrap(),
            stamp: Stamp {
                session: numbers.0,
                to: !numbers.0,
                number: numbers.1,
            },
            fragment: Fragment {
                message: numbers.1,
                length: numbers.2,
                index: numbers.3,
            },
            kind,
            operation: Operation::Get,
            urgent: true,
        }
    }

    fn own() -> SocketAddrV4 {
        "5.6.7.8:772".parse().unwrap()
    }

    fn open(bytes: &[u8]) -> Option<(Frame, &[u8])> {
        Frame::open(&KEY, |to| to == own(), bytes)
    }

    #[test]
    fn the_bytes_match_the_layout() {
        let bytes = frame(Kind::Fragment, (5, 6, 7, 8)).seal(&KEY, own(), b"piece");
        let head = b"MBK6\0\x12\x02\x01\x01\x02\x03\x04\x04\x03\x05\x06\x07\x08";
        assert_eq!(&bytes[..18], head);
        let numbers = [18, 26, 34, 42, 50, 54].map(|at| bytes[at]);
        let expected = [5, !5, 6, 6, 7, 8];
        assert_eq!((numbers, &bytes[58..66]), (expected, &[0; 8][..]));
        assert_eq!(
            (&bytes[66..71], bytes.len()),
            (&b"piece"[..], 5 + FRAME_BYTES)
        );
        let tag = blake3::keyed_hash(&KEY, &bytes[..71]);
        assert_eq!(bytes[71..], tag.as_bytes()[..16]);
    }

    #[test]
    fn a_frame_with_another_key_or_to_another_node_is_rejected() {
        let frame = frame(Kind::Acked(1), (5, 6, 7, 8));
        assert!(open(&frame.seal(&KEY, own(), b"")).is_some());
        assert!(open(&frame.seal(&[8; 32], own(), b"")).is_none());
        let other = "5.6.7.9:772".parse().unwrap();
        assert!(open(&frame.seal(&KEY, other, b"")).is_none());
    }

    proptest! {
        #[test]
        fn frames_round_trip(
            ip in any::<u32>(), port in any::<u16>(), numbers in any::<(u64, u64, u32, u32)>(),
            kind in 0..3usize, acked in any::<u64>(), operation in 0..4usize, urgent in any::<bool>(),
            rest in proptest::collection::vec(any::<u8>(), 0..9),
        ) {
            let kind = [Kind::Fragment, Kind::Acked(acked), Kind::Probe][kind];
            let sender = SocketAddrV4::new(Ipv4Addr::from(ip), port);
            let frame = Frame { sender, operation: Operation::ALL[operation], urgent, ..frame(kind, numbers) };
            let sealed = frame.seal(&KEY, own(), &rest);
            prop_assert_eq!(open(&sealed), Some((frame, &rest[..])));
        }

        /// Design 8: a frame that was changed, truncated or extended is rejected.
        #[test]
        fn a_frame_that_was_changed_is_rejected(
            numbers in any::<(u64, u64, u32, u32)>(), rest in proptest::collection::vec(any::<u8>(), 0..9),
            at in any::<proptest::sample::Index>(), bits in 1..=u8::MAX, longer in 1..9usize,
        ) {
            let sealed = frame(Kind::Fragment, numbers).seal(&KEY, own(), &rest);
            let mut changed = sealed.clone();
            changed[at.index(sealed.len())] ^= bits;
            prop_assert_eq!(open(&changed), None);
            prop_assert_eq!(open(&sealed[..at.index(sealed.len())]), None);
            changed = sealed;
            changed.extend(vec![bits; longer]);
            prop_assert_eq!(open(&changed), None);
        }
    }
}
