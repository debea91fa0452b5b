//! The envelope of a relayed message. The carrier reads the envelope, and not the message behind it.
//!
//! ```text
//!  0  4  mark F5 "MR3"
//!  4  1  hops left: 1 on the way to the carrier, 0 behind it
//!  5  1  1 if the sender has lost direct contact with the receiver, else 0
//!  6  9  NID of the sender:   kind of net, its number (2), port (2), address (4)
//! 15  9  NID of the carrier
//! 24  9  NID of the receiver
//! 33  8  incarnation of the sender: grows with each start of its process
//! 41  8  number of the envelope, counted from 1 in each incarnation of the sender
//! 49  8  tag
//! 57     the message, at least one byte; no envelope
//! ```
//! Numbers are little-endian. The tag is the first 8 bytes of a keyed BLAKE3 of all bytes except the hops and
//! the tag itself: a process without the job's key cannot have a message carried. Carrier and receiver take
//! each number of a sender's incarnation once (see `replay_filter`).

use crate::bulk::{Key, is_same};
use crate::stats::DropReason;
use muster_provider::{Net, NetKind, Nid};
use std::net::{Ipv4Addr, SocketAddrV4};

/// No text and no frame of members begins with these bytes.
const MARK: [u8; 4] = *b"\xf5MR3";

/// Bytes of a NID in an envelope.
pub(crate) const NID_BYTES: usize = 9;

/// Bytes that an envelope adds to a relayed message.
pub const ENVELOPE_BYTES: usize = FRONT_BYTES + TAG_BYTES;

/// The length of the envelope before the tag.
const FRONT_BYTES: usize = 6 + 3 * NID_BYTES + 16;

const TAG_BYTES: usize = 8;

/// The fields of an envelope.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Envelope {
    pub(crate) hops: u8,
    /// The sender has lost direct contact with the receiver.
    pub(crate) no_direct_contact: bool,
    pub(crate) from: Nid,
    pub(crate) by: Nid,
    pub(crate) to: Nid,
    /// The incarnation of the sender.
    pub(crate) incarnation: u64,
    /// The number of the envelope in that incarnation.
    pub(crate) number: u64,
}

impl Envelope {
    /// Encodes the envelope and the message; none if a NID has no IP address.
    pub(crate) fn seal(&self, key: &Key, message: &[&[u8]]) -> Option<Vec<u8>> {
        let length: usize = message.iter().map(|part| part.len()).sum();
        let mut bytes = Vec::with_capacity(ENVELOPE_BYTES + length);
        bytes.extend(MARK);
        bytes.extend([self.hops, u8::from(self.no_direct_contact)]);
        for nid in [&self.from, &self.by, &self.to] {
            bytes.extend(write_nid(nid)?);
        }
        bytes.extend(self.incarnation.to_le_bytes());
        bytes.extend(self.number.to_le_bytes());
        let tag = tag(key, &bytes, message);
        bytes.extend(tag);
        message.iter().for_each(|part| bytes.extend(*part));
        Some(bytes)
    }

    /// Decodes an envelope and its message; none if it is malformed. This does not check the tag.
    pub(crate) fn read(bytes: &[u8]) -> Option<(Envelope, &[u8])> {
        let (front, message) = bytes.split_first_chunk::<ENVELOPE_BYTES>()?;
        let (head, nids) = front.split_first_chunk::<6>()?;
        let [a, b, c, d, hops @ 0..=1, no_direct_contact @ 0..=1] = *head else {
            return None;
        };
        if [a, b, c, d] != MARK || message.is_empty() || is_envelope(message) {
            return None;
        }
        let (nids, numbers) = nids.split_at(3 * NID_BYTES);
        let (incarnation, number) = numbers.split_first_chunk()?;
        let (number, _) = number.split_first_chunk()?;
        let mut nids = nids.chunks_exact(NID_BYTES).map(read_nid);
        let mut next = || nids.next().flatten();
        let envelope = Envelope {
            hops,
            no_direct_contact: no_direct_contact == 1,
            from: next()?,
            by: next()?,
            to: next()?,
            incarnation: u64::from_le_bytes(*incarnation),
            number: u64::from_le_bytes(*number),
        };
        Some((envelope, message))
    }
}

/// Whether the tag is valid under the key.
pub(crate) fn is_proven(key: &Key, bytes: &[u8]) -> bool {
    let parts = bytes.split_at_checked(FRONT_BYTES);
    let parts = parts.and_then(|(front, rest)| Some((front, rest.split_at_checked(TAG_BYTES)?)));
    parts.is_some_and(|(front, (given, message))| is_same(&tag(key, front, &[message]), given))
}

/// The tag. It leaves the hops out, because the carrier changes them.
fn tag(key: &Key, front: &[u8], message: &[&[u8]]) -> [u8; TAG_BYTES] {
    let mut hasher = blake3::Hasher::new_keyed(key);
    let (before, after) = (&front[..MARK.len()], &front[MARK.len() + 1..]);
    hasher.update(before).update(after);
    for part in message {
        hasher.update(part);
    }
    let mut tag = [0; TAG_BYTES];
    tag.copy_from_slice(&hasher.finalize().as_bytes()[..TAG_BYTES]);
    tag
}

/// Sets the hops left to zero: the envelope was carried.
pub(crate) fn mark_carried(bytes: &mut [u8]) {
    if let Some(hops) = bytes.get_mut(MARK.len()) {
        *hops = 0;
    }
}

/// Whether these bytes begin as an envelope does.
pub(crate) fn is_envelope(bytes: &[u8]) -> bool {
    bytes.starts_with(&MARK)
}

pub(crate) fn write_nid(nid: &Nid) -> Option<[u8; NID_BYTES]> {
    let address = nid.socket_address()?;
    let mut bytes = [0; NID_BYTES];
    bytes[0] = NetKind::ALL.iter().position(|kind| *kind == nid.net.kind)? as u8;
    bytes[1..3].copy_from_slice(&nid.net.number.to_le_bytes());
    bytes[3..5].copy_from_slice(&address.port().to_le_bytes());
    bytes[5..9].copy_from_slice(&address.ip().octets());
    Some(bytes)
}

pub(crate) fn read_nid(bytes: &[u8]) -> Option<Nid> {
    let &[kind, n0, n1, p0, p1, a, b, c, d] = bytes else {
        return None;
    };
    let address = SocketAddrV4::new(Ipv4Addr::new(a, b, c, d), u16::from_le_bytes([p0, p1]));
    let net = Net {
        kind: *NetKind::ALL.get(usize::from(kind))?,
        number: u16::from_le_bytes([n0, n1]),
    };
    Some(Nid::of(address, net))
}

/// The member that a NID belongs to, as far as this node knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owner<P> {
    /// This node.
    Local,
    /// A peer.
    Peer(P),
    /// No known member.
    Unknown,
}

/// What to do with a received envelope.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict<P> {
    /// Deliver it: this node is the receiver.
    Take { from: P, by: P },
    /// Send it directly to another member, with no hops left.
    Carry { from: P, to: P },
    /// Drop it, for this reason.
    Drop(DropReason),
    /// Drop it, since a NID belongs to no known member: 0 the sender's, 1 the carrier's, 2 the receiver's.
    UnknownNid(u8),
}

/// Decides what to do with an envelope; `owner_of` returns the member of a NID. It is a pure function, so that
/// tests can show that no envelope is carried twice.
pub(crate) fn judge<P: Copy + PartialEq>(
    envelope: &Envelope,
    owner_of: impl Fn(&Nid) -> Owner<P>,
) -> Verdict<P> {
    let malformed = Verdict::Drop(DropReason::RelayMalformed);
    let from = match owner_of(&envelope.from) {
        Owner::Peer(from) => from,
        Owner::Local => return malformed,
        Owner::Unknown => return Verdict::UnknownNid(0),
    };
    match (
        envelope.hops,
        owner_of(&envelope.by),
        owner_of(&envelope.to),
    ) {
        (0, Owner::Peer(by), Owner::Local) if by != from => Verdict::Take { from, by },
        (0, Owner::Unknown, Owner::Local) => Verdict::UnknownNid(1),
        (1, Owner::Local, Owner::Peer(to)) if to != from => Verdict::Carry { from, to },
        (1, Owner::Local, Owner::Unknown) => Verdict::UnknownNid(2),
        _ => malformed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const KEY: Key = [7; 32];

    fn nid(text: &str) -> Nid {
        text.parse().unwrap()
    }

    fn envelope() -> Envelope {
        Envelope {
            hops: 1,
            no_direct_contact: true,
            from: nid("1.2.3.4:258@udp3"),
            by: nid("5.6.7.8:1@psm0"),
            to: nid("9.9.9.9:65535@tcp65535"),
            incarnation: 5,
            number: 6,
        }
    }

    #[test]
    fn the_bytes_are_at_the_documented_offsets() {
        let bytes = envelope().seal(&KEY, &[b"mess", b"age"]).unwrap();
        assert_eq!(&bytes[..6], b"\xf5MR3\x01\x01");
        assert_eq!(bytes[6..15], [0, 3, 0, 2, 1, 1, 2, 3, 4]);
        assert_eq!(bytes[15..24], [3, 0, 0, 1, 0, 5, 6, 7, 8]);
        assert_eq!(bytes[24..33], [1, 255, 255, 255, 255, 9, 9, 9, 9]);
        assert_eq!(
            bytes[33..49],
            [5, 0, 0, 0, 0, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0]
        );
        let signed = [&bytes[..4], &bytes[5..49], b"message"].concat();
        assert_eq!(
            bytes[49..57],
            blake3::keyed_hash(&KEY, &signed).as_bytes()[..8]
        );
        assert_eq!(&bytes[57..], b"message");
        assert_eq!(
            Envelope::read(&bytes),
            Some((envelope(), b"message".as_slice()))
        );
    }

    /// Design 8: no envelope without the key is carried; a carried envelope is still valid.
    #[test]
    fn a_changed_envelope_or_another_key_is_not_proven() {
        let mut bytes = envelope().seal(&KEY, &[b"message"]).unwrap();
        assert!(is_proven(&KEY, &bytes) && !is_proven(&[8; 32], &bytes));
        mark_carried(&mut bytes);
        assert!(is_proven(&KEY, &bytes));
        for at in (0..bytes.len()).filter(|at| *at != MARK.len()) {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            assert!(!is_proven(&KEY, &changed), "{at}");
            assert!(!is_proven(&KEY, &bytes[..at]), "{at}");
        }
        bytes.push(0);
        assert!(!is_proven(&KEY, &bytes));
    }

    /// Too short, too many hops, no such net, empty, an envelope in an envelope: each is malformed.
    #[test]
    fn malformed_envelopes_are_refused() {
        let good = envelope().seal(&KEY, &[b"message"]).unwrap();
        let changed = |at: usize, to: u8| {
            let mut bytes = good.clone();
            bytes[at] = to;
            bytes
        };
        let nested = envelope().seal(&KEY, &[&good]).unwrap();
        for bad in [
            good[..ENVELOPE_BYTES].to_vec(),
            good[..7].to_vec(),
            changed(0, b'M'),
            changed(3, b'2'),
            changed(4, 2),
            changed(5, 2),
            changed(6, NetKind::ALL.len() as u8),
            nested,
        ] {
            assert_eq!(Envelope::read(&bad), None, "{bad:?}");
        }
        let mut of_interface = envelope();
        of_interface.by = nid("eth0@udp");
        assert_eq!(of_interface.seal(&KEY, &[b"message"]), None);
    }

    /// The NID of a test's member: member m has the address 10.0.0.m.
    fn of(member: u8) -> Nid {
        nid(&format!("10.0.0.{member}@udp"))
    }

    fn owner_of(own: u8, knows: &[u8], one: &Nid) -> Owner<u8> {
        if *one == of(own) {
            return Owner::Local;
        }
        let found = knows.iter().find(|other| *one == of(**other));
        found.map_or(Owner::Unknown, |other| Owner::Peer(*other))
    }

    fn any_envelope() -> impl Strategy<Value = Envelope> {
        (0..=1u8, any::<bool>(), 0..5u8, 0..5u8, 0..5u8).prop_map(
            |(hops, no_direct_contact, from, by, to)| Envelope {
                hops,
                no_direct_contact,
                from: of(from),
                by: of(by),
                to: of(to),
                incarnation: 1,
                number: 1,
            },
        )
    }

    proptest! {
        #[test]
        fn random_bytes_are_no_envelope_and_cause_no_panic(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            prop_assert!(Envelope::read(&bytes).is_none() || is_envelope(&bytes));
            let marked = [&MARK[..], &bytes].concat();
            let _ = Envelope::read(&marked);
            prop_assert!(!is_proven(&KEY, &marked));
        }

        /// At any member, any envelope is carried at most once, never back to its sender, and only between
        /// members that the carrier knows.
        #[test]
        fn no_envelope_is_carried_twice(
            first in any_envelope(), at in 0..5u8,
            knows in proptest::collection::vec(proptest::collection::vec(0..5u8, 0..5), 5),
        ) {
            let mut envelope = first;
            let mut at = at;
            let mut carried = 0;
            while let Verdict::Carry { from, to } =
                judge(&envelope, |nid| owner_of(at, &knows[usize::from(at)], nid))
            {
                carried += 1;
                prop_assert!(carried <= 1, "{envelope:?}");
                let known = &knows[usize::from(at)];
                prop_assert!(known.contains(&from) && known.contains(&to) && from != to && to != at);
                envelope.hops = 0;
                at = to;
            }
        }

        /// An envelope is delivered only if it was carried by a known member that is not the sender.
        #[test]
        fn only_carried_envelopes_are_delivered(envelope in any_envelope(), at in 0..5u8) {
            let all = [0, 1, 2, 3, 4];
            if let Verdict::Take { from, by } = judge(&envelope, |nid| owner_of(at, &all, nid)) {
                prop_assert!(envelope.hops == 0 && envelope.to == of(at));
                prop_assert!(from != by && from != at && by != at);
            }
        }
    }
}
