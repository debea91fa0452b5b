//! `Life` is a zone's time from the start of its first node to the end of its last one.
//!
//! A zone that was declared failed may be back because it was only cut off, or because all its nodes have started
//! anew. In the first case the verdict was wrong, in the second it was right. So each verdict names the life that it is
//! about, and the supervisors of each zone publish in which life it is.
//!
//! A life is named by the incarnation of its first node, which is a time of the wall clock. A node that starts takes
//! its own, until others of its zone tell an earlier one. It keeps what it was told while it runs. So the name is sure
//! as soon as it was told, or a while after a node has come to the zone above.

use muster_protocol::planted::{self, Fault};

/// The life of a zone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Life {
    /// The incarnation of the first node, as far as it is known; 0 if nothing is.
    pub(super) began: u64,
    /// Whether an earlier one would be known by now.
    pub(super) is_sure: bool,
}

impl Life {
    /// The earlier one of two of a zone.
    pub(super) fn earlier(self, other: Self) -> Self {
        match (self.began, other.began) {
            (0, _) => other,
            (_, 0) => self,
            (own, other_began) if own == other_began => Self {
                is_sure: self.is_sure || other.is_sure,
                ..self
            },
            (own, other_began) if own < other_began => self,
            _ => other,
        }
    }

    /// Whether a verdict about the life with this name is about an earlier one. `None` if that is not sure yet.
    pub(super) fn is_later_than(self, of: u64) -> Option<bool> {
        match self.began {
            _ if planted::on(Fault::LifeForgotten) => Some(true),
            0 => None,
            began if began <= of => Some(false),
            _ => self.is_sure.then_some(true),
        }
    }

    pub(super) fn encode(self, bytes: &mut Vec<u8>) {
        bytes.extend(self.began.to_le_bytes());
        bytes.push(self.is_sure.into());
    }

    /// Reads one from the beginning of bytes.
    pub(super) fn decode(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (began, rest) = bytes.split_first_chunk::<8>()?;
        let (is_sure, rest) = rest.split_first()?;
        let life = Self {
            began: u64::from_le_bytes(*began),
            is_sure: *is_sure == 1,
        };
        (*is_sure <= 1).then_some((life, rest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn life(began: u64, is_sure: bool) -> Life {
        Life { began, is_sure }
    }

    /// ZM-12: nodes of one zone agree on its life, in whatever order they tell each other.
    #[test]
    fn the_earlier_life_is_taken_in_any_order() {
        let lives = [life(0, false), life(7, false), life(7, true), life(9, true)];
        for (one, other) in lives
            .iter()
            .flat_map(|one| lives.map(|other| (*one, other)))
        {
            assert_eq!(one.earlier(other), other.earlier(one));
        }
        assert_eq!(lives[0].earlier(lives[3]), lives[3]);
        assert_eq!(lives[1].earlier(lives[3]), lives[1]);
        assert_eq!(lives[1].earlier(lives[2]), lives[2]);
    }

    /// ZM-12: a verdict is about an earlier life only if no node may run that knows of one before.
    #[test]
    fn a_later_life_has_to_be_sure() {
        let is_later = |began, is_sure| life(began, is_sure).is_later_than(7);
        assert_eq!(is_later(0, false), None);
        assert_eq!(is_later(6, false), Some(false));
        assert_eq!(is_later(7, true), Some(false));
        assert_eq!(is_later(8, false), None);
        assert_eq!(is_later(8, true), Some(true));
    }
}
