//! Identity of a member: its place on the ring and its version.
//!
//! The id is the first eight bytes of the SHA-1 hash of the *name*. The paper hashes name and network
//! endpoints together. Here the endpoints are left out (a deviation from ZM-01 and ZM-05), so that a node
//! that comes back on other rails keeps its place on the ring and is recognised. Therefore a name must be
//! unique in a job; of two members with one name the later one stops (`NameTaken`).
//!
//! The version is (incarnation, minor). The incarnation tells restarts apart; the minor counts refutations
//! within one.

use sha1::{Digest, Sha1};

/// Longest name of a member, in bytes.
pub const NAME_MAX: usize = 63;
/// Longest name of a group, in bytes.
pub const GROUP_MAX: usize = 31;
/// Longest address of a member, in bytes. The protocol does not interpret it.
pub const ADDRESS_MAX: usize = 255;
/// Incarnations are below this, so that raising one never overflows. Launch times in nanoseconds reach it
/// in the year 2262.
pub const INCARNATION_MAX: u64 = 1 << 63;

/// Launch times are below this until the year 2116. A higher incarnation is rejected, unless it is close to
/// the one held.
const INCARNATION_PLAUSIBLE: u64 = 1 << 62;
/// The distance that counts as close: 417 days in nanoseconds.
const INCARNATION_STEP: u64 = 1 << 55;

/// Whether an incarnation is plausible when `held` is known. No single false one may use up the numbers
/// that a member needs to contradict it.
pub const fn is_plausible(incarnation: u64, held: u64) -> bool {
    incarnation <= INCARNATION_PLAUSIBLE || incarnation <= held.saturating_add(INCARNATION_STEP)
}

/// A member's place on the ring, derived from its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemberId(pub u64);

impl MemberId {
    /// The id of the member called `name`: the first eight bytes of SHA-1, big endian.
    #[must_use]
    pub fn of(name: &str) -> Self {
        let digest = Sha1::digest(name.as_bytes());
        let mut first = [0; 8];
        first.copy_from_slice(&digest[..8]);
        Self(u64::from_be_bytes(first))
    }
}

/// Incarnation of a member, and number of refutations in it. Ordered by incarnation, then by minor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// Increases with restarts and rejoins; from the launch time in nanoseconds.
    pub incarnation: u64,
    /// Starts at 1 in every incarnation; only the member itself raises it.
    pub minor: u32,
}

impl Version {
    /// The first version of an incarnation.
    #[must_use]
    pub const fn first(incarnation: u64) -> Self {
        Self {
            incarnation,
            minor: 1,
        }
    }

    /// The next version of the same incarnation; of the next incarnation when the minor is used up.
    #[must_use]
    pub const fn raised(self) -> Self {
        match self.minor.checked_add(1) {
            Some(minor) => Self {
                incarnation: self.incarnation,
                minor,
            },
            None => self.reborn(),
        }
    }

    /// The first version of the next incarnation.
    #[must_use]
    pub const fn reborn(self) -> Self {
        Self::first(self.incarnation.saturating_add(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// ZM-05: the ring order is the order of SHA-1; "abc" is the test vector of FIPS 180.
    #[test]
    fn id_is_the_head_of_sha1_of_the_name() {
        assert_eq!(MemberId::of("abc"), MemberId(0xa999_3e36_4706_816a));
    }

    /// ZM-01: incarnation before minor, and no overflow of either.
    #[test]
    fn versions_order_by_incarnation_then_minor() {
        let version = Version {
            incarnation: 7,
            minor: u32::MAX,
        };
        assert!(version.raised() > version);
        assert_eq!(version.raised(), Version::first(8));
        assert!(Version::first(8) > version);
    }
}
