//! The frame of the bulk lane: a fixed header, and a fragment behind it if it carries one.
//!
//! ```text
//!  0  4  mark "MBK2"
//!  4  1  kind: 0 fragment, 1 acknowledgement, 2 question whether this path works
//!  5  1  zero
//!  6  2  port of the sender's NID
//!  8  4  address of the sender's NID
//! 12  8  stream: which life of the sender
//! 20  8  message, counted from 1 in each stream; 0 in a question and its acknowledgement
//! 28  4  length of the whole message
//! 32  4  which fragment; 0 in an acknowledgement
//! 36  8  fragments that have arrived, a bit each; 0 in a fragment
//! 44     the fragment
//! ```
//! Numbers are little-endian. The net is that of the rail that the frame came by.

use super::Fragment;
use std::net::{Ipv4Addr, SocketAddrV4};

const MARK: [u8; 4] = *b"MBK2";

/// Length of the header.
pub(crate) const HEADER_BYTES: usize = 44;

/// What a frame is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// It carries a fragment.
    Fragment,
    /// These fragments have arrived.
    Acked(u64),
    /// Does this path work? To be acknowledged at once.
    Question,
}

/// A header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Frame {
    /// The NID that the sender wants answers to.
    pub(crate) sender: SocketAddrV4,
    pub(crate) stream: u64,
    pub(crate) fragment: Fragment,
    pub(crate) kind: Kind,
}

impl Frame {
    pub(crate) fn write(&self, to: &mut [u8; HEADER_BYTES]) {
        to[0..4].copy_from_slice(&MARK);
        let (kind, bits) = match self.kind {
            Kind::Fragment => (0, 0),
            Kind::Acked(bits) => (1, bits),
            Kind::Question => (2, 0),
        };
        to[4] = kind;
        to[5] = 0;
        to[6..8].copy_from_slice(&self.sender.port().to_le_bytes());
        to[8..12].copy_from_slice(&self.sender.ip().octets());
        to[12..20].copy_from_slice(&self.stream.to_le_bytes());
        to[20..28].copy_from_slice(&self.fragment.message.to_le_bytes());
        to[28..32].copy_from_slice(&self.fragment.length.to_le_bytes());
        to[32..36].copy_from_slice(&self.fragment.index.to_le_bytes());
        to[36..44].copy_from_slice(&bits.to_le_bytes());
    }

    /// The header and what is behind it; none if it is no frame of ours.
    pub(crate) fn read(bytes: &[u8]) -> Option<(Frame, &[u8])> {
        let (header, rest) = bytes.split_first_chunk::<HEADER_BYTES>()?;
        if header[0..4] != MARK || header[5] != 0 {
            return None;
        }
        let four =
            |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().expect("four bytes"));
        let eight =
            |at: usize| u64::from_le_bytes(header[at..at + 8].try_into().expect("eight bytes"));
        let kind = match header[4] {
            0 => Kind::Fragment,
            1 => Kind::Acked(eight(36)),
            2 => Kind::Question,
            _ => return None,
        };
        let port = u16::from_le_bytes([header[6], header[7]]);
        let ip = Ipv4Addr::new(header[8], header[9], header[10], header[11]);
        let frame = Frame {
            sender: SocketAddrV4::new(ip, port),
            stream: eight(12),
            fragment: Fragment {
                message: eight(20),
                length: four(28),
                index: four(32),
            },
            kind,
        };
        Some((frame, rest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_bytes_are_where_the_drawing_says() {
        let frame = Frame {
            sender: "1.2.3.4:258".parse().unwrap(),
            stream: 5,
            fragment: Fragment {
                message: 6,
                length: 7,
                index: 8,
            },
            kind: Kind::Fragment,
        };
        let mut bytes = [0xee; HEADER_BYTES];
        frame.write(&mut bytes);
        assert_eq!(&bytes[..12], b"MBK2\0\0\x02\x01\x01\x02\x03\x04");
        let numbers = [12, 20, 28, 32].map(|at| bytes[at]);
        assert_eq!((numbers, &bytes[36..]), ([5, 6, 7, 8], &[0; 8][..]));
    }

    proptest! {
        #[test]
        fn frames_read_back(
            ip in any::<u32>(), port in any::<u16>(), numbers in any::<(u64, u64, u32, u32)>(),
            kind in 0..3usize, acked in any::<u64>(), rest in proptest::collection::vec(any::<u8>(), 0..9),
        ) {
            let frame = Frame {
                sender: SocketAddrV4::new(Ipv4Addr::from(ip), port),
                stream: numbers.0,
                fragment: Fragment { message: numbers.1, length: numbers.2, index: numbers.3 },
                kind: [Kind::Fragment, Kind::Acked(acked), Kind::Question][kind],
            };
            let mut header = [0; HEADER_BYTES];
            frame.write(&mut header);
            let bytes = [&header[..], &rest].concat();
            prop_assert_eq!(Frame::read(&bytes), Some((frame, &rest[..])));
        }

        #[test]
        fn garbage_is_no_frame_and_no_panic(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
            prop_assert!(Frame::read(&bytes).is_none() || bytes.starts_with(&MARK));
        }
    }
}
