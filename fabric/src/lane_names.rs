//! The announcement of the addresses of a rail's lanes that only its own node knows.
//!
//! The address of an endpoint for unreliable datagrams (`o2ud`) contains a number that its node's adapter has chosen,
//! and another one each time the rail is opened. So do all addresses on nets whose providers have addresses of their
//! own kind (`cxi`); there the NID contains the address of the lane of news. A node tells the others to each peer by an
//! announcement in the lane of news. Until a peer's announcement has arrived, beats for it go in the lane of news as
//! well, and bulk messages wait.
//!
//! ```text
//!  0  4  mark F5 "MB2"
//!  4  1  1 if the sender knows the receiver's addresses, 0 if the receiver is to announce them again
//!  5  9  NID of the sender:   kind of net, its number (2), port (2), address (4)
//! 14  9  NID of the receiver
//! 23  8  incarnation of the sender: grows with each start of its process
//! 31  8  number of the announcement in that incarnation, counted from 1
//! 39  8  tag
//! 47  1  length of the provider's address for beats, 1 to 64 bytes
//! 48     that address; then the provider's address for bulk messages, at most 64 bytes, none if they need none
//! ```
//! Numbers are little-endian. The tag is the first 8 bytes of a keyed BLAKE3 of all other bytes: a process without the
//! job's key cannot divert messages. Announcements are taken in the order of their incarnations and numbers only.

use crate::bulk::{Key, is_same};
use crate::relay::{NID_BYTES, read_nid, write_nid};
use muster_provider::{EndpointName, Nid};

/// No text, no frame of members and no envelope begins with these bytes.
const MARK: [u8; 4] = *b"\xf5MB2";
const TAG_AT: usize = 5 + 2 * NID_BYTES + 16;
const TAG_BYTES: usize = 8;

/// When an announcement was made: the incarnation, and the number in it.
pub(crate) type Stamp = (u64, u64);

/// The addresses that a peer has announced last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Told {
    /// The provider's handle of the address for beats; none if beats have not arrived there.
    pub(crate) beats: Option<u64>,
    /// The address for bulk messages.
    pub(crate) bulk: Option<EndpointName>,
    pub(crate) stamp: Stamp,
}

/// The fields of an announcement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Announcement {
    pub(crate) knows_receiver: bool,
    pub(crate) from: Nid,
    pub(crate) to: Nid,
    pub(crate) stamp: Stamp,
    pub(crate) beats: EndpointName,
    pub(crate) bulk: Option<EndpointName>,
}

impl Announcement {
    /// Encodes it; none if a NID has no IP address.
    pub(crate) fn seal(&self, key: &Key) -> Option<Vec<u8>> {
        let mut bytes = MARK.to_vec();
        bytes.push(u8::from(self.knows_receiver));
        bytes.extend(write_nid(&self.from)?);
        bytes.extend(write_nid(&self.to)?);
        bytes.extend(self.stamp.0.to_le_bytes());
        bytes.extend(self.stamp.1.to_le_bytes());
        let beats = self.beats.as_ref();
        let mut names = vec![u8::try_from(beats.len()).ok()?];
        names.extend(beats);
        names.extend(self.bulk.iter().flat_map(|name| name.as_ref()));
        let tag = tag(key, &bytes, &names);
        bytes.extend(tag);
        bytes.extend(names);
        Some(bytes)
    }

    /// Decodes it; none if it is malformed, or its tag is not valid under the key.
    pub(crate) fn open(key: &Key, bytes: &[u8]) -> Option<Announcement> {
        let (front, rest) = bytes.split_first_chunk::<TAG_AT>()?;
        let (given, names) = rest.split_first_chunk::<TAG_BYTES>()?;
        if !is_announcement(front) || !is_same(&tag(key, front, names), given) {
            return None;
        }
        let (length, rest) = names.split_first()?;
        let (beats, bulk) = rest.split_at_checked(usize::from(*length))?;
        let bulk = match bulk {
            [] => None,
            bulk => Some(EndpointName::new(bulk)?),
        };
        let (nids, numbers) = front[5..].split_at(2 * NID_BYTES);
        let (incarnation, number) = numbers.split_first_chunk()?;
        Some(Announcement {
            knows_receiver: front[4] == 1,
            from: read_nid(&nids[..NID_BYTES])?,
            to: read_nid(&nids[NID_BYTES..])?,
            stamp: (
                u64::from_le_bytes(*incarnation),
                u64::from_le_bytes(*number.first_chunk()?),
            ),
            beats: EndpointName::new(beats)?,
            bulk,
        })
    }
}

/// Whether these bytes begin as an announcement does.
pub(crate) fn is_announcement(bytes: &[u8]) -> bool {
    bytes.starts_with(&MARK)
}

fn tag(key: &Key, front: &[u8], names: &[u8]) -> [u8; TAG_BYTES] {
    let mut hasher = blake3::Hasher::new_keyed(key);
    hasher.update(front).update(names);
    let mut tag = [0; TAG_BYTES];
    tag.copy_from_slice(&hasher.finalize().as_bytes()[..TAG_BYTES]);
    tag
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_announcements_with_a_valid_tag_are_read() {
        let key = [7; 32];
        let name = |bytes: &[u8]| EndpointName::new(bytes).unwrap();
        let announcement = Announcement {
            knows_receiver: true,
            from: "10.0.0.1:7700@o2ud1".parse().unwrap(),
            to: "10.0.0.2:7800@o2ud1".parse().unwrap(),
            stamp: (1 << 60, 3),
            beats: name(&[7; 32]),
            bulk: None,
        };
        let with_bulk = Announcement {
            bulk: Some(name(&[8; 64])),
            ..announcement.clone()
        };
        for announcement in [announcement, with_bulk] {
            let bytes = announcement.seal(&key).unwrap();
            assert!(is_announcement(&bytes));
            assert_eq!(Announcement::open(&key, &bytes), Some(announcement.clone()));
            assert_eq!(Announcement::open(&[8; 32], &bytes), None);
            for at in 0..bytes.len() {
                let mut changed = bytes.clone();
                changed[at] ^= 1;
                assert_eq!(Announcement::open(&key, &changed), None, "byte {at}");
                assert_eq!(Announcement::open(&key, &bytes[..at]), None, "{at} bytes");
            }
        }
    }

    /// With the key, a peer may send any names.
    #[test]
    fn names_that_no_provider_has_are_refused() {
        let key = [7; 32];
        let sealed = |names: &[u8]| {
            let nid = write_nid(&"10.0.0.1:7700@cxi0".parse().unwrap()).unwrap();
            let front = [&MARK[..], &[1], &nid, &nid, &[0; 16]].concat();
            let tag = tag(&key, &front, names);
            Announcement::open(&key, &[&front[..], &tag, names].concat())
        };
        assert!(sealed(&[2, 5, 6]).is_some_and(|read| read.bulk.is_none()));
        for wrong in [&[][..], &[0], &[3, 1, 1], &[0, 1], &[65; 66], &[1; 67]] {
            assert_eq!(sealed(wrong), None, "{wrong:?}");
        }
    }
}
