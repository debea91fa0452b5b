//! The announcement of a rail's address for beats.
//!
//! The address of an endpoint for unreliable datagrams (`o2ud`) contains a number that its node's adapter has chosen,
//! and another one each time the rail is opened. A node tells it to each peer by an announcement in the lane of news.
//! Until a peer's announcement has arrived, beats for it go in the lane of news as well.
//!
//! ```text
//!  0  4  mark F5 "MB1"
//!  4  1  1 if the sender knows the receiver's address, 0 if the receiver is to announce it again
//!  5  9  NID of the sender:   kind of net, its number (2), port (2), address (4)
//! 14  9  NID of the receiver
//! 23  8  incarnation of the sender: grows with each start of its process
//! 31  8  number of the announcement in that incarnation, counted from 1
//! 39  8  tag
//! 47     the provider's address, 1 to 64 bytes
//! ```
//! Numbers are little-endian. The tag is the first 8 bytes of a keyed BLAKE3 of all other bytes: a process without the
//! job's key cannot divert beats. Announcements are taken in the order of their incarnations and numbers only.

use crate::bulk::{Key, is_same};
use crate::relay::{NID_BYTES, read_nid, write_nid};
use muster_provider::Nid;

/// No text, no frame of members and no envelope begins with these bytes.
const MARK: [u8; 4] = *b"\xf5MB1";
const TAG_AT: usize = 5 + 2 * NID_BYTES + 16;
const TAG_BYTES: usize = 8;
const ADDRESS_MAX: usize = 64;

/// When an announcement was made: the incarnation, and the number in it.
pub(crate) type Stamp = (u64, u64);

/// The address that a peer has announced last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Told {
    /// The provider's handle of it; none if beats have not arrived there.
    pub(crate) address: Option<u64>,
    pub(crate) stamp: Stamp,
}

/// The fields of an announcement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Announcement {
    pub(crate) knows_receiver: bool,
    pub(crate) from: Nid,
    pub(crate) to: Nid,
    pub(crate) stamp: Stamp,
    pub(crate) address: Vec<u8>,
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
        let tag = tag(key, &bytes, &self.address);
        bytes.extend(tag);
        bytes.extend(&self.address);
        Some(bytes)
    }

    /// Decodes it; none if it is malformed, or its tag is not valid under the key.
    pub(crate) fn open(key: &Key, bytes: &[u8]) -> Option<Announcement> {
        let (front, rest) = bytes.split_first_chunk::<TAG_AT>()?;
        let (given, address) = rest.split_first_chunk::<TAG_BYTES>()?;
        let is_whole = is_announcement(front) && (1..=ADDRESS_MAX).contains(&address.len());
        if !is_whole || !is_same(&tag(key, front, address), given) {
            return None;
        }
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
            address: address.to_vec(),
        })
    }
}

/// Whether these bytes begin as an announcement does.
pub(crate) fn is_announcement(bytes: &[u8]) -> bool {
    bytes.starts_with(&MARK)
}

fn tag(key: &Key, front: &[u8], address: &[u8]) -> [u8; TAG_BYTES] {
    let mut hasher = blake3::Hasher::new_keyed(key);
    hasher.update(front).update(address);
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
        let announcement = Announcement {
            knows_receiver: true,
            from: "10.0.0.1:7700@o2ud1".parse().unwrap(),
            to: "10.0.0.2:7800@o2ud1".parse().unwrap(),
            stamp: (1 << 60, 3),
            address: (0..32).collect(),
        };
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
        for length in [0, ADDRESS_MAX + 1] {
            let address = vec![1; length];
            let sealed = Announcement {
                address,
                ..announcement.clone()
            };
            let bytes = sealed.seal(&key).unwrap();
            assert_eq!(Announcement::open(&key, &bytes), None, "{length}");
        }
    }
}
